"""``mlhpc scripts``: copies the suite's files that are not code, for installations without a checkout."""

import shutil
from pathlib import Path

import mlhpc
from mlhpc.common.files.filesystem import require_new
from mlhpc.errors import UserError

FOLDERS = ("run_scripts", "docs")
NOT_SHIPPED = ("__pycache__", "evidence")
"""Folders that a checkout has but the installed package does not."""


def shipped(folder: str) -> Path:
    """The path of ``folder`` in the installed package or, if it is not there, at the top of the checkout or
    sdist."""
    places = Path(mlhpc.__file__).resolve().parents
    return next((place / folder for place in places[:3] if (place / folder).is_dir()), places[1] / folder)


def copy_scripts(out: Path) -> Path:
    """Copy batch scripts, site files and documentation into the new folder ``out``, and return its path.

    The copied scripts work as they do at the top of a checkout. Raises UserError if ``out`` exists or cannot be
    written.
    """
    require_new(out)
    try:
        for folder in FOLDERS:
            shutil.copytree(shipped(folder), out / folder, ignore=shutil.ignore_patterns(*NOT_SHIPPED))
    except OSError as error:
        shutil.rmtree(out, ignore_errors=True)
        reason = error.strerror or "not all files could be copied"
        raise UserError(f"{out} cannot be written ({reason}); choose another --out") from None
    return out
