"""tests/unit loads no framework. conftest.py checks it while a test runs; here, what loading its file imports."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from unit.conftest import FRAMEWORKS

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
FILES = sorted((TESTS / "unit").rglob("*.py"))


def run_on_load(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run when a module is imported: not those in functions or for type checkers."""
    for statement in body:
        yield statement
        for_types = isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING"
        if not for_types and not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            blocks = (getattr(statement, name, []) for name in ("body", "orelse", "finalbody"))
            yield from (inner for block in blocks for inner in run_on_load(block))


def imported_on_load(path: Path) -> set[str]:
    names: set[str] = set()
    for node in run_on_load(ast.parse(path.read_text()).body):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def source_of(module: str) -> Path | None:
    """The file of one of our modules; None for a package, for a name inside a module, and for a library."""
    parts = module.split(".")
    below_mlhpc = ROOT.joinpath(*parts[1:]) if parts[0] == "mlhpc" else TESTS.joinpath(*parts)
    candidates = [path.with_name(f"{path.name}.py") for path in (ROOT.joinpath(*parts), below_mlhpc)]
    return next((path for path in candidates if path.is_file()), None)


def way_to_a_framework(path: Path) -> list[str]:
    """The chain of imports from ``path`` to a framework, empty if there is none."""
    ways: list[tuple[Path, list[str]]] = [(path, [str(path.relative_to(ROOT))])]
    seen = {path}
    while ways:
        here, way = ways.pop()
        for name in sorted(imported_on_load(here)):
            if name.partition(".")[0] in FRAMEWORKS:
                return [*way, name]
            source = source_of(name)
            if source and source not in seen:
                seen.add(source)
                ways.append((source, [*way, name]))
    return []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(TESTS)))
def test_a_unit_test_loads_no_framework(path: Path) -> None:
    assert way_to_a_framework(path) == []


def test_an_indirect_import_of_a_framework_is_detected() -> None:
    way = way_to_a_framework(TESTS / "numeric" / "resnet50" / "data" / "test_pack.py")
    assert len(way) > 2 and way[-1].partition(".")[0] in {"torch", "torchvision"}, way
