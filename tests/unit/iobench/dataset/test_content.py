import zlib

import numpy as np
import pytest

from mlhpc.iobench.dataset.content import BLOCK, Content


def ratio(data: bytes) -> float:
    return len(data) / len(zlib.compress(data, 6))


def test_a_sample_does_not_depend_on_the_others():
    content = Content(7)
    first = [content.sample(2, number, 1000).tobytes() for number in (0, 1, 2)]
    assert Content(7).sample(2, 1, 1000).tobytes() == first[1]
    assert len({*first, content.sample(3, 1, 1000).tobytes(), Content(8).sample(2, 1, 1000).tobytes()}) == 5


@pytest.mark.parametrize("size", [1, 7, 8, 4097, BLOCK + 13])
def test_a_shorter_sample_is_the_beginning_of_a_longer_one(size):
    content = Content(1)
    longer = content.sample(0, 0, size + 100)
    np.testing.assert_array_equal(content.sample(0, 0, size), longer[:size])


def test_incompressible_content_is_incompressible():
    """Also by a compressor whose window covers several of the blocks that the content is made from."""
    import lzma

    data = Content(5).sample(0, 0, 2 * BLOCK + 4096).tobytes()
    assert ratio(data) < 1.001
    far = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 16 << 20}]
    assert len(lzma.compress(data, format=lzma.FORMAT_RAW, filters=far)) > 0.999 * len(data)


def test_bytes_are_uniform():
    counts = np.bincount(Content(5).sample(1, 2, 1 << 20), minlength=256)
    expected = (1 << 20) / 256
    chi2 = ((counts - expected) ** 2 / expected).sum()
    assert 150 < chi2 < 400  # 255 degrees of freedom: mean 255, standard deviation 22.6


@pytest.mark.parametrize("stated", [1.5, 2.0, 4.0, 10.0])
def test_the_stated_compressibility_is_that_of_deflate(stated):
    assert ratio(Content(5, stated).sample(0, 0, 4_000_000).tobytes()) == pytest.approx(stated, rel=0.03)
