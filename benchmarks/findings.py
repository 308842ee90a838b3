"""Violations of rules, found before a run by ``benchmarks/rules.py`` and after a run by ``submission``."""

from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "expected", "warning"]


@dataclass(frozen=True)
class Finding:
    """One violation of a rule by a run.

    ``severity``: ``error`` (no score), ``expected`` (an error that the official checker reports and that this run
    could not avoid, for the reason in ``remedy``) or ``warning`` (worth checking). ``where``: ``file:line``, a
    file, or the key of a setting. ``source``: ``mlhpc``, or the official checker with its ruleset.
    """

    rule: str
    severity: Severity
    where: str
    expected: str
    actual: str
    remedy: str
    source: str = "mlhpc"
