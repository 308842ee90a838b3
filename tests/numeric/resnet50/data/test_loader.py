"""ResNet-50's loaders: the same images and views whatever reads them."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.resnet50_loader import EVALUATION, FACTS, FORMATS, GREY_LEVEL, SIZE, TRAIN, epoch_of, open_loader
from helpers.resnet50_sets import in_every_format
from PIL import Image

from mlhpc.benchmarks.load import load
from mlhpc.cli import main
from mlhpc.errors import UserError
from mlhpc.perf.samples import sample_bytes
from mlhpc.resnet50.data.augment import MEAN, STD
from mlhpc.resnet50.data.reader import Reader
from mlhpc.resnet50.synthetic.show import show

LOADERS = ("threads", "workers", "dali")


@pytest.fixture(scope="module")
def sets(tmp_path_factory) -> dict[str, Path]:
    return in_every_format(tmp_path_factory.mktemp("resnet50"), FACTS)


@pytest.fixture
def own(sets, tmp_path):
    return Path(shutil.copytree(sets["jpeg"], tmp_path / "own"))


# --- the same batches -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FORMATS[1:])
def test_the_same_images_give_the_same_tensors_from_every_format(sets, kind):
    x, y = epoch_of(open_loader(sets["jpeg"]))
    other_x, other_y = epoch_of(open_loader(sets[kind], workers=3))
    assert torch.equal(y, other_y) and torch.equal(x, other_x)


def test_a_sample_has_the_bytes_that_predictions_count(sets):
    x, y = epoch_of(open_loader(sets["jpeg"]))
    run = load("resnet50", "smoke", [f"data.sample_shape=[{SIZE},{SIZE},3]"])
    assert sample_bytes(run).received == x[0].nbytes + y[0].nbytes


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
    assert main(list(map(str, [*words, *more]))) == 0
    rows = json.loads(capsys.readouterr().out)["ways"]
    assert [(row["data"], row["loader"]) for row in rows] == [
        (str(sets[kind]), loader) for kind in ("jpeg", "lmdb") for loader in ("threads", "workers")
    ]
    assert all(row["samples_per_s_warm"] > 0 and row["bytes_read_per_sample"] > 0 for row in rows)
    assert [row["same_samples"] for row in rows] == ["bit for bit"] * 4


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
        UserError, match=r"no/such/folder/a\.png: the image cannot be written: there is no folder"
    ):
        show(sets["jpeg"], tmp_path / "no/such/folder/a.png")
    broken = sorted((own / "train").rglob("*.JPEG"))[0]
    broken.write_bytes(b"\xff\xd8nothing")
    with pytest.raises(UserError, match=broken.name):
        show(own, tmp_path / "a.png")
    assert not (tmp_path / "a.png").exists()
