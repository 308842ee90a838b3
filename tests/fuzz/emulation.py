"""Fuzzed readers of what others give to the I/O emulation and the models: workloads, machines, results."""

import json
import tempfile
from contextlib import redirect_stdout
from functools import cache
from importlib import resources
from io import StringIO
from pathlib import Path
from random import Random

from fuzz.mutate import HOSTILE, damaged_bytes
from fuzz.pages import damaged_json, mostly_undrawn, require_harmless

from mlhpc.cli import main
from mlhpc.errors import UserError
from mlhpc.iobench.definition import load
from mlhpc.iobench.definition.schema import Workload
from mlhpc.iobench.report.check import check_runs, read_result
from mlhpc.iobench.report.page import page
from mlhpc.iobench.simulate.measured import fit
from mlhpc.perf import machines

DLIO = b"""model: {name: unet3d, type: cnn, model_size: 499153191}
framework: pytorch
workflow: {generate_data: False, train: True, checkpoint: True}
dataset: &data
  data_folder: data/unet3d/
  format: npz
  num_files_train: 168
  num_samples_per_file: 1
  record_length_bytes: 146600628
  record_length_bytes_stdev: 68341808
reader: {data_loader: pytorch, batch_size: 7, read_threads: 4, file_shuffle: seed, sample_shuffle: seed}
train: {epochs: 5, computation_time: {mean: 0.323, stdev: 0.01, type: normal}}
checkpoint: {checkpoint_folder: checkpoints/unet3d, checkpoint_after_epoch: 5, epochs_between_checkpoints: 2}
metric: {au: 0.90}
"""

YAML_VALUES = (
    b"*data",
    b"&x [*x]",
    b"{a: *data}",
    b"\n"
    + b"".join(
        b"    - &b%d [%s]\n" % (n, b",".join([b"*b%d" % (n - 1) if n else b"9"] * 9)) for n in range(10)
    ),
    b"{a: &m0 {k: 1}, "
    + b", ".join(b"b%d: &m%d {<<: [*m%d, *m%d]}" % (n, n + 1, n, n) for n in range(30))
    + b"}",
    b"1" + b":1" * 50_000,
    b"[" + b"[]," * 50_000 + b"]",
    b"!!python/name:os.system",
    b"2001-02-30",
    b"[" * 3000,
    b"? ",
    b"1e400",
)


def _with_hostile_value(
    rng: Random, text: bytes, separators: tuple[bytes, ...], values: tuple[bytes, ...]
) -> bytes:
    """``text`` with the value behind one of its separators replaced."""
    separator = rng.choice(separators)
    parts = text.split(separator)
    index = rng.randrange(1, len(parts)) if len(parts) > 1 else 0
    end = min(
        (at for at in map(parts[index].find, (b"\n", b",", b"}")) if at >= 0), default=len(parts[index])
    )
    parts[index] = rng.choice(values) + parts[index][end:]
    return separator.join(parts)


def _json_values() -> tuple[bytes, ...]:
    return tuple(json.dumps(value).encode() for value in HOSTILE)


def workload_bytes(rng: Random) -> bytes:
    """A workload as DLIO's YAML (the first byte is then ``y``) or as TOML (``t``)."""
    if rng.random() < 0.5:
        kind, good, separators, values = b"y", DLIO, (b": ",), (*YAML_VALUES, *_json_values())
    else:
        name = rng.choice(sorted(load.names()))
        good = resources.files("mlhpc.iobench").joinpath(f"workloads/{name}.toml").read_bytes()
        kind, separators, values = (
            b"t",
            (b" = ",),
            (
                b"[" * 3000,
                b"1979-05-27",
                b"1\n" + b"a." * 20_000 + b"a = 1",
                b"1\n" + b"[x]\n" * 50_000,
                *_json_values(),
            ),
        )
    if rng.random() < 0.7:
        return kind + _with_hostile_value(rng, good, separators, values)
    return kind + damaged_bytes(rng, good)


def read_workload(data: bytes, scratch: Path) -> None:
    """What is read is a workload, and its own text is one too."""
    path = scratch / {b"y": "workload.yaml", b"t": "workload.toml"}[data[:1]]
    path.write_bytes(data[1:])
    read = load.load(str(path))
    assert isinstance(read, Workload)
    path = scratch / "again.toml"
    path.write_text(load.dumps(read))
    assert load.load(str(path)) == read


def machine_bytes(rng: Random) -> bytes:
    name = rng.choice(machines.known())
    good = resources.files(machines.SYSTEMS).joinpath(f"systems/{name}.toml").read_bytes()
    if rng.random() < 0.7:
        return _with_hostile_value(
            rng, good, (b" = ",), (b"[" * 3000, b"nan", b"1979-05-27", *_json_values())
        )
    return damaged_bytes(rng, good)


def read_machine(data: bytes, scratch: Path) -> None:
    """Figures are positive and finite."""
    path = scratch / "machine.toml"
    path.write_bytes(data)
    for key, figure in machines.machine(str(path)).figures.items():
        assert 0 <= figure < float("inf"), key


@cache
def results() -> tuple[dict[str, object], ...]:
    """Results of the same workload on one rank and, as if, on two."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        settings = [
            "dataset.files=4", "dataset.eval_files=0", "dataset.sample_bytes=4096", "dataset.sample_bytes_stdev=0",
            "train.epochs=1",
            "train.computation=0.001", "reader.batch_size=1", "reader.loader_cost.sample=0.0001",
        ]  # fmt: skip
        words = [word for setting in settings for word in ("--set", setting)]
        words += ["--data", f"{folder}/data"]
        with redirect_stdout(StringIO()):
            assert main(["-q", "io", "generate", "mlperf_cosmoflow", *words]) == 0
            assert main(["-q", "io", "run", "mlperf_cosmoflow", *words, "--out", str(out)]) == 0
        one = json.loads((out / "result.json").read_text())
    two = {**one, "ranks": 2, "rank_results": one["rank_results"] * 2}
    return one, two


def io_result_bytes(rng: Random) -> bytes:
    one, _ = results()
    return damaged_json(rng, one)


def read_io_result(data: bytes, scratch: Path) -> None:
    """Checked, drawn and simulated from, without a word of it becoming markup."""
    folder, other = scratch / "run", scratch / "other"
    for each, content in ((folder, data), (other, json.dumps(results()[1]).encode())):
        each.mkdir(exist_ok=True)
        (each / "result.json").write_bytes(content)
    result = read_result(folder)
    with mostly_undrawn(data):
        require_harmless(page(result))
    check_runs([folder, folder], 2**30)
    workload = Workload(**result["workload"])
    fit(workload, [result, read_result(other)])


READERS = (
    ("workload", workload_bytes, read_workload, (UserError,)),
    ("machine", machine_bytes, read_machine, (UserError,)),
    ("io_result", io_result_bytes, read_io_result, (UserError,)),
)
