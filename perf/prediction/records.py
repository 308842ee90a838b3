"""A prediction as JSON."""

from dataclasses import asdict
from typing import Any

from mlhpc.perf.prediction.result import Prediction


def record(p: Prediction) -> dict[str, Any]:
    """One prediction as JSON. Intervals are [value, low, high]; times in seconds."""
    return {
        "benchmark": p.run.benchmark,
        "preset": p.run.preset,
        "machine": p.machine.name,
        "nodes": p.nodes,
        "accelerators": p.accelerators,
        "global_batch_size": p.batch,
        "local_batch_size": p.local_batch_size,
        "backward_passes": p.run.backward_passes,
        "accelerators_per_sample": p.parts,
        "precision": p.run.training.precision,
        "step_s": list(p.step_s.ends),
        "step_parts_s": p.step.named,
        "samples_per_s_per_accelerator": list(p.samples_per_s),
        "staging_s": list(p.staging_s),
        "staged_bytes": asdict(p.moved) if p.moved else None,
        "train_s": list(p.train_s),
        "eval_s": list(p.eval_s),
        "epoch_s": list(p.epoch_s),
        "epochs": list(p.epochs.ends) if p.epochs else None,
        "extra_s": list(p.extra_s),
        "time_to_train_s": list(p.total_s) if p.total_s else None,
        "spatial": asdict(p.spatial) if p.spatial else None,
        "memory_bytes": p.memory,
        "largest_batch_that_fits": p.largest_batch,
        "tier": p.tier.name,
        "binding": p.binding,
        "efficiency": p.efficiency.value,
        "efficiency_of": p.efficiency.how,
        "notes": list(p.notes),
    }
