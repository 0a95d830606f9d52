"""Tensor backends, one module each."""
