"""A run folder as docs/reference/record.md describes it, made without training: to test check and report.

Numbers are consistent with one another (the log's times, the result's times, the breakdown), so that a test
breaks one thing at a time.
"""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mlhpc.benchmarks.load import dumps, load

START_MS = 1_700_000_000_000

Edit = Callable[..., object]  # of one argument, which it changes


def make_run(
    out: Path,
    *,
    preset: str = "smoke",
    settings: Sequence[str] = (),
    status: str = "success",
    resumed: bool = False,
    staged: bool = True,
    epochs: int = 8,
    ranks: int = 1,
    last_error: float | None = None,
    result: Edit = lambda result: None,
    log: Edit = lambda lines: None,
    env: Edit = lambda env: None,
) -> Path:
    """Makes ``out`` and returns it. ``result``, ``log`` and ``env`` change what is written: a dictionary, a
    list of MLLOG records, a dictionary."""
    # ``load`` refuses invalid closed runs; these are for checks of files that others may have written.
    closed = preset == "closed" or 'division="closed"' in settings
    run = load("cosmoflow", preset, [s for s in settings if not s.startswith("division")] + ["division=open"])
    run = run.model_copy(update={"division": "closed" if closed else "open"})
    out.mkdir(parents=True)
    target = run.target.value
    last_error = last_error if last_error is not None else target * (0.97 if status == "success" else 1.13)
    errors = [
        0.45 + (last_error - 0.45) * (1 - math.exp(-n / 3)) / (1 - math.exp(-epochs / 3))
        for n in range(1, epochs + 1)
    ]
    staging_ms = 3100 if staged else 0
    train_ms = [9700 + 2300 * (n == 1) + 37 * n for n in range(1, epochs + 1)]
    eval_ms = [1000 + 11 * n for n in range(1, epochs + 1)]

    lines: list[dict[str, Any]] = []

    def record(t: int, key: str, value: Any = None, **metadata: Any) -> None:
        kind = (
            "INTERVAL_START"
            if key.endswith("_start")
            else "INTERVAL_END"
            if key.endswith("_stop")
            else "POINT_IN_TIME"
        )
        lines.append(
            {"namespace": "", "time_ms": START_MS + t, "event_type": kind, "key": key, "value": value,
             "metadata": {"file": "train.py", "lineno": 1, **metadata}}
        )  # fmt: skip

    record(0, "cache_clear", False)
    record(1, "init_start")
    for key, value in {
        "submission_benchmark": "cosmoflow", "submission_org": "unnamed", "submission_division": run.division,
        "submission_status": "research", "submission_platform": "unnamed", "number_of_nodes": 1,
        "accelerators_per_node": 0, "seed": 1234, "train_samples": run.data.train_samples,
        "eval_samples": run.data.eval_samples, **run.hyperparameters.model_dump(mode="json"),
    }.items():  # fmt: skip
        record(2, key, value)
    record(4000, "init_stop")
    t = run_start = 4010
    record(t, "run_start")
    if staged:
        record(t, "staging_start")
        t += staging_ms
        record(t, "staging_stop")
    for n, (train, evaluation, error) in enumerate(zip(train_ms, eval_ms, errors, strict=True), 1):
        record(t, "epoch_start", epoch_num=n)
        t += train
        record(t, "eval_start", epoch_num=n)
        t += evaluation
        record(t, "eval_stop", epoch_num=n)
        record(t, "epoch_stop", epoch_num=n)
        record(t, "eval_error", error, epoch_num=n)
    t += 520
    record(t, "run_stop", status=status)
    total = (t - run_start) / 1e3

    data_wait = [0.4 + 1.9 * (n == 0) for n in range(epochs)]
    step = [ms / 1e3 - wait for ms, wait in zip(train_ms, data_wait, strict=True)]
    excess = 2.3
    waited, evaluated = sum(data_wait) - 1.9, sum(eval_ms) / 1e3
    stepped = sum(step) - (excess - 1.9)
    told = {
        "mlhpc": "0.1.0", "benchmark": "cosmoflow", "preset": run.preset, "division": run.division,
        "status": status, "resumed": resumed, "seed": 1234, "ranks": ranks, "nodes": 1, "launcher": "none",
        "target": {"metric": "eval_error", "label": "mean absolute error", "value": target,
                   "best": min(errors), "reached": status == "success"},
        "time_to_train_s": total, "time_to_train_without_staging_s": total - staging_ms / 1e3,
        "breakdown_s": {"staging": staging_ms / 1e3 if staged else None, "first_epoch_excess": excess,
                        "data_wait": waited, "step": stepped, "evaluation": evaluated, "rest": 0.52},
        "epochs": [
            {"epoch": n + 1, "train_s": train_ms[n] / 1e3, "data_wait_s": data_wait[n], "step_s": step[n],
             "eval_s": eval_ms[n] / 1e3, "samples": run.data.train_samples,
             "samples_per_s": run.data.train_samples / train_ms[n] * 1e3, "bytes": 536_870_912,
             "learning_rate": 0.001, "train_loss": 0.3 / (n + 1), "eval_error": errors[n]}
            for n in range(epochs)
        ],
        "samples": {"train": run.data.train_samples, "eval": run.data.eval_samples,
                    "shape": list(run.data.sample_shape)},
        "global_batch_size": run.hyperparameters.global_batch_size,
        "source_evicted": False,
        "staging": {"files": 2304, "bytes": 128_450_560, "seconds": 3.1, "slowest_rank": 0,
                    "mode": "replicate", "target_filesystem": "ext4",
                    "target_is_ram": False, "kept": 0, "verified": True,
                    "rank_seconds": [3.1]} if staged else None,
    }  # fmt: skip
    machine = {
        "hostname": "n0", "cpu": "Intel(R) Xeon(R) Processor <test & quote>", "cores": 2, "memory_gib": 23.4,
        "accelerators": [], "os": "Debian GNU/Linux 12 (bookworm), Linux 6.1.0",
    }  # fmt: skip
    facts = {
        **machine, "commit": "0123456789abcdef0123456789abcdef01234567", "dirty": True,
        "date": "2026-11-21T12:00:00+00:00", "python": "3.11.7", "nodes": [machine],
        "packages": {"mlhpc": "0.1.0", "tensorflow-cpu": "2.18.1", "keras": "3.15.1", "numpy": "2.0.2"},
        "command": "mlhpc run cosmoflow --preset smoke --stage /tmp/stage",
    }  # fmt: skip
    result(told)
    log(lines)
    env(facts)
    (out / "run.log").write_text(
        "".join(f":::MLLOG {json.dumps(line)}\n" for line in lines), encoding="utf-8"
    )
    (out / "result.json").write_text(json.dumps(told), encoding="utf-8")
    (out / "env.json").write_text(json.dumps(facts), encoding="utf-8")
    (out / "config.toml").write_text(dumps(run), encoding="utf-8")
    for rank in range(ranks):
        (out / f"events.rank{rank}.jsonl").write_text(
            '{"t": 0.0, "event": "begin", "name": "init"}\n', "utf-8"
        )
    return out
