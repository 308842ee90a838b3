"""The words of what users read: messages of errors, help, and what is printed."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = (
    "benchmarks", "common", "cosmoflow", "deepcam", "iobench", "mlhpc", "perf", "record", "resnet50", "submission"
)  # fmt: skip
SAYING = {"UserError", "print", "say", "BrokenImage", "CheckResult", "Finding", "ArgumentTypeError"}
HELP = {"help", "description", "epilog", "remedy", "detail"}
INSTEAD = {
    r"--?[\w-]+ (is|are) for\b|^(is|are) for\b": "requires, or applies to",
    r"(^|[;:,.(]\s*|\bor )give\b": "pass, choose, set, add, or say what must be",
    r"(\d|\{\}|[GMk]B|samples|bytes|seconds|\bs) an? (node|rank|epoch|step|sample|second|file)\b": "per",
    r"\{\}: (is|has|are|does|cannot|exists|must)\b": "no colon between a subject and its verb",
    r"\b\d{1,3} \d{3}\b": "1,024",
}


def text(node: ast.expr) -> str:
    """The text of an expression, with {} for values; "" for other expressions."""
    match node:
        case ast.Constant(value=str(value)):
            return value
        case ast.JoinedStr(values=values):
            return "".join(text(value) if isinstance(value, ast.Constant) else "{}" for value in values)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return text(left) + text(right)
        case ast.IfExp(body=body, orelse=orelse):
            return f"{text(body)} | {text(orelse)}"
    return ""


def shown(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of what a module shows to users."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            values = list(node.args) if name in SAYING else []
            values += [keyword.value for keyword in node.keywords if keyword.arg in HELP]
            yield from ((node.lineno, text(value)) for value in values if text(value))


@pytest.mark.parametrize("pattern", INSTEAD)
def test_what_users_read_is_in_the_words_of_the_field(pattern: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {words!r}: {INSTEAD[pattern]}"
        for room in ROOMS
        for path in sorted((ROOT / room).rglob("*.py"))
        if not any(parent.is_symlink() for parent in path.parents)
        for line, words in shown(path.read_text())
        if re.search(pattern, words)
    ]
    assert not found, "\n".join(found)


def test_the_texts_are_found() -> None:
    source = (
        'raise UserError(f"{path}: is gone" + (" 1 024" if x else "give it"))\nadd("--x", help="2 s a node")'
    )
    (_, message), (_, option) = shown(source)
    assert message == "{}: is gone 1 024 | give it" and option == "2 s a node"
    assert sum(bool(re.search(pattern, message) or re.search(pattern, option)) for pattern in INSTEAD) == 3
