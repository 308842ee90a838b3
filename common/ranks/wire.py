"""Serialises values exchanged by ranks: JSON for structure, and bytes for arrays, compressed if they are long.
Never a pickle, which could run code from the network.

Supported types: None, bool, int, float, str, bytes, list, tuple, set, dict, ``Path``, NumPy arrays and scalars,
and dataclasses and named tuples of this package.
"""

import dataclasses
import json
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from isal import isal_zlib

_SCALARS = frozenset({type(None), bool, int, float, str})
_PACKAGE = __name__.partition(".")[0]
_DTYPES = "biufcSUmM"  # no objects, and no structures, whose field names dtype.str lacks
_LONG = 1 << 16
"""Minimum bytes for which compression pays off: a list of half a million files shrinks to a sixth."""
_HEADER = 8  # bytes for the length of the JSON


def encode(value: object) -> bytes:
    """``value`` as bytes. Raises TypeError naming a type that cannot be sent."""
    blobs = bytearray()
    text = json.dumps(_plain(value, blobs)).encode()
    return b"".join([len(text).to_bytes(_HEADER, "little"), text, blobs])


def decode(data: bytes | memoryview) -> Any:
    """The value that ``encode`` turned into ``data``. Raises ValueError if ``data`` does not come from
    ``encode``."""
    view = memoryview(data)
    end = _HEADER + int.from_bytes(view[:_HEADER], "little")
    try:
        if len(view) < end:
            raise ValueError(f"{len(view)} bytes of {end}")
        return json.loads(bytes(view[_HEADER:end]), object_hook=lambda tagged: _from_tag(tagged, view[end:]))
    except Exception as error:  # NumPy evaluates a type's name, so a damaged one raises almost any exception
        raise ValueError(f"not a message between ranks: {error}") from error


def decode_all(messages: Sequence[bytes | memoryview]) -> list[Any]:
    """The values decoded from ``messages``. Messages that are one line of JSON, as most are, are decoded all at
    once: ten thousand take 20 ms."""
    if any(len(data) != _HEADER + int.from_bytes(data[:_HEADER], "little") for data in messages):
        return [decode(data) for data in messages]
    text = b"[" + b",".join(data[_HEADER:] for data in messages) + b"]"
    values: list[Any] = decode(len(text).to_bytes(_HEADER, "little") + text)
    return values


def _plain(value: Any, blobs: bytearray) -> Any:
    """``value`` in JSON's types: scalars and lists as they are, everything else as an object that maps one tag to
    the content. Arrays are appended to ``blobs``."""
    kind = type(value)
    if kind in _SCALARS:
        return value
    if kind is list:
        return _plain_list(value, blobs)
    if kind is tuple:
        return {"tuple": _plain_list(value, blobs)}
    if isinstance(value, set | frozenset):
        return {"set": _plain_list(sorted(value, key=repr), blobs)}
    if isinstance(value, dict):
        return {"dict": [[_plain(key, blobs), _plain(item, blobs)] for key, item in value.items()]}
    if isinstance(value, Path):
        return {"path": str(value)}
    if isinstance(value, bytes):
        return {"bytes": _append(value, blobs)}
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in _DTYPES:
        tag = "array" if isinstance(value, np.ndarray) else "scalar"
        return {tag: [value.dtype.str, value.shape, *_append(value.tobytes(), blobs)]}
    if _is_record(kind):
        return {"record": [f"{kind.__module__}:{kind.__qualname__}", _plain_list(_fields(value), blobs)]}
    raise TypeError(f"a {kind.__name__} cannot be sent between ranks")


def _plain_list(items: Sequence[Any], blobs: bytearray) -> Any:
    kinds = set(map(type, items))
    if kinds <= _SCALARS:
        return list(items)
    if len(kinds) == 1 and _is_row(kind := kinds.pop()) and set(map(type, chain(*items))) <= _SCALARS:
        # Manifests have half a million files, so no Python code may run per item.
        return {"rows": [f"{kind.__module__}:{kind.__qualname__}", items]}
    return [_plain(item, blobs) for item in items]


def _append(data: bytes, blobs: bytearray) -> list[int]:
    """Append ``data`` to ``blobs``; returns its offset there, its number of bytes there, and its number of bytes
    without compression."""
    start, stored = len(blobs), data if len(data) < _LONG else isal_zlib.compress(data, 1)
    if len(stored) >= len(data):
        stored = data
    blobs += stored
    return [start, len(stored), len(data)]


def _from_tag(tagged: dict[str, Any], blobs: memoryview) -> Any:
    ((tag, content),) = tagged.items()
    match tag:
        case "tuple":
            return tuple(content)
        case "set":
            return set(content)
        case "dict":
            return dict(content)
        case "path":
            return Path(content)
        case "bytes":
            return bytes(_cut(blobs, *content))
        case "array" | "scalar":
            dtype, shape, *place = content
            array = np.frombuffer(_cut(blobs, *place), np.dtype(dtype)).reshape(shape).copy()
            return array if tag == "array" else array[()]
        case "record":
            return _record(content[0])(*content[1])
        case "rows":
            kind = _record(content[0])
            return [kind(*row) for row in content[1]]
    raise ValueError(f"unknown tag {tag!r}")


def _cut(blobs: memoryview, start: int, stored: int, length: int) -> bytes | memoryview:
    if start < 0 or stored < 0 or start + stored > len(blobs):
        raise ValueError("its arrays are truncated")
    data = blobs[start : start + stored]
    return data if stored == length else isal_zlib.decompress(data, bufsize=length)


def _record(name: str) -> Any:
    module, _, qualified = name.partition(":")
    kind = vars(sys.modules[module]).get(qualified)
    if not isinstance(kind, type) or not _is_record(kind):
        raise ValueError(f"{name} is not a type that ranks exchange")
    return kind


def _is_record(kind: type) -> bool:
    is_ours = kind.__module__.partition(".")[0] == _PACKAGE
    return is_ours and (_is_row(kind) or (dataclasses.is_dataclass(kind) and isinstance(kind, type)))


def _is_row(kind: type) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, "_fields") and kind.__module__.startswith(_PACKAGE)


def _fields(value: Any) -> list[Any]:
    if isinstance(value, tuple):
        return list(value)
    return [getattr(value, field.name) for field in dataclasses.fields(value)]
