"""Information before a run: the available benchmarks, their settings, and the size of a run."""
