"""A framework is imported only where it trains. tests/unit/test_architecture.py has what needs no framework."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("trainer", "absent"),
    [
        ("mlhpc.cosmoflow.tf.train", {"torch"}),
        ("mlhpc.cosmoflow.pytorch.train", {"tensorflow", "keras", "horovod"}),
        ("mlhpc.deepcam.train", {"tensorflow", "keras", "horovod"}),
        ("mlhpc.resnet50.train", {"tensorflow", "keras", "horovod"}),
    ],
)
def test_a_trainer_imports_no_other_framework(trainer, absent):
    code = f"import {trainer}, sys\nprint(sorted(set({sorted(absent)!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().splitlines()[-1] == "[]"
