"""Files of the system and the output of its tools, empty where there is none."""

import os
import shutil
import subprocess
from pathlib import Path


def text(path: Path) -> str:
    """The text of a file; empty where it is missing or unreadable."""
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def output(*command: str) -> str:
    """The output of a command; empty where it is missing, fails or hangs."""
    if not shutil.which(command[0]):
        return ""
    env = os.environ | {"LC_ALL": "C"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, env=env, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
