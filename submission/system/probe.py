"""Files of the system and what its tools say, empty where there is none."""

import os
import shutil
import subprocess
from pathlib import Path


def text(path: Path) -> str:
    """What the file says; nothing where it is not there or not to be read."""
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def output(*command: str) -> str:
    """What a command says; nothing where it is not there, fails or hangs."""
    if not shutil.which(command[0]):
        return ""
    env = os.environ | {"LC_ALL": "C"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, env=env, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
