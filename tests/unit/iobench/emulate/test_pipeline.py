import os
import threading
from typing import Any

import pytest

from mlhpc.common.ranks.world import Solo
from mlhpc.errors import UserError
from mlhpc.iobench.dataset.content import Content
from mlhpc.iobench.dataset.generate import generate
from mlhpc.iobench.dataset.layout import Layout
from mlhpc.iobench.definition.schema import Dataset, Reader
from mlhpc.iobench.emulate.pipeline import NullStorage, Pipeline, Storage
from mlhpc.iobench.emulate.plan import pieces

DATASET = Dataset(format="binary", files=6, samples_per_file=4, sample_bytes=3000, sample_bytes_stdev=300)


@pytest.fixture
def layout(tmp_path):
    generate(DATASET, tmp_path, Solo(), 1)
    return Layout(tmp_path, DATASET)


def pipeline(layout: Layout, reader: Reader, samples: int = 24, storage: Any = None) -> Pipeline:
    opened = storage or Storage(layout, reader)
    work = pieces(DATASET, DATASET.files, reader, 0, 1, 0, samples)
    return Pipeline(DATASET, reader, "train", work, reader.batch_size, opened.open, False)


def every_sample() -> list[bytes]:
    content, layout = Content(DATASET.seed), Layout(None, DATASET)  # type: ignore[arg-type]
    return sorted(
        content.sample(file, number, size).tobytes()
        for file in range(DATASET.files)
        for number, size in enumerate(layout.sizes("train", file).tolist())
    )


@pytest.mark.parametrize("threads", [0, 1, 4])
@pytest.mark.parametrize("order", ["sequential", "shuffled"])
@pytest.mark.parametrize("preprocess_threads", [0, 3])
def test_every_sample_comes_once(layout, threads, order, preprocess_threads):
    others = preprocess_threads if threads else 0
    lines = pipeline(
        layout, Reader(batch_size=3, threads=threads, sample_order=order, preprocess_threads=others)
    )
    samples = [sample.tobytes() for _ in range(8) for sample in lines.next_batch()]
    lines.stop()
    assert sorted(samples) == every_sample()
    assert sum(times.samples for times in lines.times) == 24
    assert sum(times.content_bytes for times in lines.times) == sum(map(len, samples))
    assert sum(times.statistics.bytes for times in lines.times) == sum(map(len, samples))


@pytest.mark.parametrize(
    ("advice", "told"),
    [("normal", []), ("sequential", [os.POSIX_FADV_SEQUENTIAL] * 6), ("random", [os.POSIX_FADV_RANDOM] * 6)],
)
def test_the_kernel_is_told_how_each_file_is_read(layout, monkeypatch, advice, told):
    given, files = [], {path.stat().st_ino for path in layout.root.rglob("train/*")}

    def advise(fd: int, offset: int, length: int, advice: int) -> None:
        assert (offset, length) == (0, 0) and os.fstat(fd).st_ino in files
        given.append(advice)

    monkeypatch.setattr(os, "posix_fadvise", advise)
    lines = pipeline(layout, Reader(batch_size=3, threads=2, advice=advice))
    for _ in range(8):
        lines.next_batch()
    lines.stop()
    assert given == told


@pytest.mark.timeout(60)
@pytest.mark.parametrize("threads", [2, 6, 9])
def test_threads_without_work_leave_their_places_to_the_others(layout, threads):
    """With fewer places than threads, those that find nothing more to read must not keep one."""
    for _ in range(20):
        lines = pipeline(layout, Reader(batch_size=1, threads=threads, prefetch=1))
        assert len([lines.next_batch() for _ in range(24)]) == 24
        lines.stop()


@pytest.mark.timeout(60)
def test_preprocessing_threads_work_at_the_same_time(layout, monkeypatch):
    """The barrier opens only when three threads preprocess at once, with a single reader."""
    together = threading.Barrier(3, timeout=30)
    monkeypatch.setattr("mlhpc.iobench.emulate.pipeline.occupy", lambda seconds: together.wait() and seconds)
    reader = Reader(batch_size=3, threads=1, prefetch=2, preprocess=0.001, preprocess_threads=3)
    lines = pipeline(layout, reader)
    for _ in range(8):
        assert len(lines.next_batch()) == 3
    lines.stop()
    assert sum(times.samples for times in lines.times) == 24


def test_no_more_batches_are_read_ahead_than_asked_for(layout):
    lines = pipeline(layout, Reader(batch_size=2, threads=4, prefetch=3))
    lines.next_batch()
    deadline = threading.Event()
    for _ in range(200):
        if sum(times.samples for times in lines.times) >= 8:
            break
        deadline.wait(0.01)
    assert sum(times.samples for times in lines.times) <= 2 + 2 * 3
    lines.stop()


def test_an_error_in_a_thread_reaches_the_loop(layout):
    layout.path("train", 3).write_bytes(b"short")
    lines = pipeline(layout, Reader(batch_size=4, threads=2))
    with pytest.raises(UserError, match=r"00003\.bin is damaged: 5 bytes"):
        for _ in range(6):
            lines.next_batch()
    lines.stop()


def test_the_null_storage_reads_nothing_and_serves_every_file(layout):
    null = NullStorage.load(layout, [1, 2], 1, Reader())
    assert null.numbers == [1]  # the budget holds one, and one there must be
    lines = pipeline(
        layout, Reader(batch_size=4, threads=2), storage=NullStorage.load(layout, [1, 2], 1 << 20, Reader())
    )
    for _ in range(6):
        assert len(lines.next_batch()) == 4
    lines.stop()
    assert sum(times.statistics.calls for times in lines.times) == 0
