"""Types of values in untrusted files: bounded, printable, finite."""

import math
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from mlhpc.common.files.untrusted import printable

MOST_RANKS = 1_000_000


def _finite_or_none(value: Any) -> Any:
    """None for NaN and infinity, such as the loss of a diverged run."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


Name = Annotated[str, Field(pattern=r"^[\w.+-]{1,100}$")]
"""An identifier: no spaces, brackets, quotes or control characters."""
Text = Annotated[str, AfterValidator(printable), Field(max_length=10_000)]
Seconds = Annotated[float, Field(ge=-1e12, le=1e12)]
Measured = Annotated[float | None, BeforeValidator(_finite_or_none)]
Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
Ranks = Annotated[int, Field(ge=1, le=MOST_RANKS)]


class Fields(BaseModel):
    """An object in a file. Keys added by later versions are kept, not rejected."""

    model_config = ConfigDict(frozen=True, extra="allow")
