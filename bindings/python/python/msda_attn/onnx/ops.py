"""The two operators in ONNX: schemas, bodies as local functions, and their result in NumPy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import onnx

from .. import _arguments, _functions

DOMAIN = "msda"
PLAIN = "MultiScaleDeformableAttention"
FUSED = "MultiScaleDeformableAttentionFused"

TABLES = ("spatial_shapes", "level_start_index")
INPUTS = {
    PLAIN: ("value", *TABLES, *_arguments.PLAIN),
    FUSED: ("value", *TABLES, *_arguments.FUSED),
}
_OPERATORS = {PLAIN: _functions.ms_deform_attn, FUSED: _functions.ms_deform_attn_fused}
ATTRIBUTES: dict[str, Any] = {
    "sampling": "bilinear",
    "padding": "zeros",
    "align_corners": 0,
    "points": [],
}
_TYPES = {
    str: onnx.AttributeProto.STRING,
    int: onnx.AttributeProto.INT,
    list: onnx.AttributeProto.INTS,
}
CHOICES = {
    "sampling": ("bilinear", "nearest"),
    "padding": ("zeros", "border"),
    "align_corners": (0, 1),
}
# GridSample is new in this version.
OLDEST_OPSET = 16


class OnnxError(ValueError):
    """A file that cannot be used. The message names the node and its field."""


def register_schemas() -> None:
    """Makes the operators known to onnx and onnxscript. A second call does nothing."""
    floats = [f"tensor({kind})" for kind in ("float", "float16", "bfloat16", "double")]
    schema = onnx.defs.OpSchema
    for name, inputs in INPUTS.items():
        if onnx.defs.has(name, DOMAIN):
            continue
        # Each input of numbers may have its own type: the value's, or float32.
        types = {field: "tensor(int64)" if field in TABLES else f"T{field}" for field in inputs}
        kinds = [(kind, floats, "") for kind in types.values() if kind[0] == "T"]
        given = [schema.FormalParameter(field, kind) for field, kind in types.items()]
        defaults = [
            onnx.helper.make_attribute(key, default, attr_type=_TYPES[type(default)])
            for key, default in ATTRIBUTES.items()
        ]
        onnx.defs.register_schema(
            schema(
                name,
                DOMAIN,
                1,
                inputs=given,
                outputs=[schema.FormalParameter("output", "Tvalue")],
                type_constraints=kinds,
                attributes=[schema.Attribute(a.name, a, "") for a in defaults],
            )
        )


_HEADER = """
<domain: "msda", opset_import: ["" : {opset}, "msda" : 1]>
{name} <sampling: string = "bilinear", padding: string = "zeros", align_corners: int = 0
        {points_default}> ({inputs}) => (output)
"""

# Points per level and where each level's samples end. One 0 stands for the same number on each
# level. Then it is a constant of the body: onnx's inliner loses defaults of attributes.
_COUNTS = """
  levels = Shape <start = 0, end = 1> (spatial_shapes)
  given = Constant <value_ints{points}> ()
  sum = ReduceSum <keepdims = 1> (given)
  missing = Sub (samples, sum)
  equal = Div (missing, levels)
  rest = Expand (equal, levels)
  counts = Add (given, rest)
  axis = Constant <value_int = 0> ()
  ends = CumSum (counts, axis)
"""

_PLAIN_BODY = """
{{
  batch = Shape <start = 0, end = 1> (value)
  heads = Shape <start = 2, end = 3> (value)
  channels = Shape <start = 3, end = 4> (value)
  queries = Shape <start = 1, end = 2> (sampling_locations)
  value_c = Cast <to = {compute}> (value)
  locations_c = Cast <to = {compute}> (sampling_locations)
  weights_c = Cast <to = {compute}> (attention_weights)
  any = Constant <value_ints = [-1]> ()
  one = Constant <value_ints = [1]> ()
  two = Constant <value_ints = [2]> ()
  three = Constant <value_ints = [3]> ()
  keep = Constant <value_ints = [0, 0]> ()
  rows = Mul (batch, heads)
  width = Mul (heads, channels)
  weights_shape = Concat <axis = 0> (batch, queries, heads, any)
  weights_4 = Reshape (weights_c, weights_shape)
  weights_t = Transpose <perm = [0, 2, 1, 3]> (weights_4)
  samples = Shape <start = 3, end = 4> (weights_t)
  weights_rows = Concat <axis = 0> (rows, one, queries, samples)
  weights_r = Reshape (weights_t, weights_rows)
  grid_shape = Concat <axis = 0> (batch, queries, heads, samples, two)
  locations_5 = Reshape (locations_c, grid_shape)
  locations_t = Transpose <perm = [0, 2, 1, 3, 4]> (locations_5)
  grid_rows = Concat <axis = 0> (rows, queries, samples, two)
  locations_r = Reshape (locations_t, grid_rows)
  twice = Add (locations_r, locations_r)
  one_f = Constant <value_float = 1.0> ()
  one_c = CastLike (one_f, twice)
  grid = Sub (twice, one_c)
  value_t = Transpose <perm = [0, 2, 3, 1]> (value_c)
  value_rows = Concat <axis = 0> (rows, channels, any)
  maps = Reshape (value_t, value_rows)
  {counts}
  sum_shape = Concat <axis = 0> (rows, channels, queries)
  zero_c = Sub (one_c, one_c)
  start = Expand (zero_c, sum_shape)
  level_count = Squeeze (levels)
  yes = Constant <value = bool {{1}}> ()
  total = Loop (level_count, yes, start) <body = level
    (int64 i, bool go, sum_in) => (go_on, sum_out) {{
      go_on = Identity (go)
      at = Reshape (i, one)
      size = Gather (spatial_shapes, i)
      first = Gather (level_start_index, at)
      area = ReduceProd <keepdims = 1> (size)
      last = Add (first, area)
      pixels = Slice (maps, first, last, two)
      map_shape = Concat <axis = 0> (keep, size)
      map = Reshape (pixels, map_shape)
      end = Gather (ends, at)
      count = Gather (counts, at)
      begin = Sub (end, count)
      part = Slice (grid, begin, end, two)
      {sample}
      share = Slice (weights_r, begin, end, three)
      weighted = Mul (sampled, share)
      level_sum = ReduceSum <keepdims = 0> (weighted, three)
      sum_out = Add (sum_in, level_sum)
    }}>
  output_t_shape = Concat <axis = 0> (batch, width, queries)
  output_t = Reshape (total, output_t_shape)
  output_c = Transpose <perm = [0, 2, 1]> (output_t)
  output = CastLike (output_c, value)
}}
"""

_FUSED_BODY = """
{{
  reference_c = Cast <to = {compute}> (reference_points)
  offsets_c = Cast <to = {compute}> (sampling_offsets)
  logits_c = Cast <to = {compute}> (attention_logits)
  zero = Constant <value_ints = [0]> ()
  one = Constant <value_ints = [1]> ()
  two = Constant <value_ints = [2]> ()
  four = Constant <value_ints = [4]> ()
  any = Constant <value_ints = [-1]> ()
  keep = Constant <value_ints = [0, 0, 0, -1]> ()
  pairs = Constant <value_ints = [0, 0, 0, -1, 2]> ()
  logits = Reshape (logits_c, keep)
  offsets = Reshape (offsets_c, pairs)
  weights = Softmax <axis = -1> (logits)
  samples = Shape <start = 3, end = 4> (logits)
  {counts}
  samples_s = Squeeze (samples)
  step = Constant <value_int = 1> ()
  numbers = Range (axis, samples_s, step)
  column = Unsqueeze (numbers, one)
  passed = GreaterOrEqual (column, ends)
  passed_i = Cast <to = 7> (passed)
  level = ReduceSum <keepdims = 0> (passed_i, one)
  ones3 = Constant <value_ints = [1, 1, 1]> ()
  expand = Concat <axis = 0> (one, one, levels, one)
  reference_l = Expand (reference_c, expand)
  reference = Gather <axis = 2> (reference_l, level)
  kind = Shape <start = 3, end = 4> (reference_points)
  xy = Slice (reference, zero, two, any)
  wh = Slice (reference, two, four, any)
  boxes = Equal (kind, four)
  boxes_s = Squeeze (boxes)
  scale = If (boxes_s) <
    then_branch = with_boxes () => (box_scale) {{
      points_l = Gather (counts, level)
      points_u = Unsqueeze (points_l, any)
      points_c = CastLike (points_u, wh)
      per_point = Div (wh, points_c)
      half_f = Constant <value_float = 0.5> ()
      half = CastLike (half_f, wh)
      box_scale = Mul (per_point, half)
    }},
    else_branch = with_points () => (point_scale) {{
      swap = Constant <value_ints = [1, 0]> ()
      sizes_xy = Gather <axis = 1> (spatial_shapes, swap)
      sizes_l = Gather (sizes_xy, level)
      sizes_c = CastLike (sizes_l, xy)
      lead = Constant <value_ints = [0, 1]> ()
      sizes_u = Unsqueeze (sizes_c, lead)
      point_scale = Reciprocal (sizes_u)
    }}>
  scale_h = Unsqueeze (scale, two)
  xy_h = Unsqueeze (xy, two)
  moved = Mul (offsets, scale_h)
  locations = Add (xy_h, moved)
  output = msda.MultiScaleDeformableAttention <sampling: string = @sampling,
    padding: string = @padding, align_corners: int = @align_corners {points_passed}>
    (value, spatial_shapes, level_start_index, locations, weights)
}}
"""

_SAMPLE = """sampled = GridSample <mode {mode}, padding_mode: string = @padding,
        align_corners: int = @align_corners> (map, part)"""
_EITHER = """name = Constant <value_string: string = @sampling> ()
      nearest_s = Constant <value_string = "nearest"> ()
      is_nearest = Equal (name, nearest_s)
      sampled = If (is_nearest) <
        then_branch = a () => (s1) {{ {nearest} }}, else_branch = b () => (s2) {{ {linear} }}>"""


def _sample(opset: int, samplings: set[str]) -> str:
    """GridSample of one level. Version 20 has another name for 'bilinear'."""
    if opset < 20:
        return _SAMPLE.format(mode=": string = @sampling")
    names = {"bilinear": "linear", "nearest": "nearest"}
    one = {name: _SAMPLE.format(mode=f'= "{names[name]}"') for name in samplings}
    if len(one) == 1:
        return next(iter(one.values()))
    return _EITHER.format(
        nearest=one["nearest"].replace("sampled", "s1"),
        linear=one["bilinear"].replace("sampled", "s2"),
    )


def functions(
    nodes: Iterable[onnx.NodeProto], opset: int, double: bool = False
) -> list[onnx.FunctionProto]:
    """The bodies of these nodes as local functions. They compute in float32 or float64."""
    nodes = list(nodes)
    if not nodes:
        return []
    uneven = any(attributes(node)["points"] for node in nodes)
    fields = {
        "points_default": ", points: ints = [0]" if uneven else "",
        "points_passed": ", points: ints = @points" if uneven else "",
        "opset": opset,
        "compute": onnx.TensorProto.DOUBLE if double and opset >= 20 else onnx.TensorProto.FLOAT,
        "counts": _COUNTS.strip().format(points=": ints = @points" if uneven else " = [0]"),
        "sample": _sample(opset, {attributes(node)["sampling"] for node in nodes}),
    }
    texts = {PLAIN: _PLAIN_BODY}
    if any(node.op_type == FUSED for node in nodes):
        texts[FUSED] = _FUSED_BODY
    made = []
    for name, body in texts.items():
        text = (_HEADER + body).format(name=name, inputs=", ".join(INPUTS[name]), **fields)
        made.append(onnx.parser.parse_function(text))
    return made


def is_ours(node: onnx.NodeProto) -> bool:
    return node.domain == DOMAIN and node.op_type in INPUTS


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """The attributes of a node of ours with their defaults, checked."""
    found = dict(ATTRIBUTES)
    where, kinds = f"node {node.name!r} ({node.op_type})", onnx.AttributeProto.AttributeType
    for attribute in node.attribute:
        name = attribute.name
        if name not in ATTRIBUTES:
            raise OnnxError(f"{where}: got attribute {name!r}, expected {list(ATTRIBUTES)}")
        got, expected = kinds.Name(attribute.type), kinds.Name(_TYPES[type(ATTRIBUTES[name])])
        if got != expected:
            raise OnnxError(f"{where}: attribute {name}: got {got}, expected {expected}")
        given = onnx.helper.get_attribute_value(attribute)
        found[name] = given.decode(errors="replace") if isinstance(given, bytes) else given
    for name, allowed in CHOICES.items():
        if found[name] not in allowed:
            choices = " or ".join(map(repr, allowed))
            raise OnnxError(f"{where}: attribute {name}: got {found[name]!r}, expected {choices}")
    return {**found, "points": list(found["points"])}


def changed(given: dict[str, Any]) -> dict[str, Any]:
    """The attributes that have other values than by default."""
    return {key: found for key, found in given.items() if found != ATTRIBUTES[key]}


def call(op: str, given: dict[str, Any], inputs: Sequence[np.ndarray]) -> np.ndarray:
    """The compiled operator, with the attributes of a node."""
    value, shapes, starts, *rest = inputs
    given = {
        **given,
        "align_corners": bool(given["align_corners"]),
        "points": [int(n) for n in given["points"]] or None,
    }
    return _OPERATORS[op](value, shapes.tolist(), starts.tolist(), *rest, **given)


def compute(node: onnx.NodeProto, inputs: Sequence[np.ndarray]) -> np.ndarray:
    """The result of a node in float64."""
    tables = range(1, 3)
    wide = [a if at in tables else np.asarray(a, np.float64) for at, a in enumerate(inputs)]
    try:
        return call(node.op_type, attributes(node), wide)
    except (TypeError, ValueError) as error:
        raise OnnxError(f"node {node.name!r} ({node.op_type}): {error}") from None


def error(got: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference in units of the largest number; infinite if shapes differ.

    The same infinity, or NaN, in both is no difference.
    """
    if got.shape != expected.shape:
        return math.inf
    got, expected = np.asarray(got, np.float64), np.asarray(expected, np.float64)
    same = (got == expected) | (np.isnan(got) & np.isnan(expected))
    if same.all():
        return 0.0
    worst = np.abs(got[~same] - expected[~same]).max()
    largest = np.abs(expected[np.isfinite(expected)]).max(initial=1e-30)
    return float(worst / largest) if np.isfinite(worst) else math.inf
