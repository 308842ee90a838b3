"""docs/reference/stability.md: what belongs to a version does not change. A change of a preset or of a generator
raises its version, and adds a line to tests/data/reference/versions.json; lines are never edited."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from mlhpc.benchmarks import load, registry
from mlhpc.benchmarks.schema import Run

FROZEN = json.loads((Path(__file__).parents[2] / "data/reference/versions.json").read_text())
PRESETS = [(b.name, preset) for b in registry.BUILT_IN for preset in load.presets(b.name)]
NOT_RESULTS = {"description", "submission", "loading", "emulation", "study", "hyperparameters_from"}
"""Tables that do not change what is trained."""


def digest(run: Run) -> str:
    kept = {key: value for key, value in run.model_dump(mode="json").items() if key not in NOT_RESULTS}
    kept["training"] = {
        k: v for k, v in kept["training"].items() if k in ("framework", "max_epochs", "precision")
    }
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]


@pytest.mark.parametrize("benchmark, preset", PRESETS)
def test_a_preset_is_as_its_version_was(benchmark: str, preset: str) -> None:
    version = load.preset_version(benchmark, preset)
    assert FROZEN["presets"][benchmark][preset][str(version)] == digest(load.load(benchmark, preset))


def test_versions_are_never_dropped() -> None:
    for benchmark, preset in PRESETS:
        newest = load.preset_version(benchmark, preset)
        assert list(FROZEN["presets"][benchmark][preset]) == [str(n) for n in range(1, newest + 1)]


def generated(benchmark: str) -> bytes:
    """What the generator makes of the first sample of the smoke preset: counts, labels of weather, a picture. The
    fields of weather are left out: their last bits depend on the processor."""
    data: Any = load.load(benchmark, "smoke").data
    if benchmark == "cosmoflow":
        from mlhpc.cosmoflow.synthetic.simulate import simulate

        counts, parameters = simulate(data.simulation, 0)
        return counts.tobytes() + parameters.tobytes()
    if benchmark == "deepcam":
        from mlhpc.deepcam.synthetic.simulate import simulate as weather

        rows, columns, _ = data.sample_shape
        return weather(data.simulation, rows, columns, 0)[1].tobytes()
    from mlhpc.resnet50.synthetic.drawing import draw

    return draw(data.simulation.seed, 0, 0, data.simulation.side)


@pytest.mark.parametrize("benchmark", [benchmark.name for benchmark in registry.BUILT_IN])
def test_a_generator_makes_the_bytes_of_its_version(benchmark: str) -> None:
    data: Any = load.load(benchmark, "smoke").data
    frozen = FROZEN["generators"][benchmark][str(data.simulation.generator)]
    assert hashlib.sha256(generated(benchmark)).hexdigest()[:16] == frozen
