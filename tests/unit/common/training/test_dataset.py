"""A data set that cannot be trained on is reported in one line, for any number of ranks."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.thread_world import ThreadWorld, on_ranks

from mlhpc.common.data.manifest import Manifest, index
from mlhpc.common.ranks.world import Solo
from mlhpc.common.training.dataset import open_dataset, require_codec
from mlhpc.errors import AlreadyReported, UserError


def refuse(what: Any) -> Any:
    raise UserError("too few samples")


def take_all(dataset: Manifest) -> Manifest:
    return dataset


@pytest.mark.parametrize(
    ("benchmark", "select", "enforce_rules", "message"),
    [
        ("deepcam", take_all, len, "is a data set of cosmoflow; give one of deepcam"),
        ("cosmoflow", refuse, len, "too few samples"),
        ("cosmoflow", take_all, refuse, "too few samples"),
    ],
)
def test_what_is_wrong_with_a_data_set_is_printed_by_one_rank(
    benchmark: str,
    select: Callable[[Manifest], Manifest],
    enforce_rules: Callable[[Any], object],
    message: str,
    tmp_path: Path,
) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "a").write_bytes(b"a")
    index(tmp_path, {"benchmark": "cosmoflow"}, Solo(), workers=1)

    def open_it(world: ThreadWorld) -> Manifest:
        return open_dataset(tmp_path, benchmark, world, select=select, enforce_rules=enforce_rules)

    outcomes = on_ranks(1, 3, open_it)
    assert [type(outcome) for outcome in outcomes] == [UserError, AlreadyReported, AlreadyReported]
    assert all(message in str(outcome) for outcome in outcomes)


@pytest.mark.parametrize(("facts", "described"), [({}, "TFRecord"), ({"codec": "zstd"}, "zstd")])
def test_a_data_set_that_a_device_cannot_decode_is_refused_with_the_remedy(
    facts: dict[str, str], described: str, tmp_path: Path
) -> None:
    require_codec(Manifest(tmp_path, (), {"codec": "lut-small"}), ["lut", "lut-small"], without="TFRecord")
    with pytest.raises(UserError) as refused:
        require_codec(Manifest(tmp_path, (), facts), ["lut", "lut-small"], without="TFRecord")
    for part in (str(tmp_path), f"this data set is {described}", "--codec lut,", "loading.decode=host"):
        assert part in str(refused.value)
