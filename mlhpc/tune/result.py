"""The result of a search: tune.json, the page, and the preset."""

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import mlhpc
from mlhpc.benchmarks import load, registry
from mlhpc.common.files.untrusted import finite
from mlhpc.common.pages.blocks import Cell, Columns, Grid, Section, Table, number, table
from mlhpc.common.pages.charts import Figure
from mlhpc.common.pages.html import render
from mlhpc.common.pages.plots import Mark, curves
from mlhpc.common.pages.text import printable
from mlhpc.common.ranks.local import set_words
from mlhpc.history.gate import paired_ratio
from mlhpc.perf.epochs import convergence_points
from mlhpc.quantities import count, digits, seconds_text
from mlhpc.record.fields import write_text
from mlhpc.tune.model import Outcome, finished_runs, geometric_mean
from mlhpc.tune.space import Config, Space
from mlhpc.tune.surface import Surface

Pairs = Sequence[tuple[Outcome, Outcome]]
"""Pairs of runs with the same seed, one of the winner and one of the default."""


class Choice(NamedTuple):
    """The runs of a configuration. ``seconds``: geometric mean of their times to train; None unless all runs
    converged."""

    config: Config
    runs: list[Outcome]
    seconds: float | None
    mark: str

    @property
    def epochs(self) -> float | None:
        """Geometric mean of the epochs to the target; None unless all runs converged."""
        return geometric_mean([run.epochs for run in self.runs]) if self.seconds else None

    @property
    def epoch_s(self) -> float | None:
        """Geometric mean of the seconds per epoch, over the runs that completed an epoch; None if none did."""
        # The epochs of a stopped run include the one that it did not complete.
        known = [run.epoch_s for run in self.runs if run.epoch_s and run.epochs > (run.state == "stopped")]
        return geometric_mean(known) if known else None


class Result(NamedTuple):
    """The result of a search over ``space`` with the runs ``done``."""

    space: Space
    done: Sequence[Outcome]
    winner: Config
    pairs: Pairs
    surface: Surface | None

    @property
    def ratio(self) -> tuple[float, float, float] | None:
        """The winner's time to train relative to the default's, over pairs in which both runs converged, with the
        ends of its 95% interval; None for fewer than two such pairs."""
        ours, theirs = ([pair[side].seconds for pair in self.finished] for side in (0, 1))
        return paired_ratio(ours, theirs) if self.finished[1:] else None

    @property
    def finished(self) -> list[tuple[Outcome, Outcome]]:
        """The pairs in which both runs converged."""
        return [pair for pair in self.pairs if {run.state for run in pair} == {"converged"}]

    @property
    def choices(self) -> list[Choice]:
        """The configurations that were tried, fastest first."""
        finished = {config: geometric_mean(seconds) for config, seconds in finished_runs(self.done).items()}
        runs: dict[Config, list[Outcome]] = {}
        for run in self.done:
            runs.setdefault(run.config, []).append(run)
        marks = {self.space.default: "default", self.winner: "winner"}
        tried = sorted(runs, key=lambda config: finished.get(config, float("inf")))
        unlike = {
            config: next((r.state for r in each if r.state != "converged"), "")
            for config, each in runs.items()
        }
        return [Choice(c, runs[c], finished.get(c), marks.get(c) or unlike[c]) for c in tried]


def sentences(result: Result, out: Path) -> list[str]:
    """Sentences about the result."""
    space, winner, surface = result.space, result.winner, result.surface
    spent = sum(run.seconds for run in result.done) / result.done[0].seconds
    said = [f"{count(len(result.done), 'run')} of the search took as long as {spent:.1f} of the default"]
    if winner == space.default:
        said.append(f"nothing is faster than the default: {winner}")
    elif ratio := result.ratio:
        middle, low, high = ratio
        verdict = (
            "faster" if high < 1 else "slower" if low > 1 else "no difference that these runs can resolve"
        )
        if high < 1 and any(ours.state != "converged" for ours, _ in result.pairs):
            verdict = "faster where it reached the target"
        pairs = f"95% interval {low:.3f} to {high:.3f}, {count(len(result.finished), 'pair')} of fresh seeds"
        said.append(f"{winner}: {middle:.3f} times the default's time to train ({pairs}): {verdict}")
    else:
        said.append(f"{winner}: too few pairs in which both runs reached the target to give a ratio")
    ours, theirs = (sum(pair[side].state != "converged" for pair in result.pairs) for side in (0, 1))
    if ours or theirs:
        said.append(f"of these pairs, the winner missed the target in {ours}, the default in {theirs}")
    if surface:
        excess = surface.excess(winner, space.candidates)
        said.append(f"on a response surface instead of runs, {excess:.1%} above its optimum")
    rules = f"closed: mlhpc rules {space.benchmark} --config {out / 'best.toml'}"
    division = rules if space.run.division == "closed" else f"open, as {space.preset} is"
    return [*said, f"preset: {out / 'best.toml'} ({division}); page: {out / 'tune.html'}"]


def configurations(result: Result) -> Table:
    """The table of the configurations that were tried."""
    columns: Columns[Choice] = {
        "batch": lambda choice: str(choice.config.batch),
        "ranks": lambda choice: str(choice.config.ranks),
        "rate": lambda choice: Cell(f"×{choice.config.rate:.3g}", value=choice.config.rate),
        "schedule": lambda choice: choice.config.schedule,
        "runs": lambda choice: str(len(choice.runs)),
        "time to train": lambda choice: number(choice.seconds, seconds_text),
        "epochs": lambda choice: number(choice.epochs, digits),
        "epoch": lambda choice: number(choice.epoch_s, seconds_text),
        "": lambda choice: choice.mark,
    }
    return table("tune", result.choices, columns, text_columns=4, prose=(8,))


def save(result: Result, out: Path, about: Mapping[str, Any]) -> None:
    """Write tune.json, tune.html and best.toml."""
    space, winner = result.space, result.winner
    settings = space.settings_of(winner)
    content = {
        "mlhpc": mlhpc.__version__,
        **about,
        "runs": [_record(outcome) for outcome in result.done],
        "winner": {**winner._asdict(), "set": settings},
        "pairs": [[_record(outcome) for outcome in pair] for pair in result.pairs],
        "ratio": result.ratio,
        "excess": result.surface and result.surface.excess(winner, space.candidates),
    }
    write_text(out / "tune.json", json.dumps(finite(content), indent=1) + "\n")
    words = ["mlhpc", "campaign", space.benchmark, "--preset", space.preset, "--ranks", str(winner.ranks)]
    words += set_words([*space.settings, *settings])
    first = f"# Found by mlhpc tune; for a score: {printable(shlex.join(words))}"
    write_text(out / "best.toml", f"{first}\n{load.dumps(space.run_of(winner))}")
    write_text(out / "tune.html", page(result, out))


def _record(outcome: Outcome) -> dict[str, Any]:
    values = outcome._asdict()
    return {**values.pop("config")._asdict(), **values}


def page(result: Result, out: Path) -> str:
    """The HTML of the page."""
    first, *more = sentences(result, out)
    about = """For each batch size the choice with the shortest mean, with the range of its runs. Other choices of
        which every run reached the target are single marks."""
    return render(
        eyebrow="mlhpc tune",
        heading=registry.title(result.space.benchmark),
        subtitle=f"preset {result.space.preset}",
        meta=first,
        blocks=[
            Section("Result", " ".join(f"{sentence[:1].upper()}{sentence[1:]}." for sentence in more)),
            Section("Time and epochs over the batch size", about, (Grid(figures(result)),)),
            Section("Choices", "Geometric means of the runs of the search.", (configurations(result),)),
        ],
        foot="After Fig. 3 of Farrell et al. 2021.",
    )


def figures(result: Result) -> list[Figure]:
    """Charts of time to train and of epochs to target over batch size."""
    finished = [choice for choice in result.choices if choice.seconds]
    fastest = list({choice.config.batch: choice for choice in reversed(finished)}.values())
    fastest.sort(key=lambda choice: choice.config.batch)
    drawn = []
    for title, key in (("Time to train, s", "seconds"), ("Epochs to the target", "epochs")):
        marks = []
        for choice in (*fastest, *(each for each in finished if each not in fastest)):
            values, best = [getattr(run, key) for run in choice.runs if run.epochs], choice in fastest
            name = "fastest at its batch size" if best else "other choices"
            low, high = (min(values), max(values)) if best else (None, None)
            mean, what = geometric_mean(values), str(choice.config)
            marks.append(Mark(name, choice.config.batch, what, mean, low, high, best))
        target = result.space.run.target.value
        if key == "epochs" and any(point.target.value == target for point in result.space.points.values()):
            points = convergence_points(result.space.benchmark)
            marks += [Mark("reference", p.size, f"batch {p.size:.0f}", *p.value) for p in points]
        drawn.append(curves(marks, "global batch size, samples", title, title.partition(",")[0]))
    return drawn
