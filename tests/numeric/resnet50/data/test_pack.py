"""Images packed while staging: every byte arrives, no files are left behind, foreign files are not touched."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.thread_world import on_ranks

from mlhpc.benchmarks.resnet50 import Data
from mlhpc.common.data import manifest
from mlhpc.common.data.verify import verify
from mlhpc.common.files import locks
from mlhpc.common.files.filesystem import FileSystem
from mlhpc.common.ranks.world import Solo
from mlhpc.common.staging.stage import remove, stage
from mlhpc.errors import UserError
from mlhpc.resnet50.data.convert import convert
from mlhpc.resnet50.data.dataset import assign_samples, select
from mlhpc.resnet50.data.pack import pack
from mlhpc.resnet50.synthetic import simulate

TRAIN, EVALUATION, CLASSES = 22, 9, 3
IMAGES = TRAIN + EVALUATION
COUNTS = {"train_samples": TRAIN, "eval_samples": EVALUATION}
DATA = Data(**COUNTS, sample_shape=(32, 32, 3), simulation={"classes": CLASSES, "side": 48, "seed": 5})


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("pictures")
    simulate.make(DATA, root / "jpeg", Solo(), 1)
    return root / "jpeg"


@pytest.fixture
def own(pictures, tmp_path) -> Path:
    """A data set to spoil."""
    return Path(shutil.copytree(pictures, tmp_path / "own"))


@pytest.fixture
def target(tmp_path) -> Path:
    return tmp_path / "target"


def described(root, world=None):
    return select(manifest.describe(root, world or Solo()), DATA)


def packed(root, target, world=None):
    world = world or Solo()
    return pack(described(root, world), target, world, CLASSES, 2)


def files_below(root):
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def holds_the_images(made, root, world=None) -> bool:
    """Whether a run finds in a packed set what the files of the class folders hold, in order of path."""
    share = assign_samples(made, made.root, "replicate", world or Solo(), classes=CLASSES, **COUNTS)
    for split, images in (("train", share.train), ("validation", share.evaluation)):
        paths = sorted((root / split).rglob("*.JPEG"))
        labels = [int(path.parent.name.removeprefix("class")) for path in paths]
        read = [images.read(index) for index in range(len(images))]
        if [(bytes(data), label) for data, label in read] != [
            (path.read_bytes(), label) for path, label in zip(paths, labels, strict=True)
        ]:
            return False
    return True


def fails_alike(outcomes, *words):
    assert all(isinstance(error, UserError) for error in outcomes), outcomes
    messages = {str(error) for error in outcomes}
    assert len(messages) == 1 and "\n" not in (message := messages.pop())
    assert all(word in message for word in words), message


def test_every_image_is_packed_and_remove_deletes_everything(pictures, target):
    made, report = packed(pictures, target)
    assert holds_the_images(made, pictures)
    assert (report.files, report.kept, report.verified) == (IMAGES, 0, True)
    assert report.bytes == sum(path.stat().st_size for path in pictures.rglob("*.JPEG"))
    assert verify(target, 1) == []
    remove(target)
    assert not target.exists()


def test_packing_writes_the_same_shards_as_convert(pictures, target, tmp_path):
    packed(pictures, target)
    convert(pictures, tmp_path / "converted", "tfrecord", Solo(), 1)
    for path in (tmp_path / "converted").glob("*/*"):
        assert path.read_bytes() == (target / path.relative_to(tmp_path / "converted")).read_bytes()


def test_every_node_with_its_own_storage_has_all_images(pictures, tmp_path):
    def work(world):
        made, report = packed(pictures, tmp_path / f"node{world.node}", world)
        whole = holds_the_images(manifest.load(tmp_path / f"node{world.node}"), pictures, world)
        return made.root, report, whole

    outcomes = on_ranks(2, 2, work)
    assert [whole for _, _, whole in outcomes] == [True] * 4, outcomes
    assert outcomes[0][1].files == 2 * IMAGES and len(outcomes[0][1].rank_seconds) == 4


def test_nodes_that_share_the_target_read_each_image_once(pictures, target):
    made, report = on_ranks(2, 2, lambda world: packed(pictures, target, world))[3]
    assert report.files == IMAGES and holds_the_images(made, pictures)


def test_a_val_folder_is_packed_and_other_files_in_the_target_are_kept(own, target):
    (own / "validation").rename(own / "val")
    (own / manifest.NAME).unlink()
    (target / "train").mkdir(parents=True)
    (target / "train" / "mine").write_text("precious")
    _, report = packed(own, target)
    assert report.files == IMAGES and not report.verified
    remove(target)
    assert files_below(target) == ["train/mine"]


# --- interrupted, and shared ----------------------------------------------------------------------

RUN = """\
import sys, time
from pathlib import Path
from mlhpc.benchmarks.resnet50 import Data
from mlhpc.common.data import manifest
from mlhpc.common.files import atomic
from mlhpc.common.staging import stage
from mlhpc.common.ranks.world import Solo
from mlhpc.resnet50.data import convert, pack
from mlhpc.resnet50.data.dataset import select
source, target, pause = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
real = convert.write_record
def slow(fd, pieces):
    real(fd, pieces); print('writing', flush=True); time.sleep(pause)
convert.write_record = slow
data = Data(train_samples=22, eval_samples=9, sample_shape=(32, 32, 3))
_, report = pack.pack(select(manifest.describe(source, Solo()), data), target, Solo(), 3, 1)
print('packed', report.files, report.kept, report.shared, flush=True)
sys.stdin.readline()
stage.remove(target)
print('removed', flush=True)
"""


def begin(source, target, pause=0.0):
    words = [sys.executable, "-c", RUN, str(source), str(target), str(pause)]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def said(run, word):
    while line := run.stdout.readline():
        if line.startswith(word):
            return line.strip()
    raise AssertionError(f"it ended without saying {word!r}")


def end(run):
    run.communicate("\n", timeout=60)
    assert run.returncode == 0


@pytest.fixture(scope="module")
def killed(pictures, tmp_path_factory) -> Path:
    """A target whose packing was killed."""
    folder = tmp_path_factory.mktemp("killed") / "target"
    run = begin(pictures, folder, pause=0.02)
    for _ in range(5):
        said(run, "writing")
    run.send_signal(signal.SIGKILL)
    run.communicate()
    left = files_below(folder)
    assert manifest.NAME in left and any("-of-" in name for name in left)
    return folder


def test_a_killed_packing_starts_over(pictures, killed, target):
    shutil.copytree(killed, target)
    made, report = packed(pictures, target)
    assert (report.files, report.kept) == (IMAGES, 0) and holds_the_images(made, pictures)
    remove(target)
    assert not target.exists()


def test_a_killed_packing_can_be_followed_by_plain_staging_and_vice_versa(pictures, killed, target):
    shutil.copytree(killed, target)
    stage(described(pictures), target, Solo(), "replicate")
    assert not list(target.rglob("*-of-*"))
    locks.unregister(target)  # as the kernel does for a killed run
    made, _ = packed(pictures, target)
    assert holds_the_images(made, pictures) and not list(target.rglob("*.JPEG"))


def test_of_runs_sharing_a_target_one_packs_and_the_last_removes(pictures, target):
    one = begin(pictures, target, pause=0.02)
    said(one, "writing")
    other = begin(pictures, target)  # it comes while the first packs
    assert said(one, "packed") == f"packed {IMAGES} 0 0"
    assert said(other, "packed") == f"packed 0 {IMAGES} {IMAGES}"
    end(one)
    assert holds_the_images(manifest.load(target), pictures)
    with pytest.raises(UserError, match="another run uses"):
        stage(described(pictures), target, Solo(), "replicate")
    end(other)
    assert not target.exists()


STAGER = """\
import sys
from pathlib import Path
from mlhpc.common.data import manifest
from mlhpc.common.staging.stage import stage
from mlhpc.common.ranks.world import Solo
stage(manifest.load(Path(sys.argv[1])), Path(sys.argv[2]), Solo(), "replicate")
print("staged", flush=True)
sys.stdin.readline()
"""


def test_staged_files_in_use_by_another_run_are_kept(pictures, target):
    words = [sys.executable, "-c", STAGER, str(pictures), str(target)]
    one = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    said(one, "staged")
    with pytest.raises(UserError, match="another run uses this folder with the same data set unpacked"):
        packed(pictures, target)
    assert len(list(target.rglob("*.JPEG"))) == IMAGES
    end(one)


# --- what goes wrong ------------------------------------------------------------------------------


def flip_a_byte(path):
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content)


def no_frame(path):
    path.write_bytes(b"\xff\xd8" + bytes(path.stat().st_size - 2))
    (path.parents[2] / manifest.NAME).unlink()  # else its checksum tells first


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (flip_a_byte, ["checksum ", ", expected ", "mlhpc data verify"]),
        (lambda path: path.write_bytes(path.read_bytes()[:100]), ["100 bytes, expected"]),
        (lambda path: path.write_bytes(path.read_bytes() + b"x"), [" bytes, expected"]),
        (lambda path: path.unlink(), ["cannot be read: No such file"]),
        (no_frame, ["without a frame header", "fix or remove it"]),
    ],
)
def test_a_damaged_image_is_named_and_no_files_are_left(own, target, spoil, words):
    path = sorted((own / "train").rglob("*.JPEG"))[7]
    spoil(path)
    fails_alike(on_ranks(1, 2, lambda world: packed(own, target, world)), str(path), *words)
    assert not target.exists()


def test_a_full_disk_is_a_one_line_error_and_no_files_are_left(pictures, target, monkeypatch):
    """On a tmpfs of 32 KiB, if one may be mounted."""
    target.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=32k,mode=700", "tmpfs", str(target)]
    if os.geteuid() or shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("only root may mount")
    try:
        with pytest.raises(UserError, match=r"staging needs .*, but tmpfs on .*target has only .* free"):
            packed(pictures, target)
        assert files_below(target) == []
        roomy = FileSystem("tmpfs", target, True, 10**12)
        monkeypatch.setattr("mlhpc.common.staging.target.filesystem_of", lambda path: roomy)
        outcomes = on_ranks(1, 2, lambda world: packed(pictures, target, world))
        fails_alike(outcomes, f"{target} cannot be written: No space left on device (tmpfs on", "free some")
        assert files_below(target) == []
    finally:
        subprocess.run(["umount", str(target)], check=True)


def test_a_folder_with_too_little_room_is_not_left(pictures, target, monkeypatch):
    small = FileSystem("tmpfs", target, True, 10)
    monkeypatch.setattr("mlhpc.common.staging.target.filesystem_of", lambda path: small)
    with pytest.raises(UserError, match="staging needs "):
        packed(pictures, target)
    assert not target.exists()


def test_foreign_files_are_refused_and_kept(pictures, own, target):
    (target / "validation").mkdir(parents=True)
    theirs = target / "validation" / "validation-00003-of-00009"
    theirs.write_text("precious")
    fails_alike(
        on_ranks(1, 2, lambda world: packed(pictures, target, world)),
        f"{theirs} exists, but was not written by staging",
    )
    assert files_below(target) == ["validation/validation-00003-of-00009"]
    before = files_below(own)
    with pytest.raises(UserError, match="contains a data set not written by staging"):
        packed(pictures, own)
    with pytest.raises(UserError, match="inside the data set to be staged"):
        packed(pictures, pictures / "stage")
    assert files_below(own) == before


def test_another_staged_data_set_is_refused_and_kept(pictures, own, target):
    stage(described(pictures), target, Solo(), "replicate")
    locks.unregister(target)
    before = files_below(target)
    flip_a_byte(sorted((own / "train").rglob("*.JPEG"))[0])
    manifest.index(own, {}, Solo(), 1)
    with pytest.raises(UserError, match="contains a different staged data set"):
        packed(own, target)
    assert files_below(target) == before


@pytest.mark.parametrize("kind", ["tfrecord", "lmdb", "raw"])
def test_a_packed_data_set_is_not_packed_again(pictures, target, tmp_path, kind):
    convert(pictures, tmp_path / kind, kind, Solo(), 1)
    with pytest.raises(UserError, match=r"is already packed; omit staging\.pack"):
        packed(tmp_path / kind, target)
    assert not target.exists()


def test_another_number_of_classes_is_refused_before_anything_is_written(pictures, target):
    with pytest.raises(UserError, match="3 classes, not 4"):
        pack(described(pictures), target, Solo(), 4, 1)
    assert not target.exists()
