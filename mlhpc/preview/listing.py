"""``mlhpc list``: the available benchmarks, and what is installed."""

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mlhpc.benchmarks import load, registry
from mlhpc.perf.machines import known
from mlhpc.preview.scripts import shipped


def content() -> dict[str, Any]:
    """The content of ``mlhpc list --json`` (docs/json.md). No framework is imported."""
    return {
        "benchmarks": [_benchmark(benchmark) for benchmark in registry.benchmarks().values()],
        "sites": _sites(),
        "machines": list(known()),
    }


def _benchmark(benchmark: registry.Benchmark) -> dict[str, Any]:
    frameworks = {
        name: {package: _version(package) for package in framework.packages[:1]}
        for name, framework in benchmark.frameworks.items()
    }
    return {
        "name": benchmark.name,
        "title": benchmark.title,
        "presets": list(load.presets(benchmark.name)),
        "frameworks": frameworks,
        "codecs": list(benchmark.convert.codecs) if benchmark.convert else [],
    }


def _version(package: str) -> str | None:
    """The installed version, also of TensorFlow's build for CPUs; None if it is not installed."""
    for name in (package, f"{package}-cpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def _sites() -> list[str]:
    """The site files of the suite."""
    return sorted(path.stem for path in (shipped("run_scripts") / "sites").glob("*.sh"))


def print_list(console: Console) -> None:
    everything = content()
    grid = Table.grid(padding=(0, 2))
    for benchmark in everything["benchmarks"]:
        grid.add_row(Text(benchmark["name"], style="bold"), Text(benchmark["title"]))
        installed = [
            f"{name} ({', '.join(f'{p} {v}' if v else f'{p} is not installed' for p, v in packages.items())})"
            for name, packages in benchmark["frameworks"].items()
        ]
        for label, words in (("frameworks", installed), *((k, benchmark[k]) for k in ("presets", "codecs"))):
            _row(grid, f"  {label}", words)
    _row(grid, "sites", everything["sites"])
    _row(grid, "machines", everything["machines"])
    console.print(grid)


def _row(grid: Table, label: str, words: list[str]) -> None:
    if words:
        grid.add_row(Text(label, style="dim"), Text(", ".join(words)))
