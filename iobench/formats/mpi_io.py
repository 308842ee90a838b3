"""Reads HDF5 files with MPI-IO, if h5py was built with it: uses HDF5's ``mpio`` driver, with independent
transfers.

HDF5 itself reads, so requests for samples are counted, but the reads of the MPI library are not.
"""

import os
from pathlib import Path
from typing import Any

from mlhpc.common.files.filesystem import as_user_error
from mlhpc.common.ranks.socket_world import load_mpi
from mlhpc.errors import UserError
from mlhpc.iobench.formats.access import Bytes, CountedFile
from mlhpc.iobench.formats.counting import ReadStatistics, clock
from mlhpc.quantities import count


def require_mpi(ranks: int, shared: bool) -> None:
    """Raise UserError unless the installed h5py supports MPI-IO and, for a file that all ``ranks`` open together
    (``shared``), MPI has this number of ranks."""
    import h5py

    if not h5py.get_config().mpi:
        raise UserError("reader.mpi_io requires h5py built with MPI (HDF5_MPI=ON; Debian: python3-h5py-mpi)")
    size = _mpi().COMM_WORLD.size
    if shared and size != ranks:
        raise UserError(f"reader.mpi_io: MPI reports {count(size, 'rank')}, not {ranks}; start with mpirun")


def _mpi() -> Any:
    return load_mpi("reader.mpi_io")


class MpiFile(CountedFile):
    """A file that HDF5 itself reads. ``shared``: all ranks open and close the file together."""

    def __init__(self, path: Path, statistics: ReadStatistics, shared: bool) -> None:
        self._begin(path, statistics, 0, False)
        self._shared = shared
        with as_user_error(path, "cannot be opened", "check the data folder"):
            self.size = os.stat(path).st_size

    def open(self) -> Any:
        """Open the file and return the ``h5py.File``. Raises OSError."""
        import h5py

        mpi, start = _mpi(), clock()
        opened = h5py.File(
            self.path, "r", driver="mpio", comm=mpi.COMM_WORLD if self._shared else mpi.COMM_SELF
        )
        self._statistics.opens += 1
        self._statistics.open_s += clock() - start
        return opened

    def read_dataset(self, dataset: Any, part: Any, offset: int, out: Bytes) -> None:
        """Fill ``out``, uint8 [length], from ``part`` of a dataset of bytes, which begins at ``offset``, in one
        counted read. Raises OSError."""
        begin = clock()
        dataset.read_direct(out, part)
        self._statistics.add(begin, clock(), offset, out.size, self._previous_end)
        self._previous_end = offset + out.size

    def close(self) -> None:
        """Does nothing: HDF5 closes the file."""
