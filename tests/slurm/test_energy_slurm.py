"""Energy of nodes: the output of a real Slurm is read correctly."""

import json

from mlhpc.common.energy.slurm import SlurmNodes, plugin, samples


def test_a_real_slurm_without_energy_accounting_has_no_counter(slurm, monkeypatch) -> None:
    """Accounting needs a management controller. The installed version may be older than scontrol's JSON."""
    for name, value in slurm.env.items():
        monkeypatch.setenv(name, value)
    assert "AcctGatherEnergyType" in slurm.run("scontrol", "show", "config").stdout
    assert plugin() == ""
    answer = slurm.run("scontrol", "--json", "show", "nodes", "n0,n1")
    if answer.returncode:
        assert "--json" in answer.stderr and samples(("n0", "n1")) is None
        nodes = SlurmNodes(("n0", "n1"), "ipmi")
        nodes.start()
        assert "Slurm 23.02" in nodes.spent().problems[0]
    else:
        energy = {node["name"]: node["energy"] for node in json.loads(answer.stdout)["nodes"]}
        assert energy.keys() == {"n0", "n1"}
        assert all({"consumed_energy", "last_collected"} <= each.keys() for each in energy.values())
        assert samples(("n0", "n1")) == {}
