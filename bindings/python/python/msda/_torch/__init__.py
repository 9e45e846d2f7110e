"""The operator for torch tensors."""
