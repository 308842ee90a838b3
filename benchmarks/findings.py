"""Violations of rules: found before a run by ``benchmarks/rules.py``, afterwards by ``submission``."""

from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "expected", "warning"]


@dataclass(frozen=True)
class Finding:
    """One violation of a rule by a run.

    ``severity`` is ``error`` (no score), ``expected`` (an error of the official checker that this run could
    not avoid, with the reason in ``remedy``) or ``warning`` (worth checking). ``where`` is ``file:line``, a
    file, or the key of a setting. ``source`` is ``mlhpc`` or the official checker with its ruleset.
    """

    rule: str
    severity: Severity
    where: str
    expected: str
    actual: str
    remedy: str
    source: str = "mlhpc"
