"""``mlhpc list``: the available benchmarks, and what is installed."""

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from rich.console import Console
from rich.text import Text

from mlhpc.benchmarks import load, registry
from mlhpc.common.host.provenance import extras
from mlhpc.common.pages.terminal import print_facts
from mlhpc.perf.machines import known
from mlhpc.preview.scripts import shipped


def content() -> dict[str, Any]:
    """The content of ``mlhpc list --json`` (docs/reference/json.md). No framework is imported."""
    return {
        "benchmarks": [_benchmark(benchmark) for benchmark in registry.benchmarks().values()],
        "extras": extras(),
        "sites": sorted(path.stem for path in (shipped("run_scripts") / "sites").glob("*.sh")),
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
    """The installed version of ``package`` (for TensorFlow, also of its CPU build); None if it is not
    installed."""
    for name in (package, f"{package}-cpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def print_list(console: Console) -> None:
    """Print ``content`` as a table."""
    everything = content()
    rows: list[tuple[Text, str]] = []
    for benchmark in everything["benchmarks"]:
        rows.append((Text(benchmark["name"], style="bold"), benchmark["title"]))
        installed = [
            f"{name} ({', '.join(f'{p} {v}' if v else f'{p} is not installed' for p, v in packages.items())})"
            for name, packages in benchmark["frameworks"].items()
        ]
        for label, words in (("frameworks", installed), *((k, benchmark[k]) for k in ("presets", "codecs"))):
            rows.append((Text(f"  {label}", style="dim"), ", ".join(words)))
    extra_names = [
        f"{name}{'' if installed else ' (not installed)'}" for name, installed in everything["extras"].items()
    ]
    rows += [
        (Text(label, style="dim"), ", ".join(words))
        for label, words in (
            ("extras", extra_names),
            ("sites", everything["sites"]),
            ("machines", everything["machines"]),
        )
    ]
    print_facts((row for row in rows if row[1]), console)
