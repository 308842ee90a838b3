"""A closed set to pack, and the official package checker."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from golden.make_run import START_MS, make_run

from mlhpc.benchmarks.findings import Finding

# The fields that mlperf-logging 4.1.68, system_desc_checker, requires, answered as a submitter would.
SYSTEM = {
    "submitter": "Lab", "division": "closed", "status": "onprem", "system_name": "cluster_n4",
    "number_of_nodes": "4", "host_processors_per_node": "2", "host_processor_model_name": "AMD EPYC 7742",
    "host_processor_core_count": "64", "host_processor_vcpu_count": "", "host_processor_frequency": "",
    "host_processor_caches": "", "host_processor_interconnect": "", "host_memory_capacity": "512 GB",
    "host_storage_type": "NVMe SSD", "host_storage_capacity": "1 x 960 GB", "host_networking": "4x HDR200",
    "host_networking_topology": "Dragonfly", "host_memory_configuration": "16 x 32 GB",
    "accelerators_per_node": "4", "accelerator_model_name": "NVIDIA A100",
    "accelerator_host_interconnect": "PCIe 4.0 x16", "accelerator_frequency": "",
    "accelerator_on-chip_memories": "", "accelerator_memory_configuration": "HBM2e",
    "accelerator_memory_capacity": "40 GB", "accelerator_interconnect": "12x 25GB/s NVLink",
    "accelerator_interconnect_topology": "", "cooling": "Liquid", "hw_notes": "",
    "framework": "TensorFlow 2.18.1", "other_software_stack": {"Python": "3.11.7"},
    "operating_system": "CentOS 8", "sw_notes": "",
}  # fmt: skip


def golden(out: Path, number: int, *, seed: int | None = None, minutes: float = 0, **options: Any) -> Path:
    """A run of the closed preset with its own seed, started ``minutes`` after the first."""
    seed = 1000 + number if seed is None else seed

    def log(lines: list[dict[str, Any]]) -> None:
        for line in lines:
            line["time_ms"] += round(minutes * 60e3) + number
            if line["key"] == "seed":
                line["value"] = seed
            if line["key"] == "submission_org":
                line["value"] = "Lab"

    return make_run(
        out / f"run {number}.x",
        preset="closed",
        epochs=19 + number % 3,
        log=log,
        result=lambda result: result.update(seed=seed),
        env=lambda env: env.update(
            command="mlhpc run cosmoflow --preset closed --data /data/x --stage=/tmp/s"
        ),
        **options,
    )


def rules(findings: Iterable[Finding], severity: str = "error") -> set[str]:
    return {finding.rule for finding in findings if finding.severity == severity}


def resnet_log(path: Path, number: int) -> Path:
    """A closed LARS run at batch 4096, as the rules of training 4.0.0 want it (closed_resnet*.yaml)."""
    lines = []

    def record(t: float, key: str, value: object = None, **metadata: object) -> None:
        lines.append({"namespace": "", "time_ms": START_MS + t, "event_type": "", "key": key, "value": value,
                      "metadata": {"file": "train.py", "lineno": 1, **metadata}})  # fmt: skip

    record(0, "cache_clear", True)
    record(1, "init_start")
    for key, value in {
        "submission_benchmark": "resnet", "submission_org": "Lab", "submission_division": "closed",
        "submission_status": "onprem", "submission_platform": "cluster_n4", "seed": 7 + number,
        "global_batch_size": 4096, "opt_name": "lars", "lars_opt_base_learning_rate": 10.0,
        "lars_opt_end_learning_rate": 0.0001, "lars_opt_learning_rate_decay_poly_power": 2,
        "lars_opt_learning_rate_decay_steps": 13137, "lars_epsilon": 0.0,
        "lars_opt_learning_rate_warmup_epochs": 5, "lars_opt_momentum": 0.9, "lars_opt_weight_decay": 0.0002,
        "gradient_accumulation_steps": 1, "train_samples": 1281167, "eval_samples": 50000,
    }.items():  # fmt: skip
        record(2, key, value)
    record(3, "init_stop")
    record(4, "run_start")
    for epoch in range(1, 46):
        record(epoch * 60_000, "epoch_start", epoch_num=epoch)
        record(epoch * 60_000 + 50_000, "epoch_stop", epoch_num=epoch)
        if epoch % 4 == 1:
            record(epoch * 60_000 + 51_000, "eval_start", epoch_num=epoch)
            record(epoch * 60_000 + 52_000, "eval_stop", epoch_num=epoch)
            accuracy = 0.7593 if epoch == 45 else 0.3 + epoch / 100
            record(epoch * 60_000 + 52_000, "eval_accuracy", accuracy, epoch_num=epoch)
    record(46 * 60_000 + number * 1000, "run_stop", status="success")
    path.write_text("".join(f":::MLLOG {json.dumps(line)}\n" for line in lines))
    return path
