"""The operator for torch tensors. Importing this package registers `torch.ops.msda`."""

from . import functional, rules, schema

__all__ = ["functional", "rules", "schema"]
