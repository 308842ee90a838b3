"""Tests whether each node is as fast as it was and as other nodes are, from the machine files that ``mlhpc doctor
--calibrate`` has written over time."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from statistics import geometric_mean

from mlhpc.errors import UserError
from mlhpc.history.gate import RATES, Gate, Measured, Test, badness, tested

FEWEST = 3
"""Minimum number of other measurements of the same machine model for a verdict."""


def health(rows: Sequence[Measured], tolerance: float) -> Gate:
    """For each node, the test with the worst verdict. A test compares the newest measurement of a rate on a node
    with all other measurements of that rate on machines of the same model. Raises UserError if no node has been
    measured."""
    found: dict[tuple[str, str], list[tuple[str, str, float]]] = defaultdict(list)
    for row, _ in rows:
        for figure in RATES:
            if (value := row.get(figure) or 0.0) > 0:
                found[str(row["machine"]), figure].append((row["when"] or "", str(row["node"]), value))
    if not found:
        raise UserError(
            "this store has no nodes; add files written by mlhpc doctor --calibrate --out FILE.toml"
        )
    worst: dict[str, Test] = {}
    for (_, figure), values in found.items():
        # Of two measurements with the same time, the worse counts as the newer one.
        ordered = sorted(values, key=lambda each: (each[0], -each[2]))
        newest = {node: number for number, (_, node, _) in enumerate(ordered)}
        for node, number in newest.items():
            when, _, value = ordered[number]
            others = tuple(each[2] for each in (*ordered[:number], *ordered[number + 1 :]))
            baseline = others if len(others) >= FEWEST else ()
            test = tested(figure, (value,), baseline, {figure: tolerance}, plan=False)
            # The mean represents all other measurements, which are nearly the same for every node of the model.
            own = replace(test, node=node, when=when, baseline=(geometric_mean(others),) if baseline else ())
            worst[node] = max(
                worst.get(node, own), own, key=lambda each: (badness(each.verdict), each.ratio or ())
            )
    return Gate(tuple(worst[node] for node in sorted(worst)), (), ())
