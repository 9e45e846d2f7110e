"""Runs tasks with torch: its grid_sample formulation, or a peer's call.

Arguments: the number of threads and the device. Reads one JSON object per line from standard input
and answers each with one line on standard output. Tensors are files of raw little-endian numbers.
"""

import importlib
import json
import os
import sys
import time

import torch
import torch.nn.functional as F

DTYPES = {"f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
# More than any L2 holds.
SCRATCH_BYTES = 256 << 20


def load(path, dtype, shape):
    if 0 in shape:
        return torch.empty(shape, dtype=DTYPES[dtype])
    return (
        torch.from_file(path, shared=False, size=torch.Size(shape).numel(), dtype=DTYPES[dtype])
        .clone()
        .view(shape)
    )


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
        plane = (
            value[:, start : start + rows * columns]
            .permute(0, 2, 3, 1)
            .reshape(b * h, d, rows, columns)
        )
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
    """Joins two functions that have the signatures of the original extension."""

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
    """Another implementation: a module, and the Python code that calls it."""

    def __init__(self, peer):
        module = importlib.import_module(peer["import"])
        top = peer["import"].split(".")[0]
        self.names = {
            top: sys.modules[top],
            **vars(module),
            "torch": torch,
            "differentiable": differentiable,
        }
        exec(compile(peer["setup"], "setup", "exec"), self.names)
        self.prepare = compile(peer["prepare"], "prepare", "exec")
        self.call = compile(peer["call"], "call", "eval")
        self.finish = compile(peer["finish"], "finish", "exec")

    def formulation(self, task, value, locations, weights):
        """Three functions: the preparation, the call, and the completion of gradients. The call is timed."""
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
                raise ValueError(
                    f"the call returned {tuple(output.shape)}, expected {(b, q, h * d)}"
                )
            return output.reshape(b, q, h, d)

        def finish(output, grad, grads):
            gradients = dict(zip(("grad_value", "grad_locations", "grad_weights"), grads))
            gradients["grad_locations"] = gradients["grad_locations"].view(
                b, q, h, levels, points, 2
            )
            gradients["grad_weights"] = gradients["grad_weights"].view(b, q, h, levels, points)
            scope = {**names, **gradients, "output": output.detach(), "grad": grad}
            exec(self.finish, scope)
            return [scope[name] for name in gradients]

        return lambda: exec(self.prepare, names), call, finish


class Wall:
    """Times work on the processor."""

    warm_up = 1
    # No host time to tell apart.
    host_ms = None

    def time(self, work):
        begin = time.perf_counter()
        result = work()
        return result, (time.perf_counter() - begin) * 1e3


class Events:
    """Times work on the GPU, from cold caches and without host time.

    A delay on the device comes before the first event. It must last until the host has queued all
    work: the GPU then never waits for Python, and the events measure the GPU alone.
    """

    warm_up = 3
    # Cycles of the GPU: about 65 us and 130 ms at 2 GHz.
    SHORTEST_DELAY, LONGEST_DELAY = 1 << 17, 1 << 28

    def __init__(self, device):
        self.written, self.read = (torch.zeros(SCRATCH_BYTES // 4, device=device) for _ in range(2))
        self.begin, self.end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.delay = self.SHORTEST_DELAY
        self.host_ms = None

    def time(self, work):
        """The result and its milliseconds; None in place of them if the delay was too short."""
        # Writing evicts everything from the caches. Reading then leaves clean lines, which need no
        # write-back while the work runs.
        self.written.zero_()
        self.read.sum()
        torch.cuda._sleep(self.delay)
        self.begin.record()
        start = time.perf_counter()
        result = work()
        self.host_ms = (time.perf_counter() - start) * 1e3
        self.end.record()
        hidden = not self.begin.query()
        self.end.synchronize()
        return result, self.begin.elapsed_time(self.end) if hidden else None

    def lengthen(self):
        """Doubles the delay."""
        self.delay *= 2
        if self.delay > self.LONGEST_DELAY:
            raise RuntimeError("the call waits for the device, so its time would contain host time")


def tensors(task, device):
    b, q, h, d = task["batch"], task["queries"], task["heads"], task["channels"]
    s, n = task["positions"], sum(task["points"])
    shapes = {
        "value": (b, s, h, d),
        "locations": (b, q, h, n, 2),
        "weights": (b, q, h, n),
        "grad": (b, q, h, d),
    }
    return [
        load(task["files"][name], task["dtype"], shape).to(device) for name, shape in shapes.items()
    ]


def repeat(run, clock, effort):
    for _ in range(clock.warm_up if effort["warm_up"] else 0):
        run()
    times, host = [], []
    begin = time.perf_counter()
    while len(times) < effort["at_least"] or (
        time.perf_counter() - begin < effort["budget"] and len(times) < effort["at_most"]
    ):
        _, ms = run()
        if ms is None:
            clock.lengthen()
            continue
        times.append(ms)
        if clock.host_ms is not None:
            host.append(clock.host_ms)
    return {"times": times, "host_us": sorted(host)[len(host) // 2] * 1e3 if host else None}


def answer(task, peer, device, clock):
    value, locations, weights, grad = tensors(task, device)
    backward = task["pass"] == "backward"
    if backward:
        for t in (value, locations, weights):
            t.requires_grad_()
    if peer is None:
        prepare, compute = (lambda: None), (lambda: forward(task, value, locations, weights))
        finish = lambda output, grad, grads: grads
    else:
        prepare, compute, finish = peer.formulation(task, value, locations, weights)

    def run(complete=False):
        """The results and their milliseconds. A backward pass is timed without the forward pass before it."""
        with torch.set_grad_enabled(backward):
            prepare()
            if not backward:
                result, ms = clock.time(compute)
                return [result], ms
            output = compute()
            grads, ms = clock.time(
                lambda: torch.autograd.grad(output, (value, locations, weights), grad)
            )
        return finish(output, grad, grads) if complete else grads, ms

    if task["effort"] is None:
        for path, result in zip(task["results"], run(complete=True)[0]):
            save(path, task["dtype"], result)
        return {}
    return repeat(run, clock, task["effort"])


def main():
    # Modules may print to standard output. It becomes standard error; answers go to a copy of it.
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
        except Exception as error:  # the benchmark reports it and continues
            reply({"error": f"{type(error).__name__}: {error}"})
        if device.type == "cuda":
            # Other engines use the same device.
            torch.cuda.empty_cache()


main()
