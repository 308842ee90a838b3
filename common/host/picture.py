"""Saves images of samples, drawn with matplotlib."""

from pathlib import Path
from typing import Any, Literal

from mlhpc.errors import UserError


def save(figure: Any, path: Path, dpi: int) -> None:
    """Write ``figure`` to ``path``, whose suffix selects the format.

    Raises UserError if the file cannot be written or matplotlib does not support the format.
    """
    reason, remedy = "", "choose another --out"
    if not path.parent.is_dir():
        reason, remedy = f"there is no folder {path.parent}", "create it or choose another --out"
    else:
        try:
            figure.savefig(path, dpi=dpi)
        except OSError as error:
            reason = error.strerror or str(error)
        except ValueError as error:  # a suffix that matplotlib cannot write
            reason = str(error)
    if reason:
        raise UserError(f"{path}: the image cannot be written: {reason}; {remedy}")


def extend(least: float, largest: float, low: float, high: float) -> Literal["neither", "min", "max", "both"]:
    """The ends at which a colour bar from ``low`` to ``high`` needs an arrow, because the values, from ``least``
    to ``largest``, extend beyond it."""
    if least < low:
        return "both" if largest > high else "min"
    return "max" if largest > high else "neither"
