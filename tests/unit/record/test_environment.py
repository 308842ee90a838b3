"""Bindings of ranks in reports and comparisons, from untrusted env.json files."""

import json
from pathlib import Path
from typing import Any

import pytest
from golden.make_run import make_run
from helpers.report_runs import report_of

from mlhpc.record.differences import differences
from mlhpc.record.environment import Environment, binding_text, bindings_table, shared_cores


def rank(number: int, cores: str, host: str = "n0", local: int | None = None, **more: Any) -> dict[str, Any]:
    where = {"rank": number, "hostname": host, "local_rank": number if local is None else local}
    return {**where, "cores": cores, "numa_nodes": "0", "memory_policy": "default", "threads": 4, **more}


def bound(folder: Path, ranks: list[dict[str, Any]]) -> Path:
    return make_run(folder, ranks=len(ranks), env=lambda env: env.update(bindings=ranks))


def test_nodes_that_are_alike_share_rows() -> None:
    ranks = [rank(4 * n + i, f"{4 * i}-{4 * i + 3}", f"n{n}", i) for n in range(32) for i in range(4)]
    table = bindings_table(Environment(bindings=ranks).bindings)
    assert table is not None
    rows = [[cell.text for cell in row] for row in table.rows]
    assert [row[1:3] for row in rows] == [["0", "0-3"], ["1", "4-7"], ["2", "8-11"], ["3", "12-15"]]
    assert all(row[0] == "n0, n1, n2 and 29 more" for row in rows)


def test_the_page_shows_bindings_and_ranks_that_share_cores(tmp_path: Path) -> None:
    page, _ = report_of(bound(tmp_path / "a", [rank(0, "0-15"), rank(1, "16-31", numa_nodes="1")]))
    assert "n0 0 0-15 0 default 4 n0 1 16-31 1 default 4" in page.text
    assert "share cores" not in page.text and "share all" not in page.text
    page, _ = report_of(bound(tmp_path / "b", [rank(0, "0-15"), rank(1, "8-23")]))
    assert "Ranks 0 and 1 of n0 share cores 8-15." in page.text
    page, _ = report_of(bound(tmp_path / "c", [rank(0, "0-15"), rank(1, "0-15")]))
    assert "The 2 ranks of n0 share all their cores" in page.text


def test_two_runs_that_differ_only_in_their_binding(tmp_path: Path) -> None:
    one = bound(tmp_path / "one", [rank(0, "0-3"), rank(1, "4-7")])
    two = bound(tmp_path / "two", [rank(0, "0-7", threads=8), rank(1, "0-7", threads=8)])
    [difference] = differences(one, two)
    assert (difference.kind, difference.key) == ("machine", "bindings")
    assert difference.a == (
        "local ranks 0: cores 0-3, NUMA nodes 0, 4 threads; local ranks 1: cores 4-7, NUMA nodes 0, 4 threads"
    )
    assert difference.b == "local ranks 0-1: cores 0-7, NUMA nodes 0, 8 threads"
    assert differences(one, one) == []


@pytest.mark.parametrize(
    "listed",
    [None, 7, "x", [7], [{}], [rank(0, "<b>")], [rank(-1, "0")], [rank(0, "0", threads=1e99)],
     [rank(0, "0-3" + "," * 5000)], [rank(0, "9" * 999)] * 2, [rank(0, "-,-"), rank(1, "1")]],
    ids=lambda listed: json.dumps(listed)[:30],
)  # fmt: skip
def test_no_env_json_breaks_a_page(listed: Any, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", env=lambda env: env.update(bindings=listed))
    page, _ = report_of(run)
    assert "<b>" not in page.text
    bindings = Environment(bindings=listed).bindings
    assert isinstance(shared_cores(bindings) + binding_text(bindings), str)


def test_hosts_with_markup_are_text(tmp_path: Path) -> None:
    page, _ = report_of(bound(tmp_path / "run", [rank(0, "0", host='"><script>x</script>')]))
    assert '"><script>x</script>' in page.text
