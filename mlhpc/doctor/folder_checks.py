"""Checks of the folders that a run uses: data set, staging, results, shared memory."""

from collections.abc import Iterator, Mapping
from typing import Any

from mlhpc.doctor.check_result import CheckResult
from mlhpc.quantities import bytes_text, count

Folder = Mapping[str, Any]

SHM_WARN = 1 << 30  # the 64 MiB of container engines are too little for data loaders' workers and NCCL
OUT_WARN = 1 << 30
MANY_RANKS = 64  # ranks that each open 2,000 files before the first step, and look up ten times as many paths


def dataset(folder: Folder, benchmark: str | None) -> Iterator[CheckResult]:
    """Check the data set; no result if no folder was passed."""
    if not folder:
        return
    label = _describe(folder)
    if not folder.get("exists"):
        make = f"mlhpc data make {benchmark or 'BENCHMARK'}"
        yield CheckResult(
            "fail", "data set", f"{folder['path']} does not exist", f"pass --data, or generate data: {make}"
        )
    elif "manifest_error" in folder:
        yield CheckResult("fail", "data set", folder["manifest_error"], "regenerate it: mlhpc data index DIR")
    elif "bytes" not in folder:
        remedy = "write one with mlhpc data index DIR; staging cannot verify files without it"
        yield CheckResult("warn", "data set", f"{label}, without a manifest", remedy)
    else:
        size = f"{count(folder['files'], 'file')}, {bytes_text(folder['bytes'])}"
        remedy = "it is in memory: put it on storage, or a run would measure memory"
        yield CheckResult(
            "warn" if folder["is_ram"] else "pass", "data set", f"{label}, {size}", remedy * folder["is_ram"]
        )


def stage(folder: Folder, dataset_bytes: int | None) -> Iterator[CheckResult]:
    """Check the staging folder and whether it has space for a replica of the data set."""
    label = _describe(folder)
    if folder.get("error") or not folder["writable"]:
        yield CheckResult("fail", "staging", f"{label}, not writable", "choose a writable --stage folder")
    elif dataset_bytes and dataset_bytes > folder["free"]:
        remedy = "choose another --stage, or --set staging.mode=shard, which divides the data set"
        yield CheckResult(
            "fail", "staging", f"{label}; the data set needs {bytes_text(dataset_bytes)}", remedy
        )
    elif folder["is_ram"]:
        yield CheckResult("warn", "staging", label, "staged files occupy memory; leave enough for training")
    elif folder["shared"]:
        remedy = "staging to a shared file system has no benefit; choose node-local storage for --stage"
        yield CheckResult("warn", "staging", label, remedy)
    else:
        yield CheckResult("pass", "staging", label)


def out(folder: Folder) -> Iterator[CheckResult]:
    """Check the folder for results."""
    label = _describe(folder)
    if folder.get("error") or not folder["writable"]:
        yield CheckResult("fail", "results", f"{label}, not writable", "choose a writable --out folder")
    elif folder["is_ram"]:
        yield CheckResult(
            "warn", "results", label, "in memory, and lost at a reboot: choose an --out folder on a disk"
        )
    elif folder["free"] < OUT_WARN:
        yield CheckResult("warn", "results", label, "free some space for logs and checkpoints")
    else:
        yield CheckResult("pass", "results", label)


def shm(folder: Folder) -> Iterator[CheckResult]:
    """Check the size of ``/dev/shm``."""
    if folder.get("error") or not folder["exists"]:
        yield CheckResult("warn", "/dev/shm", "does not exist", "mount it (tmpfs); loaders and NCCL use it")
    elif folder["free"] < SHM_WARN:
        remedy = "enlarge it, for loaders and NCCL; in a container with --shm-size=8g or --ipc=host"
        yield CheckResult("warn", "/dev/shm", f"{bytes_text(folder['free'])} free", remedy)
    else:
        yield CheckResult("pass", "/dev/shm", f"{bytes_text(folder['free'])} free")


def environment(folder: Folder, ranks: int) -> Iterator[CheckResult]:
    """Warn if many ranks load Python's packages from a shared file system at once; otherwise no result."""
    if folder["shared"] and ranks > MANY_RANKS:
        detail = f"{folder['path']} ({folder['type']}, shared), opened by {count(ranks, 'rank')} at once"
        remedy = "copy it to the nodes first; see docs/guide/sites.md, start-up"
        yield CheckResult("warn", "environment", detail, remedy)


def _describe(folder: Folder) -> str:
    if folder.get("error"):
        return f"{folder['path']}: {folder['error']}"
    kind = folder["type"] + (", memory" if folder["is_ram"] else ", shared" if folder["shared"] else "")
    return f"{folder['path']} ({kind}), {bytes_text(folder['free'])} free"
