"""A data set that cannot be trained on is reported in one line, for any number of ranks."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from helpers.thread_world import ThreadWorld, on_ranks

from mlhpc.benchmarks.schema import FrozenModel
from mlhpc.common.data.manifest import Files, Manifest, index
from mlhpc.common.ranks.world import Solo
from mlhpc.common.training.dataset import open_dataset, require_codec
from mlhpc.errors import AlreadyReported, UserError


class Weather(FrozenModel):
    generator: ClassVar[int] = 2
    cyclones: float = 2.5
    strains: float = 6


def refuse(*what: Any) -> Any:
    raise UserError("too few samples")


def take_all(dataset: Manifest, data: Any) -> Manifest:
    return dataset


@pytest.mark.parametrize(
    ("benchmark", "select", "enforce_rules", "message"),
    [
        ("deepcam", take_all, len, "is a data set for cosmoflow; pass one for deepcam"),
        ("cosmoflow", refuse, len, "too few samples"),
        ("cosmoflow", take_all, refuse, "too few samples"),
    ],
)
def test_what_is_wrong_with_a_data_set_is_printed_by_one_rank(
    benchmark: str,
    select: Callable[[Manifest, Any], Manifest],
    enforce_rules: Callable[[Any], object],
    message: str,
    tmp_path: Path,
) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "a").write_bytes(b"a")
    index(tmp_path, {"benchmark": "cosmoflow"}, Solo(), workers=1)

    def open_it(world: ThreadWorld) -> Manifest:
        run: Any = SimpleNamespace(benchmark=benchmark, data=None)
        return open_dataset(run, tmp_path, world, lambda run, facts: enforce_rules(facts), select)

    outcomes = on_ranks(1, 3, open_it)
    assert [type(outcome) for outcome in outcomes] == [UserError, AlreadyReported, AlreadyReported]
    assert all(message in str(outcome) for outcome in outcomes)


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({}, None),  # not generated
        ({"generator": 2, "simulation": {"cyclones": 2.5, "strains": 6}}, None),
        (
            {"generator": 1, "simulation": {"cyclones": 2.5, "strains": 6}},
            "with generator 1 instead of 2, for which",
        ),
        (
            {"generator": 2, "simulation": {"cyclones": 3}},
            "with cyclones 3 instead of 2.5, strains None instead of 6",
        ),
        ({"generator": 2, "simulation": "a\x1b[2J"}, "with cyclones None instead of 2.5, strains None"),
    ],
)
def test_a_data_set_generated_otherwise_is_warned_of_in_one_line_by_one_rank(
    facts: dict[str, Any], told: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "a").write_bytes(b"a")
    index(tmp_path, facts, Solo(), workers=1)

    def open_it(world: ThreadWorld) -> Manifest:
        run: Any = SimpleNamespace(benchmark="deepcam", data=SimpleNamespace(simulation=Weather()))
        return open_dataset(run, tmp_path, world, select=take_all)

    assert len(on_ranks(1, 3, open_it)) == 3
    said = capsys.readouterr().err
    if told is None:
        assert said == ""
    else:
        assert told in said and said.count("\n") == 1 and "mlhpc data make deepcam" in said


@pytest.mark.parametrize(("facts", "described"), [({}, "TFRecord"), ({"codec": "zstd"}, "zstd")])
def test_a_data_set_that_a_device_cannot_decode_is_refused_with_the_remedy(
    facts: dict[str, str], described: str, tmp_path: Path
) -> None:
    nothing = Files.of(())
    require_codec(
        Manifest(tmp_path, nothing, {"codec": "lut-small"}), ["lut", "lut-small"], without="TFRecord"
    )
    with pytest.raises(UserError) as refused:
        require_codec(Manifest(tmp_path, nothing, facts), ["lut", "lut-small"], without="TFRecord")
    for part in (str(tmp_path), f" is in format {described}", "--codec lut,", "loading.decode=host"):
        assert part in str(refused.value)
