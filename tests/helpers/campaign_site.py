"""Campaigns, with a stand-in for ``mlhpc run`` that leaves a run folder with the outcome the test chose."""

import json
import os
import shlex
import signal
import subprocess
import sys

from golden.make_run import make_run

from mlhpc import cli

PYTHON = sys.executable

# Started as python -S: campaign tests start many. Files beside it say how its runs end.
STAND_IN = """\
import json, os, pathlib, shutil, signal, sys, time
here, words = pathlib.Path(__file__).parent, sys.argv[1:]
out = pathlib.Path(words[words.index("--out") + 1])
seed = int(words[words.index("--seed") + 1])
with (here / "calls").open("a") as calls:
    call = {"name": out.name, "seed": seed, "words": words, "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
            "cores": sorted(os.sched_getaffinity(0)), "bind": os.environ.get("MLHPC_BIND")}
    calls.write(json.dumps(call) + "\\n")
deadline = time.monotonic() + 30
while (here / "meet").exists() and (here / "calls").read_text().count('"seed"') < 2:
    assert time.monotonic() < deadline, "the other run did not start"
    time.sleep(0.01)
outcome = json.loads((here / "outcomes").read_text()).get(out.name, "converged-8")
def stop(*_):
    (out / "stopped cleanly").touch()
    sys.exit(2)
signal.signal(signal.SIGTERM, stop)
signal.alarm(120)
if outcome == "aborted" or outcome == "hangs":
    out.mkdir()
    (out / "run.log").touch()
    events = [{"t": 0, "event": "begin", "name": "run"},
              {"t": 1, "event": "end", "name": "run", "error": "the disk is full"}]
    (out / "events.rank0.jsonl").write_text("".join(json.dumps(event) + "\\n" for event in events))
    while outcome == "hangs":
        time.sleep(0.02)
    sys.exit(2)
shutil.copytree(here / outcome, out)
for name in ("run.log", "result.json"):
    (out / name).write_text((out / name).read_text().replace("1234", str(seed)))
sys.exit(0 if outcome.startswith("converged") else 1)
"""


class Site:
    """A folder with the stand-in, and campaigns started there."""

    def __init__(self, folder):
        self.folder, self.out = folder, folder / "campaign"
        (folder / "data" / "train").mkdir(parents=True)
        (folder / "stand_in.py").write_text(STAND_IN)
        words = [PYTHON, "-S", folder / "stand_in.py"]
        self.python = folder / "python"
        self.python.write_text(f'#!/bin/sh\nexec {shlex.join(map(str, words))} "$@"\n')
        self.python.chmod(0o755)
        self.will()

    def will(self, **outcomes):
        for outcome in {"converged-8", *outcomes.values()}:
            kind, _, epochs = outcome.partition("-")
            if epochs and not (self.folder / outcome).exists():
                status = "success" if kind == "converged" else "failed"
                node = {"joules": 100.0 * int(epochs), "counters": 1, "source": "Slurm, ipmi", "nodes": 1}
                make_run(self.folder / outcome, status=status, epochs=int(epochs),
                         result=lambda result, node=node: result.update(energy={"node": node}))  # fmt: skip
        (self.folder / "outcomes").write_text(json.dumps(outcomes))

    def words(self, *more):
        words = ["campaign", "cosmoflow", "--data", self.folder / "data", "--out", self.out, *more]
        return [str(word) for word in words]

    def run(self, *more):
        return cli.main(self.words(*more))

    def start(self, *more, **env):
        """In a separate process, to be stopped or run concurrently."""
        code = (
            f"import sys; sys.executable = {str(self.python)!r}\nfrom mlhpc.cli import main; sys.exit(main())"
        )
        return subprocess.Popen(
            [PYTHON, "-c", code, *self.words(*more)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | env,
            # Tests that were started in the background (with &) have Ctrl-C ignored, and their children too.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip

    def calls(self):
        path = self.folder / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def record(self):
        return json.loads((self.out / "campaign.json").read_text())

    def states(self):
        return [made["state"] for made in self.record()["run_states"]]
