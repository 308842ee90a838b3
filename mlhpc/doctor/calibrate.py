"""``mlhpc doctor --calibrate``: measures this machine and writes a machine file (perf/machines.py)."""

import os
import platform
import shutil
import tempfile
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tomli_w
from rich.console import Console

from mlhpc.common.files.atomic import write_bytes
from mlhpc.common.files.filesystem import as_user_error, require_new
from mlhpc.common.host import speed
from mlhpc.common.host.provenance import cpu_model
from mlhpc.errors import UserError
from mlhpc.perf.machines import known, machine, parse, written
from mlhpc.perf.profile.host import is_of


def calibrate(out: Path | None, folder: Path | None, console: Console) -> int:
    """Measure matrix products, memory copies, the disk (in ``folder``, default $TMPDIR), the loopback network and,
    if PyTorch finds one, the GPU; write the results to the machine file ``out``. Raises UserError if the file
    cannot be written."""
    if out is None:
        raise UserError("--calibrate writes a machine file: add --out FILE.toml")
    require_new(out)
    place = folder or Path(tempfile.gettempdir())
    console.print("measuring for about ten seconds; leave the machine idle")
    with as_user_error(place, "cannot be written or read", "choose another --stage"):
        text = tomli_w.dumps(_measured(place))
    measured = parse(text, str(out), out.stem)  # verifies that the file is valid
    with as_user_error(out, "cannot be written", "choose another --out FILE.toml"):
        write_bytes(out, text.encode())
    for key, value in measured.figures.items():
        console.print(f"  {key:26} {written(key, value)}", markup=False, highlight=False)
    console.print(f"{out}: use it with mlhpc predict --machine and mlhpc report --machine", markup=False)
    return 0


def _measured(place: Path) -> dict[str, Any]:
    """The tables of the machine file, with the measured values."""
    when = datetime.now(UTC).strftime("%Y-%m-%d")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cores = len(os.sched_getaffinity(0))

    gpu, processor = _gpu(), cpu_model() or platform.machine()
    model = str(gpu["model"]) if gpu else processor
    accelerator: dict[str, Any] = {
        "model": model,
        "family": _family(model, is_cpu=gpu is None),
        "per_node": gpu["count"] if gpu else 1,
    }
    tables: dict[str, Any] = {"title": f"{platform.node() or 'this machine'}, as measured", "nodes": 1}
    tables |= {"accelerator": accelerator, "host": {"processor": processor, "cores": cores}}
    tables |= {"network": {"nics": 1}, "storage": {}}

    def figure(key: str, value: float, how: str) -> None:
        table, _, name = key.partition(".")
        measured = {"value": written(key, value), "source": f"measured {when}: {how}"}
        tables.setdefault(table, {})[name] = measured

    copied = "copy, reads and writes"
    if gpu:
        for key in ("float32", "tf32", "bfloat16", "float16"):
            if rate := gpu.get(key):
                figure(f"accelerator.{key}", rate, "matrix product, PyTorch")
        figure("accelerator.memory", gpu["memory"], "as reported by the driver")
        figure("accelerator.bandwidth", gpu["bandwidth"], copied)
        figure("links.host", gpu["host"], "copy of page-locked memory to the GPU")
        figure("host.memory", memory, "as reported by the kernel")
        figure("host.memory_bandwidth", speed.memory_copy(), copied)
    else:
        accelerator["is_cpu"] = True
        figure("accelerator.float32", speed.matrix_product(), "matrix product, NumPy")
        figure("accelerator.memory", memory, "as reported by the kernel")
        figure("accelerator.bandwidth", speed.memory_copy(), copied)
    read, write, resident = speed.disk(place)
    cached = f"{resident:.0%} of it in memory" if resident else "not in the page cache"
    rate, delay = speed.loopback()
    figure("storage.local", shutil.disk_usage(place).free, f"free on {place}")
    figure("storage.local_read", read, f"256 MiB, {cached}")
    figure("storage.local_write", write, "256 MiB with fsync")
    figure("network.bandwidth", rate, "TCP over loopback, not a network")
    figure("network.latency", delay, "TCP over loopback, not a network")
    return tables


def _family(model: str, is_cpu: bool) -> str:
    """The family of the suite's machines to which the accelerator or processor ``model`` belongs, so that its
    published results apply; ``model`` itself if there is none."""
    families = {each.family for each in map(machine, known()) if each.is_cpu == is_cpu}
    return next((family for family in sorted(families) if is_of(family, model)), model)


def _gpu() -> dict[str, Any] | None:
    """PyTorch's measurements of the first GPU; None without PyTorch or a GPU."""
    if find_spec("torch") is None:
        return None
    from mlhpc.doctor.gpu_speed import gpu_speed

    return gpu_speed()
