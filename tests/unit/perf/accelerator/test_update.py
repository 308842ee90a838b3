"""The optimizer's update against its formulas, written out on arrays that count what is done to them."""

import numpy as np
import pytest

from mlhpc.benchmarks.load import load
from mlhpc.perf.accelerator.memory import OPERATIONS, STATES, update_of
from mlhpc.perf.networks.registry import network_of

LENGTH = 1000


class Counted(np.ndarray):
    """Counts operations on its elements; those on a few scalars do not matter."""

    operations = 0

    def __array_ufunc__(self, ufunc, method, *inputs, **keywords):
        plain = [np.asarray(x) for x in inputs]
        Counted.operations += max(x.size for x in plain)
        result = getattr(ufunc, method)(*plain, **keywords)
        return result.view(Counted) if result.ndim else result


def array():
    return np.full(LENGTH, 0.5).view(Counted)


def norm(x):
    return np.sqrt(np.add.reduce(x * x))


def sgd(w, g, v, rate=0.1, momentum=0.9, decay=1e-4):
    d = g + decay * w
    v = momentum * v + d
    return w - rate * v


def lars(w, g, v, rate=0.1, momentum=0.9, decay=1e-4, trust=1e-3):
    own = trust * norm(w) / (norm(g) + decay)
    d = g + decay * w
    v = momentum * v + (rate * own) * d
    return w - v


def moments(g, m, v, b1=0.9, b2=0.999, step=3):
    m = b1 * m + (1 - b1) * g
    v = b2 * v + (1 - b2) * (g * g)
    return m * (1 / (1 - b1**step)), v * (1 / (1 - b2**step))


def adam(w, g, m, v, rate=1e-3, epsilon=1e-8):
    m, v = moments(g, m, v)
    return w - rate * (m / (np.sqrt(v) + epsilon))


def adamw(w, g, m, v, rate=1e-3, decay=0.01):
    return adam((1 - rate * decay) * w, g, m, v, rate)


def lamb(w, g, m, v, rate=1e-3, decay=0.01, epsilon=1e-6):
    m, v = moments(g, m, v)
    u = m / (np.sqrt(v) + epsilon) + decay * w
    return w - (rate * norm(w) / norm(u)) * u


@pytest.mark.parametrize("formula", [sgd, lars, adam, adamw, lamb], ids=lambda formula: formula.__name__)
def test_operations_of_a_weight_are_those_of_the_formula(formula):
    Counted.operations = 0
    formula(array(), array(), *(array() for _ in range(STATES[formula.__name__])))
    assert Counted.operations / LENGTH == pytest.approx(OPERATIONS[formula.__name__], abs=0.05)


@pytest.mark.parametrize("name", STATES)
def test_every_layers_update_is_part_of_the_networks(name):
    network = network_of(load("deepcam", "closed"))
    layers = [update_of(layer, name) for layer in network]
    whole = update_of(network, name)
    assert (sum(u.operations for u in layers), sum(u.bytes for u in layers)) == whole
    # Weight, gradient and state in; weight and state out.
    arrays = 0 if name == "none" else (2 + STATES[name]) + (1 + STATES[name])
    assert whole.bytes == 4 * arrays * 56_454_720
