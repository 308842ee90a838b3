"""The doctor's look at the network of ranks with GPUs: NCCL is started, reduces, and its log says over what."""

import os
import re
import subprocess
import sys
from pathlib import Path

from fake_cuda.library import devices, loader


def test_two_ranks_report_bus_bandwidth_and_what_nccl_sends_over(tmp_path: Path) -> None:
    folder = str(tmp_path)
    argv = [sys.executable, "-m", "mlhpc", "doctor", "deepcam", "--stage", folder, "--out", folder]
    env = (
        os.environ
        | loader()
        | devices(changes={"devices": 2})
        | {"MLHPC_SIZE": "2", "MLHPC_TOKEN": "t", "NCCL_NET": "IB"}
    )
    ranks = [
        subprocess.Popen(argv, env=env | {"MLHPC_RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=300)[0] for rank in ranks]
    line = next(line for line in said[0].splitlines() if " fabric " in line)
    sizes = re.findall(r"/s at (\S+ \wB)", line)
    assert line.startswith("pass") and len(sizes) == 3 and line.endswith(", over IB"), said
    assert said[1] == ""
