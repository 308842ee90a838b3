"""Reads system files and the output of tools; the result is empty if one is missing."""

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
    """The output of a command; empty if the command is missing, fails, or runs for more than 30 s."""
    if not shutil.which(command[0]):
        return ""
    env = os.environ | {"LC_ALL": "C"}
    try:
        completed = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=30, env=env, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return completed.stdout
