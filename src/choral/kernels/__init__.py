"""Triton kernels of the GPU path, one a file, each with its torch reference beside it."""
