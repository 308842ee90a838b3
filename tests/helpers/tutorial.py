"""Runs the commands of docs/start/tutorial.md in order. As a program (``make tutorial``): also writes
what they print into the page."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
PAGE = CHECKOUT / "docs/start/tutorial.md"

BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# What a run prints only where it is slow: a line for a phase that lasts, and for a slow import.
PROGRESS = re.compile(r"^(?:(?:mlhpc: )?[\w ]+: (?:\d+ of \d+ [\w ]+, )?\d+ s(?:, step \d+)?|importing .*)$")


def commands(block: str) -> list[tuple[str, str]]:
    """Each command of a block, without its prompt, and the output below it."""
    found: list[tuple[str, str]] = []
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        lines = part.splitlines()
        last = next(i for i, line in enumerate(lines) if not line.endswith("\\"))
        found.append(("\n".join(lines[: last + 1]), "\n".join(lines[last + 1 :])))
    return found


def shape(output: str) -> str:
    """The output without what differs between two runs: numbers, how columns are aligned, and how many epochs it
    took. An exit status is kept."""
    lines: list[str] = []
    for line in output.replace("requires three epochs", "0 0%").splitlines():
        exact = line.startswith("exit status")
        same = " ".join((line if exact else re.sub(r"[\d.,]*\d", "#", re.sub("─+", "─", line))).split())
        if same and same not in lines[-1:]:
            lines.append(same)
    return "\n".join(lines)


def run(command: str, folder: Path) -> str:
    """What ``command`` prints, standard error included, in ``folder``.

    Raises ``CalledProcessError`` if its exit status is not 0.
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "COLUMNS": "100", "NO_COLOR": "1"}
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if done.returncode:
        print(done.stdout)
    done.check_returncode()
    lines = [line.rstrip() for line in done.stdout.replace(str(folder), "/home/you/mlhpc").splitlines()]
    return "\n".join(line for line in lines if not PROGRESS.match(line)).strip("\n")


def renew(folder: Path) -> None:
    """Run the page in ``folder`` and write what its commands print into it."""

    def renewed(match: re.Match[str]) -> str:
        printed = [(command, run(command, folder)) for command, _ in commands(match[1])]
        return "```console\n" + "".join(f"$ {c}\n" + (f"{o}\n" if o else "") for c, o in printed) + "```"

    PAGE.write_text(BLOCK.sub(renewed, PAGE.read_text()))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        (Path(temporary) / "examples").symlink_to(CHECKOUT / "examples")
        renew(Path(temporary))
