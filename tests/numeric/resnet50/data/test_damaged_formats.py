"""Damaged data sets of ResNet-50: each defect is a one-line error."""

import os
import pickle
import shutil
from pathlib import Path

import lmdb
import numpy as np
import pytest
from helpers.resnet50_sets import (
    FORMATS,
    PACKED,
    TRAIN,
    count,
    described,
    images_of,
    in_every_format,
    opened,
    without_manifest,
)

from mlhpc.common.data import manifest
from mlhpc.common.formats import tf_example, tfrecord
from mlhpc.common.ranks.world import Solo
from mlhpc.errors import UserError
from mlhpc.resnet50.data.convert import convert
from mlhpc.resnet50.data.dataset import open_splits
from mlhpc.resnet50.data.formats import Lmdb


@pytest.fixture(scope="module")
def sets(tmp_path_factory) -> dict[str, Path]:
    return in_every_format(tmp_path_factory.mktemp("resnet50"), described())


@pytest.fixture
def own(sets, tmp_path):
    """A data set to damage, in the given format."""

    def copy(kind="jpeg"):
        return Path(shutil.copytree(sets[kind], tmp_path / kind))

    return copy


def spoil_empty_class(root):
    shutil.rmtree(root / "validation" / "class0001")
    (root / "validation" / "class0001").mkdir()
    without_manifest(root)


def spoil_stray_file(root):
    (root / "train" / "class0001" / "notes.txt").write_text("x")
    without_manifest(root)


def spoil_missing_shard(root):
    (root / "train" / "train-00003-of-00016").unlink()
    without_manifest(root)


def spoil_truncated_shard(root):
    path = root / "train" / "train-00003-of-00016"
    path.write_bytes(path.read_bytes()[:-7])


def spoil_cut_between_header_and_end(root):
    path = root / "train" / "train-00003-of-00016"
    path.write_bytes(path.read_bytes()[:5])


def spoil_shard_by_another_file(root):
    (root / "train" / "train-00003-of-00016").write_bytes(b"not a record" * 20)


def spoil_lmdb_version(root):
    path = root / "train" / "data.mdb"
    data = bytearray(path.read_bytes())
    for page in (
        0,
        4096,
    ):  # the two meta pages: magic, then version, after a header of 16 bytes (lmdb's mdb.c)
        assert data[page + 16 : page + 20] == bytes.fromhex("dec0efbe")
        data[page + 20 : page + 24] = (999).to_bytes(4, "little")
    path.write_bytes(data)


def shorten_lmdb(root):
    path = root / "train" / "data.mdb"
    os.truncate(path, path.stat().st_size - 4096)


def spoil_lmdb(root):
    (root / "train" / "data.mdb").write_bytes(b"\0" * 8192)


def damage_lmdb_page(root):
    """The root page of the tree, behind the two meta pages, of no known kind."""
    path = root / "train" / "data.mdb"
    data = bytearray(path.read_bytes())
    for page in range(2, len(data) // 4096):
        data[4096 * page + 10 : 4096 * page + 12] = b"\xff\xff"
    path.write_bytes(data)


def archive_as_index(root):
    np.savez(root / "train" / "index.npz", a=np.zeros(3))
    (root / "train" / "index.npz").replace(root / "train" / "index.npy")


def damage_index_header(root):
    path = root / "train" / "index.npy"
    path.write_bytes(path.read_bytes().replace(b"{'descr'", b"{('(((("))


def overflowing_index(root):
    path = root / "train" / "index.npy"
    index = np.load(path)
    index[0, :3] = 0, 1 << 40, 1 << 40
    np.save(path, index)


def spoil_pixels(root):
    path = root / "train" / "pixels.raw"
    path.write_bytes(path.read_bytes()[:-1])


def spoil_pixel_index(root):
    (root / "validation" / "index.npy").unlink()
    without_manifest(root)


@pytest.mark.parametrize(
    ("kind", "spoil", "message"),
    [
        ("jpeg", spoil_empty_class, r"class class0001 has no image in validation"),
        ("jpeg", spoil_stray_file, r"notes\.txt: not an image"),
        ("tfrecord", spoil_missing_shard, r"train-00000-of-00016: only 15 of 16 shards"),
        (
            "tfrecord",
            spoil_truncated_shard,
            r"train-00003-of-00016: truncated at byte \d+ of \d+ in record 1",
        ),
        ("tfrecord", spoil_cut_between_header_and_end, r"train-00003-of-00016: not a plain TFRecord"),
        ("tfrecord", spoil_shard_by_another_file, r"train-00003-of-00016: not a plain TFRecord"),
        ("lmdb", spoil_lmdb_version, r"train/data\.mdb: LMDB version 999"),
        ("lmdb", spoil_lmdb, r"train/data\.mdb: not a readable LMDB data file"),
        ("lmdb", shorten_lmdb, r"train/data\.mdb: truncated, \d+ bytes of at least \d+"),
        ("raw", spoil_pixels, r"pixels\.raw: \d+ bytes, expected \d+"),
        ("lmdb", damage_lmdb_page, r"train/data\.mdb: not a readable LMDB data file"),
        ("raw", archive_as_index, r"index\.npy: an .npz archive"),
        ("raw", damage_index_header, r"pixels\.raw or index\.npy cannot be read"),
        ("raw", overflowing_index, r"index\.npy lists images beyond"),
        ("raw", spoil_pixel_index, r"pixels\.raw or index\.npy is missing"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_every_defect_of_a_data_set_is_a_one_line_error(own, kind, spoil, message):
    root = own(kind)
    spoil(root)
    with pytest.raises(UserError, match=message) as raised:
        opened(root, **({"train_samples": TRAIN} if kind != "jpeg" else count(root)))
    assert "\n" not in str(raised.value) and str(root) in str(raised.value)


@pytest.mark.parametrize("kind", FORMATS)
def test_another_number_of_classes_is_refused(sets, kind):
    with pytest.raises(UserError, match=r"3 classes, not 7; set network\.classes=3"):
        opened(sets[kind], classes=7)


@pytest.mark.parametrize("kind", PACKED)
def test_a_label_outside_the_classes_is_named(own, kind):
    """Foreign data without our manifest: only the labels tell the number of classes."""
    root = without_manifest(own(kind))
    with pytest.raises(UserError, match=r"(train-\d|data\.mdb|pixels).*(label|is 3)"):
        images_of(opened(root, classes=2).train)


def test_a_damaged_record_is_named(own):
    path = own("tfrecord") / "train" / "train-00002-of-00016"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"train-00002-of-00016: wrong checksum"):
        images_of(opened(path.parents[1]).train)


@pytest.mark.parametrize("record", [b"\xff" * 30, tf_example.encode_features({"x": [1]})])
def test_records_of_another_kind_are_named(own, record):
    path = own("tfrecord") / "train" / "train-00002-of-00016"
    tfrecord.write_records(path, [record] * 2, gzip=False)
    with pytest.raises(UserError, match=r"train-00002-of-00016: record 0(: not a readable| must contain)"):
        images_of(opened(path.parents[1]).train)


def test_an_lmdb_of_another_kind_is_named(own):
    root = own("lmdb")
    path = str(root / "train" / "data.mdb")
    with (
        lmdb.open(path, subdir=False, map_size=1 << 24, lock=False) as environment,
        environment.begin(write=True) as transaction,
    ):
        transaction.put(b"%08d" % 4, b"\xff" * 40)
    with pytest.raises(UserError, match=r"data\.mdb: 00000004: not a Caffe Datum"):
        images_of(opened(root).train)


def test_keys_that_are_not_consecutive_numbers_are_read_in_order(sets, tmp_path):
    """As Caffe's own tool writes them: a number and the file's name."""
    files = opened(sets["jpeg"]).train
    (tmp_path / "train").mkdir()
    shutil.copytree(sets["lmdb"] / "validation", tmp_path / "validation")
    path = str(tmp_path / "train" / "data.mdb")
    with (
        lmdb.open(str(sets["lmdb"] / "train" / "data.mdb"), subdir=False, lock=False, readonly=True) as ours,
        lmdb.open(path, subdir=False, map_size=1 << 26, lock=False) as theirs,
        ours.begin() as source,
        theirs.begin(write=True) as target,
    ):
        for index in range(TRAIN):
            target.put(b"%08d_some/name.JPEG" % index, source.get(b"%08d" % index))
    images = images_of(opened(tmp_path).train)
    assert [bytes(data) for data, _ in images] == [bytes(files.read(i)[0]) for i in range(TRAIN)]


def test_an_lmdb_can_be_opened_twice_and_pickled(sets):
    one, two = opened(sets["lmdb"]).train, opened(sets["lmdb"]).train
    sent = pickle.loads(pickle.dumps(one))
    assert [bytes(images.read(3)[0]) for images in (two, sent)] == [bytes(one.read(3)[0])] * 2


@pytest.mark.parametrize("kind", ["tfrecord", "lmdb"])
def test_an_image_without_a_size_is_not_packed(own, tmp_path, kind):
    root = own("jpeg")
    broken = sorted((root / "train").rglob("*.JPEG"))[7]
    broken.write_bytes(b"\xff\xd8\xff\xe0 nothing")
    with pytest.raises(UserError, match=rf"{broken.name}: 12 bytes, expected \d+; see: mlhpc data"):
        convert(root, tmp_path / "out", kind, Solo(), 2)
    assert not (tmp_path / "out").exists(), "found before anything was written"
    (root / "manifest.json").unlink()
    with pytest.raises(UserError, match=f"{broken.name}: not a readable image"):
        convert(root, tmp_path / "out", kind, Solo(), 1)
    assert not list((tmp_path / "out").rglob("*.part")) and not (tmp_path / "out" / manifest.NAME).exists()


def test_a_missing_split_is_named(own):
    root = without_manifest(own("jpeg"))
    shutil.rmtree(root / "validation")
    with pytest.raises(UserError, match=r"has no images in validation/"):
        opened(root)
    with pytest.raises(UserError, match=r"has no images in validation/"):
        open_splits(manifest.describe(root, Solo()), Solo())


def test_a_database_with_a_damaged_page_is_refused_when_it_is_opened(tmp_path):
    with lmdb.open(str(tmp_path)) as environment, environment.begin(write=True) as transaction:
        for number in range(200):
            transaction.put(b"n%d" % number, b"value")
    path = tmp_path / "data.mdb"
    data = bytearray(path.read_bytes())
    roots = range(2 * 4096, len(data), 4096)  # after the two pages that say where the root is
    for page in roots:
        data[page + 10 : page + 12] = b"\0\0"  # what kind of page it is
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"data\.mdb: not a readable LMDB data file .*copy or regenerate it"):
        Lmdb(tmp_path, 1000)
