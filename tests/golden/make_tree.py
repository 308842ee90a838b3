"""Submission trees with MLLOG logs, made without training: to test check, score, report and pack.

A log is one that the official compliance checker passes; a test breaks one thing at a time through ``edit``,
which is given the list of records and may change it.
"""

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

START_MS = 1_700_000_000_000
Records = list[dict[str, Any]]
Edit = Callable[[Records], object]

# The closed division's keys, with values at which there is a reference convergence point (mlperf-logging).
CLOSED: dict[str, dict[str, Any]] = {
    "cosmoflow": {
        "train_samples": 524288, "eval_samples": 65536, "global_batch_size": 64, "opt_name": "sgd",
        "opt_momentum": 0.9, "opt_base_learning_rate": 0.001, "opt_learning_rate_warmup_epochs": 4,
        "opt_learning_rate_warmup_factor": 1.0, "opt_learning_rate_decay_boundary_epochs": [32, 64],
        "opt_learning_rate_decay_factor": [0.25, 0.125], "dropout": 0.5, "opt_weight_decay": 0.0,
    },
    "deepcam": {
        "train_samples": 121266, "eval_samples": 15158, "global_batch_size": 1024, "opt_name": "LAMB",
        "gradient_accumulation_frequency": 1, "batchnorm_group_size": 1, "opt_lr": 0.004,
        "opt_betas": [0.9, 0.999], "opt_eps": 1e-6, "opt_weight_decay": 0.01, "opt_bias_correction": True,
        "opt_grad_averaging": True, "opt_max_grad_norm": 1.0, "scheduler_type": "multistep",
        "scheduler_lr_warmup_steps": 0, "scheduler_lr_warmup_factor": 1.0,
        "scheduler_milestones": [1000], "scheduler_decay_rate": 0.1,
    },
    "resnet": {
        "train_samples": 1281167, "eval_samples": 50000, "global_batch_size": 4096, "opt_name": "lars",
        "gradient_accumulation_steps": 1, "lars_opt_base_learning_rate": 17.0,
        "lars_opt_end_learning_rate": 0.0001, "lars_opt_learning_rate_decay_poly_power": 2,
        "lars_opt_learning_rate_decay_steps": 13000, "lars_epsilon": 0.0,
        "lars_opt_learning_rate_warmup_epochs": 5, "lars_opt_momentum": 0.9, "lars_opt_weight_decay": 0.0002,
    },
}  # fmt: skip
REACHED = {"cosmoflow": 0.1239, "deepcam": 0.8201, "resnet": 0.7591}
MISSED = {"cosmoflow": 0.1241, "deepcam": 0.8199, "resnet": 0.7589}
EPOCHS = {"cosmoflow": 19, "deepcam": 13, "resnet": 41}
"""About as many as the reference needs at the batch sizes above."""

FIELDS = (
    "submitter", "division", "status", "system_name", "number_of_nodes", "host_processors_per_node",
    "host_processor_model_name", "host_processor_core_count", "host_processor_vcpu_count",
    "host_processor_frequency", "host_processor_caches", "host_processor_interconnect",
    "host_memory_capacity", "host_storage_type", "host_storage_capacity", "host_networking",
    "host_networking_topology", "host_memory_configuration", "accelerators_per_node",
    "accelerator_model_name", "accelerator_host_interconnect", "accelerator_frequency",
    "accelerator_on-chip_memories", "accelerator_memory_configuration", "accelerator_memory_capacity",
    "accelerator_interconnect", "accelerator_interconnect_topology", "cooling", "hw_notes", "framework",
    "other_software_stack", "operating_system", "sw_notes",
)  # fmt: skip
"""What mlperf-logging's system_desc_checker asks for."""


def records(
    benchmark: str = "cosmoflow",
    *,
    minutes: float = 10.0,
    staging_minutes: float = 1.0,
    start_ms: int = START_MS,
    seed: int | None = 1,
    epochs: int | None = None,
    reached: bool = True,
    division: str = "closed",
    nodes: int = 2,
    accelerators: int = 4,
) -> Records:
    """The records of one run that takes ``minutes`` from run_start to run_stop."""
    made: Records = []

    def record(minute: float, key: str, value: Any = None, **metadata: Any) -> None:
        end = "INTERVAL_END" if key.endswith("_stop") else "POINT_IN_TIME"
        kind = "INTERVAL_START" if key.endswith("_start") else end
        made.append(
            {"namespace": "", "time_ms": start_ms + round(minute * 60e3), "event_type": kind, "key": key,
             "value": value, "metadata": {"file": "train.py", "lineno": 1, **metadata}}
        )  # fmt: skip

    epochs = EPOCHS[benchmark] if epochs is None else epochs
    metric = "eval_error" if benchmark == "cosmoflow" else "eval_accuracy"
    record(-2, "cache_clear", True)
    record(-2, "init_start")
    for key, value in {
        "submission_benchmark": benchmark, "submission_org": "org", "submission_division": division,
        "submission_status": "onprem", "submission_platform": "machine", "number_of_nodes": nodes,
        "accelerators_per_node": accelerators, **({} if seed is None else {"seed": seed}),
        **CLOSED[benchmark],
    }.items():  # fmt: skip
        record(-1, key, value)
    record(-0.5, "init_stop")
    record(0, "run_start")
    if staging_minutes:
        record(0, "staging_start")
        record(staging_minutes, "staging_stop")
    length = (minutes - staging_minutes) / epochs
    worst = 0.5 if benchmark == "cosmoflow" else 0.1
    for n in range(1, epochs + 1):
        begin = staging_minutes + (n - 1) * length
        record(begin, "epoch_start", epoch_num=n)
        record(begin + 0.9 * length, "eval_start", epoch_num=n)
        record(begin + length, "eval_stop", epoch_num=n)
        last = (REACHED if reached else MISSED)[benchmark]
        record(begin + length, metric, last if n == epochs else worst, epoch_num=n)
        record(begin + length, "epoch_stop", epoch_num=n)
    record(minutes, "run_stop", status="success" if reached else "aborted")
    return made


def write_log(path: Path, made: Records, edit: Edit = lambda made: None) -> Path:
    """Writes ``made`` as MLLOG, after ``edit``; makes the folders above."""
    edit(made)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f":::MLLOG {json.dumps(record)}\n" for record in made), encoding="utf-8")
    return path


def make_set(
    tree: Path,
    benchmark: str = "cosmoflow",
    minutes: Sequence[float] = (),
    *,
    system: str = "machine",
    level: str | None = "strong",
    edit: Callable[[int, Records], object] = lambda number, made: None,
    **facts: Any,
) -> Path:
    """Makes one set in the tree ``tree`` (``<org>``), with its system description, and returns its folder.

    Runs take ``minutes`` each (default: as many runs as a score needs, of 10, 11, … minutes), have seeds 1,
    2, … and begin a day after one another, or together when ``level`` is weak. ``edit(number, records)``
    changes run ``number``. ``facts`` go to :func:`records`.
    """
    minutes = minutes or [10.0 + n for n in range(10 if benchmark == "cosmoflow" else 5)]
    folder = Path(*(part for part in (tree, "results", system, level, benchmark) if part))
    for n, length in enumerate(minutes, 1):
        start = START_MS + (0 if level == "weak" else n * 86_400_000)
        made = records(benchmark, **{"minutes": length, "seed": n, "start_ms": start, **facts})
        write_log(folder / f"result_{n}.txt", made, partial(edit, n))
    instances = len(minutes) if level == "weak" else 1
    nodes, accelerators = facts.get("nodes", 2) * instances, facts.get("accelerators", 4)
    describe(tree, system, number_of_nodes=str(nodes), accelerators_per_node=str(accelerators),
             division=facts.get("division", "closed"))  # fmt: skip
    return folder


def describe(tree: Path, system: str, **facts: Any) -> Path:
    """Writes the description of ``system``, every field of it, with ``facts`` over it; a fact of None takes
    its field out."""
    said = dict.fromkeys(FIELDS, "1") | {"submitter": "org", "system_name": system, "division": "closed"}
    said |= {"status": "Available on-premise", **facts}
    path = tree / "systems" / f"{system}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({k: v for k, v in said.items() if v is not None}), encoding="utf-8")
    return path
