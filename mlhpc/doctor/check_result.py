"""The result of one check."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Status = Literal["pass", "warn", "fail"]
Node = Mapping[str, Any]
"""The facts of one node (``node.examine``)."""


@dataclass(frozen=True)
class CheckResult:
    """One line of the report: what was checked, the result, and the remedy if the check failed."""

    status: Status
    name: str
    detail: str
    remedy: str = ""
