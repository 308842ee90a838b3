"""Checks whether a machine, and the ranks of a launch, are ready for a run."""
