"""Volumes cut into slabs over the ranks of a group: same loss and gradients as the unsplit network."""

import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
import torch

from mlhpc.benchmarks.cosmoflow import Network
from mlhpc.common.data.slabs import plan_slabs
from mlhpc.common.pytorch.spatial import SpatialGroup
from mlhpc.cosmoflow.pytorch.metric import training_loss
from mlhpc.cosmoflow.pytorch.model import CosmoFlowNet
from mlhpc.errors import UserError
from mlhpc.perf.networks import cosmoflow
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
    with pytest.raises(UserError, match=r"spatial=\[32, 1, 1\].*thinner than the halo"):
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
def test_bytes_sent_and_kept_are_those_that_predict_counts(parts, side, levels, kernel):
    """Kept: what autograd keeps for the backward pass, each memory once, without weights.
    Only float32: on a CPU autocast pools in float32, other than on accelerators, of which the model is."""
    network = Network(conv_layers=levels, conv_filters=4, conv_kernel=kernel, dense_units=(8, 6))
    plan = plan_slabs((side, side, side), parts, levels, kernel)
    counted = cosmoflow.layers(network, (side, side, side, 4), keeps="indices")
    forward = backward = 0
    for rank in range(plan.size):
        group = Unconnected(plan, rank, 0, None)
        model = CosmoFlowNet(network, (side, side, side, 4), group=group)
        kept = {}

        def pack(tensor, kept=kept):
            kept.setdefault(tensor.untyped_storage()._cdata, tensor)
            return tensor

        counts = torch.ones(2, *plan.shape(rank), 4, dtype=torch.int16)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = training_loss(model(counts), torch.zeros(2, 4), model=model, weight_decay=0)
        expected = saved_bytes(counted, plan, kernel, rank, "float32", batch=2)
        for weight in model.parameters():
            kept.pop(weight.untyped_storage()._cdata, None)
        assert sum(tensor.untyped_storage().nbytes() for tensor in kept.values()) == expected
        forward += group.traffic.take()[0]
        loss.backward()
        backward += group.traffic.take()[0]
    sent = exchange(counted, plan, kernel)
    assert forward == 2 * sent.bytes("float32", training=False)
    assert forward + backward == 2 * sent.bytes("float32", training=True)
