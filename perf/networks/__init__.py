"""The benchmarks' networks as lists of layers, for predictions: no framework is imported."""
