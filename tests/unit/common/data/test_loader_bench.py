"""Comparing loaders: different samples, order or values are reported."""

import io
from dataclasses import dataclass

import numpy as np
import pytest
from rich.console import Console

from mlhpc.common.data import loader_bench
from mlhpc.errors import UserError

IMAGES = np.random.default_rng(1).standard_normal((12, 40, 30, 3)).astype(np.float32)
LABELS = np.arange(12) % 5


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
    if way not in loaders:
        raise UserError(f"{way} is not installed")
    return loader_bench.measure(
        loaders[way](), [], use=lambda item: None, wait=lambda: None, arrays=lambda item: item
    )


def compared(ways, monkeypatch, close):
    monkeypatch.setattr(loader_bench, "_in_process", lambda epoch, way: epoch(way))
    console = Console(file=io.StringIO(), width=150)
    same = loader_bench.compare(ways, epoch, rounds=2, close=close, console=console)
    return same, console.file.getvalue()


def row(text, way):
    (found,) = [line for line in text.splitlines() if line.startswith(f"│ {way} ")]
    return [cell.strip() for cell in found.split("│")[1:-1]]


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
    """One changed number of 43 200 is no longer bit for bit."""
    found, text = compared(("first", other), monkeypatch, close)
    assert row(text, "first")[-1] == "bit for bit"
    assert row(text, other)[-1].startswith(said) and found is same


def test_a_loader_that_cannot_run_is_reported_and_the_others_are_compared(monkeypatch):
    same, text = compared(("missing", "first", "other layout"), monkeypatch, 0.0)
    assert same and row(text, "missing")[1] == "-" and "missing is not installed" in text
    assert float(row(text, "first")[1]) > 0
    with pytest.raises(UserError, match="missing is not installed"):
        compared(("missing",), monkeypatch, 0.0)


def test_rates_count_the_samples_and_bytes_of_one_epoch():
    figures = epoch("first")
    assert figures.bytes_per_s / figures.samples_per_s == pytest.approx(4000 / 12)
