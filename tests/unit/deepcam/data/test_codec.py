"""The differential codec: its bits from every decoder, its bound, its raw lines, and damaged streams."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from helpers.deepcam_files import SHAPE, fields, mask
from hypothesis import given, settings
from hypothesis import strategies as st

from mlhpc.common.data.codecs import dtypes, frame
from mlhpc.deepcam.data import delta
from mlhpc.deepcam.data.codec import _BOUNDED, CODECS, Bound, Delta, Of, Planes, encode_sample, encoder
from mlhpc.deepcam.data.hdf5 import Statistics
from mlhpc.deepcam.data.sample import Reader
from mlhpc.errors import UserError

Field = npt.NDArray[np.float32]
LOSSLESS = sorted(name for name, codec in CODECS.items() if not codec.lossy)
NAN = np.float32(np.nan)


def smooth(shape: tuple[int, int, int] = (24, 200, 3), seed: int = 0) -> Field:
    """Waves of several lengths, of very different sizes by channel, that cross zero."""
    rng = np.random.default_rng(seed)
    rows, columns, channels = shape
    x = np.linspace(0, 2 * np.pi, columns)
    waves = sum(
        rng.standard_normal((rows, 1, channels)) / k
        * np.sin(k * x[None, :, None] + rng.uniform(0, 6, (rows, 1, channels)))
        for k in range(1, 9)
    )  # fmt: skip
    return (waves * np.geomspace(1e-6, 1e5, channels)).astype(np.float32)


def hard(columns: int = 70) -> Field:
    """NaN, infinities, denormal numbers, huge steps, alternating signs, one spike: a line of each."""
    rng = np.random.default_rng(1)
    tiny, huge = np.float32(1e-45), np.finfo(np.float32).max
    lines = [
        np.zeros(columns), np.full(columns, -0.0), np.full(columns, 7.25), np.full(columns, NAN),
        np.where(np.arange(columns) == 5, NAN, 1), np.where(np.arange(columns) == 60, np.inf, 1),
        rng.integers(0, 9, columns) * tiny, np.where(np.arange(columns) % 2, huge, -huge),
        np.where(np.arange(columns) % 2, 1e-30, 1e30), np.where(np.arange(columns) == 33, 1e20, 1e-3),
        np.exp(np.linspace(-80, 80, columns)), rng.standard_normal(columns) * 1e-38,
        np.linspace(0, 1, columns) ** 9,
        np.full(columns, huge), np.full(columns, -np.inf), np.full(columns, tiny),
    ]  # fmt: skip
    with np.errstate(over="ignore"):
        return np.stack(lines).astype(np.float32)[:, :, None]


def bounded(name: str, x: Field, error: float, of: Of = "range") -> Delta:
    finite = np.where(np.isfinite(x), x, 0).astype(np.float64)
    return Delta(name, Bound(error, of, np.ptp(finite, axis=(0, 1))))


def packed(codec: Delta, x: Field) -> frame.Frame:
    return frame.unpack(frame.pack(codec.name, "<f4", x.shape, codec.encode(x)), "data-a.mlc")


def decoded(codec: Delta, x: Field) -> Field:
    out = np.empty_like(x)
    codec.decode(packed(codec, x), out)
    return out


def bits(x: npt.NDArray[np.generic]) -> npt.NDArray[np.uint32]:
    """The bits of floats, all NaN alike."""
    whole = x.astype(np.float32)
    return np.where(np.isnan(whole), 0x7FC00000, whole.view(np.uint32))


# The format.


def test_the_codes_are_those_of_the_paper() -> None:
    """1 sign bit, 3 of exponent, 4 of mantissa (Ibrahim and Oliker 2022, section V-A): ±(16 + m)·2ᵉ; the byte
    0 is no change."""
    expected = [
        (-1 if byte & 128 else 1) * (16 + (byte & 15)) * 2 ** ((byte >> 4) & 7) if byte else 0
        for byte in range(256)
    ]
    assert delta.DIFFERENCES[0].tolist() == expected
    assert delta.DIFFERENCES[1].tolist() == [*range(128), *range(-128, 0)]


def test_a_line_by_hand() -> None:
    """Two segments of 16 columns, the second cut short, in the logarithmic code, and one constant line."""
    codes = np.zeros(18, np.uint8)
    codes[1], codes[3], codes[17] = 0x11, 0x80 | 0x70, 0x0F
    sections = {
        "kinds": bytes([8, 0]),
        "pivots": np.array([1.5, -2, 9], "<f4").tobytes(),
        "units": np.array([-4, 3, 0], "i1").tobytes(),
        "codes": codes.tobytes(),
        "raw": b"",
    }
    read = frame.unpack(frame.pack("delta", "<f4", (2, 18, 1), sections))
    out = np.empty((2, 18, 1), np.float32)
    delta.decode(delta.parse(read), out)
    first = 1.5 + np.array([0, 34, 34, 34 - 2048] + [34 - 2048] * 12) / 16
    assert out[0, :, 0].tolist() == [*first, -2, -2 + 31 * 8]
    assert (out[1] == 9).all()


@pytest.mark.parametrize("sample_dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("channels_first", [False, True])
@pytest.mark.parametrize("normalise", [False, True])
def test_every_decoder_gives_the_same_bits(sample_dtype: str, channels_first: bool, normalise: bool) -> None:
    for x in (smooth(), smooth((5, 33, 16), 1), hard(), hard(1), hard(17)):
        for codec in (Delta("delta-paper"), bounded("delta", x, 1e-3), bounded("delta", x, 1e-2, "value")):
            lines = delta.parse(packed(codec, x))
            rng = np.random.default_rng(2)
            channels = x.shape[2]
            by = (rng.normal(size=channels).astype(np.float32), rng.normal(size=channels).astype(np.float32))
            truth = delta.decode_slowly(lines, by if normalise else None)
            if channels_first:
                truth = truth.transpose(2, 0, 1)
            kind = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}[sample_dtype]
            out = np.empty(truth.shape, kind)
            delta.decode(lines, out, by if normalise else None, sample_dtype, channels_first)
            expected = dtypes.cast(truth, sample_dtype)
            if sample_dtype == "bfloat16":
                assert np.array_equal(out, expected)
            else:
                assert np.array_equal(bits(out), bits(expected))


def test_rounding_to_float16_and_bfloat16_is_that_of_others() -> None:
    """NumPy's float16; bfloat16 by the definition, nearest and ties to even, in exact arithmetic."""
    rng = np.random.default_rng(3)
    edge = np.array([0, 6e-8, 3e-8, 65504, 65519.9, 65520, 1e9, 6.1e-5, 6.09e-5, 2.9e-8, np.inf], np.float32)
    ties = (np.arange(2000, dtype=np.uint32) * 0x8000 + 0x38000000).view(np.float32)
    values = np.concatenate([edge, -edge, ties, rng.integers(0, 2**32, 5000, np.uint32).view(np.float32)])
    values = values[~np.isnan(values)]
    values = values[: len(values) // 16 * 16].reshape(1, -1, 1).copy()
    sections = {
        "kinds": bytes([1]), "pivots": b"", "units": b"", "codes": b"", "raw": values.astype("<f4").tobytes(),
    }  # fmt: skip
    lines = delta.parse(frame.unpack(frame.pack("delta", "<f4", values.shape, sections)))
    half, brain = np.empty(values.shape, np.float16), np.empty(values.shape, np.uint16)
    delta.decode(lines, half, sample_dtype="float16")
    delta.decode(lines, brain, sample_dtype="bfloat16")
    with np.errstate(over="ignore"):
        assert np.array_equal(half.view(np.uint16), values.astype(np.float16).view(np.uint16))
    low = (values.view(np.uint32) & 0xFFFF0000).view(np.float32).astype(np.float64)
    step = np.where(np.isinf(low), 0, 2.0 ** (np.frexp(np.where(low == 0, 2.0**-126, low))[1] - 8).clip(-133))
    up = low + np.sign(values) * step
    exact = values.astype(np.float64)
    even = (values.view(np.uint32) >> 16) % 2 == 0
    with np.errstate(invalid="ignore"):
        difference = np.abs(up - exact) - np.abs(exact - low)
    nearer_low, tie = difference > 0, difference == 0
    expected = np.where(nearer_low | (tie & even) | np.isinf(low), low, up)
    found = (brain.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    expected = np.where(np.abs(expected) > 3.3895e38, np.copysign(np.inf, expected), expected)
    assert np.array_equal(expected, found)


# What is lost.


@pytest.mark.parametrize("error", [0.1, 1e-2, 1e-3, 1e-5])
@pytest.mark.parametrize("of", ["range", "value"])
@pytest.mark.parametrize("name", ["delta", "delta-small"])
def test_no_value_is_off_by_more_than_the_bound(name: str, of: Of, error: float) -> None:
    for x in (smooth(), fields(4), hard()):
        codec = bounded(name, x, error, of)
        out = decoded(codec, x)
        finite = np.isfinite(x)
        assert np.array_equal(bits(out[~finite]), bits(x[~finite]))
        exact, read = (np.where(finite, a, 0).astype(np.float64) for a in (x, out))
        allowed = error * (np.ptp(exact, axis=(0, 1)) if of == "range" else np.abs(exact))
        assert (np.abs(read - exact) <= allowed).all()


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from([1e-1, 1e-3]), st.sampled_from(["range", "value"]))
def test_any_field_keeps_the_bound(data: st.DataObject, error: float, of: Of) -> None:
    shape = data.draw(st.tuples(st.integers(1, 4), st.integers(1, 90), st.integers(1, 3)))
    seed = data.draw(st.integers(0, 2**32))
    special = data.draw(st.lists(st.floats(width=32), max_size=6))
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(shape).cumsum(axis=1) * 10.0 ** rng.integers(-30, 30)).astype(np.float32)
    for value in special:
        x[tuple(rng.integers(0, shape))] = value
    codec = bounded("delta", x, error, of)
    out = decoded(codec, x)
    finite = np.isfinite(x)
    assert np.array_equal(bits(out[~finite]), bits(x[~finite]))
    exact, read = (np.where(finite, a, 0).astype(np.float64) for a in (x, out))
    allowed = error * (np.ptp(exact, axis=(0, 1)) if of == "range" else np.abs(exact))
    assert (np.abs(read - exact) <= allowed).all()


def test_the_loop_is_closed() -> None:
    """Errors do not add up along a line: those of its last quarter are no larger than those of its first."""
    x = smooth((64, 1152, 1), 5)
    error = np.abs(decoded(Delta("delta-paper"), x).astype(np.float64) - x)[..., 0]
    assert error[:, -288:].mean() < 1.5 * error[:, :288].mean()


def test_the_papers_mode_has_its_kinds_of_lines_and_a_quarter_of_the_size() -> None:
    x = smooth((64, 1152, 16), 6)
    x[::9, ::50, 3] *= 1e4  # abrupt transitions
    x[5, :, 7] = 3
    codec = Delta("delta-paper")
    read = packed(codec, x)
    shares = delta.parse(read).shares()
    assert shares["constant"] > 0 and shares["raw"] > 0 and shares["logarithmic 2048"] > 0.5
    size = sum(map(len, read.sections.values()))
    assert x.nbytes / size > 3.5
    out = np.empty_like(x)
    codec.decode(read, out)
    assert (np.abs(out.astype(np.float64) - x) > 0.1 * np.abs(x)).mean() < 0.03
    raw = delta.parse(read).kinds == delta.RAW
    assert np.array_equal(out.transpose(2, 0, 1)[raw], x.transpose(2, 0, 1)[raw])


@pytest.mark.parametrize("name", LOSSLESS)
def test_the_libraries_lose_nothing(name: str) -> None:
    for x in (smooth(), hard(), hard(1), np.zeros((0, 3, 2), np.float32)):
        read = frame.unpack(frame.pack(name, "<f4", x.shape, CODECS[name].encode(x)))
        out = np.empty_like(x)
        CODECS[name].decode(read, out)
        assert out.tobytes() == x.tobytes()


@pytest.mark.parametrize("name", ["sz3", "zfp"])
def test_libraries_keep_a_bound(name: str) -> None:
    x = smooth((24, 64, 3))
    codec = encoder(name, 1e-3, None, x.min(axis=(0, 1)), x.max(axis=(0, 1)))
    read = frame.unpack(frame.pack(name, "<f4", x.shape, codec.encode(x)))
    out = np.empty_like(x)
    CODECS[name].decode(read, out)
    assert (np.abs(out.astype(np.float64) - x) <= 1e-3 * np.ptp(x, axis=(0, 1))).all()


def test_every_bounded_codec_is_proved_by_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder that returns one wrong value: each encoder notices."""
    x = smooth((8, 64, 3))
    for name in _BOUNDED:
        codec = encoder(name, 1e-3, None, x.min(axis=(0, 1)), x.max(axis=(0, 1)))
        codec.encode(x)
        if isinstance(codec, Delta):

            def decode_wrongly(lines: Any, out: Field, decode: Any = delta.decode) -> None:
                decode(lines, out)
                out[3, 5, 1] *= 2

            monkeypatch.setattr(delta, "decode", decode_wrongly)
            with pytest.raises(AssertionError, match="the error bound is exceeded"):
                codec.encode(x)
            monkeypatch.undo()
        else:
            assert isinstance(codec, Planes)

            def decompress_wrongly(*stream: Any, right: Any = codec._decompress) -> Field:
                plane: Field = right(*stream)
                plane[3, 5] *= 2
                return plane

            monkeypatch.setattr(codec, "_decompress", decompress_wrongly)
            with pytest.raises(UserError, match=f"^{name}: error exceeds"):
                codec.encode(x)


@pytest.mark.parametrize("name", ["sz3", "zfp"])
@pytest.mark.parametrize("scale", [1e-42, 1e-30, 1e-20, 1.0, 1e30])
def test_a_bound_is_kept_or_refused(name: str, scale: float) -> None:
    x = (smooth((24, 64, 1)) / np.float32(1e-6)).astype(np.float64)
    field = (x / np.ptp(x) * scale).astype(np.float32)
    codec = encoder(name, 1e-3, None, field.min(axis=(0, 1)), field.max(axis=(0, 1)))
    out = np.empty_like(field)
    try:
        sections = codec.encode(field)
    except UserError as refused:
        assert name == "zfp" and scale < 1e-28, "only zfp, and no value of a real channel"
        assert str(refused).startswith("zfp: error exceeds")
        return
    CODECS[name].decode(frame.unpack(frame.pack(name, "<f4", field.shape, sections)), out)
    assert (np.abs(out.astype(np.float64) - field) <= 1e-3 * np.ptp(field.astype(np.float64))).all()


@pytest.mark.parametrize("name", ["sz3", "zfp", "delta", "delta-small"])
def test_a_channel_without_a_range_is_kept_exactly(name: str) -> None:
    """It is constant over the training set; another sample need not be."""
    for field in (np.full((8, 20, 1), 7.25, np.float32), smooth((8, 20, 1))):
        codec = encoder(name, 1e-3, None, np.zeros(1), np.zeros(1))
        out = np.empty_like(field)
        CODECS[name].decode(frame.unpack(frame.pack(name, "<f4", field.shape, codec.encode(field))), out)
        assert out.tobytes() == field.tobytes()


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f4", ">f4"])
@pytest.mark.parametrize("name", sorted(CODECS))
def test_arrays_of_any_order_are_encoded_alike(name: str, dtype: str, order: Any) -> None:
    field = smooth((12, 40, 3))
    low, high = field.min(axis=(0, 1)), field.max(axis=(0, 1))
    codec = encoder(name, None, None, low, high)
    other = field.astype(dtype, order=order)
    wide = np.zeros((12, 40, 6), dtype)[..., ::2]
    wide[...] = field
    expected = {key: bytes(part) for key, part in codec.encode(field).items()}
    assert {key: bytes(part) for key, part in codec.encode(other).items()} == expected
    assert {key: bytes(part) for key, part in codec.encode(wide).items()} == expected
    # Into such arrays: right or refused.
    read = frame.unpack(frame.pack(name, "<f4", field.shape, expected))
    right, out = np.empty_like(field), np.zeros(field.shape, dtype, order=order)
    CODECS[name].decode(read, right)
    try:
        CODECS[name].decode(read, out)
    except ValueError:
        assert (dtype, order) != ("<f4", "C")
    else:
        assert np.array_equal(out, right)


@pytest.mark.parametrize(
    ("name", "error", "of", "words"),
    [
        ("pco", 1e-3, None, "does not apply to codec pco"),
        ("delta-paper", None, "value", "does not apply to codec delta-paper"),
        ("delta", 0.0, None, "must be between 1e-12 and 1"),
        ("delta", float("nan"), None, "must be between 1e-12 and 1"),
        ("zfp", 1e-3, "value", "zfp bounds only absolute errors"),
        ("sz3", 1e-3, "value", "sz3 bounds only absolute errors"),
    ],
)
def test_a_bound_that_cannot_be_is_one_line(name: str, error: float, of: Of, words: str) -> None:
    with pytest.raises(UserError, match=words):
        encoder(name, error, of, np.zeros(3), np.ones(3))


# A sample's file.


@pytest.mark.parametrize("name", sorted(CODECS))
def test_a_file_is_read_like_the_published_one(tmp_path: Path, name: str) -> None:
    x, y = fields(1), mask(1).astype(np.uint8)
    low, high = x.min(axis=(0, 1)), x.max(axis=(0, 1))
    codec = CODECS[name] if name in (*LOSSLESS, "delta-paper") else encoder(name, 1e-4, None, low, high)
    path = tmp_path / "data-0.mlc"
    path.write_bytes(encode_sample(codec, x, y))
    out_x, out_y = np.empty_like(x), np.empty_like(y)
    reader = Reader(SHAPE, Statistics(low, high), name)
    assert reader.read(path, out_x, out_y) == path.stat().st_size
    assert np.array_equal(out_y, y)
    expected = (1 / (high - low)) * (x - low)
    if name in LOSSLESS:
        assert out_x.tobytes() == expected.tobytes()
    elif name != "delta-paper":
        assert np.abs(out_x - expected).max() < 1.01e-4


def test_values_that_are_not_finite_and_classes_that_are_none_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "data-0.mlc"
    for change, words in (("x", "non-finite|nan in channel 3"), ("y", "the mask is 3 at row 2, column 5")):
        for name in ("delta-paper", "pco"):
            x, y = fields(1), mask(1).astype(np.uint8)
            if change == "x":
                x[2, 5, 3] = NAN
            else:
                y[2, 5] = 3
            path.write_bytes(encode_sample(CODECS[name], x, y))
            with pytest.raises(UserError, match=f"data-0.mlc: .*({words})"):
                Reader(SHAPE, None, name).read(
                    path, np.empty(SHAPE, np.float32), np.empty(SHAPE[:2], np.uint8)
                )


# Malformed streams: the checksums are right, the content is not.


GOOD = smooth((6, 40, 2), 8)
GOOD[1, ::2, 0] = 1e9


def resealed(**changed: bytes) -> frame.Frame:
    sections = dict(Delta("delta-paper").encode(GOOD))
    return frame.unpack(frame.pack("delta-paper", "<f4", GOOD.shape, sections | changed), "data-a.mlc")


@pytest.mark.parametrize(
    ("section", "content", "words"),
    [
        ("kinds", b"", "has 0 bytes, expected 12"),
        ("kinds", bytes([2] * 12), "an unknown kind of line"),
        ("kinds", bytes([255] * 12), "an unknown kind of line"),
        ("kinds", bytes([1] * 12), "'pivots' .*expected 0"),
        ("kinds", bytes([8] * 12), "'pivots' .*expected 144"),
        ("pivots", np.full(11, np.nan, "<f4").tobytes(), "'pivots'"),
        ("units", np.full(11, 127, "i1").tobytes(), "'units'"),
        ("codes", b"", "'codes' .*has 0 bytes"),
        ("raw", b"1234", "'raw' .*has 4 bytes"),
    ],
)
def test_sections_that_do_not_fit_each_other_are_one_line(section: str, content: bytes, words: str) -> None:
    with pytest.raises(UserError, match=words) as said:
        delta.parse(resealed(**{section: content}))
    assert str(said.value).startswith("data-a.mlc: section ") and "\n" not in str(said.value)


def test_what_sz3_refuses_is_one_line() -> None:
    """Streams cut short, and with other bytes where the header has the number of axes."""
    x = smooth((24, 64, 1))
    codec = encoder("sz3", 1e-3, None, x.min(axis=(0, 1)), x.max(axis=(0, 1)))
    limits, plane = codec.encode(x).values()
    for stream in (b"", bytes(plane[:8]), bytes(plane[:-34]), bytes(plane[:-34]) + b"\xff" * 34):
        read = frame.unpack(
            frame.pack("sz3", "<f4", x.shape, {"limits": limits, "plane0": stream}), "data-a.mlc"
        )
        with pytest.raises(UserError, match="not readable by SZ3") as said:
            CODECS["sz3"].decode(read, np.empty_like(x))
        assert "\n" not in str(said.value)


def test_a_small_stream_that_says_that_it_is_huge_is_refused() -> None:
    """A zstd frame of 2^40 bytes in its header."""
    hostile = b"\x28\xb5\x2f\xfd\xe0" + (1 << 40).to_bytes(8, "little") + b"\0" * 20
    sections = dict(bounded("delta-small", GOOD, 1e-3).encode(GOOD))
    read = frame.unpack(frame.pack("delta-small", "<f4", GOOD.shape, sections | {"codes": hostile}))
    with pytest.raises(UserError, match="declares 1099511627776 bytes, expected at most"):
        CODECS["delta-small"].decode(read, np.empty_like(GOOD))
