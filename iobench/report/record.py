"""The model of an emulation's ``result.json``. ``result`` constructs it, and other people's results are validated
by it before they are judged, drawn or simulated.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from mlhpc.iobench.definition.schema import Workload

LARGEST = 10**30
"""Upper limit of counts, sizes in bytes and times in seconds."""

Amount = Annotated[float, Field(ge=0, le=LARGEST, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=LARGEST)]
Percent = Annotated[float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False)]


class Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")


class Epoch(Part):
    epoch: Count
    steps: Count
    samples: Count
    seconds: Amount
    checkpoint_s: Amount = 0.0
    samples_per_s: Amount | None
    wait_s: Amount
    compute_s: Amount
    oversleep_s: Percent
    barrier_s: Amount
    au_percent: Percent | None
    au_dlio_percent: Percent | None = None
    au_without_loader_percent: Percent | None = None


class ThreadSeconds(Part):
    open_s: Amount
    call_s: Amount
    decode_s: Amount
    preprocess_s: Amount
    blocked_s: Amount


class Reading(Part):
    calls: Count
    opens: Count
    bytes_asked: Count
    content_bytes: Count | None = None
    process_device_bytes: Count | None
    node_device_bytes: Count | None
    transfer_sizes: dict[str, Amount] | None = None
    sequential_percent: Percent | None
    consecutive_percent: Percent | None = None
    hidden_percent: Percent | None
    bandwidth: Amount | None
    bandwidth_while_reading: Amount | None = None
    io_s: Amount
    thread_s: ThreadSeconds


class RankReading(Part):
    calls: Count
    bytes: Count
    samples: Count
    reading_s: Amount
    sizes: dict[Annotated[str, Field(pattern=r"^[0-9]{1,18}$")], Count]


class Steps(Part):
    wait_s: dict[str, Amount | None]


class Rank(Part):
    host: str
    cores: Annotated[int, Field(ge=1, le=10**6)]
    reading: RankReading
    steps: Steps


class Binding(Part):
    """Compute and losses in per cent of the running time, which add up to 100. ``oversleep``: the computing thread
    regained its core, or the interpreter, too late. ``resource``: what takes the largest part of the time,
    ``compute`` or a loss; ``loss``: the largest loss, None if all losses are small. Oversleep counts as a loss to
    the processor."""

    resource: Literal["compute", "storage", "decode", "cpu", "barrier"]
    loss: Literal["storage", "decode", "cpu", "barrier"] | None
    compute: Percent
    storage: Percent
    decode: Percent
    cpu: Percent
    barrier: Percent
    oversleep: Percent
    rest: Percent


class Timeline(Part):
    """Sums over ranks in equal intervals since the ranks met."""

    interval_s: Annotated[float, Field(gt=0, le=LARGEST, allow_inf_nan=False)]
    read_bytes: list[Amount]
    checkpoint_bytes: list[Amount]
    computing_s: list[Amount]
    waiting_s: list[Amount]

    @model_validator(mode="after")
    def _as_long(self) -> Self:
        if len({*map(len, (self.read_bytes, self.checkpoint_bytes, self.computing_s, self.waiting_s))}) > 1:
            raise ValueError("has lists of different lengths")
        return self


class CheckpointTimes(Part):
    kind: Literal["write", "read"]
    number: Count
    bytes: Count
    seconds: Amount
    fsync_s: Amount
    bytes_per_s: Annotated[float, Field(ge=0)]


class Result(Part):
    """The whole result. ``au_percent``: accelerator utilisation as defined in the text of MLPerf Storage's rules;
    ``au_dlio_percent``: as computed by its tool; ``au_without_loader_percent``: the latter without the cost of the
    loader; ``au_null_percent``: with the data in memory. ``reading``: the reads of all ranks; ``rank_results``:
    results of each rank."""

    mlhpc: str = ""
    date: str | None = None
    kind: Literal["io"]
    workload: Workload
    ranks: Annotated[int, Field(ge=1, le=10**8)]
    nodes: Annotated[int, Field(ge=1, le=10**8)]
    launcher: str = ""
    command: list[str] = Field(default_factory=list)
    cache: str
    samples: Count | None = None
    samples_per_s: Amount | None
    au_percent: Percent | None
    au_dlio_percent: Percent | None
    au_without_loader_percent: Percent | None = None
    au_null_percent: Percent | None
    null_steps: Count
    null_cpu_busy_percent: Percent | None = None
    binding: Binding | None
    load_s: Amount | None = None
    epochs: list[Epoch]
    evaluations: list[Epoch]
    reading: Reading
    resident_before_epochs: list[Amount]
    checkpoints: list[CheckpointTimes]
    timeline: Timeline | None = None
    rank_results: list[Rank]
    filesystem: str | None = None
    checkpoint_filesystem: str | None = None
    data: str | None = None
    object_store: Any = None
    data_in_ram: bool = False
    results_beside_data: bool = False

    @model_validator(mode="before")
    @classmethod
    def _workload(cls, content: Any) -> Any:
        # Only figures are validated strictly; a workload is read as leniently as from its own file.
        if isinstance(content, dict) and isinstance(content.get("workload"), dict):
            return {**content, "workload": Workload(**content["workload"])}
        return content

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if len(self.rank_results) != self.ranks:
            raise ValueError(f"has {len(self.rank_results)} rank_results for {self.ranks} ranks")
        if self.nodes > self.ranks:
            raise ValueError(f"has {self.nodes} nodes for {self.ranks} ranks")
        if self.binding and self.au_null_percent is None:
            raise ValueError("has a binding without au_null_percent")
        return self
