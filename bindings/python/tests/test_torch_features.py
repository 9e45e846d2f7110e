"""What torch expects of an operator: checks, compile, export, transforms, autocast, threads."""

from __future__ import annotations

import contextlib
import gc
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import threading
import warnings

import msda_attn as msda
import pytest
import torch
from counting import Calls
from support import problem


def fused(inputs):
    """Inputs of the fused form."""
    torch.manual_seed(3)
    shapes = (2, 7, 3, 2), inputs.locations.shape, inputs.weights.shape
    made = [torch.randn(shape).to(inputs.value) for shape in shapes]
    return [inputs.value, inputs.shapes, inputs.starts, made[0].sigmoid(), *made[1:]]


def test_an_old_torch_is_refused_in_one_sentence():
    code = """
import torch
torch.__version__ = torch.torch_version.TorchVersion("2.6.1+cpu")
import msda_attn
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.splitlines()[-2:] == [
        "ImportError: msda_attn: got torch 2.6.1+cpu, expected 2.7 or newer",
        "hint: pip install --upgrade torch; NumPy arrays work without torch",
    ]


def test_which_operator_runs():
    inputs = problem().requires_grad_()
    value, shapes, starts, locations, weights = inputs
    for given, name in (
        ((shapes, starts), "_tables"),
        ((shapes.int(), None), "_tables"),
        ((shapes.tolist(), starts), "_tables"),
        ((shapes.tolist(), None), ""),
        (([tuple(size) for size in shapes.tolist()], starts.tolist()), ""),
    ):
        with Calls() as calls:
            output = msda.ms_deform_attn(value, *given, locations, weights)
            output.sum().backward()
        found = {op: n for op, n in calls.count.items() if op.startswith("msda.")}
        assert found == {f"msda._forward{name}": 1, f"msda._backward{name}": 1}
        torch.testing.assert_close(output, msda.ms_deform_attn(*inputs), rtol=0, atol=0)


def test_opcheck(device):
    for dtype in (torch.float32, torch.float64):
        inputs = problem(dtype=dtype, device=device).requires_grad_()
        torch.library.opcheck(torch.ops.msda.ms_deform_attn.default, (*inputs, 0, 0))
        args = fused(problem(dtype=dtype, device=device))
        for i in (0, 3, 4, 5):
            args[i].requires_grad_()
        torch.library.opcheck(torch.ops.msda.ms_deform_attn_fused.default, (*args, 0, 0))
        # Level sizes as numbers.
        levels = [n for (h, w), at in zip(args[1].tolist(), args[2].tolist()) for n in (h, w, at)]
        listed = torch.ops.msda.ms_deform_attn_fused_list.default
        torch.library.opcheck(listed, (args[0], levels, *args[3:], 0, 0))
        listed = torch.ops.msda.ms_deform_attn_list.default
        torch.library.opcheck(listed, (inputs.value, levels, inputs.locations, inputs.weights))
    inputs = problem(device=device)
    grad = torch.randn(2, 7, 24).to(device)
    for wanted in range(8):
        torch.library.opcheck(
            torch.ops.msda.ms_deform_attn_backward.default,
            (grad, *inputs, 0, 0, wanted),
            test_utils=("test_schema", "test_faketensor"),
        )


def test_gradcheck(device):
    inputs = problem(
        dtype=torch.float64, device=device, batch=1, queries=2, heads=2, channels=3
    ).requires_grad_()

    def plain(value, locations, weights):
        return msda.ms_deform_attn(value, inputs.shapes, inputs.starts, locations, weights)

    assert torch.autograd.gradcheck(plain, inputs.tensors())
    for numbers in (2, 4):
        torch.manual_seed(4)
        shapes = (1, 2, 3, numbers), (1, 2, 2, 3, 4, 2), (1, 2, 2, 3, 4)
        made = [torch.randn(shape, dtype=torch.float64).to(device) for shape in shapes]
        reference, offsets, logits = (t.requires_grad_() for t in (made[0].sigmoid(), *made[1:]))

        def whole(value, reference, offsets, logits):
            return msda.ms_deform_attn_fused(
                value, inputs.shapes, inputs.starts, reference, offsets, logits
            )

        value = inputs.value.detach().requires_grad_()
        assert torch.autograd.gradcheck(whole, (value, reference, offsets, logits))


def test_second_derivatives_are_refused(device):
    inputs = problem(dtype=torch.float64, device=device).requires_grad_()
    (grad,) = torch.autograd.grad(
        msda.ms_deform_attn(*inputs).sum(), inputs.value, create_graph=True
    )
    with pytest.raises(NotImplementedError, match="second derivatives"):
        grad.sum().backward()


def test_tensors_that_change_before_the_backward_pass_are_refused(device):
    for changed in range(5):
        inputs = problem(device=device).requires_grad_()
        output = msda.ms_deform_attn(*inputs)
        list(inputs)[changed].detach().add_(0)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            output.sum().backward()


@pytest.mark.parametrize("operator", ["msda", "torch.ops.msda"])
def test_forward_mode_is_refused(operator):
    import torch.autograd.forward_ad as forward_ad

    class Subclass(torch.Tensor):
        pass

    inputs = problem()
    function = msda.ms_deform_attn if operator == "msda" else torch.ops.msda.ms_deform_attn

    def call(value):
        return function(value, *list(inputs)[1:])

    with forward_ad.dual_level():
        value = forward_ad.make_dual(inputs.value, torch.ones_like(inputs.value))
        for dual in (value, value.as_subclass(Subclass)):
            with pytest.raises(NotImplementedError, match="forward-mode"):
                call(dual)
    for refused in (
        lambda value: torch.func.jvp(call, (value,), (value,)),
        torch.func.jacfwd(call),
        torch.func.grad(lambda value: torch.func.jvp(call, (value,), (value,))[1].sum()),
    ):
        with pytest.raises(NotImplementedError, match="forward-mode"):
            refused(inputs.value)

    # Torch may wrap the exception.
    @torch.compile(backend="eager")
    def compiled(value):
        return torch.func.jvp(call, (value,), (value,))[1]

    torch._dynamo.reset()
    with pytest.raises(Exception, match="forward-mode"):
        compiled(inputs.value)


@pytest.mark.parametrize(
    "imports",
    [
        "import torch, msda_attn",
        "import msda_attn, torch",
        "import msda_attn; msda_attn.ms_deform_attn; import torch",
    ],
)
def test_the_operators_are_registered_in_any_order_of_imports(imports):
    code = f"{imports}; print(torch.ops.msda.ms_deform_attn)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "msda.ms_deform_attn\n"


def test_compile_is_one_graph_with_dynamic_sizes():
    torch._dynamo.reset()
    graphs = []

    def backend(graph, example):
        graphs.append(graph)
        return graph.forward

    @torch.compile(fullgraph=True, backend=backend, dynamic=True)
    def compiled(value, shapes, starts, locations, weights):
        return msda.ms_deform_attn(value * 2, shapes, starts, locations, weights).relu()

    for queries, levels in [(7, ((6, 9), (3, 5))), (11, ((8, 8), (4, 4))), (5, ((5, 7), (3, 3)))]:
        inputs = problem(queries=queries, levels=levels)
        expected = msda.ms_deform_attn(inputs.value * 2, *list(inputs)[1:]).relu()
        torch.testing.assert_close(compiled(*inputs), expected)
    assert len(graphs) <= 2, "sizes are recompiled"
    targets = {str(node.target) for node in graphs[0].graph.nodes}
    assert "msda.ms_deform_attn" in " ".join(targets)


def test_compile_computes_gradients(device):
    torch._dynamo.reset()

    @torch.compile(fullgraph=True, backend="aot_eager")
    def compiled(value, shapes, starts, locations, weights):
        return msda.ms_deform_attn(value, shapes, starts, locations, weights).square()

    inputs = problem(dtype=torch.float64, device=device).requires_grad_()
    expected = torch.autograd.grad(msda.ms_deform_attn(*inputs).square().sum(), inputs.tensors())
    got = torch.autograd.grad(compiled(*inputs).sum(), inputs.tensors())
    for a, b in zip(got, expected):
        torch.testing.assert_close(a, b)


def test_export():
    class Model(torch.nn.Module):
        def forward(self, value, shapes, starts, locations, weights):
            return msda.ms_deform_attn(value, shapes, starts, locations, weights) + 1

    inputs = problem()
    program = torch.export.export(Model(), tuple(inputs))
    assert any("msda.ms_deform_attn" in str(node.target) for node in program.graph.nodes)
    torch.testing.assert_close(program.module()(*inputs), msda.ms_deform_attn(*inputs) + 1)


class Compiled:
    """A model compiled by AOTInductor, and another process that runs it."""

    def __init__(self, model, folder):
        self.model, self.package, self.tensors = model, folder / "model.pt2", folder / "tensors.pt"
        folder.mkdir()

    def run(self, imports, example, inputs, dynamic):
        with torch.no_grad():
            program = torch.export.export(self.model, example, dynamic_shapes=dynamic)
            torch._inductor.aoti_compile_and_package(program, package_path=str(self.package))
            torch.save((inputs, self.model(*inputs)), self.tensors)
        code = f"""
import {imports}
inputs, expected = torch.load({str(self.tensors)!r})
output = torch._inductor.aoti_load_package({str(self.package)!r})(*inputs)
torch.testing.assert_close(output, expected)
print("the same")
"""
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


@pytest.mark.skipif(
    sys.platform == "win32" or shutil.which("c++") is None, reason="needs a C++ compiler"
)
def test_aot_inductor(tmp_path, device):
    """A compiled package runs in a process that imports msda, with another number of queries."""

    class Model(torch.nn.Module):
        def forward(self, value, shapes, starts, locations, weights):
            return msda.ms_deform_attn(value * 2, shapes, starts, locations, weights).relu()

    class OnlyTorch(torch.nn.Module):
        def forward(self, value):
            return (value * 2).relu()

    example = tuple(problem(queries=9, device=device))
    inputs = tuple(problem(queries=7, device=device))
    queries = torch.export.Dim("queries", min=2, max=1000)
    dynamic = (None, None, None, {1: queries}, {1: queries})
    done = Compiled(Model(), tmp_path / "msda").run("torch, msda_attn", example, inputs, dynamic)
    if done.returncode < 0:  # it crashed
        plain = Compiled(OnlyTorch(), tmp_path / "torch")
        without = plain.run("torch", inputs[:1], inputs[:1], None)
        if without.returncode < 0:
            pytest.skip(f"torch's AOTInductor crashes here without msda too ({without.returncode})")
    assert done.stdout == "the same\n", (done.returncode, done.stderr)


def test_level_sizes_may_lie_at_any_byte():
    inputs = problem()
    numbers = inputs.shapes.flatten().tolist()
    memory = bytearray(4) + struct.pack(f"={len(numbers)}q", *numbers)
    shapes = torch.frombuffer(memory, dtype=torch.int64, offset=4).view(-1, 2)
    assert shapes.data_ptr() % 8
    expected = msda.ms_deform_attn(*inputs)
    got = msda.ms_deform_attn(inputs.value, shapes, inputs.starts, inputs.locations, inputs.weights)
    assert torch.equal(got, expected)


def test_meta_and_fake_tensors():
    from torch._subclasses.fake_tensor import FakeTensorMode

    inputs = problem()
    output = msda.ms_deform_attn(*(t.to("meta") for t in inputs))
    assert output.shape == (2, 7, 24) and output.device.type == "meta"
    value, shapes, starts, *others = (t.to("meta") for t in inputs)
    sizes = inputs.shapes.tolist()
    assert msda.ms_deform_attn(value, sizes, starts, *others).device.type == "meta"
    with pytest.raises(ValueError, match="on different devices, expected both on the CPU"):
        msda.ms_deform_attn(value, shapes, inputs.starts, *others)
    with FakeTensorMode() as mode:
        fake = msda.ms_deform_attn(*(mode.from_tensor(t) for t in inputs))
        assert fake.shape == (2, 7, 24)


def test_lists_of_level_sizes_under_modes_and_transforms():
    """A list is remembered as a tensor, but not one that a mode made."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    levels = [(9, 4), (3, 7), (2, 2)]
    inputs = problem(levels=levels)
    value, locations, weights = inputs.tensors()

    def call(value, locations=locations, weights=weights):
        return msda.ms_deform_attn(value, levels, None, locations, weights)

    with FakeTensorMode() as mode:
        assert call(*(mode.from_tensor(t) for t in inputs.tensors())).shape == (2, 7, 24)
        # Real tensors inside of the mode give a fake result, or an error.
        with contextlib.suppress(Exception):
            call(value)
    with torch.device("meta"):
        assert call(value).device.type == "cpu"
    expected = msda.ms_deform_attn(*inputs)
    values = torch.stack([value, 2 * value])
    mapped = torch.vmap(call)(values)
    torch.testing.assert_close(mapped, torch.stack([expected, 2 * expected]))
    gradient = torch.func.grad(lambda v: call(v).sum())(value)
    with torch.inference_mode():
        torch.testing.assert_close(call(value), expected, rtol=0, atol=0)
    value.requires_grad_()
    call(value).sum().backward()
    torch.testing.assert_close(value.grad, gradient, rtol=0, atol=0)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_takes_lists_of_level_sizes(dynamic):
    torch._dynamo.reset()

    @torch.compile(fullgraph=True, backend="aot_eager", dynamic=dynamic)
    def compiled(value, levels, locations, weights):
        starts = [0, levels[0][0] * levels[0][1]]
        first = msda.ms_deform_attn(value, levels, None, locations, weights)
        return first + msda.ms_deform_attn(value, levels, starts, locations, weights)

    for levels in ([(6, 9), (3, 5)], [(8, 8), (4, 4)], [(5, 7), (3, 3)]):
        inputs = problem(levels=levels)
        expected = 2 * msda.ms_deform_attn(*inputs)
        torch.testing.assert_close(compiled(inputs.value, levels, *list(inputs)[3:]), expected)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("what", ["function", "module"])
def test_a_graph_with_a_list_of_sizes_has_no_tensor_of_sizes(what, grad):
    """A tensor on the CPU would keep a graph of GPU tensors out of a CUDA graph."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    torch._dynamo.reset()
    graphs = []

    def keep(graph, example):
        graphs.append(graph)
        return make_boxed_func(graph.forward)

    inputs = problem(levels=((6, 9), (3, 5))).requires_grad_()
    args, function = [*inputs.tensors(), [(6, 9), (3, 5)]], msda.ms_deform_attn
    if what == "module":
        function = msda.MSDeformAttn(24, levels=2, heads=3, points=4)
        query, pyramid = torch.rand(2, 7, 24), torch.rand(2, 69, 24)
        args = [query, torch.rand(2, 7, 1, 2), pyramid, [(6, 9), (3, 5)]]
    args = [a.requires_grad_(grad) if isinstance(a, torch.Tensor) else a for a in args]

    def call(first, second, third, sizes):
        if what == "module":
            return function(first, second, third, sizes)
        return function(first, sizes, None, second, third)

    backend = aot_autograd(fw_compiler=keep, bw_compiler=keep)
    with torch.set_grad_enabled(grad):
        output = torch.compile(call, fullgraph=True, backend=backend)(*args)
        torch.testing.assert_close(output, call(*args))
        if grad:
            output.sum().backward()
    assert len(graphs) == 1 + grad
    operators = [str(node.target) for graph in graphs for node in graph.graph.nodes]
    assert sum("msda.ms_deform_attn" in name and "_list" in name for name in operators) == 1 + grad
    for graph in graphs:
        for node in graph.graph.nodes:
            assert node.op != "get_attr", node
            found = node.meta.get("val")
            assert not isinstance(found, torch.Tensor) or found.is_floating_point(), node


def test_vmap():
    inputs = problem()
    values = torch.randn(5, *inputs.value.shape)
    shapes, starts, locations, weights = list(inputs)[1:]

    def one(value, weights):
        return msda.ms_deform_attn(value, shapes, starts, locations, weights)

    many = torch.stack([weights * (i + 1) for i in range(5)], 2)
    expected = torch.stack([one(v, weights * (i + 1)) for i, v in enumerate(values)])
    torch.testing.assert_close(torch.vmap(one, in_dims=(0, 2))(values, many), expected)
    levels = [n for (h, w), at in zip(shapes.tolist(), starts.tolist()) for n in (h, w, at)]

    def listed(value, weights):
        return torch.ops.msda.ms_deform_attn_list(value, levels, locations, weights)

    torch.testing.assert_close(torch.vmap(listed, in_dims=(0, 2))(values, many), expected)
    with pytest.raises((RuntimeError, ValueError), match="3 per level|invalid for input of size"):
        torch.ops.msda.ms_deform_attn_list(values[0], levels[:-1], locations, weights)
    assert torch.vmap(one, in_dims=(0, None))(values[:0], weights).shape == (0, *expected.shape[1:])
    assert torch.vmap(one, in_dims=(None, 0))(values[0], weights[None][:0]).shape[0] == 0


@pytest.mark.filterwarnings("ignore:.*torch.jit", "ignore::torch.jit.TracerWarning")
def test_traced_functions_have_gradients_and_can_be_saved(tmp_path):
    inputs = problem()

    def call(value, weights):
        levels = inputs.shapes.tolist()
        return msda.ms_deform_attn(value, levels, None, inputs.locations, weights)

    with torch.no_grad():
        traced = torch.jit.trace(call, (inputs.value, inputs.weights))
    file = str(tmp_path / "traced.pt")
    torch.jit.save(traced, file)
    loaded = torch.jit.load(file)
    results = []
    for function in (call, loaded):
        value = inputs.value.clone().requires_grad_()
        output = function(value, inputs.weights)
        results.append((output, *torch.autograd.grad(output.square().sum(), value)))
    torch.testing.assert_close(*results)


def test_func_grad_and_its_vmap(device):
    inputs = problem(dtype=torch.float64, device=device)
    shapes, starts, locations, weights = list(inputs)[1:]

    def loss(value, weights):
        return msda.ms_deform_attn(value, shapes, starts, locations, weights).square().sum()

    values = torch.randn(3, *inputs.value.shape, dtype=torch.float64).to(device)
    expected = []
    for value in values:
        value = value.clone().requires_grad_()
        expected.append(torch.autograd.grad(loss(value, weights), value)[0])
    torch.testing.assert_close(torch.func.grad(loss)(values[0], weights), expected[0])
    batched = torch.vmap(torch.func.grad(loss), in_dims=(0, None))(values, weights)
    torch.testing.assert_close(batched, torch.stack(expected))


def test_autocast_keeps_types(device):
    inputs = problem(device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        # A linear layer gives a value in 16 bits; locations and weights stay in float32.
        value = torch.nn.functional.linear(inputs.value, torch.eye(8, device=device))
        assert value.dtype == torch.bfloat16
        output = msda.ms_deform_attn(value, *list(inputs)[1:])
    assert output.dtype == torch.bfloat16
    expected = msda.ms_deform_attn(value.float(), *list(inputs)[1:])
    torch.testing.assert_close(output.float(), expected, rtol=8e-3, atol=1e-5)


def test_inference_mode(device):
    with torch.inference_mode():
        inputs = problem(device=device)
        output = msda.ms_deform_attn(*inputs)
        assert output.is_inference()
        listed = msda.ms_deform_attn(
            inputs.value, [(6, 9), (3, 5), (2, 2)], None, inputs.locations, inputs.weights
        )
    torch.testing.assert_close(output, listed, rtol=1e-6, atol=1e-6)
    # Tables that were made in inference mode serve training too.
    inputs = problem().requires_grad_()
    msda.ms_deform_attn(
        inputs.value, [(6, 9), (3, 5), (2, 2)], None, inputs.locations, inputs.weights
    ).sum().backward()


def test_deterministic_algorithms(device):
    torch.use_deterministic_algorithms(True)
    try:
        inputs = problem(device=device).requires_grad_()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            msda.ms_deform_attn(*inputs).sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)


def test_threads(device):
    inputs = problem(device=device)
    expected = msda.ms_deform_attn(*inputs)
    failed = []

    def work():
        for _ in range(20):
            if not torch.equal(msda.ms_deform_attn(*inputs), expected):
                failed.append(1)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


@pytest.mark.skipif(not pathlib.Path("/proc/self/task").is_dir(), reason="needs /proc")
def test_the_number_of_threads_is_that_of_torch():
    code = """
import pathlib, time, torch, msda_attn as msda

def call(queries, threads, expected):
    # The number of threads that msda has started after a call.
    torch.set_num_threads(threads)
    locations, weights = torch.rand(1, queries, 8, 1, 4, 2), torch.rand(1, queries, 8, 1, 4)
    msda.ms_deform_attn(torch.rand(1, 16, 8, 32), [(4, 4)], None, locations, weights)
    # A thread gets its name when it first runs, which takes a while on a busy machine.
    for _ in range(120):
        time.sleep(0.5)
        names = [file.read_text() for file in pathlib.Path("/proc/self/task").glob("*/comm")]
        started = sum(name.startswith("msda-") for name in names)
        if started >= expected:
            break
    return started

# Small calls, and all calls with one thread, run on the calling thread.
print(call(1, 3, expected=0), call(1000, 1, expected=0), call(1000, 3, expected=3))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "0 0 3\n"


def test_a_forked_child_computes():
    import multiprocessing

    # Enough queries for several threads, which a forked child does not have.
    inputs = problem(queries=500)
    expected = msda.ms_deform_attn(*inputs)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()

    def child():
        queue.put(msda.ms_deform_attn(*inputs).numpy().tobytes())

    process = context.Process(target=child)
    process.start()
    assert queue.get(timeout=300) == expected.numpy().tobytes()
    process.join(300)
    assert process.exitcode == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_does_not_wait_for_locks_of_other_threads():
    """Another thread starts pools of threads, and holds their lock, while this one forks."""
    code = """
import os, threading, time, torch, msda_attn as msda
from support import problem

inputs = problem(queries=500)
# Things that are made once are made before the fork; the number of threads is the thread's own.
torch.set_num_threads(2)
msda.ms_deform_attn(*inputs)
started = threading.Event()

def start_pools():
    for threads in range(8, 40):
        torch.set_num_threads(threads)
        started.set()
        msda.ms_deform_attn(*inputs)

other = threading.Thread(target=start_pools)
other.start()
started.wait()
children = []
while other.is_alive() and len(children) < 24:
    child = os.fork()
    if child == 0:
        msda.ms_deform_attn(*inputs)
        os._exit(0)
    children.append(child)
    time.sleep(0.002)
other.join()
deadline = time.monotonic() + 120
while children and time.monotonic() < deadline:
    children = [child for child in children if os.waitpid(child, os.WNOHANG) == (0, 0)]
    time.sleep(0.01)
for child in children:
    os.kill(child, 9)
print(len(children), "children wait")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900)
    assert done.stdout == "0 children wait\n", done.stderr


def test_errors_leak_nothing():
    inputs = problem()
    value = inputs.value[:, :-1]

    def tensors() -> int:
        gc.collect()
        return sum(1 for thing in gc.get_objects() if isinstance(thing, torch.Tensor))

    for _ in range(3):
        with pytest.raises(ValueError):
            msda.ms_deform_attn(value, *list(inputs)[1:])
    before, references = tensors(), inputs.locations._use_count()
    for _ in range(300):
        with pytest.raises(ValueError):
            msda.ms_deform_attn(value, *list(inputs)[1:])
    assert tensors() <= before
    assert inputs.locations._use_count() == references


def test_sizes_stay_symbols_in_a_traced_graph():
    from torch.fx.experimental.proxy_tensor import make_fx

    def function(image, locations, weights):
        sizes = [tuple(image.shape[1:3])]
        value = image.flatten(1, 2).unsqueeze(2)
        return msda.ms_deform_attn(value, sizes, None, locations, weights)

    wide, high = torch.randn(2, 5, 9, 4), torch.randn(2, 9, 5, 4)
    others = torch.rand(2, 3, 1, 1, 2, 2), torch.rand(2, 3, 1, 1, 2)
    graph = make_fx(function, tracing_mode="symbolic")(wide, *others)
    # As many positions, in another shape.
    assert torch.equal(graph(high, *others), function(high, *others))
