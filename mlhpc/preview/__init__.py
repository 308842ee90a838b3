"""Information before a run: available benchmarks, their settings, and a run's size."""
