"""Trains msda.MSDeformAttn in two processes with DistributedDataParallel, in a few seconds.

    python examples/train_two_processes.py

Each process sees its own images: noise with one bright spot. One query finds the spot. The program
starts both processes itself, on the CPU. It exits with 0 if the distance has become small.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
import tempfile

import msda_attn as msda
import torch
import torch.distributed as dist
import torch.multiprocessing
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

PROCESSES = 2
SIDE = 16  # pixels of an image
LEVELS = [(16, 16), (8, 8), (4, 4)]
GOAL = 0.06  # distance between the guess and the spot; the image has a side of 1


def make_images(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Images `(count, 1, 16, 16)` and the places of their spots `(count, 2)` as (x, y)."""
    place = 0.1 + 0.8 * torch.rand(count, 2, generator=generator)
    ticks = (torch.arange(SIDE) + 0.5) / SIDE
    x = (ticks - place[:, :1])[:, None, :]
    y = (ticks - place[:, 1:])[:, :, None]
    spot = torch.exp(-(x**2 + y**2) / (2 * 0.08**2))
    noise = 0.1 * torch.randn(count, SIDE, SIDE, generator=generator)
    return (spot + noise)[:, None], place


class Finder(nn.Module):
    """One query looks at the whole image, and then again around its first guess."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.pixels = nn.Sequential(nn.Linear(3, width), nn.GELU(), nn.Linear(width, width))
        self.query = nn.Parameter(torch.zeros(width))
        layers = [msda.MSDeformAttn(width, levels=3, heads=8, points=4) for _ in range(2)]
        self.layers = nn.ModuleList(layers)
        heads = [nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2)) for _ in range(2)]
        self.heads = nn.ModuleList(heads)

    def forward(self, images: Tensor) -> list[Tensor]:
        """Guesses `(count, 2)` after each layer."""
        parts = []
        for height, width in LEVELS:
            level = F.adaptive_avg_pool2d(images, (height, width)).flatten(2).transpose(1, 2)
            y, x = torch.meshgrid(
                (torch.arange(height) + 0.5) / height,
                (torch.arange(width) + 0.5) / width,
                indexing="ij",
            )
            where = torch.stack((x, y), -1).flatten(0, 1).expand(len(images), -1, -1)
            parts.append(torch.cat((level, where), -1))
        pyramid = self.pixels(torch.cat(parts, 1))
        query = self.query.expand(len(images), 1, -1)
        # The first box is the image. The second is around the first guess.
        box = torch.tensor([0.5, 0.5, 1.0, 1.0]).expand(len(images), 1, -1)
        guesses = []
        for layer, head in zip(self.layers, self.heads):
            query = query + layer(query, box[:, :, None], pyramid, LEVELS)
            guess = box[..., :2] + head(query)
            guesses.append(guess[:, 0])
            box = torch.cat((guess.detach(), torch.full_like(guess, 0.3)), -1)
        return guesses


def train(rank: int, steps: int, rendezvous: str) -> None:
    """One of the processes."""
    torch.set_num_threads(1)
    init = f"file://{rendezvous}"
    dist.init_process_group("gloo", init_method=init, rank=rank, world_size=PROCESSES)
    # Each process starts differently: DistributedDataParallel copies the parameters of rank 0.
    torch.manual_seed(rank)
    model = DistributedDataParallel(Finder())
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    generator = torch.Generator().manual_seed(100 + rank)
    for step in range(1, steps + 1):
        images, place = make_images(32, generator)
        loss = sum((guess - place).abs().mean() for guess in model(images))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0 or step == 1:
            dist.all_reduce(mean := loss.detach() / PROCESSES)
            if rank == 0:
                print(f"step {step:4}  loss {mean.item():.3f}", flush=True)

    mine = nn.utils.parameters_to_vector(model.parameters()).detach()
    both = [torch.empty_like(mine) for _ in range(PROCESSES)]
    dist.all_gather(both, mine)
    if not torch.equal(both[0], both[1]):
        raise RuntimeError("the processes have different parameters")
    with torch.no_grad():
        images, place = make_images(128, generator)
        distance = (model(images)[-1] - place).norm(dim=-1).mean()
    dist.all_reduce(distance)
    distance = distance.item() / PROCESSES
    dist.destroy_process_group()
    if rank == 0:
        print("both processes have the same parameters")
        print(f"mean distance from the spot: {distance:.3f}, the goal is {GOAL}", flush=True)
    # Threads of gloo still run after the group is destroyed, and a process was seen to abort at
    # exit. So it ends here, without the shutdown of Python.
    os._exit(int(distance > GOAL))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        rendezvous = str(pathlib.Path(folder) / "rendezvous")
        try:
            torch.multiprocessing.spawn(train, (args.steps, rendezvous), nprocs=PROCESSES)
        except torch.multiprocessing.ProcessExitedException as error:
            print(f"not found: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
