"""Loaders that end or are killed leave no process, thread or shared memory behind."""

import gc
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from helpers.deepcam_files import COLUMNS, ROWS, fields, write_sample
from helpers.deepcam_loader import LOADERS, open_loader

from mlhpc.common.files.filesystem import FileSystem
from mlhpc.common.pytorch import workers
from mlhpc.errors import UserError

STARTED: set[int | None] = set()


@pytest.fixture(autouse=True)
def started(monkeypatch):
    """Notes the processes that are started here, the workers, also those that have ended since."""
    start = multiprocessing.process.BaseProcess.start

    def noting(process):
        start(process)
        STARTED.add(process.pid)

    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", noting)


def left_behind():
    """Reader threads, worker processes, and shared memory: named in /dev/shm, or mapped without a name."""
    mapped = re.findall(r"/dev/shm/torch_\S+", Path("/proc/self/maps").read_text())
    return (
        {thread.name for thread in threading.enumerate() if thread.name.startswith("reader")}
        | {child.pid for child in multiprocessing.active_children()}
        | {name for name in os.listdir("/dev/shm") if is_ours(name)}
        | set(mapped)
    )


def is_ours(name):
    """Whether this process or a worker of its named this shared memory: torch_PID_RANDOM_NUMBER. Other
    tests, in other processes, have theirs in the same folder."""
    match = re.fullmatch(r"torch_(\d+)_.*", name)
    return match is not None and int(match[1]) in STARTED | {os.getpid()}


def require_nothing_left(before):
    """Within a while: a queue's thread lives a moment longer than the queue."""
    deadline = time.monotonic() + 20
    while (left := left_behind() - before) and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.05)
    assert not left


@pytest.mark.parametrize("how", ["closed", "dropped", "read to the end", "raised at"])
@pytest.mark.parametrize("loader", LOADERS)
def test_an_iterator_leaves_nothing_behind(data_set, loader, how):
    before = left_behind()
    batches = open_loader(data_set, loader, batch=1).train_epoch(0)
    next(batches)
    assert left_behind() - before, "while it reads, there is something to leave behind"
    if how == "closed":
        batches.close()
    elif how == "dropped":
        del batches
    elif how == "read to the end":
        list(batches)
    else:
        with pytest.raises(ZeroDivisionError):
            for _batch in batches:
                raise ZeroDivisionError
        del batches, _batch
    require_nothing_left(before)


@pytest.mark.parametrize("loader", LOADERS)
def test_a_damaged_file_is_a_one_line_error_from_the_iterator(own, loader):
    x = fields(2)
    x[30, 2, 8] = np.nan
    bad = write_sample(own / "train" / "data-0002.h5", 2, x)
    before = left_behind()
    with pytest.raises(UserError) as raised:
        list(open_loader(own, loader).train_epoch(0))
    assert str(raised.value).startswith(f"{bad}: climate/data is nan in channel 8 (T200) at row 30, column 2")
    assert "\n" not in str(raised.value)
    del raised
    require_nothing_left(before)
    assert len(list(open_loader(own, loader).evaluation())) == 3  # the rest of the data set is sound


# Workers: shared memory, processes


def test_too_little_shared_memory_is_reported_before_a_worker_crashes(data_set, monkeypatch):
    batch = 2 * ROWS * COLUMNS * (16 * 4 + 1)

    def shared(path: Path) -> FileSystem:
        return FileSystem("tmpfs", path, True, free)

    monkeypatch.setattr(workers, "filesystem_of", shared)
    free = 3 * batch
    assert len(list(open_loader(data_set, "workers").train_epoch(0))) == 3
    free = 3 * batch - 1
    with pytest.raises(UserError, match=r"^/dev/shm: [\d.]+ .?B free, .* keep 3 batches"):
        next(open_loader(data_set, "workers").train_epoch(0))


@pytest.mark.parametrize("read_ahead", [False, True])
def test_a_killed_worker_is_reported(data_set, read_ahead):
    before = left_behind()
    batches = open_loader(data_set, "workers", batch=1, workers=1, prefetch=1).train_epoch(0)
    next(batches)
    (worker,) = {child.pid for child in multiprocessing.active_children()} - before
    if read_ahead:
        time.sleep(1)  # so that a batch it has read waits for a process that is gone
    Path(f"/dev/shm/torch_{worker}_1_1").touch()  # as left by a worker killed before it can remove the name
    os.kill(worker, signal.SIGKILL)
    with pytest.raises(UserError, match="a worker process was lost") as raised:
        list(batches)
    assert "\n" not in str(raised.value)
    del raised
    require_nothing_left(before)


@pytest.mark.parametrize("killed", [False, True])
def test_memory_of_another_container_with_a_process_of_the_same_number_stays(data_set, killed):
    """Containers that share /dev/shm number their processes each for itself."""
    before = left_behind()
    batches = open_loader(data_set, "workers", batch=1, workers=1, prefetch=1).train_epoch(0)
    next(batches)
    (worker,) = {child.pid for child in multiprocessing.active_children()} - before
    other = Path(f"/dev/shm/torch_{worker}_2_2")
    other.touch()
    try:
        if killed:
            os.utime(other, (time.time() - 3600,) * 2)  # what is older than our worker was there before it
            os.kill(worker, signal.SIGKILL)
            with pytest.raises(UserError, match="a worker process was lost"):
                list(batches)
        else:
            list(batches)
        assert other.exists()
    finally:
        other.unlink(missing_ok=True)


# DALI


def test_workers_end_when_the_run_that_reads_from_them_is_killed(data_set):
    """As when the loss of another rank ends a rank. The output that the workers inherit from it closes then."""
    program = f"""
import sys, time
sys.path.insert(0, {str(Path(__file__).parents[3])!r})
from pathlib import Path
from numeric.deepcam.data.test_loader import open_loader
batches = open_loader(Path({str(data_set)!r}), "workers").train_epoch(0)
next(batches)
print("reading", flush=True)
time.sleep(600)
"""
    run = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert run.stdout and run.stdout.readline() == "reading\n"
    run.kill()
    run.communicate(timeout=60)  # not before the last process that holds the pipe has ended
