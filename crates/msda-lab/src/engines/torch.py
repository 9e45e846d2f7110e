"""Runs tasks with torch's grid_sample, the way models without a kernel of their own do.

Reads one JSON object a line from standard input, answers with one a line on standard output.
Tensors travel through files of raw little-endian numbers.
"""

import json
import sys
import time

import torch
import torch.nn.functional as F

DTYPES = {"f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def load(path, dtype, shape):
    if 0 in shape:
        return torch.empty(shape, dtype=DTYPES[dtype])
    return torch.from_file(path, shared=False, size=torch.Size(shape).numel(), dtype=DTYPES[dtype]).clone().view(shape)


def save(path, tensor):
    with open(path, "wb") as f:
        f.write(tensor.detach().contiguous().view(torch.uint8).numpy().tobytes())


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


def tensors(task):
    b, q, h, d = task["batch"], task["queries"], task["heads"], task["channels"]
    s, n = task["positions"], sum(task["points"])
    shapes = {"value": (b, s, h, d), "locations": (b, q, h, n, 2), "weights": (b, q, h, n), "grad": (b, q, h, d)}
    return [load(task["files"][name], task["dtype"], shape) for name, shape in shapes.items()]


def repeat(run, effort):
    run()
    times = []
    begin = time.perf_counter()
    while len(times) < effort["at_least"] or (
        time.perf_counter() - begin < effort["budget"] and len(times) < effort["at_most"]
    ):
        times.append(run())
    return times


def answer(task):
    value, locations, weights, grad = tensors(task)
    backward = task["pass"] == "backward"
    if backward:
        for t in (value, locations, weights):
            t.requires_grad_()

    def run():
        if not backward:
            with torch.no_grad():
                begin = time.perf_counter()
                run.results = [forward(task, value, locations, weights)]
                return (time.perf_counter() - begin) * 1e3
        output = forward(task, value, locations, weights)
        begin = time.perf_counter()
        run.results = torch.autograd.grad(output, (value, locations, weights), grad)
        return (time.perf_counter() - begin) * 1e3

    if task["effort"] is None:
        run()
        for path, result in zip(task["results"], run.results):
            save(path, result)
        return {}
    return {"times": repeat(run, task["effort"])}


def main():
    torch.set_num_threads(int(sys.argv[1]))
    print(json.dumps({"torch": torch.__version__}), flush=True)
    for line in sys.stdin:
        try:
            reply = answer(json.loads(line))
        except Exception as error:  # the other side reports it and goes on
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), flush=True)


main()
