import tomllib
from importlib import resources

import pytest
from pydantic import TypeAdapter

from mlhpc.cli import main
from mlhpc.errors import UserError
from mlhpc.iobench.definition import load
from mlhpc.iobench.definition.fields import Bytes, Duration
from mlhpc.iobench.definition.schema import Workload
from mlhpc.iobench.run import data_of

GOOD = """\
name = "test"

[dataset]
format = "npz"
files = 4
sample_bytes = "1 KiB"

[reader]
batch_size = 2 # of a rank

[train]
computation = {mean = 0.1, stdev = 0.01}
"""


def write(tmp_path, text, name="w.toml"):
    path = tmp_path / name
    path.write_text(text)
    return str(path)


def test_a_workload_is_what_its_file_says(tmp_path):
    workload = load.load(write(tmp_path, GOOD))
    assert workload.dataset is not None
    assert (workload.dataset.sample_bytes, workload.dataset.bytes) == (1024, 4096)
    assert workload.train.computation == Duration(mean=0.1, stdev=0.01)
    assert Workload(**tomllib.loads(load.dumps(workload))) == workload


def test_settings_lie_over_the_file(tmp_path):
    changed = load.load(write(tmp_path, GOOD), ["dataset.files=9", "dataset.format=hdf5", "train.epochs=3"])
    assert changed.dataset is not None
    assert (changed.dataset.files, changed.dataset.format, changed.train.epochs) == (9, "hdf5", 3)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("files = 4", "fils = 4", r"w\.toml:5: unknown key 'dataset\.fils'; did you mean 'dataset\.files'\?"),
        ("files = 4", "files = 0", r"w\.toml:5: dataset\.files: .*greater than 0; got 0"),
        ('"1 KiB"', '"1 kilo"', r"w\.toml:6: dataset\.sample_bytes: '1 kilo': 'kilo' is not a unit"),
        ('format = "npz"', 'format = "bmp"', r"w\.toml:4: dataset\.format: .*got 'bmp'"),
        ("files = 4", "files = 4\ntotal_bytes = '1 MB'",
         r"w\.toml:3: dataset: contradictory sizes: .* sample_bytes is 4\.1 kB, but total_bytes is 1 MB"),
        ("batch_size = 2", "batch_size = 5", r"w\.toml: reader\.batch_size 5 exceeds the 4 samples"),
        ("files = 4", "files = 4\nsample_bytes_stdev = 2000", r"w\.toml:3: dataset: sample_bytes_stdev must be"),
        ("stdev = 0.01", "typ = 1", r"w\.toml:12: unknown key 'train\.computation\.typ'"),
        ("[reader]", "[reader", r"w\.toml: invalid TOML: .*line 8"),
        ("files = 4", "files = " + "[" * 5000, r"w\.toml: invalid TOML: nested too deeply"),
        ("files = 4", f"files = {10**400}\ntotal_bytes = 5", r"w\.toml:5: dataset\.files: "),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line_with_its_place(tmp_path, old, new, message):
    with pytest.raises(UserError, match=message) as caught:
        load.load(write(tmp_path, GOOD.replace(old, new)))
    assert "\n" not in str(caught.value)


def test_a_stated_total_does_not_hinder_a_smaller_data_set(tmp_path):
    path = write(tmp_path, GOOD.replace("files = 4", "files = 4\ntotal_bytes = 4096"))
    smaller = load.load(path, ["dataset.files=2"]).dataset
    assert smaller is not None and (smaller.bytes, smaller.total_bytes) == (2048, 0)
    with pytest.raises(UserError, match="contradictory sizes"):
        load.load(path, ["dataset.files=2", "dataset.total_bytes=4096"])


def test_a_bad_setting_is_named_as_such(tmp_path):
    with pytest.raises(UserError, match=r"--set dataset\.files: .*got -1"):
        load.load(write(tmp_path, GOOD), ["dataset.files=-1"])
    with pytest.raises(UserError, match=r"must have the form table\.key=value"):
        load.load(write(tmp_path, GOOD), ["dataset.files"])


def test_an_unknown_name_gets_the_nearest():
    with pytest.raises(UserError, match="did you mean 'cosmic_tagger'"):
        load.load("cosmic_taggr")
    with pytest.raises(UserError, match="cannot be read: No such file"):
        load.load("missing.toml")


def test_every_workload_of_the_suite_is_valid_and_described():
    for name, description in load.names().items():
        assert load.load(name).name == name and description
        text = (resources.files("mlhpc.iobench") / "workloads" / f"{name}.toml").read_text("utf-8")
        assert text.startswith("# "), "every workload says where its figures come from"


@pytest.mark.parametrize(
    ("name", "bytes", "ranks", "steps"),
    [
        # Devarajan et al. 2021, section III.A: sizes as printed, and the steps of a rank where the paper has
        # them.
        ("cosmic_tagger", 5.2e9, 512, 150),
        ("ffn", 2.28e9, 512, 400),
        ("cosmoflow_2021", 2e12, 512, 512),
        ("candle", 700e6, 512, 56),
        ("frnn", 5.9e9, 512, 5),
        ("imagenet", 275e9, 512, 64),
    ],
)
def test_the_applications_of_the_paper_have_their_sizes(name, bytes, ranks, steps):
    workload = load.load(name)
    assert workload.dataset is not None
    assert workload.dataset.bytes == pytest.approx(bytes, rel=0.02)
    stated = workload.train.steps or steps
    assert min(workload.steps_per_epoch(ranks), stated) == steps


@pytest.mark.parametrize(
    ("text", "bytes"),
    [
        ("512G", 512e9),
        ("512GiB", 512 * 2**30),
        ("2 TB", 2e12),
        ("1.5kB", 1500),
        ("7", 7),
        (114660.07, 114660),
    ],
)
def test_sizes_with_units(text, bytes):
    assert TypeAdapter(Bytes).validate_python(text) == bytes


@pytest.mark.parametrize(
    ("parameters", "mean"),
    [
        ({"type": "normal", "mean": 2.0, "stdev": 0.1}, 2.0),
        ({"type": "uniform", "min": 1.0, "max": 2.0}, 1.5),
        ({"type": "gamma", "shape": 4.0, "scale": 0.5}, 2.0),
        ({"type": "exponential", "scale": 0.7}, 0.7),
        ({"type": "poisson", "lam": 3.0}, 3.0),
    ],
)
def test_waits_have_the_stated_mean(parameters, mean):
    import numpy as np

    duration, random = Duration(**parameters), np.random.default_rng(1)
    drawn = np.array([duration.draw(random) for _ in range(20_000)])
    assert duration.expected == pytest.approx(mean)
    assert drawn.mean() == pytest.approx(mean, abs=5 * drawn.std() / np.sqrt(len(drawn)))
    assert drawn.min() >= 0


def test_a_distribution_without_its_parameters_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"train\.computation: a gamma distribution needs shape and scale"):
        load.load(write(tmp_path, GOOD.replace("{mean = 0.1, stdev = 0.01}", "{type = 'gamma'}")))


@pytest.mark.parametrize("url", ["file://{home}/.config", "local://{home}/x", "{home}/x", "s3://bucket/x"])
def test_a_file_does_not_choose_where_the_users_files_go(tmp_path, monkeypatch, capsys, url):
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path, f"{GOOD}[storage]\nurl = '{url.format(home=home)}'\n")
    for command in (["generate", path], ["run", path, "--out", "out"]):
        assert main(["io", *command]) == 2
        message = capsys.readouterr().err
        assert "the workload file names a data location" in message and message.count("\n") == 1
    assert list(home.iterdir()) == []
    assert not (tmp_path / "out").exists() and not (tmp_path / "data").exists()


def test_a_file_does_not_choose_who_gets_signed_requests(tmp_path):
    path = write(tmp_path, f"{GOOD}[storage]\nurl = 's3://bucket/x'\nendpoints = 'http://evil:1'\n")
    for given, settings in (("s3://mine/x", ()), ("s3://mine/x", ("storage.region='x'",))):
        with pytest.raises(
            UserError, match=r"credentials. To accept them, add --set storage.endpoints=http://evil:1"
        ):
            data_of(given, load.load(path, settings), 0)
    assert (
        data_of("s3://mine/x", load.load(path, ["storage.endpoints=http://evil:1"]), 0).endpoint
        == "http://evil:1"
    )
    assert str(data_of("folder", load.load(path), 0)) == "folder"
    assert load.load(path, ["storage.url='s3://b/y'"]).proposed == {"endpoints"}
    assert load.load("mlperf_unet3d").proposed == set()
