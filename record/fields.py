"""Types for the values in a run's files, which are untrusted when read: bounded, printable and finite."""

import json
import math
import os
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from mlhpc.common.files import atomic
from mlhpc.common.files.filesystem import as_user_error
from mlhpc.common.files.untrusted import finite, printable, read_object

MOST_RANKS = 1_000_000


def _finite_or_none(value: Any) -> Any:
    """``value``, or None for NaN and infinity, such as the loss of a diverged run."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


Name = Annotated[str, Field(pattern=r"^[\w.+-]{1,100}$")]
"""An identifier: no spaces, brackets, quotes or control characters."""
Text = Annotated[str, AfterValidator(printable), Field(max_length=10_000)]
Number = Annotated[float, Field(gt=-1e300, lt=1e300)]
Seconds = Annotated[float, Field(ge=-1e12, le=1e12)]
Measured = Annotated[float | None, BeforeValidator(_finite_or_none)]
Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
Ranks = Annotated[int, Field(ge=1, le=MOST_RANKS)]


class Fields(BaseModel):
    """A JSON object in a file. Keys added by later versions are kept, not rejected."""

    model_config = ConfigDict(frozen=True, extra="allow")

    @classmethod
    def read(cls, path: Path) -> Self:
        """The object in the file ``path``, which must not be a link. Raises OSError or ValueError if the file
        cannot be read."""
        try:
            return cls.model_validate(read_object(path, os.O_NOFOLLOW))
        except json.JSONDecodeError as error:
            raise ValueError(f"Invalid JSON: {error}") from None

    @classmethod
    def read_or_none(cls, path: Path) -> Self | None:
        """As ``read``, but None if the file cannot be read."""
        with suppress(OSError, ValueError):
            return cls.read(path)
        return None

    def write(self, path: Path) -> None:
        """Write all keys that were set, including those set to None, to the file ``path``. Raises UserError if
        this fails."""
        values = finite(self.model_dump(exclude_unset=True))
        write_text(path, json.dumps(values, indent=1) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write the file atomically. Raises UserError if this fails."""
    with as_user_error(path, "cannot be written", "free some space"):
        atomic.write_bytes(path, text.encode())


def first_problem(error: ValidationError) -> str:
    """The first problem found when validating an object, with its key, in one line."""
    problem = error.errors()[0]
    key = ".".join(str(part) for part in problem["loc"])
    message = problem["msg"].removeprefix("Value error, ")
    return printable(f"{key + ': ' if key else ''}{message}")
