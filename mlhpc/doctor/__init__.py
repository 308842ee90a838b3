"""Whether a machine, and these ranks, are fit for a run."""
