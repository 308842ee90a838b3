"""Which settings a sweep runs, on which data, and when it calls one faster. The runs are stand-ins with known
rates."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from mlhpc.cli import main
from mlhpc.common.files.filesystem import FileSystem
from mlhpc.errors import UserError
from mlhpc.iobench import sweep as module
from mlhpc.iobench.sweep import Sweep, advise, in_a_run, require_counterparts

SMALL = ("dataset.files=4",)


def made(folder, axes, source="mlperf_cosmoflow", repeats=2):
    return Sweep(source, SMALL, axes, folder, repeats, 1)


@pytest.fixture
def stand_ins(monkeypatch):
    """Runs whose rate depends on the settings, the n-th run of a combination a little slower than the one
    before."""
    commands = []

    def run(*words):
        commands.append(words)
        if "--out" in words:
            out = Path(words[words.index("--out") + 1])
            out.mkdir(parents=True)
            threads = [word for word in words if word.startswith(("reader.threads=", "loading.workers="))]
            rate = 100.0 * int(threads[-1].partition("=")[2] if threads else 4) - commands.count(words)
            load_s = 9.0 if "reader.load_all=true" in words else 0.0
            epoch = {"samples_per_s": rate, "seconds": 4.0, "checkpoint_s": 2.0}
            result = {
                "samples": 4 * rate,
                "load_s": load_s,
                "epochs": [epoch] * (2 if words[0] == "io" else 1),
            }
            (out / "result.json").write_text(json.dumps(result))

    monkeypatch.setattr(module, "_mlhpc", run)
    return commands


def test_all_combinations_beside_the_workloads_own_share_data_where_they_can(tmp_path):
    axes = {"reader.threads": ["1", "8"], "dataset.sample_bytes": ["1MB", "2MB"]}
    points = made(tmp_path, axes).points()
    assert len(points) == 1 + 2 * 2 and points[0].settings == ()
    assert len({point.data for point in points}) == 3  # its own size, and two others
    by_size = {point.settings[1]: point.data for point in points[1:]}
    assert all(point.data == by_size[point.settings[1]] for point in points[1:])


def test_the_fastest_is_measured_again_beside_its_own(tmp_path, stand_ins):
    points, again = advise(made(tmp_path, {"reader.threads": ["1", "8"]}))
    assert [point.rate > points[0].rate for point in points] == [False, False, True]
    assert again is not None and again.recommended.settings == ("reader.threads=8",)
    assert again.confirmed and again.gain == pytest.approx(2, rel=0.02)
    assert len(points[2].rates) == len(again.recommended.rates) == 2
    # In turns: no combination runs twice before all others have.
    runs = [words[words.index("--out") + 1].rpartition("-")[0] for words in stand_ins if words[1] == "run"]
    assert runs[:3] == runs[3:6] and len(set(runs[:3])) == 3


def test_reading_everything_before_the_first_step_takes_time_too(tmp_path, stand_ins):
    points, again = advise(made(tmp_path, {"reader.load_all": ["false", "true"]}))
    own, loaded = points
    assert again is None and own.rate > 300
    assert loaded.rate == pytest.approx(own.rate * 4 / (4 + 9), rel=0.02)


def test_json_is_sweep_json(tmp_path, stand_ins, capsys):
    words = ["io", "sweep", "mlperf_cosmoflow", "--vary", "reader.threads=1,8", "--set", "dataset.files=4"]
    assert main([*words, "--out", str(tmp_path / "s"), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((tmp_path / "s/sweep.json").read_text())
    assert [point["settings"] for point in printed["points"]] == [
        [],
        ["reader.threads=1"],
        ["reader.threads=8"],
    ]


def test_its_own_settings_may_be_the_fastest(tmp_path, stand_ins):
    assert advise(made(tmp_path, {"reader.threads": ["1", "2"]}))[1] is None


def test_a_recommendation_is_applied_to_a_run_of_the_suite(tmp_path, stand_ins):
    (tmp_path / "data/train").mkdir(parents=True)
    deepcam = made(tmp_path, {"reader.threads": ["8"]}, "deepcam")
    confirmed = in_a_run(deepcam, ("reader.threads=8",), tmp_path / "data", "smoke")
    assert confirmed.confirmed and confirmed.gain == pytest.approx(2, rel=0.02)
    assert "loading.workers=8" in stand_ins[1] and "--evict" in stand_ins[1]
    for key in ("reader.transfer_bytes", "dataset.compression"):
        foreign = made(tmp_path, {"reader.threads": ["8"], key: ["none"]}, "deepcam")
        with pytest.raises(UserError, match=f"cannot apply {key}=none"):
            require_counterparts(foreign, tmp_path / "data")
    with pytest.raises(UserError, match="cannot train workload"):
        require_counterparts(made(tmp_path, {}), tmp_path / "data")


def test_a_recommended_compression_is_that_of_the_files_that_the_run_reads(tmp_path, stand_ins):
    data = tmp_path / "data"
    data.mkdir()
    (data / "manifest.json").write_text('{"version": 1, "facts": {"gzip": true}, "files": []}')
    axes = {"dataset.compression": ["gzip", "none"], "reader.threads": ["4", "8"]}
    cosmoflow = made(tmp_path, axes, "cosmoflow")
    in_a_run(cosmoflow, ("dataset.compression=none", "reader.threads=8"), data, "smoke")
    convert, *runs = stand_ins
    converted = tmp_path / "data-real"
    assert convert[:5] == ("data", "convert", "cosmoflow", str(data), str(converted)) and "plain" in convert
    read = [(run[run.index("--data") + 1], "loading.workers=8" in run) for run in runs]
    assert read == [(str(data), False), (str(converted), True)] * 2
    del stand_ins[:]
    cosmoflow = made(tmp_path / "again", axes, "cosmoflow")
    in_a_run(cosmoflow, ("dataset.compression=gzip", "reader.threads=8"), data, "smoke")
    assert {words[0] for words in stand_ins} == {"run"}  # it is the workload's own


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ("{}", None),  # the published files: GZIP, and mlhpc data index found no more
        ('{"codec": "gzip", "gzip": true}', None),
        ('{"gzip": false}', "must contain GZIP TFRecord"),
        ('{"codec": "lut"}', "must contain GZIP TFRecord"),
        ('{"gzip": true, "samples_per_archive": 4}', "in archives"),
    ],
)
def test_files_that_cannot_be_converted_are_refused_before_the_sweep(tmp_path, facts, says):
    (tmp_path / "manifest.json").write_text(f'{{"version": 1, "facts": {facts}, "files": []}}')
    cosmoflow = made(tmp_path / "out", {"dataset.compression": ["gzip", "none"]}, "cosmoflow")
    if says is None:
        return require_counterparts(cosmoflow, tmp_path)
    with pytest.raises(UserError, match=says):
        require_counterparts(cosmoflow, tmp_path)


def test_two_storages_are_not_compared_for_two_compressions(tmp_path, monkeypatch):
    (tmp_path / "manifest.json").write_text('{"version": 1, "facts": {"gzip": true}, "files": []}')

    def two(path):
        return FileSystem("ext4", tmp_path if path == tmp_path else path, False, 10**12)

    monkeypatch.setattr(module, "filesystem_of", two)
    cosmoflow = made(tmp_path / "out", {"dataset.compression": ["gzip", "none"]}, "cosmoflow")
    with pytest.raises(UserError, match=r"on a different file system from .*; choose another --out"):
        require_counterparts(cosmoflow, tmp_path)


def test_what_cannot_be_confirmed_is_refused_before_the_sweep(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(module, "_mlhpc", lambda *words: pytest.fail("something ran"))
    words = ["--vary", "reader.transfer_bytes=64KiB", "--out", tmp_path / "out", "--confirm", tmp_path]
    assert main(["io", "sweep", "cosmoflow", *map(str, words)]) == 2
    assert "cannot apply reader.transfer_bytes=64KiB" in capsys.readouterr().err


def test_data_that_no_run_could_read_is_refused_before_the_sweep(tmp_path):
    cosmoflow = made(tmp_path / "out", {"reader.threads": ["1", "4"]}, "cosmoflow")
    with pytest.raises(UserError, match="nowhere"):
        require_counterparts(cosmoflow, tmp_path / "nowhere")
    with pytest.raises(UserError, match="is empty; pass a data set of cosmoflow"):
        require_counterparts(cosmoflow, tmp_path)


def test_too_few_files_for_the_ranks_are_refused_before_anything_runs(tmp_path, stand_ins):
    sweep = made(tmp_path, {"reader.batch_size": ["1", "4"]})
    samples = sweep.workload().dataset.samples
    with pytest.raises(UserError, match=r"too few|cannot fill"):
        advise(replace(sweep, ranks=samples + 1))
    assert not stand_ins


def test_a_sweep_that_fails_leaves_nothing(tmp_path, monkeypatch):
    def fails(*words):
        (tmp_path / "out/data-0").mkdir(parents=True, exist_ok=True)
        raise UserError("no space left")

    monkeypatch.setattr(module, "_mlhpc", fails)
    words = [
        "io",
        "sweep",
        "mlperf_cosmoflow",
        "--vary",
        "reader.threads=1,2",
        "--out",
        str(tmp_path / "out"),
    ]
    assert main(words) == 2
    assert not (tmp_path / "out").exists()


def test_a_value_that_is_none_is_refused_before_anything_runs(tmp_path, stand_ins):
    with pytest.raises(UserError, match="reader"):
        advise(made(tmp_path, {"reader.threads": ["1", "many"]}))
    assert not stand_ins
