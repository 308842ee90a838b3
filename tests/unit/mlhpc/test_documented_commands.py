"""README and docs show what exists: links, commands with options, scripts, make targets. And they are short."""

import argparse
import re
import shlex
import subprocess
import unicodedata
from functools import cache
from pathlib import Path
from string import Template

import pytest

from mlhpc import cli
from mlhpc.errors import UserError

ROOT = Path(__file__).parents[3]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [*sorted(ROOT.glob("*.md")), *DOCS]
LAUNCHER = r"(?:srun|mpirun|mpiexec|torchrun|time|nohup|env)(?: [^|;&]*?)?"
COMMAND = re.compile(rf"^(?:[A-Z_]+=\S+ )*(?:{LAUNCHER} )?(?:-m )?mlhpc (?P<words>.*)$")
PLACEHOLDER = {"BENCHMARK": "cosmoflow", "N": "2", "E": "0.01", "T": "10", "SECONDS": "1", "SIZE": "64G"}
"""A value for words of a form whose kind the parser checks."""


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def text_of(page: Path) -> str:
    return page.read_text("utf-8")


def prose(text: str) -> str:
    """Without fenced blocks."""
    return re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)


def blocks(text: str) -> list[str]:
    """The blocks of code of a page: fenced, or indented by four spaces."""
    fenced = re.findall(r"^```\w*\n(.*?)^```", text, flags=re.S | re.M)
    indented = re.findall(r"(?:^ {4,}\S.*\n)+", prose(text), flags=re.M)
    return [*fenced, *indented]


def inline(text: str) -> list[str]:
    """Code inside sentences and tables, each as one line."""
    return [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", prose(text))]


def commands(page: Path) -> list[str]:
    """The words after ``mlhpc`` of every command in a block of code, with the variables that the block sets."""
    found = []
    for block in blocks(re.sub(r"\\\n\s*", "", text_of(page))):
        values: dict[str, str] = {}
        for line in map(str.strip, block.splitlines()):
            if variable := re.fullmatch(r"([A-Z]+)=(?:\"([^\"]*)\"|(\S+))", line):
                values[variable[1]] = variable[2] or variable[3]
            shown = re.split(r"\s+#|\s*[|;] |\s*&&|\s+>", Template(line).safe_substitute(values))[0]
            if match := COMMAND.match(shown):
                found.append(match["words"])
    return found


def concrete(words: str) -> list[str]:
    """A command as somebody would type it: the options in brackets, the first of ``A|B``, nothing for ``…``."""
    words = re.sub(r"\[(?=[-A-Z])|(?<=\w)\](?= |$)", "", words.replace("...", "…"))
    words = words.replace('"$', '"/')
    return [
        PLACEHOLDER.get(word, word.split("|")[0])
        for word in shlex.split(words)
        if word != "…" and not word.startswith("$")
    ]


CASES = [(name(page), words) for page in PAGES for words in dict.fromkeys(commands(page))]


def test_there_are_commands_of_all_kinds():
    names = {words.split()[0] for _, words in CASES}
    assert len(CASES) > 80 and {"run", "data", "check", "report", "pack", "predict", "study", "io"} <= names


@pytest.mark.parametrize("page, words", CASES)
def test_the_program_takes_it(page, words):
    parser = cli._parser()
    try:
        options, unknown = parser.parse_known_args(concrete(words))
        if unknown and hasattr(options, "parse_rest"):
            unknown = options.parse_rest(options, unknown)
    except (UserError, SystemExit) as error:
        pytest.fail(f"{page}: mlhpc {words}: {error}")
    assert not unknown, f"{page}: mlhpc {words}"


@cache
def options_of_commands() -> dict[str, set[str]]:
    """The options by command, with its words. Those of ``data`` that only some benchmarks have count for all."""
    found = {}
    waiting: list[tuple[str, argparse.ArgumentParser]] = [("", cli._parser())]
    while waiting:
        words, parser = waiting.pop()
        found[words] = {option for action in parser._actions for option in action.option_strings}
        if words.startswith("data "):
            source = text_of(ROOT / "mlhpc/commands/data.py")
            found[words] |= set(re.findall(r'"(--[a-z][\w-]*)"', source))
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                waiting += [(f"{words} {word}".strip(), each) for word, each in action.choices.items()]
    return found


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_in_sentences_exist_with_their_options(page):
    for code in inline(text_of(page)):
        if match := re.match(r"mlhpc ((?:-q )?[a-z]+(?: [a-z]+)?)", code):
            words = match[1].removeprefix("-q ")
            known = options_of_commands()
            command = words if words in known else words.split()[0]
            assert command in known, f"{name(page)}: {code}"
            for option in re.findall(r"(?<=[\s\[])--[a-z][\w-]*", code.split(" -- ")[0]):
                assert option in known[command], f"{name(page)}: {code}"


@cache
def anchors(page: Path) -> frozenset[str]:
    """The headings that ``#…`` finds both on a code host and on the site, which shorten some differently."""
    headings = re.findall(r"^#+ (.+)$", prose(text_of(page)), flags=re.M)
    plain = [re.sub(r"[`*]|\]\([^)]*\)|\[", "", heading).strip().lower() for heading in headings]
    hosts = {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}
    ascii_only = [unicodedata.normalize("NFKD", x).encode("ascii", "ignore").decode() for x in plain]
    sites = {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip()) for heading in ascii_only}
    return frozenset(hosts & sites)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_leads_to_something(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(text_of(page))):
        if re.match(r"\w+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{name(page)}: {target}"
        assert not anchor or anchor in anchors(file), f"{name(page)}: {target}"


@cache
def tracked() -> tuple[str, ...]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return tuple(listed.stdout.splitlines())


SHIPPED = [
    path for path in tracked() if path.endswith((".py", ".toml", ".c", ".sh", ".sbatch", ".cfg", ".def"))
]


def test_code_names_only_pages_that_exist():
    """In messages, help and comments. A page of another repository stands in a line with its address."""
    named = [
        (path, page)
        for path in SHIPPED
        for line in (ROOT / path).read_text("utf-8").splitlines()
        if "github.com" not in line
        for page in re.findall(r"\bdocs/[\w/]+\.(?:md|png|svg)", line)
        if page != "docs/a.md"
    ]
    assert len(named) > 50
    assert [(path, page) for path, page in named if not (ROOT / page).is_file()] == []


def test_nothing_in_a_wheel_sends_its_reader_to_the_evidence():
    """It is in the repository only. Pages link to it; messages, help and settings do not."""
    paths = [path for path in SHIPPED if not path.startswith(("tests/", "setup.cfg"))]
    assert [path for path in paths if "docs/evidence" in (ROOT / path).read_text("utf-8")] == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_scripts_and_make_targets_exist(page):
    text = re.sub(r"\\\n\s*", "", text_of(page))
    shown = [line.strip() for block in blocks(text) for line in block.splitlines()] + inline(text)
    targets = re.search(r"^\.PHONY: (.*)$", text_of(ROOT / "Makefile"), flags=re.M)
    assert targets
    for line in shown:
        if match := re.match(r"make ([a-z][\w-]*)", line):
            assert match[1] in targets[1].split(), f"{name(page)}: {line}"
        for script, words in re.findall(r"(tests/perf/\w+\.py)([^;|#]*)", line):
            assert (ROOT / script).is_file(), f"{name(page)}: {line}"
            source = text_of(ROOT / script)
            for option in re.findall(r"(?<=\s)--[a-z][\w-]*", words):
                assert f'"{option}"' in source or option == "--reference", f"{name(page)}: {line}"


def test_the_site_has_every_page():
    navigation = re.findall(r"^ +- (?:[^:\n]+: )?(\S+\.md)$", text_of(ROOT / "mkdocs.yml"), flags=re.M)
    assert sorted(navigation) == sorted(name(page) for page in PAGES)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_papers_are_named(page):
    """A reader does not know our numbers of the papers."""
    assert not re.search(r"\bpapers?\s+00\d", text_of(page), flags=re.IGNORECASE)


def test_the_documentation_can_be_read():
    read = [ROOT / "README.md", ROOT / "CHANGELOG.md", *DOCS]
    # rules.md is the output of mlhpc rules, record.md and papers.md are those of tests/helpers/*_page.py.
    generated = ("rules.md", "record.md", "papers.md")
    written = [page for page in read if "evidence" not in page.parts and page.name not in generated]
    words = sum(len(text_of(page).split()) for page in written)
    assert words <= 30_000
    assert len(text_of(ROOT / "docs/reference/performance.md").splitlines()) <= 150
    assert len(text_of(ROOT / "CHANGELOG.md").splitlines()) <= 60
