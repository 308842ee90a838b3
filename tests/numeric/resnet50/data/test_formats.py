"""ResNet-50's data sets: synthetic images, lossless packing, and one-line errors."""

import io
import json
import os
import pickle
import shutil
from collections import Counter
from pathlib import Path

import lmdb
import numpy as np
import pytest
from helpers.thread_world import on_ranks
from PIL import Image

from mlhpc.benchmarks.resnet50 import Data
from mlhpc.common.data import manifest
from mlhpc.common.formats import tfrecord
from mlhpc.common.ranks.world import Solo
from mlhpc.errors import UserError
from mlhpc.resnet50.data.convert import convert
from mlhpc.resnet50.data.dataset import assign_samples, open_splits, select
from mlhpc.resnet50.data.formats import Lmdb
from mlhpc.resnet50.synthetic import simulate
from mlhpc.resnet50.synthetic.drawing import draw

TRAIN, EVALUATION, CLASSES = 22, 9, 3
PACKED = ("tfrecord", "lmdb", "raw")
FORMATS = ("jpeg", *PACKED)


def described(**changes) -> Data:
    facts = {
        "train_samples": TRAIN,
        "eval_samples": EVALUATION,
        "sample_shape": (32, 32, 3),
        "simulation": {"classes": CLASSES, "side": 48, "seed": 5},
    }
    return Data(**facts | changes)


@pytest.fixture(scope="module")
def sets(tmp_path_factory) -> dict[str, Path]:
    """The same images in every format."""
    root = tmp_path_factory.mktemp("resnet50")
    simulate.make(described(), root / "jpeg", Solo(), 1)
    for kind in PACKED:
        convert(root / "jpeg", root / kind, kind, Solo(), 2)
    return {kind: root / kind for kind in FORMATS}


@pytest.fixture
def own(sets, tmp_path):
    """A data set to damage, in the given format."""

    def copy(kind="jpeg"):
        return Path(shutil.copytree(sets[kind], tmp_path / kind))

    return copy


def opened(root: Path, classes=CLASSES, world=None, staged=None, mode="replicate", **changes):
    """The share that a run has of a data set."""
    world = world or Solo()
    data = described(**changes)
    dataset = select(manifest.describe(root, world), data)
    counts = {"train_samples": data.train_samples, "eval_samples": data.eval_samples}
    return assign_samples(dataset, staged, mode, world, classes=classes, **counts)


def images_of(images):
    return [images.read(index) for index in range(len(images))]


def without_manifest(root: Path) -> Path:
    (root / manifest.NAME).unlink()
    return root


# --- drawn ----------------------------------------------------------------------------------------


def test_images_depend_only_on_the_seed_for_any_workers_ranks_and_restart(sets, tmp_path):
    others = tmp_path / "two processes", tmp_path / "two ranks"
    simulate.make(described(), others[0], Solo(), 2)
    on_ranks(1, 2, lambda world: simulate.make(described(), others[1], world, 1))
    for other in others:
        assert (other / manifest.NAME).read_bytes() == (sets["jpeg"] / manifest.NAME).read_bytes()
    some = sorted((others[0] / "train").rglob("*.JPEG"))[::3]
    for path in some:
        path.unlink()
    simulate.make(described(), others[0], Solo(), 1)
    assert not manifest.verify(others[0], 1)
    with pytest.raises(UserError, match="another simulation"):
        simulate.make(described(simulation={"classes": CLASSES, "side": 48, "seed": 6}), others[0], Solo(), 1)


def test_the_layout_is_imagenets_and_classes_are_of_equal_size(sets):
    for split, count in (("train", TRAIN), ("validation", EVALUATION)):
        per_class = [len(list(folder.glob("*.JPEG"))) for folder in sorted((sets["jpeg"] / split).iterdir())]
        assert sum(per_class) == count and len(per_class) == CLASSES and max(per_class) - min(per_class) <= 1


def test_sizes_and_aspect_ratios_are_those_of_photographs():
    sizes = [Image.open(io.BytesIO(draw(1, 4, n % 4, n, 100))).size for n in range(150)]
    ratios = np.array([width / height for width, height in sizes])
    assert np.median([max(size) for size in sizes]) == 100
    assert 0.9 < np.mean(np.abs(ratios - 4 / 3) < 0.01) / 0.4 < 1.5  # 47% of 85% are of 4:3
    assert (ratios < 1).mean() > 0.1 and len({size for size in sizes}) > 10


def test_images_are_more_similar_within_a_class_than_between_classes():
    """A histogram of colours, the nearest mean of 20 images a class: far above chance, far from solved."""
    seed, classes = 3, 8

    def histogram(sample):
        picture = Image.open(io.BytesIO(draw(seed, classes, sample % classes, sample, 64))).convert("HSV")
        width, height = picture.size
        middle = picture.crop((width // 4, height // 4, 3 * width // 4, 3 * height // 4))
        counts, _ = np.histogram(np.asarray(middle)[..., 0], 24, (0, 256))
        return np.sqrt(counts / counts.sum())

    means = [
        np.mean([histogram(20 * classes * k + number) for k in range(20)], axis=0)
        for number in range(classes)
    ]
    tests = [
        (number, histogram(number + classes * (7 + 20 * k))) for number in range(classes) for k in range(9)
    ]
    right = np.mean([np.argmin([np.linalg.norm(h - mean) for mean in means]) == n for n, h in tests])
    assert 2 / classes < right < 0.9


def test_a_preset_of_imagenet_cannot_be_made(tmp_path):
    with pytest.raises(UserError, match="ImageNet"):
        simulate.make(described(simulation=None), tmp_path / "out", Solo(), 1)
    with pytest.raises(UserError, match="classes is 50"):
        simulate.make(described(simulation={"classes": 50}), tmp_path / "out", Solo(), 1)


# --- packed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["tfrecord", "lmdb"])
def test_packing_keeps_every_byte_label_and_index(sets, kind):
    ours, packed = opened(sets["jpeg"]), opened(sets[kind])
    for files, images in ((ours.train, packed.train), (ours.evaluation, packed.evaluation)):
        assert [(bytes(d), label) for d, label in images_of(images)] == [
            (Path(files.name(i)).read_bytes(), files.read(i)[1]) for i in range(len(files))
        ]


def test_raw_pixels_equal_pillows(sets):
    raw, files = opened(sets["raw"]).train, opened(sets["jpeg"]).train
    for index in range(TRAIN):
        pixels, label = raw.read(index)
        with Image.open(files.name(index)) as image:
            pillow = np.asarray(image.convert("RGB")).astype(int)
        assert label == files.read(index)[1]
        assert np.abs(pixels - pillow).max() <= 1  # two builds of the same decoder


def test_labels_count_the_folders_in_order_of_name(sets):
    files = opened(sets["jpeg"]).train
    for index in range(TRAIN):
        assert Path(files.name(index)).parent.name == f"class{files.read(index)[1]:04d}"


def test_shards_have_tensorflows_layout_and_balanced_sizes(sets):
    shards = sorted((sets["tfrecord"] / "train").iterdir())
    assert [path.name for path in shards] == [f"train-{n:05d}-of-00016" for n in range(16)]
    sizes = [len(list(tfrecord.read_records(path))) for path in shards]
    assert sum(sizes) == TRAIN and max(sizes) - min(sizes) <= 1
    extents = tfrecord.record_extents(shards[0])
    again = [bytes(tfrecord.read_record(shards[0], *map(int, extent))) for extent in extents]
    assert again == [bytes(record) for record in tfrecord.read_records(shards[0])]
    names = [f"image/{name}" for name in ("class/label", "class/synset", "encoded", "width", "height", "no")]
    found = tfrecord.decode_features(again[0], names)
    assert set(found) == set(names[:-1])
    assert found["image/class/label"] == [1] and bytes(found["image/class/synset"]) == b"class0000"
    with Image.open(io.BytesIO(bytes(found["image/encoded"]))) as image:
        assert (found["image/width"], found["image/height"]) == ([image.width], [image.height])


def test_packing_is_resumed_and_shared_by_ranks(sets, tmp_path):
    out = tmp_path / "out"
    on_ranks(1, 3, lambda world: convert(sets["jpeg"], out, "tfrecord", world, 1))
    first = sorted((out / "train").iterdir())[0]
    before = first.stat().st_mtime_ns
    sorted((out / "train").iterdir())[1].unlink()
    convert(sets["jpeg"], out, "tfrecord", Solo(), 2)
    assert first.stat().st_mtime_ns == before
    ours, again = (manifest.load(root) for root in (sets["tfrecord"], out))
    assert ours.files == again.files
    facts = json.loads((out / manifest.NAME).read_text())["facts"]
    assert facts["packing_seconds"] >= 0 and facts["samples"] == {"train": TRAIN, "validation": EVALUATION}
    with pytest.raises(UserError, match="another format"):
        convert(sets["jpeg"], out, "lmdb", Solo(), 1)


def test_a_packed_set_can_be_converted_but_pixels_cannot(sets, tmp_path):
    convert(sets["lmdb"], tmp_path / "shards", "tfrecord", Solo(), 1)
    shards, files = opened(tmp_path / "shards"), opened(sets["jpeg"])
    for ours, expected in ((shards.train, files.train), (shards.evaluation, files.evaluation)):
        assert [(bytes(d), label) for d, label in images_of(ours)] == [
            (bytes(d), label) for d, label in images_of(expected)
        ]
    with pytest.raises(UserError, match="contains decoded pixels"):
        convert(sets["raw"], tmp_path / "lmdb", "lmdb", Solo(), 1)
    with pytest.raises(UserError, match="another folder to write to"):
        convert(sets["jpeg"], sets["jpeg"], "lmdb", Solo(), 1)


# --- found and shared -----------------------------------------------------------------------------


def test_a_val_folder_and_shards_without_folders_are_accepted(own):
    jpeg, shards = without_manifest(own("jpeg")), without_manifest(own("tfrecord"))
    (jpeg / "validation").rename(jpeg / "val")
    for path in [*shards.glob("*/*")]:
        path.rename(shards / path.name)
    for root in (jpeg, shards):
        share = opened(root)
        assert (len(share.train), len(share.evaluation)) == (TRAIN, EVALUATION)


def test_nodes_with_different_shards_read_every_image_once(sets):
    shares = on_ranks(
        2, 2, lambda world: opened(sets["tfrecord"], world=world, staged=sets["tfrecord"], mode="shard")
    )
    for which, count in (("train", TRAIN), ("evaluation", EVALUATION)):
        nodes = [getattr(shares[rank], which) for rank in (0, 2)]
        seen = Counter(bytes(data) for images in nodes for data, _ in images_of(images))
        assert len(seen) == count and set(seen.values()) == {1}
        assert getattr(shares[1], which).name(0) == nodes[0].name(0)
    assert shares[0].train_pool.number != shares[2].train_pool.number
    for error in on_ranks(
        2, 1, lambda world: opened(sets["lmdb"], world=world, staged=sets["lmdb"], mode="shard")
    ):
        assert "replicate" in str(error)


def test_a_data_set_of_another_size_is_not_truncated(sets):
    """The first images in order of path would be the first classes."""
    with pytest.raises(UserError, match=r"22 images in train, 10 are expected; set data\.train_samples=22"):
        opened(sets["jpeg"], train_samples=10)


# --- wrong ----------------------------------------------------------------------------------------


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
        ("jpeg", spoil_stray_file, r"notes\.txt: not an image in a class's folder"),
        ("tfrecord", spoil_missing_shard, r"train-00000-of-00016: one of 16 shards .* there are 15"),
        ("tfrecord", spoil_truncated_shard, r"train-00003-of-00016: truncated at byte \d+ in record 1"),
        ("tfrecord", spoil_cut_between_header_and_end, r"train-00003-of-00016: not a plain TFRecord"),
        ("tfrecord", spoil_shard_by_another_file, r"train-00003-of-00016: not a plain TFRecord"),
        ("lmdb", spoil_lmdb_version, r"train/data\.mdb: version 999 of LMDB's format"),
        ("lmdb", spoil_lmdb, r"train/data\.mdb: not a readable LMDB data file"),
        ("lmdb", shorten_lmdb, r"train/data\.mdb: truncated, \d+ bytes of at least \d+"),
        ("raw", spoil_pixels, r"pixels\.raw: \d+ bytes, expected \d+"),
        ("lmdb", damage_lmdb_page, r"train/data\.mdb: not a readable LMDB data file"),
        ("raw", archive_as_index, r"index\.npy: an archive"),
        ("raw", damage_index_header, r"pixels\.raw or index\.npy: cannot be read"),
        ("raw", overflowing_index, r"index\.npy: has images beyond"),
        ("raw", spoil_pixel_index, r"pixels\.raw and index\.npy go together"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_every_defect_of_a_data_set_is_a_one_line_error(own, kind, spoil, message):
    root = own(kind)
    spoil(root)
    with pytest.raises(UserError, match=message) as raised:
        opened(root, **({"train_samples": TRAIN} if kind != "jpeg" else count(root)))
    assert "\n" not in str(raised.value) and str(root) in str(raised.value)


def count(root):
    """Settings of a run that match a damaged set of files, so that it passes the counting."""
    names = [p for split in ("train", "validation") for p in (root / split).rglob("*.*")]
    counts = Counter(p.relative_to(root).parts[0] for p in names)
    return {"train_samples": counts["train"], "eval_samples": counts["validation"]}


@pytest.mark.parametrize("kind", FORMATS)
def test_another_number_of_classes_is_refused(sets, kind):
    with pytest.raises(UserError, match=r"3 classes, but the network has 7; set network\.classes=3"):
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


@pytest.mark.parametrize("record", [b"\xff" * 30, tfrecord.encode_features({"x": [1]})])
def test_records_of_another_kind_are_named(own, record):
    path = own("tfrecord") / "train" / "train-00002-of-00016"
    tfrecord.write_records(path, [record] * 2, gzip=False)
    with pytest.raises(UserError, match=r"train-00002-of-00016: record 0: (not a readable|lacks)"):
        images_of(opened(path.parents[1]).train)


def test_an_lmdb_of_another_kind_is_named(own):
    root = own("lmdb")
    path = str(root / "train" / "data.mdb")
    with (
        lmdb.open(path, subdir=False, map_size=1 << 24, lock=False) as environment,
        environment.begin(write=True) as transaction,
    ):
        transaction.put(b"%08d" % 4, b"\xff" * 40)
    with pytest.raises(UserError, match=r"data\.mdb: 00000004: not a Datum of Caffe"):
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
    found = images_of(opened(tmp_path).train)
    assert [bytes(data) for data, _ in found] == [bytes(files.read(i)[0]) for i in range(TRAIN)]


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
    with pytest.raises(UserError, match=r"has no validation/"):
        opened(root)
    with pytest.raises(UserError, match=r"has no validation/"):
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
