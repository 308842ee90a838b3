"""The doctor's look at the network of ranks with GPUs: NCCL is started, reduces, and its log says over what."""

import json
import re
from pathlib import Path

from fake_cuda.library import devices
from smoke.fake_cuda.conftest import run

TWO_RANKS = """
import json, os, subprocess, sys

command = [sys.executable, "-m", "mlhpc", *sys.argv[1:]]
envs = [os.environ | {"MLHPC_SIZE": "2", "MLHPC_TOKEN": "t", "MLHPC_RANK": rank} for rank in "01"]
ranks = [subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) for env in envs]
print(json.dumps([rank.communicate(timeout=300)[0] for rank in ranks]))
"""


def test_two_ranks_report_bus_bandwidth_and_what_nccl_sends_over(tmp_path: Path) -> None:
    words = ["doctor", "deepcam", "--stage", tmp_path, "--out", tmp_path]
    env = devices(changes={"devices": 2, "moved_bytes": 4096}) | {"NCCL_NET": "IB", "TMPDIR": str(tmp_path)}
    done = run(["-c", TWO_RANKS, *words], env)
    said = json.loads(done.stdout)
    line = next(line for line in said[0].splitlines() if " fabric " in line)
    sizes = re.findall(r"/s at (\S+ \wB)", line)
    assert line.startswith("pass") and len(sizes) == 3 and line.endswith(", over IB"), said
    assert said[1] == ""
