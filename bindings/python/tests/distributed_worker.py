"""The processes of `test_distributed.py`. They run cases and write what went wrong in each.

    python distributed_worker.py PROCESSES FOLDER

Every process has the whole problem, computes the expected result alone, and compares.
"""

from __future__ import annotations

import datetime
import functools
import itertools
import json
import multiprocessing
import pathlib
import sys
import traceback
from collections.abc import Callable

import msda_attn as msda
import torch
import torch.distributed as dist
from msda_attn._torch.sharding import register_sharding
from support import problem
from test_readme import blocks
from torch import Tensor, nn

LEVELS = ((6, 9), (3, 5), (2, 2))


@functools.cache
def mesh_of(*shape: int):
    """A mesh of all processes. torch 2.15 cannot compile if an equal mesh was used before."""
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", shape)


def leaves(tensors: list[Tensor]) -> list[Tensor]:
    return [t.detach().clone().requires_grad_() for t in tensors]


def plain_form(**sizes):
    """Names of placements, tensors, and the operator of the plain form."""
    given = problem(**sizes)

    def run(tensors, tables):
        value, locations, weights = tensors
        return torch.ops.msda.ms_deform_attn(value, *tables, locations, weights)

    return ["value", "samples", "samples"], given.tensors(), (given.shapes, given.starts), run


def fused_form(coordinates: int, **sizes):
    """The same of the fused form with reference points of 2 or 4 coordinates."""
    given = problem(**sizes)
    batch, queries = given.locations.shape[:2]
    generator = torch.Generator().manual_seed(1)
    reference = torch.rand(batch, queries, len(LEVELS), coordinates, generator=generator)
    tensors = [given.value, reference, given.locations * 3, given.weights * 5]

    def run(tensors, tables):
        value, reference, offsets, logits = tensors
        return torch.ops.msda.ms_deform_attn_fused(value, *tables, reference, offsets, logits)

    roles = ["value", "reference", "samples", "samples"]
    return roles, tensors, (given.shapes, given.starts), run


FORMS = {
    "plain": plain_form,
    "points": lambda **sizes: fused_form(2, **sizes),
    "boxes": lambda **sizes: fused_form(4, **sizes),
}
SPLITS = ("whole", "batch", "queries", "heads")


def placements(role: str, splits: tuple[str, ...]):
    """Placements of a tensor and of its gradient, if each dimension of the mesh splits so."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    dims = {
        "value": {"batch": 0, "heads": 2},
        "reference": {"batch": 0, "queries": 1},
        "samples": {"batch": 0, "queries": 1, "heads": 2},
    }[role]
    own, gradient = [], []
    for split in splits:
        there = split in dims
        own.append(Shard(dims[split]) if there else Replicate())
        gradient.append(own[-1] if there or split == "whole" else Partial())
    return own, gradient


def alone(run, tensors, tables, direction):
    """Output and gradients of one process."""
    inputs = leaves(tensors)
    output = run(inputs, tables)
    return output, torch.autograd.grad(output, inputs, direction)


def check_split(form: str, splits: tuple[str, ...], mesh_shape: tuple[int, ...], **sizes) -> None:
    """The operator needs no communication for these splits, and its results are right."""
    from torch.distributed.tensor import Replicate, distribute_tensor
    from torch.distributed.tensor.debug import CommDebugMode

    mesh = mesh_of(*mesh_shape)
    roles, tensors, tables, run = FORMS[form](**sizes)
    direction = torch.randn(
        *tensors[-1].shape[:2],
        tensors[0].shape[2] * tensors[0].shape[3],
        generator=torch.Generator().manual_seed(2),
    )
    expected, expected_gradients = alone(run, tensors, tables, direction)
    inputs = [
        distribute_tensor(t, mesh, placements(role, splits)[0]).requires_grad_()
        for t, role in zip(tensors, roles)
    ]
    tables = [distribute_tensor(t, mesh, [Replicate()] * mesh.ndim) for t in tables]
    along, _ = placements("samples", splits)
    direction = distribute_tensor(direction, mesh, along)
    with CommDebugMode() as communication:
        output = run(inputs, tables)
        gradients = torch.autograd.grad(output, inputs, direction)
    assert communication.get_total_counts() == 0, communication.get_comm_counts()
    assert list(output.placements) == along, output.placements
    torch.testing.assert_close(output.full_tensor(), expected)
    for role, got, want in zip(roles, gradients, expected_gradients):
        assert list(got.placements) == placements(role, splits)[1], (role, got.placements)
        torch.testing.assert_close(got.full_tensor(), want, rtol=1e-4, atol=1e-5)


def check_redistributed(
    form: str, splits: list[str], mesh_shape=(2,), wanted=None, **sizes
) -> None:
    """Results are right where tensors are split in ways that do not fit each other."""
    from torch.distributed.tensor import Replicate, distribute_tensor

    mesh = mesh_of(*mesh_shape)
    roles, tensors, tables, run = FORMS[form](**sizes)
    wanted = wanted or [True] * len(tensors)
    inputs = [
        distribute_tensor(t, mesh, placements(role, (split,) * mesh.ndim)[0]).requires_grad_(want)
        for t, role, split, want in zip(tensors, roles, splits, wanted)
    ]
    whole = [Replicate()] * mesh.ndim
    output = run(inputs, [distribute_tensor(t, mesh, whole) for t in tables])
    output.full_tensor().square().sum().backward()
    single = [t.clone().requires_grad_(want) for t, want in zip(tensors, wanted)]
    expected = run(single, tables)
    expected.square().sum().backward()
    torch.testing.assert_close(output.full_tensor(), expected)
    for got, want in zip(inputs, single):
        assert (got.grad is None) == (want.grad is None)
        if want.grad is not None:
            torch.testing.assert_close(got.grad.full_tensor(), want.grad, rtol=1e-4, atol=1e-5)


EMBED, HEADS, BATCH, QUERIES = 32, 4, 4, 6


def module_problem():
    torch.manual_seed(0)
    module = msda.MSDeformAttn(EMBED, levels=len(LEVELS), heads=HEADS, points=[3, 2, 1])
    # The initial weights of both layers are 0: all queries would be treated alike.
    nn.init.normal_(module.sampling_offsets.weight, std=0.1)
    nn.init.normal_(module.attention_weights.weight, std=0.1)
    positions = sum(h * w for h, w in LEVELS)
    query, pyramid = torch.randn(BATCH, QUERIES, EMBED), torch.randn(BATCH, positions, EMBED)
    reference, target = torch.rand(BATCH, QUERIES, 1, 2), torch.randn(BATCH, QUERIES, EMBED)
    return module, (query, reference, pyramid, target)


def train(module: nn.Module, data, gather: Callable[[Tensor], Tensor]):
    """Losses of three steps, and the gradients of the last."""
    query, reference, pyramid, target = data
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = (module(query, reference, pyramid, LEVELS) - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(gather(loss.detach()))
    return torch.stack(losses), {n: p.grad for n, p in module.named_parameters()}


def check_training(wrap: Callable[[nn.Module], nn.Module]) -> None:
    """Each process trains on its part of the batch; losses and gradients are those of one."""
    module, data = module_problem()
    expected, expected_gradients = train(module, data, lambda loss: loss)
    assert expected[-1] < expected[0]
    module, data = module_problem()
    part = [t.chunk(dist.get_world_size())[dist.get_rank()] for t in data]

    def mean(loss: Tensor) -> Tensor:
        dist.all_reduce(loss)
        return loss / dist.get_world_size()

    losses, gradients = train(wrap(module), part, mean)
    torch.testing.assert_close(losses, expected)
    for name, want in expected_gradients.items():
        got = gradients.get(name, gradients.get(f"module.{name}"))
        got = got.full_tensor() if hasattr(got, "full_tensor") else got
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)


def ddp(module: nn.Module) -> nn.Module:
    return nn.parallel.DistributedDataParallel(module)


def fsdp(module: nn.Module) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    return fully_shard(module, mesh=mesh_of(dist.get_world_size()))


def check_tensor_parallel() -> None:
    """The module with its heads split between the processes, by the code of the document."""
    module, data = module_problem()
    expected, expected_gradients = train(module, data, lambda loss: loss)
    module, data = module_problem()
    (block,) = (b for b in blocks("docs/DISTRIBUTED.md") if b.needs == ["processes"])
    exec(block.code, {"attention": module, "mesh": mesh_of(dist.get_world_size())})
    losses, gradients = train(module, data, lambda loss: loss)
    torch.testing.assert_close(losses, expected)
    for name, want in expected_gradients.items():
        torch.testing.assert_close(gradients[name].full_tensor(), want, rtol=1e-4, atol=1e-6)


def check_functions() -> None:
    """The functions take DTensors with level sizes in a list."""
    from torch.distributed.tensor import Shard, distribute_tensor

    given = problem(batch=2)
    mesh = mesh_of(dist.get_world_size())
    value, locations, weights = (distribute_tensor(t, mesh, [Shard(0)]) for t in given.tensors())
    output = msda.ms_deform_attn(value, LEVELS, None, locations, weights)
    assert output.placements == (Shard(0),)
    torch.testing.assert_close(output.full_tensor(), msda.ms_deform_attn(*given))
    reference = torch.rand(2, 7, 1, 2, generator=torch.Generator().manual_seed(3))
    split = distribute_tensor(reference, mesh, [Shard(0)])
    output = msda.ms_deform_attn_fused(value, LEVELS, None, split, locations, weights)
    expected = msda.ms_deform_attn_fused(
        given.value, LEVELS, None, reference, given.locations, given.weights
    )
    torch.testing.assert_close(output.full_tensor(), expected)


def check_compiled() -> None:
    """torch.compile takes DTensors, with level sizes in a list."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    given = problem(batch=2).requires_grad_()
    given_value, given_locations, given_weights = given.tensors()
    mesh = mesh_of(dist.get_world_size())
    value = distribute_tensor(given_value.detach(), mesh, [Replicate()]).requires_grad_()
    locations = distribute_tensor(given_locations.detach(), mesh, [Shard(1)])
    weights = distribute_tensor(given_weights.detach(), mesh, [Shard(1)]).requires_grad_()

    @torch.compile(fullgraph=True, backend="aot_eager")
    def run(value, locations, weights):
        return msda.ms_deform_attn(value, LEVELS, None, locations, weights)

    output = run(value, locations, weights)
    assert output.placements == (Shard(1),)
    output.full_tensor().square().sum().backward()
    expected = msda.ms_deform_attn(*given)
    expected.square().sum().backward()
    torch.testing.assert_close(output.full_tensor(), expected)
    torch.testing.assert_close(value.grad.full_tensor(), given_value.grad)
    torch.testing.assert_close(weights.grad.full_tensor(), given_weights.grad)


# What this version of torch cannot do, by the names of the cases.
UNSUPPORTED: dict[str, str] = {}
if tuple(int(n) for n in torch.__version__.split(".")[:2]) < (2, 8):
    UNSUPPORTED = {
        "fsdp": "FSDP2 on CPUs sums gradients in torch 2.7, of any module",
        "uneven-heads-twice": "DTensor of torch 2.7 cannot redistribute these tensors",
    }


def cases(processes: int) -> dict[str, Callable[[], None]]:
    """The cases for this number of processes, by name."""
    found: dict[str, Callable[[], None]] = {}
    # Batch and queries need not be multiples of the processes. Heads must be.
    sizes = {"batch": 5, "queries": 7, "heads": 4}
    forms = FORMS if processes == 2 else ("boxes",)
    for form, split in itertools.product(forms, SPLITS):
        found[f"{form}-{split}"] = lambda form=form, split=split: check_split(
            form, (split,), (processes,), **sizes
        )
    if processes == 2:
        found["ddp"] = lambda: check_training(ddp)
        found["fsdp"] = lambda: check_training(fsdp)
        found["uneven-heads"] = lambda: check_redistributed("boxes", ["heads"] * 4, heads=3)
        found["mixed"] = lambda: check_redistributed(
            "boxes", ["batch", "queries", "queries", "whole"]
        )
        found["one-gradient"] = lambda: check_redistributed(
            "plain", ["whole", "queries", "queries"], wanted=[False, False, True]
        )
        found["functions"] = check_functions
        found["tensor-parallel"] = check_tensor_parallel
        found["compiled"] = check_compiled
    else:
        for first, second in itertools.combinations_with_replacement(SPLITS[1:], 2):
            found[f"boxes-{first}-{second}"] = lambda splits=(first, second): check_split(
                "boxes", splits, (2, 2), **sizes
            )
        found["uneven-heads-twice"] = lambda: check_redistributed(
            "boxes", ["heads"] * 4, (2, 2), heads=6
        )
    return found


def main(rank: int, processes: int, folder: pathlib.Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'rendezvous'}",
        rank=rank,
        world_size=processes,
        timeout=datetime.timedelta(seconds=300),
    )
    register_sharding()
    results: dict[str, str] = {}
    for name, case in cases(processes).items():
        if name in UNSUPPORTED:
            continue
        try:
            case()
            results[name] = ""
        except Exception:
            results[name] = traceback.format_exc()
        # gloo may abort the process in a later case.
        (folder / f"{rank}.json").write_text(json.dumps(results), encoding="utf-8")
        if results[name]:
            # The other processes may wait for this one: later cases cannot run.
            return
    dist.destroy_process_group()


def start(processes: int, folder: pathlib.Path) -> None:
    """Starts the processes and waits for them."""
    # Forked processes share the import of torch. No thread runs yet.
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    running = [
        context.Process(target=main, args=(rank, processes, folder), daemon=True)
        for rank in range(processes)
    ]
    for process in running:
        process.start()
    for process in running:
        process.join()


if __name__ == "__main__":
    start(int(sys.argv[1]), pathlib.Path(sys.argv[2]))
