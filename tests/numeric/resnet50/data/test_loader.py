"""ResNet-50's loaders: the same images and views whatever reads them, as torchvision and Pillow have them."""

import io
import json
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import ks_2samp
from torchvision.transforms import v2

from mlhpc.benchmarks.load import load
from mlhpc.benchmarks.resnet50 import Data, Loading
from mlhpc.cli import main
from mlhpc.common.data import manifest
from mlhpc.common.data.sharding import Pool
from mlhpc.common.ranks.world import Solo
from mlhpc.errors import UserError
from mlhpc.resnet50.data.augment import MEAN, STD, training_view
from mlhpc.resnet50.data.convert import convert
from mlhpc.resnet50.data.dataset import RankSamples, assign_samples, select
from mlhpc.resnet50.data.image import decode, size_of
from mlhpc.resnet50.data.loader import Loader
from mlhpc.resnet50.data.reader import Reader
from mlhpc.resnet50.synthetic import simulate
from mlhpc.resnet50.synthetic.show import show

TRAIN, EVALUATION, CLASSES, SIZE = 16, 7, 2, 64
FACTS = Data(
    train_samples=TRAIN,
    eval_samples=EVALUATION,
    sample_shape=(SIZE, SIZE, 3),
    simulation={"classes": CLASSES, "side": 150},
)
FORMATS = ("jpeg", "tfrecord", "lmdb", "raw")
LOADERS = ("threads", "workers", "dali")
GREY_LEVEL = 1 / (255 * min(STD))


@pytest.fixture(scope="module")
def sets(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("resnet50")
    simulate.make(FACTS, root / "jpeg", Solo(), 1)
    for kind in FORMATS[1:]:
        convert(root / "jpeg", root / kind, kind, Solo(), 2)
    return {kind: root / kind for kind in FORMATS}


@pytest.fixture
def own(sets, tmp_path):
    return Path(shutil.copytree(sets["jpeg"], tmp_path / "own"))


def open_loader(root, loader="threads", ranks=1, place=0, batch=4, **more):
    world = Solo()
    dataset = select(manifest.describe(root, world), FACTS)
    share = assign_samples(
        dataset, None, "replicate", world, classes=CLASSES, train_samples=TRAIN, eval_samples=EVALUATION
    )
    samples = RankSamples(share.train, share.evaluation, Pool(TRAIN, ranks), Pool(EVALUATION, ranks), place)
    settings = {key: more.pop(key) for key in ("workers", "broken_images") if key in more}
    return Loader(
        samples,
        Loading.model_validate({"loader": loader, "workers": 2, "prefetch": 2} | settings),
        sample_shape=FACTS.sample_shape,
        local_batch_size=batch,
        eval_batch_size=3,
        steps=TRAIN // (ranks * batch),
        seed=11,
        **more,
    )


def epoch_of(loader, epoch=0):
    batches = [*loader.train_epoch(epoch), *loader.evaluation()]
    return torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches])


# --- the same batches -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FORMATS[1:])
def test_the_same_images_give_the_same_tensors_from_every_format(sets, kind):
    x, y = epoch_of(open_loader(sets["jpeg"]))
    other_x, other_y = epoch_of(open_loader(sets[kind], workers=3))
    assert torch.equal(y, other_y) and torch.equal(x, other_x)


@pytest.mark.parametrize("kind", ["jpeg", "lmdb"])
def test_worker_processes_give_the_same_tensors(sets, kind):
    x, y = epoch_of(open_loader(sets["jpeg"]))
    other_x, other_y = epoch_of(open_loader(sets[kind], "workers"))
    assert torch.equal(y, other_y) and torch.equal(x, other_x)


@pytest.mark.parametrize("kind", FORMATS)
def test_dali_gives_nearly_the_same_tensors(sets, kind):
    """Its decoder and resampling are its own: half a grey level on average, a few at an edge."""
    x, y = epoch_of(open_loader(sets["jpeg"]))
    other_x, other_y = epoch_of(open_loader(sets[kind], "dali"))
    assert torch.equal(y, other_y)
    assert (x - other_x).abs().mean() < 0.6 * GREY_LEVEL and (x - other_x).abs().max() < 12 * GREY_LEVEL


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("loader", LOADERS)
def test_the_references_preprocessing_is_equal_for_every_loader_and_format(sets, loader, kind):
    """Bit for bit, except with DALI, which for raw pixels differs by the rounding of its sampling points."""
    x, y = epoch_of(open_loader(sets["jpeg"], preprocessing="mlperf"))
    other_x, other_y = epoch_of(open_loader(sets[kind], loader, preprocessing="mlperf"))
    assert torch.equal(y, other_y)
    if loader != "dali":
        assert torch.equal(x, other_x)
    elif kind == "raw":
        assert (x - other_x).abs().max() < 0.05
    else:
        assert (x - other_x).abs().mean() < 0.6 and (x - other_x).abs().max() < 12
    # Bytes less the means, of colours in PyTorch's order.
    for channel, mean in enumerate((123.68, 116.78, 103.94)):
        assert -mean - 0.01 <= x[:, channel].min() < -10 and 10 < x[:, channel].max() <= 255.01 - mean


@pytest.mark.parametrize("loader", LOADERS)
def test_a_batch_is_normalised_float32_channels_last(sets, loader):
    one = open_loader(sets["jpeg"], loader)
    x, y = next(one.train_epoch(0))
    assert x.shape == (4, 3, SIZE, SIZE) and x.dtype == torch.float32 and y.dtype == torch.int64
    assert x.is_contiguous(memory_format=torch.channels_last)
    assert x.min() >= min(-m / s for m, s in zip(MEAN, STD, strict=True)) - 1e-5
    assert x.max() <= max((1 - m) / s for m, s in zip(MEAN, STD, strict=True)) + 1e-5
    assert one.bytes_read > 4 * 1000


def test_the_batches_of_all_ranks_together_are_those_of_one_rank(sets):
    x, _ = epoch_of(open_loader(sets["jpeg"], batch=4))
    of_ranks = [list(open_loader(sets["jpeg"], ranks=2, place=p, batch=2).train_epoch(0)) for p in range(2)]
    together = torch.cat([rank[step][0] for step in range(4) for rank in of_ranks])
    assert torch.equal(x[:TRAIN], together)


def test_views_depend_only_on_image_epoch_and_seed(sets):
    loader = open_loader(sets["jpeg"])
    reader = [Reader(loader.samples.train, SIZE, (1, 0, epoch)) for epoch in (0, 0, 1)]
    views = [[r.view(i, loader.samples.train.read(i)[0]) for i in range(TRAIN)] for r in reader]
    assert views[0] == views[1] and views[0] != views[2] and len(set(views[0])) == TRAIN
    assert torch.equal(epoch_of(loader, 3)[0], epoch_of(open_loader(sets["jpeg"], workers=1), 3)[0])


def test_every_evaluation_image_is_read_once_and_names_match_the_batch(sets):
    parts = [list(open_loader(sets["jpeg"], ranks=3, place=place).evaluation()) for place in range(3)]
    assert sum(len(y) for part in parts for _, y in part) == EVALUATION
    loader = open_loader(sets["jpeg"])
    names, (_, y) = loader.files_of(0, 1), list(loader.train_epoch(0))[1]
    assert [int(Path(name).parent.name[-4:]) for name in names] == y.tolist()


# --- as others do it ------------------------------------------------------------------------------


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


# --- broken ---------------------------------------------------------------------------------------


def broken(root, split, how) -> Path:
    path = sorted((root / split).rglob("*.JPEG"))[2]
    data = path.read_bytes()
    path.write_bytes({"truncated": data[: len(data) // 2], "empty": b"", "text": b"<html>" * 99}[how])
    return path


@pytest.mark.parametrize("how", ["truncated", "empty", "text"])
@pytest.mark.parametrize("loader", ["threads", "dali"])
def test_a_broken_image_stops_the_run_and_is_named(own, loader, how):
    path = broken(own, "train", how)
    with pytest.raises(UserError, match=f"{path.name}: not a readable image.*broken_images=skip") as raised:
        epoch_of(open_loader(own, loader))
    assert "\n" not in str(raised.value)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("reader")]


def test_a_broken_image_in_a_worker_process_is_named(own):
    path = broken(own, "validation", "truncated")
    with pytest.raises(UserError, match=f"{path.name}: not a readable image"):
        epoch_of(open_loader(own, "workers"))


@pytest.mark.parametrize("loader", ["threads", "workers"])
def test_broken_images_are_skipped_on_request(own, sets, loader, capsys):
    names = [broken(own, "train", "truncated").name, broken(own, "validation", "empty").name]
    one = open_loader(own, loader, broken_images="skip")
    whole = open_loader(sets["jpeg"])
    for epoch in range(2):
        x, y = epoch_of(one, epoch)
        expected_x, expected_y = epoch_of(whole, epoch)
        assert len(x) == TRAIN + EVALUATION - 1
        # In training the next image replaces the broken one, with the same view as at its own index.
        order = [Path(n).name for step in range(TRAIN // 4) for n in whole.files_of(epoch, step)]
        gap, following = order.index(names[0]), order.index(Path(whole.samples.train.name(3)).name)
        assert torch.equal(x[gap], expected_x[following]) and y[gap] == expected_y[following]
        rest = [i for i in range(TRAIN + EVALUATION) if i not in (gap, TRAIN + 2)]
        without = [i for i in range(len(x)) if i != gap]
        assert torch.equal(x[without], expected_x[rest])
    assert len(one.skipped) == 2
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 2 and all(name in line for name, line in zip(names, told, strict=True))


def test_dali_refuses_to_skip_broken_images():
    settings = ["loading.loader=dali", "loading.broken_images=skip"]
    with pytest.raises(UserError, match=r"loading\.loader=threads or workers"):
        load("resnet50", "smoke", settings)


def test_only_broken_images_end_the_run(own):
    for path in (own / "train").rglob("*.JPEG"):
        path.write_bytes(b"")
    with pytest.raises(UserError, match="no other image can be read either"):
        epoch_of(open_loader(own, broken_images="skip"))


def test_reading_does_not_change_pytorchs_thread_count(sets):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    iterator = open_loader(sets["jpeg"]).train_epoch(0)
    next(iterator)
    assert torch.get_num_threads() == 2
    later = []
    thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert later == [2]
    iterator.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("reader")]
    torch.set_num_threads(before)


# --- looked at, and compared ------------------------------------------------------------------------


def test_bench_compares_the_loaders_and_formats(sets, capsys):
    words = [
        "data",
        "bench",
        "resnet50",
        sets["jpeg"],
        sets["lmdb"],
        "--samples",
        8,
        "--batch",
        3,
        "--workers",
        1,
    ]
    more = ["--rounds", 1, "--loader", "threads,workers", "--json"]
    # The two sample different images of the same set.
    assert main(list(map(str, [*words, *more]))) == 1
    rows = json.loads(capsys.readouterr().out)["ways"]
    assert [(row["data"], row["loader"]) for row in rows] == [
        (str(sets[kind]), loader) for kind in ("jpeg", "lmdb") for loader in ("threads", "workers")
    ]
    assert all(row["samples_per_s_warm"] > 0 and row["bytes_read_per_sample"] > 0 for row in rows)
    assert [row["same_samples"] for row in rows[:2]] == ["bit for bit"] * 2


def test_a_sheet_shows_the_images_of_a_data_set(sets, tmp_path):
    """The picture of every format is the same, and has the colours of the images in it."""
    pictures = {}
    for kind in FORMATS:
        show(sets[kind], tmp_path / f"{kind}.png")
        with Image.open(tmp_path / f"{kind}.png") as image:
            pictures[kind] = np.asarray(image.convert("RGB"))
    drawn = [(pictures["jpeg"] != pictures[kind]).any(2).mean() for kind in FORMATS]
    assert max(drawn) < 0.02, "only the name of the data set differs"
    assert (np.ptp(pictures["jpeg"], axis=2) > 20).mean() > 0.1, "the images are coloured, the paper is white"


def test_a_sheet_that_cannot_be_written_is_a_one_line_error(sets, own, tmp_path):
    with pytest.raises(
        UserError, match=r"no/such/folder/a\.png: the picture cannot be written: there is no folder"
    ):
        show(sets["jpeg"], tmp_path / "no/such/folder/a.png")
    broken = sorted((own / "train").rglob("*.JPEG"))[0]
    broken.write_bytes(b"\xff\xd8nothing")
    with pytest.raises(UserError, match=broken.name):
        show(own, tmp_path / "a.png")
    assert not (tmp_path / "a.png").exists()
