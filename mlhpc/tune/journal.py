"""The record of a search: a study in Optuna's journal storage, with one finished trial for each run.

When a run has ended, its trial is added to the file as one line. A search that is killed at any moment can
therefore continue without repeating any finished run.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.storages.journal import JournalFileBackend, JournalStorage
from optuna.trial import TrialState
from pydantic import TypeAdapter

from mlhpc.common.files.untrusted import parse_json
from mlhpc.errors import UserError, shown
from mlhpc.tune.model import Outcome
from mlhpc.tune.space import Config, Space

NAME = "mlhpc tune"
"""Name of the study in its journal."""
STATES = {
    "converged": TrialState.COMPLETE,
    "missed": TrialState.PRUNED,
    "stopped": TrialState.PRUNED,
    "aborted": TrialState.FAIL,
}
_OUTCOME = TypeAdapter(Outcome)


class Journal:
    """The journal ``path`` of the search described by ``about``; no other process may write to the file. Raises
    UserError if the file is not a journal or belongs to a different search."""

    def __init__(self, path: Path, space: Space, about: Mapping[str, Any]) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._distributions: dict[str, BaseDistribution] = {
            "batch": CategoricalDistribution(space.batches),
            "ranks": CategoricalDistribution(space.ranks),
            "rate": FloatDistribution(min(1.0, space.rates[0]), max(1.0, space.rates[1]) * 1.001, log=True),
            "schedule": CategoricalDistribution(space.schedules),
        }
        is_new = not path.exists() or not _whole_lines(path)
        others = [each.name for each in path.parent.iterdir() if not each.name.startswith((".", path.name))]
        if is_new and others:
            raise UserError(f"{path.parent} contains other files, such as {others[0]}; choose another --out")
        path.with_name(f"{path.name}.lock").unlink(missing_ok=True)  # left by a killed process
        try:
            storage = JournalStorage(JournalFileBackend(str(path)))
        except (AssertionError, LookupError, TypeError, ValueError) as error:
            raise UserError(
                f"{path} cannot be replayed ({type(error).__name__}: {error}); move it away"
            ) from None
        if not is_new and [each.study_name for each in storage.get_all_studies()] != [NAME]:
            raise UserError(f"{path} contains another study; choose another --out")
        self._study = (optuna.create_study if is_new else optuna.load_study)(storage=storage, study_name=NAME)
        before = self._study.user_attrs
        for key, value in about.items():
            if before.get(key, value) != value:
                raise UserError(
                    f"{path.parent} contains a search with {key}={shown(before[key])}, not {shown(value)}; "
                    "choose another --out"
                )
            if key not in before:
                self._study.set_user_attr(key, value)
        self.outcomes = [self._outcome(trial) for trial in self._study.get_trials(deepcopy=False)]

    def _outcome(self, trial: optuna.trial.FrozenTrial) -> Outcome:
        try:
            return _OUTCOME.validate_python(Outcome(Config(**trial.params), **trial.user_attrs))
        except (TypeError, ValueError):
            raise UserError(
                f"trial {trial.number} of the journal was not written by mlhpc; choose another --out"
            ) from None

    def add(self, outcome: Outcome) -> None:
        """Add the outcome of a run to the journal."""
        attributes = outcome._asdict()
        trial = optuna.trial.create_trial(
            state=STATES[outcome.state],
            value=outcome.seconds if outcome.state == "converged" else None,
            params=attributes.pop("config")._asdict(),
            distributions=self._distributions,
            user_attrs=attributes,
        )
        self._study.add_trial(trial)
        self.outcomes.append(outcome)


def _whole_lines(path: Path) -> int:
    """Number of lines in a journal, after removing a last line that a killed process left incomplete. Raises
    UserError if a line does not belong to a journal."""
    data = path.read_bytes()
    lines = data.split(b"\n")
    for number, line in enumerate(lines[:-1], 1):
        try:
            entry = parse_json(line.decode())
        except ValueError:
            entry = None
        if not isinstance(entry, dict) or "op_code" not in entry:
            raise UserError(
                f"{path}, line {number}: not an entry of an Optuna journal; move the file away, or restore it"
            )
    if lines[-1]:
        os.truncate(path, len(data) - len(lines[-1]))
    return len(lines) - 1
