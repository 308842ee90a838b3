"""Bytes of a sample as stored and as received by the accelerator."""

import math
from dataclasses import dataclass

from mlhpc.benchmarks.schema import Run

GZIP_COSMOFLOW = 2_828_486
"""Mean bytes of a GZIP TFRecord of CosmoFlow since round 1.0 (MLPerf Storage 1.0, workload cosmoflow)."""
FILE_DEEPCAM = 61_000_000
"""Bytes of an HDF5 file with fields and labels (Ibrahim et al. 2021, table I)."""
JPEG_IMAGENET = 114_660
"""Mean bytes of an ImageNet image (MLPerf Storage 1.0, workload resnet50)."""
FILES_IMAGENET = 1024 / 1_281_167
"""Files per image of ImageNet's TFRecords, of which the training set has 1,024."""
_OFFICIAL = {"cosmoflow": (128, 128, 128, 4), "deepcam": (768, 1152, 16), "resnet50": (224, 224, 3)}
_TYPE_BYTES = {"int16": 2, "float16": 2, "bfloat16": 2, "float32": 4}


@dataclass(frozen=True)
class SampleBytes:
    """Bytes of a sample. ``stored``: in its file. ``received``: as delivered by the loader, including labels;
    these bytes cross the host's link and are what preparation rates count. ``files``: number of files opened per
    sample."""

    stored: float
    received: float
    files: float = 1.0


def sample_bytes(run: Run) -> SampleBytes:
    """The stored and received size of a sample in ``run``'s data set. If the shape is not the official one, the
    sizes are scaled by the number of values.

    Values are delivered in ``loading.sample_dtype``, ResNet-50's in float32. Samples that a GPU decodes
    (``loading.decode=device``, and images with DALI) cross the link encoded, in fewer bytes than given here.
    """
    values = math.prod(run.data.sample_shape)
    received = float(
        values * _TYPE_BYTES[getattr(run.loading, "sample_dtype", "float32")] + _label_bytes(run)
    )
    share = values / math.prod(_OFFICIAL.get(run.benchmark, run.data.sample_shape))
    if run.benchmark == "cosmoflow":
        stored = GZIP_COSMOFLOW * share if getattr(run.data, "gzip", False) else values * 2.0
    elif run.benchmark == "deepcam":
        stored = FILE_DEEPCAM * share
    elif run.benchmark == "resnet50":
        stored = JPEG_IMAGENET * share
    else:
        stored = received
    return SampleBytes(stored, received, FILES_IMAGENET if run.benchmark == "resnet50" else 1.0)


def _label_bytes(run: Run) -> int:
    if run.benchmark == "cosmoflow":
        return 4 * int(getattr(run.network, "targets", 0))
    if run.benchmark == "deepcam":
        return math.prod(run.data.sample_shape[:-1])  # one byte per pixel: its class
    return 8 if run.benchmark == "resnet50" else 0
