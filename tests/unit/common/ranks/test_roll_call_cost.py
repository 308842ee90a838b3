"""What the roll call costs rank 0, by a script that plays the other ranks over sockets."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3] / "perf"))

from roll_call import measure


def cheapest(ranks: int, nodes: int) -> dict[str, float]:
    """Of three: other programs on the machine add to the processor time, nothing reduces it."""
    return min((measure(ranks, nodes) for _ in range(3)), key=lambda cost: cost["cpu_s"])


def test_the_cost_of_rank_0_is_linear_in_the_ranks():
    """Encoding the roll for every rank, as before, took 16 times as long for 4 times as many."""
    few, many = cheapest(256, 32), cheapest(1024, 128)
    assert many["cpu_s"] / few["cpu_s"] <= 8  # beside busy processes 4 has become 5 and more
    for ranks, nodes, cost in ((256, 32, few), (1024, 128, many)):
        direct = nodes - 1 + ranks // nodes - 1
        greeting, address, roll = 3, 1, 1  # the address: all are on one machine here
        assert cost["messages"] == direct * (greeting + address + roll) + (nodes - 1)
        assert cost["sockets"] <= nodes + 64
