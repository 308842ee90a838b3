"""The bytes of samples: any sample of any file by itself, so that every number of ranks writes the same files.

Random generators that can start anywhere (counter-based, Salmon et al. 2011, "Parallel random numbers: as easy as
1, 2, 3") are slower than a disk. So one block of random words is drawn once, and each block of a sample is a
stretch of it from a place of its own, every word combined by exclusive or with a separate key. No compressor
finds the stretches in each other: its bytes repeat only where two keys agree.
"""

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

BLOCK = 4 << 20
"""Bytes of the random block: fits in a second-level cache or near it."""
PAGE = 4096
"""Compressible content is made page by page, as file systems that compress do: random bytes, then zeros."""
_WORDS = BLOCK // 8
_MASK = (1 << 64) - 1


class Content:
    """Samples of a data set with this ``seed``, which deflate compresses ``compressibility`` to 1."""

    def __init__(self, seed: int, compressibility: float = 1.0) -> None:
        self._seed = seed
        random = np.random.Generator(np.random.Philox(key=seed))
        block = random.integers(0, 1 << 64, _WORDS, dtype=np.uint64)
        self._words = np.concatenate([block, block])
        # Zeros are not free: deflate needs about 1 byte for 200 of them, at most 258 in two symbols.
        kept = (1 / compressibility - 1 / _ZEROS) / (1 - 1 / _ZEROS) if compressibility > 1 else 1.0
        self._kept = PAGE if compressibility == 1 else max(1, round(PAGE * max(0.0, kept)))

    def sample(self, file: int, number: int, size: int) -> Bytes:
        """``size`` bytes, uint8: sample ``number`` of file ``file``."""
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
    """A 64-bit hash of numbers: the finaliser of SplitMix64 (Steele, Lea and Flood 2014) over each in turn."""
    state = 0
    for number in numbers:
        state = (state ^ number) + 0x9E3779B97F4A7C15 & _MASK
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ state >> 27) * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return state
