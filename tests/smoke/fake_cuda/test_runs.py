"""Every kind of run trains to its end on a CUDA device, and does with it what it should."""

import json

import pytest
from smoke.conftest import mlhpc
from smoke.fake_cuda.conftest import SETTINGS, command, on_device

TWO = {"devices": 2}
PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")
LARS = ["opt_name=lars", "lars_opt_learning_rate_decay_steps=9", "lars_opt_learning_rate_warmup_epochs=1"]
OPTIMIZERS = {
    "lamb": ("deepcam", []),
    "sgd": ("cosmoflow", []),
    "lars": ("resnet50", [f"hyperparameters.{choice}" for choice in LARS]),
}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_no_step_waits_for_the_device_or_copies_from_pageable_memory(sets, tmp_path, optimizer, precision):
    """Twice as many steps, and three times as many evaluations, wait as often: at the ends of both. 5 or 7 samples
    in batches of 2 leave a short last batch. Nothing is used for the first time after ``run_start``."""
    benchmark, chosen = OPTIMIZERS[optimizer]
    batch = 4 if benchmark == "deepcam" else 8
    waits = []
    for size in (batch, batch // 2):
        more = (*chosen, f"hyperparameters.global_batch_size={size}", f"training.precision={precision}")
        more += (f"training.eval_batch_size={2 if size == batch else 1}",)
        done = on_device(tmp_path / str(size), sets[benchmark], benchmark, *more)
        assert len(done.result()["epochs"]) == 2, done.said
        counted = done.counted()
        waits.append(counted["synchronisations"])
        assert "host to device, pageable" not in counted["copies"], counted["copies"]
        assert done.first_used() == {}
    assert waits[0] == waits[1]


@pytest.fixture(scope="module")
def encoded(sets, tmp_path_factory):
    """The data sets as their decoders on the device read them."""
    folders = {}
    for benchmark, codec in {"deepcam": ["delta", "--max-error", "1e-3"], "cosmoflow": ["lut"]}.items():
        folders[benchmark] = tmp_path_factory.mktemp("encoded") / benchmark
        done = mlhpc("data", "convert", benchmark, sets[benchmark], folders[benchmark], "--codec", *codec)
        assert done.returncode == 0, done.stderr
    return folders


@pytest.mark.parametrize("benchmark", ["deepcam", "cosmoflow"])
def test_decodes_on_the_device_and_compiles_nothing_inside_the_clock(encoded, tmp_path, benchmark):
    done = on_device(tmp_path, encoded[benchmark], benchmark, "loading.decode=device")
    assert len(done.result()["epochs"]) == 2, done.said
    counted = done.counted()
    assert done.first_used() == {}
    if benchmark == "deepcam":  # 3 batches of 4 samples and 5 samples, twice
        assert counted["kernels"]["decode_row"] == 2 * (3 * 4 + 5)
    assert "host to device, pageable" not in counted["copies"], counted["copies"]


def test_two_ranks_normalise_batches_together(sets, tmp_path):
    chosen = ("hyperparameters.batchnorm_group_size=2", "training.precision=mixed_float16")
    done = on_device(tmp_path, sets["deepcam"], "deepcam", *chosen, words=("--ranks", 2), changes=TWO)
    assert done.result()["ranks"] == 2, done.said
    assert "Grad strides" not in done.said  # DistributedDataParallel would copy these gradients
    first, second = (done.counted(rank)["kernels"] for rank in (0, 1))
    assert first["ncclAllReduce"] == second["ncclAllReduce"] > 0
    assert (done.first_used(0), done.first_used(1)) == ({}, {})


def test_compiles_and_captures_before_the_start_and_replays_after_it(sets, tmp_path):
    captured = ("training.compile=true", "training.cuda_graphs=on", "network.conv_layers=2")
    done = on_device(tmp_path, sets["cosmoflow"], "cosmoflow", *captured, "target.value=-1")
    assert len(done.result()["epochs"]) == 2, done.said
    steps, evaluations = 2 * (27 // 8), 2 * -(-7 // 2)
    assert done.counted()["graphs"] == {"launched": steps + evaluations}
    assert done.first_used() == {}


@pytest.mark.parametrize("benchmark", ["deepcam", "resnet50"])
def test_dali_that_cannot_start_is_one_line(sets, tmp_path, benchmark):
    """``nvidia.dali.Pipeline(device_id=0)``: "CUDA runtime API error cudaErrorNotSupported (801)". DALI has a CUDA
    runtime of its own, which asks the driver for 358 functions, among them ``cuGetExportTable``, whose tables of
    further functions are documented nowhere: they cannot be stood in for."""
    done = on_device(tmp_path, sets[benchmark], benchmark, "loading.loader=dali")
    assert done.status == 2 and "Traceback" not in done.said
    line = done.said.splitlines()[-1]
    assert line.startswith("mlhpc: loading.loader=dali: ") and line.endswith("set loading.loader=threads")


def test_dali_normalises_on_the_host_of_a_device(sets, tmp_path):
    """``device_id=None``. Numbers of the host are real: those of the suite's own loader."""
    losses = {}
    for name in ("dali", "threads"):
        chosen = ("training.device=cpu", f"loading.loader={name}", "training.max_epochs=1")
        (epoch,) = on_device(tmp_path / name, sets["deepcam"], "deepcam", *chosen).result()["epochs"]
        losses[name] = epoch["train_loss"]
    assert losses["dali"] == pytest.approx(losses["threads"], rel=1e-4)


def test_two_ranks_share_samples(sets, tmp_path):
    spatial = "training.spatial=[1,2,1]"
    done = on_device(tmp_path, sets["cosmoflow"], "cosmoflow", spatial, words=("--ranks", 2), changes=TWO)
    assert done.result()["ranks"] == 2, done.said
    assert all(epoch["halo_bytes"] for epoch in done.result()["epochs"])


def test_accumulates_gradients_freezes_weights_and_resumes(sets, tmp_path):
    chosen = ["hyperparameters.gradient_accumulation_frequency=2", "training.checkpoint_epochs=1"]
    chosen.append("training.freeze_below=1e30")  # everything but the last layer, after the first epoch
    first = on_device(tmp_path / "first", sets["deepcam"], "deepcam", *chosen)
    assert len(first.result()["epochs"]) == 2, first.said
    words, more = ("--resume", first.out), (*chosen, "training.max_epochs=3")
    second = on_device(tmp_path / "second", sets["deepcam"], "deepcam", *more, words=words)
    assert second.result()["resumed"] and len(second.result()["epochs"]) == 1, second.said


def test_profiles(sets):
    settings = [*SETTINGS["deepcam"], "training.device=cuda"]
    words = ("profile", "deepcam", "--batches", "2,16", "--steps", 2, "--json")
    done = command(*words, settings=settings)
    assert done.returncode == 0, done.stderr
    less, more = json.loads(done.stdout)["batches"]
    measured, modelled = (more[name] - less[name] for name in ("memory_bytes", "memory_modelled_bytes"))
    assert measured == pytest.approx(modelled, rel=0.1)


def test_a_device_that_pytorch_has_no_code_for_is_one_line(sets, tmp_path):
    done = on_device(tmp_path, sets["deepcam"], "deepcam", model="v100")
    assert done.status == 2 and not (done.out / "result.json").exists()
    (line,) = [line for line in done.said.splitlines() if line.startswith("mlhpc: ")]
    missing, remedy = "none for Tesla V100-SXM2-16GB (sm_70)", "install its build for CUDA 12.6"
    assert f"{missing}: {remedy}" in line
    checks = json.loads(command("doctor", "--json", model="v100").stdout)["checks"]
    (found,) = [check for check in checks if missing in check["detail"]]
    assert found["name"] == "PyTorch" and remedy in found["remedy"]
