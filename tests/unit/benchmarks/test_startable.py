"""Settings that cannot work, on their own or with the number of ranks, are refused before a run has a folder."""

import pytest

from mlhpc.benchmarks import load
from mlhpc.errors import UserError

EXCHANGE = ["staging.mode=shard", "staging.exchange=true"]


@pytest.mark.parametrize(
    ("benchmark", "settings", "message"),
    [
        (
            "deepcam",
            ["hyperparameters.gradient_accumulation_frequency=3"],
            "gradient_accumulation_frequency=3 must divide the global batch of 4",
        ),
        (
            "deepcam",
            ["training.cuda_graphs=true", "hyperparameters.gradient_accumulation_frequency=2"],
            "training.cuda_graphs=on: gradients are accumulated",
        ),
        (
            "cosmoflow",
            ["training.framework=pytorch", "training.cuda_graphs=on", "training.spatial=[2,1,1]"],
            "training.cuda_graphs=on: training.spatial exchanges parts of samples through the host",
        ),
        (
            "cosmoflow",
            ["training.framework=pytorch", "training.cuda_graphs=on", "training.coarse_epochs=[1]"],
            "training.cuda_graphs=on: training.coarse_epochs changes the size of samples",
        ),
        ("deepcam", ["loading.cache=true", "loading.loader=dali"], "set loading.loader=threads"),
        ("cosmoflow", ["staging.read_once=true", "staging.overlap=true"], "cannot forward files"),
        ("cosmoflow", ["staging.exchange=true"], "exchange=true requires staging.mode=shard"),
        (
            "cosmoflow",
            ["staging.mode=shard", "staging.exchange=true", "staging.overlap=true"],
            "exchange=true cannot overlap",
        ),
        (
            "resnet50",
            ["loading.broken_images=skip", "loading.loader=dali"],
            "broken_images=skip does not work with DALI",
        ),
    ],
)
def test_settings_that_exclude_each_other_are_refused(benchmark, settings, message):
    with pytest.raises(UserError, match=message) as raised:
        load.load(benchmark, "smoke", settings)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("benchmark", "settings", "ranks", "message"),
    [
        (
            "cosmoflow",
            ["training.framework=pytorch", "training.spatial=[2,1,1]"],
            6,
            "global_batch_size 16 must be a multiple of 3, the number of groups of 2 ranks",
        ),
        (
            "cosmoflow",
            [],
            3,
            "global_batch_size 16 must be a multiple of 3 for 3 ranks",
        ),
        (
            "deepcam",
            ["hyperparameters.gradient_accumulation_frequency=2"],
            4,
            "must be a multiple of 8 for 4 ranks with 2 backward passes",
        ),
        ("deepcam", ["hyperparameters.batchnorm_group_size=4"], 2, "batchnorm_group_size 4 must divide"),
        ("resnet50", ["staging.pack=true"], 1, "staging.pack requires --stage; pass it"),
        ("resnet50", ["staging.overlap=true"], 1, "staging.overlap is not supported for resnet50; set"),
        ("deepcam", ["staging.overlap=true"], 1, "staging.overlap is not supported for deepcam; set"),
        ("cosmoflow", ["staging.overlap=true"], 1, "staging.overlap requires --stage; pass it, or set"),
        (
            "resnet50",
            EXCHANGE,
            2,
            "staging.exchange is not supported for resnet50; set staging.exchange=false",
        ),
        ("deepcam", EXCHANGE, 2, "staging.exchange requires --stage; pass it, or set"),
    ],
)
def test_settings_that_these_ranks_cannot_run_are_refused(benchmark, settings, ranks, message):
    with pytest.raises(UserError, match=message):
        load.load(benchmark, "smoke", settings).require_startable(ranks, staged=False)


def test_a_cache_of_samples_that_move_to_other_nodes_is_refused():
    run = load.load("deepcam", "smoke", [*EXCHANGE, "loading.cache=true"])
    with pytest.raises(UserError, match=r"loading.cache and staging.exchange cannot be combined"):
        run.require_startable(2, staged=True)


def test_a_run_to_the_target_reads_no_earlier_epochs():
    settings = ["study.earlier_epochs=1"]
    with pytest.raises(UserError, match="earlier_epochs requires mlhpc study"):
        load.load("cosmoflow", "smoke", settings).require_startable(1, staged=False)
    load.load("cosmoflow", "smoke", [*settings, "study.steps=20"]).require_startable(1, staged=False)


def test_a_study_measures_no_copying_beside_its_steps():
    run = load.load("cosmoflow", "smoke", ["staging.overlap=true", "study.steps=20"])
    with pytest.raises(UserError, match="overlap would copy files while a study measures"):
        run.require_startable(1, staged=True)


def test_a_study_of_steps_has_no_exchange_to_measure():
    run = load.load("cosmoflow", "smoke", [*EXCHANGE, "study.steps=20"])
    with pytest.raises(UserError, match=r"only after the steps of a study; set staging\.exchange=false"):
        run.require_startable(2, staged=True)


@pytest.mark.parametrize("benchmark", ["cosmoflow", "deepcam", "resnet50"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_smoke_presets_start_on_1_2_and_4_ranks(benchmark, ranks):
    load.load(benchmark, "smoke").require_startable(ranks, staged=True)


@pytest.mark.parametrize(
    ("given", "gpu", "cores", "workers"),
    [(0, False, 64, 2), (0, True, 6, 6), (0, True, 64, 16), (3, True, 64, 3)],
)
def test_with_a_gpu_the_default_number_of_workers_is_the_cores_of_the_rank(given, gpu, cores, workers):
    loading = load.load("resnet50", "smoke", [f"loading.workers={given}"]).loading
    assert loading.resolved(gpu=gpu, cores=cores).workers == workers
