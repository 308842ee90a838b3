"""What the benchmarks that train with PyTorch share. Nothing else may import it."""
