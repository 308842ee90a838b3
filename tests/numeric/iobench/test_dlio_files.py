"""DLIO's layout: files as its generators write them are read, and its readers read ours. Both are repeated here
with the libraries that DLIO 2.0.0 uses (dlio_benchmark/data_generator, reader)."""

import json
import struct

import h5py
import numpy as np
import pandas
import pytest
import tensorflow as tf
from PIL import Image

from mlhpc.cli import main

SIDE, FILES, SAMPLES = 30, 4, 3
FORMATS = ("npz", "npy", "hdf5", "tfrecord", "jpeg", "csv", "indexed_binary")


def yaml(tmp_path, kind, **dataset):
    framework = "tensorflow" if kind == "tfrecord" else "pytorch"
    samples = 1 if kind == "jpeg" else SAMPLES
    tables = {
        "model": "small",
        "workflow": {"train": True},
        "dataset": {"format": kind, "num_files_train": FILES, "num_samples_per_file": samples,
                    "record_length": SIDE**2 + 7, **dataset},
        "reader": {"data_loader": framework, "batch_size": 1, "read_threads": 1},
        "train": {"epochs": 1},
    }  # fmt: skip
    path = tmp_path / f"{kind}.yaml"
    path.write_text(json.dumps(tables))  # which YAML contains
    return str(path), samples


def written_as_by_dlio(path, kind, samples, side=SIDE):
    random = np.random.default_rng(7)
    images = random.integers(255, size=(side, side, samples), dtype=np.uint8)
    if kind == "npz":
        np.savez(path, x=images, y=[0] * samples)
    elif kind == "npy":
        np.save(path, images)
    elif kind == "hdf5":
        with h5py.File(path, "w") as file:
            file.create_dataset("records", data=images.transpose(2, 0, 1))
            file.create_dataset("labels", data=[0] * samples)
    elif kind == "tfrecord":
        with tf.io.TFRecordWriter(str(path)) as writer:
            for sample in range(samples):
                image = tf.train.BytesList(value=[images[..., sample].tobytes()])
                features = {
                    "image": tf.train.Feature(bytes_list=image),
                    "size": tf.train.Feature(int64_list=tf.train.Int64List(value=[side])),
                }
                example = tf.train.Example(features=tf.train.Features(feature=features))
                writer.write(example.SerializeToString())
    elif kind == "jpeg":
        Image.fromarray(images[..., 0]).save(path, format="JPEG", bits=8)
    elif kind == "csv":
        pandas.DataFrame(data=[images[..., 0].reshape(-1)] * samples).to_csv(path)
    else:
        path.write_bytes(images.tobytes())
        size = side**2
        positions = range(0, samples * size, size)
        path.with_name(path.name + ".off.idx").write_bytes(struct.pack("Q" * samples, *positions))
        path.with_name(path.name + ".sz.idx").write_bytes(struct.pack("Q" * samples, *[size] * samples))


def dlio_set(root, kind, samples, files=FILES, side=SIDE):
    (root / "train").mkdir(parents=True)
    (root / "valid").mkdir()
    for file in range(files):
        written_as_by_dlio(root / f"train/img_{file}_of_{files}.{kind}", kind, samples, side)


def run(path, data, out):
    words = ["--data", str(data), "--out", str(out), "--null-steps", "0", "--set", "reader.loader=none"]
    return main(["io", "run", path, *words])


@pytest.mark.parametrize("kind", FORMATS)
def test_files_of_dlio_are_read(tmp_path, kind):
    path, samples = yaml(tmp_path, kind)
    dlio_set(tmp_path / "data", kind, samples)
    assert run(path, tmp_path / "data", tmp_path / "out") == 0
    result = json.loads((tmp_path / "out/result.json").read_text())
    assert result["samples"] == FILES * samples
    assert result["reading"]["content_bytes"] == FILES * samples * SIDE**2


def as_dlio_reads(path, kind, sample):
    """Bytes of a sample."""
    if kind == "npz":
        return np.load(path, allow_pickle=True)["x"][..., sample].nbytes
    if kind == "npy":
        return np.load(path)[..., sample].nbytes
    if kind == "hdf5":
        with h5py.File(path, "r") as file:
            return file["records"][sample].nbytes
    if kind == "jpeg":
        return np.asarray(Image.open(path)).nbytes
    if kind == "csv":
        return len(pandas.read_csv(path).to_numpy()[sample]) - 1
    if kind == "tfrecord":
        features = {
            "image": tf.io.FixedLenFeature([], tf.string),
            "size": tf.io.FixedLenFeature([], tf.int64),
        }
        record = list(tf.data.TFRecordDataset([str(path)]))[sample]
        parsed = tf.io.parse_example(serialized=[record], features=features)
        assert parsed["size"].numpy()[0] == SIDE
        return len(parsed["image"].numpy()[0])
    positions, sizes = (
        np.fromfile(path.with_name(path.name + suffix), np.int64) for suffix in (".off.idx", ".sz.idx")
    )
    with path.open("rb") as file:
        file.seek(positions[sample])
        image = np.empty(sizes[sample], np.uint8)
        assert file.readinto(image) == len(image)
        return len(image)


@pytest.mark.parametrize("kind", FORMATS)
def test_dlio_reads_our_files(tmp_path, kind):
    path, samples = yaml(tmp_path, kind, num_files_eval=2)
    assert main(["io", "generate", path, "--data", str(tmp_path / "data"), "--workers", "1"]) == 0
    suffixes = sorted(file.name for file in (tmp_path / "data/train").iterdir() if file.suffix != ".idx")
    assert suffixes == [f"img_{file}_of_{FILES}.{kind}" for file in range(FILES)]
    assert (tmp_path / f"data/valid/img_1_of_2.{kind}").exists()
    for sample in range(samples):
        file = tmp_path / f"data/train/img_3_of_4.{kind}"
        assert as_dlio_reads(file, kind, sample) == SIDE**2


def test_folders_and_prefix_are_those_of_dlio(tmp_path):
    path, _ = yaml(tmp_path, "npz", num_files_train=12, num_subfolders_train=10, file_prefix="part")
    data = tmp_path / "data"
    assert main(["io", "generate", path, "--data", str(data), "--workers", "1"]) == 0
    assert (data / "train/01/part_11_of_12.npz").exists()
    assert (data / "valid").is_dir()
    assert run(path, data, tmp_path / "out") == 0


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("damage", [cut, lambda path: path.write_bytes(b""), lambda path: path.unlink()])
def test_a_damaged_file_of_dlio_is_one_line_and_written_again(tmp_path, kind, damage, capsys):
    path, samples = yaml(tmp_path, kind)
    data = tmp_path / "data"
    dlio_set(data, kind, samples)
    whole = (data / f"train/img_3_of_4.{kind}").read_bytes()
    damage(data / f"train/img_2_of_4.{kind}")
    assert run(path, data, tmp_path / "out") == 2
    assert not (tmp_path / "out").exists()
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "without effect" not in line]
    assert "train" in line and "generate" in line
    assert main(["io", "generate", path, "--data", str(data), "--workers", "1"]) == 0
    assert run(path, data, tmp_path / "out") == 0
    assert (data / f"train/img_3_of_4.{kind}").read_bytes() == whole


@pytest.mark.parametrize("kind", FORMATS)
def test_another_workload_is_refused_and_nothing_overwritten(tmp_path, kind, capsys):
    path, samples = yaml(tmp_path, kind)
    data = tmp_path / "data"
    dlio_set(data, kind, samples, side=SIDE + 1)
    before = {file: file.read_bytes() for file in sorted(data.glob("train/*"))}
    assert run(path, data, tmp_path / "out") == 2
    assert main(["io", "generate", path, "--data", str(data), "--workers", "1"]) == 2
    assert "bytes, not the workload's" in capsys.readouterr().err
    assert {file: file.read_bytes() for file in sorted(data.glob("train/*"))} == before


def test_files_of_another_number_are_used_as_a_part_or_refused(tmp_path, capsys):
    path, samples = yaml(tmp_path, "npz")
    dlio_set(tmp_path / "more", "npz", samples, files=6)
    assert run(path, tmp_path / "more", tmp_path / "out") == 0
    assert "only the first 4 of 6 files are used" in capsys.readouterr().err
    dlio_set(tmp_path / "fewer", "npz", samples, files=3)
    assert run(path, tmp_path / "fewer", tmp_path / "other") == 2
    assert "only 3 of 4 .npz files" in capsys.readouterr().err
    assert main(["io", "generate", path, "--data", str(tmp_path / "fewer"), "--workers", "1"]) == 2
    assert "img_0_of_3.npz" in capsys.readouterr().err


def test_a_folder_that_is_no_data_set_is_left_alone(tmp_path):
    path, _ = yaml(tmp_path, "npz")
    (tmp_path / "home").mkdir()
    (tmp_path / "home/thesis.txt").write_text("text")
    assert main(["io", "generate", path, "--data", str(tmp_path / "home")]) == 2
    assert [file.name for file in (tmp_path / "home").iterdir()] == ["thesis.txt"]
