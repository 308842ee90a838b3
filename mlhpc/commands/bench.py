"""data bench: compares formats, loaders and their settings."""

import argparse
from functools import partial
from importlib import import_module
from itertools import product
from pathlib import Path

from mlhpc.benchmarks import registry
from mlhpc.commands.parser import CORES, Commands, add_command, add_json, positives, print_json, quantity
from mlhpc.errors import UserError, did_you_mean
from mlhpc.quantities import count


def add(actions: Commands) -> None:
    bench = add_command(actions, "bench", _bench, "compare the speed of formats and loaders")
    sizes = {b.name: b.loader_bench for b in registry.BUILT_IN if b.loader_bench}
    samples = ", ".join(f"{name} {size.samples}" for name, size in sizes.items())
    batches = ", ".join(f"{name} {size.batch}" for name, size in sizes.items())
    bench.add_argument("benchmark", metavar="BENCHMARK", help=", ".join(sizes))
    bench.add_argument("data", type=Path, nargs="+", help="data sets to compare, such as different formats")
    bench.add_count("--samples", f"training samples to read (default: {samples})")
    bench.add_argument("--batch", type=positives, help=f"local batch sizes, such as 1,4 (default: {batches})")
    bench.add_argument(
        "--workers",
        type=positives,
        default=str(CORES),
        help="numbers of threads or processes, such as 1,2 (default: %(default)s)",
    )
    bench.add_argument("--loader", help="loaders, such as threads,workers (default: all)")
    bench.add_argument("--sample-dtype", help="sample types, such as float16 (default: the benchmark's)")
    bench.add_count("--rounds", "rounds per combination (default: 3)", default=3)
    bench.add_argument("--step-ms", type=quantity, help="milliseconds per training step, to find bottlenecks")
    add_json(bench)


def _bench(options: argparse.Namespace) -> int:
    from rich.console import Console

    from mlhpc.common.data import bench_report, ceilings, manifest
    from mlhpc.common.data.loader_bench import Way
    from mlhpc.common.pages.terminal import say
    from mlhpc.common.ranks import launch

    # Several ranks would slow each other down and evict each other's files from the page cache.
    launch.connect("none")

    tool = registry.find(options.benchmark).loader_bench
    if tool is None:
        names = " and ".join(b.name for b in registry.benchmarks().values() if b.loader_bench)
        raise UserError(f"data bench does not support {options.benchmark} (supported: {names})")
    samples, rounds = options.samples or tool.samples, options.rounds
    batches, workers = options.batch or [tool.batch], options.workers
    loaders = _names("--loader", options.loader, tool.loaders) or list(tool.loaders)
    dtypes = _names("--sample-dtype", options.sample_dtype, tool.sample_dtypes) or list(
        tool.sample_dtypes[:1]
    )
    facts = {}
    for data in options.data:
        manifest.require_folder(data)
        facts[data] = manifest.facts_of(data)
    options.data = list(dict.fromkeys(options.data))
    ways = [Way(*each) for each in product(options.data, loaders, batches, workers, dtypes or [""])]

    module = import_module(tool.module)
    files = [path for data in options.data for path in module.files_of(data, samples)]
    measured, reasons = bench_report.run_all(ways, partial(module.epoch, samples=samples), rounds)
    limits = bench_report.raised(ceilings.measure(files, max(workers)), measured)
    agree = bench_report.agreements(
        measured,
        tool.close,
        lambda data: bool(facts[data].get("lossy")) or facts[data].get("dtype") == "float16",
    )
    step_s = options.step_ms / 1000 if options.step_ms else None
    console = Console(stderr=options.json)
    bench_report.show(measured, reasons, agree, limits, step_s, console)
    say(
        console,
        f"at most {count(samples, 'sample')} of {', '.join(map(str, options.data))}; "
        f"batch {', '.join(map(str, batches))}; workers {', '.join(map(str, workers))}; median of "
        f"{count(rounds, 'round')}",
    )
    if options.json:
        about = {"benchmark": options.benchmark, "samples": samples, "rounds": rounds}
        print_json("data bench", about | bench_report.content(measured, reasons, agree, limits, step_s))
    return 1 if any(each.startswith("NO") for each in agree.values()) else 0


def _names(option: str, text: str | None, valid: tuple[str, ...]) -> list[str]:
    """The names in a comma-separated list; "cached" is short for "threads, cached"."""
    words = [word.strip() for word in (text or "").split(",") if word.strip()]
    names = ["threads, cached" if word == "cached" else word for word in words]
    for name in names:
        if name not in valid:
            words = [each.removeprefix("threads, ") for each in valid]
            hint = did_you_mean(name, words) if valid else "this benchmark has only one; omit it"
            raise UserError(f"{option} {name}: {hint}")
    return list(dict.fromkeys(names))
