"""Validation of an emulation's ``result.json`` before it is checked, drawn or simulated.

Results are untrusted: types and bounds are checked once, when they are read.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from mlhpc.iobench.definition.schema import Workload

LARGEST = 10**30
"""Larger than any count, size in bytes or time in seconds."""

Amount = Annotated[float, Field(ge=0, le=LARGEST, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=LARGEST)]
Percent = Annotated[float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False)]


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")


class _Epoch(_Part):
    epoch: Count
    steps: Count
    samples: Count
    seconds: Amount
    samples_per_s: Amount | None
    wait_s: Amount
    compute_s: Amount
    oversleep_s: Percent
    barrier_s: Amount
    au_percent: Percent | None
    au_dlio_percent: Percent | None = None


class _ThreadSeconds(_Part):
    open_s: Amount
    call_s: Amount
    decode_s: Amount
    preprocess_s: Amount
    blocked_s: Amount


class _Reading(_Part):
    calls: Count
    opens: Count
    bytes_asked: Count
    process_device_bytes: Count | None
    node_device_bytes: Count | None
    sequential_percent: Percent | None
    hidden_percent: Percent | None
    bandwidth: Amount | None
    io_s: Amount
    thread_s: _ThreadSeconds


class _RankReading(_Part):
    calls: Count
    bytes: Count
    samples: Count
    reading_s: Amount
    sizes: dict[Annotated[str, Field(pattern=r"^[0-9]{1,18}$")], Count]


class _Steps(_Part):
    wait_s: dict[str, Amount | None]


class _Rank(_Part):
    host: str
    cores: Annotated[int, Field(ge=1, le=10**6)]
    reading: _RankReading
    steps: _Steps


class _Binding(_Part):
    resource: Literal["compute", "storage", "decode", "cpu", "barrier"]
    loss: Literal["storage", "decode", "cpu", "barrier"] | None
    compute: Percent
    storage: Percent
    decode: Percent
    cpu: Percent
    barrier: Percent
    oversleep: Percent
    rest: Percent


class _Checkpoint(_Part):
    kind: Literal["write", "read"]
    number: Count
    bytes: Count
    seconds: Amount
    fsync_s: Amount
    bytes_per_s: Annotated[float, Field(ge=0)]


class _Result(_Part):
    kind: Literal["io"]
    workload: Workload
    ranks: Annotated[int, Field(ge=1, le=10**8)]
    nodes: Annotated[int, Field(ge=1, le=10**8)]
    cache: str
    samples_per_s: Amount | None
    au_percent: Percent | None
    au_dlio_percent: Percent | None
    au_null_percent: Percent | None
    null_steps: Count
    binding: _Binding | None
    epochs: list[_Epoch]
    evaluations: list[_Epoch]
    reading: _Reading
    resident_before_epochs: list[Amount]
    checkpoints: list[_Checkpoint]
    rank_results: list[_Rank]
    filesystem: str | None = None
    checkpoint_filesystem: str | None = None
    data: str | None = None
    object_store: Any = None
    data_in_ram: bool = False
    results_beside_data: bool = False

    @model_validator(mode="before")
    @classmethod
    def _workload(cls, content: Any) -> Any:
        # Strictness is for the figures: a workload is read as its own files are.
        if isinstance(content, dict) and isinstance(content.get("workload"), dict):
            return {**content, "workload": Workload(**content["workload"])}
        return content

    @model_validator(mode="after")
    def _consistent(self) -> "_Result":
        if len(self.rank_results) != self.ranks:
            raise ValueError(f"has {len(self.rank_results)} rank_results for {self.ranks} ranks")
        if self.nodes > self.ranks:
            raise ValueError(f"has {self.nodes} nodes for {self.ranks} ranks")
        if self.binding and self.au_null_percent is None:
            raise ValueError("has a binding without au_null_percent")
        return self


def problem(content: Any) -> str | None:
    """The reason why ``content`` is not a valid result, with its key; None if it is valid."""
    try:
        _Result.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        return f"{key}: {first['msg']}" if key else str(first["msg"])
    return None
