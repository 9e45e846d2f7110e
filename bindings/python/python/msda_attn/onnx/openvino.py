"""Our operators for OpenVINO on the CPU.

core = openvino.Core()
for extension in msda_attn.onnx.openvino_extension():
    core.add_extension(extension)
model = core.compile_model("model.onnx", "CPU")
"""

from __future__ import annotations

import numpy as np
import openvino
from openvino.frontend.onnx import ConversionExtension

from .ops import ATTRIBUTES, DOMAIN, FUSED, PLAIN, call

_NAMES = (PLAIN, FUSED)


class _Attention(openvino.Op):
    """The operator as a node of OpenVINO. OpenVINO makes it again, without inputs, for copies."""

    def __init__(self, inputs=None, attributes=None):
        super().__init__(self, inputs)
        self.attributes = attributes or dict(ATTRIBUTES)
        if inputs is not None:
            self.constructor_validate_and_infer_types()

    def validate_and_infer_types(self):
        value, queries = self.get_input_partial_shape(0), self.get_input_partial_shape(3)[1]
        known = value[2].is_static and value[3].is_static
        width = value[2].get_length() * value[3].get_length() if known else -1
        shape = openvino.PartialShape([value[0], queries, openvino.Dimension(width)])
        self.set_output_type(0, self.get_input_element_type(0), shape)

    def clone_with_new_inputs(self, inputs):
        return type(self)(inputs, self.attributes)

    def get_type_info(self):
        return type(self).class_type_info

    def visit_attributes(self, visitor):
        visitor.on_attributes(self.attributes)
        return True

    def has_evaluate(self):
        return True

    def evaluate(self, outputs, inputs):
        arrays = [np.array(i.data) for i in inputs]
        result = call(self.name_in_onnx, self.attributes, arrays)
        outputs[0].shape = result.shape
        outputs[0].data[:] = result
        return True


def _class(name: str) -> type:
    info = openvino.DiscreteTypeInfo(name, DOMAIN)
    return type(name, (_Attention,), {"name_in_onnx": name, "class_type_info": info})


_CLASSES = {name: _class(name) for name in _NAMES}


def _convert(name: str):
    def convert(context):
        given = {key: context.get_attribute(key, default) for key, default in ATTRIBUTES.items()}
        inputs = [context.get_input(at) for at in range(context.get_input_size())]
        return _CLASSES[name](inputs, given).outputs()

    return convert


def openvino_extension() -> list:
    """Extensions for `openvino.Core.add_extension`: each call gives new ones."""
    return [ConversionExtension(name, DOMAIN, _convert(name)) for name in _NAMES]
