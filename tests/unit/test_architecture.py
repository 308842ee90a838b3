"""The promises of docs/reference/architecture.md: direction of imports, use of frameworks, packaging."""

import ast
import re
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOP = (
    "benchmarks",
    "common",
    "cosmoflow",
    "deepcam",
    "iobench",
    "mlhpc",
    "perf",
    "record",
    "resnet50",
    "submission",
)
# A room imports only from the floors below its own, and within a floor only from itself. So no circle is
# possible, lazy imports included. "mlhpc/cli" is cli.py and __main__.py, the roof.
FLOORS = (
    {"mlhpc/errors", "mlhpc/quantities", "mlhpc/__init__", "common"},
    {"benchmarks", "common/files"},
    {"common/ranks"},
    {"common/formats", "common/host", "common/pages", "common/timing"},
    {"common/energy"},
    {"common/data/codecs"},
    {"common/data"},
    {"common/staging"},
    {"common/training"},
    {"common/kernels"},
    {"common/pytorch"},
    {"record"},
    {"cosmoflow/data", "deepcam/data", "deepcam/layers", "resnet50/data"},
    {"cosmoflow", "cosmoflow/cpu", "deepcam/cpu", "deepcam/optim", "resnet50/optim"},
    {"cosmoflow/synthetic", "deepcam/synthetic", "resnet50/synthetic"},
    {"cosmoflow/tf", "cosmoflow/pytorch", "deepcam", "resnet50"},
    {"perf/networks"},
    {"perf/accelerator"},
    {"perf"},
    {"perf/prediction"},
    {"perf/profile"},
    {"iobench/definition"},
    {"iobench/formats"},
    {"iobench/dataset"},
    {"iobench/emulate"},
    {"iobench/simulate"},
    {"iobench/report"},
    {"iobench"},
    {"submission", "submission/system"},
    {"submission/score"},
    {"submission/check"},
    {"submission/report", "submission/pack"},
    {"submission/acceptance"},
    {"mlhpc/doctor", "mlhpc/observe", "mlhpc/papers", "mlhpc/history"},
    {"mlhpc"},
    {"mlhpc/campaign", "mlhpc/preview", "mlhpc/tune"},
    {"mlhpc/commands"},
    {"mlhpc/cli"},
)
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
# Beyond the floors: benchmarks know nothing of common, common only the settings that all of them share
# (benchmarks/schema.py), and no benchmark knows another.
NEVER = {
    "benchmarks": {"common", "record"},
    "common": {"record"},
    "cosmoflow": {"deepcam", "resnet50"},
    "deepcam": {"cosmoflow", "resnet50"},
    "resnet50": {"cosmoflow", "deepcam"},
    "perf": {"cosmoflow", "deepcam", "resnet50"},
    "iobench": {"cosmoflow", "deepcam", "resnet50", "perf"},
    "submission": {"cosmoflow", "deepcam", "resnet50", "iobench"},
}
FRAMEWORKS = {"tensorflow", "keras", "horovod", "torch", "torchvision", "nvidia"}
MAY_USE_FRAMEWORKS = {
    "cosmoflow/tf": {"tensorflow", "keras"},
    "cosmoflow/cpu/convolution.py": {"tensorflow", "keras"},
    "cosmoflow/cpu/pooled.py": {"torch"},
    "cosmoflow/pytorch": {"torch"},
    "deepcam": {"torch", "nvidia"},
    "resnet50": {"torch", "torchvision", "nvidia"},
    "common/kernels": {"torch"},
    "common/pytorch": {"torch"},
    "mlhpc/doctor/gpu_speed.py": {"torch"},
    "iobench/emulate/loader_cost.py": {"torch", "tensorflow"},  # in a process of its own
    "common/ranks/horovod_world.py": {"tensorflow", "horovod"},
    "common/ranks/torch_world.py": {"torch"},
}
FILES = [path.relative_to(ROOT) for top in TOP for path in sorted((ROOT / top).rglob("*.py"))]


def module_name(path: Path) -> str:
    name = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
    return name if path.parts[0] == "mlhpc" else f"mlhpc.{name}"


MODULES = {module_name(path): path for path in FILES}


def imported(path: Path) -> set[str]:
    """Modules that ``path`` imports anywhere in it, also lazily; of other packages their names."""
    names = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {name if name in MODULES else node.module for name in full}
    return names


def room(path: Path) -> str:
    if path.parts[0] == "mlhpc" and len(path.parts) == 2:
        special = {"cli.py": "mlhpc/cli", "__main__.py": "mlhpc/cli"}
        special |= {"errors.py": "mlhpc/errors", "__init__.py": "mlhpc/__init__"}
        special |= {"quantities.py": "mlhpc/quantities"}
        return special.get(path.name, "mlhpc")
    return path.parent.as_posix()


def test_every_package_has_its_floor():
    assert {room(path) for path in FILES} - FLOOR.keys() == set()


@pytest.mark.parametrize("path", FILES, ids=str)
def test_imports_point_one_way(path):
    here = room(path)
    for name in sorted(imported(path) & MODULES.keys()):
        there = room(MODULES[name])
        assert there == here or FLOOR[there] < FLOOR[here], f"{path} imports {name}"
        top = MODULES[name].parts[0]
        assert (path.parts[0], top) != ("common", "benchmarks") or name == "mlhpc.benchmarks.schema"
        assert top not in NEVER.get(path.parts[0], ()), f"{path} imports {name}"


def test_imports_have_no_cycles():
    """Floors rule out circles between rooms; this rules them out within one."""
    below = {name: imported(path) & MODULES.keys() - {name} for name, path in MODULES.items()}
    free: set[str] = set()
    while ready := {name for name in below.keys() - free if below[name] <= free}:
        free |= ready
    assert below.keys() - free == set()


def test_a_run_does_not_depend_on_its_verdict():
    """Nothing that ``mlhpc run`` imports, directly or not, lies in submission."""
    reached, waiting = set(), {"mlhpc.run"}
    while waiting:
        reached |= waiting
        waiting = {each for name in waiting for each in imported(MODULES[name]) & MODULES.keys()} - reached
    assert {name for name in reached if name.startswith("mlhpc.submission")} == set()


@pytest.mark.parametrize("path", FILES, ids=str)
def test_no_function_shadows_an_import(path):
    """A name that is a function on one line and a number on the next misleads readers and linters."""
    tree = ast.parse((ROOT / path).read_text())

    def imports(nodes):
        statements = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
        return {(alias.asname or alias.name).split(".")[0] for node in statements for alias in node.names}

    of_the_module = imports(tree.body)
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            nodes = list(ast.walk(function))
            bound = {
                node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            }
            shadowed = bound & (of_the_module | imports(nodes))
            assert not shadowed, f"{path}: {function.name} gives {', '.join(shadowed)} a second meaning"


def test_no_folder_has_more_than_16_files():
    folders = [path.parent for path in FILES if path.name != "__init__.py"]
    assert {str(folder) for folder in folders if folders.count(folder) > 16} == set()


def test_the_architecture_page_lists_every_file():
    """Named in the tree, in the lines of its folder."""
    tree = (ROOT / "docs/reference/architecture.md").read_text().split("```")[1]
    named: dict[str, set[str]] = {}
    top = folder = ""
    for line in tree.splitlines():
        if heading := re.match(r"( {0,2})([\w/]+)/ ", line):
            top = heading[2] if not heading[1] else top
            folder = f"{top}/{heading[2]}" if heading[1] else top
        elif re.match(r"  \w", line):
            folder = top
        named.setdefault(folder, set()).update(re.findall(r"\w+", line))
    missing = [path for path in FILES if path.stem not in named.get(path.parent.as_posix(), ())]
    assert [str(path) for path in missing if path.name != "__init__.py"] == []


@pytest.mark.parametrize("path", FILES, ids=str)
def test_frameworks_are_imported_only_where_they_train(path):
    allowed = next((v for k, v in MAY_USE_FRAMEWORKS.items() if str(path).startswith(k)), set())
    used = {name.split(".")[0] for name in imported(path)} & FRAMEWORKS
    assert used <= allowed, f"{path} imports {used - allowed}"


def test_the_shared_layer_names_no_benchmark():
    named = re.compile("cosmoflow|deepcam|resnet", re.IGNORECASE)
    lines = [
        f"{path}: {line}"
        for path in FILES
        if path.parts[0] == "common"
        for line in (ROOT / path).read_text().splitlines()
        if named.search(line)
    ]
    assert not lines


def test_every_folder_with_code_is_packaged_under_mlhpc():
    files = {str(path) for path in distribution("mlhpc").files or []}
    assert "top_level.txt" in "".join(files)
    top = (distribution("mlhpc").read_text("top_level.txt") or "").split()
    assert top == ["mlhpc"], "nothing called common or benchmarks may land in site-packages"
    linked = {path.name for path in (ROOT / "src/mlhpc").iterdir() if (path / "__init__.py").is_file()}
    assert linked >= {top for top in TOP if top != "mlhpc"}
    assert {path.parent for path in FILES} == {path.parent for path in FILES if path.name == "__init__.py"}


def test_the_tests_mirror_the_packages():
    """A folder of tests/unit and tests/numeric is a folder of code."""
    folders = {path.parent for kind in ("unit", "numeric") for path in (ROOT / "tests" / kind).rglob("*.py")}
    rooms = {ROOT / "tests" / kind / path.parent for kind in ("unit", "numeric") for path in FILES}
    rooms |= {ROOT / "tests/unit", ROOT / "tests/unit/run_scripts"}
    assert folders - rooms == set()


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        (
            "import mlhpc.cli; mlhpc.cli._parser()",
            {"tensorflow", "torch", "matplotlib", "pandas", "pydantic", "numpy"},
        ),
        ("import mlhpc.cosmoflow.synthetic.simulate, mlhpc.common.staging.stage", {"tensorflow", "torch"}),
        (
            "import mlhpc.iobench.run, mlhpc.common.ranks.socket_world",
            {"tensorflow", "torch", "scipy", "matplotlib", "pandas", "h5py", "pyarrow", "PIL", "altair"},
        ),
        ("import mlhpc.submission.check.check, mlhpc.submission.report.report", {"tensorflow", "torch"}),
    ],
)
def test_importing_a_module_does_not_import_unrelated_packages(statement, absent):
    code = f"{statement}\nimport sys\nprint(sorted(set({sorted(absent)!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().splitlines()[-1] == "[]"


def names_of(module: str) -> set[str]:
    """What can be imported from a module of the suite: its names, at any depth, and its submodules."""
    path = ROOT.joinpath("src", *module.split("."))
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    names = {each.stem for each in path.glob("*") if each.suffix in ("", ".py")} if path.is_dir() else set()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {each.asname or each.name for each in node.names}
    return names


@pytest.mark.parametrize("path", sorted((ROOT / "tests/perf").glob("*.py")), ids=lambda path: path.name)
def test_measurements_import_what_there_is(path: Path) -> None:
    """They run by hand only, so a name that moved is not noticed otherwise."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "mlhpc":
            missing = {each.name for each in node.names} - names_of(str(node.module))
            assert not missing, f"{path.name}:{node.lineno}: {node.module} has no {missing}"
