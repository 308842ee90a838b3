"""Studies, with a stand-in for ``mlhpc run`` that writes the record of a run with step times chosen by the
test."""

import json
import shlex
import sys

from mlhpc import cli
from mlhpc.common.pages import library

STAND_IN = """\
import json, os, pathlib, signal, sys
from mlhpc.benchmarks import load
here, words = pathlib.Path(__file__).parent, sys.argv[sys.argv.index("run") + 1 :]
with (here / "calls").open("a") as calls:
    calls.write(json.dumps(words) + "\\n")
given = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
run = load.load(words[0], words[words.index("--preset") + 1], given)
out = pathlib.Path(words[words.index("--out") + 1])
out.mkdir(parents=True)
seconds, wait, *batches = json.loads((here / "seconds").read_text()).get(out.name, [2.0, 0.5])
if seconds < 0:
    print("there is no more memory")
    if seconds == -2:
        out.rmdir()
    if seconds == -10:
        os.kill(os.getppid(), signal.SIGUSR1)
        signal.alarm(20)
        signal.pause()
    if seconds == -9:
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(2)
(out / "config.toml").write_text(load.dumps(run))
(out / "env.json").write_text(json.dumps({"cpu": "a processor", "cores": 2, "commit": "0123456789abcdef"}))
kept = 7 if out.name == "run-2" else 0
warm, ranks = run.study.warmup_steps, int(words[words.index("--ranks") + 1]) if "--ranks" in words else 1
count = batches[0] if batches else warm + run.study.steps
events = [
    {"t": 0.0, "event": "note", "name": "facts", "ranks": ranks},
    {"t": 1.0, "event": "begin", "name": "run"},
    {"t": 1.5, "event": "begin", "name": "train", "epoch": 1},
    *({"t": 1.4, "event": kind, "name": "staging", "seconds": 0.4, "kept": kept}
      for kind in ("end", "note") if "--stage" in words),
    {"t": 9.0, "event": "mark", "name": "warm", "waited": {"data_wait": 7.0}},
    {"t": 9.0 + seconds, "event": "timed", "name": "data_wait", "seconds": 7.0 + wait, "epoch": 1, "count": count},
    {"t": 9.0 + seconds, "event": "end", "name": "train", "epoch": 1, "seconds": 7.5 + seconds},
    {"t": 99.0, "event": "end", "name": "run", "seconds": 98.0},
]
lines = [json.dumps(e) for e in events if warm or e["event"] != "mark"]
(out / "events.rank0.jsonl").write_text("\\n".join(lines) + "\\n")
sys.exit(1)
"""


class Site:
    def __init__(self, folder):
        self.folder, self.out = folder, folder / "study"
        for name in ("data", "jpeg", "lmdb"):
            (folder / name).mkdir()
        (folder / "stand_in.py").write_text(STAND_IN)
        python = folder / "python"
        python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {folder / "stand_in.py"} "$@"\n')
        python.chmod(0o755)
        library.script()  # by this interpreter, before its tests name the stand-in as theirs
        self.takes()

    def takes(self, **seconds):
        """Seconds of the measured steps of each repeat, and those of them that are waited for data."""
        by_run = {f"run-{name.removeprefix('run')}": value for name, value in seconds.items()}
        (self.folder / "seconds").write_text(json.dumps(by_run))

    def study(self, *more, benchmark="cosmoflow"):
        words = ["study", benchmark, "--data", self.folder / "data", "--out", self.out, *more]
        return cli.main([str(word) for word in words])

    def calls(self):
        path = self.folder / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def settings(self):
        """Settings (--set) and options of each call."""
        calls = []
        for words in self.calls():
            given = dict(words[i + 1].split("=", 1) for i, word in enumerate(words) if word == "--set")
            options = {words[i]: words[i + 1] for i in range(1, len(words) - 1) if words[i].startswith("--")}
            calls.append(options | given)
        return calls
