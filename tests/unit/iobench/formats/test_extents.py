"""Reading samples by offset: which calls are made, and that the bytes are the file's."""

import numpy as np
import pytest

from mlhpc.common.ranks.world import Solo
from mlhpc.errors import UserError
from mlhpc.iobench.dataset.generate import generate
from mlhpc.iobench.dataset.layout import Layout
from mlhpc.iobench.definition.load import load
from mlhpc.iobench.definition.schema import Dataset, Extent
from mlhpc.iobench.formats.access import CountedFile
from mlhpc.iobench.formats.binary import ExtentReader
from mlhpc.iobench.formats.counting import ReadStatistics

EXTENTS = (
    Extent(bytes=8),
    Extent(offset=900, bytes=100),
    Extent(offset=8, bytes=892, transfer_bytes=400),
)


def test_extents_are_read_in_their_order_each_by_its_own_transfers(tmp_path):
    dataset = Dataset(format="binary", files=1, samples_per_file=3, sample_bytes=1000)
    generate(dataset, tmp_path, Solo(), 1)
    layout = Layout(tmp_path, dataset)
    statistics = ReadStatistics(events=[])
    file = CountedFile(layout.path("train", 0), statistics)
    parts = ExtentReader(file, layout.sizes("train", 0), layout.dataset, EXTENTS).read(2)
    file.close()
    statistics.settle()
    assert statistics.events is not None
    calls = [(event.offset - 2000, event.size) for event in statistics.events]
    assert calls == [(0, 8), (900, 100), (8, 400), (408, 400), (808, 92)]
    first, last, middle = parts
    stored = np.fromfile(layout.path("train", 0), np.uint8)[2000:]
    assert np.array_equal(np.concatenate([first, middle, last]), stored)


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("dataset.format=npz", "format binary"),
        ("dataset.sample_bytes_stdev=5", "samples of equal size"),
        ("reader.transfer_bytes=4096", "its own"),
        ("reader.extents=[{offset=63703690,bytes=7}]", "end at byte 63703697"),
    ],
)
def test_extents_that_do_not_fit_are_refused(setting, reason):
    with pytest.raises(UserError, match=reason):
        load("deepcam", [setting])


def test_the_suites_deepcam_asks_for_every_byte_of_a_sample():
    """Its metadata twice, for the signature is in it."""
    workload = load("deepcam")
    assert workload.dataset is not None
    covered = np.zeros(workload.dataset.sample_bytes, bool)
    for extent in workload.reader.extents:
        covered[extent.offset : extent.offset + extent.bytes] = True
    assert covered.all()
    assert sum(extent.bytes for extent in workload.reader.extents) == workload.dataset.sample_bytes + 8
