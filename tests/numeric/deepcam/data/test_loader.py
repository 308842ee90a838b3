"""The three loaders: the same batches, and each sample exactly once."""

import gc
import json
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.deepcam_files import COLUMNS, ROWS, as_the_reference_reads
from helpers.deepcam_loader import LOADERS, open_loader, same

from mlhpc.benchmarks import load
from mlhpc.cli import main
from mlhpc.common.data.sharding import Pool, train_batches
from mlhpc.common.ranks.world import Solo
from mlhpc.deepcam.data import source as data_module
from mlhpc.deepcam.data.convert import convert
from mlhpc.deepcam.data.sample import list_samples
from mlhpc.errors import UserError


def expected(paths, root):
    """[b, 16, rows, columns] and [b, rows, columns] of these files, as the reference would make them."""
    pairs = [as_the_reference_reads(path, root / "stats.h5") for path in paths]
    return np.stack([x.transpose(2, 0, 1) for x, _ in pairs]), np.stack([y for _, y in pairs])


@pytest.mark.parametrize("layout", ["h5", "npy"])
@pytest.mark.parametrize("loader", LOADERS)
def test_batches_have_the_references_values_in_the_planned_order(data_set, tmp_path, loader, layout):
    root = data_set
    if layout == "npy":
        convert(data_set, root := tmp_path / "npy", Solo(), 1)
    made = open_loader(root, loader)
    for epoch in (0, 1):
        order = train_batches(Pool(6, 1), 0, 2, 3, seed=5, epoch=epoch)
        batches = list(made.train_epoch(epoch))
        assert len(batches) == 3
        for step, (x, y) in enumerate(batches):
            files = [data_set / "train" / f"data-{i:04d}.h5" for i in order[step]]
            assert [p.stem for p in made.files_of(epoch, step)] == [p.stem for p in files]
            want_x, want_y = expected(files, data_set)
            assert x.dtype == torch.float32 and y.dtype == torch.uint8
            assert x.is_contiguous(memory_format=torch.channels_last) and y.is_contiguous()
            assert np.array_equal(x.numpy(), want_x) and np.array_equal(y.numpy(), want_y)
    evaluated = list(made.evaluation())
    assert [len(x) for x, _ in evaluated] == [2, 2, 1]
    want_x, want_y = expected(list_samples(data_set / "validation"), data_set)
    assert np.array_equal(torch.cat([x for x, _ in evaluated]).numpy(), want_x)
    assert np.array_equal(torch.cat([y for _, y in evaluated]).numpy(), want_y)
    read = [p for p in root.glob("train/*")] * 2 + [p for p in root.glob("validation/*")]
    assert made.bytes_read == sum(path.stat().st_size for path in read)


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("loader", LOADERS)
def test_every_loader_with_any_number_of_workers_equals_one_thread_bit_for_bit(data_set, loader, workers):
    one = open_loader(data_set, "threads", batch=1, workers=1, prefetch=1)
    many = open_loader(data_set, loader, batch=1, workers=workers, prefetch=workers)
    assert same(list(one.train_epoch(3)), list(many.train_epoch(3)))
    assert same(list(one.evaluation()), list(many.evaluation()))


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_train_on_the_batches_of_one_rank(data_set, ranks):
    together = open_loader(data_set, batch=ranks).train_epoch(0)
    apart = [open_loader(data_set, ranks=ranks, place=r, batch=1).train_epoch(0) for r in range(ranks)]
    for (x, y), *parts in zip(together, *apart, strict=True):
        assert torch.equal(x, torch.cat([part[0] for part in parts]))
        assert torch.equal(y, torch.cat([part[1] for part in parts]))


@pytest.mark.parametrize("ranks", [1, 2, 4, 7])
def test_every_sample_is_evaluated_once_for_any_number_of_ranks(data_set, ranks):
    seen = Counter()
    for place in range(ranks):
        for x, _ in open_loader(data_set, ranks=ranks, place=place, batch=1).evaluation():
            seen.update(sample.numpy().tobytes() for sample in x)
    wanted = Counter(expected([p], data_set)[0][0].tobytes() for p in list_samples(data_set / "validation"))
    assert seen == wanted


@pytest.mark.parametrize("loader", LOADERS)
def test_returned_tensors_are_not_overwritten(data_set, loader):
    """Even if only a view of a batch is kept whose memory might be reused."""
    made = open_loader(data_set, loader, batch=1, prefetch=1)
    kept = [(x[:, 3:5, 4], y[0]) for epoch in range(3) for x, y in made.train_epoch(epoch)]
    gc.collect()
    for epoch in range(3):
        for x, y in made.train_epoch(epoch):
            a, b = kept.pop(0)
            assert torch.equal(a, x[:, 3:5, 4]) and torch.equal(b, y[0])


def test_memory_is_reused_once_released(data_set):
    made = open_loader(data_set, batch=1, prefetch=1)
    places = {x.data_ptr() for epoch in range(3) for x, _ in made.train_epoch(epoch)}
    assert len(places) <= 4  # of 18 batches: one ahead, one being read, one in hand, and the one before


# Threads: the cache


def test_cached_samples_are_read_once_and_served_unchanged(own):
    plain = open_loader(own)
    wanted = [batch for epoch in (0, 1, 2) for batch in plain.train_epoch(epoch)], list(plain.evaluation())
    size = sum(path.stat().st_size for path in own.glob("*/*.h5"))
    made = open_loader(own, cache=True)
    first = list(made.train_epoch(0)), list(made.evaluation())
    assert made.bytes_read == size
    for x, _ in first[0]:
        x.zero_()  # the caller's to change
    for path in own.glob("*/*.h5"):
        path.unlink()
    later = [batch for epoch in (1, 2) for batch in made.train_epoch(epoch)], list(made.evaluation())
    assert same(later[0], wanted[0][3:]) and same(later[1], wanted[1])
    assert made.bytes_read == size


def test_a_cache_that_cannot_fit_is_refused_before_it_fills(data_set, monkeypatch):
    sample = ROWS * COLUMNS * (16 * 4 + 1)
    monkeypatch.setattr(data_module, "memory_left", lambda: 2 * 11 * sample - 1)
    assert len(list(open_loader(data_set, cache=True).train_epoch(0))) == 3
    with pytest.raises(UserError, match=r"loading\.cache needs .* for 11 samples of 2 ranks on this node"):
        next(open_loader(data_set, cache=True, ranks_on_node=2).train_epoch(0))


@pytest.mark.parametrize("loader", ["workers", "dali"])
def test_the_cache_needs_the_threads_loader(loader):
    with pytest.raises(UserError, match=r"loading: cache keeps .* set loading\.loader=threads"):
        load.load("deepcam", "smoke", ["loading.cache=true", f"loading.loader={loader}"])


def test_missing_dali_is_a_one_line_error(data_set, monkeypatch):
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    with pytest.raises(UserError, match=r"\[dali\]', or set loading\.loader=threads"):
        next(open_loader(data_set, "dali").train_epoch(0))


# The comparison


def test_bench_measures_every_format_and_loader(data_set, tmp_path, capsys):
    """Through the command line; the samples of all are the same."""
    convert(data_set, tmp_path / "pco", Solo(), 1, "pco")
    capsys.readouterr()
    words = [
        "data",
        "bench",
        "deepcam",
        data_set,
        tmp_path / "pco",
        "--samples",
        4,
        "--batch",
        2,
        "--workers",
        1,
    ]
    more = ["--loader", "threads,workers", "--sample-dtype", "float16", "--rounds", 1, "--step-ms", 1e6]
    assert main(list(map(str, [*words, *more, "--json"]))) == 0
    printed = capsys.readouterr()
    content = json.loads(printed.out)
    ways = [(Path(row["data"]).name, row["loader"]) for row in content["ways"]]
    assert ways == [(data, loader) for data in (data_set.name, "pco") for loader in ("threads", "workers")]
    for row in content["ways"]:
        assert row["samples_per_s_warm"] > 0 and row["samples_per_s_cold"] > 0
        assert row["bytes_delivered_per_sample"] == 32 * 48 * (16 * 2 + 1)
        assert (row["same_samples"], row["bound_by"]) == ("bit for bit", "compute")
    assert content["ways"][2]["bytes_read_per_sample"] < content["ways"][0]["bytes_read_per_sample"]
    assert "GB/s" in printed.err
