"""The memory model beside what a process really takes on a CPU: python tests/perf/step_memory.py [BENCHMARK PRESET
BATCH plain|own KEY=VALUE…]. Two steps; the growth of the process from before the model to its highest point. The
kernels are PyTorch's or, for DeepCAM, the suite's own; KEY=VALUE changes settings of the preset."""

import resource
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from mlhpc.benchmarks.load import load
from mlhpc.common.host.malloc import keep_memory
from mlhpc.common.pytorch.devices import place
from mlhpc.deepcam.cpu.kernels import use_cpu_kernels
from mlhpc.deepcam.metric import weighted_cross_entropy
from mlhpc.deepcam.model import build_model as build_deepcam
from mlhpc.deepcam.optim.optimizer import make_optimizer as deepcam_optimizer
from mlhpc.perf.accelerator.memory import memory_of
from mlhpc.resnet50.metric import cross_entropy
from mlhpc.resnet50.model import build_model as build_resnet50
from mlhpc.resnet50.optim.optimizer import make_optimizer as resnet50_optimizer


def main(
    benchmark: str = "deepcam", preset: str = "mini", batch: str = "2", kernels: str = "plain", *settings: str
) -> None:
    run: Any = load(benchmark, preset, settings)
    samples = int(batch)
    rows, columns, channels = run.data.sample_shape
    x = torch.randn(samples, channels, rows, columns)
    keep_memory()
    before = highest()
    model: nn.Module
    if benchmark == "deepcam":
        model = deeplab = build_deepcam(run.network, channels)
        if kernels == "own":
            use_cpu_kernels(deeplab)
        loss_of: Callable[..., torch.Tensor] = weighted_cross_entropy
        optimizer = deepcam_optimizer(run.hyperparameters, model.parameters())
        y = torch.zeros(samples, rows, columns, dtype=torch.uint8)
    else:
        model, loss_of = build_resnet50(run.network), cross_entropy
        optimizer = resnet50_optimizer(run.hyperparameters, model, run.training.sgd)
        y = torch.zeros(samples, dtype=torch.int64)
    place(model, torch.device("cpu"), channels_last=True)
    x = x.contiguous(memory_format=torch.channels_last)
    for _ in range(2):
        logits = model(x)
        loss_of(logits, y).backward()
        optimizer.step()
        optimizer.zero_grad()
    model_mb = memory_of(run, samples, gpu=False).peak / 1e6
    print(
        f"{benchmark} {preset}, {samples} samples, {kernels} kernels: model {model_mb:.0f} MB, "
        f"process {(highest() - before) / 1e3:.0f} MB"
    )


def highest() -> int:
    """KB that the process has had at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    main(*sys.argv[1:])
