"""The lookup-table codec of Ibrahim and Oliker 2022, section V-B, and CosmoFlow's codecs by name.

The four redshifts of a voxel form a *group*. A universe of 128³ voxels has about ten thousand different groups, so
it can be represented by a table of them and a key of one or two bytes per voxel. If one table cannot contain all
groups, or if several tables with narrower keys are smaller in total, a sample is divided into blocks of voxels in
C order, each with its own table.

``lut`` stores keys and tables uncompressed: decoding is one look-up per voxel, and the logarithm of the counts can
be applied to the table instead of the voxels. ``lut-small`` numbers the groups by decreasing frequency, so that
small keys are frequent, and compresses keys and tables with pcodec.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mlhpc.common.data.codecs import library, native
from mlhpc.common.data.codecs.codec import Codec, Sections, require_order
from mlhpc.common.data.codecs.frame import Frame
from mlhpc.errors import UserError

_MOST_GROUPS = 1 << 16  # per table, since keys have at most 16 bits
_MOST_VALUES = 4  # per group; four int16 values are compared as 8 bytes
_SMALLEST_BLOCK = 1 << 12  # voxels
_BLOCK = np.dtype([("voxels", "<u4"), ("groups", "<u4")])

Transform = Callable[[npt.NDArray[np.int16]], npt.NDArray[Any]]


@dataclass(frozen=True)
class Block:
    """Consecutive voxels in C order, the first of which has index ``start``. ``keys`` [voxels]: the voxels'
    indices into ``table``, int16 [groups, values]."""

    start: int
    keys: npt.NDArray[Any]
    table: npt.NDArray[np.int16]


class LookupTable:
    """The codec ``lut``, or, with ``small``, ``lut-small``. Encodes int16 arrays, whose last axis holds the values
    of a group, without loss."""

    lossy = False

    def __init__(self, name: str, small: bool) -> None:
        self.name = name
        self._small = small

    def encode(self, array: npt.NDArray[np.int16]) -> Sections:
        """Encode ``array`` [..., values], with up to four values, as sections: ``blocks`` (numbers of voxels and
        groups of each block, uint32), ``tables`` (int16, one after the other), and ``keys8`` and ``keys16`` (the
        keys of blocks with up to 256 groups, and the keys of larger blocks). With compression, the tables are
        stored by value in ``tables0``, ``tables1``… (the first values of all groups, then the second values, and
        so on)."""
        values = array.shape[-1]
        groups = np.ascontiguousarray(array, "<i2").reshape(-1, values)
        blocks = list(_blocks(groups, by_frequency=self._small))
        header = np.array([(len(b.keys), len(b.table)) for b in blocks], _BLOCK)
        tables = np.concatenate([b.table for b in blocks]) if blocks else groups
        keys = {
            name: np.concatenate([np.empty(0, kind), *(b.keys for b in blocks if b.keys.dtype == kind)])
            for name, kind in (("keys8", np.dtype("u1")), ("keys16", np.dtype("<u2")))
        }
        if not self._small:
            return {"blocks": header.tobytes(), "tables": tables.tobytes()} | {
                name: part.tobytes() for name, part in keys.items()
            }
        # pcodec has no one-byte type.
        wide = keys | {"keys8": keys["keys8"].astype("<u2")}
        columns = {f"tables{i}": np.ascontiguousarray(tables[:, i]) for i in range(values)}
        return {"blocks": header.tobytes()} | {
            name: library.pco_compress(part) for name, part in (wide | columns).items()
        }

    def decode(self, frame: Frame, out: npt.NDArray[Any], transform: Transform | None = None) -> None:
        """Fill ``out``, which has the frame's shape [..., values], with the counts, or with their ``transform``,
        which is computed for the tables only. Raises UserError for a malformed frame, ValueError for an array that
        is not C-contiguous."""
        require_order(out)
        # Not -1, which is ambiguous if there are no voxels.
        flat = out.reshape(math.prod(out.shape[:-1]), out.shape[-1])
        for block in self._blocks(frame):
            table = block.table if transform is None else transform(block.table)
            at = native.gather(block.keys, table, flat[block.start : block.start + len(block.keys)])
            if at is not None:
                raise _beyond(frame, block, at)

    def blocks(self, frame: Frame) -> Iterator[Block]:
        """The blocks of a frame, with every key checked against its table. Raises UserError for a malformed
        frame."""
        for block in self._blocks(frame):
            if len(block.keys) and int(block.keys.max()) >= len(block.table):
                raise _beyond(frame, block, int(np.argmax(block.keys >= len(block.table))))
            yield block

    def _blocks(self, frame: Frame) -> Iterator[Block]:
        """The blocks of a frame, checked for consistency with each other and with the frame's shape; keys are not
        checked against the tables."""
        frame.require(self.name, "<i2", frame.shape)
        if not 1 <= frame.shape[-1] <= _MOST_VALUES:
            raise frame.error(f"has groups of {frame.shape[-1]} values, which are not supported")
        *grid, values = frame.shape
        header: npt.NDArray[Any] = frame.array("blocks", _BLOCK)
        voxels, groups = (header[name].astype(np.int64) for name in ("voxels", "groups"))
        if voxels.sum() != np.prod(grid, dtype=np.int64) or (groups > _MOST_GROUPS).any():
            raise frame.error(
                f"blocks of {voxels.sum()} voxels do not add up to shape {frame.shape}", "blocks"
            )
        narrow = groups <= 256
        count8, count16, rows = int(voxels[narrow].sum()), int(voxels[~narrow].sum()), int(groups.sum())
        if rows > max(int(voxels.sum()), 1):
            raise frame.error(f"has tables of {rows} groups for {voxels.sum()} voxels", "blocks")
        if self._small:
            read = library.pco_decompress
            keys8 = read(frame, "keys8", "<u2", count8)
            if count8 and int(keys8.max()) > 255:
                raise frame.error("contains a key above 255", "keys8")
            keys = {True: keys8.astype("u1"), False: read(frame, "keys16", "<u2", count16)}
            tables = np.stack([read(frame, f"tables{i}", "<i2", rows) for i in range(values)], axis=1)
        else:
            keys = {True: frame.array("keys8", "u1", count8), False: frame.array("keys16", "<u2", count16)}
            tables = frame.array("tables", "<i2", rows * values).reshape(rows, values)
        start, row, taken = 0, 0, {True: 0, False: 0}
        for size, length, is_narrow in zip(voxels.tolist(), groups.tolist(), narrow.tolist(), strict=True):
            first = taken[is_narrow]
            yield Block(start, keys[is_narrow][first : first + size], tables[row : row + length])
            taken[is_narrow], start, row = first + size, start + size, row + length


def _beyond(frame: Frame, block: Block, at: int) -> UserError:
    return frame.error(f"key {block.keys[at]} of voxel {block.start + at} is not below {len(block.table)}")


class _Range(NamedTuple):
    """A range of voxels, stored as one block, or as several if these are smaller in total. ``unique``: the
    distinct groups. ``size``: bytes of all blocks. ``cuts``: start and end of each block."""

    unique: npt.NDArray[Any]
    size: int
    cuts: list[tuple[int, int]]


def _blocks(groups: npt.NDArray[np.int16], by_frequency: bool) -> Iterator[Block]:
    """Divide ``groups [voxels, values]`` by recursive halving into the blocks that are smallest in total."""
    values = groups.shape[1]
    assert 1 <= values <= _MOST_VALUES
    # Groups are compared as one integer.
    padded = np.zeros((len(groups), 4), "<i2")
    padded[:, :values] = groups
    codes = padded.view("<u8").reshape(-1)

    def best(start: int, stop: int) -> _Range:
        whole = [(start, stop)]
        if stop - start < 2 * _SMALLEST_BLOCK:
            unique = np.unique(codes[start:stop])
            return _Range(unique, _size(stop - start, len(unique), values), whole)
        middle = (start + stop) // 2
        left, right = best(start, middle), best(middle, stop)
        unique = np.union1d(left.unique, right.unique)
        size, parts = _size(stop - start, len(unique), values), left.size + right.size
        if len(unique) <= _MOST_GROUPS and size <= parts:
            return _Range(unique, size, whole)
        return _Range(unique, parts, left.cuts + right.cuts)

    for start, stop in best(0, len(codes)).cuts if len(codes) else ():
        yield _block(start, codes[start:stop], values, by_frequency)


def _size(voxels: int, groups: int, values: int) -> int:
    """Bytes of a block."""
    return voxels * (1 if groups <= 256 else 2) + groups * 2 * values


def _block(start: int, codes: npt.NDArray[Any], values: int, by_frequency: bool) -> Block:
    unique, inverse, counts = np.unique(codes, return_inverse=True, return_counts=True)
    if by_frequency:  # groups of equal frequency remain sorted, which makes the table smaller
        order = np.argsort(-counts, kind="stable")
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        unique, inverse = unique[order], rank[inverse]
    table = np.ascontiguousarray(unique.view("<i2").reshape(-1, 4)[:, :values])
    return Block(start, inverse.astype("u1" if len(unique) <= 256 else "<u2"), table)


_OURS = LookupTable("lut", small=False), LookupTable("lut-small", small=True)
TABLES = tuple(codec.name for codec in _OURS)
"""The codecs whose samples a device can decode."""
CODECS: dict[str, Codec] = {codec.name: codec for codec in (*_OURS, *library.LOSSLESS)}
"""The codecs of encoded data sets; TFRecord files, plain or GZIP, are not frames and have no codec."""
