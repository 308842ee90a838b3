"""A stand-in for Slurm's ``scontrol``, which prints what Slurm prints (tests/data/slurm)."""

import copy
import json
from collections.abc import Mapping
from pathlib import Path

RECORDED = Path(__file__).parents[1] / "data/slurm/show_nodes.json"
CONFIG = """\
Configuration data as of 2026-01-20T12:00:00
AccountingStorageType   = accounting_storage/none
AcctGatherEnergyType    = {plugin}
AcctGatherFilesystemType = acct_gather_filesystem/none
AcctGatherNodeFreq      = 30 sec
AcctGatherProfileType   = acct_gather_profile/none
"""
SCRIPT = """\
#!/bin/sh
case "$*" in
    "show config") cat {folder}/config;;
    "--json show nodes "*) cat {folder}/nodes.json;;
    *) echo "scontrol: error: $*" >&2; exit 1;;
esac
"""


class Scontrol:
    """A command in ``folder``/bin, of a Slurm whose energy ``plugin`` samples."""

    def __init__(self, folder: Path, plugin: str = "acct_gather_energy/ipmi") -> None:
        self.bin, self._folder = folder / "bin", folder
        self.bin.mkdir()
        (self.bin / "scontrol").write_text(SCRIPT.format(folder=folder))
        (self.bin / "scontrol").chmod(0o755)
        (folder / "config").write_text(CONFIG.format(plugin=plugin))
        self.show({})

    def show(self, samples: Mapping[str, tuple[int, float] | None]) -> None:
        """From now on the nodes have these samples, joules and seconds since 1970; None: never sampled."""
        answer = json.loads(RECORDED.read_text())
        first, answer["nodes"] = answer["nodes"][0], []
        for name, sample in samples.items():
            node = copy.deepcopy(first) | {"name": name, "hostname": name}
            if sample:
                node["energy"] |= {"consumed_energy": sample[0], "last_collected": int(sample[1])}
            answer["nodes"].append(node)
        (self._folder / "nodes.json").write_text(json.dumps(answer))
