"""The lookup-table codec: lossless on any counts, and one line on any damage."""

from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from mlhpc.common.data.codecs import frame
from mlhpc.common.data.manifest import Files, Manifest
from mlhpc.cosmoflow.data.codec import CODECS, LookupTable
from mlhpc.cosmoflow.data.sample import Reader, read_counts, require_facts, write_sample
from mlhpc.errors import UserError

NAMES = sorted(CODECS)
LUT = CODECS["lut"]
assert isinstance(LUT, LookupTable)


def packed(name: str, x: npt.NDArray[np.int16]) -> bytes:
    return frame.pack(name, "<i2", x.shape, CODECS[name].encode(x))


def decoded(name: str, data: bytes) -> npt.NDArray[np.int16]:
    read = frame.unpack(data)
    out = np.full(read.shape, -1, np.int16)
    CODECS[name].decode(read, out)
    return out


def universe(side: int, seed: int = 0, mean: float = 0.3) -> npt.NDArray[np.int16]:
    """Counts that are correlated over the redshifts, as a simulation's are."""
    rng = np.random.default_rng(seed)
    density = rng.gamma(0.5, 2 * mean, (side, side, side, 1))
    return rng.poisson(density * [0.5, 0.8, 1, 1.2]).astype(np.int16)


def many_groups() -> npt.NDArray[np.int16]:
    """More than 65 536 different groups: no two voxels are equal."""
    n = np.arange(80 * 40 * 25)
    return np.stack([n % 317, n // 317, n % 7, n * 0], axis=-1).astype(np.int16).reshape(80, 40, 25, 4)


def blocks_of_few() -> npt.NDArray[np.int16]:
    """Each part has few groups, the whole has many: local tables with narrow keys are smaller."""
    parts = [universe(32, seed).reshape(-1, 4) % 3 + 5 * seed for seed in range(8)]
    return np.concatenate(parts).reshape(-1, 32, 32, 4).astype(np.int16)


CASES = {
    "all alike": np.full((8, 8, 8, 4), 3, np.int16),
    "one voxel": np.array([[[[0, 1, 2, 3]]]], np.int16),
    "empty": np.zeros((0, 4, 4, 4), np.int16),
    "no redshift more": universe(6)[..., :1],
    "odd sides": universe(13)[:11, :7],
    "two redshifts": universe(9)[..., :2],
    "negative, beyond what a count can be": np.array([-32768, 32767, 0, -1] * 8, np.int16).reshape(
        2, 2, 2, 4
    ),
    "more groups than keys": many_groups(),
    "blocks": blocks_of_few(),
    "256 groups": np.arange(256 * 4, dtype=np.int16).reshape(4, 8, 8, 4),
    "257 groups": np.arange(257 * 4, dtype=np.int16).reshape(257, 1, 1, 4),
    "a universe": universe(32),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", CASES)
def test_the_counts_come_back(name: str, case: str) -> None:
    x = np.ascontiguousarray(CASES[case])
    assert decoded(name, packed(name, x)).tobytes() == x.tobytes()


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(NAMES),
    arrays.arrays(
        np.int16,
        st.tuples(st.integers(0, 5), st.integers(1, 5), st.integers(1, 5), st.integers(1, 4)),
        elements=st.one_of(st.integers(0, 3), st.integers(-(2**15), 2**15 - 1)),
    ),
)
def test_any_counts_come_back(name: str, x: npt.NDArray[np.int16]) -> None:
    assert decoded(name, packed(name, x)).tobytes() == x.tobytes()


def test_keys_are_as_wide_as_needed_and_tables_local_where_that_is_smaller() -> None:
    def blocks(x: npt.NDArray[np.int16]) -> list[tuple[int, int]]:
        found = LUT.blocks(frame.unpack(packed("lut", x)))  # type: ignore[attr-defined]
        return [(block.keys.itemsize, len(block.table)) for block in found]

    assert blocks(CASES["256 groups"]) == [(1, 256)]
    assert blocks(CASES["257 groups"]) == [(2, 257)]
    assert all(groups <= 65536 for _, groups in blocks(many_groups())) and len(blocks(many_groups())) > 1
    local = blocks(blocks_of_few())
    assert len(local) > 1 and {width for width, _ in local} == {1}


def test_the_size_is_what_the_paper_counts() -> None:
    """Ibrahim and Oliker 2022, section V-B: keys of 2 bytes, groups of 8."""
    x = universe(32, mean=4)
    groups = len(np.unique(x.reshape(-1, 4), axis=0))
    assert 256 < groups < 65536
    sizes = {name: len(content) for name, content in LUT.encode(x).items()}
    assert sizes == {"blocks": 8, "tables": 8 * groups, "keys8": 0, "keys16": 2 * 32**3}


def test_frequent_groups_have_small_keys() -> None:
    small = CODECS["lut-small"]
    assert isinstance(small, LookupTable)
    (block,) = small.blocks(frame.unpack(packed("lut-small", universe(32, mean=4))))
    counts = np.bincount(block.keys, minlength=len(block.table))
    assert (np.diff(counts) <= 0).all()


@pytest.mark.parametrize("name", ["lut", "lut-small"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_logarithm_of_the_table_is_that_of_the_voxels(name: str, dtype: type[np.floating]) -> None:
    """The reference's log(x + 1) and the cast, each value by itself: so taken of the table it is the same, bit by
    bit."""

    def log(x: npt.NDArray[np.int16]) -> npt.NDArray[np.floating]:
        return np.log(x.astype(np.float32) + np.float32(1)).astype(dtype)

    x = universe(24, mean=5)
    codec = CODECS[name]
    assert isinstance(codec, LookupTable)
    out = np.empty(x.shape, dtype)
    codec.decode(frame.unpack(packed(name, x)), out, log)
    assert out.tobytes() == log(x).tobytes()


# Malformed streams.


def resealed(**changed: bytes) -> frame.Frame:
    x = universe(16, mean=4)
    return frame.unpack(frame.pack("lut", "<i2", x.shape, {**LUT.encode(x), **changed}), "a.mlc")


def test_a_key_beyond_its_table_is_one_line() -> None:
    keys = np.frombuffer(LUT.encode(universe(16, mean=4))["keys16"], "<u2").copy()
    keys[777] = 65535
    with pytest.raises(UserError, match=r"a\.mlc: key 65535 of voxel 777 is not below \d+"):
        LUT.decode(resealed(keys16=keys.tobytes()), np.empty((16, 16, 16, 4), np.int16))


@pytest.mark.parametrize(
    ("section", "content", "words"),
    [
        ("blocks", b"", "blocks of 0 voxels"),
        ("blocks", np.array([2**32 - 1, 5], "<u4").tobytes(), "do not add up to"),
        ("blocks", np.array([4096, 2**32 - 1], "<u4").tobytes(), "do not add up to"),
        ("blocks", np.array([4096, 65536], "<u4").tobytes(), "tables of 65536 groups for 4096 voxels"),
        ("blocks", np.array([4096, 300, 0, 4000], "<u4").tobytes(), "tables of 4300 groups"),
        ("blocks", b"123", "expected a multiple of 8"),
        ("keys16", b"12", "has 2 bytes, expected 8192"),
        ("tables", b"", "has 0 bytes, expected"),
    ],
)
def test_sections_that_do_not_fit_each_other_are_one_line(section: str, content: bytes, words: str) -> None:
    with pytest.raises(UserError, match=words) as said:
        LUT.decode(resealed(**{section: content}), np.empty((16, 16, 16, 4), np.int16))
    assert str(said.value).startswith("a.mlc: ") and "\n" not in str(said.value)


def test_a_sample_of_another_shape_or_codec_is_refused(tmp_path) -> None:
    x, y = universe(8), np.arange(4, dtype=np.float32)
    path = tmp_path / "a.mlc"
    write_sample(path, x, y, "lut")
    out = np.empty_like(x)
    for reader, shape, words in (
        (
            Reader("lut-small"),
            x.shape,
            "encoded by 'lut', but the manifest states codec 'lut-small'",
        ),
        (Reader(None), x.shape, "states no codec; convert the data set again"),
        (Reader("lut"), (4, 16, 8, 4), "the preset's data.sample_shape"),
    ):
        with pytest.raises(UserError, match=words):
            reader.read((path, 0), out.reshape(shape), y)
    with pytest.raises(UserError, match="y has 4 values"):
        Reader("lut").read((path, 0), out, np.empty(3, np.float32))


@pytest.mark.parametrize("symmetry", [0, 1, 17, 47])
@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_read_by_its_bytes(tmp_path, name: str, symmetry: int) -> None:
    """Whatever its suffix, and turned like a TFRecord."""
    x, y = universe(8), np.arange(4, dtype=np.float32)
    encoded, published = tmp_path / "a.tfrecord", tmp_path / "b.mlc"
    write_sample(encoded, x, y, name)
    write_sample(published, x, y, "gzip")
    read = {}
    for path, codec in ((encoded, name), (published, None)):
        out_x, out_y = np.empty_like(x), np.empty_like(y)
        assert Reader(codec).read((path, symmetry), out_x, out_y) == path.stat().st_size
        read[path] = out_x
        assert (out_y == y).all()
        counts, targets = read_counts(path)
        assert counts.tobytes() == x.tobytes() and (targets == y).all()
    assert np.array_equal(read[encoded], read[published])


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"codec": "lut", "lossy": True}, "lossy=True does not match codec lut"),
        ({"codec": "lut"}, "lossy=None does not match codec lut"),
        ({"codec": "mystery", "lossy": False}, "encoded by 'mystery', an unknown codec"),
        ({"codec": ["lut"]}, "an unknown codec"),
    ],
)
def test_a_manifest_that_is_not_true_of_a_codec_is_refused(facts: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        require_facts(Manifest(Path("data"), Files.of(()), facts))
    for good in ({}, {"codec": "gzip"}, {"codec": "lut", "lossy": False}):
        require_facts(Manifest(Path("data"), Files.of(()), good))


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<i2", ">i2"])
@pytest.mark.parametrize("name", NAMES)
def test_arrays_of_any_order_are_encoded_alike(name: str, dtype: str, order: Literal["C", "F"]) -> None:
    x = universe(9)
    data = frame.pack(name, "<i2", x.shape, CODECS[name].encode(x.astype(dtype, order=order)))
    assert np.array_equal(decoded(name, data), x)
    out = np.full(x.shape, -1, np.dtype(dtype), order=order)
    try:
        CODECS[name].decode(frame.unpack(data), out)
    except ValueError:
        assert (dtype, order) != ("<i2", "C")
    else:
        assert np.array_equal(out, x)
