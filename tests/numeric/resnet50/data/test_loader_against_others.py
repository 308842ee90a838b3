"""ResNet-50's images as torchvision, DALI and Pillow read them."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.resnet50_loader import EVALUATION, FACTS, FORMATS, GREY_LEVEL, SIZE, TRAIN, open_loader
from helpers.resnet50_sets import PACKED
from PIL import Image
from scipy.stats import ks_2samp
from torchvision.transforms import v2

from mlhpc.common.ranks.world import Solo
from mlhpc.resnet50.data.augment import MEAN, STD, training_view
from mlhpc.resnet50.data.convert import convert
from mlhpc.resnet50.data.image import decode, size_of
from mlhpc.resnet50.data.reader import Reader
from mlhpc.resnet50.synthetic import simulate


@pytest.fixture(scope="module")
def sets(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("resnet50")
    simulate.make(FACTS, root / "jpeg", Solo(), 1)
    for kind in PACKED:
        convert(root / "jpeg", root / kind, kind, Solo(), 2)
    return {kind: root / kind for kind in FORMATS}


def test_evaluation_equals_torchvisions_resize_and_centre_crop(sets):
    reference = v2.Compose(
        [
            v2.PILToTensor(),
            v2.Resize(round(SIZE * 256 / 224), antialias=True),
            v2.CenterCrop(SIZE),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )
    loader = open_loader(sets["jpeg"])
    theirs = torch.stack(
        [
            reference(Image.open(loader.samples.evaluation.name(i)).convert("RGB"))
            for i in sorted(range(EVALUATION), key=lambda i: loader.samples.evaluation.name(i))
        ]
    )
    ours = torch.cat([x for x, _ in loader.evaluation()])
    assert (ours - theirs).abs().max() < 2.1 * GREY_LEVEL  # Pillow's build of the decoder is another
    assert (ours - theirs).abs().mean() < 0.02 * GREY_LEVEL


def test_training_views_equal_torchvisions_crop_mirror_and_resize(sets):
    loader = open_loader(sets["jpeg"])
    reader = Reader(loader.samples.train, SIZE, (3, 0, 2))
    mirrored = 0
    for index in range(TRAIN):
        x = np.empty((SIZE, SIZE, 3), np.float32)
        reader.read(index, x)
        view = reader.view(index, loader.samples.train.read(index)[0])
        image = v2.functional.pil_to_tensor(Image.open(loader.samples.train.name(index)).convert("RGB"))
        box = (view.top, view.left, view.height, view.width)
        crop = v2.functional.resized_crop(image, *box, [SIZE, SIZE], antialias=True)
        crop = v2.functional.horizontal_flip(crop) if view.mirrored else crop
        theirs = v2.functional.normalize(crop.float() / 255, MEAN, STD)
        assert (torch.from_numpy(x).permute(2, 0, 1) - theirs).abs().max() < 2.1 * GREY_LEVEL
        mirrored += view.mirrored
    assert 0 < mirrored < TRAIN


def test_boxes_have_torchvisions_distribution():
    torch.manual_seed(0)
    height, width, count = 375, 500, 3000
    image = torch.empty(3, height, width)
    theirs = np.array([list(v2.RandomResizedCrop(8).make_params([image]).values()) for _ in range(count)])
    views = [training_view(height, width, 8, np.random.default_rng([1, i])) for i in range(count)]
    ours = np.array([view[:4] for view in views])
    assert (ours[:, 0] >= 0).all() and (ours[:, 0] + ours[:, 2] <= height).all()
    assert (ours[:, 1] >= 0).all() and (ours[:, 1] + ours[:, 3] <= width).all()
    for name, pair in {
        "area": [a[:, 2] * a[:, 3] for a in (ours, theirs)],
        "ratio": [a[:, 3] / a[:, 2] for a in (ours, theirs)],
        "top": [a[:, 0] for a in (ours, theirs)],
        "left": [a[:, 1] for a in (ours, theirs)],
    }.items():
        assert ks_2samp(*pair).pvalue > 1e-3, name
    area = ours[:, 2] * ours[:, 3] / (height * width)
    assert area.min() > 0.079 and area.max() <= 1
    assert abs(np.mean([view.mirrored for view in views]) - 0.5) < 0.04


@pytest.mark.parametrize(("height", "width"), [(20, 400), (400, 20), (1, 1), (3, 1000)])
def test_an_image_of_odd_shape_still_has_a_view(height, width):
    for i in range(50):
        view = training_view(height, width, 8, np.random.default_rng(i))
        assert view.height >= 1 and view.width >= 1
        assert 0 <= view.top <= height - view.height and 0 <= view.left <= width - view.width


def test_dalis_own_readers_find_the_same_images_and_labels_in_both_formats(sets, tmp_path):
    """TFRecord and Caffe's LMDB as others read them."""
    from nvidia.dali import Pipeline, fn, tfrecord, types

    shards = sorted((sets["tfrecord"] / "train").iterdir())
    indices = []
    for shard in shards:  # DALI needs offset and size of each framed record
        lines, at, data = [], 0, shard.read_bytes()
        while at < len(data):
            size = int.from_bytes(data[at : at + 8], "little") + 16
            lines.append(f"{at} {size}\n")
            at += size
        indices.append(tmp_path / shard.name)
        indices[-1].write_text("".join(lines))
    pipeline = Pipeline(batch_size=1, num_threads=1, device_id=None)
    with pipeline:
        records = fn.readers.tfrecord(
            path=[str(path) for path in shards],
            index_path=[str(path) for path in indices],
            features={
                "image/encoded": tfrecord.FixedLenFeature((), tfrecord.string, ""),
                "image/class/label": tfrecord.FixedLenFeature([1], tfrecord.int64, -1),
            },
        )
        caffe, label = fn.readers.caffe(path=str(sets["lmdb"] / "train"))
        decoded = fn.decoders.image(records["image/encoded"], output_type=types.RGB)
        pipeline.set_outputs(records["image/encoded"], records["image/class/label"], caffe, label, decoded)
    pipeline.build()
    runs = [[np.array(out.at(0)) for out in pipeline.run()] for _ in range(TRAIN)]
    files = open_loader(sets["jpeg"]).samples.train
    ours = [(bytes(data), label) for data, label in (files.read(i) for i in range(TRAIN))]
    assert sorted((bytes(r[0]), int(r[1].item()) - 1) for r in runs) == sorted(ours)
    assert [(bytes(r[2]), int(r[3].item())) for r in runs] == ours


def jpeg_of(mode, suffix="JPEG", **how):
    rng = np.random.default_rng(2)
    pixels = rng.integers(0, 256, (6, 8, 3), np.uint8)
    out = io.BytesIO()
    image = Image.fromarray(pixels).resize((70, 50), Image.Resampling.BICUBIC).convert(mode)
    image.save(out, suffix, **how)
    return np.frombuffer(out.getvalue(), np.uint8).copy()


@pytest.mark.parametrize(
    "data",
    [
        jpeg_of("L"),
        jpeg_of("CMYK"),
        jpeg_of("RGB", progressive=True),
        jpeg_of("RGB", subsampling=0),
        jpeg_of("RGB", "PNG"),
        jpeg_of("RGBA", "PNG"),
        jpeg_of("P", "PNG"),
    ],
    ids=["grey", "cmyk", "progressive", "444", "png", "png with alpha", "palette"],
)
def test_every_kind_of_image_is_converted_to_rgb_like_in_pillow(data):
    pillow = np.asarray(Image.open(io.BytesIO(data.tobytes())).convert("RGB")).astype(int)
    assert np.abs(decode(data).permute(1, 2, 0).numpy() - pillow).max() <= 2
    assert size_of(data) == (50, 70)
