"""How the cells of a study are named, distinguished and shown."""

import json
from pathlib import Path

import pytest
from helpers.page import Page, rows_of
from helpers.study_site import Site

from mlhpc.benchmarks import load
from mlhpc.study_plan import parse_axes
from mlhpc.submission.report.study import Cell, Study, read


@pytest.fixture
def site(tmp_path, monkeypatch):
    site = Site(tmp_path)
    monkeypatch.setattr("mlhpc.common.ranks.local.sys.executable", str(tmp_path / "python"))
    monkeypatch.setenv("COLUMNS", "200")
    return site


def test_a_path_is_one_cell_in_any_spelling(site, monkeypatch):
    monkeypatch.chdir(site.folder)
    for data in ("jpeg", "./lmdb/../jpeg", site.folder / "jpeg"):
        assert site.study("--vary", f"data={data}", "--repeats", "1") == 0
    monkeypatch.chdir(site.folder / "jpeg")
    assert site.study("--vary", "data=.", "--repeats", "1") == 0
    (cell,) = read(site.out).cells
    assert len(site.calls()) == 1 and cell.settings["data"] == "jpeg"


def test_folders_of_the_same_name_are_distinguished(site):
    """In one call or several: two data sets are two cells, and no two cells look alike."""
    for folder in ("lustre", "local"):
        (site.folder / folder / "imagenet").mkdir(parents=True)
    for folder in ("lustre", "local"):
        assert site.study("--vary", f"data={site.folder / folder / 'imagenet'}", "--repeats", "1") == 0
    assert read(site.out).values("data") == ["lustre/imagenet", "local/imagenet"]
    for folder in ("ssd", "ram"):
        assert site.study("--stage", site.folder / folder, "--vary", "batch=4", "--repeats", "1") == 0
    stages = {cell.settings["storage"] for cell in read(site.out).cells}
    assert stages == {"shared", "staged in ssd", "staged in ram"}


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a.b=[1,1,1,1],[2,2,2,2]", [[1, 1, 1, 1], [2, 2, 2, 2]]),
        ("a.b=1e-3,0.001,1", [0.001, 1]),
        ("a.b=true,false", [True, False]),
        ('a.b="a, b",c', ["a, b", "c"]),
        ("a.b=2026-11-05", ["2026-11-05"]),
        ("data=007,1e3,2026-11-05", ["007", "1e3", "2026-11-05"]),
        ("data=/a b/ü.d,/c", ["/a b/ü.d", "/c"]),
    ],
)
def test_values_keep_their_type_and_spelling(text, values):
    assert list(parse_axes([text]).values()) == [values]


def test_names_keep_the_given_order(site):
    names = ["lenet", "alexnet", "resnet50", "resnet101"]
    words = ["--vary", f"network.name={','.join(names)}", "--set", "network.blocks=[]"]
    assert site.study(*words, "--repeats", "1", benchmark="resnet50") == 0
    assert read(site.out).values("network.name") == names


def test_equal_values_are_one_cell_in_any_spelling(site):
    assert site.study("--vary", "network.width=1,1.0", "--repeats", "1", benchmark="resnet50") == 0
    assert len(site.calls()) == 1


@pytest.mark.parametrize(
    ("benchmark", "varied", "others", "why"),
    [
        (
            "resnet50",
            "network.width=0.5,1",
            ["network.name=lenet", "network.blocks=[]"],
            "applies to ResNets",
        ),
        ("resnet50", "hyperparameters.lars_epsilon=0,1e-6", [], "applies to lars, not to sgd"),
        ("resnet50", "training.eval_batch_size=4,8", [], "applies after the steps of a study"),
        ("resnet50", "staging.workers=1,8", [], "applies with --stage"),
        ("resnet50", "data.simulation.seed=1,2", [], "describes the data set; vary data=DIR,DIR"),
        (
            "deepcam",
            "hyperparameters.opt_max_grad_norm=1,2",
            ["hyperparameters.opt_name=Adam"],
            "applies to LAMB",
        ),
        ("deepcam", "hyperparameters.scheduler_decay_rate=0.1,0.5", [], "does not apply to cosine_annealing"),
        (
            "cosmoflow",
            "hyperparameters.opt_momentum=0,0.9",
            ["hyperparameters.opt_name=adam"],
            "applies to sgd",
        ),
        ("deepcam", "training.bucket_cap_mib=1,25", [], "applies to several ranks"),
        ("deepcam", "loading.cache=true,false", [], "applies after the first epoch; add --set study.earlier"),
        ("deepcam", "network.width=0.1,0.2", ["emulation.step_s=0.1"], "applies to computed steps"),
    ],
)
def test_a_setting_that_nothing_reads_is_not_varied(site, capsys, benchmark, varied, others, why):
    """Its cells would be equal, and their differences noise."""
    words = [word for setting in others for word in ("--set", setting)]
    assert site.study("--vary", varied, *words, "--repeats", "1", benchmark=benchmark) == 2
    assert (
        f"--vary {varied.partition('=')[0]} would change nothing in this study: it {why}"
        in capsys.readouterr().err
    )
    assert not site.calls()


@pytest.mark.parametrize(
    ("varied", "others"),
    [
        (["network.name=resnet50,lenet", "network.width=0.5,1"], ["network.blocks=[]"]),
        (["data.sample_shape=[32,32,3],[64,64,3]"], []),
        (["network.width=0.25,0.5"], ["emulation.step_s=0", "training.checkpoint_epochs=1"]),
    ],
)
def test_a_setting_that_some_cells_read_is_varied(site, varied, others):
    words = [word for text in varied for word in ("--vary", text)]
    words += [word for text in others for word in ("--set", text)]
    assert site.study(*words, "--repeats", "1", benchmark="resnet50") == 0


def test_true_and_1_are_two_values():
    """They are equal in Python; a chart without one of them ended in an error."""
    cells = tuple(Cell(Path(str(value)), {"a": value}, "", None, (), ()) for value in (1, True))
    assert {str(value) for value in Study(Path("."), cells, ("a",)).values("a")} == {"1", "True"}


def test_cell_names_may_be_long_and_have_any_characters(site):
    words = ["--vary", f"submission.platform={'ü' * 200},[red]x", "--repeats", "1"]
    assert site.study(*words) == 0
    assert site.study(*words, "--number", "1") == 0
    assert len(site.calls()) == 2
    assert all(len(path.name.encode()) < 240 for path in site.out.iterdir())


def test_values_are_shown_as_given(site, capsys):
    assert site.study("--vary", "submission.platform=[red]x,<b>y", "--repeats", "1") == 0
    assert "[red]x" in capsys.readouterr().out
    page = (site.out / "study.html").read_text()
    assert "&lt;b&gt;y" in page and "<b>y" not in page


NEEDED = load.load("cosmoflow", "smoke").data


def data_set(site, name, *, train=NEEDED.train_samples, **facts):
    """A data set with a manifest of these facts, and as many samples as the smoke preset needs; without its
    files."""
    folder = site.folder / name
    folder.mkdir(exist_ok=True)
    files = [
        [f"{split}/{number:05}", 1, None]
        for split, samples in (("train", train), ("validation", NEEDED.eval_samples))
        for number in range(samples)
    ]
    content = {"version": 1, "facts": facts, "files": files}
    (folder / "manifest.json").write_text(json.dumps(content))
    return folder


def test_codecs_are_data_sets_beside_the_published_one(site):
    """By name, whichever of them is given; the published one may have no manifest, or one that says no codec."""
    for name, codec in (("data-lut", "lut"), ("data-plain", "plain")):
        data_set(site, name, benchmark="cosmoflow", codec=codec)
    words = ["--vary", "codec=gzip,plain,lut", "--vary", "batch=1,8", "--repeats", "1"]
    assert site.study(*words) == 0
    data_set(site, "data", benchmark="cosmoflow", gzip=True)
    assert site.study(*words, "--data", site.folder / "data-lut") == 0, "the same cells"
    read_by = [call["--data"].rpartition("/")[2] for call in site.settings()]
    assert sorted(read_by) == sorted(2 * ["data", "data-plain", "data-lut"])
    study = read(site.out)
    assert study.axes == ("codec", "batch"), "the folder follows from the codec"
    assert {cell.settings["data"] for cell in study.cells} == {"data"}
    assert study.values("codec") == ["gzip", "plain", "lut"]


def test_a_data_set_with_fewer_samples_is_refused_before_the_first_cell(site, capsys):
    data_set(site, "data", benchmark="cosmoflow", train=NEEDED.train_samples - 1)
    assert site.study("--vary", "batch=1,8") == 2
    error = capsys.readouterr().err
    samples = f"{NEEDED.train_samples - 1:,} samples, but {NEEDED.train_samples:,} are needed"
    assert f"data/train: {samples}" in error and error.count("\n") == 1
    assert not site.calls()


def test_a_codec_that_names_no_data_set_is_refused_with_the_command_that_makes_it(site, capsys):
    data = site.folder / "data"
    for codec, message in (
        ("lut", f"mlhpc data convert cosmoflow {data} {data}-lut --codec lut"),
        ("lutt", "codec=lutt: did you mean 'lut'?"),
    ):
        assert site.study("--vary", f"codec={codec}") == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1
    assert site.study("--vary", "codec=5") == 2
    choices = capsys.readouterr().err.partition("choose from: ")[2].strip().split(", ")
    assert "gzip" in choices and len(choices) == len(set(choices))
    data_set(site, "data-lut", benchmark="cosmoflow", codec="zstd")
    assert site.study("--vary", "codec=lut") == 2
    assert "data-lut has codec zstd; move it away" in capsys.readouterr().err
    data_set(site, "data-delta", benchmark="deepcam", codec="delta")
    (site.folder / "data").rmdir()
    assert site.study("--data", site.folder / "data-delta", "--vary", "codec=hdf5", benchmark="deepcam") == 2
    assert "pass the original data set" in capsys.readouterr().err
    assert not site.calls()


def test_storage_may_be_several_folders_to_stage_to(site, capsys):
    disk, memory = site.folder / "nvme", site.folder / "shm"
    assert site.study("--vary", f"storage=shared,{disk},{memory}", "--repeats", "1") == 0
    assert [call.get("--stage") for call in site.settings()] == [None, str(disk), str(memory)]
    assert read(site.out).values("storage") == ["shared", "staged in nvme", "staged in shm"]
    words = ["--vary", "parameter_servers=1", "--vary"]
    assert site.study(*words, "storage=[1,2]", benchmark="resnet50") == 2
    assert "omit --stage and --vary storage" in capsys.readouterr().err
    assert site.study(*words, f"storage={disk}", benchmark="resnet50") == 2
    assert "omit --stage and --vary storage" in capsys.readouterr().err
    assert site.study(*words, "study.earlier_epochs=1", benchmark="resnet50") == 2
    assert "cannot be combined with parameter_servers" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("benchmark", "words", "message"),
    [
        ("resnet50", ["parameter_servers=1", "training.compile=true"], "require training.compile=false"),
        (
            "resnet50",
            ["parameter_servers=0", "hyperparameters.opt_name=lars"],
            "require hyperparameters.opt_name=sgd",
        ),
        (
            "resnet50",
            ["parameter_servers=2", "training.precision=mixed_bfloat16"],
            "require training.precision=float32",
        ),
        ("cosmoflow", ["network.conv_layers=6"], "multiple of 64"),
    ],
)
def test_settings_that_no_run_supports_are_refused_before_the_first_cell(
    site, capsys, benchmark, words, message
):
    assert site.study(*(word for axis in words for word in ("--vary", axis)), benchmark=benchmark) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not site.calls() and not site.out.exists()


def test_a_home_folder_in_a_list_is_the_users(site, monkeypatch):
    """The shell expands ~ at the start of a word only."""
    monkeypatch.setenv("HOME", str(site.folder))
    assert site.study("--vary", "storage=shared,~/stage", "--vary", "data=~/jpeg", "--repeats", "1") == 0
    assert [call.get("--stage") for call in site.settings()] == [None, str(site.folder / "stage")]
    assert {call["--data"] for call in site.settings()} == {str(site.folder / "jpeg")}


def test_the_page_shows_codecs_for_each_storage_batch_and_set_size(site):
    """Curves over batch and set size have a codec each; a sample's time is that of its cell's runs."""
    data_set(site, "data-lut", benchmark="cosmoflow", codec="lut")
    site.takes(run1=[4.0, 1.0])
    words = ["--vary", "codec=gzip,lut", "--vary", "batch=2,4", "--vary", "data.train_samples=256,2048"]
    words += ["--vary", f"storage=shared,{site.folder / 'nvme'}", "--repeats", "1", "--steps", "10"]
    assert site.study(*words) == 0
    page = Page((site.out / "study.html").read_text())
    assert "<h2>Time per sample</h2>" in (site.out / "study.html").read_text()
    curves = [c for c in page.charts if "codec" not in c["description"] and "gzip" in c["description"]]
    assert curves
    (times,) = [chart for chart in page.charts if chart["description"].startswith("Time per sample")]
    parts = [row for row in rows_of(times) if "part" in row]
    bars = {(row["says"].partition(f", {row['part']}, ")[0], row["part"]): row["value"] for row in parts}
    assert len(bars) == 2 * 16
    for batch in (2, 4):  # 4 s for 10 steps of one rank, 1 s of them waiting
        cell = f"codec lut, batch {batch}, storage shared, train_samples 256"
        assert bars[cell, "waiting for data"] == pytest.approx(1e3 / (10 * batch))
        assert bars[cell, "rest of the step"] == pytest.approx(3e3 / (10 * batch))
