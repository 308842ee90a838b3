"""Shared by the benchmarks that train with PyTorch. No other package may import it."""
