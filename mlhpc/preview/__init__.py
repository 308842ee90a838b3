"""What can be known before anything starts: what there is to run, its settings, what a run would do."""
