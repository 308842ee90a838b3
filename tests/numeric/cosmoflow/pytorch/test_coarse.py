"""Multi-resolution training: coarse samples, the network for them, and the epochs that use them."""

import numpy as np
import pytest
import torch

from mlhpc.benchmarks import load
from mlhpc.benchmarks.cosmoflow import Network
from mlhpc.cosmoflow.pytorch.model import CosmoFlowNet, coarse
from mlhpc.errors import UserError

SMALL = Network(conv_layers=3, conv_filters=2, dense_units=(6, 5))


def test_coarse_voxels_are_means_over_their_cubes():
    counts = np.random.default_rng(1).poisson(3.0, (2, 8, 8, 8, 4)).astype(np.float32)
    means = coarse(torch.from_numpy(counts), 2).numpy()
    assert means.shape == (2, 2, 2, 2, 4)
    for b, d, h, w, c in np.ndindex(means.shape):
        cube = counts[b, 4 * d : 4 * d + 4, 4 * h : 4 * h + 4, 4 * w : 4 * w + 4, c]
        assert means[b, d, h, w, c] == pytest.approx(cube.mean(), rel=1e-6)
    assert coarse(torch.from_numpy(counts), 0).data_ptr() == torch.from_numpy(counts).data_ptr()


@pytest.mark.parametrize("halvings, pools", [(1, (2, 2, 1)), (2, (2, 1, 1))])
def test_the_network_on_coarse_samples_has_the_same_weights_and_pools_less(halvings, pools):
    """Against the same layers applied by hand to samples made coarse with NumPy."""
    torch.manual_seed(2)
    model = CosmoFlowNet(SMALL, (16, 16, 16, 4), dropout=0)
    model.halvings = halvings
    counts = torch.poisson(torch.full((2, 16, 16, 16, 4), 2.0)).to(torch.int16)
    side, n = 16 >> halvings, 1 << halvings
    small = counts.numpy().astype(np.float64).reshape(2, side, n, side, n, side, n, 4).mean((2, 4, 6))
    x = torch.from_numpy(np.log1p(small)).float().permute(0, 4, 1, 2, 3)
    for block, pool in zip(model.blocks, pools, strict=True):
        x = torch.nn.functional.leaky_relu(
            block.convolution(x) + block.bias.view(-1, 1, 1, 1), 0.3
        )  # the reference's order: activate, then pool
        x = torch.nn.functional.max_pool3d(x, pool)
    x = x.permute(0, 2, 3, 4, 1).flatten(1)
    for dense in model.hidden:
        x = torch.nn.functional.leaky_relu(dense(x), 0.3)
    torch.testing.assert_close(model.train()(counts), 1.2 * torch.tanh(model.last(x)), rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        whole = CosmoFlowNet(SMALL, (16, 16, 16, 4), dropout=0)
        whole.load_state_dict(model.state_dict())
        assert torch.equal(model.eval()(counts), whole.eval()(counts)), "evaluated on whole samples"


def test_every_weight_learns_from_coarse_samples():
    model = CosmoFlowNet(SMALL, (16, 16, 16, 4), dropout=0).train()
    model.halvings = 2
    model(torch.ones(1, 16, 16, 16, 4, dtype=torch.int16)).sum().backward()
    assert all(weight.grad is not None for weight in model.parameters())


def cosmoflow(*settings):
    return load.load("cosmoflow", "smoke", ["training.framework=pytorch", "network.conv_layers=4", *settings])


def test_stages_follow_each_other_from_the_coarsest():
    training = cosmoflow("training.coarse_epochs=[2,0,3]").training
    assert [training.halvings(epoch) for epoch in range(1, 8)] == [3, 3, 1, 1, 1, 0, 0]
    assert cosmoflow().training.halvings(1) == 0


@pytest.mark.parametrize(
    "settings, message",
    [
        (["training.max_epochs=16", "training.coarse_epochs=[8,8]"], "must be fewer than max_epochs=16"),
        (["training.coarse_epochs=[1,1,1,1]"], "at most 3 stages"),
        (["training.coarse_epochs=[2]", "training.compile=true"], "compile or spatial"),
        (["training.coarse_epochs=[2]", "training.spatial=[2,1,1]"], "compile or spatial"),
        (["training.coarse_epochs=[2]", "loading.sample_dtype=float32"], "set loading.sample_dtype=int16"),
        (
            ["training.coarse_epochs=[2]", "training.framework=tensorflow"],
            "requires training.framework=pytorch",
        ),
    ],
)
def test_what_cannot_be_trained_coarsely_is_refused(settings, message):
    with pytest.raises(UserError, match=message.replace("[", r"\[")):
        cosmoflow(*settings)
