"""What a good node reports to ``mlhpc doctor``."""

import copy
from typing import Any

from mlhpc.common.ranks.environment import RankInfo

FOLDER = {"path": "/scratch", "type": "xfs", "is_ram": False, "shared": False, "free": 900 << 30,
          "exists": True, "writable": True}  # fmt: skip

NODE = {
    "host": "n0", "local_size": 1, "cores": 8, "numa_nodes": 1,
    "bindings": [{"cores": "0-7", "numa_nodes": "0"}], "python": "3.11.7", "machine_cores": 8, "gpus": [],
    "energy": [],
    "energy_sampled_by": "",
    "threads": {}, "driver": None,
    "packages": {"mlhpc": "0.1.0", "tensorflow": "2.18.1", "horovod": "0.28.1", "torch": "2.12.1"},
    "extras": {"submission": True, "pages": True, "samples": True},
    "compiled": {"decoders": True, "gradients": True},
    "commit": "abc", "horovod_built_for": "2.18.1", "infiniband": False, "memlock": 8 << 20,
    "clock_synchronised": True,
    "no_interface": {}, "shm": FOLDER | {"path": "/dev/shm", "type": "tmpfs", "is_ram": True},
    "environment": FOLDER | {"path": "/opt/venv"},
    "data": FOLDER | {"path": "/lustre/d", "type": "lustre", "shared": True, "bytes": 100 << 30, "files": 9,
                      "digest": 1},
    "stage": FOLDER, "out": FOLDER | {"path": "/lustre/r", "type": "lustre", "shared": True},
    "tensorflow": {"version": "2.18.1", "gpus": 0, "horovod": {"gloo": True, "mpi": False, "nccl": False}},
    "torch": {"version": "2.12.1", "gpus": 0, "gloo": True, "backend": None, "built": False}, "offset_s": 0.0,
}  # fmt: skip

SRUN = RankInfo("srun", 0, 2, 0, 1, 0, 2)


def spoiled(**changes: object) -> dict[str, Any]:
    """The good node with ``a__b=value`` set at ["a"]["b"]."""
    node = copy.deepcopy(NODE)
    for name, value in changes.items():
        *above, last = name.split("__")
        place: Any = node
        for key in above:
            place = place[key]
        place[last] = value
    return node


GPU = {"gpus": ["NVIDIA A100, 40960 MiB"] * 4, "local_size": 4, "cores": 2}
