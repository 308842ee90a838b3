"""Kernels of GPUs in Triton, which is imported with them."""
