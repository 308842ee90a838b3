"""What samples are delivered in: every format gives the bits of decoding in float32 and rounding."""

from pathlib import Path

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from helpers.cosmoflow_files import DTYPES, counts, make, open_loader, targets

from mlhpc.benchmarks import load, rules
from mlhpc.cosmoflow.data.augment import apply_symmetry, draw
from mlhpc.cosmoflow.data.encoded import Encoded
from mlhpc.cosmoflow.data.sample import NAMES
from mlhpc.errors import UserError


def expected(x: npt.NDArray[np.int16], sample_dtype: str) -> npt.NDArray[np.generic]:
    """Decoded in float32, then rounded, by NumPy and ml_dtypes."""
    if sample_dtype == "int16":
        return x
    logarithm = np.log(x.astype(np.float32) + np.float32(1))
    kind = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}[sample_dtype]
    rounded = logarithm.astype(kind)
    return rounded.view(np.uint16) if sample_dtype == "bfloat16" else rounded


@pytest.mark.parametrize("sample_dtype", DTYPES)
@pytest.mark.parametrize("codec", NAMES)
def test_samples_are_delivered_as_if_decoded_in_float32_and_rounded(
    tmp_path: Path, codec: str, sample_dtype: str
) -> None:
    folder = make(tmp_path / codec, codec, 5)
    loader = open_loader(folder, codec, sample_dtype=sample_dtype)
    xs, ys = map(np.concatenate, zip(*loader.evaluation(), strict=True))
    for index, (x, y) in enumerate(zip(xs, ys, strict=True)):
        want = expected(counts(index), sample_dtype)
        assert x.dtype == want.dtype and np.array_equal(x, want)
        assert np.array_equal(y, targets(index))


@pytest.mark.parametrize("codec", ["plain", "lut", "blosc2"])
def test_turned_samples_are_rounded_alike(tmp_path: Path, codec: str) -> None:
    folder = make(tmp_path / codec, codec, 4)
    loader = open_loader(folder, codec, batch=4, augment=True, sample_dtype="float16")
    ((xs, ys),) = loader.train_epoch(2)
    order = [next(i for i in range(4) if np.array_equal(targets(i), y)) for y in ys]
    symmetries = draw(4, 5, 2)
    assert len(set(symmetries.tolist()) - {0}) > 1
    for x, index in zip(xs, order, strict=True):
        assert np.array_equal(x, expected(apply_symmetry(counts(index), symmetries[index]), "float16"))


@pytest.mark.parametrize("sample_dtype", ["int16", "bfloat16"])
@pytest.mark.parametrize("codec", ["lut", "lut-small"])
def test_a_device_gets_keys_and_tables_of_all_blocks(tmp_path: Path, codec: str, sample_dtype: str) -> None:
    """Looked up one voxel after the other, they are the samples; most of the bytes stay behind."""
    folder = make(tmp_path / codec, codec, 4)
    loader = open_loader(folder, codec, batch=4, decode="device", sample_dtype=sample_dtype)
    ((batch, _),) = loader.evaluation()
    assert isinstance(batch, Encoded) and len(batch.voxels) > 4
    first = np.repeat(batch.starts, batch.voxels)
    voxels = [batch.tables[start + key] for start, key in zip(first, batch.keys, strict=True)]
    for index, x in enumerate(np.array(voxels).reshape(batch.shape)):
        assert np.array_equal(x, expected(counts(index), sample_dtype))
    assert batch.keys.nbytes * 4 == np.prod(batch.shape) * 2


def test_a_key_beyond_its_table_does_not_reach_the_device(tmp_path: Path) -> None:
    from mlhpc.common.data.codecs import frame

    folder = make(tmp_path / "lut", "lut", 2)
    path = sorted(folder.iterdir())[1]
    read = frame.unpack(path.read_bytes())
    keys = np.array(read.array("keys16", "<u2"))
    keys[77] = 65535
    path.write_bytes(frame.pack("lut", "<i2", read.shape, {**read.sections, "keys16": keys.tobytes()}))
    with pytest.raises(UserError, match=r"001.*key 65535 of voxel 77 is not below"):
        list(open_loader(folder, "lut", decode="device").evaluation())


def test_the_type_of_delivery_is_free_in_the_closed_division() -> None:
    """As ``training.precision``; ``lossy`` is about the files."""
    for benchmark in ("cosmoflow", "deepcam"):
        closed = load.load(benchmark, "closed", ["loading.sample_dtype=float16"])
        facts = {"codec": "pco", "lossy": False}
        assert not [f for f in rules.findings(rules.RunContext(closed, facts=facts)) if f.severity == "error"]
        findings = rules.findings(rules.RunContext(closed, facts={"codec": "delta", "lossy": True}))
        assert [f.rule for f in findings if f.severity == "error"] == ["rules/codec"]


def test_spatial_parallelism_decodes_on_the_host() -> None:
    run = load.load(
        "cosmoflow",
        "smoke",
        ["training.framework=pytorch", "training.spatial=[2,1,1]", "loading.decode=device"],
    )
    with pytest.raises(UserError, match=r"set loading\.decode=host"):
        run.require_startable(2, staged=False)
