"""`python -m msda_attn bench --model`: whole models, their own attention beside msda and peers.

Models of transformers with random weights: nothing is downloaded. A training step is a forward and
a backward pass through the logits, boxes and masks, without an optimizer.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from . import _peers
from ._workloads import Call
from .integrations import transformers as patched
from .integrations._replace import Replacements

OWN, OURS = "own", "msda"
ROUNDS = 3
_FEWEST_RUNS = 2
# Above this ratio of wall time to GPU time the GPU waits for the host.
_HOST_BOUND = 1.15
# The largest error of an attention module over its largest result: roundings of several layers.
_ALLOWED = {torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.1}
_RESULTS = ("logits", "pred_boxes", "class_queries_logits", "masks_queries_logits")


def _detector(name: str, size: tuple[int, int], **config: Any) -> Callable[[int], Any]:
    def make(batch: int) -> tuple[nn.Module, dict[str, Tensor]]:
        library = importlib.import_module("transformers")
        settings = getattr(library, f"{name}Config")(**config)
        model = getattr(library, f"{name}ForObjectDetection")(settings)
        return model, {"pixel_values": torch.randn(batch, 3, *size)}

    return make


def _deformable_detr(batch: int) -> tuple[nn.Module, dict[str, Tensor]]:
    library = importlib.import_module("transformers")
    backbone = library.ResNetConfig(out_features=["stage2", "stage3", "stage4"])
    # Before version 5 the default backbone is one of timm, with weights to download.
    old = int(library.__version__.split(".")[0]) < 5
    own = dict(use_timm_backbone=False, use_pretrained_backbone=False, backbone=None) if old else {}
    return _detector("DeformableDetr", (800, 1066), backbone_config=backbone, **own)(batch)


def _grounding_dino(batch: int) -> tuple[nn.Module, dict[str, Tensor]]:
    model, inputs = _detector("GroundingDino", (800, 1066))(batch)
    words = torch.randint(1000, 2000, (batch, 16))
    return model, {**inputs, "input_ids": words, "attention_mask": torch.ones_like(words)}


def _segmenter(name: str, words: int = 0) -> Callable[[int], Any]:
    def make(batch: int) -> tuple[nn.Module, dict[str, Tensor]]:
        library = importlib.import_module("transformers")
        config = getattr(library, f"{name}Config")()
        model = getattr(library, f"{name}ForUniversalSegmentation")(config)
        inputs = {"pixel_values": torch.randn(batch, 3, 800, 1066)}
        if words:
            inputs["task_inputs"] = torch.randint(0, 1000, (batch, words))
        return model, inputs

    return make


MODELS: dict[str, Callable[[int], tuple[nn.Module, dict[str, Tensor]]]] = {
    "deformable-detr": _deformable_detr,
    "rt-detr": _detector("RTDetr", (640, 640), num_denoising=0),
    "rf-detr": _detector("RfDetr", (560, 560)),
    "d-fine": _detector("DFine", (640, 640), num_denoising=0),
    "grounding-dino": _grounding_dino,
    "mask2former": _segmenter("Mask2Former"),
    "oneformer": _segmenter("OneFormer", words=77),
}


def _normalize(model: nn.Module, inputs: dict[str, Tensor]) -> None:
    """Gives batch norms the statistics of their inputs.

    Without this, numbers shrink from layer to layer and 16 bits round them to zero.
    """

    def measure_input(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        variance, mean = torch.var_mean(args[0], (0, 2, 3), correction=0)
        module.running_mean.copy_(mean)
        module.running_var.copy_(variance)

    norms = [m for m in model.modules() if getattr(m, "running_var", None) is not None]
    hooks = [norm.register_forward_pre_hook(measure_input) for norm in norms]
    with torch.no_grad():
        model.eval()(**inputs)
    for hook in hooks:
        hook.remove()


class Step:
    """One step of a model: an inference, or a forward and a backward pass."""

    def __init__(self, name: str, dtype: torch.dtype, batch: int, train: bool, device: str) -> None:
        torch.manual_seed(0)
        model, inputs = MODELS[name](batch)
        model = model.to(device)
        inputs = {name: tensor.to(device) for name, tensor in inputs.items()}
        _normalize(model, inputs)
        self.train, self.device, self.dtype = train, device, dtype
        weights = torch.float32 if train else dtype
        self.model = model.to(weights).train(train)
        for module in self.model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        self.inputs = {
            name: tensor.to(weights) if tensor.is_floating_point() else tensor
            for name, tensor in inputs.items()
        }
        self.call: Callable[..., Any] = self.model

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Training in 16 bits keeps weights in float32."""
        on = self.train and self.dtype is not torch.float32
        return torch.autocast(self.device, self.dtype) if on else contextlib.nullcontext()

    def run(self) -> None:
        if not self.train:
            with torch.no_grad():
                self.call(**self.inputs)
            return
        with self.autocast():
            output = self.call(**self.inputs)
        results = [getattr(output, name, None) for name in _RESULTS]
        # Masked logits are infinite.
        finite = [torch.nan_to_num(t.float(), posinf=0, neginf=0) for t in results if t is not None]
        sum(tensor.square().mean() for tensor in finite).backward()
        self.model.zero_grad(set_to_none=True)

    def synchronize(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def gpu_ms(self, work: Callable[[], object]) -> float:
        """The sum of the times of all kernels that some work starts."""
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            work()
            torch.cuda.synchronize()
        return sum(event.self_device_time_total for event in profiler.key_averages()) / 1e3

    def attentions(self) -> list[Attention]:
        """The calls of the attention modules in one step."""
        found: list[Attention] = []
        modules = [
            module
            for module in self.model.modules()
            if hasattr(module, "sampling_offsets") and hasattr(module, "attention_weights")
        ]
        for module in modules:

            def note(*args: Any, module: nn.Module = module, **kwargs: Any) -> Any:
                found.append(Attention(self, module, args, kwargs))
                return type(module).forward(module, *args, **kwargs)

            module.forward = note
        try:
            with torch.no_grad(), self.autocast():
                self.model(**self.inputs)
        finally:
            for module in modules:
                del module.forward
        return found


@dataclasses.dataclass
class Attention:
    """One call of an attention module."""

    step: Step
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def output(self) -> Tensor:
        with self.step.autocast():
            result = self.module(*self.args, **self.kwargs)
        return result[0] if isinstance(result, tuple) else result

    def run(self) -> None:
        with torch.set_grad_enabled(self.step.train):
            output = self.output()
        if self.step.train:
            output.backward(output.detach())


class CannotRun(Exception):
    """Why a peer cannot run a model."""


def _peer_operator(step: Step, peer: _peers.Peer) -> Callable[..., Tensor]:
    """A peer with the arguments that the operator of a model has."""
    operator = peer.load()

    def run(
        value: Tensor,
        sizes: Any,
        locations: Tensor,
        weights: Tensor,
        tables: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        if tables is None:
            table = torch.tensor([tuple(size) for size in sizes], device=value.device)
            areas = table.prod(1)
            tables = table, areas.cumsum(0) - areas
        points = (locations.shape[4],) * len(sizes)
        call = Call(
            value.contiguous(),
            *tables,
            locations.to(value.dtype).contiguous(),
            weights.to(value.dtype).contiguous(),
            [tuple(size) for size in sizes],
            points,
        )
        which = "backward" if step.train else "forward"
        dtype = str(value.dtype).removeprefix("torch.")
        if refused := peer.refuses(step.device, dtype, call, which):
            raise CannotRun(refused)
        return operator(call)

    return run


@contextlib.contextmanager
def _with_peer(step: Step, load: Callable[[], Callable[..., Tensor]]) -> Iterator[None]:
    """Replaces the operator of a model by a peer."""
    run = load()
    replaced = Replacements()
    modules = {type(module).__module__ for module in step.model.modules()}
    for name in modules:
        module = importlib.import_module(name)
        layer = vars(module).get("MultiScaleDeformableAttention")
        if layer is not None:
            forward = lambda self, value, shapes, sizes, starts, locations, weights, step: run(
                value, sizes, locations, weights, (shapes, starts)
            )
            replaced.set(layer, "forward", forward)
        if "multi_scale_deformable_attention" in vars(module):
            replaced.set(module, "multi_scale_deformable_attention", run)
    try:
        if not replaced:
            raise CannotRun("has no function for the points of this model")
        yield
    finally:
        replaced.undo()


@dataclasses.dataclass
class Row:
    """What was found about one implementation. Times are milliseconds, memory is MiB."""

    name: str
    walls: list[float] = dataclasses.field(default_factory=list)
    gpu_ms: float | None = None
    peak_mib: float | None = None
    attention_ms: float | None = None
    missing: str = ""

    @property
    def wall_ms(self) -> float:
        return statistics.median(self.walls)

    @property
    def share(self) -> float | None:
        """The attention's share of the GPU time, or of the wall time on a CPU; None if unknown."""
        if self.attention_ms is None:
            return None
        return self.attention_ms / (self.gpu_ms or self.wall_ms)

    def record(self) -> dict[str, Any]:
        if self.missing:
            return {"name": self.name, "missing": self.missing}
        found = {"name": self.name, "wall_ms": self.wall_ms, "runs": len(self.walls)}
        names = ("gpu_ms", "peak_mib", "attention_ms")
        return {**found, **{name: getattr(self, name) for name in names}}


def _ways(step: Step) -> dict[str, Callable[[], contextlib.AbstractContextManager[Any]]]:
    """The implementations: a context for each, in which a model calls it."""
    ways: dict[str, Any] = {OWN: contextlib.nullcontext, OURS: patched.patch_transformers}
    for peer in _peers.known().values():
        # Results that may be wrong would change the rest of a step.
        own = peer in (_peers.OURS, _peers.TORCH) or peer.name == "transformers"
        if not own and peer.exact is not False and step.device in peer.devices:
            # Loaded once: with new functions in each round, a model would compile again.
            load = functools.cache(functools.partial(_peer_operator, step, peer))
            ways[peer.name] = functools.partial(_with_peer, step, load)
    return ways


def compiled(model: nn.Module, mode: str) -> Callable[..., Any]:
    """As `torch.compile(model, mode=mode)`, with compiled code that no other call shares.

    Code is shared by calls with equal backends, also across a patch, which not all guards notice.
    """
    inductor = torch._TorchCompileInductorWrapper(mode, None, None)
    return torch.compile(model, backend=lambda graph, inputs: inductor(graph, inputs))


def measure(
    step: Step,
    seconds: float,
    compile_mode: str | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> list[Row]:
    """Times a step with each implementation, in rounds: own, msda, peers, own, msda, and so on."""
    ways = _ways(step)
    rows = {name: Row(name) for name in ways}
    models: dict[str, Callable[..., Any]] = dict.fromkeys(ways, step.model)
    with contextlib.ExitStack() as stack:
        if compile_mode:
            torch.compiler.reset()  # nothing of an earlier model stays on the GPU
            models = {name: compiled(step.model, compile_mode) for name in ways}
            # torch counts the code of all implementations together.
            config = torch._dynamo.config
            limit = config.cache_size_limit * len(ways)
            stack.enter_context(config.patch(cache_size_limit=limit))
        for number in range(1, ROUNDS + 1):
            for name, context in ways.items():
                row = rows[name]
                if row.missing:
                    continue
                step.call = models[name]
                try:
                    with context():
                        if compile_mode and number == 1:
                            note(f"{name}: compiling")
                            step.run()
                            step.run()
                        note(f"{name}: round {number} of {ROUNDS}")
                        _time(step, row, seconds / ROUNDS)
                except Exception as error:  # a peer may raise anything
                    if name in (OWN, OURS):
                        raise
                    text = str(error).strip().partition("\n")[0]
                    if isinstance(error, ModuleNotFoundError):
                        row.missing = "not installed"
                    elif isinstance(error, CannotRun):
                        row.missing = text
                    else:
                        row.missing = f"{type(error).__name__}: {text}"
    calls = [] if compile_mode else step.attentions()
    for name, context in ways.items():
        row = rows[name]
        if row.missing:
            continue
        note(f"{name}: profile")
        step.call = models[name]
        with context():
            _profile(step, row, calls)
        if compile_mode not in (None, "default"):
            row.peak_mib = None  # a CUDA graph that is replayed allocates nothing
    step.call = step.model
    return list(rows.values())


def _time(step: Step, row: Row, seconds: float) -> None:
    step.run()
    step.synchronize()
    if step.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    end = time.perf_counter() + seconds
    runs = 0
    while runs < _FEWEST_RUNS or time.perf_counter() < end:
        start = time.perf_counter()
        step.run()
        step.synchronize()
        row.walls.append((time.perf_counter() - start) * 1e3)
        runs += 1
    if step.device == "cuda":
        row.peak_mib = torch.cuda.max_memory_allocated() / 2**20


def _profile(step: Step, row: Row, calls: list[Attention]) -> None:
    """On a GPU the time of all kernels; and the time of the attention modules alone.

    Without calls the latter is not known: a compiled step does not compute attention apart.
    """

    def attend() -> None:
        for call in calls:
            call.run()

    if step.device == "cuda":
        row.gpu_ms = step.gpu_ms(step.run)
    if not calls:
        return
    attend()
    step.synchronize()
    if step.device == "cuda":
        row.attention_ms = step.gpu_ms(attend)
    else:
        start = time.perf_counter()
        attend()
        row.attention_ms = (time.perf_counter() - start) * 1e3
    step.model.zero_grad(set_to_none=True)


def error(step: Step) -> float:
    """The largest error of msda in an attention module, over the error allowed."""
    worst = 0.0
    for call in step.attentions():
        with torch.no_grad():
            expected = call.output().float()
            with patched.patch_transformers():
                got = call.output().float()
        difference = (got - expected).abs().max().item()
        allowed = _ALLOWED[step.dtype] * expected.abs().max().item()
        # Results that are not finite, or an error where all should be zero, are too large.
        known = 0 <= difference < float("inf") and 0 < allowed < float("inf")
        worst = max(worst, difference / allowed if known else float("inf"))
    return worst


def table(title: str, rows: list[Row]) -> str:
    """A title, one line per implementation, and what bounds the step."""
    lines = [title, f"{'':<22}{'wall ms':>10}{'GPU ms':>10}{'peak MiB':>10}{'attention':>11}"]
    for row in rows:
        if row.missing:
            lines.append(f"{row.name:<22}{row.missing[:56]}")
            continue
        numbers = (row.gpu_ms, row.peak_mib)
        cells = [f"{'-' if number is None else format(number, '.1f'):>10}" for number in numbers]
        share = "-" if row.share is None else f"{row.share:.0%}"
        lines.append(f"{row.name:<22}{row.wall_ms:>10.1f}{''.join(cells)}{share:>11}")
    own, ours = rows[:2]
    says = f"msda is {own.wall_ms / ours.wall_ms:.2f} times as fast"
    if own.gpu_ms and ours.gpu_ms:
        says += f", {own.gpu_ms / ours.gpu_ms:.2f} times on the GPU"
        if ours.wall_ms > _HOST_BOUND * ours.gpu_ms:
            says += "; the host is the bound"
        else:
            says += "; the GPU is the bound"
    elif ours.share is not None:
        rest = max(0.0, 1 - ours.share)
        says += f"; {rest:.0%} of its step is not attention"
    return "\n".join([*lines, f"{says}."])
