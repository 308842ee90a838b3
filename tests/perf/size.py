"""Lines of code per room: ``python tests/perf/size.py [--json]``.

Counted are the lines on which Python code stands: no blank lines, comments, docstrings and imports. A room is a
folder at the top of the checkout with a package of mlhpc in it; examples, tests and scripts are none.
"""

import argparse
import ast
import io
import json
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NO_ROOMS = {"docs", "run_scripts", "examples", "tests", "src", "build", "data", "results"}
NO_CODE = {getattr(tokenize, name) for name in ("COMMENT", "NL", "NEWLINE", "INDENT", "DEDENT", "ENDMARKER")}


def code_lines(source: str) -> int:
    """The number of lines of `source` with code on them."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Expr | ast.Import | ast.ImportFrom):
            continue
        value = getattr(node, "value", None)
        is_docstring = isinstance(value, ast.Constant) and isinstance(value.value, str)
        if is_docstring or not isinstance(node, ast.Expr):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def rooms() -> dict[str, int]:
    """Lines of code by room."""
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - NO_ROOMS
    return {
        room: sum(code_lines(path.read_text()) for path in (ROOT / room).rglob("*.py") if not _linked(path))
        for room in sorted(packages)
    }


def _linked(path: Path) -> bool:
    """Whether the file lies behind a symbolic link: it is counted where it is."""
    return any((ROOT / parent).is_symlink() for parent in path.relative_to(ROOT).parents)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    counts = rooms()
    total = sum(counts.values())
    if parser.parse_args().json:
        print(json.dumps({"rooms": counts, "total": total}))
    else:
        for room, lines in [*counts.items(), ("total", total)]:
            print(f"{room:12} {lines:8,}")


if __name__ == "__main__":
    main()
