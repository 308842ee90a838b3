"""mlhpc: end-to-end training benchmarks for HPC systems, including data staging."""

__version__ = "0.1.0"
