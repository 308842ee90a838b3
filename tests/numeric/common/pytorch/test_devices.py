"""The device of a rank on any vendor's machine: which one, errors for a missing one and for too little memory."""

from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from mlhpc.benchmarks import load
from mlhpc.common.host import accelerators
from mlhpc.common.host.accelerators import Accelerator
from mlhpc.common.pytorch import devices as module
from mlhpc.common.pytorch.devices import (
    device_events,
    device_ranges,
    oom_as_user_error,
    peak_memory,
    pick_device,
)
from mlhpc.common.ranks.torch_world import backend_for
from mlhpc.common.ranks.world import Solo
from mlhpc.common.timing.runlog import RunLog
from mlhpc.cosmoflow.data.encoded import Encoded
from mlhpc.cosmoflow.pytorch import batches
from mlhpc.deepcam.data import source
from mlhpc.errors import DeviceLost, UserError

ROOT = Path(__file__).resolve().parents[4]
CPU = torch.device("cpu")


def test_a_cpu_has_no_events_no_ranges_and_no_memory_of_its_own():
    assert device_events(CPU) is None and device_ranges(CPU) is None and peak_memory(CPU) is None


def test_spans_are_ranges_of_the_vendors_profilers():
    assert device_ranges(torch.device("cuda", 1)) is torch.cuda.nvtx  # with ROCm ROCTX's, by the same names
    intels = device_ranges(torch.device("xpu"))
    assert intels is torch.profiler.itt and intels.range_push and intels.range_pop


class _Enough(Exception):
    """The trainer has got as far as the test looks."""


@pytest.mark.parametrize(
    "benchmark, trainer",
    [("deepcam", "deepcam.train"), ("resnet50", "resnet50.train"), ("cosmoflow", "cosmoflow.pytorch.train")],
)
def test_a_trainer_gives_the_log_the_ranges_of_its_device(benchmark, trainer, tmp_path, monkeypatch):
    train, ranges = import_module(f"mlhpc.{trainer}"), Mock()
    monkeypatch.setattr(train, "device_ranges", {CPU: ranges}.__getitem__)
    monkeypatch.setattr(train.torch, "manual_seed", Mock(side_effect=_Enough))
    run = load.load(benchmark, "smoke", ["training.framework=pytorch", "training.device=cpu"])
    with RunLog(tmp_path, Solo()) as log, pytest.raises(_Enough):
        train.train(run, tmp_path, None, 1, None, Solo(), log)
    assert log.ranges is ranges


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 20.00 MiB.\nGPU 0 has a total capacity of 8"
        ),
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
        torch.OutOfMemoryError(
            "HIP out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 64"
        ),
        RuntimeError("level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)"),
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


@pytest.mark.parametrize("trainer", ["cosmoflow.pytorch", "deepcam", "resnet50"])
def test_too_little_memory_anywhere_in_a_training_is_a_one_line_error(monkeypatch, trainer):
    train = import_module(f"mlhpc.{trainer}.train")
    benchmark, _, framework = trainer.partition(".")
    run = load.load(benchmark, "smoke", [f"training.framework={framework}"] if framework else [])
    monkeypatch.setattr(train, "divide_batch", full)
    with pytest.raises(UserError, match="too little memory"):
        train.train(run, Path(), None, 1, None, Solo(), None)


def full(*_):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")


def test_too_little_memory_for_decoding_names_that_setting(monkeypatch):
    parts = [((4, 4, 2), "float32"), ((4, 4), "uint8")]
    decoder = source._DecodedOnDevice(SimpleNamespace(parts=parts, normalisation=None), "cpu")
    monkeypatch.setattr(decoder, "_decode", full)
    monkeypatch.setattr(batches, "decode", full)
    encoded = Encoded((1, 4, 4, 4, 4), *(np.zeros(1),) * 4, (0,))
    for decode in (
        lambda: decoder.finish([torch.zeros(1, 4, 4)], [(None, 0)]),
        lambda: batches.converter("float32", torch.device("cpu"))((encoded, np.zeros((1, 4), np.float32))),
    ):
        with pytest.raises(UserError, match=r"too little memory for decoding a batch .*loading\.decode=host"):
            decode()


@pytest.mark.parametrize(
    "fault, lost", [("uncorrectable ECC error encountered", True), ("device-side assert", False)]
)
def test_a_device_that_has_failed_is_a_one_line_error_and_a_fault_of_the_program_none(fault, lost):
    with (
        pytest.raises(DeviceLost if lost else torch.AcceleratorError, match=fault) as raised,
        oom_as_user_error(),
    ):
        raise torch.AcceleratorError(f"CUDA error: {fault}\nCompile with TORCH_USE_CUDA_DSA")
    assert not lost or "\n" not in str(raised.value)


def test_too_little_host_memory_is_a_one_line_error():
    match = "too little host memory for this run .*you tried to allocate"
    with pytest.raises(UserError, match=match), oom_as_user_error():
        torch.empty(1 << 60, dtype=torch.uint8)


def test_other_errors_pass():
    with pytest.raises(RuntimeError, match="shapes"), oom_as_user_error():
        raise RuntimeError("shapes do not match")


@pytest.fixture
def machine(monkeypatch):
    """Makes PyTorch see ``count`` accelerators of a type, in a build for ROCm or not; no such device is here."""
    monkeypatch.setattr(accelerators, "installed", list)

    def sees(kind, count, rocm=None, here=(9, 0, "gfx90a:sramecc+:xnack-"), built=None):
        facts = SimpleNamespace(major=here[0], minor=here[1], gcnArchName=here[2], name="a GPU")
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: facts)
        built = built or (["gfx90a", "gfx942"] if rocm else ["sm_80", "sm_90"])
        monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: built)
        monkeypatch.setattr(torch.accelerator, "device_count", lambda: count)
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: torch.device(kind))
        monkeypatch.setattr(torch.accelerator, "set_device_index", lambda index: None)
        monkeypatch.setattr(torch.version, "hip", rocm)

    sees("cuda", 0)
    return sees


@pytest.mark.parametrize(
    "kind, count, rocm, choice, picked",
    [
        ("cuda", 4, None, "auto", "cuda:3"),
        ("cuda", 8, "6.4", "auto", "cuda:3"),
        ("cuda", 8, "6.4", "rocm", "cuda:3"),
        ("cuda", 8, "6.4", "cuda", "cuda:3"),  # as PyTorch calls it there
        ("xpu", 12, None, "xpu", "xpu:3"),
        ("xpu", 12, None, "auto", "xpu:3"),
        ("cuda", 1, None, "cuda", "cuda:0"),  # the launcher shows each rank its own
        ("xpu", 12, None, "cpu", "cpu"),
    ],
)
def test_local_rank_3_gets_its_own_device_on_any_vendors_machine(machine, kind, count, rocm, choice, picked):
    machine(kind, count, rocm)
    assert pick_device(choice, 3) == torch.device(picked)


@pytest.mark.parametrize(
    "rocm, here, built, runs",
    [
        (None, (7, 0, ""), ["sm_75", "sm_80"], False),
        (None, (8, 6, ""), ["sm_75", "sm_80"], True),  # of the same generation
        (None, (8, 9, ""), ["sm_90"], False),
        (None, (12, 0, ""), ["sm_90", "sm_90a"], False),
        (None, (12, 0, ""), ["sm_90", "compute_90"], True),  # PTX
        ("6.4", (9, 0, "gfx942:sramecc+"), ["gfx90a", "gfx942"], True),
        ("6.4", (9, 0, "gfx906:sramecc+"), ["gfx90a", "gfx942"], False),
    ],
)
def test_a_build_without_code_for_the_device_is_one_line(machine, rocm, here, built, runs):
    machine("cuda", 1, rocm, here, built)
    if runs:
        assert pick_device("auto", 0) == torch.device("cuda:0")
        return
    with pytest.raises(UserError, match=r"has code for .*, and none for a GPU .*: install ") as raised:
        pick_device("auto", 0)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "kind, count, rocm, choice, instead",
    [
        ("cuda", 0, None, "cuda", "no accelerator here; use cpu or auto"),
        ("cuda", 0, None, "xpu", "no accelerator here; use cpu or auto"),
        ("cuda", 4, None, "xpu", "only cuda devices here; use cuda, cpu or auto"),
        ("cuda", 4, None, "rocm", "only cuda devices here; use cuda, cpu or auto"),
        ("xpu", 4, None, "cuda", "only xpu devices here; use xpu, cpu or auto"),
        ("cuda", 4, "6.4", "xpu", "only rocm devices here; use rocm, cpu or auto"),
    ],
)
def test_a_device_that_is_not_there_is_one_line(machine, kind, count, rocm, choice, instead):
    machine(kind, count, rocm)
    with pytest.raises(UserError, match=rf"training\.device={choice}: .*{instead}") as raised:
        pick_device(choice, 0)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "vendor, name, variable",
    [("nvidia", "NVIDIA H100", "CUDA_VISIBLE_DEVICES"), ("amd", "AMD Instinct MI300X", "HIP_VISIBLE_DEVICES"),
     ("intel", "Intel(R) Data Center GPU Max 1550", "ZE_AFFINITY_MASK")],
)  # fmt: skip
def test_device_auto_refuses_to_fall_back_to_the_cpu_if_the_machine_has_a_gpu(
    machine, monkeypatch, vendor, name, variable
):
    monkeypatch.setattr(accelerators, "installed", lambda: [Accelerator(vendor, name)])
    for each in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"):
        monkeypatch.delenv(each, raising=False)
    with pytest.raises(UserError, match=r"PyTorch does not see this machine's"):
        pick_device("auto", 0)
    assert pick_device("cpu", 0) == CPU
    monkeypatch.setenv(variable, "")  # hidden on purpose
    assert pick_device("auto", 0) == CPU


@pytest.mark.parametrize(
    "kind, wanted", [(None, "gloo"), ("cuda", "cpu:gloo,cuda:nccl"), ("xpu", "cpu:gloo,xpu:xccl")]
)
def test_the_backend_follows_the_device(monkeypatch, kind, wanted):
    """NCCL also for AMD's devices, where it is RCCL."""
    monkeypatch.setattr(torch.distributed, "is_backend_available", lambda name: True)
    assert backend_for(kind) == wanted


def test_a_build_without_the_devices_library_uses_gloo():
    assert not torch.distributed.is_xccl_available() and backend_for("xpu") == "gloo"


SOURCES = [
    path
    for folder in ("common/pytorch", "cosmoflow/pytorch", "deepcam", "resnet50")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if path != ROOT / "common/pytorch/devices.py"
]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_one_file_names_a_vendors_devices(path):
    assert "cuda" not in path.read_text().lower(), (
        f"{path}: use torch.accelerator, or common/pytorch/devices.py"
    )


@pytest.mark.parametrize(
    ("ranks", "version", "handled", "said"),
    [
        (1, (2, 8, 4), None, ""),
        (2, (2, 9, 6), "0", ""),
        (2, (2, 8, 4), "0", "it needs NCCL 2.9.6, not 2.8.4"),
        (2, (2, 27, 3), "3", "it needs TORCH_NCCL_ASYNC_ERROR_HANDLING=0 before ranks connect"),
        (2, (2, 27, 3), None, "it needs TORCH_NCCL_ASYNC_ERROR_HANDLING=0 before ranks connect"),
    ],
)
def test_what_graphs_of_several_ranks_need_of_nccl(monkeypatch, ranks, version, handled, said):
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: version)
    monkeypatch.delenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", raising=False)
    if handled is not None:
        monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", handled)
    assert module.without_graphs(torch.device("cuda", 0), ranks) == said


def test_graphs_are_for_nvidia(monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "6.4")
    for kind in ("cuda", "xpu", "cpu"):
        assert module.without_graphs(torch.device(kind, 0), 1) == "it needs an NVIDIA GPU"
