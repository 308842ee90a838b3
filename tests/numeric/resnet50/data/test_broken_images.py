"""Broken images: the run stops and names them, or skips them on request."""

import shutil
import threading
from pathlib import Path

import pytest
import torch
from helpers.resnet50_loader import EVALUATION, FACTS, TRAIN, broken, epoch_of, open_loader
from helpers.resnet50_sets import in_every_format

from mlhpc.benchmarks.load import load
from mlhpc.errors import UserError


@pytest.fixture(scope="module")
def sets(tmp_path_factory) -> dict[str, Path]:
    return in_every_format(tmp_path_factory.mktemp("resnet50"), FACTS)


@pytest.fixture
def own(sets, tmp_path):
    return Path(shutil.copytree(sets["jpeg"], tmp_path / "own"))


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
    assert len(one.source.skipped) == 2
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 2 and all(name in line for name, line in zip(names, told, strict=True))


def test_dali_refuses_to_skip_broken_images():
    settings = ["loading.loader=dali", "loading.broken_images=skip"]
    with pytest.raises(UserError, match=r"loading\.loader=threads"):
        load("resnet50", "smoke", settings)


def test_only_broken_images_end_the_run(own):
    for path in (own / "train").rglob("*.JPEG"):
        path.write_bytes(b"")
    with pytest.raises(UserError, match="no readable images are left"):
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
