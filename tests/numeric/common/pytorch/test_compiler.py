"""Where torch.compile cannot build anything, the error says so instead of showing Inductor's traceback."""

import sysconfig

import pytest
import torch
from torch import nn

from mlhpc.common.pytorch.step import make_eval_step
from mlhpc.errors import UserError


def evaluate(compiled: bool) -> torch.Tensor:
    model = nn.Linear(2, 1)
    step = make_eval_step(model, lambda logits, y: logits - y, compiled=compiled)
    return step(torch.zeros(3, 2), torch.zeros(3, 1))


def test_without_headers(tmp_path, monkeypatch):
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(UserError, match=rf"Python's headers, and {tmp_path}/Python.h was not found; install"):
        evaluate(True)
    assert evaluate(False).shape == (3, 1)


@pytest.mark.parametrize(("variables", "named"), [({}, r"g\+\+ was"), ({"CXX": "icpx -O2"}, "icpx -O2 was")])
def test_without_a_compiler(tmp_path, monkeypatch, variables, named):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=rf"needs a compiler, and {named} not found.*training.compile=false"):
        evaluate(True)
