"""Training on a GPU: gradients, streams, threads, graphs, compiled functions, autocast."""

from __future__ import annotations

import contextlib
import importlib.util
import threading
import warnings

import msda_attn as msda
import pytest
import torch
from msda_attn import _native
from support import gpu, problem

pytestmark = gpu

# Sizes of a small decoder: several blocks on the GPU, and many samples per pixel.
SIZES = dict(batch=3, queries=120, heads=4, channels=32, levels=((19, 25), (10, 13), (5, 7)))
FORMS = ["plain", "points", "boxes"]


def between_pixels(shape, sizes, generator) -> torch.Tensor:
    """Locations `(..., levels, points, 2)`, some off the map, none near the centre of a pixel.

    The gradient of a location jumps there, and rounding to 16 bits decides on the side.
    """
    sizes = sizes[:, None]
    corner = (torch.rand(shape, generator=generator) * (sizes + 2)).floor() - 1
    return (corner + 0.3 + 0.4 * torch.rand(shape, generator=generator) + 0.5) / sizes


class Call:
    """Tensors of a form of the operator, all with a gradient."""

    def __init__(self, form: str, dtype=torch.float32, device="cuda", levels="list", **sizes):
        # Random numbers come from the CPU: they are the same for all devices.
        given = problem(**{**SIZES, **sizes})
        generator = torch.Generator().manual_seed(sizes.get("seed", 0) + 1)
        widths = given.shapes.flip(1)
        locations = between_pixels(given.locations.shape, widths, generator)
        self.options = {}
        if form == "plain":
            self.operator = msda.ms_deform_attn
            tensors = [given.value, locations, given.weights]
        else:
            self.operator = msda.ms_deform_attn_fused
            shape = (*locations.shape[:2], len(widths), 4)
            boxes = 0.2 + 0.8 * torch.rand(shape, generator=generator)
            reference = boxes[..., :2] if form == "points" else boxes
            # The inverse of the formula that makes locations of offsets.
            offsets = locations - reference[:, :, None, :, None, :2]
            if form == "points":
                offsets = offsets * widths[:, None]
            else:
                offsets = offsets * 2 * locations.shape[4] / boxes[:, :, None, :, None, 2:]
            tensors = [given.value, reference, offsets, 9 * given.weights]
        self.tensors = [t.to(device, dtype).requires_grad_() for t in tensors]
        pairs = given.shapes.tolist()
        self.levels = {
            "list": (pairs, None),
            "cpu": (given.shapes, given.starts),
            "device": (given.shapes.to(device), given.starts.to(device)),
            "both": (pairs, given.starts.to(device)),
        }[levels]

    def output(self) -> torch.Tensor:
        value, *others = self.tensors
        return self.operator(value, *self.levels, *others, **self.options)

    def grad_output(self, output: torch.Tensor) -> torch.Tensor:
        generator = torch.Generator().manual_seed(2)
        return torch.randn(output.shape, generator=generator).to(output)

    def results(self) -> list[torch.Tensor]:
        """The output, and the gradients of all tensors."""
        output = self.output()
        grads = torch.autograd.grad(output, self.tensors, self.grad_output(output))
        return [output.detach(), *grads]


def same(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def exact(form: str, dtype: torch.dtype, **sizes) -> list[torch.Tensor]:
    """Results of the CPU in float64, of tensors that were rounded to `dtype`."""
    call = Call(form, dtype, "cpu", **sizes)
    call.tensors = [t.detach().double().requires_grad_() for t in call.tensors]
    output = call.output()
    # The gradient of the output is rounded too.
    grad = call.grad_output(output.to(dtype)).double()
    return [output.detach(), *torch.autograd.grad(output, call.tensors, grad)]


def check(got: list[torch.Tensor], expected: list[torch.Tensor], relative: float) -> None:
    """Compares with the largest number of each tensor as the scale."""
    for i, (ours, want) in enumerate(zip(got, expected, strict=True)):
        assert ours.shape == want.shape
        error = (ours.cpu().double() - want).abs().max().item()
        # Not `error > ...`: NaN is wrong too.
        assert error <= relative * want.abs().max().item(), f"tensor {i} of the results"


@pytest.mark.parametrize("levels", ["list", "cpu", "device", "both"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_gradients_are_those_of_the_cpu(form, dtype, levels):
    got = Call(form, dtype, levels=levels).results()
    assert all(t.is_cuda and t.dtype == dtype for t in got)
    # Coordinates up to 25 are rounded to float32, and the differences of two pixels inherit that.
    relative = 1e-11 if dtype is torch.float64 else 25 * 16 * torch.finfo(dtype).eps
    check(got, exact(form, dtype), relative)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradients_in_16_bits_are_rounded_once(form, dtype):
    got = Call(form, dtype).results()
    assert all(t.dtype == dtype for t in got)
    # Sums are in float32: one rounding of the result, and the error of float32 coordinates.
    check(got, exact(form, dtype), torch.finfo(dtype).eps + 25 * 16 * 2.0**-23)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_types_may_differ(dtype):
    call = Call("plain", torch.float32)
    value, locations, weights = call.tensors
    call.tensors[0] = value.detach().to(dtype).requires_grad_()
    got = call.results()
    assert [t.dtype for t in got] == [dtype, dtype, torch.float32, torch.float32]
    wide = Call("plain", torch.float32, "cpu")
    wide.tensors = [t.detach().cpu().double().requires_grad_() for t in call.tensors]
    output = wide.output()
    grad = call.grad_output(output.to(dtype)).double()
    expected = [output.detach(), *torch.autograd.grad(output, wide.tensors, grad)]
    check(got, expected, torch.finfo(dtype).eps + 25 * 16 * 2.0**-23)


@pytest.mark.parametrize("sampling", ["bilinear", "nearest"])
@pytest.mark.parametrize("padding", ["zeros", "border"])
@pytest.mark.parametrize("corners", [False, True])
def test_options(sampling, padding, corners):
    options = {"sampling": sampling, "padding": padding, "align_corners": corners}
    results = []
    for device in ("cuda", "cpu"):
        call = Call("plain", torch.float64, device)
        call.options = options
        results.append(call.results())
    check(*results, 1e-11)


def test_every_combination_of_gradients():
    for form in FORMS:
        call = Call(form, torch.float64)
        expected = call.results()
        count = len(call.tensors)
        for wanted in range(1, 1 << count):
            some = [i for i in range(count) if wanted >> i & 1]
            for i, tensor in enumerate(call.tensors):
                tensor.requires_grad_(i in some)
            output = call.output()
            got = torch.autograd.grad(
                output, [call.tensors[i] for i in some], call.grad_output(output)
            )
            want = [expected[1 + i] for i in some]
            check(list(got), [t.cpu() for t in want], 1e-12)


def test_samples_that_all_hit_one_pixel():
    """The longest sums: every sample of every query adds to the same pixels."""
    results = []
    for device in ("cuda", "cpu"):
        call = Call("plain", torch.float64, device, queries=3000)
        with torch.no_grad():
            call.tensors[1].fill_(0.513)
        results.append(call.results())
    check(*results, 1e-11)


def test_strides_of_the_gradient_of_the_output():
    call = Call("plain", torch.float64)
    output = call.output()
    grad = call.grad_output(output)
    expected = torch.autograd.grad(output, call.tensors, grad, retain_graph=True)
    wide = torch.zeros(*grad.shape[:2], 200, dtype=grad.dtype, device="cuda")
    wide[..., :128] = grad
    for other in (
        grad.transpose(0, 1).contiguous().transpose(0, 1),
        grad.transpose(1, 2).contiguous().transpose(1, 2),
        wide[..., :128],
    ):
        got = torch.autograd.grad(output, call.tensors, other, retain_graph=True)
        assert same(list(got), list(expected))
    total = torch.autograd.grad(output.sum(), call.tensors, retain_graph=True)
    ones = torch.autograd.grad(output, call.tensors, torch.ones_like(output))
    assert same(list(total), list(ones))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("deterministic", [False, True])
def test_the_same_bits_on_every_run(form, dtype, deterministic):
    torch.use_deterministic_algorithms(deterministic)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            call = Call(form, dtype, queries=2000)
            first = call.results()
            noise = torch.randn(4096, 4096, device="cuda")
            for _ in range(5):
                # Other work changes the order in which blocks run.
                noise.mul_(1.0001)
                assert same(call.results(), first)
    finally:
        torch.use_deterministic_algorithms(False)
    check(first, exact(form, dtype, queries=2000), torch.finfo(dtype).eps + 1e-4)


def delay() -> None:
    """Work that lasts some milliseconds: what does not wait for it reads old numbers."""
    torch.cuda._sleep(20_000_000)


def test_a_side_stream():
    call = Call("plain")
    expected = call.results()
    stream = torch.cuda.Stream()
    late = Call("plain")
    with torch.no_grad():
        for tensor in late.tensors:
            tensor.zero_()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        delay()
        with torch.no_grad():
            for tensor, source in zip(late.tensors, call.tensors):
                tensor.copy_(source)
        # Autograd runs the backward pass on the stream of the forward pass.
        got = late.results()
    torch.cuda.current_stream().wait_stream(stream)
    assert same(got, expected)


def test_memory_can_be_used_again_directly_after_the_call():
    """The workspace and the gradients of a call are freed while the GPU still uses them."""
    call = Call("plain", torch.float16, queries=2000)
    expected = [t.clone() for t in call.results()]
    torch.cuda.synchronize()
    for _ in range(20):
        got = [t.clone() for t in call.results()]
        spoiled = [torch.full((1 << 20,), float("nan"), device="cuda") for _ in range(4)]
        assert same(got, expected)
        del got, spoiled


def test_threads():
    calls = [Call(form, seed=seed) for seed in range(3) for form in FORMS]
    expected = [call.results() for call in calls]
    failed = []

    def work(call, want):
        try:
            for _ in range(10):
                if not same(call.results(), want):
                    failed.append("other bits")
        except Exception as error:
            failed.append(repr(error))

    threads = [threading.Thread(target=work, args=pair) for pair in zip(calls, expected)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_a_fresh_thread_makes_the_first_call_of_its_kind():
    """No plan exists, and the thread has no CUDA context."""
    found = []

    def work():
        call = Call("boxes", torch.float64, channels=12, queries=31)
        # The gradient is asked for in this thread, and computed in a thread of autograd.
        found.append(call.results())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    check(found[0], exact("boxes", torch.float64, channels=12, queries=31), 1e-11)


def test_another_device_than_the_current_one():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    expected = Call("plain", device="cuda:0").results()
    with torch.cuda.device(0):
        got = Call("plain", device="cuda:1").results()
    assert all(t.device.index == 1 for t in got)
    assert same([t.cpu() for t in got], [t.cpu() for t in expected])


@contextlib.contextmanager
def no_synchronisation():
    """Everything that waits for the GPU raises."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("levels", ["list", "device"])
@pytest.mark.parametrize("form", FORMS)
def test_training_waits_for_nothing(form, levels):
    call = Call(form, levels=levels)
    output = call.output()
    grad = call.grad_output(output)
    expected = torch.autograd.grad(output, call.tensors, grad)
    with no_synchronisation():
        delay()
        begin = torch.cuda.Event()
        begin.record()
        got = torch.autograd.grad(call.output(), call.tensors, grad)
        # The GPU still sleeps: the host has not waited for it.
        assert not begin.query()
    assert same(list(got), list(expected))


def test_level_sizes_are_read_when_the_kernel_runs():
    """One call with sizes on the device serves other sizes, in both passes."""
    call = Call("plain", torch.float64, levels="device")
    shapes, starts = call.levels
    turned = [(w, h) for h, w in SIZES["levels"]]
    output = call.output()
    torch.autograd.grad(output, call.tensors, call.grad_output(output))
    shapes.copy_(torch.tensor(turned))
    other = Call("plain", torch.float64)
    other.levels = (turned, None)
    check(call.results(), [t.cpu() for t in other.results()], 1e-12)
    assert starts.tolist() == [0, 475, 605]


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("levels", ["list", "device"])
def test_compile(backend, levels):
    if backend == "inductor" and importlib.util.find_spec("triton") is None:
        pytest.skip("needs Triton")
    torch._dynamo.reset()
    call = Call("boxes", levels=levels)

    def model(value, reference, offsets, logits):
        output = msda.ms_deform_attn_fused(
            value * 2, *call.levels, reference, offsets, logits.tanh()
        )
        return output.relu()

    grad = call.grad_output(call.output())
    expected = model(*call.tensors)
    want = torch.autograd.grad(expected, call.tensors, grad)
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    for _ in range(3):
        output = compiled(*call.tensors)
        got = torch.autograd.grad(output, call.tensors, grad)
        torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-5)
        for ours, theirs in zip(got, want):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("levels", ["list", "device"])
@pytest.mark.parametrize("what", ["function", "module"])
@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune"])
def test_compile_in_all_modes(mode, what, levels, grad):
    """The last two modes record CUDA graphs, which a tensor on the CPU would hinder."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("needs Triton")
    torch._dynamo.reset()
    torch.manual_seed(0)
    module = msda.MSDeformAttn(64, levels=3, heads=4, points=4).cuda()
    for parameter in module.parameters():
        # Zeros would hide gradients.
        torch.nn.init.normal_(parameter, std=0.1)
    sizes = list(SIZES["levels"])
    if levels == "device":
        sizes = torch.tensor(sizes, device="cuda")

    def function(query, reference, pyramid, sizes):
        offsets = (query @ module.sampling_offsets.weight.mT).view(3, 50, 4, 3, 4, 2)
        value = pyramid.view(3, 640, 4, 16) * 2
        logits = query.new_zeros(3, 50, 4, 3, 4)
        output = msda.ms_deform_attn_fused(value, sizes, None, reference, offsets, logits)
        shape = offsets.shape
        locations, weights = offsets.sigmoid(), logits.view(3, 50, 4, 12).softmax(-1)
        plain = msda.ms_deform_attn(value, sizes, None, locations, weights.view(shape[:-1]))
        return output + plain

    original = module if what == "module" else function
    compiled = torch.compile(original, fullgraph=True, mode=mode)
    for _ in range(4):
        args = [torch.randn(3, 50, 64), torch.rand(3, 50, 1, 2), torch.randn(3, 640, 64)]
        args = [t.cuda().requires_grad_(grad) for t in args]
        found = []
        for run in (original, compiled):
            torch.compiler.cudagraph_mark_step_begin()
            with torch.set_grad_enabled(grad):
                output = run(*args, sizes)
            results = [output.detach().clone()]
            if grad:
                results += [g.clone() for g in torch.autograd.grad(output.square().sum(), args)]
            found.append(results)
        for got, want in zip(found[1], found[0], strict=True):
            # Matrix products of other kernels move samples over pixel centres.
            assert torch.cosine_similarity(got.flatten(), want.flatten(), dim=0) > 0.999


def test_plans_are_evicted():
    """More kinds of calls than plans are kept; calls of all kinds stay right."""
    most = 512
    inputs = problem(batch=1, queries=600, device="cuda")
    value, shapes, _, locations, weights = inputs
    levels = shapes.tolist()
    expected = msda.ms_deform_attn(value, levels, None, locations, weights)
    for _ in range(2):
        for queries in range(1, 601):
            output = msda.ms_deform_attn(
                value, levels, None, locations[:, :queries], weights[:, :queries]
            )
            torch.testing.assert_close(output, expected[:, :queries])
            assert _native.cuda_plans() <= most
    assert _native.cuda_plans() == most


@pytest.mark.parametrize("levels", ["list", "device"])
@pytest.mark.parametrize("form", FORMS)
def test_a_cuda_graph_of_forward_and_backward(form, levels):
    call = Call(form, levels=levels)
    grad = call.grad_output(call.output())
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.autograd.grad(call.output(), call.tensors, grad)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = call.output()
        captured = [output, *torch.autograd.grad(output, call.tensors, grad)]
    for seed in (3, 4):
        # The graph computes with the numbers that its tensors have now.
        fresh = Call(form, levels=levels, seed=seed)
        with torch.no_grad():
            for tensor, source in zip(call.tensors, fresh.tensors):
                tensor.copy_(source)
        expected = fresh.output()
        want = [expected, *torch.autograd.grad(expected, fresh.tensors, grad)]
        for result in captured:
            result.detach().fill_(float("nan"))
        graph.replay()
        assert same(captured, want)


def test_graphed_callables():
    torch.manual_seed(0)
    shapes = list(SIZES["levels"])

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = msda.MSDeformAttn(64, levels=3, heads=4, points=4)

        def forward(self, query, reference, pyramid):
            return self.attention(query, reference, pyramid, shapes)

    def sample():
        return (
            torch.randn(3, 50, 64, device="cuda", requires_grad=True),
            torch.rand(3, 50, 1, 4, device="cuda"),
            torch.randn(3, 640, 64, device="cuda", requires_grad=True),
        )

    plain = Layer().cuda()
    twin = Layer().cuda()
    twin.load_state_dict(plain.state_dict())
    graphed = torch.cuda.make_graphed_callables(twin, sample())
    for _ in range(3):
        args = sample()
        found = []
        for module in (plain, graphed):
            leaves = [t.detach().clone().requires_grad_(t.requires_grad) for t in args]
            module.zero_grad()
            output = module(*leaves)
            output.square().sum().backward()
            grads = [leaves[0].grad, leaves[2].grad, *(p.grad for p in module.parameters())]
            found.append([output.detach().clone(), *(g.clone() for g in grads)])
        for got, want in zip(found[1], found[0], strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast(dtype):
    torch.manual_seed(0)
    module = msda.MSDeformAttn(64, levels=3, heads=4, points=4).cuda()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    query, pyramid = torch.randn(3, 50, 64).cuda(), torch.randn(3, 640, 64).cuda()
    reference = torch.rand(3, 50, 1, 4).cuda().requires_grad_()
    found = []
    for enabled in (False, True):
        module.zero_grad()
        reference.grad = None
        with torch.autocast("cuda", dtype, enabled=enabled):
            output = module(query, reference, pyramid, SIZES["levels"])
        assert output.dtype == (dtype if enabled else torch.float32)
        output.float().square().mean().backward()
        grads = [reference.grad, *(p.grad for p in module.parameters())]
        assert all(g.dtype == torch.float32 for g in grads)
        found.append([output.detach().float(), *grads])
    for got, want in zip(found[1], found[0], strict=True):
        # Linear layers in 16 bits move samples over pixel centres, where the gradients of their
        # locations jump: single numbers may differ, the direction does not.
        assert torch.cosine_similarity(got.flatten(), want.flatten(), dim=0) > 0.97


def test_gradients_accumulate():
    call = Call("plain", torch.float64)
    _, *once = call.results()
    for _ in range(2):
        output = call.output()
        output.backward(call.grad_output(output))
    assert same([t.grad for t in call.tensors], [2 * g for g in once])


def test_checkpointing():
    from torch.utils.checkpoint import checkpoint

    call = Call("boxes", torch.float64)
    _, *expected = call.results()
    output = checkpoint(
        lambda *tensors: msda.ms_deform_attn_fused(tensors[0], *call.levels, *tensors[1:]),
        *call.tensors,
        use_reentrant=False,
    )
    got = torch.autograd.grad(output, call.tensors, call.grad_output(output))
    assert same(list(got), expected)


def test_no_memory_is_lost():
    call = Call("boxes", torch.float16, queries=500)
    for _ in range(3):
        call.results()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(50):
        call.results()
    torch.cuda.synchronize()
    # What another test left behind may be freed meanwhile.
    assert torch.cuda.memory_allocated() <= before
