"""A prediction as one self-contained HTML page: its terms, the machine's figures, and charts: time to train by
nodes with its parts, strong and weak scaling (Ibrahim et al. 2021, figures 8 and 9), and cost against batch
(figure 4), with published sets and the papers' points."""

from collections.abc import Sequence
from typing import Any, Literal

from mlhpc.benchmarks import registry
from mlhpc.benchmarks.schema import Run
from mlhpc.common.pages import plots
from mlhpc.common.pages.blocks import Banner, Cell, Grid, Section, Table, number, table
from mlhpc.common.pages.charts import Figure
from mlhpc.common.pages.html import render
from mlhpc.common.pages.plots import Bar, Measure, stacked_bars
from mlhpc.errors import few
from mlhpc.perf.accelerator.ibrahim2021 import STRONG_SCALING, TABLE_II
from mlhpc.perf.accelerator.memory import Memory, memory_of, power_of_two, update_of
from mlhpc.perf.accelerator.pictures import memory_section, roofline_section
from mlhpc.perf.accelerator.roofline import Ceilings, points
from mlhpc.perf.calibration import calibration
from mlhpc.perf.machines import Machine, written
from mlhpc.perf.movement import GIB, MIB, costs, required_bandwidth
from mlhpc.perf.networks.layer import Network
from mlhpc.perf.networks.registry import network_of
from mlhpc.perf.prediction.model import Model, weak, with_batch
from mlhpc.perf.prediction.result import Prediction
from mlhpc.perf.prediction.tables import configuration, facts_of, heading, terms_table
from mlhpc.perf.published import SOURCE, Published, machine_of, published
from mlhpc.perf.tiers import Tier, lies_there
from mlhpc.quantities import bytes_text, count, digits, four_digits, seconds_text, si_text

BATCHES = tuple(2**n for n in range(9))
_BARS = 12
_PAPER_UNSTAGED = "Ibrahim et al. 2021: not staged"
_LOOSE = ("published", _PAPER_UNSTAGED)
"""Series whose points are not joined."""
_PARTS = {"staging": "Staging", "data_wait": "Data wait", "step": "Training steps", "evaluation": "Evaluation",
          "rest": "Rest"}  # fmt: skip


def page(model: Model, nodes: int | None = None) -> str:
    """The whole HTML text; ``nodes`` None: the detailed prediction is that of the shortest time to train."""
    machine, run, predictions = model.machine, model.run, list(model.over_nodes())
    whole = [p for p in predictions if p.parts == 1] or predictions
    chosen = min(whole, key=_seconds) if whole and nodes is None else model.at(nodes or 1)
    sections = [
        _terms(chosen),
        time_to_train(predictions),
        scaling(model, chosen),
        cost(model, chosen.tier),
        *accelerator(model),
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
        title=heading(machine, run),
        blocks=[section for section in sections if section],
        foot=f"Efficiencies and times from {SOURCE}. Of rounds that were left out of the fit, nine of ten sets "
        f"are within a factor of {calibration().of_a_round:.2f} of the predicted step; of accelerators that were "
        f"left out, within {calibration().of_an_accelerator:.2f}. The machine's figures and their sources are "
        "listed below.",
        eyebrow="mlhpc performance model",
        heading=registry.title(run.benchmark),
        subtitle=f"preset {run.preset}, predicted for {machine.title}",
        meta=configuration(chosen),
        banners=banners,
        hero=hero,
    )


def _seconds(p: Prediction) -> float:
    return p.total_s[0] if p.total_s else p.step_s.value


def _terms(p: Prediction) -> Section:
    facts = "; ".join(f"{key}: {value}" for key, value in facts_of(p).items() if not key.startswith("note"))
    return Section(count(p.nodes, "node"), f"{facts}.", (terms_table(p),))


def accelerator(model: Model) -> list[Section]:
    """Its roofline, and its memory by batch size."""
    machine, run, network, largest = model.machine, model.run, model.network, model.fits.largest(1)
    precision = run.training.precision
    peak, _ = machine.peak(precision)
    figures = machine.figures
    ceilings = Ceilings(str(machine.facts["accelerator.model"]), peak, figures["accelerator.float32"],
                        figures["accelerator.bandwidth"])  # fmt: skip
    paper = TABLE_II.get(run.benchmark)
    capacity = figures["accelerator.memory"]
    by_batch: list[Memory] = []
    for batch in BATCHES:
        by_batch.append(memory_of(run, batch, gpu=not machine.is_cpu))
        if by_batch[-1].peak > 2 * capacity:
            break
    fits = power_of_two(largest) if largest else 0
    limit = (f"{ceilings.name}, {bytes_text(capacity)}", capacity)
    optimizer = str(getattr(run.hyperparameters, "opt_name", "none")).lower()
    return [
        roofline_section(
            "Roofline", points(network, ceilings, precision), ceilings, paper, _update(network, optimizer)
        ),
        memory_section("Memory", by_batch, [limit], paper, fits),
    ]


def _update(network: Network, optimizer: str) -> str:
    update = update_of(network, optimizer)
    least = f"{si_text(update.operations, 'FLOP')} and {bytes_text(update.bytes)} at least"
    return f" The update of all weights ({optimizer}) is added once per step: {least}."


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
    """Time to train by nodes with its parts, its interval, and published sets of the family."""
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
        _point("predicted", p.accelerators, configuration(p), *(end / 60 for end in p.total_s))
        for p in timed if p.total_s
    ]  # fmt: skip
    rows += [
        _point("published", r.accelerators, f"{r.name}, batch {r.batch}", r.total_s / 60)
        for r in _like(timed[0]) if r.total_s
    ]  # fmt: skip
    title = "Time to train, with published sets of this accelerator family at any batch"
    return _curves(rows, "accelerators", "time to train, minutes", title)


def _beside(row: Published, timed: Sequence[Prediction]) -> Prediction | None:
    """The prediction for as many accelerators as the set had."""
    return next((p for p in timed if p.accelerators == row.accelerators), None)


def _where(row: Published, p: Prediction | None) -> str:
    """The time of a set relative to the predicted interval at its number of accelerators."""
    if p is None or p.total_s is None or row.total_s is None:
        return "not predicted at this size"
    _, low, high = p.total_s
    return "below it" if row.total_s < low else "above it" if row.total_s > high else "inside"


def _said_of(sets: Sequence[tuple[Published, Prediction | None]]) -> str:
    """How many sets the intervals contain, and why others may be outside."""
    places = [_where(row, p) for row, p in sets]
    compared = sum(p is not None for _, p in sets)
    text = f"Published sets of this accelerator family: {count(len(sets), 'set')} at any batch, named below"
    if not compared:
        return f"{text}; none has a number of accelerators that is predicted."
    outside = " and ".join(f"{places.count(f'{side} it')} {side}" for side in ("above", "below"))
    return (
        f"{text}. Of {compared} with a number of accelerators that is predicted, {places.count('inside')} are "
        f"inside the interval, {outside}. Those of another batch or machine need not be inside."
    )


def _published_table(sets: Sequence[tuple[Published, Prediction | None]]) -> Table:
    """The sets by name."""

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


def _point(
    series: str, x: float, what: str, y: float, low: float | None = None, high: float | None = None
) -> dict[str, Any]:
    return {"series": series, "x": x, "y": y, "y_low": low, "y_high": high, "what": what}


def _like(p: Prediction) -> list[Published]:
    """Published sets of this benchmark on this accelerator family, with its network."""
    old = p.run.preset == "v07"
    sets = [r for r in published() if r.benchmark == p.run.benchmark and (r.preset == "v07") == old]
    return [r for r in sets if machine_of(r).family == p.machine.family]


def _staged_as(run: Run, mode: Literal["replicate", "shard"]) -> Run:
    staging = run.staging.model_copy(update={"mode": mode, "exchange": False})
    return run.model_copy(update={"staging": staging})


def scaling(model: Model, chosen: Prediction) -> Section:
    """Strong scaling by the ways of staging, weak scaling, and the paper's where the machine is its."""
    machine, run = model.machine, model.run
    strong = [
        _point(series, p.nodes, f"{count(p.nodes, 'node')}, data in {p.tier.name}", 1e3 / p.samples_per_s[0])
        for series, one, staged in (
            ("staged, replicated", _staged_as(run, "replicate"), True),
            ("staged in shards", _staged_as(run, "shard"), True),
            ("not staged", run, False),
        )
        for p in Model(machine, one, staged=staged).over_nodes()
        if not staged or p.moved or lies_there(machine)
    ]
    figures = []
    if strong:
        title = "Strong scaling: accelerator time per sample"
        figures.append(_curves(strong, "nodes", "accelerator time per sample, ms", title))
    counts = [2**n for n in range(18) if machine.nodes is None or 2**n <= machine.nodes]
    rows = [
        _point("predicted", p.accelerators, configuration(p), *p.samples_per_s)
        for p in weak(machine, run, chosen.local_batch_size, counts)
    ]
    rows += [
        _point(
            "published",
            r.accelerators,
            f"{r.name}, local batch {four_digits(r.local_batch_size)}",
            r.samples_per_s,
        )
        for r in _like(chosen)
    ]
    title = f"Weak scaling, local batch {chosen.local_batch_size}; published sets at any local batch"
    figures.append(_curves(rows, "accelerators", "samples/s per accelerator", title))
    figures += [] if (paper := _paper_scaling(machine, run)) is None else [paper]
    about = (
        "Staged in shards, a node reads only its own samples: scaling is superlinear if they fit in "
        "memory. Replicated or not staged, it reads any sample, and memory is sufficient only if the whole "
        "data set fits. Staged data is shown if it fits on the nodes."
    )
    return Section("Scaling", about, (Grid(tuple(figures)),))


def _paper_scaling(machine: Machine, run: Run) -> Figure | None:
    """Figures 8 and 9 on the machine of Ibrahim et al. 2021: its number of training samples, local batch size
    1, without evaluation. Its points are ratios, drawn relative to the prediction for staged data."""
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
            p = Model(machine, small, staged=staged, scope="node").at(nodes)  # its nodes have fixed shares
            ms = 1e3 / p.samples_per_s[0]
            rows.append(_point(series, nodes, f"{count(nodes, 'node')}, data in {p.tier.name}", ms))
            if not staged:
                first = ms * (1 + p.staging_s[0] / p.train_s[0])
                what = f"{count(nodes, 'node')}, cold memory"
                rows.append(_point("not staged, first epoch", nodes, what, first))
            if staged and (ratio := paper.unstaged.get(nodes)):
                what = f"{count(nodes, 'node')}, {ratio:g} times as long as staged"
                rows.append(_point(_PAPER_UNSTAGED, nodes, what, ratio * ms))
    title = f"Strong scaling of {paper.samples} samples, as in Ibrahim et al. 2021, figures 8 and 9"
    return _curves(rows, "nodes", "accelerator time per sample, ms", title)


def cost(model: Model, tier: Tier) -> Section | None:
    """Figure 4, of a data set in ``tier``; the points of Ibrahim et al. 2021 where the machine is theirs."""
    machine, run, network, sample = model.machine, model.run, model.network, model.bytes
    moved = network.traffic(run.training.precision)
    sizes: Any = {"moved": moved, "sample": sample, "gradients": 4 * network.parameters}
    rows: list[dict[str, Any]] = []
    binding: dict[str, int] = {}
    for batch in BATCHES:
        step_costs = costs(machine, tier, **sizes, local_batch_size=batch)
        binding.setdefault(step_costs.binding, batch)
        named = {
            "model and activations": step_costs.activations,
            "all-reduce": step_costs.all_reduce,
            "sample over the host's link": step_costs.sample[0],
            f"sample from {tier.name}": step_costs.sample[1],
        }
        rows += [_cost_row(batch, name, value) for name, value in named.items() if value]
    bottlenecks = "; ".join(f"{name} from a batch of {batch} on" for name, batch in binding.items())
    about = (
        "Bytes of a sample times the gap of the link that limits them, relative to the accelerator's memory: a "
        f"lower bound of the time. The highest is the bottleneck: {bottlenecks}. "
    ) + _required(machine, run, sample.received, moved)
    if (paper := TABLE_II.get(run.benchmark)) and machine.name == "cori-gpu":
        rows += [_cost_row(b, "Ibrahim et al. 2021: activations", paper.hbm_limit_gib * GIB) for b in BATCHES]
        nvme = paper.sample_mib * MIB * 2250
        rows += [_cost_row(b, "Ibrahim et al. 2021: sample from NVMe", nvme) for b in BATCHES]
        about += " Ibrahim et al. 2021: their activations written and read once, and their 16-bit samples."
    if not rows:
        return None
    y_title = "cost per sample, GB of accelerator memory"
    chart = _curves(rows, "local batch, samples", y_title, "Cost of data movement")
    return Section("Cost against batch", about, (chart,))


def _required(machine: Machine, run: Run, received: float, moved: float) -> str:
    """The demand of an accelerator at its peak (Ibrahim et al. 2021, section VII)."""
    peak, _ = machine.peak(run.training.precision)
    flops = network_of(run).training_flops
    needs = (required_bandwidth(flops, size, peak) for size in (received, moved))
    samples, memory = (bytes_text(need, "/s") for need in needs)
    return f"At its peak an accelerator would handle {samples} of samples and {memory} of memory traffic."


def _cost_row(batch: int, series: str, value: float) -> dict[str, Any]:
    return _point(series, batch, f"batch {batch}", value / 1e9)


def _curves(rows: Sequence[dict[str, Any]], x: str, y: str, title: str) -> Figure:
    ends = [row[key] for row in rows for key in ("y", "y_low", "y_high") if row[key]]
    x_axis = plots.log_axis([row["x"] for row in rows], x, base=2, room=1.2)
    drawn = [
        {**row, "says": f"{row['series']}, {row['what']}: {digits(row['y'])}",
         "join": n if row["series"] in _LOOSE else ""}
        for n, row in enumerate(rows)
    ]  # fmt: skip
    return plots.lines(
        plots.on_axes(drawn, x_axis, plots.log_axis(ends, y, room=1.3)),
        f"{title}. {few([row['says'] for row in drawn], 60, '; ')}",
        series=list(dict.fromkeys(row["series"] for row in rows)),
        title=title,
        height=260,
    )
