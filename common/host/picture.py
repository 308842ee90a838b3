"""What the pictures of samples share, drawn with matplotlib."""

from pathlib import Path
from typing import Any, Literal

from mlhpc.errors import UserError


def save(figure: Any, path: Path, dpi: int) -> None:
    """Write ``figure`` as ``path``; the suffix says in which format.

    Raises UserError when it cannot be written, or matplotlib knows no such format.
    """
    why, mend = "", "give another --out"
    if not path.parent.is_dir():
        why, mend = f"there is no folder {path.parent}", "make it or give another --out"
    else:
        try:
            figure.savefig(path, dpi=dpi)
        except OSError as error:
            why = error.strerror or str(error)
        except ValueError as error:  # a suffix that matplotlib cannot write
            why = str(error)
    if why:
        raise UserError(f"{path}: the picture cannot be written: {why}; {mend}")


def extend(least: float, largest: float, low: float, high: float) -> Literal["neither", "min", "max", "both"]:
    """At which ends of a colour bar from ``low`` to ``high`` the values go on: those get an arrow."""
    if least < low:
        return "both" if largest > high else "min"
    return "max" if largest > high else "neither"
