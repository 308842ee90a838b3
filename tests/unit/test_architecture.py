"""docs/architecture.md, held: which way imports point, where frameworks may be, how packages are called."""

import ast
import re
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Room → rooms it may import. mlhpc/errors.py and world.py are leaves that any room may use.
MAY_IMPORT = {
    "benchmarks": {"benchmarks"},
    "common": {"common", "benchmarks"},
    "cosmoflow": {"cosmoflow", "common", "benchmarks"},
    "deepcam": {"deepcam", "common", "benchmarks"},
    "resnet50": {"resnet50", "common", "benchmarks"},
    "submission": {"submission", "common", "benchmarks"},
    "mlhpc": {"mlhpc", "submission", "cosmoflow", "deepcam", "resnet50", "common", "benchmarks"},
}
LEAVES = {"mlhpc.errors"}
FRAMEWORKS = {"tensorflow", "keras", "horovod", "torch", "torchvision", "nvidia"}
MAY_USE_FRAMEWORKS = {
    "cosmoflow": {"tensorflow", "keras"},
    "deepcam": {"torch", "nvidia"},
    "resnet50": {"torch", "torchvision", "nvidia"},
    "common/pytorch": {"torch"},
    "common/ranks/horovod_world.py": {"tensorflow", "horovod"},
    "common/ranks/torch_world.py": {"torch"},
}
FILES = [path.relative_to(ROOT) for room in MAY_IMPORT for path in sorted((ROOT / room).rglob("*.py"))]


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("path", FILES, ids=str)
def test_imports_point_one_way(path):
    room = path.parts[0]
    for name in imported(path):
        if name.startswith("mlhpc.") and not any(name.startswith(leaf) for leaf in LEAVES):
            other = name.split(".")[1]
            other = other if other in MAY_IMPORT else "mlhpc"  # mlhpc.cli and the like
            assert other in MAY_IMPORT[room] or name == "mlhpc.__version__", f"{path} imports {name}"


def test_the_map_has_every_file():
    told = (ROOT / "docs/architecture.md").read_text()
    files = {path.name for path in FILES} - {"__init__.py", "__main__.py"}
    assert [name for name in sorted(files) if f"`{name}`" not in told] == []


@pytest.mark.parametrize("path", FILES, ids=str)
def test_frameworks_stay_where_they_train(path):
    allowed = next((v for k, v in MAY_USE_FRAMEWORKS.items() if str(path).startswith(k)), set())
    used = {name.split(".")[0] for name in imported(path)} & FRAMEWORKS
    assert used <= allowed, f"{path} imports {used - allowed}"


def test_the_shared_layer_names_no_benchmark():
    named = re.compile("cosmoflow|deepcam|resnet", re.IGNORECASE)
    found = [f"{path}: {line}" for path in FILES if path.parts[0] == "common"
             for line in (ROOT / path).read_text().splitlines() if named.search(line)]  # fmt: skip
    assert not found


def test_every_folder_with_code_is_packaged_under_mlhpc():
    files = {str(path) for path in distribution("mlhpc").files or []}
    assert "top_level.txt" in "".join(files)
    top = (distribution("mlhpc").read_text("top_level.txt") or "").split()
    assert top == ["mlhpc"], "nothing called common or benchmarks may land in site-packages"
    packages = re.search(r"packages =\n((?:    .*\n)+)", (ROOT / "setup.cfg").read_text())
    assert packages
    listed = {name.strip() for name in packages[1].splitlines()}
    folders = {path.parent for path in FILES}
    wanted = {".".join(f.parts if f.parts[0] == "mlhpc" else ("mlhpc", *f.parts)) for f in folders}
    assert listed == wanted


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        (
            "import mlhpc.cli; mlhpc.cli._parser()",
            {"tensorflow", "torch", "matplotlib", "pandas", "pydantic", "numpy"},
        ),
        ("import mlhpc.cosmoflow.tf.train", {"torch"}),
        ("import mlhpc.cosmoflow.synthetic.simulate, mlhpc.common.staging.stage", {"tensorflow", "torch"}),
        ("import mlhpc.submission.check.check, mlhpc.submission.report.report", {"tensorflow", "torch"}),
    ],
)
def test_importing_one_thing_does_not_import_another(statement, absent):
    code = f"{statement}\nimport sys\nprint(sorted(set({sorted(absent)!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().splitlines()[-1] == "[]"
