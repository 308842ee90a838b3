"""Energy of nodes from Slurm: a stand-in for scontrol prints the recorded output of a real one."""

import pytest
from helpers.scontrol import Scontrol

from mlhpc.common.energy.slurm import SlurmNodes, counts_nodes, plugin, samples

START = 1_769_000_000.0


@pytest.fixture
def scontrol(tmp_path, monkeypatch):
    made = Scontrol(tmp_path)
    monkeypatch.setenv("PATH", str(made.bin), prepend=":")
    return made


def measured(scontrol, before, after, seconds=1000.0, names=("n0", "n1")):
    """What nodes used in a run of ``seconds`` that started at START."""
    clock = iter([START, START + seconds])
    nodes = SlurmNodes(names, "ipmi", clock=lambda: next(clock))
    scontrol.show(before)
    nodes.start()
    scontrol.show(after)
    return nodes.spent()


def test_the_joules_of_all_nodes_are_added(scontrol):
    before = {"n0": (5_000_000, START - 5), "n1": (700, START - 12), "n2": (1, START)}  # n2: another job's
    after = {"n0": (5_800_000, START + 995), "n1": (900_700, START + 1010), "n2": (10**9, START + 1000)}
    spent = measured(scontrol, before, after)
    assert (spent.measured, spent.source) == ("node", "Slurm, ipmi")
    assert (spent.joules, spent.counters, spent.nodes, spent.problems) == (1_700_000, 2, 2, [])


def test_a_node_named_twice_counts_once(scontrol):
    spent = measured(scontrol, {"n0": (100, START)}, {"n0": (300, START + 1000)}, names=("n0", "n0"))
    assert (spent.joules, spent.nodes) == (200, 1)


def test_nodes_that_are_not_sampled_or_not_shown_are_named_once(scontrol):
    shown = {"n0": (100, START), "n1": None}
    spent = measured(scontrol, shown, shown | {"n0": (300, START + 1000)}, names=("n0", "n1", "n2"))
    assert (spent.joules, spent.nodes) == (200, 1)
    assert spent.problems == [
        "Slurm has no energy samples (AcctGatherNodeFreq in slurm.conf) on n1 and 1 other node"
    ]


def test_samples_that_are_not_of_the_run_make_no_figure(scontrol):
    """30 s before the start and 25 s before the stop: 5.5% of 1000 s."""
    before = {"n0": (100, START - 30)}
    spent = measured(scontrol, before, {"n0": (900_000, START + 975)}, names=("n0",))
    assert (spent.joules, spent.nodes) == (0, 0)
    assert spent.problems == ["Slurm's energy samples are too infrequent for a run of 16 min 40 s on n0"]
    assert measured(scontrol, before, {"n0": (900_000, START + 981)}, names=("n0",)).nodes == 1


@pytest.mark.parametrize("last", [100, 50])
def test_a_counter_that_did_not_move_or_moved_back_makes_no_figure(scontrol, last):
    spent = measured(scontrol, {"n0": (100, START)}, {"n0": (last, START + 1000)}, names=("n0",))
    assert spent.nodes == 0 and "did not advance, or was reset" in spent.problems[0]


def test_a_node_without_a_counter_has_no_sample(scontrol):
    """As recorded, without energy accounting: zeros."""
    scontrol.show({"n0": None, "n1": (2**64 - 2, START)})  # NO_VAL64
    assert samples(("n0", "n1")) == {}


@pytest.mark.parametrize(("configured", "name", "whole"), [
    ("acct_gather_energy/ipmi", "ipmi", True),
    ("acct_gather_energy/xcc", "xcc", True),
    ("acct_gather_energy/pm_counters", "pm_counters", True),
    ("acct_gather_energy/rapl", "rapl", False),
    ("acct_gather_energy/gpu", "gpu", False),
    ("acct_gather_energy/ipmi,acct_gather_energy/gpu", "ipmi,acct_gather_energy/gpu", False),
    ("acct_gather_energy/none", "", False),
    ("(null)", "", False),  # since 23.11
])  # fmt: skip
def test_the_plugin_says_what_is_counted(tmp_path, monkeypatch, configured, name, whole):
    monkeypatch.setenv("PATH", str(Scontrol(tmp_path, plugin=configured).bin), prepend=":")
    assert plugin() == name
    assert counts_nodes(plugin()) == whole


def test_without_slurm_there_is_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert plugin() == "" and samples(("n0",)) is None


@pytest.mark.parametrize(
    "answer", ["", "[]", "{", '{"nodes": [3]}', '{"nodes": 5}', "unrecognized option '--json'"]
)
def test_a_slurm_that_prints_no_json_is_a_problem_with_its_remedy(scontrol, tmp_path, answer):
    nodes = SlurmNodes(("n0",), "ipmi")
    (tmp_path / "nodes.json").write_text(answer)
    assert samples(("n0",)) is None
    nodes.start()
    assert nodes.spent().problems == [
        "scontrol cannot print the nodes' energy (its --json requires Slurm 23.02)"
    ]
