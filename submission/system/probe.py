"""The text of system files and the output of tools; empty if missing."""

import os
import shutil
import subprocess
from pathlib import Path


def text(path: Path) -> str:
    """The text of a file; empty if it is missing or unreadable."""
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def output(*command: str) -> str:
    """The output of a command; empty if it is missing, fails or hangs."""
    if not shutil.which(command[0]):
        return ""
    env = os.environ | {"LC_ALL": "C"}
    try:
        completed = subprocess.run(command, capture_output=True, text=True, timeout=30, env=env, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return completed.stdout if completed.returncode == 0 else ""
