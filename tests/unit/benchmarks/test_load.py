"""Presets and settings, and the errors for invalid ones."""

import json
import os
import tomllib
from importlib import resources

import pytest

from mlhpc.benchmarks import load
from mlhpc.errors import UserError


@pytest.mark.parametrize("preset", load.presets("cosmoflow"))
def test_every_preset_resolves_and_its_record_reads_back(preset):
    run = load.load("cosmoflow", preset)
    assert load.loads(load.dumps(run)) == run


def test_closed_preset_has_the_official_facts():
    # MLPerf HPC training rules and mlcommons/hpc cosmoflow/configs/cosmo.yaml.
    run = load.load("cosmoflow", "closed")
    assert run.division == "closed"
    assert (run.data.train_samples, run.data.eval_samples) == (524288, 65536)
    assert run.data.sample_shape == (128, 128, 128, 4)
    assert run.target.value == 0.124 and not run.target.higher_is_better
    assert (run.hyperparameters.opt_name, run.hyperparameters.opt_momentum) == ("sgd", 0.9)
    assert run.hyperparameters.global_batch_size == 64
    assert run.hyperparameters.opt_base_learning_rate == 0.001
    assert run.network.parameters == 8_907_556


@pytest.mark.parametrize("ruleset", ["hpc_1.0.0", "hpc_2.0.0", "hpc_3.0.0"])
def test_cosmoflow_has_a_closed_preset_for_every_reference_convergence_point(ruleset):
    folder = resources.files("mlperf_logging.rcp_checker").joinpath(ruleset)
    points = json.loads(folder.joinpath("rcps_cosmoflow.json").read_text()).values()
    for point in (point["Hyperparams"] for point in points):
        ours = load.load("cosmoflow", f"closed-{point['global_batch_size']}").hyperparameters.logged()
        # These two give the rate before warm-up. Their authors logged 0.024 for the same schedule at batch 512
        # (mlcommons/hpc_results_v2.0, Fujitsu+RIKEN) and set 0.001 to 0.004 at batch 32 (NVIDIA,
        # configs/submission_dgxa100_4x8x1.yaml there).
        before_warm_up = point["global_batch_size"] in (32, 512)
        point["opt_base_learning_rate"] *= point["opt_learning_rate_warmup_factor"] if before_warm_up else 1
        point["opt_name"] = point["opt_name"].lower()
        # The reference logs only the larger one of the factors 0.25 and 0.125.
        if (factor := point["opt_learning_rate_decay_factor"]) == 0.25:
            point["opt_learning_rate_decay_factor"] = [factor, factor / 2]
        assert {key: ours[key] for key in point} == point


def test_no_small_preset_is_called_closed():
    for preset in load.presets("cosmoflow"):
        run = load.load("cosmoflow", preset)
        if not run.data.official:
            assert run.division == "open", preset


def test_set_changes_one_key_and_leaves_the_rest():
    before = load.load("cosmoflow", "smoke")
    after = load.load("cosmoflow", "smoke", ["training.max_epochs=3", "hyperparameters.opt_name=sgd"])
    assert after.training.max_epochs == 3 and after.hyperparameters.opt_name == "sgd"
    same = {"training": after.training, "hyperparameters": after.hyperparameters}
    assert before.model_copy(update=same) == after


@pytest.mark.parametrize(
    ("preset", "settings", "said"),
    [
        ("smok", [], "did you mean 'smoke'"),
        ("smoke", ["training.max_epoch=3"], "did you mean 'training.max_epochs'"),
        ("smoke", ["max_epochs=3"], "did you mean 'training.max_epochs'"),
        ("smoke", ["training.max_epochs"], "table.key=value"),
        ("smoke", ["hyperparameters.dropout=1.5"], "hyperparameters.dropout"),
        ("smoke", ["hyperparameters.global_batch_size=many"], "hyperparameters.global_batch_size"),
        ("smoke", ["hyperparameters.opt_learning_rate_warmup_factor=0"], "greater than 0"),
        ("closed", ["hyperparameters.opt_learning_rate_decay_boundary_epochs=[64,32]"], "must be increasing"),
        ("closed", ["hyperparameters.opt_learning_rate_decay_factor=[0.5]"], "one factor per boundary"),
    ],
)
def test_a_mistyped_setting_is_a_one_line_error_with_a_hint(preset, settings, said):
    with pytest.raises(UserError) as error:
        load.load("cosmoflow", preset, settings)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_an_unknown_benchmark_error_lists_the_known_ones():
    with pytest.raises(UserError, match="cosmoflow"):
        load.load("cosmflow", "smoke")


def test_config_toml_is_readable_by_the_standard_library():
    run = load.load("cosmoflow", "smoke", ['submission.org="a \\"quoted\\" name"'])
    assert tomllib.loads(load.dumps(run))["submission"]["org"] == 'a "quoted" name'


AWKWARD = 'two\nlines, a "quote", a \\ and \u2028'


def test_config_toml_escapes_any_string(tmp_path):
    run = load.load("cosmoflow", "smoke", ["training.max_epochs=3"])
    run = run.model_copy(update={"submission": run.submission.model_copy(update={"org": AWKWARD})})
    assert tomllib.loads(load.dumps(run))["submission"]["org"] == AWKWARD
    (tmp_path / "config.toml").write_text(load.dumps(run))
    assert load.load_file(tmp_path / "config.toml", "cosmoflow") == run


def test_config_toml_can_be_loaded_with_settings_on_top(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text(load.dumps(load.load("deepcam", "smoke", ["training.max_epochs=3"])))
    again = load.load_file(path, "deepcam", ["training.max_epochs=9"])
    assert again == load.load("deepcam", "smoke", ["training.max_epochs=9"])


def test_config_toml_without_a_framework_uses_the_default():
    text = load.dumps(load.load("deepcam", "smoke"))
    assert load.loads(text.replace('framework = "pytorch"\n', "")).training.framework == "pytorch"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "No such file"),
        ("benchmark = ", "invalid TOML"),
        ('benchmark = "deepcam"', "this configuration is for 'deepcam'; pass one for cosmoflow"),
        ('benchmark = "cosmoflow"\nseed = 3', "config.toml"),
    ],
)
def test_another_file_as_config_toml_is_a_one_line_error(tmp_path, text, said):
    path = tmp_path / "config.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError, match=said) as error:
        load.load_file(path, "cosmoflow")
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def config_with(tmp_path, before, after):
    """A run's config.toml with one line changed, and the number of that line."""
    text = load.dumps(load.load("cosmoflow", "smoke", ["training.max_epochs=16"]))
    assert text.count(before) == 1
    path = tmp_path / "config.toml"
    path.write_text(text.replace(before, after))
    return path, text[: text.index(before)].count("\n") + 1


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("max_epochs = 16", "max_epochs = -3", "training.max_epochs: .*got -3"),
        ("max_epochs = 16", "max_epoch = 16", "unknown key 'training.max_epoch'; did you mean"),
        ("conv_kernel = 3", "conv_kernel = 3.5", "network.conv_kernel: .*got 3.5"),
        ("dropout = 0.0", 'dropout = "none"', "hyperparameters.dropout: .*got 'none'"),
        ('framework = "tensorflow"', 'framework = "caffe"', "no training.framework 'caffe'"),
        ('framework = "tensorflow"', "framework = [1]", "no training.framework"),
        ('mode = "replicate"', 'mode = "mirror"', "staging.mode: .*got 'mirror'"),
    ],
)
def test_a_bad_setting_of_a_config_toml_is_named_with_its_line(tmp_path, before, after, said):
    path, line = config_with(tmp_path, before, after)
    with pytest.raises(UserError, match=said) as error:
        load.load_file(path, "cosmoflow")
    assert str(error.value).startswith(f"{path}, line {line}: ") and "\n" not in str(error.value)


def test_an_element_of_a_list_is_named_with_the_line_of_the_list(tmp_path):
    text = load.dumps(load.load("cosmoflow", "smoke"))
    start = text.index("dense_units")
    path = tmp_path / "config.toml"
    path.write_text(f'{text[:start]}dense_units = [8, "many"]\n{text[text.index("]", start) + 2 :]}')
    line = text[:start].count("\n") + 1
    with pytest.raises(UserError, match=rf"config.toml, line {line}: network.dense_units.1: "):
        load.load_file(path, "cosmoflow")


def test_a_setting_given_over_a_config_toml_is_not_blamed_on_the_file(tmp_path):
    path, line = config_with(tmp_path, "max_epochs = 16", "max_epochs = 16")
    for setting in ("training.max_epochs=-3", "training.epochs=3", "training=3"):
        with pytest.raises(UserError) as error:
            load.load_file(path, "cosmoflow", [setting])
        assert str(path) not in str(error.value) and "\n" not in str(error.value)
    with pytest.raises(UserError, match=r"hyperparameters.dropout: .*got 7") as error:
        load.load_file(path, "cosmoflow", [], {"hyperparameters": {"dropout": 7}})
    assert str(path) not in str(error.value)
    path, line = config_with(tmp_path, "max_epochs = 16", "max_epochs = -3")
    with pytest.raises(UserError, match=f"config.toml, line {line}: training.max_epochs"):
        load.load_file(path, "cosmoflow", ["training.eval_batch_size=2"])


def test_a_setting_in_the_wrong_table_is_named_with_its_table():
    with pytest.raises(UserError, match=r"'horovod\.fusion_threshold_mib'; did you mean 'training\.fusion_"):
        load.load("cosmoflow", "smoke", ["horovod.fusion_threshold_mib=64"])


@pytest.mark.parametrize("place", ["fifo", "/dev/zero"])
def test_a_configuration_that_is_no_file_is_refused_without_reading_it(place, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "config.toml").symlink_to(tmp_path / place)
    with pytest.raises(UserError, match="not a file; --config requires"):
        load.load_file(tmp_path / "config.toml", "cosmoflow")
