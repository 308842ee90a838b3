"""Protocol buffer messages, read and written field by field without the protobuf library.

Wire format: protobuf.dev/programming-guides/encoding. Only field types used by the benchmarks' files are
written: length-delimited fields and varints.
"""

from collections.abc import Iterator


def field(number: int, value: bytes) -> bytes:
    """Encode a length-delimited field (wire type 2)."""
    return head(number, len(value)) + value


def head(number: int, length: int) -> bytes:
    """The bytes before the content of a length-delimited field."""
    return bytes([number << 3 | 2]) + varint(length)


def number_field(number: int, value: int) -> bytes:
    """Encode a non-negative number as a varint field (wire type 0)."""
    return bytes([number << 3]) + varint(value)


def varint(value: int) -> bytes:
    """Encode a non-negative number, 7 bits per byte, lowest bits first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def fields(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """The field number and the content of each field of a message; the content of a varint field is the varint's
    bytes.

    Raises ValueError or IndexError if ``message`` is malformed.
    """
    at = 0
    while at < len(message):
        tag, at = read_varint(message, at)
        kind = tag & 7
        if kind == 0:
            _, end = read_varint(message, at)
        elif kind == 2:
            length, at = read_varint(message, at)
            end = at + length
        elif kind in (1, 5):
            end = at + (8 if kind == 1 else 4)
        else:
            raise ValueError(f"unknown wire type {kind} at byte {at}")
        if end > len(message):
            raise ValueError(f"a field ends at byte {end} of {len(message)}")
        yield tag >> 3, message[at:end]
        at = end


def read_varint(message: memoryview, at: int = 0) -> tuple[int, int]:
    """The number encoded at byte ``at``, and the position after it. Raises like ``fields``."""
    value = message[at]
    if value < 0x80:  # most are
        return value, at + 1
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError(f"a number of more than 10 bytes at byte {at}")
