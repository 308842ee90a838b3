"""Bytes of a sample as it is stored, and as the accelerator receives it."""

import math
from dataclasses import dataclass

from mlhpc.benchmarks.schema import Run

GZIP_COSMOFLOW = 2_828_486
"""Mean bytes of a GZIP TFRecord of CosmoFlow, rounds 1.0 on (MLPerf Storage 1.0, workload cosmoflow)."""
FILE_DEEPCAM = 61_000_000
"""Bytes of an HDF5 file with fields and labels (paper 000, table I)."""
JPEG_IMAGENET = 114_660
"""Mean bytes of an ImageNet image (MLPerf Storage 1.0, workload resnet50)."""
_OFFICIAL = {"cosmoflow": (128, 128, 128, 4), "deepcam": (768, 1152, 16), "resnet50": (224, 224, 3)}
_DEVICE_BYTES = {"cosmoflow": 4, "deepcam": 4, "resnet50": 1}


@dataclass(frozen=True)
class SampleBytes:
    stored: float
    received: float


def sample_bytes(run: Run) -> SampleBytes:
    """Of ``run``'s data set. Other sizes than the official are scaled by their number of values."""
    values = math.prod(run.data.sample_shape)
    received = float(values * _DEVICE_BYTES.get(run.benchmark, 4))
    share = values / math.prod(_OFFICIAL.get(run.benchmark, run.data.sample_shape))
    if run.benchmark == "cosmoflow":
        stored = GZIP_COSMOFLOW * share if getattr(run.data, "gzip", False) else values * 2.0
    elif run.benchmark == "deepcam":
        stored = FILE_DEEPCAM * share
    elif run.benchmark == "resnet50":
        stored = JPEG_IMAGENET * share
    else:
        stored = received
    return SampleBytes(stored, received)


def data_set_bytes(run: Run) -> float:
    """Of the training samples."""
    return sample_bytes(run).stored * run.data.train_samples
