"""A prediction as one self-contained HTML page: its terms, the machine's figures, and charts of the time to train
and its parts by number of nodes, of strong and weak scaling (Ibrahim et al. 2021, figures 8 and 9), and of the
cost of moving data by batch size (figure 4). The charts include published sets and the papers' points."""

from collections.abc import Sequence
from typing import Literal

from mlhpc.benchmarks import registry
from mlhpc.benchmarks.schema import Run
from mlhpc.common.pages.blocks import Banner, Cell, Grid, Section, Table, number, table
from mlhpc.common.pages.charts import Figure
from mlhpc.common.pages.html import render
from mlhpc.common.pages.plots import Bar, Mark, Measure, curves, stacked_bars
from mlhpc.perf.accelerator.ibrahim2021 import STRONG_SCALING
from mlhpc.perf.calibration import calibration
from mlhpc.perf.machines import Machine, written
from mlhpc.perf.prediction.accelerator import accelerator
from mlhpc.perf.prediction.model import Model, with_batch
from mlhpc.perf.prediction.result import Prediction, terms_table
from mlhpc.perf.published import SOURCE, Published, published
from mlhpc.quantities import count, digits, four_digits, seconds_text

_BARS = 12
_PARTS = {"staging": "Staging", "data_wait": "Data wait", "step": "Training steps", "evaluation": "Evaluation",
          "rest": "Rest"}  # fmt: skip


def page(model: Model, nodes: int | None = None) -> str:
    """The whole HTML text. The prediction shown in detail is for ``nodes``; None: the one with the shortest time
    to train."""
    machine, run, predictions = model.machine, model.run, list(model.over_nodes())
    whole = [p for p in predictions if p.parts == 1] or predictions
    chosen = min(whole, key=_seconds) if whole and nodes is None else model.at(nodes or 1)
    sections = [
        _terms(chosen),
        time_to_train(predictions),
        scaling(model, chosen),
        *accelerator(model, chosen.tier),
        _figures(machine),
    ]
    total = chosen.total_s
    rate, low, high = chosen.samples_per_s
    also = f"samples/s per accelerator; {digits(low)} to {digits(high)}"
    hero = [("Training throughput", digits(rate), also)]
    if total and chosen.epochs:
        also = f"{seconds_text(total[1])} to {seconds_text(total[2])}"
        hero.insert(0, ("Time to train", seconds_text(total[0]), also))
        _, low, high = chosen.epochs.ends
        hero.append(("Epochs", f"{chosen.epochs.value:.1f}", f"{low:.1f} to {high:.1f}"))
    banners = [Banner(f"{chosen.binding}.", "Predicted, not measured:"), *(Banner(n) for n in chosen.notes)]
    return render(
        title=chosen.title,
        blocks=[section for section in sections if section],
        foot=f"Efficiencies and times from {SOURCE}. Of rounds that were left out of the fit, nine of ten sets "
        f"are within a factor of {calibration().of_a_round:.2f} of the predicted step; of accelerators that were "
        f"left out, within {calibration().of_an_accelerator:.2f}. The machine's figures and their sources are "
        "listed below.",
        eyebrow="mlhpc performance model",
        heading=registry.title(run.benchmark),
        subtitle=f"preset {run.preset}, predicted for {machine.title}",
        meta=chosen.configuration,
        banners=banners,
        hero=hero,
    )


def _seconds(p: Prediction) -> float:
    return p.total_s[0] if p.total_s else p.step_s.value


def _terms(p: Prediction) -> Section:
    facts = "; ".join(f"{key}: {value}" for key, value in p.facts.items() if not key.startswith("note"))
    return Section(count(p.nodes, "node"), f"{facts}.", (terms_table(p),))


def _figures(machine: Machine) -> Section:
    figures = table(
        "machine",
        machine.figures.items(),
        {
            "figure": lambda row: row[0],
            "value": lambda row: Cell(written(*row), value=row[1]),
            "source": lambda row: machine.sources[row[0]],
        },
        prose=(2,),
    )
    return Section("The machine's figures", f"{machine.title}, file {machine.where}.", (figures,))


def time_to_train(predictions: Sequence[Prediction]) -> Section | None:
    """A chart of the time to train by number of nodes, with its parts, its interval, and published sets on the
    same accelerator family."""
    timed = [p for p in predictions if p.total_s and p.epochs]
    if not timed:
        return None
    bars = [_bar(p) for p in timed[-_BARS:]]
    chart = stacked_bars(
        bars,
        "Predicted time to train",
        parts={key: name for key, name in _PARTS.items() if any(bar.sizes[key] for bar in bars)},
        measure=Measure("minutes", seconds_text, 60.0),
        title="Time to train by part",
    )
    sets = [(row, _beside(row, timed)) for row in _like(timed[0]) if row.total_s]
    figure = _against_published(timed)
    if not sets:
        return Section("Time to train against nodes", "", (chart, figure))
    return Section("Time to train against nodes", _said_of(sets), (chart, figure, _published_table(sets)))


def _bar(p: Prediction) -> Bar:
    assert p.epochs is not None and p.total_s is not None
    waits = p.step.wait / p.step.seconds
    trained = p.train_s[0] * p.epochs.value
    seconds = {"staging": p.staging_s[0], "data_wait": trained * waits, "step": trained * (1 - waits),
               "evaluation": p.eval_s[0] * p.epochs.value, "rest": p.extra_s[0]}  # fmt: skip
    each = f"1/{p.parts}" if p.parts > 1 else str(p.local_batch_size)
    configured = f"{count(p.nodes, 'node')}, {count(p.accelerators, 'accelerator')}, local batch {each}"
    return Bar(f"{configured}, {seconds_text(p.total_s[0])}", seconds)


def _against_published(timed: Sequence[Prediction]) -> Figure:
    rows = [
        Mark("predicted", p.accelerators, p.configuration, p.total_s[0] / 60, p.total_s[1] / 60, p.total_s[2] / 60)
        for p in timed if p.total_s
    ]  # fmt: skip
    rows += [
        Mark("published", r.accelerators, f"{r.name}, batch {r.batch}", r.total_s / 60, join=False)
        for r in _like(timed[0]) if r.total_s
    ]  # fmt: skip
    title = "Time to train, with published sets of this accelerator family at any batch"
    return curves(rows, "accelerators", "time to train, minutes", title)


def _beside(row: Published, timed: Sequence[Prediction]) -> Prediction | None:
    """The prediction for the same number of accelerators as the set's; None if there is none."""
    return next((p for p in timed if p.accelerators == row.accelerators), None)


def _where(row: Published, p: Prediction | None) -> str:
    """Return whether a set's time is inside, above or below the predicted interval at its number of
    accelerators."""
    if p is None or p.total_s is None or row.total_s is None:
        return "not predicted at this size"
    _, low, high = p.total_s
    return "below it" if row.total_s < low else "above it" if row.total_s > high else "inside"


def _said_of(sets: Sequence[tuple[Published, Prediction | None]]) -> str:
    """Sentences that state how many sets are inside the intervals, and explain why others may be outside."""
    places = [_where(row, p) for row, p in sets]
    compared = sum(p is not None for _, p in sets)
    text = f"Published for this accelerator family, at any batch: {count(len(sets), 'set')}, named below"
    if not compared:
        return f"{text}; no prediction has the same number of accelerators."
    outside = " and ".join(f"{places.count(f'{side} it')} {side}" for side in ("above", "below"))
    return (
        f"{text}. Of {compared} with a predicted number of accelerators, {places.count('inside')} are "
        f"inside the interval, {outside}. Sets of another batch or machine need not be inside."
    )


def _published_table(sets: Sequence[tuple[Published, Prediction | None]]) -> Table:
    """A table of the published sets, by name."""

    def batch(row: tuple[Published, Prediction | None]) -> str:
        of_set, p = row
        other = p is not None and p.batch != of_set.batch
        return f"{of_set.batch}{f', predicted {p.batch}' if p and other else ''}"

    return table(
        "published",
        sets,
        {
            "published set": lambda row: row[0].name,
            "accelerators": lambda row: str(row[0].accelerators),
            "batch": batch,
            "time to train": lambda row: number(row[0].total_s, seconds_text),
            "predicted interval": lambda row: _where(*row),
        },
        prose=(4,),
    )


def _like(p: Prediction) -> list[Published]:
    """Published sets of the prediction's benchmark and network on its accelerator family."""
    old = p.run.preset == "v07"
    sets = [r for r in published() if r.benchmark == p.run.benchmark and (r.preset == "v07") == old]
    return [r for r in sets if r.machine.family == p.machine.family]


def _staged_as(run: Run, mode: Literal["replicate", "shard"]) -> Run:
    staging = run.staging.model_copy(update={"mode": mode, "exchange": False})
    return run.model_copy(update={"staging": staging})


def scaling(model: Model, chosen: Prediction) -> Section:
    """Strong scaling for each way of staging, weak scaling, and the paper's scaling if the machine is the
    paper's."""
    machine, run = model.machine, model.run
    strong = [
        Mark(series, p.nodes, f"{count(p.nodes, 'node')}, data in {p.tier.name}", 1e3 / p.samples_per_s[0])
        for series, one, staged in (
            ("staged, replicated", _staged_as(run, "replicate"), True),
            ("staged in shards", _staged_as(run, "shard"), True),
            ("not staged", run, False),
        )
        for p in Model(machine, one, staged=staged).over_nodes()
        if not staged or p.moved or machine.holds_data
    ]
    figures = []
    if strong:
        title = "Strong scaling: accelerator time per sample"
        figures.append(curves(strong, "nodes", "accelerator time per sample, ms", title))
    counts = [2**n for n in range(18) if machine.nodes is None or 2**n <= machine.nodes]
    rows = [
        Mark("predicted", p.accelerators, p.configuration, *p.samples_per_s)
        for p in model.weak(chosen.local_batch_size, counts)
    ]
    rows += [
        Mark(
            "published",
            r.accelerators,
            f"{r.name}, local batch {four_digits(r.local_batch_size)}",
            r.samples_per_s,
            join=False,
        )
        for r in _like(chosen)
    ]
    title = f"Weak scaling, local batch {chosen.local_batch_size}; published sets at any local batch"
    figures.append(curves(rows, "accelerators", "samples/s per accelerator", title))
    figures += [] if (paper := _paper_scaling(machine, run)) is None else [paper]
    about = (
        "Staged in shards, a node reads only its own samples, so scaling is superlinear if they fit in "
        "memory. Replicated or not staged, it may read any sample, so memory suffices only if the whole "
        "data set fits. Staged data is shown if it fits on the nodes."
    )
    return Section("Scaling", about, (Grid(tuple(figures)),))


def _paper_scaling(machine: Machine, run: Run) -> Figure | None:
    """Figures 8 and 9 of Ibrahim et al. 2021, predicted for the paper's machine and number of training samples
    with local batch size 1, without evaluation. The paper's points are ratios, drawn relative to the prediction
    for staged data."""
    paper = STRONG_SCALING.get(run.benchmark)
    if paper is None or machine.name != "cori-gpu":
        return None
    plain = {"gzip": False} if hasattr(run.data, "gzip") else {}
    data = run.data.model_copy(update={"train_samples": paper.samples, "eval_samples": 0, **plain})
    rows = []
    for nodes in (1, 2, 4, 8):
        small = _staged_as(run.model_copy(update={"data": data}), "shard")
        small = with_batch(small, machine.per_node * nodes * run.backward_passes)
        for series, staged in (("staged", True), ("not staged", False)):
            p = Model(machine, small, staged=staged, scope="node").at(nodes)  # shares are fixed
            ms = 1e3 / p.samples_per_s[0]
            rows.append(Mark(series, nodes, f"{count(nodes, 'node')}, data in {p.tier.name}", ms))
            if not staged:
                first = ms * (1 + p.staging_s[0] / p.train_s[0])
                what = f"{count(nodes, 'node')}, cold memory"
                rows.append(Mark("not staged, first epoch", nodes, what, first))
            if staged and (ratio := paper.unstaged.get(nodes)):
                what = f"{count(nodes, 'node')}, {ratio:g} times as long as staged"
                rows.append(Mark("Ibrahim et al. 2021: not staged", nodes, what, ratio * ms, join=False))
    title = f"Strong scaling of {paper.samples} samples, as in Ibrahim et al. 2021, figures 8 and 9"
    return curves(rows, "nodes", "accelerator time per sample, ms", title)
