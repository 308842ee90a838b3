"""Which sets of runs lie below a path: one log, one run, a campaign, or the trees of many submitters.

A set is what one score is made from. Layouts (MLPerf submission rules): for HPC
``<org>/results/<system>/strong|weak/<benchmark>/result_<i>.txt`` with ``pruned_results/`` beside the logs of
a weak set, without the level ``strong`` in round 0.7 and in MLPerf Training; ``<org>/systems/<system>.json``.
A campaign is a folder of run directories. Nothing is written, and nothing that a file says raises.
"""

import json
import os
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from mlhpc.benchmarks.registry import logged_name
from mlhpc.errors import UserError
from mlhpc.submission.logs.findings import Finding
from mlhpc.submission.logs.mllog import Log, parse
from mlhpc.submission.logs.run_directory import Target

Metric = Literal["strong", "weak"]
METRICS: tuple[Metric, Metric] = ("strong", "weak")
PRUNED = "pruned_results"
BYPASS = "package_checker_params"
"""A file that a submitter may put beside results to have package_checker leave out a check."""
RESULT = re.compile(r"result_.*\.txt")


@dataclass(frozen=True)
class ResultSet:
    """The runs of one score.

    ``path``: their folder, or the one log. ``benchmark``: MLPerf's name (``cosmoflow``, ``deepcam``,
    ``resnet``), empty where nothing says it. ``system_json``: the system description, None where there is
    none to read. ``log_paths`` are in natural order, result_2 before result_10. ``problems``: what is wrong
    with the set as it lies there. Of run directories of this suite: ``runs``, their ``preset``, and the
    ``target`` that they were run to; foreign logs leave that to the rules.
    """

    path: Path
    org: str | None
    system: str | None
    system_json: dict[str, Any] | None
    benchmark: str
    metric: Metric
    log_paths: tuple[Path, ...]
    pruned_paths: tuple[Path, ...] = ()
    problems: tuple[Finding, ...] = ()
    runs: tuple[Path, ...] = ()
    preset: str | None = None
    target: Target | None = None
    campaign_scale: int | None = None

    @cached_property
    def logs(self) -> tuple[Log, ...]:
        """The logs, read once. Raises UserError where one cannot be opened."""
        return tuple(map(parse, self.log_paths))

    @cached_property
    def pruned(self) -> tuple[Log, ...]:
        """The logs that the submitter has taken out of a weak set."""
        return tuple(map(parse, self.pruned_paths))

    @property
    def is_tree(self) -> bool:
        """Whether the set lies in a submission tree, so that the rules for one hold."""
        return self.system is not None

    @property
    def total_scale(self) -> int | None:
        """Compute units (accelerators, or nodes where a node has none) of the system description; without
        one, those that a campaign for throughput says it used (T)."""
        said = self.system_json
        if said is None:
            return self.campaign_scale
        try:
            return int(said["number_of_nodes"]) * max(int(said["accelerators_per_node"]), 1)
        except (KeyError, TypeError, ValueError):
            return None


def result_sets(path: Path) -> list[ResultSet]:
    """Every set of runs at or below ``path``, in natural order of their paths.

    Raises:
        UserError: there is nothing at ``path``, or nothing of a run below it.
    """
    if path.is_file():
        return [_one_log(path)]
    if not path.is_dir():
        raise UserError(
            f"{path}: No such file or directory; give a log, a run, a campaign or a submission tree"
        )
    if _is_run(path):
        return [_runs(path, [path], _what(path))]
    sets = list(_below(path))
    if not sets and (path / "study.html").is_file():
        raise UserError(f"{path}: a study, whose runs are no results; its report is {path / 'study.html'}")
    if not sets:
        raise UserError(
            f"{path}: no run directory, and none below it (no run.log, result.json or result_N.txt); "
            "give the --out of a run, a folder of them, or a submission tree"
        )
    return sets


def natural(path: Path) -> list[tuple[int, int | str]]:
    """A key that sorts result_2 before result_10."""
    parts = re.split(r"(\d+)", str(path))
    return [(0, int(part)) if part.isdecimal() and part.isascii() else (1, part) for part in parts]


def _below(top: Path) -> Iterator[ResultSet]:
    if (top / "cell.json").is_file():
        return  # of a study (study.py)
    try:
        names = sorted((Path(entry.path) for entry in os.scandir(top)), key=natural)
    except OSError as error:
        raise UserError(f"{top}: {error.strerror}; make it readable, or give what lies beside it") from None
    folders = [
        p
        for p in names
        if p.is_dir() and not p.name.startswith(".") and p.name != PRUNED and not _is_above(p, top)
    ]
    results = [p for p in names if RESULT.fullmatch(p.name) and p.is_file()]
    place = _place(top)
    if results or (top / PRUNED).is_dir() or (place and place.benchmark and not folders):
        yield _folder_of_results(top, names, results, place)
    elif not folders and (place or _is_results_of_a_tree(top)):
        org, system = (place.org, place.system) if place else (top.absolute().parent.name, None)
        yield ResultSet(top, org, system, None, "", "strong", (), problems=(_empty(top),))
    runs = [folder for folder in folders if _is_run(folder)]
    groups: dict[_What, list[Path]] = {}
    for run in runs:
        groups.setdefault(_what(run), []).append(run)
    for what, group in groups.items():
        yield _runs(top, group, what)
    for folder in folders:
        # An implementation may bring logs of its own; they are no results.
        if folder not in runs and not (folder.name == "benchmarks" and (top / "results").is_dir()):
            yield from _below(folder)


def _is_above(folder: Path, top: Path) -> bool:
    """Whether ``folder`` is a link to where one comes from."""
    return folder.is_symlink() and top.resolve().is_relative_to(folder.resolve())


def _one_log(path: Path) -> ResultSet:
    log = parse(path)
    org = str(said) if (said := log.value("submission_org")) else None
    return ResultSet(path, org, None, None, str(log.value("submission_benchmark") or ""), "strong", (path,))


# Submission trees.


@dataclass(frozen=True)
class _Place:
    """Where in a submission tree a folder is; ``benchmark`` is None above that level."""

    tree: Path
    org: str
    system: str
    metric: Metric
    benchmark: str | None


def _place(folder: Path) -> _Place | None:
    """From the path. None where ``<org>/results/<system>/…`` does not lead to it, or nothing but the name
    ``results`` speaks for a submission: neither ``<org>/systems`` nor a level strong or weak."""
    above = folder.absolute().parts
    for depth in (1, 2, 3):
        if len(above) <= depth + 1 or above[-1 - depth] != "results":
            continue
        tree, (system, *rest) = Path(*above[: -1 - depth]), above[-depth:]
        scaled = bool(rest) and rest[0] in METRICS
        benchmark = rest[scaled:]
        if len(benchmark) <= 1 and (scaled or (tree / "systems").is_dir()):
            metric: Metric = "weak" if rest[:1] == ["weak"] else "strong"
            return _Place(tree, tree.name, system, metric, benchmark[0] if benchmark else None)
    return None


def _is_results_of_a_tree(folder: Path) -> bool:
    return folder.absolute().name == "results" and (folder.absolute().parent / "systems").is_dir()


def _empty(folder: Path) -> Finding:
    return Finding(
        "set/empty",
        "error",
        f"{folder}/",
        "result_<i>.txt, one a run",
        "no log",
        "put the logs of the runs there, or take the folder away",
    )


def _folder_of_results(
    folder: Path, names: list[Path], results: list[Path], place: _Place | None
) -> ResultSet:
    pruned = sorted((folder / PRUNED).glob("result_*.txt"), key=natural) if (folder / PRUNED).is_dir() else []
    problems = [] if results else [_empty(folder)]
    if place is None or place.benchmark is None:
        # A bare folder of logs: what they say is all there is.
        log = parse(results[0]) if results else None
        benchmark = str((log and log.value("submission_benchmark")) or "")
        metric: Metric = "weak" if pruned or folder.absolute().parent.name == "weak" else "strong"
        org = str(v) if log and (v := log.value("submission_org")) else None
        return ResultSet(
            folder, org, None, None, benchmark, metric, (*results,), (*pruned,), problems=(*problems,)
        )
    unknown = [p.name for p in names if p not in results and p.name not in (PRUNED, "power", BYPASS)]
    system_folder = place.tree / "results" / place.system
    bypassed = [above for above in (folder, system_folder) if (above / BYPASS).is_file()]
    if unknown:
        problems.append(
            Finding(
                "set/files",
                "warning",
                f"{folder}/",
                "result_<i>.txt alone",
                ", ".join(unknown[:5]) + (f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""),
                "name the logs result_<i>.txt; take what is no log elsewhere",
            )
        )
    problems += [
        Finding(
            "set/bypass",
            "warning",
            f"{above / BYPASS}",
            "all official checks",
            "a file that tells package_checker to leave some out",
            "take it away unless the review agreed to it",
        )
        for above in bypassed
    ]
    description, problem = _system(place.tree / "systems" / f"{place.system}.json")
    return ResultSet(
        folder,
        place.org,
        place.system,
        description,
        place.benchmark,
        place.metric,
        tuple(results),
        tuple(pruned),
        problems=(*problems, *([problem] if problem else [])),
    )


def _system(path: Path) -> tuple[dict[str, Any] | None, Finding | None]:
    try:
        said = json.loads(path.read_text("utf-8"))
        if isinstance(said, dict):
            return said, None
        what = "no JSON object"
    except FileNotFoundError:
        what = "is missing"
    except (OSError, ValueError, RecursionError) as error:
        what = f"cannot be read: {error}"
    remedy = "describe the system there: mlhpc doctor --system"
    return None, Finding("set/system", "error", str(path), "a system description", what, remedy)


# Run directories of this suite.


def _is_run(folder: Path) -> bool:
    return (folder / "run.log").is_file() or (folder / "result.json").is_file()


@dataclass(frozen=True)
class _What:
    """What the runs of one score have in common; a target of None is the official one."""

    benchmark: str = ""
    preset: str | None = None
    metric: str | None = None
    target: float | None = None


def _what(run: Path) -> _What:
    """From the pieces of a run directory that are there and quick to read."""
    for name, load in (("result.json", json.loads), ("config.toml", tomllib.loads)):
        try:
            said = load((run / name).read_text("utf-8"))
            target = said["target"]
            return _What(
                str(said["benchmark"]), str(said["preset"]), str(target["metric"]), float(target["value"])
            )
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue
    return _What()


def _runs(folder: Path, runs: list[Path], what: _What) -> ResultSet:
    logs = tuple(run / "run.log" for run in runs if (run / "run.log").is_file())
    log = parse(logs[0]) if logs else None
    benchmark = what.benchmark or str((log and log.value("submission_benchmark")) or "")
    org = log and log.value("submission_org")
    metric, scale = _campaign(folder)
    target = None
    if what.metric is not None and what.target is not None:
        target = Target(metric=what.metric, label=what.metric, value=what.target)
    return ResultSet(
        folder,
        None if org in (None, "unnamed") else str(org),
        None,
        None,
        logged_name(benchmark),
        metric,
        logs,
        runs=tuple(runs),
        preset=what.preset,
        target=target,
        campaign_scale=scale,
    )


def _campaign(folder: Path) -> tuple[Metric, int | None]:
    """What campaign.json says of the metric and of T; without it the folder's name may say the metric."""
    try:
        said = json.loads((folder / "campaign.json").read_text("utf-8"))
        metric, scale = said["metric"], said.get("score", {}).get("T")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        metric, scale = folder.absolute().name, None
    return "weak" if metric == "weak" else "strong", scale if isinstance(scale, int) else None
