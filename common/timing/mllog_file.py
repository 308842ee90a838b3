"""``run.log``, the MLLOG file that the rules require: opening and closing it, and the metadata of its records."""

import logging
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from mlperf_logging.mllog.mllog import MLLogger


class _Handler(logging.FileHandler):
    def handleError(self, record: logging.LogRecord) -> None:
        raise


def open_mllog(path: Path) -> MLLogger:
    """A logger that appends to ``path`` and raises OSError if a record cannot be written."""
    # A logger with a name and file of its own, because mllog's default prints to standard output.
    logger = logging.Logger(f"mlhpc.mllog.{path}", level=logging.INFO)
    logger.addHandler(_Handler(path, mode="a", encoding="utf-8"))
    return MLLogger(logger=logger, root_dir=os.fspath(Path(__file__).resolve().parents[2]))


def close_mllog(mllog: MLLogger) -> None:
    """Close the log's file."""
    for handler in list(mllog.logger.handlers):
        with suppress(OSError):  # a failed write was already reported
            handler.close()
        mllog.logger.removeHandler(handler)


def metadata_of(tags: dict[str, Any]) -> dict[str, Any]:
    """Metadata, under the names used in published logs: ``epoch_num`` is the epoch, counted from 1 as in most of
    those logs, and ``step_num`` the number of steps so far."""
    return {f"{key}_num" if key in ("epoch", "step") else key: value for key, value in tags.items()}


def has_run_stop(path: Path, patience_s: float) -> bool:
    """Return whether the log ends with a run_stop, waiting at most ``patience_s`` seconds for it: rank 0 writes it
    even after an exception, but not if it is killed."""
    until = time.monotonic() + patience_s
    while not (closed := '"run_stop"' in path.read_text(encoding="utf-8")) and time.monotonic() < until:
        time.sleep(0.1)
    return closed
