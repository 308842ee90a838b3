"""mlhpc: end-to-end training benchmarks for HPC systems, data staging included."""

__version__ = "0.1.0"
