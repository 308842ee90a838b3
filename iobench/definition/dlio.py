"""Reads DLIO's workload files: its tables and keys (``dlio_keys``) are converted to those of a ``Workload``.
DLIO ignores unknown keys; here they are refused."""

from collections.abc import Mapping
from typing import Any

from mlhpc.errors import did_you_mean, shown
from mlhpc.iobench.definition.dlio_keys import (
    DATATYPES,
    FORMATS,
    NO_EFFECT,
    NUMBERS,
    ORIGIN,
    TABLES,
    USED,
    WORDS,
    Keys,
)
from mlhpc.iobench.definition.fields import LARGEST


class BadKey(Exception):
    """A key or value that cannot be converted; ``keys`` is its position in the file."""

    def __init__(self, keys: Keys, message: str) -> None:
        super().__init__(message)
        self.keys = keys


def convert(tables: Mapping[str, Any], name: str) -> tuple[dict[str, Any], dict[Keys, Keys]]:
    """The tables of a ``Workload``, and the position of each key in DLIO's file. ``name``: used if the file
    has none.

    Raises BadKey for a key that DLIO does not have, and for values that this tool does not emulate.
    """
    if isinstance(tables.get("model"), str):  # DLIO's plugins have only a name there
        tables = {**tables, "model": {"name": tables["model"]}}
    without_effect = _checked(tables)
    model, workflow = _table(tables, "model"), _table(tables, "workflow")
    reader = "data_reader" if "data_reader" in tables else "reader"
    workload: dict[str, Any] = {
        "name": str(model.get("name", name)),
        "suite": "dlio",
        "without_effect": sorted(without_effect),
        "metric": _metric(tables),
    }
    storage = _storage(_table(tables, "storage"), str(_table(tables, "dataset").get("data_folder", "")))
    if storage:
        if workflow.get("checkpoint"):
            raise BadKey(("workflow", "checkpoint"), "workflow.checkpoint: to an object store, not emulated")
        without_effect.discard("dataset.data_folder")
        workload |= {"storage": storage, "without_effect": sorted(without_effect)}
    # A file that only generates data does not train; running it reads the data.
    if workflow.get("train", True) or (workflow.get("generate_data") and "dataset" in tables):
        workload |= {
            "dataset": _dataset(_table(tables, "dataset"), _table(tables, "reader") | _table(tables, reader)),
            "reader": _reader(_table(tables, reader)),
            "train": _train(_table(tables, "train")),
        }
    if workflow.get("evaluation"):
        evaluation = _table(tables, "evaluation")
        workload["evaluation"] = {
            "every_epochs": evaluation.get("epochs_between_evals", 1),
            "computation": _time(evaluation, "eval_time"),
        }
    if workflow.get("checkpoint"):
        workload["checkpoint"] = _checkpoint(
            _table(tables, "checkpoint"), model, bool(workflow.get("train", True))
        )
    return workload, {keys: (reader, *origin[1:]) if origin[0] == "reader" else origin
                      for keys, origin in ORIGIN.items()}  # fmt: skip


def _checked(tables: Mapping[str, Any]) -> set[str]:
    """Dotted names of the keys without effect. Raises BadKey for unknown ones."""
    without_effect: set[str] = set()
    for top, value in tables.items():
        if top not in TABLES:
            if top not in NO_EFFECT[""]:
                raise BadKey((str(top),), f"unknown key {top!r}; {did_you_mean(str(top), TABLES)}")
            without_effect.add(str(top))
        elif not isinstance(value, Mapping):
            raise BadKey((top,), f"{top} is not a table")
        else:
            _check_table(value, (top,), "reader" if top == "data_reader" else top, without_effect)
    return without_effect


def _check_table(table: Mapping[str, Any], place: Keys, known_as: str, without_effect: set[str]) -> None:
    used, idle = USED.get(known_as, set()), NO_EFFECT.get(known_as, set())
    for key, value in table.items():
        inner = f"{known_as}.{key}"
        if key not in used | idle:
            raise BadKey(
                (*place, str(key)),
                f"unknown key {'.'.join((*place, str(key)))!r}; {did_you_mean(str(key), used | idle)}",
            )
        if inner in USED or inner in NO_EFFECT:
            if not isinstance(value, Mapping):
                raise BadKey((*place, key), f"{'.'.join((*place, key))} is not a table")
            _check_table(value, (*place, key), inner, without_effect)
        elif key in idle:
            without_effect.add(".".join((*place, key)))
        elif inner in NUMBERS and not _is_number(value):
            raise BadKey((*place, key), f"{'.'.join((*place, key))}: {shown(value)} is not a number")
        elif inner in WORDS and not isinstance(value, str | bool):  # YAML reads off as false
            raise BadKey((*place, key), f"{'.'.join((*place, key))}: {shown(value)} is not a name")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST


def _table(tables: Mapping[str, Any], name: str) -> dict[str, Any]:
    return dict(tables.get(name, {}))


def _storage(table: dict[str, Any], data_folder: str) -> dict[str, Any]:
    """The object store; nothing for file systems. ``storage_root`` is the bucket, and ``data_folder`` a prefix
    in it, or the whole URL."""
    kind = table.get("storage_type", "local_fs")
    if kind in ("local_fs", "parallel_fs"):
        return {}
    if kind != "s3":
        raise BadKey(
            ("storage", "storage_type"),
            f"storage.storage_type: {shown(kind)} is not emulated; choose from: local_fs, parallel_fs, s3",
        )
    options = _table(table, "storage_options")
    root = str(table.get("storage_root", "")).strip("./")
    url = data_folder if data_folder.startswith("s3://") else f"s3://{root}/{data_folder.strip('./')}"
    if not url.removeprefix("s3://").strip("/"):
        raise BadKey(("storage",), "storage: storage_root is missing: the name of the bucket")
    return {
        "url": url.rstrip("/"),
        "endpoints": options.get("endpoint_url") or (),
        "region": options.get("region") or "",
        "path_style": options.get("s3_force_path_style"),
        "attempts": options.get("s3_max_attempts", 5),
    }


def _dataset(table: dict[str, Any], reader: dict[str, Any]) -> dict[str, Any]:
    kind = table.get("format", "tfrecord")
    if kind not in FORMATS:
        raise BadKey(
            ("dataset", "format"),
            f"dataset.format: {shown(kind)} is not emulated; {did_you_mean(str(kind), FORMATS)}",
        )
    dataset = {
        "format": FORMATS[kind],
        "files": table.get("num_files_train", 8),
        "eval_files": table.get("num_files_eval", 0),
        "samples_per_file": table.get("num_samples_per_file", 1),
        "sample_bytes": _either(table, "record_length_bytes", "record_length", 64 * 1024),
        "sample_bytes_stdev": _either(table, "record_length_bytes_stdev", "record_length_stdev", 0),
        "compression": table.get("compression", "none"),
        "compression_level": table.get("compression_level", 4),
    }
    if table.get("enable_chunking"):
        dataset["chunk_bytes"] = table.get("chunk_size", 0)
    return dataset


def _either(table: dict[str, Any], new: str, old: str, default: int) -> Any:
    return table.get(new, table.get(old, default))


def _reader(table: dict[str, Any]) -> dict[str, Any]:
    shuffles = {"off": "sequential", "seed": "shuffled", "random": "shuffled", False: "sequential"}
    orders = {}
    for ours, key in (("file_order", "file_shuffle"), ("sample_order", "sample_shuffle")):
        value = table.get(key, "off")
        if value not in shuffles:
            raise BadKey(("reader", key), f"reader.{key}: {shown(value)} is none of off, seed, random")
        orders[ours] = shuffles[value]
    return {
        **orders,
        "batch_size": table.get("batch_size", 1),
        "eval_batch_size": table.get("batch_size_eval", 1),
        "threads": table.get("read_threads", 1),
        "prefetch": table.get("prefetch_size") or 2,  # 0: the loader's own, of PyTorch 2
        "transfer_bytes": table.get("transfer_size") or 0,
        "direct": table.get("odirect", False),
        "load_all": table.get("read_type", "on_demand") == "memory",
        "preprocess": _time(table, "preprocess_time"),
    }


def _train(table: dict[str, Any]) -> dict[str, Any]:
    return {
        "epochs": table.get("epochs", 1),
        "steps": max(0, table.get("total_training_steps", -1)),
        "computation": _time(table, "computation_time"),
    }


def _time(table: dict[str, Any], key: str) -> Any:
    value = table.get(key, 0.0)
    if isinstance(value, Mapping):
        return {"mean": 0.0} if not value else dict(value)
    return {"mean": value, "stdev": table.get(f"{key}_stdev", 0.0)}


def _metric(tables: Mapping[str, Any]) -> dict[str, Any]:
    excluded = _table(_table(tables, "output"), "metric")
    metric: dict[str, Any] = {key: int(value) for key, value in excluded.items()}
    if "au" in _table(tables, "metric"):
        metric["au_percent"] = 100 * _table(tables, "metric")["au"]
    return metric


def _checkpoint(table: dict[str, Any], model: dict[str, Any], trains: bool) -> dict[str, Any]:
    steps = table.get("steps_between_checkpoints", -1)
    sizes: dict[str, Any] = {}
    for key in ("optimization_groups", "layer_parameters"):
        if model.get(key):
            raise BadKey(("model", key), f"model.{key}: checkpoints of given layers are not emulated")
    if model.get("type") == "transformer":
        sizes = {"total_bytes": transformer_bytes(model)}
    elif size := model.get("model_size_bytes", model.get("model_size", table.get("model_size", 10240))):
        sizes = {"files": [size]}  # 10240: DLIO's default
    return {
        **sizes,
        "ranks": "all" if model.get("type") == "transformer" or table.get("type") == "all_ranks" else "first",
        "every_steps": max(0, steps) if trains else 0,
        "every_epochs": table.get("epochs_between_checkpoints", 1) if trains and steps <= 0 else 0,
        "writes": 0 if trains else max(0, table.get("num_checkpoints_write", -1)),
        "reads": 0 if trains else max(0, table.get("num_checkpoints_read", -1)),
        "fsync": table.get("fsync", False),
    }


def transformer_bytes(model: Mapping[str, Any]) -> int:
    """Bytes of parameters and optimizer state of a transformer, over all ranks: each parameter once, and three
    values of it (master copy, two moments) in the optimizer.

    Parameters as DLIO's ``BaseCheckpointing.get_num_parameters`` counts them: embedding and output layer, and
    in each layer attention with grouped keys and values, a gated MLP and two norms. Llama 3 8B, 70B and 405B
    come to 105, 911 and 5292 GiB, which MLPerf Storage prints as 105 GB, 912 GB and 5.29 TB.
    """
    shape = model.get("transformer", {})
    for key in ("model_datatype", "optimizer_datatype"):
        if (datatype := model.get(key, "fp32")) not in DATATYPES:
            raise BadKey(
                ("model", key),
                f"model.{key}: {shown(datatype)} is not known; {did_you_mean(str(datatype), DATATYPES)}",
            )
    hidden, ffn = shape.get("hidden_size", 2048), shape.get("ffn_hidden_size", 8192)
    if shape.get("num_attention_heads", 32) < 1:
        raise BadKey(
            ("model", "transformer", "num_attention_heads"), "num_attention_heads must be at least 1"
        )
    kv = hidden // shape.get("num_attention_heads", 32) * shape.get("num_kv_heads", 8)
    layer = 2 * hidden + hidden * (hidden + 2 * kv) + hidden * hidden + 3 * hidden * ffn
    parameters = layer * model.get("num_layers", 0) + 2 * shape.get("vocab_size", 32000) * hidden + hidden
    each = (
        DATATYPES[model.get("model_datatype", "fp16")]
        + 3 * DATATYPES[model.get("optimizer_datatype", "fp32")]
    )
    return int(parameters * each)
