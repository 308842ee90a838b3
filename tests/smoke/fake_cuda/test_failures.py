"""What a run says when a device has too little memory or is lost."""

import pytest
from smoke.fake_cuda.conftest import on_device, python

MIB = 1 << 20
DECODE = """
import numpy as np, torch
from mlhpc.cosmoflow.data.encoded import Encoded
from mlhpc.cosmoflow.pytorch.batches import converter
from mlhpc.errors import UserError

side, table = 128, np.ones((1, 4), np.float32)
keys, blocks = np.zeros(side**3, np.uint16), np.array([side**3])
batch = Encoded((1, side, side, side, 4), keys, table, np.zeros(1, np.int32), blocks, (0,))
try:
    converter("float32", torch.device("cuda"))((batch, np.zeros((1, 4), np.float32)))
except UserError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("mib", "chosen", "said"),
    [
        (2, [], "too little memory for this run"),
        (8, [], "for 4 samples at once"),
        (60, ["training.eval_batch_size=256"], "for 256 samples at once"),
    ],
    ids=["init", "training", "evaluation"],
)
def test_too_little_memory_is_one_line_that_names_the_setting(sets, tmp_path, mib, chosen, said):
    changes = {"memory_bytes": mib * MIB}
    done = on_device(tmp_path, sets["deepcam"], "deepcam", *chosen, model="small", changes=changes)
    assert done.status == 2
    line = done.said.splitlines()[-1]
    assert line.startswith("mlhpc: a GPU has too little memory") and said in line, done.said
    smaller = {2: "a smaller batch", 8: "a smaller batch per pass", 60: "a smaller training.eval_batch_size"}
    assert smaller[mib] in line


def test_too_little_memory_to_decode_a_batch_names_the_setting_that_decodes_elsewhere():
    """The warm-up of a run needs more than its decoding, so a run ends before it."""
    (line,) = python(DECODE, memory_bytes=16 * MIB).splitlines()
    assert line.startswith("a GPU has too little memory for decoding a batch")
    assert "loading.decode=host" in line


def test_a_device_that_is_lost_is_one_line_of_a_single_rank(sets, tmp_path):
    done = on_device(tmp_path, sets["deepcam"], "deepcam", changes={"lost_after_launches": 2500})
    assert done.status == 2 and "Traceback" not in done.said
    line = done.said.splitlines()[-1]
    assert line.startswith("mlhpc: the GPU of this process has failed (CUDA error: uncorrectable ECC error")


def test_a_rank_whose_device_is_slow_is_named_with_device_and_phase_before_it_trains(sets, tmp_path):
    changes = {"devices": 2, "slow_device": 1, "slow_factor": 100, "kernel_us cudnnBackendExecute": 200}
    short = "training.max_epochs=1"
    done = on_device(tmp_path, sets["deepcam"], "deepcam", short, words=("--ranks", 2), changes=changes)
    said = done.said.splitlines()
    (slow,) = [number for number, line in enumerate(said) if "is slow" in line]
    assert said[slow].startswith("mlhpc: rank 1 on ") and "NVIDIA H100 80GB HBM3 (cuda:1)" in said[slow]
    assert "is slow in phase 'init'" in said[slow]
    assert slow < next(number for number, line in enumerate(said) if line.startswith("epoch 1 of"))


def test_of_two_ranks_the_one_whose_device_is_lost_is_named_with_its_phase(sets, tmp_path):
    changes = {"devices": 2, "lost_device": 1, "lost_after_launches": 2500}
    done = on_device(tmp_path, sets["deepcam"], "deepcam", words=("--ranks", 2), changes=changes)
    assert done.status not in (0, 1)
    assert "uncorrectable ECC error" in done.said
    (line,) = [
        line for line in done.said.splitlines() if line.startswith("mlhpc: rank") and "was lost" in line
    ]
    assert line.startswith("mlhpc: rank 1 on ") and "in phase 'train of epoch 1'" in line
