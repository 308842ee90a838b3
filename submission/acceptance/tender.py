"""A tender or acceptance test as one TOML file: jobs, the references with which they are compared, and the
requirements."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from mlhpc.benchmarks.load import at_line, load
from mlhpc.benchmarks.schema import Run
from mlhpc.benchmarks.toml_lines import read_toml
from mlhpc.common.energy.counters import Measured
from mlhpc.errors import UserError, did_you_mean
from mlhpc.perf.machines import Machine, machine
from mlhpc.perf.prediction.model import with_batch
from mlhpc.perf.published import Published, published
from mlhpc.quantities import Dimension, parse_quantity
from mlhpc.record.fields import Name, Text, first_problem

Tier = Literal["closed", "ported", "optimized"]
TIERS: dict[Tier, str] = {
    "closed": "MLPerf's closed division: the set passes its check, convergence included",
    "ported": "other code, libraries, precision and hyperparameters, described in changes; network, data and "
    "target are the preset's, and the set passes its check",
    "optimized": "anything that trains on the preset's data to its target, described in changes",
}
"""What each tier allows; "ported" and "optimized" follow the tiers of NERSC-10 and OLCF-6
(olcf.ornl.gov/benchmarks, "OLCF-6 Benchmark Run Rules")."""


def _parsed(dimension: Dimension) -> BeforeValidator:
    return BeforeValidator(lambda value: parse_quantity(str(value), dimension))


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Nodes = Annotated[int, Field(ge=1, le=10**7)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class System(_Table):
    """The system offered: ``nodes`` nodes of ``machine``, which is one of the suite's machines or a machine file
    next to the tender."""

    machine: str
    nodes: Nodes


class Job(_Table):
    """A job: a training run on ``nodes`` nodes, or on a ``fraction`` of the system's nodes. ``reference``: the
    name of a published set, whose time is scaled to ``reference_nodes`` nodes if that is set; ``offered``: the
    time to train that the bidder offers. ``capability`` and ``weight``: c and w of the metric. ``required_joules``
    is of the counters ``energy_of``."""

    benchmark: Name
    preset: Name = "closed"
    set: tuple[str, ...] = ()
    batch: Nodes | None = None
    nodes: Nodes | None = None
    fraction: Annotated[float, _parsed("a share"), Field(gt=0, le=1)] | None = None
    tier: Tier = "closed"
    changes: Text = ""
    reference: str | None = None
    reference_nodes: Nodes | None = None
    offered: Annotated[Positive, _parsed("s")] | None = None
    capability: Positive = 1.0
    weight: Positive = 1.0
    required_time: Annotated[Positive, _parsed("s")] | None = None
    required_improvement: Positive | None = None
    required_joules: Positive | None = None
    energy_of: Measured = "node"

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if (self.nodes is None) == (self.fraction is None):
            raise ValueError("set either nodes or fraction")
        if self.required_improvement and not self.reference:
            raise ValueError("required_improvement requires a reference")
        if self.tier != "closed" and not self.changes:
            raise ValueError(
                f"tier {self.tier} requires changes, which describes what differs from the closed division"
            )
        return self

    @property
    def run(self) -> Run:
        """The configuration of the job's run. Raises UserError for invalid settings."""
        run = load(self.benchmark, self.preset, self.set)
        return run if self.batch is None else with_batch(run, self.batch)

    @property
    def published(self) -> Published:
        """The reference set. Raises UserError if no published set with a time to solution has this name."""
        sets = {row.name: row for row in published() if row.benchmark == self.benchmark and row.total_s}
        if self.reference not in sets:
            why = did_you_mean(str(self.reference), sets)
            raise UserError(f"no published set {self.reference!r} of {self.benchmark}; {why}")
        return sets[self.reference]


class Tender(_Table):
    """The contents of a tender file. ``reference_nodes``: number of nodes of the whole reference system."""

    title: Text
    reference_nodes: Nodes
    required_improvement: Positive | None = None
    system: System
    jobs: dict[Name, Job] = Field(min_length=1)

    def nodes_of(self, job: Job) -> int:
        """Number of nodes on which ``job`` runs, at least one."""
        return job.nodes or max(1, round((job.fraction or 1.0) * self.system.nodes))


def read(path: Path) -> tuple[Tender, Machine]:
    """The tender in ``path`` and its machine. Raises UserError, naming the line of an invalid key."""
    text, tables = read_toml(path, "pass a tender (docs/guide/acceptance.md)")
    try:
        tender = Tender.model_validate(tables)
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(map(str, problem["loc"]))
        said = first_problem(error)
        if problem["type"] == "extra_forbidden":
            table = (Tender, System, Job)[len(problem["loc"]) - 1]
            said = f"unknown key {key!r}; {did_you_mean(str(problem['loc'][-1]), table.model_fields)}"
        raise UserError(f"{at_line(path, text, key)}: {said}") from None
    for name, job in tender.jobs.items():
        try:
            if tender.nodes_of(job) > tender.system.nodes:
                raise UserError(
                    f"nodes={job.nodes} exceeds the system's {tender.system.nodes} nodes; lower it"
                )
            own = job.run.target.value
            if job.reference and (theirs := job.published.run.target.value) != own:
                other = f"reference {job.reference!r} was trained to the target {theirs}, not {own}"
                raise UserError(f"{other}; remove reference or target.value")
        except UserError as error:
            raise UserError(f"{at_line(path, text, f'jobs.{name}')}: {error}") from None
    named = tender.system.machine
    if Path(named).name != named:
        raise UserError(f"{path}: machine file {named!r} must be in the tender's own folder")
    return tender, machine(str(path.parent / named) if named.endswith(".toml") else named)
