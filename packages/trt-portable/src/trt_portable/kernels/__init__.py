"""Kernels that PyTorch has no name for: products of few bits, rows of odd extents, machine code."""
