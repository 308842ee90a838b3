"""Registry of benchmarks: the three built-in ones and any that installed packages add.

A package adds a benchmark by an entry point in the group ``mlhpc.benchmarks`` whose object is a :class:`Benchmark`
(docs/guide/adding_a_benchmark.md). A benchmark's code is specified as ``"package.module:object"`` and imported on
first use.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Literal

from mlhpc.errors import UserError, did_you_mean

GROUP = "mlhpc.benchmarks"


@dataclass(frozen=True)
class Framework:
    """One implementation of a benchmark.

    ``trainer``: the module with ``check(run, staged, world)``, which raises UserError if a run cannot start, and
    ``train(run, data, staged, seed, resume, world, log)``, which trains to the target: ``data`` is the data set,
    ``staged`` the node-local folder to which the data set is copied (None: it is read in place), and ``resume``
    the folder of a run to continue; it raises UserError for errors that the user can fix. ``collectives``: the
    library for communication between ranks ("none": only one rank is possible). ``packages``: the packages that
    the implementation needs, starting with the package it is named after. ``profiler``: the function
    ``profile(run, request, world)``, called by all ranks, which measures training steps and returns a
    ``common.timing.profile.Profile``; empty if there is none. ``emulates``: whether the trainer supports
    ``run.emulation``. ``extra``: mlhpc's extra that installs these packages; empty for benchmarks of other
    packages.
    """

    trainer: str
    collectives: Literal["horovod", "torch", "none"]
    packages: tuple[str, ...]
    profiler: str = ""
    emulates: bool = False
    extra: str = ""


@dataclass(frozen=True)
class Option:
    """An option of ``mlhpc data make`` or ``mlhpc data convert`` for one benchmark, passed on as ``name`` if
    the user sets it. An option whose ``type`` is bool is a flag; an int must be at least 1, and a float must be
    finite."""

    name: str
    help: str
    type: type = str
    choices: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The option's name as a keyword argument."""
        return self.name.replace("-", "_")


@dataclass(frozen=True)
class DataTool:
    """A function that makes, converts or compares data, and its options in addition to the common ones.
    ``codecs``: the possible values of ``mlhpc data convert --codec``; if ``default_codec``, the first codec is the
    default. ``archives``: whether the function accepts ``archive``, the number of samples to pack into a file."""

    function: str
    help: str = ""
    options: tuple[Option, ...] = ()
    codecs: tuple[str, ...] = ()
    default_codec: bool = True
    archives: bool = False


@dataclass(frozen=True)
class LoaderBench:
    """What ``mlhpc data bench`` needs to know about a benchmark: the ``module`` with the functions ``epoch(way,
    samples)`` and ``files_of(data, samples)``; the default number of samples and batch size; the loaders and their
    sample types (empty: the benchmark has only one loader). Samples from two loaders may differ by up to ``close``
    on average."""

    module: str
    samples: int
    batch: int
    loaders: tuple[str, ...]
    sample_dtypes: tuple[str, ...] = ()
    close: float = 0.0


@dataclass(frozen=True)
class Benchmark:
    """What mlhpc must know about a benchmark before loading its code.

    ``title``: its name in reports. ``definition``: its TOML file as ``"package:file"``. ``settings``: the class of
    its runs (a subclass of :class:`mlhpc.benchmarks.schema.Run`). ``frameworks``: the implementations by name, the
    default first. ``make_data(data, out, world, workers, **options)`` writes a data set. ``mlperf_name``: its name
    in MLPerf's rules; None if MLPerf has no such benchmark. ``training_ruleset``: the last ruleset of MLPerf
    Training that includes it; None for a benchmark of MLPerf HPC. ``published_codec``: the name by which ``mlhpc
    study --vary codec`` refers to the format in which the data set is published. ``show(sample, out)`` draws a
    sample, and may return facts about it. ``servers_study``: the module that ``mlhpc study --vary
    parameter_servers`` starts; empty if there is none. ``servers_check(run)`` raises UserError for settings that
    this study does not support, without importing a framework. ``select(dataset, data)`` returns the part of a
    data set that a run needs, and raises UserError if the data set is too small; empty: a run needs the whole data
    set. ``check(run)`` raises UserError for settings that contradict each other in ways that ``settings`` does not
    check, without importing a framework; ``mlhpc run --dry-run`` and ``study`` call it, and a trainer's ``check``
    must call it.
    """

    name: str
    title: str
    definition: str
    settings: str
    frameworks: Mapping[str, Framework]
    make_data: DataTool
    mlperf_name: str | None = None
    training_ruleset: str | None = None
    convert: DataTool | None = None
    published_codec: str = "published"
    show: str | None = None
    loader_bench: LoaderBench | None = None
    servers_study: str = ""
    servers_check: str = ""
    select: str = ""
    check: str = ""

    @property
    def logged_name(self) -> str:
        """The value of ``submission_benchmark`` in logs of this benchmark."""
        return self.mlperf_name or self.name

    @property
    def default_framework(self) -> str:
        """The framework that presets use by default: the first in ``frameworks``."""
        return next(iter(self.frameworks))

    @property
    def default_extra(self) -> str:
        """The mlhpc extra that installs the default framework (docs/reference/dependencies.md)."""
        return self.frameworks[self.default_framework].extra


COSMOFLOW = Benchmark(
    name="cosmoflow",
    title="CosmoFlow",
    mlperf_name="cosmoflow",
    definition="mlhpc.benchmarks:cosmoflow.toml",
    settings="mlhpc.benchmarks.cosmoflow:CosmoFlow",
    frameworks={
        "tensorflow": Framework(
            "mlhpc.cosmoflow.tf.train",
            "horovod",
            ("tensorflow", "keras", "horovod"),
            "mlhpc.cosmoflow.tf.profile:profile",
            emulates=True,
            extra="cosmoflow",
        ),
        "pytorch": Framework(
            "mlhpc.cosmoflow.pytorch.train",
            "torch",
            ("torch",),
            "mlhpc.cosmoflow.pytorch.profile:profile",
            emulates=True,
            extra="cosmoflow-pytorch",
        ),
    },
    make_data=DataTool(
        "mlhpc.cosmoflow.synthetic.simulate:make",
        options=(Option("raw", "write whole universes as HDF5, as in the raw data set", bool),),
    ),
    convert=DataTool(
        "mlhpc.cosmoflow.data.convert:convert",
        "raw HDF5 universes, or samples of any format",
        (
            Option("sample", "voxels along a side of a sample of a raw universe (default: 128)", int),
            Option(
                "packer",
                "compressor of gzip files: zlib (default), as in the official preparation, or isal, which is "
                "25 times faster",
                choices=("zlib", "isal"),
            ),
            Option("validation", "fraction of the raw universes held out (default: 1/9)", float),
        ),
        codecs=("gzip", "plain", "lut", "lut-small", "pco", "zstd", "blosc2"),
        archives=True,
    ),
    published_codec="gzip",
    select="mlhpc.common.training.dataset:select",
    check="mlhpc.cosmoflow.check:check",
    show="mlhpc.cosmoflow.synthetic.show:show",
    loader_bench=LoaderBench(
        "mlhpc.cosmoflow.data.bench",
        samples=64,
        batch=4,
        loaders=("threads",),
        sample_dtypes=("int16", "float32", "float16", "bfloat16"),
    ),
)

DEEPCAM = Benchmark(
    name="deepcam",
    title="DeepCAM",
    mlperf_name="deepcam",
    definition="mlhpc.benchmarks:deepcam.toml",
    settings="mlhpc.benchmarks.deepcam:DeepCam",
    frameworks={
        "pytorch": Framework(
            "mlhpc.deepcam.train",
            "torch",
            ("torch", "nvidia-dali"),
            "mlhpc.deepcam.profile:profile",
            emulates=True,
            extra="deepcam",
        )
    },
    make_data=DataTool("mlhpc.deepcam.synthetic.simulate:make"),
    convert=DataTool(
        "mlhpc.deepcam.data.convert:convert",
        "HDF5 samples",
        (
            Option("max-error", "bound of a lossy codec (default: 1e-3)", float),
            Option(
                "error-of",
                "what the error bound is relative to (default: range, that of the channel)",
                str,
                ("range", "value"),
            ),
        ),
        codecs=(
            "npy",
            "npy-float16",
            "plain",
            "delta",
            "delta-small",
            "delta-paper",
            "sz3",
            "zfp",
            "pco",
            "zstd",
            "blosc2",
        ),
        archives=True,
    ),
    published_codec="hdf5",
    select="mlhpc.common.training.dataset:select",
    show="mlhpc.deepcam.synthetic.show:show",
    loader_bench=LoaderBench(
        "mlhpc.deepcam.data.bench",
        samples=32,
        batch=2,
        loaders=("threads", "workers", "dali", "threads, cached"),
        sample_dtypes=("float32", "float16", "bfloat16"),
    ),
)

RESNET50 = Benchmark(
    name="resnet50",
    title="ResNet-50",
    mlperf_name="resnet",
    training_ruleset="4.0.0",
    definition="mlhpc.benchmarks:resnet50.toml",
    settings="mlhpc.benchmarks.resnet50:ResNet50",
    frameworks={
        "pytorch": Framework(
            "mlhpc.resnet50.train",
            "torch",
            ("torch", "nvidia-dali"),
            "mlhpc.resnet50.profile:profile",
            emulates=True,
            extra="resnet50",
        )
    },
    make_data=DataTool("mlhpc.resnet50.synthetic.simulate:make"),
    convert=DataTool(
        "mlhpc.resnet50.data.convert:convert",
        "folders of JPEG files, into TFRecord shards, LMDB, or decoded pixels",
        codecs=("tfrecord", "lmdb", "raw"),
        default_codec=False,
    ),
    published_codec="jpeg",
    select="mlhpc.resnet50.data.dataset:select",
    show="mlhpc.resnet50.synthetic.show:show",
    loader_bench=LoaderBench(
        "mlhpc.resnet50.data.bench",
        samples=512,
        batch=32,
        loaders=("threads", "workers", "dali"),
        # Two of 255 grey levels, after normalisation: DALI's decoding and resampling differ by half a level.
        close=2 / (255 * 0.225),
    ),
    servers_study="mlhpc.resnet50.parameter_servers",
    servers_check="mlhpc.benchmarks.resnet50:require_servers",
)


BUILT_IN = (COSMOFLOW, DEEPCAM, RESNET50)


@cache
def benchmarks() -> dict[str, Benchmark]:
    """All benchmarks by name, built-in benchmarks first.

    Raises UserError if an installed package's entry point cannot be loaded, is not a :class:`Benchmark`, or
    uses the name of another benchmark.
    """
    from importlib.metadata import entry_points  # slow to import, and --help needs only BUILT_IN

    by_name = {benchmark.name: benchmark for benchmark in BUILT_IN}
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        package = entry.dist.name if entry.dist else entry.value
        try:
            benchmark = entry.load()
        except Exception as error:  # importing another package may raise any exception
            problem = f"{type(error).__name__}: {error}"
            raise UserError(
                f"benchmark {entry.name!r} cannot be loaded ({problem}); fix or uninstall package {package}"
            ) from error
        if not isinstance(benchmark, Benchmark) or benchmark.name in by_name:
            problem = (
                f"the name {benchmark.name!r} is already in use"
                if isinstance(benchmark, Benchmark)
                else f"{entry.value} is not an mlhpc Benchmark"
            )
            raise UserError(f"cannot use the benchmark {entry.name!r} of package {package}: {problem}")
        by_name[benchmark.name] = benchmark
    return by_name


def find(name: str) -> Benchmark:
    """The benchmark called ``name``. Raises UserError, suggesting the nearest name, if there is none."""
    by_name = benchmarks()
    if name not in by_name:
        raise UserError(f"no benchmark {name!r}; {did_you_mean(name, by_name)}")
    return by_name[name]


def find_logged(name: str) -> Benchmark | None:
    """The benchmark that logs call ``name`` (MLPerf's name for it, or the suite's if MLPerf has none); None for an
    unknown name."""
    return next((b for b in benchmarks().values() if name in (b.logged_name, b.name)), None)


def logged_name(name: str) -> str:
    """The value of ``submission_benchmark`` in logs of the benchmark ``name``; an unknown ``name`` is returned
    unchanged."""
    benchmark = find_logged(name)
    return benchmark.logged_name if benchmark else name


def our_name(name: str) -> str:
    """The suite's name for the benchmark that logs call ``name``; an unknown ``name`` is returned unchanged."""
    benchmark = find_logged(name)
    return benchmark.name if benchmark else name


def title(name: str) -> str:
    """The title used in reports for the benchmark ``name``, which may be the suite's or MLPerf's name; an unknown
    ``name`` is returned unchanged."""
    benchmark = find_logged(name)
    return benchmark.title if benchmark else name


def load_object(reference: str) -> Any:
    """The object that ``"package.module:object"`` names."""
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)
