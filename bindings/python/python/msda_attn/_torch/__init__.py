"""The operator for torch tensors. Importing this package registers `torch.ops.msda`."""

from . import rules, schema

__all__ = ["rules", "schema"]
