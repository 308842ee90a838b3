"""The runs of a study: all combinations of the varied settings, checked before anything starts."""

import csv
import hashlib
import json
import math
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from mlhpc.benchmarks import load, registry
from mlhpc.benchmarks.schema import COMPUTATION, Run
from mlhpc.benchmarks.toml_lines import parse_value
from mlhpc.common.data import manifest
from mlhpc.common.data.manifest import Manifest
from mlhpc.common.data.sharding import divide_batch
from mlhpc.common.ranks.local import set_words
from mlhpc.emulated_step import refuse, require_supported
from mlhpc.errors import UserError, did_you_mean
from mlhpc.quantities import count
from mlhpc.record.series import Value
from mlhpc.run_processes import in_slurm
from mlhpc.submission.report.study import CELL, GLOBAL_BATCH, PLACES, SERVERS, UPDATES, family, flat
from mlhpc.unused import unused

STORAGE = ("shared", "staged")
"""Values of ``--vary storage`` other than staging folders."""
KINDS_OF_UPDATES = ("synchronous", "asynchronous")
NO_SETTINGS = (*PLACES, SERVERS, UPDATES)
"""Keys of ``--vary`` other than the settings of a run."""
AFTER_A_STUDY = (
    "training.max_epochs",
    "training.eval_batch_size",
    "training.epochs_between_evals",
    "training.eval_offset_epochs",
    "training.eval_steps",
    "training.freeze_below",
    "emulation.eval_step_s",
)
"""Evaluations and later epochs, which a study does not reach."""
EMULATED = "applies to computed steps, not to emulated ones"
MAX_NAME = 200
"""Maximum length of the description in a cell's folder name; file systems allow 255 bytes in total."""


@dataclass(frozen=True)
class Sweep:
    """The requested study. ``axes``: the values of each varied setting; every combination is a cell."""

    benchmark: str
    preset: str
    settings: tuple[str, ...]
    axes: dict[str, list[Value]]
    data: Path
    stage: Path | None
    out: Path
    repeats: int
    warmup_steps: int
    steps: int


@dataclass(frozen=True)
class PlannedCell:
    """A cell of the study, before it is run. ``arguments``: the arguments of ``mlhpc run``. ``name``: the cell's
    folder, named after the varied settings and a digest of all settings; a cell created by an earlier call, which
    varied other settings, keeps its name."""

    run: Run
    arguments: tuple[str, ...]
    data: Path
    stage: str | None
    ranks: int
    settings: dict[str, Value]
    name: str


def parse_axes(texts: Sequence[str]) -> dict[str, list[Value]]:
    """The values of each key, from texts in the form ``KEY=A,B``. Raises UserError for any other form, or for a
    repeated key."""
    axes: dict[str, list[Value]] = {}
    for text in texts:
        key, equals, listed = text.partition("=")
        key = key.strip()
        if not equals or not key or not listed.strip():
            raise UserError(f"--vary {text!r} must have the form KEY=A,B, such as batch=8,16")
        if key not in NO_SETTINGS and "." not in key:
            settings = "or any setting of --set, such as network.width"
            raise UserError(f"--vary {key}: {did_you_mean(key, NO_SETTINGS)}; {settings}")
        if key in axes:
            raise UserError(f"--vary {key} is repeated; list all its values in one option")
        values = _values(key, listed)
        if not values:
            raise UserError(f"--vary {text!r} has no values; write KEY=A,B, such as batch=8,16")
        axes[key] = values
    return axes


def _values(key: str, listed: str) -> list[Value]:
    words = [word.strip() for word in next(csv.reader([listed], skipinitialspace=True))]
    try:
        values = tomllib.loads(f"v = [{listed}]")["v"]
    except tomllib.TOMLDecodeError:
        values = [parse_value(word) for word in words]  # bare words are strings
    types = str if key == "data" else Value | list  # a folder may be called 007; a date stays a string
    if not all(isinstance(value, types) for value in values):
        values = words
    return list({repr(value): value for value in values if value != ""}.values())


def plan(sweep: Sweep) -> list[PlannedCell]:
    """All cells of the study, checked before any of them is run.

    Raises UserError for an unknown or invalid setting, a batch that cannot be divided among the ranks, or a data
    set that is missing, belongs to a different benchmark or has too few samples.
    """
    _check_options(sweep)
    cells = []
    for values in product(*sweep.axes.values()):
        chosen = dict(zip(sweep.axes, values, strict=True))
        try:
            cells.append(_cell(sweep, chosen))
        except UserError as error:
            where = ", ".join(f"{key}={value}" for key, value in chosen.items())
            raise UserError(f"{where}: {error}" if where else str(error)) from None
    _require_effect(sweep, cells)
    datasets: dict[Path, Manifest | None] = {}
    select = registry.find(sweep.benchmark).select
    for cell in cells:
        if cell.data not in datasets:
            datasets[cell.data] = _dataset(cell.data)
        if (dataset := datasets[cell.data]) is None:
            continue
        benchmark = dataset.facts.get("benchmark")
        if benchmark not in (None, sweep.benchmark):
            raise UserError(
                f"{cell.data} is a data set of {benchmark}, not of {sweep.benchmark}; choose another"
            )
        if select:
            registry.load_object(select)(dataset, cell.run.data)
    return list({cell.name: cell for cell in cells}.values())  # 1 and 1.0 are one value


def _require_effect(sweep: Sweep, cells: Sequence[PlannedCell]) -> None:
    """Raise UserError for a varied setting that no cell uses, because its effect would be noise."""
    for key in sweep.axes:
        setting = ".".join(key.split(".")[:2])
        reasons = [_unused(cell).get(setting, "") for cell in cells]
        if all(reasons):
            raise UserError(f"--vary {key} would change nothing in this study: it {reasons[0]}")


def _unused(cell: PlannedCell) -> dict[str, str]:
    """The settings (dotted names) that change nothing in a cell with these other settings, each with the reason,
    which begins with a verb."""
    run, staged = cell.run, cell.stage is not None
    network: dict[str, str] = {}
    if run.emulation.enabled and not run.training.checkpoint_epochs:  # a checkpoint has the whole network
        network = dict.fromkeys(type(run.network).model_fields, EMULATED)
    described = set(type(run.data).model_fields) - run.data.chosen
    described |= set() if staged else {"eval_samples"}
    tables = {
        "network": network,
        "data": dict.fromkeys(described, "describes the data set; vary data=DIR,DIR"),
        "target": dict.fromkeys(type(run.target).model_fields, "applies to runs to the target"),
    }
    reasons = unused(run, cell.ranks, staged=staged)
    reasons |= {f"{table}.{key}": why for table, keys in tables.items() for key, why in keys.items()}
    reasons |= dict.fromkeys(AFTER_A_STUDY, "applies after the steps of a study")
    reasons |= dict.fromkeys(COMPUTATION if run.emulation.enabled else (), EMULATED)
    if not run.study.earlier_epochs:
        reasons["loading.cache"] = "applies after the first epoch; add --set study.earlier_epochs=1"
    return reasons


def _check_options(sweep: Sweep) -> None:
    for key in ("batch", "ranks"):
        for value in sweep.axes.get(key, ()):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise UserError(f"--vary {key}={value}: values must be whole numbers of at least 1")
    if "batch" in sweep.axes and GLOBAL_BATCH in sweep.axes:
        raise UserError(f"--vary batch and --vary {GLOBAL_BATCH} determine each other; vary only one of them")
    _check_servers(sweep)
    for storage in sweep.axes.get("storage", ()):
        if storage not in STORAGE and os.sep not in str(storage):
            folders = "or a folder to stage to, such as /dev/shm/stage"
            raise UserError(f"--vary storage={storage}: {did_you_mean(str(storage), STORAGE)}; {folders}")


def _check_servers(sweep: Sweep) -> None:
    numbers = sweep.axes.get(SERVERS, [])
    if not numbers and UPDATES in sweep.axes:
        raise UserError(f"--vary {UPDATES} requires parameter servers; add --vary {SERVERS}=0,1,2,4")
    for value in sweep.axes.get(UPDATES, ()):
        if value not in KINDS_OF_UPDATES:
            raise UserError(f"--vary {UPDATES}={value}: {did_you_mean(str(value), KINDS_OF_UPDATES)}")
    for value in numbers:
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise UserError(
                f"--vary {SERVERS}={value}: values must be whole numbers of at least 0 (0: an all-reduce)"
            )
    if numbers and not registry.find(sweep.benchmark).servers_study:
        able = " and ".join(b.name for b in registry.benchmarks().values() if b.servers_study)
        raise UserError(f"--vary {SERVERS} is not supported for {sweep.benchmark} (supported: {able})")
    if numbers and (sweep.stage or any(value != "shared" for value in sweep.axes.get("storage", ()))):
        raise UserError(f"--vary {SERVERS} reads the data set in place; omit --stage and --vary storage")
    if numbers and in_slurm(os.environ):
        raise UserError(f"--vary {SERVERS} requires a single machine; start the study outside a Slurm job")


def _cell(sweep: Sweep, chosen: dict[str, Value]) -> PlannedCell:
    ranks = _ranks_of(chosen)
    settings = [*sweep.settings, "division=open", f"study.steps={sweep.steps}"]
    settings.append(f"study.warmup_steps={sweep.warmup_steps}")
    settings += [f"{key}={load.toml_value(value)}" for key, value in chosen.items() if key not in NO_SETTINGS]
    if "batch" in chosen:
        settings.append(f"hyperparameters.global_batch_size={int(chosen['batch']) * ranks}")
    run = load.load(sweep.benchmark, sweep.preset, settings)
    benchmark = registry.find(sweep.benchmark)
    _require_cell(run, benchmark, chosen)
    stage = _stage_of(sweep, chosen)
    data = Path(_absolute(chosen.get("data", sweep.data)))
    if codec := str(chosen.get("codec", "")):
        data = _encoded(data, codec, benchmark)
    places: dict[str, Value] = {
        **({"codec": codec} if codec else {}),
        "batch": divide_batch(run.hyperparameters.global_batch_size, ranks),
        "ranks": ranks,
        "data": Path(family(str(data), codec)).name,
        "storage": "staged" if stage else "shared",
    }
    if in_slurm(os.environ):  # the same number of ranks on more nodes is a different cell
        places["ranks_per_node"] = _ranks_per_node(ranks, os.environ)
    if SERVERS in chosen:
        places[SERVERS] = chosen[SERVERS]
        places[UPDATES] = chosen.get(UPDATES, KINDS_OF_UPDATES[0]) if chosen[SERVERS] else KINDS_OF_UPDATES[0]
    facts = {**places, **flat(run)}
    arguments = [*([] if SERVERS in facts else [sweep.benchmark]), "--preset", sweep.preset]
    arguments += set_words(settings)
    if SERVERS in facts:
        arguments += ["--workers", str(ranks), "--servers", str(facts[SERVERS])]
        arguments += ["--asynchronous"] if facts[UPDATES] == "asynchronous" else []
    name = _folder_name(sweep, facts, data, stage)
    return PlannedCell(run, tuple(arguments), data, stage, ranks, facts, name)


def _ranks_of(chosen: Mapping[str, Value]) -> int:
    tasks = int(os.environ.get("SLURM_NTASKS", 1)) if in_slurm(os.environ) else None
    ranks = int(chosen.get("ranks", tasks or 1))
    if tasks and ranks > tasks:
        raise UserError(f"--vary ranks={ranks} exceeds the {count(tasks, 'task')} of this job")
    return ranks


def _require_cell(run: Run, benchmark: registry.Benchmark, chosen: Mapping[str, Value]) -> None:
    """Raise UserError if a cell cannot be measured with the settings of ``run``."""
    require_supported(run)
    if SERVERS in chosen:
        refuse(run, f"a study of {SERVERS}")
        if run.study.earlier_epochs:
            raise UserError(f"study.earlier_epochs cannot be combined with {SERVERS}; omit it")
    for check in (benchmark.check, benchmark.servers_check if SERVERS in chosen else ""):
        if check:
            registry.load_object(check)(run)
    if not run.study.steps:
        raise UserError("study.steps=0 trains to the target; a study requires at least 1")
    run.study.cut(run.data.train_samples // run.hyperparameters.global_batch_size)


def _stage_of(sweep: Sweep, chosen: Mapping[str, Value]) -> str | None:
    """The staging folder; None if the data set is read in place."""
    storage = str(chosen.get("storage", "staged" if sweep.stage else "shared"))
    if storage == "staged" and sweep.stage is None:
        raise UserError("--vary storage=staged requires a node-local folder; pass --stage")
    folder = {"shared": None, "staged": sweep.stage}.get(storage, storage)
    return _absolute(folder) if folder else None


def _folder_name(sweep: Sweep, facts: Mapping[str, Value], data: Path, stage: str | None) -> str:
    """The name of a cell's folder: that of its existing folder, or a new name made of the varied settings and a
    digest."""
    identity = json.dumps([facts, str(data), stage], sort_keys=True)
    digest = hashlib.sha256(identity.encode()).hexdigest()[:8]
    existing = next((path.parent.name for path in sweep.out.glob(f"*{digest}/{CELL}")), None)
    labels = [
        re.sub(r"[^\w.=+-]+", "_", f"{key.rpartition('.')[2]}={facts[key]}", flags=re.A) for key in sweep.axes
    ]
    return existing or f"{'-'.join(labels or [sweep.preset])[:MAX_NAME]}-{digest}"


def _absolute(folder: object) -> str:
    """The absolute path of ``folder``, with ``~`` expanded, because the shell expands only the first ``~`` in the
    list of values after ``--vary``."""
    return os.path.abspath(os.path.expanduser(str(folder)))


def _encoded(data: Path, codec: str, benchmark: registry.Benchmark) -> Path:
    """The folder with the samples of the data set ``data`` stored with ``codec``. If ``data`` is DIR or
    DIR-OTHERCODEC, that folder is DIR or DIR-CODEC. Raises UserError if it does not exist or has a different
    codec."""
    makes = benchmark.convert.codecs if benchmark.convert else ()
    candidates = dict.fromkeys((benchmark.published_codec, *makes))
    if codec not in candidates:
        raise UserError(did_you_mean(codec, candidates))
    origin = Path(family(str(data), _codec_of(data, benchmark)))
    other = origin.with_name(f"{origin.name}-{codec}")
    for path in (data, origin, other):
        if path.is_dir() and _codec_of(path, benchmark) == codec:
            return path
    if other.is_dir():
        raise UserError(
            f"{other} has codec {_codec_of(other, benchmark)}; move it away, and convert {data} again"
        )
    if codec == benchmark.published_codec and codec not in makes:
        raise UserError(f"{origin} does not have codec {codec}; pass the original data set as --data")
    make = f"mlhpc data convert {benchmark.name} {data} {other} --codec {codec}"
    raise UserError(f"{other}: no such data set; generate it with {make}")


def _codec_of(data: Path, benchmark: registry.Benchmark) -> str:
    """The codec that a data set's manifest states; without a manifest, the codec of the published data set."""
    dataset = _dataset(data)
    facts = dataset.facts if dataset else {}
    plain = facts.get("gzip") is False  # generated CosmoFlow data sets have no codec in the manifest
    return str(facts.get("codec", facts.get("format", "plain" if plain else benchmark.published_codec)))


def _dataset(data: Path) -> Manifest | None:
    """The manifest of a data set; None for a data set without one, since listing the files instead can take
    minutes."""
    if not data.is_dir():
        raise UserError(f"{data}: no such data set; generate one with mlhpc data make, or pass --data")
    return manifest.load(data) if (data / manifest.NAME).exists() else None


def srun_options(ranks: int, env: Mapping[str, str]) -> list[str]:
    """The srun options for ``ranks`` ranks on as few nodes as possible."""
    return [f"--ntasks={ranks}", f"--nodes={math.ceil(ranks / _ranks_per_node(ranks, env))}"]


def _ranks_per_node(ranks: int, env: Mapping[str, str]) -> int:
    """Number of tasks per node in this Slurm job, rounded up."""
    return math.ceil(int(env.get("SLURM_NTASKS", ranks)) / int(env.get("SLURM_JOB_NUM_NODES", 1)))
