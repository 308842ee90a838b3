"""CosmoFlow's list of layers against the Keras model and the graph that TensorFlow makes of a training step."""

import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from mlhpc.benchmarks.load import load, presets
from mlhpc.cosmoflow.tf.model import Bias, build_model
from mlhpc.perf.networks.registry import network_of

KINDS = {
    layers.Conv3D: "convolution",
    layers.MaxPool3D: "pooling",
    Bias: "bias",
    layers.LeakyReLU: "activation",
    layers.Dense: "dense",
    layers.Dropout: "dropout",
}


def different_networks():
    kinds = {}
    for preset in presets("cosmoflow"):
        run = load("cosmoflow", preset)
        kinds.setdefault((run.network.model_copy(update={"parameters": None}), run.data.sample_shape), preset)
    return [(preset,) for preset in kinds.values()]


RUNS = [
    *different_networks(),
    ("closed", "data.sample_shape=[32,96,64,3]", "network.conv_filters=8"),
    ("closed", "data.sample_shape=[64,64,64,4]", "network.dense_units=[32]", "network.targets=2"),
    ("closed", "data.sample_shape=[256,256,256,4]"),
]


@pytest.fixture(params=RUNS, ids=" ".join)
def case(request):
    run = load("cosmoflow", request.param[0], request.param[1:])
    return network_of(run), build_model(run.network, run.data.sample_shape)


def test_layers_are_those_of_the_model_with_their_shapes_and_weights(case):
    network, model = case
    ours = [
        (layer.kind, layer.output, layer.parameters)
        for layer in network
        if layer.name not in ("tanh", "loss")
    ]
    theirs = [
        (KINDS[type(layer)], tuple(layer.output.shape[1:]), layer.count_params())
        for layer in model.layers
        if type(layer) in KINDS
    ]
    assert ours == theirs
    assert network.parameters == model.count_params()


def test_forward_flops_are_those_of_tensorflows_profiler(case):
    """Of products, operation by operation: what it counts for others is not in ``forward_flops``."""
    network, model = case
    graph = tf.function(model).get_concrete_function(tf.TensorSpec((1, *network.input))).graph
    options = tf.compat.v1.profiler.ProfileOptionBuilder(
        tf.compat.v1.profiler.ProfileOptionBuilder.float_operation()
    )
    counted = tf.compat.v1.profiler.profile(graph, cmd="scope", options=options.with_empty_output().build())
    products = {op.name for op in graph.get_operations() if op.type in ("Conv3D", "MatMul")}
    theirs = sorted(node.float_ops for node in every(counted) if node.name in products)
    assert theirs == sorted(layer.forward_flops for layer in network if layer.forward_flops)


def every(node):
    yield node
    for child in node.children:
        yield from every(child)


@pytest.mark.parametrize("preset", ["smoke", "mini"])
def test_saved_activations_are_the_forward_tensors_that_the_gradients_graph_reads(preset):
    run = load("cosmoflow", preset, ["hyperparameters.dropout=0.5"])
    network, model, batch = network_of(run), build_model(run.network, run.data.sample_shape), 2
    forward = set()

    @tf.function(input_signature=[tf.TensorSpec((batch, *network.input)), tf.TensorSpec((batch, 4))])
    def gradients(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.math.squared_difference(model(x, training=True), y))
        forward.update(op.name for op in tf.compat.v1.get_default_graph().get_operations())
        return tape.gradient(loss, [v.value for v in model.trainable_variables])

    graph = gradients.get_concrete_function().graph
    read = {
        tensor.ref(): tensor
        for op in graph.get_operations()
        if op.name not in forward
        for tensor in op.inputs
        if tensor.op.name in forward and tensor.dtype.is_floating and tensor.op.type not in NOT_ACTIVATIONS
    }
    saved = sum(4 * np.prod(tensor.shape.as_list(), dtype=int) for tensor in read.values())
    # The network's input, normalised where it is, feeds the gradient of the first kernel.
    assert network.saved_bytes("float32", batch) == pytest.approx(
        saved - batch * 4 * network.input_elements, rel=0.01
    )


NOT_ACTIVATIONS = ("ReadVariableOp", "Const", "Placeholder", "VarHandleOp")
