"""Memory for batches: reused, but never while it is still referenced."""

import numpy as np
import pytest

from mlhpc.common.data.buffers import Buffers


@pytest.mark.parametrize("dtype", ["int16", "float16", "float32", "uint8"])
def test_an_array_has_the_shape_and_type_that_were_asked_for(dtype: str) -> None:
    array = Buffers().take((3, 4, 5), dtype)
    array[...] = np.arange(60).reshape(3, 4, 5)
    assert array.dtype == dtype and array.flags.c_contiguous and array.sum() == 1770


def test_memory_of_a_dropped_batch_is_used_again() -> None:
    buffers = Buffers()
    address = buffers.take((4000,), "float32").ctypes.data
    assert buffers.take((4000,), "float32").ctypes.data == address


@pytest.mark.parametrize(
    "part",
    [lambda x: x, lambda x: x[1], lambda x: x.view("uint16"), lambda x: x[0].T.reshape(-1)[::2], memoryview],
)
def test_memory_that_a_part_of_a_batch_lies_in_is_left_alone(part) -> None:
    buffers = Buffers()
    held = part(buffers.take((4, 800), "float16"))
    before = np.array(held, copy=True)
    for value in range(1, 4):
        buffers.take((4, 800), "float16")[...] = value
    assert (np.asarray(held) == before).all()


def test_an_array_of_nothing_is_possible() -> None:
    assert Buffers().take((0, 4), "float32").shape == (0, 4)
