"""Public functions have docstrings; functions of arrays state the shapes that they take and return, and keep to
them."""

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlhpc.benchmarks.cosmoflow import Simulation
from mlhpc.common.data.codecs import frame, library
from mlhpc.common.data.partition import Shards
from mlhpc.common.data.sharding import Pool, train_batches
from mlhpc.common.formats.tf_example import decode_example, encode_example
from mlhpc.common.ranks.world import Solo
from mlhpc.cosmoflow.data.augment import apply_symmetry
from mlhpc.cosmoflow.synthetic import gravity, simulate
from mlhpc.cosmoflow.synthetic.cosmology import Cosmology
from mlhpc.deepcam.data import delta
from mlhpc.deepcam.data.codec import Bound, Delta, Planes
from mlhpc.deepcam.data.hdf5 import Statistics
from mlhpc.deepcam.data.sample import shift_and_scale
from mlhpc.iobench.dataset.layout import Layout
from mlhpc.iobench.definition.schema import Dataset
from mlhpc.iobench.formats.access import CountedFile, MemoryFile
from mlhpc.iobench.formats.counting import Activity, ReadStatistics

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("mlhpc", *sorted(link.name for link in (ROOT / "mlhpc").iterdir() if link.is_symlink()))
ARRAY = re.compile(r"\b(NDArray|ndarray|Tensor)\b")
SHAPE = re.compile(
    r"\[[^\[\]]*[a-z][^\[\]]*\]|\b(any|given|one|same|its|whose|frame's) shapes?\b|\bof the shape of\b|\bscalar"
    r"|\b(one|two)-dimensional",
    re.IGNORECASE,
)


def array_functions(path: Path) -> Iterator[tuple[str, str]]:
    """Name and docstring of each public function of a module whose annotations have an array or a tensor, by that
    name or one that the module gives it. Overloads and what has another class ``Tensor`` are none."""
    module = ast.parse(path.read_text())
    if any(isinstance(node, ast.ClassDef) and node.name == "Tensor" for node in module.body):
        return
    named = {
        node.targets[0].id
        for node in module.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and re.match(r"(npt\.|np\.)?(NDArray|ndarray)\b", ast.unparse(node.value))
    }
    classes = [node for node in module.body if isinstance(node, ast.ClassDef)]
    owners: list[ast.Module | ast.ClassDef] = [module, *classes]
    for owner in owners:
        if getattr(owner, "name", "").startswith("_"):
            continue
        for node in owner.body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
                texts = [ast.unparse(a) for a in (*(x.annotation for x in arguments), node.returns) if a]
                if any(ARRAY.search(text) or named & set(re.findall(r"\w+", text)) for text in texts):
                    place = f"{path.relative_to(ROOT)}:{node.lineno} "
                    yield place + node.name, " ".join((ast.get_docstring(node) or "").split())


def modules() -> list[Path]:
    """The modules of the rooms, each once: some folders of ``mlhpc`` are links to rooms."""
    files = (path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
    return [path for path in files if not any(parent.is_symlink() for parent in path.parents)]


def all_array_functions() -> dict[str, str]:
    """Every array function of the rooms."""
    return dict(function for path in modules() for function in array_functions(path))


def public_functions(owner: ast.Module | ast.ClassDef) -> Iterator[ast.FunctionDef]:
    """The public functions of a module or class, and of its public classes."""
    for node in owner.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from public_functions(node)
        elif isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            yield node


def test_public_functions_have_docstrings() -> None:
    functions = [
        (f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", ast.get_docstring(node))
        for path in modules()
        for node in public_functions(ast.parse(path.read_text()))
    ]
    without = [place for place, docstring in functions if not docstring]
    assert len(functions) > 1500
    assert len(without) <= 0.05 * len(functions), "no docstring:\n" + "\n".join(without)


def test_nine_in_ten_array_functions_state_shapes() -> None:
    functions = all_array_functions()
    without = sorted(place for place, docstring in functions.items() if not SHAPE.search(docstring))
    assert len(functions) > 150
    assert len(without) <= 0.1 * len(functions), "no shape in the docstring of:\n" + "\n".join(without)


FIELD = np.linspace(0, 1, 4 * 40 * 3, dtype=np.float32).reshape(4, 40, 3)
BOUND = Bound(1e-2, "range", np.ones(3))
COSMOLOGY = Cosmology.from_unit([0, 0, 0, 0], 0.3)
SIMULATION = Simulation(box_mpc_h=32, grid=8, particles=8)
DATASET = Dataset(format="binary", files=2, samples_per_file=5, sample_bytes=64, sample_bytes_stdev=8)
LARGEST = Statistics(np.zeros(16, np.float32), np.ones(16, np.float32))


def framed(
    sections: Mapping[str, bytes | memoryview], shape: tuple[int, ...], name: str, dtype: str
) -> frame.Frame:
    return frame.unpack(frame.pack(name, dtype, shape, sections))


def decoded(codec: Any) -> Any:
    out = np.empty_like(FIELD)
    codec.decode(framed(codec.encode(FIELD), FIELD.shape, codec.name, "<f4"), out)
    return out


def line() -> Any:
    codec = Delta("delta", BOUND)
    return delta.decode_line(delta.parse(framed(codec.encode(FIELD), FIELD.shape, "delta", "<f4")), 0, 0)


def read_into(folder: Path) -> Any:
    (folder / "file").write_bytes(bytes(range(10)))
    file, out = CountedFile(folder / "file", ReadStatistics()), np.empty(4, np.uint8)
    file.read_into(3, out)
    file.close()
    assert out.tolist() == [3, 4, 5, 6]
    return out


def read_from_memory(_: Path) -> Any:
    out = np.empty(4, np.uint8)
    MemoryFile(Path("memory"), np.arange(10, dtype=np.uint8)).read_into(3, out)
    assert out.tolist() == [3, 4, 5, 6]
    return out


def union_of_reads(_: Path) -> Any:
    activity = Activity()
    reads = np.array([[0.0, 1.0], [1.0, 3.0], [4.0, 5.0]])
    activity.add(activity.enter(), reads)
    assert activity.reading_s == 4
    return reads


def restored(_: Path) -> Any:
    values = np.arange(7, dtype=np.int16)
    section = framed({"x": library.pco_compress(values)}, (7,), "lut", "<i2")
    return library.pco_decompress(section, "x", "<i2", 7)


DRAWN: dict[str, tuple[Callable[[Path], Any], tuple[int, ...]]] = {
    "Shards.nodes [files]": (lambda _: Shards(np.array([0, 1, 0, 1, 1]), 3).nodes(2), (5,)),
    "Planes.encode [rows, columns, channels]": (
        lambda _: decoded(Planes("zfp", library.zfp_compress, library.zfp_decompress, BOUND)),
        (4, 40, 3),
    ),
    "decode_example [values]": (
        lambda _: decode_example(encode_example(np.zeros(8, np.int16), np.ones(4, np.float32)))[1],
        (4,),
    ),
    "Layout.sizes [samples_per_file]": (lambda path: Layout(path, DATASET).sizes("train", 1), (5,)),
    "CountedFile.read_into [length]": (read_into, (4,)),
    "Solo.sum, of the shape of its values": (lambda _: Solo().sum(np.ones((2, 3))), (2, 3)),
    "Solo.max, of the shape of its values": (lambda _: Solo().max(np.ones((3, 2))), (3, 2)),
    "initial_modes [n, n, n // 2 + 1]": (
        lambda _: gravity.initial_modes(COSMOLOGY, 64.0, 8, np.random.default_rng(0)),
        (8, 8, 5),
    ),
    "decode_line [columns]": (lambda _: line(), (40,)),
    "cut [size, size, size, 4]": (
        lambda _: list(simulate.cut(np.zeros((8, 8, 8, 4), np.int16), 4)),
        (8, 4, 4, 4, 4),
    ),
    "simulate [grid, grid, grid, 4]": (lambda _: simulate.simulate(SIMULATION, 1)[0], (8, 8, 8, 4)),
    "train_batches [steps, local_batch_size]": (lambda _: train_batches(Pool(40, 2), 1, 4, 5, 0, 0), (5, 4)),
    "Activity.add [n, 2]": (union_of_reads, (3, 2)),
    "Delta.encode [rows, columns, channels]": (lambda _: decoded(Delta("delta", BOUND)), (4, 40, 3)),
    "attraction [n, n, n], three times": (
        lambda _: gravity.attraction([np.zeros((8, 8, 8), np.float32)] * 3),
        (3, 8, 8, 8),
    ),
    "apply_symmetry [n, n, n, ...]": (lambda _: apply_symmetry(np.zeros((4, 4, 4, 2)), 47), (4, 4, 4, 2)),
    "shift_and_scale [columns · channels]": (lambda _: shift_and_scale(LARGEST, 5)[1], (80,)),
    "MemoryFile.read_into [length]": (read_from_memory, (4,)),
    "growth, of the shape of a": (lambda _: COSMOLOGY.growth(np.full((2, 3), 0.5)), (2, 3)),
    "pco_decompress [length]": (restored, (7,)),
}
"""Twenty array functions, drawn at random from those that need no framework, with an array that each makes."""


@pytest.mark.parametrize("name", DRAWN)
def test_a_function_keeps_to_its_stated_shape(name: str, tmp_path: Path) -> None:
    make, shape = DRAWN[name]
    assert np.shape(make(tmp_path)) == shape
