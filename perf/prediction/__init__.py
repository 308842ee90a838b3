"""``mlhpc predict``: what a run should cost on a machine, and its tables and pages."""
