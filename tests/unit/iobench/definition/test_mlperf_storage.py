import pytest

from mlhpc.errors import UserError
from mlhpc.iobench.definition import load, mlperf_storage


def test_the_size_is_the_official_tools():
    """mlcommons/storage_results_v1.0, Closed/YanRongTech: ``benchmark.sh datasize --workload unet3d
    --num-accelerators 36 --num-client-hosts 1 --client-host-memory-in-gb 251`` printed 126000 files, 17203 GB (of
    2^30)."""
    size = mlperf_storage.required(load.load("mlperf_unet3d"), 251 * 2**30, 36)
    assert (size.files, size.steps_per_epoch, size.bound) == (126_000, 500, "steps")
    assert int(size.bytes / 2**30) == 17_203


def test_a_little_less_breaks_the_rules_and_the_size_does_not():
    workload = load.load("mlperf_cosmoflow")
    for memory, accelerators, clients in ((512 * 10**9, 64, 1), (64 * 10**9, 16, 4), (10**9, 512, 2)):
        size = mlperf_storage.required(workload, memory, accelerators, clients)
        for files, fits in ((size.files, True), (size.files - 1, False)):
            assert workload.dataset is not None
            dataset = workload.dataset.model_copy(update={"files": files})
            resized = workload.model_copy(update={"dataset": dataset})
            found = mlperf_storage.findings(resized, memory, accelerators, clients)
            assert (found == []) is fits, found


def test_runs_below_the_utilisation_or_too_few_are_found():
    workload = load.load("mlperf_cosmoflow")
    found = mlperf_storage.findings(workload, 10**9, 1, 1, [71.0, 69.9, None, 80.0])
    assert found == [
        "4 runs, 5 are required",
        "run 2: utilisation 69.9%, 70% is required",
        "run 3: utilisation none, 70% is required",
    ]


def test_a_workload_without_data_has_no_size():
    with pytest.raises(UserError, match="reads no data"):
        mlperf_storage.required(load.load("l2hmc"), 10**9, 8)
