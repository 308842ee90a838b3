"""ResNet-50's formats: lossless packing, and which images a rank reads."""

import io
import json
import os
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from helpers.resnet50_sets import (
    EVALUATION,
    TRAIN,
    described,
    images_of,
    in_every_format,
    opened,
    without_manifest,
)
from helpers.thread_world import on_ranks
from PIL import Image

from mlhpc.common.data import manifest
from mlhpc.common.formats import tf_example, tfrecord
from mlhpc.common.ranks.world import Solo
from mlhpc.errors import UserError
from mlhpc.resnet50.data.convert import convert


@pytest.fixture(scope="module")
def sets(tmp_path_factory) -> dict[str, Path]:
    return in_every_format(tmp_path_factory.mktemp("resnet50"), described())


@pytest.fixture
def own(sets, tmp_path):
    """A data set to damage, in the given format."""

    def copy(kind="jpeg"):
        return Path(shutil.copytree(sets[kind], tmp_path / kind))

    return copy


# --- packed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["tfrecord", "lmdb"])
def test_packing_keeps_every_byte_label_and_index(sets, kind):
    ours, packed = opened(sets["jpeg"]), opened(sets[kind])
    for files, images in ((ours.train, packed.train), (ours.evaluation, packed.evaluation)):
        assert [(bytes(d), label) for d, label in images_of(images)] == [
            (Path(files.name(i)).read_bytes(), files.read(i)[1]) for i in range(len(files))
        ]


@pytest.mark.parametrize(
    ("kind", "file", "codec"),
    [
        *(("jpeg", "*.JPEG", codec) for codec in ("tfrecord", "lmdb")),
        ("lmdb", "data.mdb", "tfrecord"),
        ("raw", "pixels.raw", "raw"),
    ],
)
def test_damage_that_only_the_manifest_shows_is_not_packed(own, tmp_path, kind, file, codec):
    source = own(kind)
    damaged = max((source / "train").rglob(file))
    content = bytearray(damaged.read_bytes())
    content[-5] ^= 1
    damaged.write_bytes(content)
    with pytest.raises(UserError, match=f"{damaged}: checksum [0-9a-f]{{8}}, not"):
        convert(source, tmp_path / "out", codec, Solo(), 2)
    assert not (tmp_path / "out" / "manifest.json").exists()


@pytest.mark.parametrize("kind", ["tfrecord", "lmdb", "raw"])
def test_a_full_disk_is_a_one_line_error_and_nothing_is_half_written(sets, tmp_path, kind):
    """On a tmpfs of 64 KiB, if one may be mounted."""
    out = tmp_path / "out"
    out.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs", str(out)]
    if os.geteuid() or shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("only root may mount")
    try:
        with pytest.raises(UserError) as error:
            convert(sets["jpeg"], out, kind, Solo(), 2)
        message = str(error.value)
        assert message.startswith(str(out)) and "cannot be written" in message
        assert "No space left on device" in message and "check free space and permissions" in message
        assert not list(out.rglob("*.part")) and not (out / "manifest.json").exists()
    finally:
        subprocess.run(["umount", str(out)], check=True)


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
    features = tf_example.decode_features(again[0], names)
    assert set(features) == set(names[:-1])
    assert features["image/class/label"] == [1] and bytes(features["image/class/synset"]) == b"class0000"
    with Image.open(io.BytesIO(bytes(features["image/encoded"]))) as image:
        assert (features["image/width"], features["image/height"]) == ([image.width], [image.height])


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
    with pytest.raises(UserError, match=r"different settings \(format\)"):
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
    with pytest.raises(UserError, match="choose an output folder outside"):
        convert(sets["jpeg"], sets["jpeg"] / "lmdb", "lmdb", Solo(), 1)
    with pytest.raises(UserError, match="another output folder"):
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
    with pytest.raises(
        UserError, match=r"22 images in train, but 10 are expected; set data\.train_samples=22"
    ):
        opened(sets["jpeg"], train_samples=10)
