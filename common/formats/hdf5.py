"""Opens untrusted HDF5 files, and checks their data sets before any values are read."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py

from mlhpc.errors import UserError

FREE_BYTES = 2**27
"""Bytes that an array may have, however few bytes are stored for it: the suite's largest sample has 57 MB."""
MOST_EXPANSION = 20
"""Maximum ratio of an array's size to its stored size beyond ``FREE_BYTES``; real fields compress 2 to 5 times."""


@contextmanager
def reading(path: Path) -> Iterator[h5py.File]:
    """The file ``path``, opened for reading. Raises UserError if it cannot be read."""
    # Without locking: the files are only read, and some parallel file systems have no locks.
    try:
        with h5py.File(path, "r", locking=False) as file:
            yield file
    # h5py's exception depends on what is damaged
    except (OSError, KeyError, RuntimeError, ValueError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path} cannot be read: {reason}; download or regenerate the file") from error


def require_own_values(dataset: h5py.Dataset, path: Path) -> None:
    """Raise UserError if the values of ``dataset`` in ``path`` are in other files (through external links,
    external storage, or virtual datasets, whose sources may themselves be links), or if they expand to far more
    bytes than are stored."""
    if dataset.file.filename not in (str(path), path) or dataset.external or dataset.is_virtual:
        raise UserError(f"{path}: {dataset.name} is a link to another file; resolve it with h5repack")
    stored = dataset.id.get_storage_size()
    if dataset.nbytes > max(FREE_BYTES, MOST_EXPANSION * stored):
        raise UserError(
            f"{path}: {dataset.name} stores only {stored} bytes for {dataset.nbytes} of values; regenerate it"
        )
