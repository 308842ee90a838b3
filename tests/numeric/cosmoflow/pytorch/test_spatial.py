"""Volumes cut into slabs over the ranks of a group: same loss and gradients as the unsplit network."""

import os
import subprocess
import sys
from functools import partial
from itertools import product
from pathlib import Path

import pytest
import torch

from mlhpc.benchmarks.cosmoflow import Network
from mlhpc.benchmarks.load import load
from mlhpc.common.data.slabs import plan_slabs
from mlhpc.common.pytorch.devices import place
from mlhpc.common.pytorch.spatial import SpatialGroup
from mlhpc.cosmoflow.cpu import pooled
from mlhpc.cosmoflow.pytorch.metric import training_loss
from mlhpc.cosmoflow.pytorch.model import CosmoFlowNet, convolve_and_pool
from mlhpc.errors import UserError
from mlhpc.perf.networks import cosmoflow
from mlhpc.perf.networks.registry import network_of
from mlhpc.perf.spatial import exchange, saved_bytes

PROGRAM = Path(__file__).parents[3] / "ranks" / "cosmoflow_spatial.py"
LOCAL = """import sys
from mlhpc.common.ranks.local import run_local
sys.exit(run_local(int(sys.argv[1]), [sys.executable, *sys.argv[2:]]))
"""
slow = pytest.mark.slow


@pytest.mark.parametrize(
    "ranks, side, levels, kernel, parts",
    [
        (2, 32, 3, 3, (2, 1, 1)),
        pytest.param(4, 32, 4, 3, (1, 2, 1), id="two groups", marks=slow),
        pytest.param(4, 32, 3, 3, (2, 1, 2), id="two axes"),
        pytest.param(4, 32, 3, 2, (4, 1, 1), id="a halo on one side only"),
        pytest.param(8, 32, 3, 3, (2, 2, 2), id="three axes", marks=slow),
        pytest.param(8, 64, 5, 3, (8, 1, 1), id="gathered before the last levels", marks=slow),
        pytest.param(4, 96, 5, 3, (4, 1, 1), id="gathered before the odd pool", marks=slow),
        pytest.param(4, 128, 5, 3, (2, 2, 1), id="the official size", marks=slow),
        pytest.param(3, 32, 3, 3, (3, 1, 1), id="uneven slabs"),
    ],
)
def test_loss_and_gradients_are_those_of_the_whole_volume(ranks, side, levels, kernel, parts):
    words = [side, levels, kernel, *parts]
    command = [sys.executable, "-c", LOCAL, str(ranks), str(PROGRAM), *map(str, words)]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("side, parts", list(product([32, 96, 128], [(2, 1, 1), (3, 2, 1), (4, 4, 1)])))
def test_slabs_tile_the_volume_and_pooling_never_crosses_a_boundary(side, parts):
    plan = plan_slabs((side, side, side), parts, 5, 3)
    assert plan.split_levels >= 1
    for level in range(plan.split_levels):
        filled = [0] * (side >> level) ** 3
        for rank in range(plan.size):
            depth, height, width = plan.slab(rank, level)
            assert all(edge % 2 == 0 for part in (depth, height, width) for edge in (part.start, part.stop))
            if level >= 2:
                for d, h, w in product(*(range(p.start, p.stop) for p in (depth, height, width))):
                    filled[(d * (side >> level) + h) * (side >> level) + w] += 1
        assert level < 2 or set(filled) == {1}


def test_96_planes_over_four_are_gathered_before_the_odd_pool():
    plan = plan_slabs((96, 96, 96), (4, 1, 1), 5, 3)
    assert [plan.shape(2, level)[0] for level in range(plan.split_levels)] == [24, 12, 6]
    assert plan.split_levels == 3


def test_slabs_thinner_than_their_halo_are_refused():
    with pytest.raises(UserError, match=r"spatial=\[32, 1, 1\].*thinner than a halo"):
        plan_slabs((32, 32, 32), (32, 1, 1), 4, 3)


class Unconnected(SpatialGroup):
    """A rank whose neighbours are not there: it counts what it would send, and receives zeros."""

    def exchange(self, sends, receives, traffic=None):
        (traffic or self.traffic).bytes += sum(tensor.nbytes for _, tensor in sends)


@pytest.mark.parametrize(
    "parts, side, levels, kernel",
    [((2, 1, 1), 32, 3, 3), ((1, 2, 1), 32, 5, 3), ((2, 1, 2), 32, 3, 3), ((2, 2, 2), 32, 3, 5),
     ((4, 1, 1), 32, 3, 2), ((3, 1, 1), 32, 3, 3), ((4, 1, 1), 48, 4, 3), ((8, 1, 1), 64, 5, 3)],
)  # fmt: skip
@pytest.mark.parametrize("kernels", [False, True], ids=["plain", "CPU kernels"])
@pytest.mark.parametrize("precision", ["float32", "mixed_bfloat16"])
def test_bytes_sent_and_kept_are_those_that_predict_counts(parts, side, levels, kernel, kernels, precision):
    """Kept: what autograd keeps for the backward pass."""
    network = Network(conv_layers=levels, conv_filters=4, conv_kernel=kernel, dense_units=(8, 6))
    plan = plan_slabs((side, side, side), parts, levels, kernel)
    shape = (side, side, side, 4)
    first = plan.split_levels if kernels else None
    counted = cosmoflow.layers(network, shape, keeps="indices", cpu_kernels_from=first)
    forward = backward = 0
    for rank in range(plan.size):
        group = Unconnected(plan, rank, 0, None)
        model = model_of(network, shape, kernels, group)
        counts = torch.ones(2, *plan.shape(rank), 4, dtype=torch.int16)
        loss, kept = loss_and_kept_bytes(model, counts, precision)
        assert kept == saved_bytes(counted, plan, kernel, rank, precision, batch=2)
        forward += group.traffic.take()[0]
        loss.backward()
        backward += group.traffic.take()[0]
    sent = exchange(counted, plan, kernel)
    assert forward == 2 * sent.bytes(precision, training=False)
    assert forward + backward == 2 * sent.bytes(precision, training=True)


@pytest.mark.parametrize("levels, kernel, filters", [(3, 3, 4), (4, 3, 9), (3, 3, 160), (3, 5, 8)])
@pytest.mark.parametrize("kernels", [False, True], ids=["plain", "CPU kernels"])
@pytest.mark.parametrize("precision", ["float32", "mixed_bfloat16"])
def test_bytes_kept_of_undivided_samples(levels, kernel, filters, kernels, precision):
    """With filters that the CPU kernels compute in all, in some and in no blocks. Also kept is the input: its
    logarithm, or that in 16 bits."""
    changed = [f"network.{key}={value}" for key, value in (
        ("conv_layers", levels), ("conv_kernel", kernel), ("conv_filters", filters), ("input_mean", []),
        ("input_spread", []))]  # fmt: skip
    chosen = ["training.framework=pytorch", f"training.cpu_kernels={str(kernels).lower()}"]
    run = load("cosmoflow", "smoke", [*changed, *chosen, "data.sample_shape=[16,16,16,4]"])
    model = model_of(run.network, run.data.sample_shape, kernels)
    counts = torch.ones(2, 16, 16, 16, 4, dtype=torch.int16)
    _, kept = loss_and_kept_bytes(model, counts, precision)
    given = counts.numel() * (4 if precision == "float32" else 2)
    assert kept == given + network_of(run, cpu_kernels_from=0).saved_bytes(precision, 2)


def model_of(network, shape, kernels, group=None):
    fused = partial(pooled.convolve_and_pool, otherwise=convolve_and_pool)
    chosen = fused if kernels else convolve_and_pool
    model = CosmoFlowNet(network, shape, group=group, convolve_and_pool=chosen)
    place(model, torch.device("cpu"), channels_last=True, dimensions=3)
    return model


def loss_and_kept_bytes(model, counts, precision):
    """The loss, and the bytes that autograd keeps, each memory once, without weights and their copies in 16
    bits."""
    kept, shapes = {}, {tuple(order) for w in model.parameters() for order in (w.shape, reversed(w.shape))}

    def pack(tensor):
        kept.setdefault(tensor.untyped_storage()._cdata, tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        with torch.autocast("cpu", torch.bfloat16, enabled=precision != "float32"):
            predicted = model(counts)
        loss = training_loss(predicted, torch.zeros(2, 4), model=model, weight_decay=0)
    return loss, sum(t.untyped_storage().nbytes() for t in kept.values() if tuple(t.shape) not in shapes)
