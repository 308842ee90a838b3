"""``mlhpc campaign``: the runs that a score requires."""
