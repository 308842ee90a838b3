"""Compares many sets of runs, from run folders, campaigns and submission trees, including those of other
submitters.

The analysis is that of Farrell et al. 2021, section 4.1: the breakdown of the time to solution, staging compared
with computing, throughput scaling and epoch scaling. Only sets of the same problem (benchmark, samples, preset)
share a chart.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mlhpc.benchmarks import load, registry
from mlhpc.benchmarks.findings import Finding
from mlhpc.common.host.progress import progress
from mlhpc.errors import UserError
from mlhpc.perf.epochs import reference_runs
from mlhpc.perf.scaling import Measured, Point, Prediction, neighbours, predict
from mlhpc.submission.check.rulesets import rules_of
from mlhpc.submission.report.entry import Entry
from mlhpc.submission.report.measure import entries_of
from mlhpc.submission.report.spread import Spread
from mlhpc.submission.result_sets import result_sets
from mlhpc.submission.score.rcp import pruned
from mlhpc.submission.score.set_score import set_findings

DETAILED = 150
"""Maximum number of sets that are shown in plots and predicted from the remaining sets; the tables contain all
sets."""


@dataclass(frozen=True)
class Predicted:
    """A prediction for the machine of one submitter in one division. ``measured_min``: the time in minutes that
    was measured for the same configuration, if any; the prediction does not use it."""

    problem: tuple[str, int | None, int | None, str, float | None, bool]
    org: str
    machine: str
    unit: str
    division: str
    note: str
    prediction: Prediction
    measured_min: float | None = None


@dataclass(frozen=True)
class Comparison:
    """A comparison: measured sets and predictions. ``problems``: findings on the sets, each with the path of its
    set."""

    entries: tuple[Entry, ...]
    predictions: tuple[Predicted, ...]
    problems: tuple[tuple[Path, Finding], ...]
    paths: tuple[Path, ...]

    @property
    def by_problem(self) -> list[list[Entry]]:
        """The entries in groups of the same problem, official data sets first."""
        groups: dict[tuple[object, ...], list[Entry]] = {}
        for entry in self.entries:
            groups.setdefault(entry.problem, []).append(entry)
        # Official data sets come first, before small presets.
        return sorted(groups.values(), key=lambda g: (g[0].official is not True, g[0].benchmark))


def compare(paths: Sequence[Path], configurations: Sequence[tuple[int, int | None]] = ()) -> Comparison:
    """Measure every set of runs below ``paths``. Nothing is written.

    ``configurations``: pairs (compute units, global batch size) to predict; without a batch size, the batch size
    per unit of the nearest set is used.

    Raises:
        UserError: a path does not exist or contains no logs.
    """
    sets = [results for path in paths for results in result_sets(path)]
    # A path inside another one must not add a set twice.
    sets = list({(results.path.resolve(), results.log_paths): results for results in sets}.values())
    entries: list[Entry] = []
    problems: list[tuple[Path, Finding]] = []
    with progress(sum(len(s.log_paths) for s in sets), "reading logs", "logs") as advance:
        while sets:
            results = sets.pop(0)  # frees the logs after the measurement, since there may be thousands
            measured = entries_of(results)
            problems += [(results.path, problem) for problem in results.problems]
            if len(measured) == 1 and measured[0].score:
                problems += [(results.path, problem) for problem in set_findings(results, measured[0].score)]
            entries += measured
            advance(len(results.log_paths))
    if not entries:
        raise UserError(f"{', '.join(map(str, paths))}: no log to compare; pass runs or submission trees")
    ordered = sorted(entries, key=lambda e: (e.official is not True, e.benchmark, e.train_samples or 0))
    lettered = _with_copies([replace(entry, letter=letter(n)) for n, entry in enumerate(ordered)])
    lettered = _with_versions(lettered)
    originals = [entry for entry in lettered if not entry.copy_of and entry.comparable]
    return Comparison(
        tuple(lettered), tuple(_predictions(originals, configurations)), tuple(problems), tuple(paths)
    )


def _with_copies(entries: Sequence[Entry]) -> list[Entry]:
    """The entries, with a note on each entry that shares logs with an earlier entry of the same benchmark. An
    entry that shares most of its logs is marked as a copy, since republished sets are not independent
    measurements."""
    checked: list[Entry] = []
    for entry in entries:
        shared = [
            (len(entry.log_ids & other.log_ids), other.letter)
            for other in checked
            if other.benchmark == entry.benchmark and not other.copy_of and entry.log_ids & other.log_ids
        ]
        if shared:
            number, original = max(shared, key=lambda pair: pair[0])
            note = f"{number} of {entry.logs} logs are also in {original}"
            is_copy = 2 * number > len(entry.log_ids)
            if is_copy:
                note += ": a copy, excluded from figures and predictions"
            entry = replace(entry, notes=(*entry.notes, note), copy_of=original if is_copy else "")
        checked.append(entry)
    return checked


def _with_versions(entries: Sequence[Entry]) -> list[Entry]:
    """The entries, with a note on those whose version of the preset, the parts or the data differs from that of
    the first entry of the same problem that states one. They are not ``comparable``."""
    marked, firsts = [], dict[tuple[object, str], Entry]()
    for entry in entries:
        other = []
        for what, number in entry.versions.items():
            first = firsts.setdefault((entry.problem, what), entry)
            if number != first.versions[what]:
                other.append(f"with {first.letter}: {what} version {number}, not {first.versions[what]}")
        note = f"not comparable {', '.join(other)} (docs/reference/stability.md)"
        marked.append(replace(entry, notes=(*entry.notes, note), comparable=False) if other else entry)
    return marked


def _predictions(
    entries: Sequence[Entry], configurations: Sequence[tuple[int, int | None]]
) -> Iterator[Predicted]:
    """Yield predictions for every machine and division: for the requested ``configurations`` or, without any, for
    half and twice the measured sizes; then for each of the first ``DETAILED`` measured sets of a problem, based on
    the remaining sets."""
    measured_sets = [(e, m) for e in entries if (m := e.measured)]
    groups: dict[tuple[object, ...], list[tuple[Entry, Measured]]] = {}
    for entry, measured in measured_sets:
        groups.setdefault((entry.problem, entry.line, entry.division), []).append((entry, measured))
    of_problem: Counter[object] = Counter()
    tested = set()
    for entry, _ in measured_sets:
        of_problem[entry.problem] += 1
        if of_problem[entry.problem] <= DETAILED:
            tested.add(entry.letter)
    for group in groups.values():
        first = group[0][0]
        comparable = [(e, m) for e, m in measured_sets if e.problem == first.problem]
        system = [(e, m) for e, m in comparable if e.line == first.line]
        division = [(e, m) for e, m in comparable if e.division == first.division]
        reference_epochs = references(first) if first.is_closed else []
        sizes = [(units, batch or _same_share(units, group)) for units, batch in configurations]
        for units, batch in sizes or neighbours([m for _, m in group]):
            yield from _predicted(first, units, batch, system, division, reference_epochs, None)
        for entry, measured in (pair for pair in group if pair[0].letter in tested):
            yield from _predicted(
                first, measured.units, measured.batch, system, division, reference_epochs, entry
            )


def references(entry: Entry) -> list[Point]:
    """The reference convergence points: the reference implementation's epochs to target by batch size; empty
    unless ``entry`` trains on the reference's data set. Of several points with the same batch size, only the one
    with the fewest epochs is returned."""
    name = registry.our_name(entry.benchmark)
    if name not in registry.benchmarks() or "closed" not in load.presets(name):
        return []
    if load.load(name, "closed").data.train_samples != entry.data_set[0]:
        return []
    points: dict[int, Point] = {}
    official_points = reference_runs(entry.benchmark, rules_of(entry.benchmark))
    for point in sorted(pruned(official_points) if official_points else [], key=lambda p: -p.mean):
        epochs = Spread(point.mean, point.spread, point.counted).interval
        points[point.batch_size] = Point(point.batch_size, epochs, "reference")
    return sorted(points.values())


def _same_share(units: int, group: Sequence[tuple[Entry, Measured]]) -> int:
    near = min((m for _, m in group), key=lambda m: abs(math.log(m.units / units)))
    return max(1, round(units * near.batch / near.units))


def _predicted(
    first: Entry,
    units: int,
    batch: int,
    system: Sequence[tuple[Entry, Measured]],
    division: Sequence[tuple[Entry, Measured]],
    reference_epochs: Sequence[Point],
    without: Entry | None,
) -> Iterator[Predicted]:
    machine = [(e, m) for e, m in system if e is not without]
    convergence = [Point(m.batch, m.epochs, e.letter) for e, m in division if e is not without]
    # Reference points are used for batch sizes that no set has.
    sizes = {point.size for point in convergence}
    convergence += [point for point in reference_epochs if point.size not in sizes]
    prediction = predict(units, batch, [m for _, m in machine], convergence)
    if prediction is None:
        return
    software = dict.fromkeys(e.software for e, _ in machine if e.software)
    note = f"the machine's sets differ in software: {', '.join(software)}" if len(software) > 1 else ""
    if without and machine and without.software not in software:
        note = f"the measured set ran other software: {without.software}"
    org, unit, model = first.line
    measured = without.time_s.mean / 60 if without and without.time_s else None
    yield Predicted(first.problem, org, model, unit, first.division, note, prediction, measured)


def letter(n: int) -> str:
    """The letter, or letters, that name the set with index ``n``, counted from 0: A, B, …, Z, AA, AB, …"""
    name = ""
    n += 1
    while n:
        n, rest = divmod(n - 1, 26)
        name = chr(ord("A") + rest) + name
    return name
