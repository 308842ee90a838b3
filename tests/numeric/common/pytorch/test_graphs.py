"""The comparison that decides whether steps are replayed, on a stand-in for the graph that runs on the host: it
finds what a capture can get wrong, and nothing where nothing is wrong."""

import pytest
import torch
from helpers.thread_world import on_ranks
from torch import nn
from torch.amp.grad_scaler import GradScaler

from mlhpc.benchmarks import load
from mlhpc.common.pytorch.devices import filler
from mlhpc.common.pytorch.graphs import WARM_UP, Graphs, Replayed, batches, frozen, on_host, require_graphs
from mlhpc.common.pytorch.state import tensors_of
from mlhpc.common.pytorch.step import Steps, WarmUpSizes, make_eval_step, make_train_step, set_rate, warm_up
from mlhpc.common.ranks.world import Solo
from mlhpc.cosmoflow.pytorch.optimizer import KerasSGD
from mlhpc.cosmoflow.pytorch.optimizer import make_optimizer as make_keras
from mlhpc.deepcam.optim.optimizer import make_optimizer as make_lamb
from mlhpc.errors import UserError
from mlhpc.resnet50.optim.optimizer import make_optimizer as make_lars

CPU = torch.device("cpu")
SIZES = WarmUpSizes(4, 3)


def zeros(samples):
    return torch.zeros(samples, 6), torch.zeros(samples, 1)


def squared_error(logits, y):
    return (logits - y).square().mean()


def error_and_count(logits, y):
    return squared_error(logits, y), len(y)


class Case:
    """A network with dropout and batch norm, its optimizer, and steps that are captured by ``capture``."""

    def __init__(self, capture=None, *, make=None, dropout=0.5, scaled=False, world=None):
        layers = (nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(dropout), nn.Linear(8, 1))
        self.model = nn.Sequential(*layers)
        make = make or (lambda model: KerasSGD(model.parameters(), torch.tensor(0.1), momentum=0.9))
        self.optimizer, self.scaler = make(self.model), GradScaler("cpu", enabled=scaled)
        self.state = (self.model, self.optimizer, self.scaler, world or Solo())
        self.graphs = Graphs(each(capture(self) if capture else run_again), CPU)
        captured = self.graphs.for_new_steps()
        train = captured(make_train_step(self.model, squared_error, self.optimizer, self.scaler))
        evaluate = make_eval_step(self.model, error_and_count, captured=captured)
        self.steps = Steps(train, evaluate)
        warm_up(*self.state, self.steps, zeros, SIZES)

    def objection(self, compared=True):
        trial = batches(zeros, SIZES, self.state[3])
        return self.graphs.objection(self.steps, self.state, trial, compared)


def each(capture):
    """Captures several works one after the other."""
    return lambda parts, compact: [capture(*part) for part in parts]


def run_again(work, inputs):
    """The stand-in: a replay does the work on the content of the captured memory."""
    return lambda: work(*inputs)


def frozen_rate(case):
    def capture(work, inputs):
        rate = float(case.optimizer.param_groups[0]["lr"])
        return lambda: (set_rate(case.optimizer, rate), work(*inputs))[1]

    return capture


def stale_input(case):
    def capture(work, inputs):
        old = [each.clone() for each in inputs]
        return lambda: work(*old)

    return capture


def skipped_update(case):
    def capture(work, inputs):
        def replay():
            tensors = [*case.model.parameters(), *tensors_of(case.optimizer)]
            before = [tensor.detach().clone() for tensor in tensors]
            result = work(*inputs)
            with torch.no_grad():
                for tensor, value in zip(tensors, before, strict=True):
                    tensor.copy_(value)
            return result

        return replay

    return capture


def repeated_dropout(case):
    def capture(work, inputs):
        state = torch.get_rng_state()
        return lambda: (torch.set_rng_state(state), work(*inputs))[1]

    return capture


def kept_gradient(case):
    def capture(work, inputs):
        def replay():
            case.optimizer.zero_grad = lambda: None
            result = work(*inputs)
            del case.optimizer.zero_grad
            return result

        return replay

    return capture


@pytest.mark.parametrize("scaled", [False, True])
def test_steps_that_are_replayed_as_they_are_meet_no_objection_and_change_nothing(scaled):
    case = Case(scaled=scaled)
    before = [tensor.clone() for tensor in (*case.model.state_dict().values(), *tensors_of(case.optimizer))]
    assert case.objection() == "" and case.steps.train.active
    after = (*case.model.state_dict().values(), *tensors_of(case.optimizer))
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize(
    "fault",
    [frozen_rate, stale_input, skipped_update, repeated_dropout, kept_gradient],
    ids=lambda f: f.__name__,
)
def test_a_planted_fault_is_found_and_no_step_is_replayed(fault, scaled):
    case = Case(fault, scaled=scaled)
    assert "between replayed and eager steps" in case.objection()
    assert not case.steps.train.active


def test_a_fault_of_one_rank_keeps_all_from_replaying():
    def of_rank(world):
        torch.manual_seed(world.rank)
        case = Case(stale_input if world.rank == 1 else None, dropout=0.0, world=world)
        return case.objection(), case.steps.train.active

    first, second = on_ranks(1, 2, of_rank)
    assert first == second and "differ by" in first[0] and "(rank 1)" in first[0] and not first[1]


def test_a_capture_that_fails_is_an_objection_with_the_first_error():
    def failing(case):
        def capture(work, inputs):
            try:
                raise RuntimeError("operation not permitted when stream is capturing\nand so on")
            finally:
                raise RuntimeError("capture is broken")

        return capture

    why = Case(failing).objection(compared=False)
    assert why.startswith("a step cannot be captured (operation not permitted when stream is capturing)")


HYPERPARAMETERS = {"deepcam": make_lamb, "cosmoflow": make_keras, "resnet50": make_lars}
OPTIMIZERS = [
    *(("deepcam", name) for name in ("LAMB", "Adam", "AdamW")),
    *(("cosmoflow", name) for name in ("sgd", "adam")),
    *(("resnet50", name) for name in ("sgd", "lars")),
]


def optimizer_of(benchmark, name):
    hyperparameters = load.load(benchmark, "smoke", [f"hyperparameters.opt_name={name}"]).hyperparameters
    make = HYPERPARAMETERS[benchmark]
    return lambda model: make(hyperparameters, model if benchmark == "resnet50" else model.parameters())


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("benchmark, name", OPTIMIZERS)
def test_no_optimizer_changes_anything_on_the_host_or_decides_there(benchmark, name, scaled):
    assert Case(make=optimizer_of(benchmark, name), scaled=scaled).objection() == ""


def test_a_rate_that_is_a_number_is_refused():
    case = Case(make=lambda model: torch.optim.SGD(model.parameters(), 0.1))
    why = "a graph would freeze optimizer state kept on the host: lr (rank 0)"
    assert case.objection(compared=False) == why


def test_a_step_count_on_the_host_is_refused():
    weight = nn.Parameter(torch.ones(2))
    adam = torch.optim.Adam([weight], torch.tensor(0.1))
    found = []
    for _ in range(2):
        weight.grad = torch.ones(2)
        adam.step()
        found.append(on_host(adam, torch.device("cuda")))  # everything here is elsewhere
    assert "step" in frozen(*found) and frozen(found[0], found[0]) == ""


def test_a_step_that_is_skipped_by_the_host_is_refused():
    rate = torch.tensor(0.1)
    case = Case(make=lambda model: torch.optim.SGD(model.parameters(), rate, foreach=False), scaled=True)
    assert case.objection(compared=False) == "whether a step is skipped is decided on the host (rank 0)"


def test_batches_of_another_size_run_eagerly_and_results_outlive_the_next_replay():
    static, eager = torch.zeros(()), []

    def step(x, y):
        eager.append(len(x))
        return static.copy_(x.sum())

    capture = each(lambda work, inputs: lambda: static.copy_(10 * inputs[0].sum()))
    replayed = Replayed(step, capture, CPU, filler(CPU), active=True)
    for _ in range(WARM_UP):
        assert float(replayed(torch.ones(4), torch.ones(4))) == 4
    first, short, last = (
        replayed(torch.full((n,), v), torch.ones(n)) for n, v in ((4, 1.0), (3, 1.0), (4, 2.0))
    )
    assert [float(result) for result in (first, last)] == [40, 80]
    assert eager == [4] * WARM_UP + [3] and len(short.shape) == 0


def test_an_evaluation_of_fewer_samples_is_replayed_with_earlier_ones():
    replayed = Replayed(torch.square, each(run_again), CPU, filler(CPU), active=True, evaluation=True)
    for _ in range(WARM_UP):
        replayed(torch.ones(4))
    assert replayed(torch.full((4,), 2.0)).tolist() == [4] * 4
    assert replayed(torch.full((3,), 3.0)).tolist() == [9, 9, 9, 4]


def test_graphs_that_cannot_be_are_refused_in_one_line_only_if_they_were_asked_for():
    for choice in ("auto", "off", "false"):
        require_graphs(load.load("deepcam", "smoke", [f"training.cuda_graphs={choice}"]), CPU, Solo())
    for choice in ("on", "true"):
        with pytest.raises(
            UserError, match=r"^training.cuda_graphs=on: it needs an NVIDIA GPU; set it to auto or off"
        ):
            require_graphs(load.load("deepcam", "smoke", [f"training.cuda_graphs={choice}"]), CPU, Solo())
