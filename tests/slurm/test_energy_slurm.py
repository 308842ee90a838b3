"""Energy of nodes: what a real Slurm prints is what the reader looks for."""

import json

from mlhpc.common.energy.slurm import plugin, samples


def test_nodes_of_a_real_slurm_have_the_fields_of_a_sample(slurm, monkeypatch) -> None:
    """Without energy accounting, which needs a management controller: the fields are there, and hold no sample."""
    for name, value in slurm.env.items():
        monkeypatch.setenv(name, value)
    answer = slurm.run("scontrol", "--json", "show", "nodes", "n0,n1")
    assert answer.returncode == 0, answer.stderr
    energy = {node["name"]: node["energy"] for node in json.loads(answer.stdout)["nodes"]}
    assert energy.keys() == {"n0", "n1"}
    assert all({"consumed_energy", "last_collected"} <= each.keys() for each in energy.values())
    assert samples(("n0", "n1")) == {}
    assert "AcctGatherEnergyType" in slurm.run("scontrol", "show", "config").stdout
    assert plugin() == ""
