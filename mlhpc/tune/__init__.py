"""``mlhpc tune``: searches for the batch size, number of ranks, learning rate and schedule with the shortest time
to train."""
