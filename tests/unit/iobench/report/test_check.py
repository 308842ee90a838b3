import json
from pathlib import Path

import pytest
from fuzz.emulation import results

from mlhpc.errors import UserError
from mlhpc.iobench.report.check import check_runs, read_result
from mlhpc.iobench.report.page import page


def write(folder: Path, result) -> Path:
    folder.mkdir()
    (folder / "result.json").write_text(json.dumps(result))
    return folder


def test_the_result_of_an_emulation_is_read_as_it_was_written(tmp_path):
    one, _ = results()
    assert read_result(write(tmp_path / "run", one)) == one


def test_keys_of_the_workload_that_are_left_out_have_their_defaults(tmp_path):
    """Hand-edited, or of a version without them."""
    one, _ = results()
    parts = ("metric", "storage", "reader", "evaluation", "checkpoint")
    left = {key: value for key, value in one["workload"].items() if key not in parts}
    assert left.keys() < one["workload"].keys()
    result = read_result(write(tmp_path / "run", {**one, "workload": left}))
    assert result["workload"]["reader"]["batch_size"] == 1
    assert "Accelerator utilisation" in page(result)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("au_percent", "95", "au_percent: "),
        ("resident_before_epochs", [float("nan")], "resident_before_epochs.0: "),
        ("rank_results", [], "has 0 rank_results for 1 ranks"),
        ("epochs", [{}], "epochs.0.epoch: "),
        ("nodes", 2, "has 2 nodes for 1 ranks"),
        ("workload", {"name": "x"}, "nothing to do"),
        ("kind", "training", "kind: "),
        ("au_null_percent", None, "a binding without au_null_percent"),
    ],
)
def test_a_result_with_other_content_is_refused_with_its_key(tmp_path, key, value, says):
    one, _ = results()
    run = write(tmp_path / "run", {**one, key: value})
    with pytest.raises(UserError) as refused:
        check_runs([run], 2**30)
    assert says in str(refused.value) and "\n" not in str(refused.value)


def test_a_node_with_more_cores_than_memory_could_list_is_refused(tmp_path):
    """The simulation of other numbers of ranks has an entry for each."""
    one, _ = results()
    (rank,) = one["rank_results"]
    run = write(tmp_path / "run", {**one, "rank_results": [{**rank, "cores": 10**12}]})
    with pytest.raises(UserError, match=r"rank_results\.0\.cores: "):
        read_result(run)
