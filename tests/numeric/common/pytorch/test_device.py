"""The device of a rank: errors for a missing GPU, and for too little memory."""

import pytest
import torch

from mlhpc.common.pytorch import device as module
from mlhpc.common.pytorch.device import device_events, oom_as_user_error, peak_memory, pick_device
from mlhpc.errors import UserError

CPU = torch.device("cpu")


def test_a_cpu_has_no_events_and_no_memory_of_its_own():
    assert device_events(CPU) is None and peak_memory(CPU) is None


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 20.00 MiB.\nGPU 0 has a total capacity of 8"
        ),
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
        MemoryError(),
    ],
)
def test_too_little_memory_is_a_one_line_error_in_any_phase(error):
    @oom_as_user_error()
    def train():
        raise error

    with pytest.raises(UserError, match=r"too little (host )?memory for this run") as raised:
        train()
    assert "\n" not in str(raised.value)


def test_too_little_host_memory_is_a_one_line_error():
    match = "too little host memory for this run .*you tried to allocate"
    with pytest.raises(UserError, match=match), oom_as_user_error():
        torch.empty(1 << 60, dtype=torch.uint8)


def test_other_errors_pass():
    with pytest.raises(RuntimeError, match="shapes"), oom_as_user_error():
        raise RuntimeError("shapes do not match")


def test_device_auto_refuses_to_fall_back_to_the_cpu_if_the_machine_has_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(module.Path, "glob", lambda self, pattern: iter(["0000:01:00.0"]))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(UserError, match=r"training\.device=auto.*PyTorch does not see"):
        pick_device("auto", 0)
    assert pick_device("cpu", 0) == CPU
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # hidden on purpose
    assert pick_device("auto", 0) == CPU
