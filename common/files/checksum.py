"""The checksum of data sets: CRC-32 (ISO-HDLC, the variant used by gzip, zip and PNG).

It detects truncated, damaged and mixed-up files, but not forgery. isal computes it at several times the
speed of any disk without holding the interpreter lock, so that staging can verify what it copies; anyone can
recompute it with ``zlib.crc32``, ``crc32`` or ``rhash``. CRC-32C would work as well, but its Python binding
keeps the lock; cryptographic hashes run at 1 GB/s per core and would slow down staging.
"""

import hashlib
from pathlib import Path

from isal import isal_zlib

from mlhpc.common.files.regular import open_regular

# Bytes processed at a time: few enough to stay in the cache while being checksummed, but enough that threads
# rarely pass on the interpreter lock, which is slow on shared cores.
BLOCK = 2 << 20


def checksum(path: Path) -> tuple[int, int]:
    """Size and CRC-32 of a regular file's content. Raises OSError."""
    block = memoryview(bytearray(BLOCK))
    size = crc = 0
    with open(open_regular(path), "rb", buffering=0) as file:
        while count := file.readinto(block):
            crc = isal_zlib.crc32(block[:count], crc)
            size += count
    return size, crc


def sha256(path: Path) -> str:
    """The SHA-256 of a regular file's content, in hexadecimal digits. Raises OSError."""
    with open(open_regular(path), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
