"""Generates the content of samples. Each sample is generated independently, so files do not depend on the number
of ranks.

Random generators that can start anywhere (counter-based, Salmon et al. 2011, "Parallel random numbers: as easy as
1, 2, 3") are slower than a disk. Therefore, one block of random words is generated once, and each block of a
sample is a part of it that starts at a different position, with every word XORed with a key. Compressors find no
matches between these parts, because bytes repeat only if two keys agree.
"""

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

BLOCK = 4 << 20
"""Bytes of the random block, which fits a second-level cache or nearly so."""
PAGE = 4096
"""Bytes of a page, the unit of compressing file systems. Each page of compressible content is random bytes, then
zeros."""
_WORDS = BLOCK // 8
_MASK = (1 << 64) - 1


class Content:
    """Generates the samples of a data set with this ``seed`` and a deflate ratio of ``compressibility``."""

    def __init__(self, seed: int, compressibility: float = 1.0) -> None:
        self._seed = seed
        random = np.random.Generator(np.random.Philox(key=seed))
        block = random.integers(0, 1 << 64, _WORDS, dtype=np.uint64)
        self._words = np.concatenate([block, block])
        # Zeros are not free: deflate needs about 1 byte per 200 of them, since two symbols cover at most 258.
        kept = (1 / compressibility - 1 / _ZEROS) / (1 - 1 / _ZEROS) if compressibility > 1 else 1.0
        self._kept = PAGE if compressibility == 1 else max(1, round(PAGE * max(0.0, kept)))

    def sample(self, file: int, number: int, size: int) -> Bytes:
        """The content of sample ``number`` in file ``file``, uint8 [size]."""
        out = np.empty(-(-size // 8), np.uint64)
        for block in range(-(-len(out) // _WORDS)):
            word = _mix(self._seed, file, number, block)
            start, part = word % _WORDS, out[block * _WORDS : (block + 1) * _WORDS]
            np.bitwise_xor(self._words[start : start + len(part)], np.uint64(_mix(word)), out=part)
        content = out.view(np.uint8)[:size]
        if self._kept < PAGE:
            whole = size // PAGE * PAGE
            content[:whole].reshape(-1, PAGE)[:, self._kept :] = 0
            content[whole + self._kept :] = 0
        return content


_ZEROS = 200


def _mix(*numbers: int) -> int:
    """A 64-bit hash of ``numbers``: the finaliser of SplitMix64 (Steele, Lea and Flood 2014), applied to each in
    turn."""
    state = 0
    for number in numbers:
        state = (state ^ number) + 0x9E3779B97F4A7C15 & _MASK
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ state >> 27) * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return state
