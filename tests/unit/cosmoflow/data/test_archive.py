"""CosmoFlow packed into archives: the same samples, in the same order."""

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from helpers.cosmoflow_files import make, open_loader

from mlhpc.cli import main
from mlhpc.common.data import manifest
from mlhpc.common.data.verify import verify
from mlhpc.common.ranks.world import Solo
from mlhpc.cosmoflow.data.convert import convert
from mlhpc.errors import UserError


@pytest.fixture(params=["gzip", "plain", "lut"])
def source(request, tmp_path: Path) -> Path:
    root = tmp_path / "source"
    root.mkdir()
    for folder, samples in (("train", 7), ("validation", 3)):
        make(root / folder, request.param, samples)
    facts = {
        "benchmark": "cosmoflow",
        "codec": request.param,
        "lossy": False,
        "samples": {"train": 7, "validation": 3},
    }
    manifest.index(root, facts, Solo(), workers=1)
    return root


def batches(root: Path, **options):
    facts = manifest.load(root).facts
    loader = open_loader(root / "train", facts["codec"], **options)
    return [(np.array(x), np.array(y)) for x, y in loader.train_epoch(2)]


@pytest.mark.parametrize("codec", [None, "plain", "lut"])
@pytest.mark.parametrize("dtype", ["int16", "float16"])
def test_batches_from_archives_are_those_from_files(source: Path, tmp_path: Path, codec, dtype) -> None:
    out = tmp_path / "packed"
    convert(source, out, Solo(), 2, codec=codec, archive=3)
    assert [len(list((out / folder).iterdir())) for folder in ("train", "validation")] == [3, 1]
    for one, other in zip(batches(source, sample_dtype=dtype), batches(out, sample_dtype=dtype), strict=True):
        assert all((a == b).all() for a, b in zip(one, other, strict=True))
    assert verify(out, workers=1) == []


def test_without_a_codec_the_files_are_packed_as_they_are(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "packed"
    convert(source, out, Solo(), 2, archive=100)
    with zipfile.ZipFile(out / "train" / "samples-000000.zip") as packed:
        members = {name: packed.read(name) for name in packed.namelist()}
    assert members == {path.name: path.read_bytes() for path in (source / "train").iterdir()}
    before, after = (manifest.load(root).facts for root in (source, out))
    assert after.pop("samples_per_archive") == 100
    assert {key: after[key] for key in before} == before


def test_packing_that_was_interrupted_goes_on(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "packed"
    convert(source, out, Solo(), 1, archive=3)
    whole = {path.name: path.read_bytes() for path in (out / "train").iterdir()}
    kept = out / "train" / "samples-000000.zip"
    inode = kept.stat().st_ino
    (out / "train" / "samples-000001.zip").unlink()
    convert(source, out, Solo(), 1, archive=3)
    assert {path.name: path.read_bytes() for path in (out / "train").iterdir()} == whole
    assert kept.stat().st_ino == inode
    with pytest.raises(UserError, match=r"different settings \(samples_per_archive"):
        convert(source, out, Solo(), 1, archive=4)


def test_archives_are_not_converted_again(source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "packed", Solo(), 1, archive=3)
    with pytest.raises(UserError, match=r"packed contains archives; convert the original"):
        convert(tmp_path / "packed", tmp_path / "again", Solo(), 1, codec="lut")
    assert not (tmp_path / "again").exists()


def test_the_command_packs_and_refuses_a_size_that_is_none(tmp_path: Path, capsys) -> None:
    (tmp_path / "source").mkdir()
    for folder in ("train", "validation"):
        make(tmp_path / "source" / folder, "plain", 2)
    assert (
        main(["data", "convert", "cosmoflow", f"{tmp_path}/source", f"{tmp_path}/out", "--archive", "2"]) == 0
    )
    assert "4 samples as plain, 2 per archive" in capsys.readouterr().out
    facts = json.loads((tmp_path / "out" / "manifest.json").read_text())["facts"]
    assert facts["samples_per_archive"] == 2
    arguments = ["data", "convert", "cosmoflow", f"{tmp_path}/source", f"{tmp_path}/no", "--archive", "0"]
    assert main(arguments) == 2
    assert "--archive: 0 is not a whole number of 1 or more" in capsys.readouterr().err


def test_an_archived_set_that_is_indexed_again_has_its_samples(source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "packed", Solo(), 1, archive=3)
    before = manifest.load(tmp_path / "packed")
    assert main(["data", "index", f"{tmp_path}/packed"]) == 0
    assert manifest.load(tmp_path / "packed") == before


def test_an_archived_set_can_be_unpacked_by_hand(source: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    convert(source, packed, Solo(), 1, archive=3)
    for path in sorted(packed.glob("*/*.zip")):
        zipfile.ZipFile(path).extractall(path.parent)
        path.unlink()
    assert main(["data", "index", f"{packed}"]) == 0
    unpacked, before = manifest.load(packed), manifest.load(source)
    assert unpacked.files == before.files and "samples_per_archive" not in unpacked.facts
    assert unpacked.samples("train") == before.samples("train")


def test_a_damaged_sample_is_not_packed(source: Path, tmp_path: Path) -> None:
    """It is copied undecoded, and would be valid by the checksums of the archive and the new manifest."""
    path = sorted((source / "train").iterdir())[2]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match=rf"{path.name}: checksum \w+, not \w+; copy"):
        convert(source, tmp_path / "out", Solo(), 1, archive=2)
    assert not (tmp_path / "out" / manifest.NAME).exists()
    assert not list((tmp_path / "out").rglob("*.part"))
