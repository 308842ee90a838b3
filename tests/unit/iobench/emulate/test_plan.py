from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlhpc.errors import UserError
from mlhpc.iobench.definition.schema import Dataset, Reader, Workload
from mlhpc.iobench.emulate.plan import pieces, require_enough


def workload(files: int, per_file: int = 1, **reader: object) -> Workload:
    dataset = Dataset(format="binary", files=files, samples_per_file=per_file, sample_bytes=100)
    return Workload(name="w", dataset=dataset, reader=Reader(**reader))


def read(work: Workload, rank: int, ranks: int, epoch: int, samples: int) -> list[tuple[int, int]]:
    assert work.dataset is not None
    cut = pieces(work.dataset, work.dataset.files, work.reader, rank, ranks, epoch, samples)
    return [(piece.file, sample) for piece in cut for sample in piece.samples.tolist()]


@given(
    files=st.integers(1, 12),
    per_file=st.integers(1, 9),
    ranks=st.integers(1, 6),
    file_order=st.sampled_from(["sequential", "shuffled"]),
    sample_order=st.sampled_from(["sequential", "shuffled"]),
)
def test_no_sample_is_read_twice_in_an_epoch(files, per_file, ranks, file_order, sample_order):
    work = workload(files, per_file, file_order=file_order, sample_order=sample_order)
    share = files * per_file // ranks
    by_rank = [read(work, rank, ranks, 3, share) for rank in range(ranks)]
    assert all(len(samples) == share for samples in by_rank)
    seen = Counter(sample for samples in by_rank for sample in samples)
    assert max(seen.values(), default=1) == 1
    if ranks * share == files * per_file:
        assert set(seen) == {(file, sample) for file in range(files) for sample in range(per_file)}


def test_sequential_is_in_order_and_one_piece_a_file():
    work = workload(3, 4)
    assert read(work, 0, 1, 0, 12) == [(file, sample) for file in range(3) for sample in range(4)]
    assert work.dataset is not None
    assert [p.file for p in pieces(work.dataset, 3, work.reader, 0, 1, 0, 12)] == [0, 1, 2]


def test_shuffled_files_are_read_in_order_inside():
    samples = read(workload(20, 3, file_order="shuffled"), 0, 1, 0, 60)
    files = [file for file, _ in samples[::3]]
    assert sorted(files) == list(range(20)) and files != list(range(20))
    assert [sample for _, sample in samples] == [0, 1, 2] * 20


def test_epochs_differ_and_repeat_themselves():
    work = workload(30, 2, file_order="shuffled", sample_order="shuffled")
    assert read(work, 1, 2, 0, 30) == read(work, 1, 2, 0, 30) != read(work, 1, 2, 1, 30)


def test_random_draws_with_replacement():
    samples = read(workload(1, 1000, sample_order="random"), 0, 1, 0, 1000)
    # Of n draws from n, 1 - 1/e are different.
    assert 580 < len(set(samples)) < 680


def test_without_partition_every_rank_reads_everything():
    work = workload(1, 50, partition=False)
    assert read(work, 0, 3, 0, 50) == read(work, 2, 3, 0, 50) == [(0, sample) for sample in range(50)]
    assert work.steps_per_epoch(3) == 50


def test_too_few_files_or_samples_are_a_line():
    with pytest.raises(UserError, match="3 files are too few for 4 ranks"):
        require_enough(workload(3, 10), 4)
    with pytest.raises(UserError, match="20 samples cannot fill one step of 3 ranks at 10 samples each"):
        require_enough(workload(4, 5, batch_size=10), 3)
    require_enough(workload(1, 40, batch_size=10), 4)  # one shared file
