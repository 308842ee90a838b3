"""The first-hour script on a machine without a GPU: it reports that, and its runs' settings exist."""

import importlib.util
import itertools
import subprocess
import sys
from pathlib import Path

from mlhpc.benchmarks import load

SCRIPT = Path(__file__).parents[3] / "tests/perf/first_hour_gpu.py"


def loaded():
    spec = importlib.util.spec_from_file_location("first_hour_gpu", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_without_a_gpu_it_reports_that_and_exits(tmp_path):
    command = [sys.executable, SCRIPT, "--work", tmp_path / "work"]
    done = subprocess.run(command, env={"PATH": str(tmp_path)}, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("no GPU: ") and not (tmp_path / "work").exists()


def test_its_runs_have_valid_settings_and_divisible_batches(tmp_path):
    runs = 0
    for check in loaded().CHECKS:
        for gpus in (gpus for gpus in (1, 2, 8) if gpus >= check.gpus):
            words = check.command(gpus, tmp_path)
            if "run" in words:
                settings = [word for flag, word in itertools.pairwise(words) if flag == "--set"]
                run = load.load(words[words.index("run") + 1], "smoke", settings)
                run.require_startable(gpus if "--ranks" in words else 1, staged=False)
                runs += 1
    assert runs > 30


def test_failing_hanging_and_passing_checks_are_distinguished(tmp_path):
    module = loaded()

    def verdict(code, **more):
        check = module.Check("name", "what", lambda gpus, work: [sys.executable, "-c", code], **more)
        return module.verified(check, module.perform(check, 1, tmp_path), tmp_path)[::2]

    assert verdict("") == ("passed", "what")
    assert verdict("raise SystemExit('NCCL error')") == ("FAILED", "status 1: NCCL error")
    assert verdict("import time; time.sleep(60)", minutes=0.001)[0] == "FAILED"
    assert verdict("", gpus=2) == ("skipped", "needs 2 GPUs")
    late = module.perform(module.Check("name", "what", lambda gpus, work: []), 1, tmp_path, end=0.0)
    assert late[::2] == ("skipped", "no time was left: start this again with --only name")

    def wrong(work):
        raise AssertionError("losses [1, 2]")

    assert verdict("", verify=wrong) == ("FAILED", "losses [1, 2]")


def test_runs_side_by_side_are_verified_when_all_have_ended(tmp_path, monkeypatch, capsys):
    """A comparison needs another run's result, whichever ends first."""
    module = loaded()
    code = "import pathlib, sys, time; time.sleep(float(sys.argv[3])); pathlib.Path(sys.argv[2]).touch()"

    def check(name, delay, needs):
        def verify(work):
            assert (work / needs).exists(), needs

        def command(gpus, work):
            return [sys.executable, "-c", code, "run", str(work / name), delay]

        return module.Check(name, "what", command, verify)

    checks = (check("data-first", "0", "quick"), check("quick", "0", "slow"), check("slow", "1", "lost"))
    monkeypatch.setattr(module, "CHECKS", checks)
    monkeypatch.setattr(module, "count_gpus", lambda: 1)
    monkeypatch.setattr(sys, "argv", ["first_hour_gpu", "--work", str(tmp_path / "work"), "--jobs", "2"])
    assert module.main() == 1
    verdicts = [line.split("│")[1:3] for line in capsys.readouterr().out.splitlines() if "│" in line]
    expected = [["data-first", "passed"], ["quick", "passed"], ["slow", "FAILED"]]
    assert [named for words in verdicts if (named := [word.strip() for word in words])[0]] == expected


def test_a_check_can_be_repeated_but_only_a_run_is_removed_for_it(tmp_path):
    """``mlhpc run`` refuses a folder with results."""
    module, out = loaded(), tmp_path / "runs" / "deepcam"
    code = f"from pathlib import Path; out = Path({str(out)!r}); out.mkdir(parents=True); (out/'run.log').touch()"
    check = module.Check("deepcam", "what", lambda gpus, work: [sys.executable, "-c", code])
    assert [module.perform(check, 1, tmp_path)[0] for _ in range(2)] == ["passed", "passed"]
    (out / "run.log").unlink()
    assert module.perform(check, 1, tmp_path)[0] == "FAILED" and out.exists()


def test_checks_of_a_framework_that_this_environment_lacks_are_skipped(tmp_path, monkeypatch):
    """PyTorch and TensorFlow for GPUs have an environment each."""
    module = loaded()
    monkeypatch.setattr(module, "installed", lambda package: package == "torch")
    monkeypatch.setattr(
        module.subprocess, "run", lambda *words, **more: subprocess.CompletedProcess(words, 9)
    )
    skipped = {c.name for c in module.CHECKS if module.perform(c, 8, tmp_path)[0] == "skipped"}
    dali = {"deepcam-dali", "resnet50-dali"}
    tensorflow = {"cosmoflow", "cosmoflow-float16", "cosmoflow-decode", "cosmoflow-ranks"}
    assert skipped == {*tensorflow, *dali, "energy"}
