"""The settings of a workload: the data set, how a rank reads it, computation, checkpoints.

A workload is a TOML file with these tables. Every class is frozen and refuses unknown keys.
"""

from collections.abc import Iterable
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import BeforeValidator, Field, NonNegativeFloat, PositiveFloat, PrivateAttr, model_validator

from mlhpc.benchmarks.schema import FrozenModel
from mlhpc.iobench.definition.fields import Bytes, BytesOrNone, Count, CountOrNone, Duration
from mlhpc.quantities import bytes_text

FormatName = Literal["tfrecord", "hdf5", "npz", "npy", "binary", "csv", "jpeg", "parquet"]
TOLERANCE = 0.05
"""Maximum relative difference between a stated total and files · samples · bytes, because published totals are
rounded."""


class Dataset(FrozenModel):
    """The files of the data set. With ``files = 1``, all ranks share one file."""

    format: FormatName
    layout: Literal["mlhpc", "dlio"] = Field(
        "mlhpc", description="names and content of the files: the suite's own, or those of DLIO 2.0.0"
    )
    file_prefix: str = Field("img", pattern=r"^[A-Za-z0-9_.-]+$", description="prefix of DLIO's file names")
    subfolders: CountOrNone = Field(0, description="subfolders of DLIO's train folder; 0 or 1: none")
    eval_subfolders: CountOrNone = Field(0, description="subfolders of DLIO's valid folder; 0 or 1: none")
    files: Count
    samples_per_file: Count = 1
    sample_bytes: Bytes = Field(description="mean size of a sample, excluding the format's overhead")
    sample_bytes_stdev: BytesOrNone = Field(
        0, description="standard deviation; sizes are normally distributed and at least mean/100"
    )
    total_bytes: BytesOrNone = Field(
        0, description="expected value of files × samples_per_file × sample_bytes; 0: not checked"
    )
    eval_files: CountOrNone = 0
    compressibility: float = Field(1.0, ge=1, description="raw size / compressed size; 1: incompressible")
    compression: Literal["none", "gzip", "lzf"] = Field(
        "none", description="for HDF5: none, gzip or lzf; for TFRecord: none or gzip"
    )
    compression_level: int = Field(4, ge=1, le=9)
    chunk_bytes: BytesOrNone = Field(
        0, description="chunk size of HDF5; 0: contiguous, or one sample if compressed"
    )
    columns: Count = Field(1024, description="numbers per CSV row")
    seed: CountOrNone = 2020

    @property
    def samples(self) -> int:
        """Number of samples in all training files."""
        return self.files * self.samples_per_file

    @property
    def bytes(self) -> int:
        """Expected bytes of all training samples."""
        return self.samples * self.sample_bytes

    @model_validator(mode="after")
    def _sizes_agree(self) -> Self:
        if self.total_bytes and abs(self.bytes / self.total_bytes - 1) > TOLERANCE:
            raise ValueError(
                "contradictory sizes: files × samples_per_file × sample_bytes is "
                f"{bytes_text(self.bytes)}, but total_bytes is {bytes_text(self.total_bytes)}"
            )
        if self.sample_bytes_stdev >= self.sample_bytes:
            raise ValueError(f"sample_bytes_stdev must be less than sample_bytes {self.sample_bytes}")
        if self.compression != "none" and self.format not in ("hdf5", "tfrecord"):
            raise ValueError(f"compression {self.compression!r} requires hdf5 or tfrecord, not {self.format}")
        if self.compression == "lzf" and self.format != "hdf5":
            raise ValueError("compression 'lzf' requires hdf5")
        if self.chunk_bytes and self.format != "hdf5":
            raise ValueError(f"chunk_bytes requires hdf5, not {self.format}")
        if self.layout == "dlio" and self.format == "parquet":
            raise ValueError(
                "dataset.layout must be mlhpc for parquet: DLIO 2.0.0 does not support that format"
            )
        if self.format == "csv" and self.layout == "mlhpc" and self.sample_bytes < 2 * self.columns:
            raise ValueError(f"sample_bytes must be at least {2 * self.columns} for {self.columns} columns")
        single = self.format == "jpeg" or (self.format == "npy" and self.layout == "mlhpc")
        if single and self.samples_per_file > 1:
            raise ValueError(f"samples_per_file must be 1 for {self.format}, not {self.samples_per_file}")
        return self


def _split(value: Any) -> Any:
    return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value


class Extent(FrozenModel):
    """A part of a sample that a reader requests."""

    offset: BytesOrNone = Field(0, description="distance from the sample's first byte")
    bytes: Bytes
    transfer_bytes: BytesOrNone = Field(0, description="maximum size of a read; 0: all at once")


NO_PASSWORDS = "credentials in a URL would be recorded; set AWS_ACCESS_KEY_ID and related variables instead"


def has_password(url: str) -> bool:
    """Return whether ``url`` has a password before the server's name (``user:secret@``) or, if unambiguous, a user
    name. Passwords are refused because results record URLs and messages repeat them."""
    protocol, named, rest = url.partition("://")
    server = (rest if named else url).partition("/")[0]
    if protocol in ("s3", "s3a"):  # a secret key may contain slashes; an ARN contains colons
        return "@" in server or (":" in server and not server.startswith("arn:"))
    user, at, _ = server.rpartition("@")
    return bool(at) and (":" in user or protocol in ("http", "https"))


class Storage(FrozenModel):
    """The object store with the data, and how it is accessed. Credentials are found by the client library, and are
    never part of a workload."""

    url: str = Field("", description="s3://bucket/prefix; --data overrides it")
    endpoints: Annotated[tuple[str, ...], BeforeValidator(_split)] = Field(
        (), description="server URLs, separated by commas; rank r uses URL number r modulo their count"
    )
    region: str = ""
    path_style: bool | None = Field(
        None, description="path-style requests (bucket in the path); none: only if endpoints are given"
    )
    attempts: Count = Field(5, description="attempts per request before the server is considered unavailable")

    @model_validator(mode="after")
    def _no_passwords(self) -> Self:
        if any(map(has_password, (self.url, *self.endpoints))):
            raise ValueError(NO_PASSWORDS)
        return self


Loader = Literal["none", "pytorch", "tensorflow"]


class LoaderCost(FrozenModel):
    """The cost of a loader with Python workers beyond reading, in core seconds (``mlhpc io calibrate``)."""

    batch: NonNegativeFloat = Field(0.0, description="worker time per batch")
    sample: NonNegativeFloat = Field(0.0, description="worker time per sample")
    per_mb: NonNegativeFloat = Field(0.0, description="worker time per MB passed to the main process")
    steps: tuple[tuple[NonNegativeFloat, NonNegativeFloat], ...] = Field(
        (),
        description="pairs of batch size (MB) and loop time per step (s), interpolated linearly",
    )


class Reader(FrozenModel):
    """How each rank reads."""

    batch_size: Count = Field(1, description="samples per rank and step")
    eval_batch_size: Count = 1
    threads: CountOrNone = Field(1, description="reader threads; 0: the training loop reads, without overlap")
    prefetch: Count = Field(2, description="maximum number of batches ready or in progress")
    partition: bool = Field(
        True, description="each rank reads only its share of the samples; false: all samples"
    )
    file_order: Literal["sequential", "shuffled"] = "sequential"
    sample_order: Literal["sequential", "shuffled", "random"] = Field(
        "sequential", description="order of a rank's samples; random: drawn with replacement"
    )
    transfer_bytes: BytesOrNone = Field(
        0, description="maximum size of a read; 0: whole samples (npz: the sizes that NumPy uses)"
    )
    reopen: bool = Field(False, description="open the file again for each sample, as a stateless loader does")
    advice: Literal["normal", "sequential", "random"] = Field(
        "normal", description="posix_fadvise for each file; sequential: the kernel reads ahead twice as far"
    )
    direct: bool = Field(False, description="O_DIRECT: bypass the page cache")
    mpi_io: bool = Field(False, description="read HDF5 through MPI-IO, if h5py was built with it")
    metadata_bytes: BytesOrNone = Field(0, description="size of an extra read before each sample")
    load_all: bool = Field(False, description="read all samples into memory before the first step")
    extents: tuple[Extent, ...] = Field(
        (),
        description="parts of a sample to read, in this order (binary format only); none: the whole sample",
    )
    loader: Loader = Field("none", description="Python loader whose cost is added to the cost of reading")
    loader_cost: LoaderCost | None = Field(
        None, description="cost of the loader; none: measured before the run"
    )
    handed_bytes: BytesOrNone = Field(
        0, description="size of a sample that a worker passes on; 0: sample_bytes"
    )
    preprocess: Duration = Field(Duration(mean=0.0), description="seconds of preprocessing per sample")
    preprocess_threads: CountOrNone = Field(
        0, description="threads for preprocessing; 0: the reader threads do it"
    )

    @model_validator(mode="after")
    def _threads_agree(self) -> Self:
        if self.preprocess_threads and not self.threads:
            raise ValueError("reader.preprocess_threads requires reader.threads of at least 1")
        return self

    def worker_s(self, dataset: Dataset, batch: int) -> float:
        """Seconds that a loader's worker spends per sample, beyond reading it, with ``batch`` samples per
        batch."""
        own = self.loader_cost
        return own.batch / batch + own.sample + own.per_mb * self._handed_mb(dataset) if own else 0.0

    def step_s(self, dataset: Dataset, batch: int) -> float:
        """Seconds that the training loop spends per step with ``batch`` samples, beyond waiting and
        computation."""
        points = self.loader_cost.steps if self.loader_cost else ()
        if not points:
            return 0.0
        size, (sizes, seconds) = batch * self._handed_mb(dataset), zip(*points, strict=True)
        if size <= sizes[-1] or len(sizes) == 1:
            return float(np.interp(size, sizes, seconds))
        slope = (seconds[-1] - seconds[-2]) / (sizes[-1] - sizes[-2])
        return float(seconds[-1] + max(0.0, slope) * (size - sizes[-1]))

    def _handed_mb(self, dataset: Dataset) -> float:
        return (self.handed_bytes or dataset.sample_bytes) / 1e6


class Train(FrozenModel):
    epochs: Count = 1
    steps: CountOrNone = Field(0, description="maximum total number of steps; 0: all steps of all epochs")
    epoch_steps: CountOrNone = Field(0, description="maximum steps per epoch; 0: no limit")
    computation: Duration = Field(Duration(mean=0.0), description="seconds of computation per step")
    barrier: bool = Field(True, description="ranks wait for each other in each step, as in an all-reduce")


class Evaluation(FrozenModel):
    every_epochs: CountOrNone = Field(0, description="0: never")
    first_epoch: CountOrNone = Field(0, description="epoch of the first evaluation; 0: every_epochs")
    computation: Duration = Duration(mean=0.0)


class Checkpoint(FrozenModel):
    """Checkpoints written during training (``every_*``), or written and read afterwards (``writes``,
    ``reads``)."""

    files: tuple[Bytes, ...] = Field((), description="sizes of the files that each writer writes")
    total_bytes: BytesOrNone = Field(
        0, description="total size, divided among the writing ranks; replaces files"
    )
    ranks: Literal["first", "all"] = "first"
    every_steps: CountOrNone = 0
    steps_of: Literal["run", "epoch"] = Field(
        "run", description="whether every_steps counts the steps of the run or of each epoch"
    )
    every_epochs: CountOrNone = 0
    first_epoch: CountOrNone = Field(0, description="epoch of the first checkpoint; 0: every_epochs")
    writes: CountOrNone = Field(0, description="checkpoints to write after training")
    reads: CountOrNone = Field(0, description="checkpoints to read after training, with caches dropped")
    fsync: bool = True
    transfer_bytes: Bytes = 4 << 20

    @property
    def enabled(self) -> bool:
        """Whether any checkpoint is written."""
        return bool(self.every_steps or self.every_epochs or self.writes)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.files and self.total_bytes:
            raise ValueError("contradictory sizes: set files or total_bytes, not both")
        if self.enabled and not (self.files or self.total_bytes):
            raise ValueError("a checkpoint requires files or total_bytes")
        if self.reads and not self.enabled:
            raise ValueError("reads requires writes: add them")
        return self


class Metric(FrozenModel):
    """Settings for computing metrics from the measured times."""

    au_percent: PositiveFloat | None = Field(None, le=100, description="required accelerator utilisation")
    exclude_start_steps: CountOrNone = Field(
        1, description="steps at the start of each epoch that utilisation excludes"
    )
    exclude_end_steps: CountOrNone = 0


class Workload(FrozenModel):
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=200)
    description: str = ""
    suite: Literal["", "dlio", "mlperf-storage", "mlhpc"] = Field(
        "", description="suite that defines the workload"
    )
    dataset: Dataset | None = Field(None, description="none: the workload reads no data")
    storage: Storage = Storage()
    reader: Reader = Reader()
    train: Train = Train()
    evaluation: Evaluation = Evaluation()
    checkpoint: Checkpoint = Checkpoint()
    metric: Metric = Metric()
    without_effect: tuple[str, ...] = Field((), description="keys of the DLIO file that have no effect here")
    generate_data: bool = Field(False, description="io run generates the data if none exists yet")
    # Keys of ``storage`` that were set by a workload file, not by the user; these are proposals (run.data_of).
    _proposed: frozenset[str] = PrivateAttr(frozenset())

    @property
    def proposed(self) -> frozenset[str]:
        """The keys of ``storage`` that need the user's consent."""
        return self._proposed

    def propose(self, keys: Iterable[str]) -> None:
        """Record that ``keys`` of ``storage`` were set by a workload file, not by the user."""
        self._proposed = frozenset(keys)

    @model_validator(mode="after")
    def _does_something(self) -> Self:
        if self.dataset is None and not self.train.steps and not self.checkpoint.writes:
            raise ValueError("nothing to do: add [dataset], train.steps or checkpoint.writes")
        if self.dataset and self.dataset.samples < self.reader.batch_size:
            raise ValueError(
                f"reader.batch_size {self.reader.batch_size} exceeds the {self.dataset.samples} samples"
            )
        if self.dataset and self.reader.extents:
            self._require_extents(self.dataset)
        if self.dataset and self.reader.mpi_io:
            self._require_mpi_io(self.dataset)
        if self.evaluation.every_epochs and not (self.dataset and self.dataset.eval_files):
            raise ValueError("evaluation.every_epochs requires dataset.eval_files")
        return self

    def _require_extents(self, dataset: Dataset) -> None:
        if dataset.format != "binary" or dataset.sample_bytes_stdev or self.reader.transfer_bytes:
            raise ValueError(
                "reader.extents are read by offset: they require dataset.format binary, samples of equal "
                "size, and no reader.transfer_bytes (each extent has its own)"
            )
        end = max(extent.offset + extent.bytes for extent in self.reader.extents)
        if end > dataset.sample_bytes:
            raise ValueError(
                f"contradictory sizes: extents end at byte {end}, but samples have {dataset.sample_bytes} bytes"
            )

    def _require_mpi_io(self, dataset: Dataset) -> None:
        reader = self.reader
        if dataset.format != "hdf5":
            raise ValueError(f"reader.mpi_io requires hdf5, not {dataset.format}")
        if reader.direct or reader.transfer_bytes or reader.metadata_bytes:
            raise ValueError("reader.mpi_io does not support direct, transfer_bytes or metadata_bytes")
        if reader.threads > 1 and 1 in (dataset.files, dataset.eval_files):
            raise ValueError(f"reader.mpi_io requires reader.threads of 0 or 1, not {reader.threads}")

    def steps_per_epoch(self, ranks: int) -> int:
        """Steps per rank and epoch: the number of full batches, but at most ``train.epoch_steps``; without a data
        set, ``train.steps``."""
        if self.dataset is None:
            return self.train.steps
        sharing = ranks if self.reader.partition else 1
        full = self.dataset.samples // (sharing * self.reader.batch_size)
        return min(full, self.train.epoch_steps or full)
