"""The result of a search: tune.json, the page, and the preset."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlhpc
from mlhpc.benchmarks import load, registry
from mlhpc.common.files import atomic
from mlhpc.common.files.untrusted import finite
from mlhpc.common.pages.blocks import Cell, Grid, Section, Table, number, table
from mlhpc.history.gate import paired_ratio
from mlhpc.perf.epochs import convergence_points
from mlhpc.quantities import count, digits, seconds_text
from mlhpc.record.fields import write_text
from mlhpc.tune.model import Outcome, finished_runs, geometric_mean
from mlhpc.tune.space import Config, Space
from mlhpc.tune.surface import Surface

if TYPE_CHECKING:
    from mlhpc.common.pages.charts import Figure


@dataclass(frozen=True)
class Result:
    """``done``: the runs of the search. ``pairs``: the winner's and the default's with the same seeds."""

    space: Space
    done: tuple[Outcome, ...]
    winner: Config
    pairs: tuple[tuple[Outcome, Outcome], ...]
    surface: Surface | None

    @property
    def ratio(self) -> tuple[float, float, float] | None:
        """Time to train of the winner over that of the default, by pairs that both converged, and the ends of its
        95% interval; None with fewer than two such pairs."""
        both = [pair for pair in self.pairs if all(each.state == "converged" for each in pair)]
        return (
            paired_ratio(*([each.seconds for each in side] for side in zip(*both, strict=True)))
            if both[1:]
            else None
        )

    @property
    def spent(self) -> float:
        """Seconds of the search in runs of the default."""
        return sum(outcome.seconds for outcome in self.done) / self.done[0].seconds


def sentences(result: Result, out: Path) -> list[str]:
    """The result in words."""
    space, winner = result.space, result.winner
    said = [
        f"{count(len(result.done), 'run')} of the search took as long as {result.spent:.1f} of the default"
    ]
    if winner == space.default:
        said.append(f"nothing is faster than the default: {winner}")
    elif ratio := result.ratio:
        middle, low, high = ratio
        verdict = "faster" if high < 1 else "slower" if low > 1 else "no difference that these runs can show"
        said.append(f"{winner}: {middle:.3f} times the default's time to train (95% interval {low:.3f} to "
                    f"{high:.3f}, {count(len(result.pairs), 'pair')} of fresh seeds): {verdict}")  # fmt: skip
    else:
        said.append(f"{winner}: too few pairs of runs that both reached the target for a ratio")
    missed = [sum(pair[side].state != "converged" for pair in result.pairs) for side in (0, 1)]
    if any(missed):
        said.append(
            f"of these pairs, the winner did not reach the target in {missed[0]}, the default in {missed[1]}"
        )
    if result.surface:
        said.append(f"{result.surface.excess(winner, space.candidates):.1%} above the optimum of the surface")
    preset = out / "best.toml"
    closed = space.run.division == "closed"
    rules = (
        f"closed: mlhpc rules {space.benchmark} --config {preset}"
        if closed
        else f"open, as {space.preset} is"
    )
    return [*said, f"preset: {preset} ({rules}); page: {out / 'tune.html'}"]


def configurations(result: Result) -> Table:
    """What was tried, the fastest first."""
    runs = finished_runs(result.done)
    tried = list(dict.fromkeys(outcome.config for outcome in result.done))
    tried.sort(key=lambda config: geometric_mean(runs[config]) if config in runs else float("inf"))
    by = {config: [outcome for outcome in result.done if outcome.config == config] for config in tried}
    marks = {result.space.default: "default", result.winner: "winner"}
    return table(
        "tune",
        tried,
        {
            "batch": lambda config: Cell(str(config.batch), value=config.batch),
            "ranks": lambda config: Cell(str(config.ranks), value=config.ranks),
            "rate": lambda config: Cell(f"×{config.rate:.3g}", value=config.rate),
            "schedule": lambda config: config.schedule,
            "runs": lambda config: str(len(by[config])),
            "time to train": lambda config: number(
                geometric_mean(runs[config]) if config in runs else None, seconds_text
            ),
            "epochs": lambda config: number(_mean(by[config], "epochs") if config in runs else None, digits),
            "epoch": lambda config: number(_mean(by[config], "epoch_s"), seconds_text),
            "": lambda config: marks.get(config, "") if config in runs else by[config][-1].state,
        },
        text_columns=4,
        prose=(8,),
    )


def _mean(outcomes: list[Outcome], key: str) -> float:
    return sum(getattr(outcome, key) for outcome in outcomes) / len(outcomes)


def save(result: Result, out: Path, about: Mapping[str, Any]) -> None:
    """Write tune.json, tune.html and best.toml."""
    space, winner = result.space, result.winner
    content = {
        "mlhpc": mlhpc.__version__,
        **about,
        "runs": [_record(outcome) for outcome in result.done],
        "spent": result.spent,
        "winner": {**winner._asdict(), "set": space.settings_of(winner)},
        "pairs": [[_record(outcome) for outcome in pair] for pair in result.pairs],
        "ratio": result.ratio,
        "excess": result.surface and result.surface.excess(winner, space.candidates),
    }
    write_text(out / "tune.json", json.dumps(finite(content), indent=1) + "\n")
    words = " ".join(f"--set '{each}'" for each in (*space.settings, *space.settings_of(winner)))
    campaign = f"mlhpc campaign {space.benchmark} --preset {space.preset} {words} --ranks {winner.ranks}"
    text = f"# Found by mlhpc tune; for a score: {campaign}\n{load.dumps(space.run_of(winner))}"
    write_text(out / "best.toml", text)
    atomic.write_bytes(out / "tune.html", page(result, out).encode())


def _record(outcome: Outcome) -> dict[str, Any]:
    values = outcome._asdict()
    return {**values.pop("config")._asdict(), **values}


def page(result: Result, out: Path) -> str:
    """The whole HTML text."""
    from mlhpc.common.pages.html import render  # importing Altair takes most of a second

    first, *more = sentences(result, out)
    about = (
        "For each batch size the choice with the shortest mean, with the range of its runs. Other choices of "
    )
    about += "which every run reached the target are single marks."
    return render(
        eyebrow="mlhpc tune",
        heading=registry.title(result.space.benchmark),
        subtitle=f"preset {result.space.preset}",
        meta=first,
        blocks=[
            Section("Result", " ".join(f"{sentence}." for sentence in more)),
            Section("Time and epochs over the batch size", about, (Grid(figures(result)),)),
            Section("Choices", "Geometric means of the runs of the search.", (configurations(result),)),
        ],
        foot="After Fig. 3 of Farrell et al. 2021.",
    )


def figures(result: Result) -> list["Figure"]:
    """Time to train, and epochs to the target, over the batch size."""
    from mlhpc.common.pages.plots import Mark, curves

    runs = finished_runs(result.done)
    fastest: dict[int, Config] = {}
    for config in sorted(runs, key=lambda config: geometric_mean(runs[config])):
        fastest.setdefault(config.batch, config)
    shown = sorted(runs, key=lambda config: (config != fastest[config.batch], config.batch))
    drawn = []
    for title, key in (("time to train, s", "seconds"), ("epochs to the target", "epochs")):
        marks = []
        for config in shown:
            values = [getattr(each, key) for each in result.done if each.config == config and each.epochs]
            best = config == fastest[config.batch]
            ends = (min(values), max(values)) if best else (None, None)
            name = "fastest at its batch size" if best else "other choices"
            marks.append(Mark(name, config.batch, str(config), geometric_mean(values), *ends, join=best))
        if key == "epochs" and result.space.points:
            points = convergence_points(result.space.benchmark)
            marks += [Mark("reference", p.size, f"batch {p.size:.0f}", *p.value) for p in points]
        drawn.append(curves(marks, "global batch size, samples", title, title.partition(",")[0].capitalize()))
    return drawn
