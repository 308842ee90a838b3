"""A prediction as one self-contained HTML page: its terms, the pictures, and the figures that all is made from."""

from mlhpc.benchmarks import registry
from mlhpc.benchmarks.schema import Run
from mlhpc.common.pages.blocks import Banner, Cell, Section, table
from mlhpc.common.pages.html import render
from mlhpc.perf.accelerator.ibrahim2021 import TABLE_II
from mlhpc.perf.accelerator.memory import Memory, memory_of, power_of_two, update_of
from mlhpc.perf.accelerator.pictures import memory_section, roofline_section
from mlhpc.perf.accelerator.roofline import Ceilings, points
from mlhpc.perf.calibration import calibration
from mlhpc.perf.machines import Machine, written
from mlhpc.perf.networks.layer import Network
from mlhpc.perf.networks.registry import network_of
from mlhpc.perf.prediction.model import Model, predict
from mlhpc.perf.prediction.pictures import BATCHES, cost, scaling, time_to_train
from mlhpc.perf.prediction.result import Prediction
from mlhpc.perf.prediction.sweep import over_nodes
from mlhpc.perf.prediction.tables import configuration, facts_of, heading, terms_table
from mlhpc.perf.published import SOURCE
from mlhpc.quantities import bytes_text, count, digits, seconds_text, si_text


def page(machine: Machine, run: Run, nodes: int | None = None) -> str:
    """The whole HTML text; ``nodes`` None: the detailed prediction is that of the shortest time to train."""
    predictions = list(over_nodes(machine, run))
    whole = [p for p in predictions if p.parts == 1] or predictions
    chosen = min(whole, key=_seconds) if whole and nodes is None else predict(machine, run, nodes or 1)
    sections = [
        _terms(chosen),
        time_to_train(predictions),
        scaling(machine, run, chosen),
        cost(machine, run, chosen.tier),
        *accelerator(machine, run, Model(machine, run).fits.largest(1)),
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


def accelerator(machine: Machine, run: Run, largest: int) -> list[Section]:
    """Its roofline, and its memory by batch size; ``largest``: samples that fit at once."""
    network, precision = network_of(run), run.training.precision
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
