"""GPU kernels written in Triton. Importing them imports Triton."""
