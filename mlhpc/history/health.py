"""Whether each node is as fast as it was and as the others are, from the machine files of ``mlhpc doctor
--calibrate`` on it over time."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from mlhpc.errors import UserError
from mlhpc.history.gate import Measured, Ratio, Verdict, badness, ratio_interval, verdict_of

RATES = ("accelerator.float32", "accelerator.tf32", "accelerator.bfloat16", "accelerator.float16",
         "accelerator.bandwidth", "links.host", "host.memory_bandwidth", "storage.local_read",
         "storage.local_write", "network.bandwidth")  # fmt: skip
"""Figures of which more is better; sizes of memories and disks are no measurements."""
FEWEST = 3
"""Earlier figures of nodes of the same model, without which there is no verdict."""


@dataclass(frozen=True)
class Health:
    """The newest ``figure`` of a node against all earlier ones of its model. ``ratio``: their geometric mean over
    it, so that above 1 is slower, with its 95% interval; None with too few."""

    node: str
    when: str
    figure: str
    value: float
    ratio: Ratio | None
    verdict: Verdict


def health(rows: Sequence[Measured], tolerance: float) -> list[Health]:
    """The worst figure of each node. Raises UserError if no node has been measured."""
    found: dict[tuple[str, str], list[tuple[str, str, float]]] = defaultdict(list)
    for row, _ in rows:
        for figure in RATES:
            value = row.get(figure)
            if row["kind"] == "node" and isinstance(value, int | float) and value > 0:
                found[str(row["machine"]), figure].append((row["when"] or "", str(row["node"]), float(value)))
    if not found:
        raise UserError(
            "this store has no nodes; add files written by mlhpc doctor --calibrate --out FILE.toml"
        )
    worst: dict[str, Health] = {}
    for (_, figure), values in found.items():
        # Of two figures with the same time the worse one counts as the newest.
        ordered = sorted(values, key=lambda each: (each[0], -each[2]))
        newest = {node: number for number, (_, node, _) in enumerate(ordered)}
        for node, number in newest.items():
            when, _, value = ordered[number]
            others = [each[2] for each in (*ordered[:number], *ordered[number + 1 :])]
            ratio = ratio_interval(others, [value]) if len(others) >= FEWEST else None
            own = Health(node, when, figure, value, ratio, verdict_of(ratio, tolerance))
            worst[node] = max(worst.get(node, own), own, key=_badness)
    return [worst[node] for node in sorted(worst)]


def _badness(health: Health) -> tuple[int, float]:
    return badness(health.verdict), health.ratio[0] if health.ratio else 0.0
