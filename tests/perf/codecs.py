"""Codecs side by side on one sample of each benchmark: size, error, encoding, decoding, and a copy of the output.

    python tests/perf/codecs.py cosmoflow SAMPLE [--rounds 7] [--out codecs.svg]
    python tests/perf/codecs.py deepcam SAMPLE.h5 --statistics DATA [--max-error 1e-3]

One thread. The ways take turns, so that what else the machine does falls on all; the figures are medians. The
output of CosmoFlow is float16 log(1 + counts), as the paper's decoder hands it out, of DeepCAM the normalised
float32 field, channels last; the copy is of that output. Samples: docs/evidence/performance.md says how those
of the record were made. For the HDF5 filters: pip install hdf5plugin; what is not installed is left out.
"""

import argparse
import gzip
import io
import statistics
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from isal import isal_zlib

from mlhpc.common.data.codecs import frame, native


@dataclass
class Way:
    """``encode()`` gives the bytes, ``decode(bytes)`` fills ``out``; ``physical`` decodes without
    preprocessing, for the error (None: lossless, which is checked). ``encodes``: whether ``encode`` does the
    work, and is timed."""

    name: str
    encode: Callable[[], bytes]
    decode: Callable[[bytes], Any]
    encodes: bool = True
    physical: Callable[[bytes], Any] | None = None


def log_of(x: Any) -> Any:
    return np.log(x.astype(np.float32) + np.float32(1)).astype(np.float16)


def module(name: str) -> Any:
    with suppress(ImportError):
        return import_module(name)
    return None


def cosmoflow(path: Path) -> tuple[Any, Any, list[Way]]:
    from mlhpc.cosmoflow.data.codec import CODECS
    from mlhpc.cosmoflow.data.sample import read_counts

    x, _ = read_counts(path)
    side = round((x.size / 4) ** (1 / 3))
    x = x.reshape(side, side, side, 4)
    out, expected = np.empty(x.shape, np.float16), log_of(x)

    def framed(name: str) -> Way:
        codec = CODECS[name]

        def decode(data: bytes) -> None:
            read = frame.unpack(data)
            if name.startswith("lut"):
                codec.decode(read, out, log_of)  # type: ignore[call-arg]
            else:
                counts = np.empty_like(x)
                codec.decode(read, counts)
                out[...] = log_of(counts)

        return Way(name, lambda: frame.pack(name, "<i2", x.shape, codec.encode(x)), decode)

    def inflated(decompress: Callable[[bytes], bytes]) -> Callable[[bytes], None]:
        def decode(data: bytes) -> None:
            out[...] = log_of(np.frombuffer(decompress(data), np.int16).reshape(x.shape))

        return decode

    raw = x.tobytes()
    zipped = zlib.compress(raw, 6)
    ways = [
        Way("plain int16", lambda: raw, inflated(lambda data: data), encodes=False),
        Way("gzip-6, zlib", lambda: zlib.compress(raw, 6), inflated(zlib.decompress)),
        Way(
            "gzip-6, isal",
            lambda: zipped,
            inflated(lambda d: isal_zlib.decompress(d, 15, len(raw))),
            encodes=False,
        ),
        Way("gzip, isal level 2", lambda: isal_zlib.compress(raw, 2), inflated(isal_zlib.decompress)),
        *(framed(name) for name in CODECS),
    ]
    if blosc2 := module("blosc2"):
        lz4 = {"codec": blosc2.Codec.LZ4, "clevel": 5, "filters": [blosc2.Filter.BITSHUFFLE], "typesize": 2}
        ways.append(
            Way("blosc2 lz4-5", lambda: blosc2.compress2(x, nthreads=1, **lz4), inflated(blosc2.decompress2))
        )
    _ = expected
    return out, expected, ways


def deepcam(path: Path, root: Path, max_error: float) -> tuple[Any, Any, list[Way], Any, Any]:
    from mlhpc.deepcam.data import delta, hdf5
    from mlhpc.deepcam.data.codec import CODECS, Bound, Delta, encoder
    from mlhpc.deepcam.data.sample import shift_and_scale

    x, _ = hdf5.read(path)
    x = np.ascontiguousarray(x, np.float32)
    low, high = hdf5.read_statistics(root, x.shape[2])
    by = shift_and_scale(hdf5.Statistics(low, high), 1)
    ranges = (high - low).astype(np.float64)
    out = np.empty_like(x)

    def normalise(field: Any) -> None:
        np.subtract(field, by[0], out=out)
        np.multiply(out, by[1], out=out)

    def normalised(field: Any) -> Any:
        return (field - by[0]) * by[1]

    def framed(name: str, label: str, error: float | None = None) -> Way:
        codec = encoder(name, error, None, low, high) if error or name == "zfp" else CODECS[name]

        def decode(data: bytes) -> None:
            read = frame.unpack(data)
            if isinstance(codec, Delta):
                delta.decode(codec.finite_lines(read), out, by)
            else:
                codec.decode(read, out)
                normalise(out)

        def physical(data: bytes) -> Any:
            field = np.empty_like(x)
            codec.decode(frame.unpack(data), field)
            return field

        lossy = physical if codec.lossy else None
        return Way(label, lambda: frame.pack(name, "<f4", x.shape, codec.encode(x)), decode, physical=lossy)

    def shrunk(label: str, pack: Callable[[Any], bytes], unpack: Callable[[bytes], Any]) -> Way:
        """float16 of the normalised field, with a lossless stage."""

        def decode(data: bytes) -> None:
            out[...] = unpack(data)

        def physical(data: bytes) -> Any:
            return unpack(data).astype(np.float32) / by[1] + by[0]

        return Way(label, lambda: pack(normalised(x).astype(np.float16)), decode, physical=physical)

    def half(data: Any) -> Any:
        return np.frombuffer(data, np.float16).reshape(x.shape)

    raw = x.tobytes()
    ways = [
        Way("plain float32", lambda: raw, lambda data: normalise(np.frombuffer(data,
        np.float32).reshape(x.shape)), encodes=False), Way("gzip-6", lambda: gzip.compress(raw, 6), lambda data:
        normalise(np.frombuffer(isal_zlib.decompress(data, 31), np.float32).reshape(x.shape))), *(framed(name,
        name) for name in ("pco", "zstd", "blosc2")), shrunk("float16", lambda f: f.tobytes(), half),
        framed("delta-paper", "delta-paper"),
    ]  # fmt: skip
    if pco := module("pcodec"):
        alone = pco.standalone
        ways.append(shrunk(
            "float16 + pco",
            lambda f: alone.simple_compress(f.reshape(-1), pco.ChunkConfig()),
            lambda data: alone.simple_decompress(data).reshape(x.shape),
        ))  # fmt: skip
    if zstd := module("zstandard"):
        ways.append(shrunk(
            "float16 + "
            "zstd", zstd.ZstdCompressor(3).compress, lambda data: half(zstd.ZstdDecompressor().decompress(data))
        ))  # fmt: skip
    for error in (max_error * 10, max_error, max_error / 10):
        ways += [framed(name, f"{name} {error:g}", error) for name in ("delta", "delta-small", "sz3", "zfp")]
    if module("hdf5plugin"):
        ways += list(_hdf5_filters(x, normalise))
    _ = Bound
    return out, normalised(x), ways, x, ranges


def _hdf5_filters(x: Any, normalise: Callable[[Any], None]) -> Iterator[Way]:
    import h5py
    import hdf5plugin

    for label, options in (
        ("HDF5 gzip-4 + shuffle", {"compression": "gzip", "compression_opts": 4, "shuffle": True}),
        ("HDF5 bitshuffle lz4", dict(hdf5plugin.Bitshuffle())),
        ("HDF5 blosc2 zstd", dict(hdf5plugin.Blosc2(cname="zstd", clevel=5, filters=2))),
    ):

        def encode(options: Any = options) -> bytes:
            stream = io.BytesIO()
            with h5py.File(stream, "w") as file:
                file.create_dataset("data", data=x, chunks=(64, *x.shape[1:]), **options)
            return stream.getvalue()

        def decode(data: bytes) -> None:
            with h5py.File(io.BytesIO(data), "r") as file:
                normalise(file["data"][...])

        yield Way(label, encode, decode)


def kinds_of_lines(data: bytes) -> str:
    """The shares of a sample's lines by how the differential codec encoded them."""
    read = frame.unpack(data)
    kinds, columns = np.frombuffer(read.sections["kinds"], np.uint8), read.shape[1]
    segments = {2 * log2 + code: 1 << log2 for log2 in range(4, 17) for code in (0, 1)}

    def name(kind: int) -> str:
        if kind in segments:
            return f"segments of {segments[kind]}" if segments[kind] < columns else "one segment"
        return "constant" if kind == 0 else "raw"

    numbers = Counter(map(name, kinds.tolist()))
    return ", ".join(f"{kind} {number / len(kinds):.1%}" for kind, number in numbers.most_common())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("benchmark", choices=("cosmoflow", "deepcam"))
    parser.add_argument("sample", type=Path)
    parser.add_argument("--statistics", type=Path, help="of deepcam: the data set that the sample is of")
    parser.add_argument("--max-error", type=float, default=1e-3)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, help="a picture: size against rate (.svg or .png)")
    options = parser.parse_args()
    x = ranges = None
    if options.benchmark == "cosmoflow":
        out, expected, ways = cosmoflow(options.sample)
        size = out.nbytes  # as many bytes as the counts
    else:
        out, expected, ways, x, ranges = deepcam(
            options.sample, options.statistics or options.sample.parents[1], options.max_error
        )
        size = x.nbytes

    encoded, seconds, refused = {}, {}, {}
    for way in list(ways):
        start = time.perf_counter()
        try:
            encoded[way.name] = way.encode()
        except Exception as error:
            refused[way.name] = " ".join(str(error).split())[:120]
            ways.remove(way)
            continue
        seconds[way.name] = time.perf_counter() - start
    times: dict[str, list[float]] = {way.name: [] for way in ways}
    copies, source = [], expected.copy()
    for turn in range(options.rounds):
        start = time.perf_counter()
        np.copyto(out, source)
        copies.append(time.perf_counter() - start)
        for way in ways[:: 1 if turn % 2 else -1]:
            out[...] = 0
            start = time.perf_counter()
            way.decode(encoded[way.name])
            times[way.name].append(time.perf_counter() - start)
            if way.physical is None:
                assert np.array_equal(out, expected), f"{way.name} is not lossless"

    copy = statistics.median(copies)
    print(
        f"{options.sample}: {size / 1e6:.1f} MB, decoder {native.decoder()}, copy of the "
        f"output {1e3 * copy:.2f} ms"
    )
    print(
        "| codec | ratio | encode MB/s | decode ms | decode MB/s | × copy | off by > 10% | largest error / range |"
    )
    print("|---|---|---|---|---|---|---|---|")
    points = []
    for way in sorted(ways, key=lambda way: len(encoded[way.name])):
        ratio, decode = size / len(encoded[way.name]), statistics.median(times[way.name])
        far = largest = "0"
        if way.physical:
            assert x is not None and ranges is not None
            exact, field = x.astype(np.float64), way.physical(encoded[way.name]).astype(np.float64)
            away = np.abs(field - exact)
            far = f"{100 * (away > 0.1 * np.abs(exact)).mean():.2f}%"
            largest = f"{(away.max(axis=(0, 1)) / ranges).max():.1e}"
        rate = size / 1e6
        encoding = f"{rate / seconds[way.name]:.0f}" if way.encodes else "–"
        print(
            f"| {way.name} | {ratio:.2f} | {encoding} | {1e3 * decode:.1f} | "
            f"{rate / decode:.0f} | "
            f"{decode / copy:.1f} | {far} | {largest} |"
        )
        points.append((way.name, ratio, rate / decode, largest))
    for name, data in encoded.items():
        if name.startswith("delta"):
            print(f"lines of {name}: {kinds_of_lines(data)}")
    for name, why in refused.items():
        print(f"{name}: {why}")
    if options.out:
        draw(points, options.benchmark, options.out)


def draw(points: list[tuple[str, float, float, str]], title: str, out: Path) -> None:
    """Size against rate. A codec is on the frontier when no other is smaller and faster at no larger error."""
    import altair as alt
    import vl_convert

    from mlhpc.common.pages.charts import ACCENT, SOFT, chart_of, figure
    from mlhpc.common.pages.plots import log_axis

    def dominated(one: tuple[str, float, float, str]) -> bool:
        return any(
            two[1] > one[1] and two[2] > one[2] and float(two[3]) <= float(one[3]) * 1.05 for two in points
        )

    rows = [
        {"codec": p[0], "ratio": p[1], "rate": p[2], "frontier": "no" if dominated(p) else "yes"}
        for p in points
    ]
    x = log_axis([rate for _, _, rate, _ in points], "decoded and preprocessed, MB/s, one thread")
    y = log_axis([ratio for _, ratio, _, _ in points], "times smaller")
    base = chart_of(rows, x=alt.X("rate:Q", **x.channel), y=alt.Y("ratio:Q", **y.channel))
    colour = alt.Color(
        "frontier:N",
        scale=alt.Scale(domain=["yes", "no"], range=[ACCENT[0], SOFT[0]]),
        title="on the frontier",
    )
    names = base.mark_text(align="left", dx=7, fontSize=10).encode(text="codec:N")
    chart = base.mark_point(filled=True, size=50).encode(color=colour) + names
    alt_text = "; ".join(f"{p[0]}: {p[1]:.1f} times smaller at {p[2]:.0f} MB/s" for p in points)
    made = figure(chart, alt_text, title=f"Codecs on a sample of {title}", height=380, static_width=620)
    if out.suffix == ".png":
        out.write_bytes(vl_convert.svg_to_png(made.svg, scale=1.5))
    else:
        out.write_text(made.svg)


if __name__ == "__main__":
    main()
