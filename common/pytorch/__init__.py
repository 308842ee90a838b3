"""What the benchmarks that train with PyTorch share. No other package may import it."""
