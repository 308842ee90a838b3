"""A record of a history: the data about a run, a campaign or another measurement that is kept for years
(``mlhpc/history``).

A record never changes. Its file contains canonical JSON and is named after the SHA-256 of that content. Therefore
``sha256sum`` prints the file's name, a run added twice is a single record, and copying files merges two stores.
"""

import json
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from mlhpc.common.files.untrusted import finite
from mlhpc.record.fields import Count, Fields, Name, Number, Seconds, Text

FORMAT = 1
"""Version of the records, incremented if the meaning of a key changes. Records of other versions are ignored."""
Kind = Literal["run", "study cell", "result set", "campaign", "io", "profile", "prediction", "reframe", "node",
               "withdrawal", "annotation"]  # fmt: skip


class RunFigures(Fields):
    """The measurements of one run; missing values are None. ``epochs``: number of epochs to the target;
    ``epoch_s``: mean seconds of an epoch including its evaluation, without the first epoch's excess; ``joules``
    and ``joules_per_sample``: by kind of counter."""

    time_to_train_s: Seconds | None = None
    time_to_train_without_staging_s: Seconds | None = None
    epochs: Count | None = None
    epoch_s: Seconds | None = None
    samples_per_s: Number | None = None
    parts_s: dict[Name, Seconds] = Field(default_factory=dict)
    joules: dict[Name, Number] = Field(default_factory=dict)
    joules_per_sample: dict[Name, Number] = Field(default_factory=dict)
    reached: bool = False
    seed: int | None = None


class HistoryRecord(Fields):
    """A measurement, a withdrawal or an annotation. ``when``: time of the measurement, in UTC. ``machine``: the
    accelerators or the processor; ``node``: the host, if a single node was measured. ``settings``: a digest of all
    settings. ``versions``: the versions of the preset, the data generator and the parts. ``runs``: the runs of
    which the measurement consists; ``figures``: other measured values. ``content``: the files of the measurement
    as they were read. ``of``: the record that a withdrawal refers to; ``text``: the reason of a withdrawal, or an
    annotation of ``system``."""

    format: Literal[1] = Field(default=1, alias="history")
    kind: Kind
    benchmark: Name | None = None
    preset: Name | None = None
    division: Text | None = None
    framework: Name | None = None
    system: Text | None = None
    org: Text | None = None
    machine: Text | None = None
    node: Text | None = None
    when: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")] | None = None
    status: Text | None = None
    mlhpc: Text | None = None
    commit: Text | None = None
    settings: Name | None = None
    versions: dict[Name, Count] = Field(default_factory=dict)
    ranks: Count | None = None
    nodes: Count | None = None
    accelerators: Count | None = None
    global_batch_size: Count | None = None
    runs: tuple[RunFigures, ...] = ()
    figures: dict[Text, Number] = Field(default_factory=dict)
    content: dict[str, Any] = Field(default_factory=dict)
    of: Text | None = None
    text: Text | None = None

    def canonical(self) -> bytes:
        """The content of the record's file: canonical JSON as bytes."""
        return canonical({"history": FORMAT, **self.model_dump(exclude_defaults=True)})


def canonical(value: Any) -> bytes:
    """``value`` as JSON with sorted keys and without blanks."""
    text = json.dumps(finite(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "backslashreplace")


def time_text(when: str | float | None) -> str | None:
    """A time as text in UTC, to the second, from an ISO 8601 time or from seconds since 1970; None for any other
    value."""
    try:
        at = datetime.fromisoformat(when) if isinstance(when, str) else datetime.fromtimestamp(when or 0, UTC)
        return None if when is None else f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
    except (ValueError, OverflowError, OSError):
        return None
