"""Triton kernels of the GPU path, one per file, each with its torch reference beside it."""
