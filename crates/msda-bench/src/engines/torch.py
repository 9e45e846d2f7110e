"""Runs tasks with torch: its grid_sample, the way models without a kernel of their own do, or a peer's call.

Started with a number of threads and a device. Reads one JSON object a line from standard input and answers with one a
line on what was standard output. Tensors travel through files of raw little-endian numbers.
"""

import importlib
import json
import os
import sys
import time

import torch
import torch.nn.functional as F

DTYPES = {"f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
# More than any second-level cache holds.
SCRATCH_BYTES = 256 << 20


def load(path, dtype, shape):
    if 0 in shape:
        return torch.empty(shape, dtype=DTYPES[dtype])
    return torch.from_file(path, shared=False, size=torch.Size(shape).numel(), dtype=DTYPES[dtype]).clone().view(shape)


def save(path, dtype, tensor):
    open(path, "wb").close()
    if tensor.numel() > 0:
        file = torch.from_file(path, shared=True, size=tensor.numel(), dtype=DTYPES[dtype])
        file.copy_(tensor.detach().reshape(-1))


def forward(task, value, locations, weights):
    b, _, h, d = value.shape
    q = locations.shape[1]
    sampled = []
    start = first = 0
    for (rows, columns), points in zip(task["levels"], task["points"]):
        plane = value[:, start : start + rows * columns].permute(0, 2, 3, 1).reshape(b * h, d, rows, columns)
        grid = locations[:, :, :, first : first + points].transpose(1, 2).flatten(0, 1) * 2 - 1
        sampled.append(
            F.grid_sample(
                plane,
                grid,
                mode=task["sampling"],
                padding_mode=task["padding"],
                align_corners=task["align_corners"],
            )
        )
        start += rows * columns
        first += points
    weighted = torch.cat(sampled, -1) * weights.transpose(1, 2).reshape(b * h, 1, q, -1)
    return weighted.sum(-1).view(b, h, d, q).permute(0, 3, 1, 2)


def differentiable(forward, backward):
    """One call with gradients, from a forward and a backward function of the original extension's form."""

    class Op(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value, shapes, starts, locations, weights, step):
            ctx.save_for_backward(value, shapes, starts, locations, weights)
            ctx.step = step
            return forward(value, shapes, starts, locations, weights, step)

        @staticmethod
        def backward(ctx, grad):
            value, locations, weights = backward(*ctx.saved_tensors, grad.contiguous(), ctx.step)
            return value, None, None, locations, weights, None

    return Op.apply


class Peer:
    """Somebody else's implementation: a module, and Python that calls it."""

    def __init__(self, peer):
        module = importlib.import_module(peer["import"])
        top = peer["import"].split(".")[0]
        self.names = {top: sys.modules[top], **vars(module), "torch": torch, "differentiable": differentiable}
        exec(compile(peer["setup"], "setup", "exec"), self.names)
        self.prepare = compile(peer["prepare"], "prepare", "exec")
        self.call = compile(peer["call"], "call", "eval")

    def formulation(self, task, value, locations, weights):
        """What comes before a run and is not timed, and the run."""
        b, q, h, d = (task[name] for name in ("batch", "queries", "heads", "channels"))
        shapes = torch.tensor(task["levels"], dtype=torch.int64, device=value.device).view(-1, 2)
        starts = torch.cat((shapes.new_zeros(1), shapes.prod(1).cumsum(0)[:-1]))
        levels, points = len(task["points"]), task["points"][0]
        names = {
            **self.names,
            "value": value,
            "shapes": shapes,
            "starts": starts,
            "locations": locations.view(b, q, h, levels, points, 2),
            "weights": weights.view(b, q, h, levels, points),
        }

        def call():
            output = eval(self.call, names)
            if tuple(output.shape) not in ((b, q, h * d), (b, q, h, d)):
                raise ValueError(f"the call returned {tuple(output.shape)}, expected {(b, q, h * d)}")
            return output.reshape(b, q, h, d)

        return lambda: exec(self.prepare, names), call


class Wall:
    """Times work on the processor."""

    warm_up = 1

    def time(self, work):
        begin = time.perf_counter()
        result = work()
        return result, (time.perf_counter() - begin) * 1e3


class Events:
    """Times work on the GPU, from cold caches."""

    warm_up = 3

    def __init__(self, device):
        self.written, self.read = (torch.zeros(SCRATCH_BYTES // 4, device=device) for _ in range(2))
        self.begin, self.end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def time(self, work):
        # Writing throws out what the caches hold; reading then leaves lines that nobody has to write back.
        self.written.zero_()
        self.read.sum()
        self.begin.record()
        result = work()
        self.end.record()
        self.end.synchronize()
        return result, self.begin.elapsed_time(self.end)


def tensors(task, device):
    b, q, h, d = task["batch"], task["queries"], task["heads"], task["channels"]
    s, n = task["positions"], sum(task["points"])
    shapes = {"value": (b, s, h, d), "locations": (b, q, h, n, 2), "weights": (b, q, h, n), "grad": (b, q, h, d)}
    return [load(task["files"][name], task["dtype"], shape).to(device) for name, shape in shapes.items()]


def repeat(run, warm_up, effort):
    for _ in range(warm_up if effort["warm_up"] else 0):
        run()
    times = []
    begin = time.perf_counter()
    while len(times) < effort["at_least"] or (
        time.perf_counter() - begin < effort["budget"] and len(times) < effort["at_most"]
    ):
        times.append(run()[1])
    return times


def answer(task, peer, device, clock):
    value, locations, weights, grad = tensors(task, device)
    backward = task["pass"] == "backward"
    if backward:
        for t in (value, locations, weights):
            t.requires_grad_()
    if peer is None:
        prepare, compute = (lambda: None), (lambda: forward(task, value, locations, weights))
    else:
        prepare, compute = peer.formulation(task, value, locations, weights)

    def run():
        with torch.set_grad_enabled(backward):
            prepare()
            if not backward:
                result, ms = clock.time(compute)
                return [result], ms
            output = compute()
            return clock.time(lambda: torch.autograd.grad(output, (value, locations, weights), grad))

    if task["effort"] is None:
        for path, result in zip(task["results"], run()[0]):
            save(path, task["dtype"], result)
        return {}
    return {"times": repeat(run, clock.warm_up, task["effort"])}


def main():
    # Modules and kernels print what they like: answers go where nothing else writes.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def reply(message):
        print(json.dumps(message), file=answers, flush=True)

    torch.set_num_threads(int(sys.argv[1]))
    device, cuda = torch.device(sys.argv[2]), torch.cuda.is_available()
    if device.type == "cuda" and not cuda:
        reply({"error": f"torch {torch.__version__} finds no CUDA device"})
        return
    clock = Events(device) if device.type == "cuda" else Wall()
    peer = None
    reply({"torch": torch.__version__, "cuda": cuda})
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "import" in request:
                peer = Peer(request)
                reply({})
            else:
                reply(answer(request, peer, device, clock))
        except Exception as error:  # the other side reports it and goes on
            reply({"error": f"{type(error).__name__}: {error}"})
        if device.type == "cuda":
            # Other engines measure on the same device.
            torch.cuda.empty_cache()


main()
