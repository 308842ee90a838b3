"""A CUDA device that computes nothing, under PyTorch's own CUDA build: ``README.md`` says what it shows and what not."""
