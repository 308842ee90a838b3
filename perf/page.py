"""A prediction as one self-contained HTML page.

Time to train against nodes with its parts, strong and weak scaling (paper 000, figures 8 and 9), cost against
batch (figure 4), roofline and memory, and the figures that all of it is made from.
"""

from collections.abc import Sequence
from typing import Any, Literal

from mlhpc.benchmarks import registry
from mlhpc.benchmarks.schema import Run
from mlhpc.common.pages import charts, plots
from mlhpc.common.pages.bars import Bar, stacked_bars
from mlhpc.common.pages.blocks import Banner, Cell, Grid, Section, Table
from mlhpc.common.pages.charts import Figure
from mlhpc.common.pages.html import render
from mlhpc.errors import count, few
from mlhpc.perf.accelerator.memory import Memory, memory_of, power_of_two
from mlhpc.perf.accelerator.paper000 import STRONG_SCALING, TABLE_II
from mlhpc.perf.accelerator.pictures import memory_section, roofline_section
from mlhpc.perf.accelerator.roofline import Ceilings, points
from mlhpc.perf.accelerator.update import update_of
from mlhpc.perf.calibration import calibration
from mlhpc.perf.machines import Machine
from mlhpc.perf.movement import GIB, MIB, costs, lies_there, required_bandwidth
from mlhpc.perf.networks.layer import Network
from mlhpc.perf.networks.registry import network_of
from mlhpc.perf.prediction import Model, Prediction, over_nodes, predict, weak, with_batch
from mlhpc.perf.published import SOURCE, Published, machine_of, published
from mlhpc.perf.samples import sample_bytes
from mlhpc.perf.tables import configuration, facts_of, heading, rate_text, seconds_text, terms_table
from mlhpc.perf.units import binary, written

_BARS = 12
_PAPER_UNSTAGED = "paper 000: not staged"
_BATCHES = tuple(2**n for n in range(9))
_PARTS = {"staging": "Staging", "data_wait": "Data wait", "step": "Training steps", "evaluation": "Evaluation",
          "rest": "Rest"}  # fmt: skip


def page(machine: Machine, run: Run, nodes: int | None = None) -> str:
    """The whole HTML text; ``nodes`` None: the detailed prediction is that of the shortest time to train."""
    found = list(over_nodes(machine, run))
    whole = [p for p in found if p.parts == 1] or found
    chosen = min(whole, key=_seconds) if whole and nodes is None else predict(machine, run, nodes or 1)
    sections = [
        _terms(chosen),
        _time(found),
        _scaling(machine, run, chosen),
        _cost(machine, run),
        *accelerator(machine, run, Model(machine, run).largest(1)),
        _figures(machine),
    ]
    total = chosen.total_s
    rate, low, high = chosen.samples_per_s
    also = f"samples/s per accelerator; {rate_text(low)} to {rate_text(high)}"
    hero = [("Training throughput", rate_text(rate), also, "")]
    if total and chosen.epochs:
        also = f"{seconds_text(total[1])} to {seconds_text(total[2])}"
        hero.insert(0, ("Time to train", seconds_text(total[0]), also, ""))
        _, low, high = chosen.epochs.ends
        hero.append(("Epochs", f"{chosen.epochs.value:.1f}", f"{low:.1f} to {high:.1f}", ""))
    banners = [Banner(f"{chosen.binding}.", "Predicted, not measured:"), *(Banner(n) for n in chosen.notes)]
    return render(
        title=heading(machine, run),
        blocks=[section for section in sections if section],
        foot=f"Efficiencies and times from {SOURCE}; nine of ten sets are within a factor of "
        f"{calibration().factor:.2f} of the predicted step. The machine's figures and their sources are "
        f"listed below.",
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


def _time(found: Sequence[Prediction]) -> Section | None:
    """Time to train against nodes with its parts; beside it the interval, and published sets of the family."""
    timed = [p for p in found if p.total_s and p.epochs]
    if not timed:
        return None
    bars = [_bar(p) for p in timed[-_BARS:]]
    chart = stacked_bars(
        bars,
        "Predicted time to train",
        parts={key: name for key, name in _PARTS.items() if any(bar.sizes[key] for bar in bars)},
        value_title="minutes",
        write=seconds_text,
        unit=60.0,
        title="Time to train by part",
    )
    return Section("Time to train against nodes", "", (chart, _against_published(timed)))


def _bar(p: Prediction) -> Bar:
    assert p.epochs is not None
    waits = p.step.wait / p.step.seconds
    trained = p.train_s[0] * p.epochs.value
    seconds = {"staging": p.staging_s[0], "data_wait": trained * waits, "step": trained * (1 - waits),
               "evaluation": p.eval_s[0] * p.epochs.value, "rest": p.extra_s[0]}  # fmt: skip
    each = f"1/{p.parts}" if p.parts > 1 else str(p.local_batch_size)
    configured = f"{count(p.nodes, 'node')}, {count(p.accelerators, 'accelerator')}, local batch {each}"
    return Bar(f"{configured}, {seconds_text(_seconds(p))}", seconds)


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


def _point(
    series: str, x: float, what: str, y: float, low: float | None = None, high: float | None = None
) -> dict[str, Any]:
    return {"series": series, "x": x, "y": y, "low": low, "high": high, "what": what}


def _like(p: Prediction) -> list[Published]:
    """Published sets of this benchmark on this accelerator family, with its network."""
    old = p.run.preset == "v07"
    sets = [r for r in published() if r.benchmark == p.run.benchmark and (r.preset == "v07") == old]
    return [r for r in sets if machine_of(r).family == p.machine.family]


def _staged_as(run: Run, mode: Literal["replicate", "shard"]) -> Run:
    staging = run.staging.model_copy(update={"mode": mode, "exchange": False})
    return run.model_copy(update={"staging": staging})


def _scaling(machine: Machine, run: Run, chosen: Prediction) -> Section:
    strong = [
        _point(series, p.nodes, f"{count(p.nodes, 'node')}, data in {p.tier.name}", 1e3 / p.samples_per_s[0])
        for series, one, staged in (
            ("staged, replicated", _staged_as(run, "replicate"), True),
            ("staged in shards", _staged_as(run, "shard"), True),
            ("not staged", run, False),
        )
        for p in over_nodes(machine, one, staged=staged)
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
        _point("published", r.accelerators, f"{r.name}, local batch {r.local_batch_size:g}", r.samples_per_s)
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
    """Figures 8 and 9 on the machine of paper 000: its number of samples to train on, one at a time on each
    accelerator, and none to evaluate. Its own points are ratios, drawn over what is predicted for staged data."""
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
    title = f"Strong scaling of {paper.samples} samples, as in paper 000, figures 8 and 9"
    return _curves(rows, "nodes", "accelerator time per sample, ms", title)


def _cost(machine: Machine, run: Run) -> Section | None:
    """Figure 4; paper 000's own points where the machine is its."""
    network = network_of(run)
    moved = network.traffic(run.training.precision)
    received = sample_bytes(run).received
    rows: list[dict[str, Any]] = []
    binding: dict[str, int] = {}
    for batch in _BATCHES:
        found = costs(
            machine, moved=moved, sample=received, gradients=4 * network.parameters, local_batch_size=batch
        )
        binding.setdefault(found.binding, batch)
        named = {
            "model and activations": found.activations,
            "all-reduce": found.all_reduce,
            "sample over the host's link": found.sample[0],
            "sample from local storage": found.sample[1],
        }
        rows += [_cost_row(batch, name, value) for name, value in named.items() if value]
    about = (
        "Bytes of a sample times the gap of the link that limits them, relative to the accelerator's "
        "memory: a "
        "lower bound of the time. The highest is the bottleneck: "
        + "; ".join(f"{name} from a batch of {batch} on" for name, batch in binding.items())
        + ". "
        + _required(machine, run, received, moved)
    )
    if (paper := TABLE_II.get(run.benchmark)) and machine.name == "cori-gpu":
        rows += [_cost_row(b, "paper 000: activations", paper.hbm_limit_gib * GIB) for b in _BATCHES]
        rows += [_cost_row(b, "paper 000: sample from NVMe", paper.sample_mib * MIB * 2250) for b in _BATCHES]
        about += " Paper 000's: its activations written and read once, and its 16-bit samples."
    if not rows:
        return None
    chart = _curves(
        rows, "local batch, samples", "cost per sample, GB of accelerator memory", "Cost of data movement"
    )
    return Section("Cost against batch", about, (chart,))


def _required(machine: Machine, run: Run, received: float, moved: float) -> str:
    """What an accelerator at its peak would take (paper 000, section VII)."""
    peak, _ = machine.peak(run.training.precision)
    flops = network_of(run).training_flops
    samples, memory = (
        written(required_bandwidth(flops, size, peak), "bytes/s") for size in (received, moved)
    )
    return f"At its peak an accelerator would handle {samples} of samples and {memory} of memory traffic."


def _cost_row(batch: int, series: str, value: float) -> dict[str, Any]:
    return _point(series, batch, f"batch {batch}", value / 1e9)


def accelerator(machine: Machine, run: Run, largest: int) -> list[Section]:
    """Its roofline, and its memory against batch; ``largest``: samples that fit at once."""
    network, precision = network_of(run), run.training.precision
    peak, _ = machine.peak(precision)
    figures = machine.figures
    ceilings = Ceilings(str(machine.facts["accelerator.model"]), peak, figures["accelerator.float32"],
                        figures["accelerator.bandwidth"])  # fmt: skip
    paper = TABLE_II.get(run.benchmark)
    capacity = figures["accelerator.memory"]
    by_batch: list[Memory] = []
    for batch in _BATCHES:
        by_batch.append(memory_of(run, batch))
        if by_batch[-1].peak > 2 * capacity:
            break
    fits = power_of_two(largest) if largest else 0
    limit = (f"{ceilings.name}, {binary(capacity)}", capacity)
    optimizer = str(getattr(run.hyperparameters, "opt_name", "none")).lower()
    return [
        roofline_section(
            "Roofline", points(network, ceilings, precision), ceilings, paper, _update(network, optimizer)
        ),
        memory_section("Memory", by_batch, [limit], paper, fits),
    ]


def _update(network: Network, optimizer: str) -> str:
    found = update_of(network, optimizer)
    return (
        f" The update of all weights ({optimizer}) is added once per step: {found.operations / 1e9:.3g} "
        f"GFLOP "
        f"and {written(found.bytes, 'bytes')} at least."
    )


def _curves(rows: Sequence[dict[str, Any]], x: str, y: str, title: str) -> Figure:
    names = list(dict.fromkeys(row["series"] for row in rows))
    ends = [row[key] for row in rows for key in ("y", "low", "high") if row[key]]
    says = few([f"{row['series']}, {row['what']}: {row['y']:.3g}" for row in rows], 60, "; ")
    shown = [{**row, "value": f"{row['y']:.3g}"} for row in rows]
    return plots.curves(
        shown,
        f"{title}. {says}",
        x_axis=charts.log_axis([row["x"] for row in rows], x, base=2, room=1.2),
        y_axis=charts.log_axis(ends, y, room=1.3),
        series=names,
        loose=["published", _PAPER_UNSTAGED],
        tooltip=[("series", "series"), ("what", "what"), ("value", y)],
        title=title,
    )


def _figures(machine: Machine) -> Section:
    dimensions = {"memory": "bytes", "local": "bytes", "shared": "bytes", "latency": "s"}
    peaks = ("float32", "tf32", "bfloat16", "float16")
    rows = []
    for key, value in machine.figures.items():
        last = key.partition(".")[2]
        dimension = "FLOP/s" if last in peaks else dimensions.get(last, "bytes/s")
        dimension = "a share" if key.startswith("efficiency.") else dimension
        shown = binary(value) if key == "accelerator.memory" else written(value, dimension)
        rows.append((Cell(key), Cell(shown, value=value), Cell(machine.sources[key])))
    table = Table("machine", ("figure", "value", "source"), tuple(rows), prose=(2,))
    return Section("The machine's figures", f"{machine.title}, file {machine.where}.", (table,))
