"""``mlhpc tune``: the batch size, ranks, learning rate and schedule with the shortest time to train."""
