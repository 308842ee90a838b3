"""The loader on files in the official layout: its batches, their order, and errors for damaged files."""

import itertools
import threading
import time

import numpy as np
import pytest

from mlhpc.benchmarks.cosmoflow import Loading
from mlhpc.common.data.assign import RankSamples
from mlhpc.common.data.loader import Loader
from mlhpc.common.data.sharding import Pool, steps_per_epoch
from mlhpc.common.formats.protobuf import field
from mlhpc.common.formats.tf_example import encode_example
from mlhpc.common.formats.tfrecord import write_records
from mlhpc.cosmoflow.data.augment import SYMMETRIES, apply_symmetry, draw
from mlhpc.cosmoflow.data.sample import Reader, list_samples
from mlhpc.cosmoflow.data.source import CosmoFlowSource
from mlhpc.errors import UserError

SHAPE = (6, 6, 6, 4)


def sample(index):
    """A sample that is recognisable by its index, stored in ``y[0]`` and ``x[0, 0, 0, 0]``."""
    rng = np.random.default_rng(index)
    x = rng.integers(0, 32767, SHAPE).astype(np.int16)
    x[0, 0, 0, 0] = index
    return x, np.append(index, rng.uniform(-1, 1, 3)).astype(np.float32)


def write(path, x, y, gzip=False):
    write_records(path, [encode_example(x, y)], gzip)


@pytest.fixture
def folder(tmp_path):
    """Eleven samples, plain and GZIP in turn."""
    for index in range(11):
        write(tmp_path / f"univ_ics_{index:03}.tfrecord", *sample(index), gzip=index % 2 == 1)
    (tmp_path / "manifest.json").write_text("{}")
    return tmp_path


def loader(folder, ranks=1, place=0, **options):
    files = list_samples(folder)
    pool = Pool(len(files), ranks)
    local_batch_size = options.pop("local_batch_size", 2)
    options = {
        "local_batch_size": local_batch_size,
        "eval_batch_size": 3,
        "steps": steps_per_epoch([pool], local_batch_size),
        "seed": 7,
    } | options
    loading = Loading(workers=options.pop("workers", 2), prefetch=options.pop("prefetch", 2))
    source = CosmoFlowSource(loading, SHAPE, 4, options.pop("augment", False))
    return Loader(RankSamples(files, files, pool, pool, place), source, **options)


def readers_left():
    return [thread for thread in threading.enumerate() if thread.name.startswith("reader")]


@pytest.mark.parametrize("workers", [1, 5])
def test_every_sample_is_read_as_written(folder, workers):
    xs, ys = zip(*loader(folder, workers=workers).evaluation(), strict=True)
    assert [len(x) for x in xs] == [3, 3, 3, 2]
    assert xs[0].dtype == np.int16 and ys[0].dtype == np.float32
    for index, (x, y) in enumerate(zip(np.concatenate(xs), np.concatenate(ys), strict=True)):
        expected_x, expected_y = sample(index)
        np.testing.assert_array_equal(x, expected_x)
        np.testing.assert_array_equal(y, expected_y)


def test_training_epochs_are_shuffled_and_x_and_y_stay_together(folder):
    it = loader(folder)
    orders = []
    for epoch in (0, 1, 0):
        x, y = map(np.concatenate, zip(*it.train_epoch(epoch), strict=True))
        np.testing.assert_array_equal(x[:, 0, 0, 0, 0], y[:, 0])
        orders.append(y[:, 0].tolist())
    assert len(set(orders[0])) == len(orders[0]) == 10
    assert orders[0] == orders[2] != orders[1]


@pytest.mark.parametrize("augment", [False, True])
def test_two_ranks_train_on_the_batches_of_one(folder, augment):
    (alone,) = (list(loader(folder, local_batch_size=4, augment=augment).train_epoch(3)),)
    shares = [list(loader(folder, 2, place, augment=augment).train_epoch(3)) for place in range(2)]
    assert len(alone) == 2
    for whole, *parts in zip(alone, *shares, strict=True):
        for array, *halves in zip(whole, *parts, strict=True):
            np.testing.assert_array_equal(array, np.concatenate(halves))


def test_bytes_read_are_those_of_the_files(folder):
    it = loader(folder)
    for _ in it.evaluation():
        pass
    everything = sum(path.stat().st_size for path in folder.glob("*.tfrecord"))
    assert it.bytes_read == everything
    order = [int(y[0]) for _, ys in it.train_epoch(0) for y in ys]
    used = sum((folder / f"univ_ics_{index:03}.tfrecord").stat().st_size for index in order)
    assert it.bytes_read == everything + used


def test_returned_batches_are_not_overwritten(folder):
    kept = list(loader(folder, prefetch=1).evaluation())
    assert not any(np.shares_memory(a[0], b[0]) for a, b in itertools.combinations(kept, 2))


def test_readers_stay_within_the_prefetch_limit(folder):
    it = loader(folder, local_batch_size=1, prefetch=2, workers=4)
    batches = it.train_epoch(0)
    next(batches)
    order = [int(y[0][0]) for _, y in loader(folder, local_batch_size=1).train_epoch(0)]
    time.sleep(0.2)  # readers that would run on have had the time to
    for index in order[3:]:
        (folder / f"univ_ics_{index:03}.tfrecord").unlink()
    next(batches), next(batches)
    with pytest.raises(UserError, match=f"univ_ics_{order[3]:03}"):
        list(batches)


def test_an_iterator_that_is_dropped_stops_its_readers(folder):
    batches = loader(folder, local_batch_size=1).train_epoch(0)
    next(batches)
    assert readers_left()
    batches.close()
    assert not readers_left()


def test_samples_are_listed_by_name_up_to_the_expected_number(folder):
    assert [path.name for path in list_samples(folder, 3)] == [f"univ_ics_00{i}.tfrecord" for i in range(3)]
    assert len(list_samples(folder)) == 11


def test_missing_samples_are_a_user_error(folder, tmp_path):
    with pytest.raises(UserError, match=rf"{folder}: 11 .* instead of 12"):
        list_samples(folder, 12)
    with pytest.raises(UserError, match=r"nowhere: no such folder"):
        list_samples(tmp_path / "nowhere")


def truncated(path):
    path.write_bytes(path.read_bytes()[:-100])


def flipped(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def missing(path):
    path.unlink()


def empty(path):
    path.write_bytes(b"")


def two_records(path):
    write_records(path, [encode_example(*sample(0))] * 2, gzip=False)


def other_shape(path):
    write(path, np.zeros((4, 6, 6, 4), np.int16), sample(0)[1])


def other_targets(path):
    write(path, sample(0)[0], np.zeros(3, np.float32))


def floats(path):
    write_records(path, [encode_example(sample(0)[0], sample(0)[1]).replace(b"x", b"z", 1)], gzip=False)


@pytest.mark.parametrize("index", [4, 5], ids=["plain", "gzip"])
@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (truncated, "truncated"),
        (flipped, "checksum|corrupt|gzip"),
        (missing, "No such file"),
        (empty, "0 records|not a TFRecord"),
        (two_records, "2 records"),
        (other_shape, r"x has 1152 bytes, but data.sample_shape \[6, 6, 6, 4\] in int16 takes 1728"),
        (other_targets, "y has 3 values, but network.targets is 4"),
        (floats, "without feature b?'x'"),
    ],
)
def test_a_damaged_file_is_named_and_ends_the_iteration(folder, harm, message, index):
    bad = folder / f"univ_ics_{index:03}.tfrecord"
    it = loader(folder, workers=3)
    harm(bad)
    with pytest.raises(UserError, match=message) as caught:
        list(it.evaluation())
    assert str(bad) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not readers_left()


CUBE = np.random.default_rng(0).integers(0, 1000, (4, 4, 4, 2)).astype(np.int16)


def test_there_are_48_different_symmetries_and_the_first_changes_nothing():
    images = {apply_symmetry(CUBE, symmetry).tobytes() for symmetry in range(len(SYMMETRIES))}
    assert len(images) == 48
    np.testing.assert_array_equal(apply_symmetry(CUBE, 0), CUBE)


def test_the_symmetries_are_a_group():
    images = {apply_symmetry(CUBE, symmetry).tobytes() for symmetry in range(48)}
    for first in range(48):
        twice = {apply_symmetry(apply_symmetry(CUBE, first), second).tobytes() for second in range(48)}
        assert twice == images  # closed, and each has an inverse: the identity's image is among them


def test_a_symmetry_keeps_the_distances_between_voxels_and_their_channels():
    places = np.stack(np.meshgrid(*[np.arange(4)] * 3, indexing="ij"), axis=-1)
    rng = np.random.default_rng(1)
    pairs = rng.integers(0, 4, (20, 2, 3))
    for symmetry in range(48):
        image = apply_symmetry(places, symmetry)  # each voxel holds its original position
        for a, b in pairs:
            before = np.linalg.norm(image[tuple(a)] - image[tuple(b)])
            assert before == pytest.approx(np.linalg.norm(a - b))


@pytest.mark.parametrize("symmetry", [0, 1, 17, 47])
def test_a_symmetry_is_applied_while_reading(tmp_path, symmetry):
    x, y = sample(3)
    path = tmp_path / "a.tfrecord"
    write(path, x, y)
    out_x, out_y = np.empty_like(x), np.empty_like(y)
    assert Reader().read((path, symmetry), out_x, out_y) == path.stat().st_size
    np.testing.assert_array_equal(out_x, apply_symmetry(x, symmetry))
    np.testing.assert_array_equal(out_y, y)


def test_augmentation_applies_only_to_training_samples(folder):
    it = loader(folder, local_batch_size=1, augment=True)
    for x, y in it.evaluation():
        for voxels, target in zip(x, y, strict=True):
            np.testing.assert_array_equal(voxels, sample(int(target[0]))[0])
    seen = [[turn_of(x[0], int(y[0, 0])) for x, y in it.train_epoch(epoch)] for epoch in (0, 1)]
    assert all(turn is not None for turns in seen for turn in turns)
    assert len(set(seen[0])) > 3
    assert seen[0] != seen[1]


def turn_of(voxels, index):
    """Which symmetry made ``voxels`` of the sample: None when none did."""
    x = sample(index)[0]
    return next((s for s in range(48) if np.array_equal(apply_symmetry(x, s), voxels)), None)


def test_symmetries_are_uniform_and_depend_on_seed_and_epoch():
    drawn = draw(48_000, seed=1, epoch=2)
    counts = np.bincount(drawn, minlength=48)
    assert len(counts) == 48
    assert np.abs(counts - 1000).max() < 5 * np.sqrt(1000)  # five standard deviations
    np.testing.assert_array_equal(drawn, draw(48_000, seed=1, epoch=2))
    assert not np.array_equal(drawn, draw(48_000, seed=1, epoch=3))
    assert not np.array_equal(drawn, draw(48_000, seed=2, epoch=2))


def outcome(reader, path):
    """Values and size of a file, or the message of the error."""
    x, y = np.full(SHAPE, -1, np.int16), np.zeros(4, np.float32)
    try:
        return reader.read((path, 0), x, y), x.tobytes(), y.tobytes()
    except UserError as error:
        return str(error)


def test_a_reader_that_knows_the_layout_reads_and_refuses_what_a_new_one_does(tmp_path):
    knows = Reader()
    for index in range(2):
        write(tmp_path / f"{index}.tfrecord", *sample(index))
        assert outcome(knows, tmp_path / f"{index}.tfrecord") == outcome(
            Reader(), tmp_path / f"{index}.tfrecord"
        )
    content = (tmp_path / "1.tfrecord").read_bytes()
    positions = {*range(64), *range(len(content) - 64, len(content)), 900}
    changed = [content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :] for at in positions]
    for bad in (*changed, content[:-1], content + b"\0", content[:40], content * 2, b""):
        (tmp_path / "bad.tfrecord").write_bytes(bad)
        told = outcome(knows, tmp_path / "bad.tfrecord")
        assert isinstance(told, str) and told == outcome(Reader(), tmp_path / "bad.tfrecord")
        assert not isinstance(outcome(knows, tmp_path / "0.tfrecord"), str)


def test_targets_before_the_voxels_or_in_single_floats_are_read_as_well(tmp_path):
    def entry(name, feature):
        return field(1, field(1, name) + field(2, feature))

    reader = Reader()
    for number, packed in enumerate((True, True, False, False)):
        x, y = sample(number)
        floats = y.tobytes() if packed else b""
        singles = b"".join(b"\x0d" + value.tobytes() for value in y)
        y_entry = entry(b"y", field(2, field(1, floats) if packed else singles))
        record = field(1, y_entry + entry(b"x", field(1, field(1, x.tobytes()))))
        write_records(tmp_path / f"{number}.tfrecord", [record], False)
        _, voxels, targets = outcome(reader, tmp_path / f"{number}.tfrecord")
        assert voxels == x.tobytes() and targets == y.tobytes()
