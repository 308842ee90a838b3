"""The program accepts every command line in README and docs."""

import re
import shlex
from pathlib import Path

import pytest

from mlhpc import cli
from mlhpc.errors import UserError

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LAUNCHER = r"(?:srun|mpirun|mpiexec|torchrun|time|nohup|env)(?: [^|;&]*?)?"
COMMAND = re.compile(rf"^(?:[A-Z_]+=\S+ )*(?:{LAUNCHER} )?(?:-m )?mlhpc (?P<words>.*)$")
PLACEHOLDER = re.compile(r"\[-|…|\.\.\.(?!/)|\$S\b|\$N\b|[A-Z]+\|[A-Z]+|^[A-Z]+ |BENCHMARK")
"""Lines that explain a form, or have the rest of their words in a variable."""


def commands(page: Path) -> list[str]:
    """The words after ``mlhpc`` of each command of the page's blocks of code, whole lines only."""
    text = re.sub(r"\\\n\s*", "", page.read_text())
    fenced = re.findall(r"^```\w*\n(.*?)^```", text, flags=re.S | re.M)
    indented = re.findall(r"(?:^ {4,}\S.*\n)+", text, flags=re.M)
    command_lines = []
    for block in (*fenced, *indented):
        for line in block.splitlines():
            shown = re.split(r"\s+#|\s*[|;]|\s*&&|\s+>", line.strip())[0]
            if (match := COMMAND.match(shown)) and not PLACEHOLDER.search(match["words"]):
                command_lines.append(match["words"])
    return command_lines


CASES = [(page.name, words) for page in PAGES for words in commands(page)]


def test_there_are_commands_of_all_kinds():
    names = {words.split()[0] for _, words in CASES}
    assert len(CASES) > 80 and {"run", "data", "check", "report", "pack", "predict", "study", "io"} <= names


@pytest.mark.parametrize("page, words", CASES)
def test_the_program_takes_it(page, words):
    parser = cli._parser()
    try:
        options, unknown = parser.parse_known_args(shlex.split(words))
        if unknown and hasattr(options, "parse_rest"):
            unknown = options.parse_rest(options, unknown)
    except (UserError, SystemExit) as error:
        pytest.fail(f"{page}: mlhpc {words}: {error}")
    assert not unknown, f"{page}: mlhpc {words}"
