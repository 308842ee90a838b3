"""A ReFrame test: one run per benchmark, staged, checked, time to train and throughput (docs/guide/ecosystem.md).

reframe -C run_scripts/reframe/settings.py -c run_scripts/reframe/mlhpc_test.py -r -S num_tasks=2
"""

import json
import os

import reframe as rfm
import reframe.utility.sanity as sn
from reframe.core.builtins import (
    parameter,
    performance_function,
    run_before,
    sanity_function,
    variable,
)


@rfm.simple_test
class MlhpcRun(rfm.RunOnlyRegressionTest):
    """``mlhpc run``, and ``mlhpc check`` of what it left. Set with ``-S NAME=VALUE``:

    ``preset``; ``settings``: changes, ``key=value`` with blanks between; ``data``: the folder of the data set,
    empty to generate one; ``stage``: node-local folder, empty to read the data set in place; and ReFrame's own
    ``num_tasks``, ``num_tasks_per_node``, ``num_cpus_per_task``, ``time_limit``.
    """

    benchmark = parameter(["cosmoflow", "deepcam", "resnet50"])
    preset = variable(str, value="smoke")
    settings = variable(str, value="")
    data = variable(str, value="")
    stage = variable(str, value="${TMPDIR:-/tmp}/mlhpc-$$")  # $$ is of the batch script: one folder per job

    descr = "time to train, including data staging"
    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    executable = "mlhpc"
    num_tasks = 1
    time_limit = "2h"
    tags = {"mlhpc", "benchmark"}
    keep_files = ["out", "check.json"]

    @run_before("run")
    def command_line(self):
        changes = [word for setting in self.settings.split() for word in ("--set", f"'{setting}'")]
        preset = [self.benchmark, "--preset", self.preset, *changes]
        # The ranks prove to one another that they know this.
        self.prerun_cmds = ["export MLHPC_TOKEN=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \\n')"]
        if not self.data:
            self.prerun_cmds += [" ".join(["mlhpc data make", *preset, "--out data"])]
        self.executable_opts = ["run", *preset, "--data", self.data or "data", "--out", "out"]
        if self.stage:
            self.executable_opts += ["--stage", f'"{self.stage}"']
        self.postrun_cmds = ["mlhpc check out --json > check.json"]

    @sanity_function
    def reached_its_target_and_passes_the_check(self):
        check = self._read("check.json")
        findings = [finding["rule"] for each in check["sets"] for finding in each["findings"]]
        return sn.all(
            [
                sn.assert_eq(self._read("out/result.json")["status"], "success", "the run ended as {0!r}"),
                sn.assert_true(check["passes"], f"mlhpc check found: {', '.join(findings)}"),
            ]
        )

    @performance_function("s")
    def time_to_train(self):
        return self._read("out/result.json")["time_to_train_s"]

    @performance_function("s")
    def staging(self):
        return self._read("out/result.json")["breakdown_s"]["staging"]

    @performance_function("samples/s")
    def throughput(self):
        """Of the median epoch."""
        rates = sorted(epoch["samples_per_s"] for epoch in self._read("out/result.json")["epochs"])
        return rates[len(rates) // 2]

    @sn.deferrable
    def _read(self, name):
        with open(os.path.join(self.stagedir, name)) as file:
            return json.load(file)
