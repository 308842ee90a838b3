"""How the cells of a study are named, told apart and shown."""

import pytest
from helpers.study_site import Site

from mlhpc.study_plan import parse_axes
from mlhpc.submission.report.study import read


@pytest.fixture
def site(tmp_path, monkeypatch):
    site = Site(tmp_path)
    monkeypatch.setattr("mlhpc.run_processes.sys.executable", str(tmp_path / "python"))
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
    words = f"network.name={','.join(names)}"
    assert site.study("--vary", words, "--repeats", "1", benchmark="resnet50") == 0
    assert read(site.out).values("network.name") == names


def test_equal_values_are_one_cell_in_any_spelling(site):
    assert site.study("--vary", "network.width=1,1.0", "--repeats", "1", benchmark="resnet50") == 0
    assert len(site.calls()) == 1


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
