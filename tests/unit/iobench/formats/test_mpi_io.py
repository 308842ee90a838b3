"""HDF5 by MPI-IO is refused where it is not available. docs/guide/io.md says where it was tested."""

from types import SimpleNamespace

import h5py
import pytest

from mlhpc.errors import UserError
from mlhpc.iobench.definition import load
from mlhpc.iobench.formats import mpi_io

SHARED = [
    "dataset.format=hdf5", "dataset.files=1", "dataset.eval_files=0", "dataset.samples_per_file=64",
    "reader.transfer_bytes=0", "reader.threads=1", "reader.mpi_io=true",
]  # fmt: skip


def test_an_h5py_without_mpi_is_a_line():
    assert not h5py.get_config().mpi, "this h5py has MPI: test the path itself"
    with pytest.raises(UserError, match=r"reader\.mpi_io requires h5py built with MPI") as caught:
        mpi_io.require_mpi(2, shared=True)
    assert "\n" not in str(caught.value)


def test_a_shared_file_needs_as_many_ranks_of_mpi(monkeypatch):
    monkeypatch.setattr(h5py, "get_config", lambda: SimpleNamespace(mpi=True))
    monkeypatch.setattr(mpi_io, "_mpi", lambda: SimpleNamespace(COMM_WORLD=SimpleNamespace(size=1)))
    mpi_io.require_mpi(1, shared=True)
    mpi_io.require_mpi(4, shared=False)
    with pytest.raises(UserError, match="MPI reports 1 rank, not 4; start with mpirun"):
        mpi_io.require_mpi(4, shared=True)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("dataset.format=npz", "reader.mpi_io requires hdf5, not npz"),
        ("reader.direct=true", "does not support direct"),
        ("reader.threads=2", "reader.mpi_io requires reader.threads of 0 or 1"),
    ],
)
def test_what_does_not_go_together_is_refused(setting, message):
    assert load.load("mlperf_cosmoflow", SHARED).reader.mpi_io
    with pytest.raises(UserError, match=message):
        load.load("mlperf_cosmoflow", [*SHARED, setting])
