"""What samples are delivered in: every format and loader gives the bits of normalising in float32 and rounding."""

import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
import torch
from helpers.deepcam_files import CHANNELS, SHAPE, as_the_reference_reads, make_data_set
from torch import nn

from mlhpc.benchmarks import load
from mlhpc.benchmarks.deepcam import Loading
from mlhpc.common.data import manifest
from mlhpc.common.data.assign import RankSamples
from mlhpc.common.data.loader import Loader
from mlhpc.common.data.sharding import Pool
from mlhpc.common.pytorch.step import make_scaler, make_train_step
from mlhpc.common.ranks.world import Solo
from mlhpc.deepcam import train
from mlhpc.deepcam.data.convert import convert
from mlhpc.deepcam.data.hdf5 import read_statistics
from mlhpc.deepcam.data.sample import list_samples
from mlhpc.deepcam.data.source import DeepCamSource
from mlhpc.errors import UserError

NUMPY = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
CPU = torch.device("cpu")
LOSSLESS = ("npy", "plain", "pco", "zstd", "blosc2")


@pytest.fixture(scope="module")
def data_sets(tmp_path_factory):
    root = tmp_path_factory.mktemp("deepcam")
    sets = {"hdf5": make_data_set(root / "hdf5", train=4, validation=2)}
    for codec in (*LOSSLESS, "delta", "delta-small"):
        sets[codec] = root / codec
        convert(sets["hdf5"], sets[codec], Solo(), 1, codec)
    return sets


def open_loader(root, loader="threads", **more):
    files, pool = list_samples(root / "train"), Pool(4, 1)
    facts = manifest.load(root).facts if (root / manifest.NAME).exists() else {}
    loading, statistics = (
        Loading(loader=loader, workers=2, prefetch=2, **more),
        read_statistics(root, CHANNELS),
    )
    return Loader(
        RankSamples(files, files, pool, pool, 0),
        DeepCamSource(loading, SHAPE, statistics, facts.get("codec")),
        local_batch_size=2,
        eval_batch_size=4,
        steps=2,
        seed=5,
    )


def bits(array):
    return np.ascontiguousarray(array).view(np.uint8)


@pytest.mark.parametrize("sample_dtype", NUMPY)
@pytest.mark.parametrize(
    ("codec", "loader"),
    [("hdf5", "threads"), ("npy", "workers"), ("hdf5", "dali"), ("pco", "threads"), ("pco", "workers")],
)
def test_samples_are_normalised_in_float32_and_rounded_once(data_sets, codec, loader, sample_dtype):
    ((x, _),) = open_loader(data_sets[codec], loader, sample_dtype=sample_dtype).evaluation()
    files = list_samples(data_sets["hdf5"] / "train")
    want = np.stack([as_the_reference_reads(path, data_sets["hdf5"] / "stats.h5")[0] for path in files])
    assert x.dtype == getattr(torch, sample_dtype) and x.is_contiguous(memory_format=torch.channels_last)
    delivered = x.permute(0, 2, 3, 1).contiguous().view(torch.uint8).numpy()
    assert np.array_equal(delivered, bits(want.astype(NUMPY[sample_dtype])))


@pytest.mark.parametrize("sample_dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("codec", ["delta", "delta-small"])
def test_the_differential_codec_rounds_once_in_its_decoder(data_sets, codec, sample_dtype):
    ((exact, _),) = open_loader(data_sets[codec]).evaluation()
    ((x, _),) = open_loader(data_sets[codec], sample_dtype=sample_dtype).evaluation()
    want = exact.contiguous().numpy().astype(NUMPY[sample_dtype])
    assert np.array_equal(x.contiguous().view(torch.uint8).numpy(), bits(want))


def test_cached_samples_keep_their_type(data_sets):
    made = open_loader(data_sets["npy"], cache=True, sample_dtype="bfloat16")
    first, second = (next(iter(made.train_epoch(0)))[0] for _ in range(2))
    assert second.dtype == torch.bfloat16 and torch.equal(first, second)


def cross_entropy(logits, y):
    return nn.functional.cross_entropy(logits, y.long())


@pytest.mark.parametrize("sample_dtype", NUMPY)
def test_twenty_steps_have_the_same_losses_from_every_lossless_format(data_sets, sample_dtype):
    def losses(root):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Conv2d(CHANNELS, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 1))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        step = make_train_step(model, cross_entropy, optimizer, make_scaler("float32", CPU))
        made = open_loader(root, sample_dtype=sample_dtype)
        return [float(step(x, y)) for epoch in range(10) for x, y in made.train_epoch(epoch)]

    plain = losses(data_sets["hdf5"])
    assert len(plain) == 20 and len(set(plain)) == 20
    assert {codec: losses(data_sets[codec]) == plain for codec in LOSSLESS} == dict.fromkeys(LOSSLESS, True)


PROGRAM = """
import sys
from pathlib import Path
import numpy as np, torch
from mlhpc.benchmarks.deepcam import Loading
from mlhpc.common.data.assign import RankSamples
from mlhpc.common.data.loader import Loader
from mlhpc.common.data.sharding import Pool
from mlhpc.deepcam.data.codec import encode_sample, encoder
from mlhpc.deepcam.data.hdf5 import Statistics
from mlhpc.deepcam.data.source import DeepCamSource

folder, codec, shape = Path(sys.argv[1]), sys.argv[2], (3, 40, 2)
rng = np.random.default_rng(0)
low, high = np.array([-3, -300], np.float32), np.array([3, 300], np.float32)
for i in range(2):
    x = np.cumsum(rng.standard_normal(shape), axis=1).astype(np.float32) * [0.1, 10]
    x[0, :, 0], x[1, 7, 1] = 1.5, 1e8  # a constant line, and a raw one
    mask = rng.integers(0, 3, shape[:2]).astype(np.uint8)
    made = encode_sample(encoder(codec, None, None, low, high), x.astype(np.float32), mask)
    (folder / f"data-{i}.mlc").write_bytes(made)
files, pool = sorted(folder.iterdir()), Pool(2, 1)

def batch(decode, sample_dtype):
    loading = Loading(workers=1, prefetch=1, decode=decode, sample_dtype=sample_dtype)
    loader = Loader(
        RankSamples(files, files, pool, pool, 0), DeepCamSource(loading, shape, Statistics(low, high), codec),
        local_batch_size=2, eval_batch_size=2, steps=1, seed=1,
    )
    ((x, y),) = loader.evaluation()
    return x.contiguous().view(torch.uint8), y, x.dtype, loader.bytes_read

for sample_dtype in ("float16", "bfloat16"):
    (x, *rest), (x_decoded, *rest_decoded) = (batch(decode, sample_dtype) for decode in ("host", "device"))
    assert torch.equal(x, x_decoded) and torch.equal(rest[0], rest_decoded[0]) and rest[1:] == rest_decoded[1:]
print("same bits")
"""


@pytest.mark.parametrize("codec", ["delta", "delta-small"])
def test_batches_decoded_by_the_interpreted_kernel_have_the_bits_of_the_host(tmp_path, codec):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path, codec],
        capture_output=True, text=True, env={"TRITON_INTERPRET": "1", "PATH": "/usr/bin", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout == "same bits\n", done.stderr[-2000:]


def test_decoding_on_a_device_needs_one():
    run = load.load("deepcam", "smoke", ["loading.decode=device", "training.device=cpu"])
    with pytest.raises(UserError, match=r"needs a GPU; on a CPU set loading\.decode=host"):
        train.check(run, None, Solo())
    for other in ("loading.cache=true", "loading.loader=workers"):
        with pytest.raises(UserError, match=r"loading\.decode=host"):
            load.load("deepcam", "smoke", ["loading.decode=device", other])
