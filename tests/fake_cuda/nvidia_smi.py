"""``nvidia-smi`` for the devices of the stand-in: the two forms that the suite calls."""

import os
import sys

DRIVER = "580.159.04"  # of the machine in docs/evidence/performance.md, "On a GPU"

words = f"{os.environ['FAKE_CUDA_DEVICE']};{os.environ['FAKE_CUDA_SET']}".split(";")
model = dict(word.split("=", 1) for word in words if word)
query = next((word.partition("=")[2] for word in sys.argv if word.startswith("--query-gpu=")), None)
for number in range(int(model.get("devices", 1))):
    unit = "" if "nounits" in " ".join(sys.argv) else " MiB"
    facts = {
        "name": model["name"],
        "memory.total": f"{int(model['memory_bytes']) >> 20}{unit}",
        "driver_version": DRIVER,
    }
    if query:
        print(", ".join(facts.get(name, "[N/A]") for name in query.split(",")))
    else:
        print(f"GPU {number}: {model['name']} (UUID: GPU-00000000-0000-0000-0000-{number + 1:012d})")
