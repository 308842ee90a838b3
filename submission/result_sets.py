"""Finds the sets of runs below a path: one log, one run, a campaign, or the trees of many submitters.

Layouts (MLPerf submission rules): for HPC
``<org>/results/<system>/strong|weak/<benchmark>/result_<i>.txt`` with ``pruned_results/`` next to the logs of
a weak set, without the level ``strong`` in round 0.7 and in MLPerf Training; ``<org>/systems/<system>.json``.
A campaign is a folder of run folders. Nothing is written, and no file content causes an error.
"""

import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from mlhpc.benchmarks.findings import Finding
from mlhpc.benchmarks.registry import logged_name
from mlhpc.benchmarks.toml_lines import parse_toml
from mlhpc.common.files.filesystem import as_user_error
from mlhpc.common.files.untrusted import printable, read_object, read_text
from mlhpc.errors import UserError
from mlhpc.record.mllog import TOKEN, parse
from mlhpc.record.result import Target
from mlhpc.record.series import CampaignRecord
from mlhpc.submission.result_set import BYPASS, METRICS, PRUNED, SCALING, Metric, ResultSet, natural

RESULT = re.compile(r"result_.*\.txt")


def result_sets(path: Path) -> list[ResultSet]:
    """Every set of runs at or below ``path``, in natural order of their paths.

    Raises:
        UserError: ``path`` does not exist, is a file without MLLOG lines, or has no run at or below it.
    """
    if path.is_file():
        return [_one_log(path)]
    if not path.is_dir():
        raise UserError(f"{path} does not exist; pass a log, a run, a campaign or a submission tree")
    if _is_run(path):
        return [_runs(path, [path], _kind(path))]
    try:
        sets = list(_below(path))
    except RecursionError:
        raise UserError(f"{path}: folders are nested too deeply; pass one further down") from None
    if not sets and (path / "study.html").is_file():
        raise UserError(f"{path}: a study, whose runs are not results; see its report, {path / 'study.html'}")
    if not sets:
        raise UserError(
            f"{path} has no run.log, result.json or result_N.txt; pass a run, a folder of runs, or "
            "a submission tree"
        )
    return sets


def _below(top: Path) -> Iterator[ResultSet]:
    if (top / "cell.json").is_file():
        return  # a run of a study (study.py)
    with as_user_error(top, "cannot be read", "make it readable, or choose another path"):
        names = sorted((Path(entry.path) for entry in os.scandir(top)), key=natural)
    folders = [
        p
        for p in names
        if p.is_dir() and not p.name.startswith(".") and p.name != PRUNED and not _is_above(p, top)
    ]
    results = [p for p in names if RESULT.fullmatch(p.name) and _is_log(p)]
    position = _tree_position(top)
    if results or (top / PRUNED).is_dir() or (position and position.benchmark and not folders):
        yield _folder_of_results(top, names, results, position)
    elif not folders and (position or _is_results_of_a_tree(top)):
        org, system = (position.org, position.system) if position else (top.absolute().parent.name, None)
        yield ResultSet(top, org, system, None, "", "strong", (), problems=(_empty(top),))
    runs = [folder for folder in folders if _is_run(folder)]
    groups: dict[_Kind, list[Path]] = {}
    for run in runs:
        groups.setdefault(_kind(run), []).append(run)
    for kind, group in groups.items():
        yield _runs(top, group, kind)
    for folder in folders:
        # An implementation may contain logs; they are not results.
        if folder not in runs and not (folder.name == "benchmarks" and (top / "results").is_dir()):
            yield from _below(folder)


def _is_log(path: Path) -> bool:
    """Return whether ``path`` is a log. Links do not count, since a link may lead out of the tree to any file,
    which would then be packed as a log."""
    return path.is_file() and not path.is_symlink()


def _is_above(folder: Path, top: Path) -> bool:
    """Return whether ``folder`` is a link to ``top`` or to a folder above it; following such a link would never
    end."""
    return folder.is_symlink() and top.resolve().is_relative_to(folder.resolve())


def _one_log(path: Path) -> ResultSet:
    log = parse(path)
    if not log.mllog_lines and not re.fullmatch(r"result_\d+\.txt|run\.log", path.name):
        raise UserError(f"{path} is not a log: no line contains {TOKEN.strip()}; pass a log, run or tree")
    org = str(value) if (value := log.value("submission_org")) else None
    return ResultSet(path, org, None, None, str(log.value("submission_benchmark") or ""), "strong", (path,))


# Submission trees.


@dataclass(frozen=True)
class _TreePosition:
    """The position of a folder in a submission tree; ``benchmark`` is None for a folder above the level of
    benchmarks."""

    tree: Path
    org: str
    system: str
    metric: Metric
    benchmark: str | None


def _tree_position(folder: Path) -> _TreePosition | None:
    """The position of ``folder`` according to its path. None if the path is not ``<org>/results/<system>/…``, or
    if ``results`` has neither a folder ``systems`` next to it nor a level strong or weak below it."""
    above = folder.absolute().parts
    for depth in (1, 2, 3):
        if len(above) <= depth + 1 or above[-1 - depth] != "results":
            continue
        tree, (system, *rest) = Path(*above[: -1 - depth]), above[-depth:]
        scaled = bool(rest) and rest[0] in METRICS
        benchmark = rest[scaled:]
        if len(benchmark) <= 1 and (scaled or (tree / "systems").is_dir()):
            metric: Metric = "weak" if rest[:1] == ["weak"] else "strong"
            return _TreePosition(tree, tree.name, system, metric, benchmark[0] if benchmark else None)
    return None


def _is_results_of_a_tree(folder: Path) -> bool:
    return folder.absolute().name == "results" and (folder.absolute().parent / "systems").is_dir()


def _empty(folder: Path) -> Finding:
    remedy = "put the logs of the runs into it, or remove the folder"
    return Finding("set/empty", "error", f"{folder}/", "one result_<i>.txt per run", "no log", remedy)


def _folder_of_results(
    folder: Path, names: list[Path], results: list[Path], position: _TreePosition | None
) -> ResultSet:
    pruned = sorted(filter(_is_log, (folder / PRUNED).glob("result_*.txt")), key=natural)
    problems = [] if results else [_empty(folder)]
    if position is None or position.benchmark is None:
        # A plain folder of logs without any description.
        log = parse(results[0]) if results else None
        benchmark = str((log and log.value("submission_benchmark")) or "")
        metric: Metric = "weak" if pruned or folder.absolute().parent.name == "weak" else "strong"
        org = str(v) if log and (v := log.value("submission_org")) else None
        return ResultSet(
            folder, org, None, None, benchmark, metric, (*results,), (*pruned,), problems=(*problems,)
        )
    unknown = [p.name for p in names if p not in results and p.name not in (PRUNED, "power", BYPASS, SCALING)]
    if unknown:
        problems.append(_unknown_files(folder, unknown))
    above = (folder, position.tree / "results" / position.system)
    problems += [_bypassed(each / BYPASS) for each in above if (each / BYPASS).is_file()]
    description, problem = _system(position.tree / "systems" / f"{position.system}.json")
    return ResultSet(
        folder,
        position.org,
        position.system,
        description,
        position.benchmark,
        position.metric,
        tuple(results),
        tuple(pruned),
        problems=(*problems, *([problem] if problem else [])),
    )


def _bypassed(path: Path) -> Finding:
    remedy = "remove it unless the reviewers agreed to it"
    actual = "a file that makes package_checker skip checks"
    return Finding("set/bypass", "warning", str(path), "all official checks", actual, remedy)


def _unknown_files(folder: Path, names: list[str]) -> Finding:
    remedy = "name the logs result_<i>.txt; move other files elsewhere"
    expected = "only result_<i>.txt, no links"
    actual = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return Finding("set/files", "warning", f"{folder}/", expected, actual, remedy)


def _system(path: Path) -> tuple[dict[str, Any] | None, Finding | None]:
    try:
        return read_object(path, os.O_NOFOLLOW), None
    except FileNotFoundError:
        problem = "is missing"
    except json.JSONDecodeError as error:
        problem = f"is not JSON: line {error.lineno}, column {error.colno}"
    except (OSError, ValueError, RecursionError) as error:
        problem = printable(f"cannot be read: {error}")
    remedy = "write it with mlhpc doctor --system"
    return None, Finding("set/system", "error", str(path), "a system description", problem, remedy)


# Run folders of this suite.


def _is_run(folder: Path) -> bool:
    return (folder / "run.log").is_file() or (folder / "result.json").is_file()


class _Kind(NamedTuple):
    """Properties shared by the runs of a score; ``target`` None means the official target."""

    benchmark: str = ""
    preset: str | None = None
    target: Target | None = None


def _kind(run: Path) -> _Kind:
    """The kind of a run, from the first readable file in its folder that states all properties."""
    loaders: tuple[tuple[str, Callable[[Path], dict[str, Any]]], ...] = (
        ("result.json", lambda path: read_object(path, os.O_NOFOLLOW)),
        ("config.toml", lambda path: parse_toml(read_text(path, flags=os.O_NOFOLLOW))),
    )
    for name, load in loaders:
        try:
            fields = load(run / name)
            metric, value = (fields["target"][key] for key in ("metric", "value"))
            target = Target(metric=metric, label=metric, value=value)
            return _Kind(str(fields["benchmark"]), str(fields["preset"]), target)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue
    return _Kind()


def _runs(folder: Path, runs: list[Path], kind: _Kind) -> ResultSet:
    logs = tuple(run / "run.log" for run in runs if _is_log(run / "run.log"))
    log = parse(logs[0]) if logs else None
    benchmark = kind.benchmark or str((log and log.value("submission_benchmark")) or "")
    org = log and log.value("submission_org")
    metric, scale = _campaign(folder)
    return ResultSet(
        folder,
        None if org in (None, "unnamed") else str(org),
        None,
        None,
        logged_name(benchmark),
        metric,
        logs,
        runs=tuple(runs),
        preset=kind.preset,
        target=kind.target,
        campaign_scale=scale,
    )


def _campaign(folder: Path) -> tuple[Metric, int | None]:
    """The metric and T in campaign.json. Without this file, the metric follows from the folder's name, and T is
    None."""
    if campaign := CampaignRecord.read_or_none(folder / "campaign.json"):
        return campaign.metric, campaign.score.T
    return "weak" if folder.absolute().name == "weak" else "strong", None
