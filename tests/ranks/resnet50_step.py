"""One rank of a test: gradients over ranks against one rank with the whole batch; averaged statistics."""

from copy import deepcopy
from unittest.mock import patch

import numpy as np
import torch
from torch import nn

from mlhpc.benchmarks.resnet50 import Network
from mlhpc.common.pytorch.step import (
    average_statistics,
    make_eval_step,
    make_scaler,
    make_train_step,
    wrap_ddp,
)
from mlhpc.common.ranks import launch
from mlhpc.resnet50.metric import count_correct, cross_entropy
from mlhpc.resnet50.model import build_model


def main() -> None:
    world = launch.connect("torch")
    torch.manual_seed(5)
    whole = build_model(Network(classes=7, width=0.125, blocks=(1, 1, 1, 1))).double()
    x = torch.randn(3 * world.size, 3, 32, 32, dtype=torch.float64)
    y = torch.randint(7, (len(x),))
    mine = slice(3 * world.rank, 3 * world.rank + 3)
    # Batch norm takes each rank's own batch; while its statistics stand still, ranks make no difference.
    for module in whole.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    part = deepcopy(whole)
    scaler = make_scaler("float32", torch.device("cpu"))
    for model, network, inputs in ((whole, whole, slice(None)), (part, wrap_ddp(part, world), mine)):
        step = make_train_step(network, cross_entropy, torch.optim.SGD(model.parameters(), 0.5), scaler)
        with patch.object(nn.BatchNorm2d, "train", lambda module, mode=True: module):  # they stay as they are
            for _ in range(3):
                step(x[inputs], y[inputs])
    for (name, ours), theirs in zip(part.named_parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12, msg=f"{name}: {{}}".format)

    # An evaluation between two steps does not change training.
    trained = build_model(Network(classes=7, width=0.125, blocks=(1, 1, 1, 1)))
    sgd = torch.optim.SGD(trained.parameters(), 0.1)
    step = make_train_step(wrap_ddp(trained, world), cross_entropy, sgd, scaler)
    for _ in range(3):
        untrained = trained.get_buffer("bn1.running_mean").clone()
        step(x[mine].float(), y[mine])
        stepped = {name: value.clone() for name, value in trained.state_dict().items()}
        assert not torch.equal(stepped["bn1.running_mean"], untrained)
        make_eval_step(trained, count_correct)(x[mine].float(), y[mine])
        assert all(torch.equal(stepped[name], value) for name, value in trained.state_dict().items())

    # Running statistics differ, until they are averaged.
    alone = build_model(Network(classes=7, width=0.125, blocks=(1, 1, 1, 1)))
    alone(x[mine].float())
    of_ranks = world.gather([b.clone().numpy() for b in alone.buffers() if b.is_floating_point()])
    average_statistics(alone, world)
    assert any(not np.array_equal(a, b) for a, b in zip(*of_ranks[:2], strict=True))
    after = [b for b in alone.buffers() if b.is_floating_point()]
    for averaged, *before in zip(after, *of_ranks, strict=True):
        torch.testing.assert_close(averaged, torch.from_numpy(sum(before) / world.size))
    world.close()


if __name__ == "__main__":
    main()
