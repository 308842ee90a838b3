"""Commands for data sets: data make, convert, bench, index, verify, plan, show."""

import argparse
from pathlib import Path
from typing import Any

from mlhpc.benchmarks import registry
from mlhpc.commands import bench
from mlhpc.commands.parser import (
    CORES,
    NAMES,
    Commands,
    Parser,
    add_benchmark,
    add_command,
    add_json,
    byte_size,
    number,
    positive,
    print_help,
    print_json,
)
from mlhpc.errors import UserError
from mlhpc.quantities import count

MOST_PLANNED = 10**8
"""Maximum number of files or ranks in a plan, since each takes some bytes of memory."""


def add(commands: Commands) -> None:
    data = add_command(commands, "data", print_help, "generate, convert, verify, compare and show data sets")
    actions = data.add_subparsers(title="commands", metavar="", parser_class=Parser)
    make = add_command(actions, "make", _data_make, "generate a preset's data set in its official layout")
    add_benchmark(make)
    make.add_folder("--out", "output folder (default: data/BENCHMARK-PRESET)")
    make.add_count("--workers", "processes per rank (default: %(default)s)", default=CORES)
    _add_options(make, "make_data")
    convert = add_command(actions, "convert", _data_convert, "convert a data set to another format")
    tools = (f"{b.name}: {b.convert.help}" for b in registry.BUILT_IN if b.convert)
    convert.add_argument("benchmark", metavar="BENCHMARK", help="; ".join(tools))
    convert.add_argument("source", type=Path)
    convert.add_argument("out", type=Path)
    codecs = "; ".join(f"{b.name}: {', '.join(b.convert.codecs)}" for b in registry.BUILT_IN if b.convert)
    convert.add_argument("--codec", metavar="NAME", help=f"output format: {codecs} (docs/guide/codecs.md)")
    packing = " and ".join(b.name for b in registry.BUILT_IN if b.convert and b.convert.archives)
    convert.add_argument(
        "--archive",
        metavar="SAMPLES",
        type=positive,
        help=f"samples to pack into each file ({packing}); without --codec, their format is kept",
    )
    convert.add_count("--workers", "threads per rank (default: %(default)s)", default=CORES)
    _add_options(convert, "convert")
    bench.add(actions)
    index = add_command(actions, "index", _data_index, "write a data set's manifest: sizes and checksums")
    index.add_argument("data", type=Path)
    index.add_count("--workers", "threads (default: %(default)s)", default=CORES)
    verify = add_command(actions, "verify", _data_verify, "compare a data set with its manifest")
    verify.add_argument("data", type=Path)
    verify.add_count("--workers", "threads (default: %(default)s)", default=CORES)
    plan = add_command(actions, "plan", _data_plan, "show the reads and transfers of staging to many nodes")
    plan.add_argument("data", type=Path, nargs="?", help="a data set, instead of --files and --file-bytes")
    plan.add_count("--files", "number of files in train/, instead of a data set")
    plan.add_argument("--file-bytes", type=byte_size, metavar="SIZE", help="size of each file, such as 16MB")
    plan.add_argument("--nodes", type=positive, required=True)
    plan.add_count("--ranks-per-node", "default: %(default)s", default=1)
    show = add_command(actions, "show", _data_show, "draw a sample as an image")
    show.add_argument("benchmark", metavar="BENCHMARK", help=NAMES)
    show.add_argument(
        "sample", type=Path, help="a sample file or, for resnet50, a data set (many of its images are shown)"
    )
    show.add_out_file(".png", "the picture (default: %(default)s)", default=Path("sample.png"))
    add_json(show)


def _add_options(command: argparse.ArgumentParser, tool: str) -> None:
    """Add the options of built-in benchmarks to ``command`` immediately, and the options of benchmarks from other
    packages once the benchmark's name has been parsed."""
    for benchmark in registry.BUILT_IN:
        _add_options_of(benchmark, tool, command)

    def parse_rest(options: argparse.Namespace, unknown: list[str]) -> list[str]:
        parser = Parser(add_help=False, allow_abbrev=False)
        benchmark = registry.find(options.benchmark)
        if benchmark not in registry.BUILT_IN:
            _add_options_of(benchmark, tool, parser)
        return parser.parse_known_args(unknown, options)[1]

    command.set_defaults(parse_rest=parse_rest)


def _add_options_of(benchmark: registry.Benchmark, tool: str, parser: argparse.ArgumentParser) -> None:
    options = getattr(getattr(benchmark, tool), "options", ())
    group = parser.add_argument_group(f"options for {benchmark.name}") if options else parser
    for option in options:
        if option.type is bool:
            group.add_argument(f"--{option.name}", action="store_true", help=option.help)
        else:
            kind = {int: positive, float: number}.get(option.type, option.type)
            group.add_argument(
                f"--{option.name}", type=kind, choices=option.choices or None, help=option.help
            )


def _given(options: argparse.Namespace, benchmark: registry.Benchmark, tool: str) -> dict[str, Any]:
    """The options of ``benchmark`` that were passed, and all its flags. Raises UserError for options of a
    different benchmark."""
    for other in registry.BUILT_IN:
        for option in getattr(getattr(other, tool), "options", ()):
            if _is_given(getattr(options, option.key, None)) and other is not benchmark:
                raise UserError(f"--{option.name} applies only to {other.name}")
    given = {}
    for option in getattr(getattr(benchmark, tool), "options", ()):
        value = getattr(options, option.key, None)
        if _is_given(value) or option.type is bool:
            given[option.key] = value
    return given


def _require_codec(codec: str | None, tool: registry.DataTool, benchmark: str) -> None:
    """Raise UserError if the tool does not support ``codec``, or if it requires a codec and none was passed."""
    known = ", ".join(tool.codecs)
    if codec and codec not in tool.codecs:
        raise UserError(f"--codec {codec} is not available for {benchmark}; choose {known}")
    if not codec and tool.codecs and not tool.default_codec:
        raise UserError(f"{benchmark} requires --codec {known}: {tool.help}")


def _is_given(value: object) -> bool:
    return value is not None and value is not False  # 0 counts as passed, although it equals False


def _data_make(options: argparse.Namespace) -> int:
    from mlhpc.benchmarks import load
    from mlhpc.common.ranks import launch
    from mlhpc.common.ranks.local import signals_as_ctrl_c

    run = load.load(options.benchmark, options.preset, options.set)
    benchmark = registry.find(options.benchmark)
    given = _given(options, benchmark, "make_data")
    make = registry.load_object(benchmark.make_data.function)
    out = options.out or Path("data") / f"{options.benchmark}-{options.preset}"
    with (
        signals_as_ctrl_c(),
        launch.joined(benchmark.frameworks[run.training.framework].collectives) as world,
    ):
        make(run.data, out, world, options.workers, **given)
    return 0


def _data_convert(options: argparse.Namespace) -> int:
    from mlhpc.common.ranks import launch
    from mlhpc.common.ranks.local import signals_as_ctrl_c

    benchmark = registry.find(options.benchmark)
    if benchmark.convert is None:
        raise UserError(f"{benchmark.name} data sets have no other format to convert to")
    given = _given(options, benchmark, "convert")
    _require_codec(options.codec, benchmark.convert, benchmark.name)
    if options.codec:
        given["codec"] = options.codec
    if options.archive is not None:
        if not benchmark.convert.archives:
            raise UserError(f"--archive is not supported for {benchmark.name}; see docs/guide/data.md")
        given["archive"] = options.archive
    convert = registry.load_object(benchmark.convert.function)
    collectives = benchmark.frameworks[benchmark.default_framework].collectives
    with signals_as_ctrl_c(), launch.joined(collectives) as world:
        convert(source=options.source, out=options.out, world=world, workers=options.workers, **given)
    return 0


def _data_index(options: argparse.Namespace) -> int:
    from mlhpc.common.data import archives, manifest
    from mlhpc.common.formats.archive import SUFFIX
    from mlhpc.common.ranks import launch

    before = manifest.facts_of(options.data)
    # Files may have been added or removed since the old manifest was written. Samples in archives are not files,
    # and archives may have been unpacked.
    packed = archives.FACT in before and any(options.data.glob(f"*/*{SUFFIX}"))
    outdated = () if packed else ("samples", archives.FACT)
    facts = {key: value for key, value in before.items() if key not in (*outdated, "staged")}
    with launch.joined("horovod") as world:
        dataset = manifest.index(options.data, facts, world, options.workers)
        if world.rank == 0:
            print(f"{options.data}: {count(len(dataset.files), 'file')} indexed")
    return 0


def _data_verify(options: argparse.Namespace) -> int:
    from mlhpc.common.data.manifest import load
    from mlhpc.common.data.verify import verify
    from mlhpc.common.host.progress import progress
    from mlhpc.quantities import bytes_text

    listed = load(options.data)
    with progress(len(listed.files), "verify", "files") as advance:
        problems = verify(options.data, options.workers, lambda size: advance(1))
    for problem in problems:
        print(problem)
    summed = int(listed.files.known.sum())
    size = f"{count(len(listed.files), 'file')}, {bytes_text(listed.bytes)}"
    compared = f"{size}, {count(summed, 'checksum')} compared"
    print(f"{options.data}: {compared}: {count(len(problems), 'problem') if problems else 'no problems'}")
    return 1 if problems else 0


def _data_plan(options: argparse.Namespace) -> int:
    from mlhpc.common.data.manifest import File, Files, describe
    from mlhpc.common.ranks.world import Solo
    from mlhpc.preview.plan import show

    simulated = (options.files, options.file_bytes)
    for option, value in (
        ("--nodes", options.nodes * options.ranks_per_node),
        ("--files", options.files or 1),
    ):
        if value > MOST_PLANNED:
            raise UserError(f"{option} {value}: a plan can cover at most {MOST_PLANNED} files or ranks")
    if options.data is not None:
        if simulated != (None, None):
            raise UserError("pass a data set, or --files and --file-bytes, not both")
        files = describe(options.data, Solo()).files
    elif None in simulated or min(simulated) < 1:
        raise UserError("pass a data set, or --files and --file-bytes of at least 1")
    elif not options.files * options.file_bytes * options.nodes < 2**62:
        raise UserError("--files times --file-bytes times --nodes must be less than 4 EiB")
    else:
        files = Files.of(File(f"train/{i:09d}", options.file_bytes) for i in range(options.files))
    show(files, options.nodes, options.ranks_per_node)
    return 0


def _data_show(options: argparse.Namespace) -> int:
    show = registry.find(options.benchmark).show
    if show is None:
        raise UserError(f"{options.benchmark} samples cannot be shown as images")
    from mlhpc.common.files.filesystem import require_new

    require_new(options.out)
    facts = registry.load_object(show)(options.sample, options.out)
    if options.json:
        print_json("data show", {"picture": str(options.out), "sample": facts})
    else:
        print(options.out)
    return 0
