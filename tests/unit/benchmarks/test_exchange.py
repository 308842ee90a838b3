"""How gradients are exchanged: settings of the libraries, free in the closed division."""

import pytest

from mlhpc.benchmarks import rules
from mlhpc.benchmarks.load import load
from mlhpc.errors import UserError

HOROVOD = ["training.fusion_threshold_mib=64", "training.cycle_time_ms=0.5"]
PYTORCH = "training.framework=pytorch"


def test_horovod_takes_its_settings_from_the_environment():
    """https://horovod.readthedocs.io/en/stable/tensor-fusion.html: the threshold in bytes, the cycle in
    milliseconds; docs/mpi.rst: HOROVOD_HIERARCHICAL_ALLREDUCE=1."""
    run = load("cosmoflow", "smoke", [*HOROVOD, "training.hierarchical_allreduce=true"])
    assert run.training.variables() == {
        "HOROVOD_FUSION_THRESHOLD": "67108864",
        "HOROVOD_CYCLE_TIME": "0.5",
        "HOROVOD_HIERARCHICAL_ALLREDUCE": "1",
    }


@pytest.mark.parametrize("benchmark", ["cosmoflow", "deepcam", "resnet50"])
def test_what_is_not_set_is_left_to_the_site(benchmark):
    training = load(benchmark, "smoke").training
    assert training.variables() == {}
    assert training.exchange() == {}


def test_fusion_can_be_switched_off():
    run = load("cosmoflow", "smoke", ["training.fusion_threshold_mib=0"])
    assert run.training.variables() == {"HOROVOD_FUSION_THRESHOLD": "0"}
    assert run.training.exchange() == {"horovod_fusion_threshold_mib": 0}


@pytest.mark.parametrize(
    ("benchmark", "settings"),
    [
        ("cosmoflow", HOROVOD),
        ("cosmoflow", [PYTORCH, "training.bucket_cap_mib=1"]),
        ("deepcam", ["training.bucket_cap_mib=1"]),
        ("resnet50", ["training.bucket_cap_mib=1"]),
    ],
)
def test_closed_leaves_them_free(benchmark, settings):
    """They change how sums are sent, not what is summed: systems differ in them, as in their network."""
    run = load(benchmark, "closed", settings)
    assert not [f for f in rules.findings(rules.RunContext(run)) if f.severity == "error"]
    assert run.training.exchange()


@pytest.mark.parametrize(
    ("benchmark", "setting", "message"),
    [
        ("cosmoflow", "training.bucket_cap_mib=1", "requires training.framework=pytorch"),
        ("deepcam", "training.fusion_threshold_mib=1", "unknown key"),
        ("deepcam", "training.bucket_cap_mib=0", "greater than 0"),
        ("deepcam", "training.bucket_cap_mib=nan", "finite"),
        ("cosmoflow", "training.cycle_time_ms=-1", "greater than or equal to 0"),
    ],
)
def test_what_cannot_be_is_refused(benchmark, setting, message):
    with pytest.raises(UserError, match=message):
        load(benchmark, "smoke", [setting])
