"""Comparing loaders: different samples, order or values are reported."""

import io
import json
import re
import tracemalloc
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from mlhpc.common.data import bench_report, ceilings, loader_bench
from mlhpc.common.data.ceilings import Ceilings
from mlhpc.common.data.codecs import dtypes
from mlhpc.common.data.loader_bench import Way
from mlhpc.errors import UserError

IMAGES = np.random.default_rng(1).standard_normal((12, 40, 30, 3)).astype(np.float32)
LABELS = np.arange(12) % 5
CEILINGS = Ceilings(threads=2, copy=2e9, cold=1e8, warm=1e9, read_cpu_s=1e-9)


@dataclass
class Fake:
    """Hands out batches of three."""

    images: np.ndarray
    labels: np.ndarray
    steps: int = 4
    local_batch_size: int = 3
    bytes_read: int = 0

    def train_epoch(self, epoch):
        for step in range(self.steps):
            part = slice(3 * step, 3 * step + 3)
            self.bytes_read += 1000
            yield self.images[part] + epoch, self.labels[part]


def epoch(way):
    swapped = np.r_[1, 0, 2:12]
    loaders = {
        "first": lambda: Fake(IMAGES, LABELS),
        "other layout": lambda: Fake(np.asfortranarray(IMAGES), LABELS),
        "rounded": lambda: Fake(IMAGES + np.float32(1e-3), LABELS),
        "coarse": lambda: Fake(IMAGES + np.float32(0.2), LABELS),
        "swapped": lambda: Fake(IMAGES[swapped], LABELS[swapped]),
        "swapped images alone": lambda: Fake(IMAGES[swapped], LABELS),
        "short": lambda: Fake(IMAGES, LABELS, steps=3),
        "one number": lambda: Fake(np.where(np.arange(IMAGES.size).reshape(IMAGES.shape) == 7, 9, IMAGES), LABELS),
    }  # fmt: skip
    if way.loader not in loaders:
        raise UserError(f"{way.loader} is not installed")
    return loader_bench.measure(loaders[way.loader](), [])


def compared(loaders, monkeypatch, close, lossy=False):
    monkeypatch.setattr(bench_report, "_in_process", lambda epoch, way: epoch(way))
    ways = [Way(Path("data"), loader, 3, 1) for loader in loaders]
    measured, reasons = bench_report.run_all(ways, epoch, rounds=2)
    agree = bench_report.agreements(measured, close, lambda data: lossy)
    console = Console(file=io.StringIO(), width=150)
    bench_report.show(measured, reasons, agree, CEILINGS, None, console)
    return not any(each.startswith("NO") for each in agree.values()), console.file.getvalue()


def row(text, way):
    (matching,) = [line for line in text.splitlines() if line.startswith(f" {way}  ")]
    return re.split(r"\s{2,}", matching.strip())


@pytest.mark.parametrize(
    ("other", "close", "same", "said"),
    [
        ("other layout", 0.0, True, "bit for bit"),
        ("rounded", 0.01, True, "to 0.001"),
        ("rounded", 0.0, False, "NO"),
        ("coarse", 0.01, False, "NO"),
        ("swapped", 0.01, False, "NO"),
        ("swapped images alone", 0.01, False, "NO"),
        ("short", 0.01, False, "NO"),
        ("one number", 0.0, True, "to "),
    ],
)
def test_differences_between_loaders_are_reported(other, close, same, said, monkeypatch):
    """One changed number among 43 200 is reported."""
    agree, text = compared(("first", other), monkeypatch, close)
    assert row(text, "first")[-1] == "bit for bit"
    assert row(text, other)[-1].startswith(said) and agree is same


def test_a_lossy_data_set_may_have_other_values_but_not_other_samples(monkeypatch):
    same, text = compared(("first", "coarse"), monkeypatch, 0.0, lossy=True)
    assert same and row(text, "coarse")[-1] == "to 0.2"
    same, _ = compared(("first", "swapped"), monkeypatch, 0.0, lossy=True)
    assert not same


def test_a_loader_that_cannot_run_is_reported_and_the_others_are_compared(monkeypatch):
    same, text = compared(("missing", "first", "other layout"), monkeypatch, 0.0)
    assert same and row(text, "missing")[1] == "-" and "missing is not installed" in text
    assert float(row(text, "first")[1].replace(",", "")) > 0
    with pytest.raises(UserError, match="missing is not installed"):
        compared(("missing",), monkeypatch, 0.0)


def test_bytes_are_those_of_one_epoch():
    figures = epoch(Way(Path("data"), "first", 3, 1))
    assert figures.read == 4000 / 12
    assert figures.delivered == (IMAGES.nbytes + LABELS.nbytes) / 12


@pytest.mark.parametrize(
    ("warm", "cold", "cpu_s", "delivered", "bound"),
    [
        (500, 400, 1e-3, 1e6, "compute"),
        (500, 50, 1e-3, 1e6, "input: storage"),
        (50, 40, 10e-3, 1e6, "input: decoding"),
        (50, 40, 1.5e-3, 30e6, "input: memory"),
        (50, 40, 1.5e-3, 1e6, "input: reading"),
    ],
)
def test_the_verdict_names_what_a_step_waits_for(warm, cold, cpu_s, delivered, bound):
    """A step of 40 ms needs 100 samples/s; reading a sample's megabyte takes 1 ms of a processor, and memory is
    copied at 2 GB/s."""
    figures = loader_bench.Figures(warm, cold, 1e6, delivered, cpu_s, 0, 0, np.zeros(1, np.float32), 0)
    assert bench_report.verdict(Way(Path("data"), "threads", 4, 2), figures, CEILINGS, 0.04) == bound


def test_the_share_of_decoding_is_what_reading_leaves():
    figures = loader_bench.Figures(1, 1, 2e6, 1, 8e-3, 0, 0, np.zeros(1, np.float32), 0)
    assert bench_report.decoding(figures, CEILINGS) == pytest.approx(0.75)
    assert bench_report.decoding(figures._replace(read=0.0), CEILINGS) is None


def test_ceilings_are_of_the_files_and_the_machine(tmp_path):
    for name in "ab":
        (tmp_path / name).write_bytes(bytes(1 << 20))
    limits = ceilings.measure(sorted(tmp_path.iterdir()), 2)
    assert limits.threads == 2 and min(limits.copy, limits.cold, limits.warm) > 0 and limits.read_cpu_s > 0


def test_no_loader_exceeds_a_ceiling():
    """Whatever was measured, at random; also by ceilings that are far too low."""
    rng = np.random.default_rng(0)
    measured = {
        Way(Path("data"), "threads", batch, 1): [
            loader_bench.Figures(*rng.exponential(size=4), 0, 0, 0, np.zeros(1, np.float32), 0)
            for _ in range(3)
        ]
        for batch in range(1000)
    }
    low = Ceilings(threads=1, copy=0.5, cold=0.5, warm=0.5, read_cpu_s=0)
    limits = bench_report.raised(low, measured)
    rounds = [figures for each in measured.values() for figures in each]
    assert limits.copy == max(f.delivered * f.warm for f in rounds)
    assert limits.cold == max(f.read * f.cold for f in rounds)
    assert limits.warm == max(f.read * f.warm for f in rounds)
    assert bench_report.raised(CEILINGS, measured) == CEILINGS, "high ones stay"


def test_reading_small_files_takes_one_buffer_a_thread(tmp_path, monkeypatch):
    """Allocating a chunk for each file of some kilobytes made the ceiling of warm reads lower than
    what loaders reached."""
    for number in range(50):
        (tmp_path / f"{number:02}").write_bytes(bytes(12_600))
    monkeypatch.setattr(ceilings, "_COPIED", 1 << 10)
    monkeypatch.setattr(ceilings, "_ROUNDS", 1)
    allocated = []

    class Counted(bytearray):
        def __init__(self, size):
            allocated.append(size)
            super().__init__(size)

    monkeypatch.setattr(ceilings, "bytearray", Counted, raising=False)
    ceilings.measure(sorted(tmp_path.iterdir()), 2)
    assert len(allocated) <= 2 * 2, "for each thread, of the cold round and the warm one"


def test_the_copy_ceiling_takes_memory_for_cores_not_for_threads(tmp_path, monkeypatch):
    monkeypatch.setattr(ceilings, "_COPIED", 1 << 20)
    monkeypatch.setattr(ceilings.os, "sched_getaffinity", lambda process: {0, 1, 2})
    (tmp_path / "a").write_bytes(bytes(1 << 10))
    tracemalloc.start()
    limits = ceilings.measure([tmp_path / "a"], 64)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert limits.threads == 64 and peak < (2 * 3 << 20) + ceilings._CHUNK + (2 << 20)


def test_sentences_are_single_lines_in_a_pipe(monkeypatch):
    monkeypatch.setattr(bench_report, "_in_process", lambda epoch, way: epoch(way))
    measured, reasons = bench_report.run_all([Way(Path("data"), "first", 3, 1)], epoch, rounds=1)
    page = io.StringIO()
    one = Ceilings(threads=1, copy=2e9, cold=1e8, warm=1e9, read_cpu_s=1e-9)
    agree = bench_report.agreements(measured, 0.0, lambda data: False)
    bench_report.show(measured, reasons, agree, one, None, Console(file=page, width=40))
    lines = page.getvalue().splitlines()
    assert lines[0].startswith("samples/s") and lines[0].endswith("memory used by the loader")
    assert any(line.startswith("ceilings with 1 thread: ") and line.endswith("page cache") for line in lines)


def test_figures_as_json(monkeypatch):
    monkeypatch.setattr(bench_report, "_in_process", lambda epoch, way: epoch(way))
    way = Way(Path("data"), "first", 3, 1)
    measured, reasons = bench_report.run_all([way, Way(Path("data"), "missing", 3, 1)], epoch, rounds=1)
    agree = bench_report.agreements(measured, 0.0, lambda data: False)
    content = json.loads(json.dumps(bench_report.content(measured, reasons, agree, CEILINGS, 0.01)))
    (row,) = content["ways"]
    assert (row["loader"], row["local_batch_size"], row["bytes_read_per_sample"]) == ("first", 3, 4000 / 12)
    assert row["same_samples"] == "bit for bit" and "bound_by" in row and content["ceilings"]["copy"] == 2e9
    assert [each["loader"] for each in content["failed"]] == ["missing"]


@pytest.mark.parametrize("sets", [("lossy", "exact"), ("exact", "lossy")])
def test_a_lossy_data_set_may_differ_whichever_is_named_first(monkeypatch, sets):
    monkeypatch.setattr(bench_report, "_in_process", lambda epoch, way: epoch(way))
    loaders = {"lossy": "coarse", "exact": "first"}
    ways = [Way(Path(name), loaders[name], 3, 1) for name in sets]
    measured, _ = bench_report.run_all(ways, epoch, rounds=1)
    agree = bench_report.agreements(measured, 0.0, lambda data: data.name == "lossy")
    assert agree[ways[0]] == "bit for bit" and agree[ways[1]].startswith("to 0.2")
    unstated = bench_report.agreements(measured, 0.0, lambda data: False)
    assert unstated[ways[1]].startswith("NO")


def test_bfloat16_is_compared_by_value():
    values = np.array([1.0, -2.5, 3e38], np.float32)
    bits = dtypes.cast(values, "bfloat16")
    assert dtypes.as_float32(bits).tolist() == pytest.approx(values.tolist(), rel=2**-8)
    assert dtypes.as_float32(np.array([0.1], np.float16))[0] == np.float32(np.float16(0.1))
