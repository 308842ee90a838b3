"""The two implementations of CosmoFlow against each other: same weights and batches, same numbers."""

from functools import partial

import numpy as np
import pytest
import tensorflow as tf
import torch

from mlhpc.benchmarks.cosmoflow import Hyperparameters, Network
from mlhpc.common.pytorch.step import make_scaler, make_train_step, set_rate
from mlhpc.cosmoflow import weights as neutral
from mlhpc.cosmoflow.pytorch.metric import training_loss
from mlhpc.cosmoflow.pytorch.model import CosmoFlowNet
from mlhpc.cosmoflow.pytorch.optimizer import make_optimizer
from mlhpc.cosmoflow.tf import step as tf_step
from mlhpc.cosmoflow.tf.model import build_model
from mlhpc.weights import save

SHAPE = (16, 16, 16, 4)
NETWORKS = {
    "as stored": Network(conv_layers=3, conv_filters=4, dense_units=(8, 6)),
    "scaled input": Network(
        conv_layers=3,
        conv_filters=4,
        dense_units=(8, 6),
        input_mean=(0.4, 0.5, 0.6, 0.7),
        input_spread=(0.5, 0.6, 0.7, 0.8),
    ),
}


def batch_of(samples, seed):
    """Counts like those of a universe (Poisson in a lognormal density), and targets."""
    rng = np.random.default_rng(seed)
    x = rng.poisson(rng.lognormal(-0.3, 1.2, (samples, *SHAPE))).astype(np.int16)
    return x, rng.uniform(-1, 1, (samples, 4)).astype(np.float32)


def both(network, weight_decay):
    theirs = build_model(network, SHAPE, dropout=0, weight_decay=weight_decay, seed=3)
    ours = CosmoFlowNet(network, SHAPE, dropout=0)
    give(ours, theirs.get_weights(), network)
    return theirs, ours


def give(model, weights, network):
    state = neutral.to_pytorch(weights, network)
    model.load_state_dict({name: torch.from_numpy(weight) for name, weight in state.items()})


def weights_of(model, network):
    return neutral.from_pytorch({name: w.numpy().copy() for name, w in model.state_dict().items()}, network)


def steps(theirs, ours, hyperparameters):
    optimizer = tf_step.make_optimizer(hyperparameters, "float32")
    their_step = tf_step.make_train_step(theirs, optimizer)
    torch_optimizer = make_optimizer(hyperparameters, ours.parameters())
    loss_of = partial(training_loss, model=ours, weight_decay=hyperparameters.opt_weight_decay)
    our_step = make_train_step(ours, loss_of, torch_optimizer, make_scaler("float32", torch.device("cpu")))

    def at_rate(rate, x, y):
        optimizer.learning_rate = rate
        set_rate(torch_optimizer, rate)
        return float(their_step(x, y)), float(our_step(torch.from_numpy(x), torch.from_numpy(y)))

    return at_rate


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_loss_and_gradients_are_equal(network):
    theirs, ours = both(network, 0.01)
    x, y = batch_of(4, 0)

    @tf.function(autograph=False)
    def loss_and_gradients():
        with tf.GradientTape() as tape:
            squares = (theirs(tf_step.log_counts(x), training=True) - y) ** 2
            loss = tf.add_n([tf.reduce_mean(squares), *theirs.losses])
        return loss, tape.gradient(loss, [v.value for v in theirs.trainable_variables])

    expected, gradients = loss_and_gradients()
    loss = training_loss(ours(torch.from_numpy(x)), torch.from_numpy(y), model=ours, weight_decay=0.01)
    loss.backward()
    assert loss.item() == pytest.approx(float(expected), rel=1e-6)
    by_name = {name: weight.grad.numpy() for name, weight in ours.named_parameters()}
    for our, their in zip(neutral.from_pytorch(by_name, network), gradients, strict=True):
        np.testing.assert_allclose(our, their.numpy(), rtol=1e-4, atol=1e-5 * np.abs(their).max())


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_twenty_steps_at_changing_rates_take_the_same_path(optimizer):
    network = NETWORKS["as stored"]
    hyperparameters = Hyperparameters(
        global_batch_size=4, opt_name=optimizer, opt_base_learning_rate=0.01, opt_weight_decay=0.001
    )
    theirs, ours = both(network, 0.001)
    start = theirs.get_weights()
    step = steps(theirs, ours, hyperparameters)
    for number in range(20):
        expected, loss = step(0.004 if number % 7 < 4 else 0.001, *batch_of(4, number))
        assert loss == pytest.approx(expected, rel=1e-4)
    for our, their, before in zip(weights_of(ours, network), theirs.get_weights(), start, strict=True):
        assert np.linalg.norm(our - their) < 1e-3 * np.linalg.norm(their - before)


def test_weights_survive_the_way_to_the_other_framework_and_back(tmp_path):
    network = NETWORKS["as stored"]
    theirs, ours = both(network, 0)
    save(
        tmp_path / "weights.safetensors",
        dict(zip(neutral.names(network), theirs.get_weights(), strict=True)),
        {},
    )
    give(ours, neutral.load(tmp_path / "weights.safetensors", network), network)
    for our, their in zip(weights_of(ours, network), theirs.get_weights(), strict=True):
        np.testing.assert_array_equal(our, their)
    x, _ = batch_of(2, 1)
    np.testing.assert_allclose(
        ours(torch.from_numpy(x)).detach(), theirs(tf_step.log_counts(x)), rtol=1e-5, atol=1e-6
    )
