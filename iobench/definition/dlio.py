"""Reads DLIO's workload files: their tables and keys (``dlio_keys``) are converted to those of a ``Workload``,
with the meaning that release 2.0.0 gives them (dlio_benchmark/main.py, utils/config.py, and its folders reader and
data_loader). Keys that this release ignores are listed among those without effect."""

import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from mlhpc.errors import did_you_mean, shown
from mlhpc.iobench.definition.dlio_keys import (
    DATATYPES,
    FORMATS,
    NO_EFFECT,
    NUMBERS,
    ORIGIN,
    OWN_LAYOUT,
    TABLES,
    USED,
    WORDS,
    Keys,
)
from mlhpc.iobench.definition.fields import LARGEST

LOADERS = ("pytorch", "tensorflow")
"""The loaders whose cost can be measured."""
TENSORFLOW_BUFFER = 256 * 1024
"""Bytes of each read of a TFRecord file if ``transfer_size`` is not set (TFRecordDataset, buffer_size)."""


class BadKey(Exception):
    """Raised for a value that cannot be converted; ``keys`` is the value's position in the file."""

    def __init__(self, keys: Keys, problem: str) -> None:
        super().__init__(f"{'.'.join(keys)}: {problem}")
        self.keys = keys


def convert(tables: Mapping[str, Any], name: str) -> tuple[dict[str, Any], dict[Keys, Keys]]:
    """Convert a DLIO file to the tables of a ``Workload``; also returns the position of each key in DLIO's file.
    ``name``: the workload's name if the file does not state one.

    Raises BadKey for values that this tool does not emulate.
    """
    if isinstance(tables.get("model"), str):  # the name of a DLIO plugin, not a table
        tables = {**tables, "model": {"name": tables["model"]}}
    without_effect = _checked(tables) | _ignored(tables)
    model, workflow = _table(tables, "model"), _table(tables, "workflow")
    reader = "data_reader" if "data_reader" in tables else "reader"
    workload: dict[str, Any] = {
        "name": str(model.get("name", name)),
        "suite": "dlio",
        "without_effect": sorted(without_effect),
        "metric": _metric(tables),
        "generate_data": bool(workflow.get("generate_data", False)),
    }
    storage = _storage(_table(tables, "storage"), str(_table(tables, "dataset").get("data_folder", "")))
    if storage:
        if workflow.get("checkpoint"):
            raise BadKey(("workflow", "checkpoint"), "to an object store, not emulated")
        without_effect.discard("dataset.data_folder")
        workload |= {"storage": storage, "without_effect": sorted(without_effect)}
    # A DLIO file that only generates data has no training, but ``io run`` reads the data nevertheless.
    if workflow.get("train", True) or (workflow.get("generate_data") and "dataset" in tables):
        workload |= {
            "dataset": _dataset(_table(tables, "dataset"), _table(tables, "reader") | _table(tables, reader)),
            "reader": _reader(_table(tables, reader), _table(tables, "dataset")),
            "train": _train(_table(tables, "train")),
        }
    if workflow.get("evaluation"):
        evaluation = _table(tables, "evaluation")
        workload["evaluation"] = {
            "every_epochs": evaluation.get("epochs_between_evals", 1),
            "first_epoch": evaluation.get("eval_after_epoch", 1),
            "computation": _time(evaluation, "eval_time"),
        }
    if workflow.get("checkpoint"):
        workload["checkpoint"] = _checkpoint(
            _table(tables, "checkpoint"), model, bool(workflow.get("train", True))
        )
    return workload, {keys: (reader, *origin[1:]) if origin[0] == "reader" else origin
                      for keys, origin in ORIGIN.items()}  # fmt: skip


def _ignored(tables: Mapping[str, Any]) -> set[str]:
    """Keys that release 2.0.0 ignores for the workload's format."""
    dataset, reader = _table(tables, "dataset"), "data_reader" if "data_reader" in tables else "reader"
    if dataset.get("format", "tfrecord") == "tfrecord":
        return {"dataset.compression"} & {f"dataset.{key}" for key in dataset}
    return {f"{reader}.transfer_size"} & {f"{reader}.{key}" for key in _table(tables, reader)}


def _checked(tables: Mapping[str, Any]) -> set[str]:
    """Dotted names of the keys without effect, with suggestions for those that DLIO does not have."""
    without_effect: set[str] = set()
    for top, value in tables.items():
        if top not in TABLES:
            without_effect.add(_named(str(top), str(top), TABLES, NO_EFFECT[""]))
        elif not isinstance(value, Mapping):
            raise BadKey((top,), "not a table")
        else:
            _check_table(value, (top,), "reader" if top == "data_reader" else top, without_effect)
    return without_effect


def _check_table(table: Mapping[str, Any], place: Keys, known_as: str, without_effect: set[str]) -> None:
    used, idle = USED.get(known_as, set()), NO_EFFECT.get(known_as, set())
    for key, value in table.items():
        inner = f"{known_as}.{key}"
        if key not in used:
            without_effect.add(_named(".".join((*place, str(key))), str(key), used, idle))
        if inner in USED or inner in NO_EFFECT:
            if not isinstance(value, Mapping):
                raise BadKey((*place, key), "not a table")
            _check_table(value, (*place, key), inner, without_effect)
        elif inner in NUMBERS and not _is_number(value):
            raise BadKey((*place, key), f"{shown(value)} is not a number")
        elif inner in WORDS and not isinstance(value, str | bool):  # YAML parses ``off`` as false
            raise BadKey((*place, key), f"{shown(value)} is not a name")


def _named(name: str, key: str, used: Collection[str], idle: Collection[str]) -> str:
    """The ``name`` of a key without effect, followed by a suggestion if DLIO does not have the key."""
    return name if key in idle else f"{name} (DLIO has no such key; {did_you_mean(key, {*used, *idle})})"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST


def _table(tables: Mapping[str, Any], name: str) -> dict[str, Any]:
    return dict(tables.get(name, {}))


def _storage(table: dict[str, Any], data_folder: str) -> dict[str, Any]:
    """The table for an object store; empty for file systems. ``storage_root`` is the bucket, and ``data_folder`` a
    prefix in it, or the whole URL."""
    kind = table.get("storage_type", "local_fs")
    if kind in ("local_fs", "parallel_fs"):
        return {}
    if kind != "s3":
        raise BadKey(("storage", "storage_type"), f"{shown(kind)} is none of local_fs, parallel_fs, s3")
    options = _table(table, "storage_options")
    root = str(table.get("storage_root", "")).strip("./")
    url = data_folder if data_folder.startswith("s3://") else f"s3://{root}/{data_folder.strip('./')}"
    if not url.removeprefix("s3://").strip("/"):
        raise BadKey(("storage",), "storage_root is missing: the name of the bucket")
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
        hint = did_you_mean(str(kind), FORMATS)
        raise BadKey(("dataset", "format"), f"{shown(kind)} is not emulated; {hint}")
    dataset = {
        "format": FORMATS[kind],
        "files": table.get("num_files_train", 8),
        "eval_files": table.get("num_files_eval", 0),
        "samples_per_file": table.get("num_samples_per_file", 1),
        "sample_bytes": _sample_bytes(table),
        "sample_bytes_stdev": _either(table, "record_length_bytes_stdev", "record_length_stdev", 0),
        "compression": "none" if kind == "tfrecord" else table.get("compression", "none"),
        "compression_level": table.get("compression_level", 4),
    }
    if kind in OWN_LAYOUT and not table.get("record_dims"):
        dataset |= {
            "layout": "dlio",
            "file_prefix": table.get("file_prefix", "img"),
            "subfolders": table.get("num_subfolders_train", 0),
            "eval_subfolders": table.get("num_subfolders_eval", 0),
        }
    if table.get("enable_chunking"):
        dataset["chunk_bytes"] = table.get("chunk_size", 0)
    return dataset


def _sample_bytes(table: dict[str, Any]) -> Any:
    """The size of a sample in bytes: computed from ``record_dims`` and ``record_element_type`` (releases after
    2.0.0), otherwise the record length."""
    dims, kind = table.get("record_dims"), table.get("record_element_type", "uint8")
    if not dims:
        return _either(table, "record_length_bytes", "record_length", 64 * 1024)
    try:
        return math.prod(int(size) for size in dims) * np.dtype(str(kind)).itemsize
    except (TypeError, ValueError):
        raise BadKey(
            ("dataset", "record_dims"),
            f"{shown(dims)} of {shown(kind)} is not a list of sizes and a type of NumPy",
        ) from None


def _either(table: dict[str, Any], new: str, old: str, default: int) -> Any:
    return table.get(new, table.get(old, default))


def _reader(table: dict[str, Any], dataset: dict[str, Any]) -> dict[str, Any]:
    """Return how the loader reads: PyTorch's loader draws samples and opens the file of each; TensorFlow's goes
    through the files one by one and shuffles samples in memory."""
    kind, shuffled = dataset.get("format", "tfrecord"), {}
    resized = _either(dataset, "record_length_bytes_resize", "record_length_resize", 0)
    for key in ("file_shuffle", "sample_shuffle"):
        value = table.get(key, "off")
        if value not in ("off", "seed", "random", False):
            raise BadKey(("reader", key), f"{shown(value)} is none of off, seed, random")
        shuffled[key] = value in ("seed", "random")
    streams = table.get("data_loader", "tensorflow") == "tensorflow"
    threads, prefetch = table.get("read_threads", 1), table.get("prefetch_size", 2)
    if not streams and threads:  # PyTorch's prefetch is per worker; 0 means its default of two
        prefetch = threads * (math.ceil(prefetch / threads) or 2)
    in_memory = table.get("read_type", "on_demand") == "memory"
    return {
        "file_order": "shuffled" if streams and shuffled["file_shuffle"] else "sequential",
        "sample_order": "shuffled" if not streams and shuffled["sample_shuffle"] else "sequential",
        "reopen": not streams and not in_memory and not table.get("odirect", False),
        "batch_size": table.get("batch_size", 1),
        "eval_batch_size": table.get("batch_size_eval", 1),
        "threads": threads,
        "prefetch": max(1, prefetch),
        "loader": loader if (loader := table.get("data_loader", "tensorflow")) in LOADERS else "none",
        "transfer_bytes": (table.get("transfer_size") or TENSORFLOW_BUFFER) if kind == "tfrecord" else 0,
        "handed_bytes": 0 if kind == "tfrecord" else max(0, resized),  # records are passed to Python whole
        "direct": table.get("odirect", False),
        "load_all": in_memory,
        "preprocess": _time(table, "preprocess_time"),
    }


def _train(table: dict[str, Any]) -> dict[str, Any]:
    return {
        "epochs": table.get("epochs", 1),
        "epoch_steps": max(0, table.get("total_training_steps", -1)),  # counted anew in each epoch
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
    for key in ("optimization_groups", "layer_parameters"):
        if model.get(key):
            raise BadKey(("model", key), "checkpoints of given layers are not emulated")
    transformer = model.get("type") == "transformer"
    sizes = {"total_bytes": transformer_bytes(model)} if transformer else {"files": _files(table, model)}
    return {
        **sizes,
        "ranks": "all" if transformer or table.get("type") == "all_ranks" else "first",
        "every_steps": max(0, steps) if trains else 0,
        "steps_of": "epoch",
        "every_epochs": table.get("epochs_between_checkpoints", 1) if trains and steps < 0 else 0,
        "first_epoch": table.get("checkpoint_after_epoch", 1),
        "writes": 0 if trains else max(0, table.get("num_checkpoints_write", -1)),
        "reads": 0 if trains else max(0, table.get("num_checkpoints_read", -1)),
        "fsync": table.get("fsync", False),
    }


def _files(table: dict[str, Any], model: dict[str, Any]) -> list[Any]:
    """The size in bytes of each file of a checkpoint: one for the model, one for the optimizer, and one per layer;
    all layers have the same parameters. Releases after 2.0.0 have a table ``model``, and no layers unless these
    are listed."""
    size = model.get("model_size_bytes", model.get("model_size", table.get("model_size", 10240)))
    groups, layers = table.get("optimization_groups", []), table.get("layer_parameters")
    if layers is None:
        layers = [] if set(model) - {"name"} else [17371, 24740228]
    for key, values in (("optimization_groups", groups), ("layer_parameters", layers)):
        if not isinstance(values, list) or not all(_is_number(value) for value in values):
            raise BadKey(("checkpoint", key), f"{shown(values)} is not a list of numbers")
    files = [size] if size else []
    if groups := [group for group in groups if group > 0]:
        files.append(3 * sum(groups))  # two moments per parameter, and the parameters
    parallel = table.get("tensor_parallelism", 1)
    count = table.get("num_layers", 1) + (parallel if parallel > 1 else 0)
    each = sum(layer for layer in layers if layer > 0)
    return files + ([each] * count if each and table.get("num_layers", 1) > 0 else [])


def transformer_bytes(model: Mapping[str, Any]) -> int:
    """Bytes of a transformer's parameters and optimizer state over all ranks: each parameter once, and three
    values per parameter (master copy and two moments) in the optimizer.

    Parameters are counted as in DLIO's ``BaseCheckpointing.get_num_parameters``: embedding and output layer, and
    in each layer attention with grouped keys and values, a gated MLP and two norms. Llama 3 8B, 70B and 405B come
    to 105, 911 and 5292 GiB, which MLPerf Storage prints as 105 GB, 912 GB and 5.29 TB.
    """
    shape = model.get("transformer", {})
    for key in ("model_datatype", "optimizer_datatype"):
        if (datatype := model.get(key, "fp32")) not in DATATYPES:
            hint = did_you_mean(str(datatype), DATATYPES)
            raise BadKey(("model", key), f"{shown(datatype)} is not known; {hint}")
    hidden, ffn = shape.get("hidden_size", 2048), shape.get("ffn_hidden_size", 8192)
    if shape.get("num_attention_heads", 32) < 1:
        raise BadKey(("model", "transformer", "num_attention_heads"), "must be at least 1")
    kv = hidden // shape.get("num_attention_heads", 32) * shape.get("num_kv_heads", 8)
    layer = 2 * hidden + hidden * (hidden + 2 * kv) + hidden * hidden + 3 * hidden * ffn
    parameters = layer * model.get("num_layers", 0) + 2 * shape.get("vocab_size", 32000) * hidden + hidden
    weights, optimizer = model.get("model_datatype", "fp16"), model.get("optimizer_datatype", "fp32")
    return int(parameters * (DATATYPES[weights] + 3 * DATATYPES[optimizer]))
