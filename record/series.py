"""The contents of ``campaign.json`` and, for studies, of ``cell.json`` and ``servers.json``."""

from typing import Annotated, Literal

from pydantic import Field

from mlhpc.benchmarks.findings import Finding
from mlhpc.record.fields import Count, Fields, Name, Number, Ranks, Seconds, Text

State = Literal["converged", "missed", "aborted", "running", "to do"]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Value = str | int | float | bool
"""The value of a setting."""


class RunState(Fields):
    """One run of a campaign. ``why``: the reason if the run did not converge; ``aborted``: number of aborted
    attempts; ``evicted``: whether page caches were dropped before the run; ``joules``, ``joules_per_sample``: by
    kind of counter, without incomplete figures."""

    name: Text
    state: State
    seed: int | None = None
    seconds: Seconds | None = None
    without_staging_s: Seconds | None = None
    epochs: Count | None = None
    evicted: bool | None = None
    init_s: Seconds | None = None
    joules: dict[Name, Number] = Field(default_factory=dict)
    joules_per_sample: dict[Name, Number] = Field(default_factory=dict)
    why: Text = ""
    aborted: Count = 0


class CampaignScore(Fields):
    """The score in ``minutes``, or the reason (``why``) if there is none; for throughput, also T, S and M'."""

    minutes: float | None = None
    without_staging_minutes: float | None = None
    why: Text = ""
    T: Ranks | None = None
    S: Ranks | None = None
    M: Count | None = None


class CampaignRecord(Fields):
    """A campaign. ``metric``: "strong" (time to solution) or "weak" (throughput). ``stopped``: the reason
    if the campaign stopped early. ``joules``: mean per training over the runs of the score, by kind of counter."""

    mlhpc: Text | None = None
    benchmark: Name | None = None
    preset: Name | None = None
    division: Name | None = None
    metric: Literal["strong", "weak"]
    runs: Count | None = None
    runs_needed: Count | None = None
    instances: Count | None = None
    stopped: Text = ""
    run_states: tuple[RunState, ...] = ()
    score: CampaignScore = CampaignScore()
    joules: dict[Name, Number] = Field(default_factory=dict)
    findings: tuple[Finding, ...] = ()


class CellRecord(Fields):
    """A cell of a study: the settings of the runs in its folder, their data set, and the staging folder."""

    settings: Annotated[dict[Text, str | bool | int | Number], Field(min_length=1)]
    data: Text
    stage: Text | None


class ServersRecord(Fields):
    """A run with parameter servers. ``traffic``: bytes sent and received by each rank, workers first.
    ``compute_s``: mean seconds of computation over the workers; ``staleness``: mean number of updates by which
    gradients are stale."""

    workers: Ranks
    threads: Count | None = None
    servers: Count
    updates: Literal["synchronous", "asynchronous"]
    steps: Annotated[Count, Field(ge=1)]
    warmup_steps: Count
    samples: Count | None = None
    seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    wait_s: Amount
    compute_s: Amount
    accuracy: Amount
    evaluated: Count | None = None
    staleness: Amount
    model_bytes: Count
    host_to_device_bytes: Count
    traffic: tuple[tuple[Count, Count], ...]
