"""Parameter servers over four ranks: the weights of one process, and exactly the bytes that ``perf`` predicts."""

import os
import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mlhpc.benchmarks.resnet50 import Hyperparameters, Network
from mlhpc.common.pytorch.parameter_servers import Roles, Server, flat, parts
from mlhpc.common.pytorch.step import set_rate
from mlhpc.resnet50.model import build_model
from mlhpc.resnet50.optim.optimizer import make_optimizer

PROGRAM = Path(__file__).parents[3] / "ranks" / "parameter_servers.py"
LOCAL = """import sys
from mlhpc.common.ranks.local import run_local
sys.exit(run_local(4, [sys.executable, *sys.argv[1:]]))
"""


def test_weights_and_bytes_of_a_ring_and_of_one_to_three_servers():
    command = [sys.executable, "-c", LOCAL, str(PROGRAM)]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("sgd", ["pytorch", "mlperf"])
@pytest.mark.parametrize("servers", [1, 4, 7])
def test_servers_update_their_parts_as_one_optimizer_updates_all(sgd, servers):
    """Also where weight decay differs by weight, as for batch norm, and a part ends inside a weight."""
    torch.manual_seed(4)
    settings = Hyperparameters(
        global_batch_size=1, sgd_opt_weight_decay=0.1, sgd_opt_learning_rate_decay_steps=9,
        lars_opt_learning_rate_decay_steps=9,
    )  # fmt: skip
    whole = build_model(Network(classes=10, width=0.25, blocks=(1, 1, 1, 1)))
    elements = sum(weight.numel() for weight in whole.parameters())
    model = deepcopy(whole)
    owners = [
        Server(Roles(1, servers), model, make_optimizer(settings, model, sgd), part)
        for part in parts(elements, servers)
    ]
    optimizer = make_optimizer(settings, whole, sgd)
    for rate in (0.5, 0.2, 0.1):
        gradient = torch.randn(elements)
        for weight, own in zip(
            whole.parameters(), gradient.split([w.numel() for w in whole.parameters()]), strict=True
        ):
            weight.grad = own.view_as(weight).clone()
        set_rate(optimizer, rate)
        optimizer.step()
        for owner in owners:
            owner._gradient.copy_(gradient[owner.part])
            owner._update(rate)
    torch.testing.assert_close(
        torch.cat([owner._weights for owner in owners]), flat(list(whole.parameters()))
    )


@given(st.integers(0, 1000), st.integers(1, 9))
def test_parts_are_adjacent_and_differ_by_one_at_most(elements, number):
    ranges = parts(elements, number)
    assert [i for part in ranges for i in range(part.start, part.stop)] == list(range(elements))
    lengths = [part.stop - part.start for part in ranges]
    assert len(lengths) == number and max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize("rank, name", [(0, "worker 0"), (2, "worker 2"), (3, "parameter server 0")])
def test_ranks_have_names_by_their_roles(rank, name):
    assert Roles(workers=3, servers=2).place(rank) == name
