"""Logs and trees to compare."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from golden.make_tree import START_MS, Records, make_set, write_log

from mlhpc.submission.report.compare import compare
from mlhpc.submission.report.entry import Entry

SAMPLES, EVALUATED = 524288, 65536


def made_log(
    path: Path, events: Sequence[tuple[float, str] | tuple[float, str, Any] | Any], **keys: Any
) -> Path:
    """A log of (second, key, value, metadata); the run begins at second 0."""
    facts = {"submission_benchmark": "cosmoflow", "submission_org": "org", "submission_division": "closed",
             "submission_platform": "machine", "number_of_nodes": 4, "accelerators_per_node": 8,
             "global_batch_size": 64, "train_samples": SAMPLES, "eval_samples": EVALUATED}  # fmt: skip
    facts |= keys
    rows: list[Any] = [(-1.0, key, value) for key, value in facts.items() if value is not None]
    rows += [(0.0, "run_start"), *events]
    made = []
    for second, key, *rest in rows:
        value, metadata = [*rest, None, {}][:2] if len(rest) < 2 else rest
        made.append({"time_ms": START_MS + 1e3 * second, "event_type": "", "key": key, "value": value,
                     "metadata": metadata or {}})  # fmt: skip
    return write_log(path, made)


def epochs(
    begin: float, train: Sequence[float], evaluate: Sequence[float], *, first: int = 1, last: float = 0.12
) -> list[Any]:
    """Epochs one after the other, each with its evaluation inside; numbered from ``first``."""
    events: list[Any] = []
    now = begin
    for n, (training, evaluation) in enumerate(zip(train, evaluate, strict=True)):
        number = {"epoch_num": n + first}
        events += [(now, "epoch_start", None, number), (now + training, "eval_start", None, number)]
        now += training + evaluation
        error = last if n == len(train) - 1 else 0.4
        events += [(now, "eval_stop", None, number), (now, "epoch_stop", None, number),
                   (now, "eval_error", error, number)]  # fmt: skip
    return events


def one(path: Path) -> Entry:
    (entry,) = compare([path]).entries
    return entry


def scaling_tree(tmp_path: Path) -> Path:
    """One machine at 8 and 32 accelerators, with twice the epochs and an eighth of T_epoch at the larger."""
    for nodes, batch, count, minutes in ((2, 64, 10, 41.0), (8, 256, 20, 11.0)):

        def sized(number: int, made: Records, batch: int = batch) -> None:
            for record in made:
                if record["key"] == "global_batch_size":
                    record["value"] = batch

        make_set(tmp_path / "org", minutes=[minutes + n / 1000 for n in range(10)], staging_minutes=1.0,
                 epochs=count, nodes=nodes, system=f"n{nodes}", edit=sized)  # fmt: skip
    return tmp_path


def cut(made: Path) -> None:
    made.write_bytes(made.read_bytes()[:-40])


def twice(made: Path) -> None:
    made.write_bytes(made.read_bytes() * 2)
