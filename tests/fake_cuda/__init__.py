"""A CUDA device that computes nothing, under PyTorch's CUDA build: ``README.md`` says what it shows."""
