"""``mlhpc io`` with its data in an object store, as a user calls it."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from helpers.object_server import ObjectServer, range_bytes

WORKLOAD = """\
name = "tiny"
[dataset]
format = "npz"
files = 12
sample_bytes = 60_000
[storage]
url = "s3://bucket/tiny"
endpoints = ["{endpoint}"]
attempts = 2
[reader]
batch_size = 2
threads = 2
transfer_bytes = "16 KiB"
[train]
epochs = 2
computation = 0.001
"""
PLAIN = ("--null-steps", 0, "--json")
ENVIRONMENT = {
    **os.environ, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_EC2_METADATA_DISABLED": "true",
}  # fmt: skip


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "mlhpc", "io", *map(str, words)]


def mlhpc(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*words), capture_output=True, text=True, timeout=120, env=ENVIRONMENT)


def agreed(server: ObjectServer) -> tuple[str, ...]:
    """The user's word on the place and the server that the file of the workload proposes."""
    return ("--data", "s3://bucket/tiny", "--set", f"storage.endpoints={server.endpoint}")


@pytest.fixture
def served(tmp_path):
    """A server with the bucket and the data of the workload in it, and the workload's file."""
    import fsspec

    server = ObjectServer()
    server.empty()
    filesystem = fsspec.filesystem(
        "s3", endpoint_url=server.endpoint, key="test", secret="test", skip_instance_cache=True
    )
    filesystem.mkdir("bucket")
    workload = tmp_path / "tiny.toml"
    workload.write_text(WORKLOAD.format(endpoint=server.endpoint))
    made = mlhpc("generate", workload, *agreed(server), "--ranks", 2, "--workers", 1)
    assert (made.returncode, made.stderr) == (0, ""), made.stderr
    assert "s3://bucket/tiny: 12 files written" in made.stdout
    yield server, workload
    server.stop()


def test_a_run_counts_the_requests_of_the_server(served, tmp_path):
    server, workload = served
    again = mlhpc("generate", workload, *agreed(server), "--workers", 1)
    assert "0 files written, 0 B; 12 existed already" in again.stdout
    begin = len(server.requests)
    done = mlhpc(
        "run", workload, *agreed(server), "--out", tmp_path / "out", "--ranks", 2, "--null-steps", 0, "--json"
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    result = json.loads(done.stdout)
    got = [each for each in server.requests[begin:] if each.path.startswith("/bucket/tiny/train/")]
    gets = [each for each in got if each.method == "GET"]
    reading = result["reading"]
    assert reading["calls"] == len(gets)
    assert reading["bytes_asked"] == sum(map(range_bytes, gets))
    assert reading["opens"] == len([each for each in got if each.method == "HEAD"]) == 2 * 12
    assert reading["content_bytes"] == 2 * 12 * 60_000
    # What cannot be known here is not stated.
    assert reading["process_device_bytes"] is None and reading["node_device_bytes"] is None
    assert (result["filesystem"], result["cache"], result["resident_before_epochs"]) == ("s3", "none", [])
    assert (result["data"], result["object_store"]) == ("s3://bucket/tiny", server.endpoint)
    assert "test" not in (tmp_path / "out/workload.toml").read_text().replace("tests", "")  # no credentials
    page = mlhpc("report", tmp_path / "out")
    assert page.returncode == 0, page.stderr
    assert "not known: the devices are the object store" in (tmp_path / "out/report.html").read_text()
    assert mlhpc("check", tmp_path / "out", "--memory", "1 GB").returncode == 1


def test_null_storage_tells_the_store_from_the_rest(served, tmp_path):
    server, workload = served
    done = mlhpc("run", workload, *agreed(server), "--out", tmp_path / "out")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert (
        "GET requests after 24 HEAD requests; the activity of the store's devices and caches is unknown"
        in " ".join(done.stdout.split())
    )
    assert "with the data in memory" in done.stdout


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_server_that_goes_away_ends_the_run_in_a_line(served, tmp_path, ranks):
    server, workload = served
    out = tmp_path / "out"
    words = ("run", workload, *agreed(server), "--out", out, "--ranks", ranks, "--set", "train.epochs=1000")
    process = subprocess.Popen(command(*words), stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    begin = len(server.seen("GET", "/train/"))
    deadline = time.monotonic() + 60
    while len(server.seen("GET", "/train/")) < begin + 20:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    threading.Thread(target=server.stop).start()
    _, errors = process.communicate(timeout=100)
    server.stop = lambda: None
    assert process.returncode != 0
    assert "check the server and the network" in errors
    assert "Traceback" not in errors and "s3://bucket/tiny" in errors
    # Both ranks may have failed, each with its own file.
    assert all("check the server" in line for line in errors.splitlines()), errors
    assert len(errors.splitlines()) <= ranks, errors
    assert not out.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "reader.direct=true"], "reader.direct requires a folder"),
        (["--cache", "warm"], "there is no page cache to fill"),
        (["--data", "s3://bucket/other"], "s3://bucket/other: not a data set made by mlhpc io"),
        (["--data", "s3://"], "s3://: no bucket in this URL"),
        (["--set", "dataset.files=13"], "has data for a different workload (files is 12, not 13)"),
    ],
)
def test_what_is_wrong_is_one_line_and_leaves_nothing(served, tmp_path, words, message):
    server, workload = served
    done = mlhpc("run", workload, *agreed(server), "--out", tmp_path / "out", *words)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert not Path(tmp_path / "out").exists()


def test_without_the_users_word_no_request_goes_to_the_server_of_a_workload(served, tmp_path):
    server, workload = served
    begin = len(server.requests)
    for words, what in (((), "it, add --data"), (("--data", "s3://bucket/tiny"), "them, add --set")):
        for refused in (
            mlhpc("run", workload, "--out", tmp_path / "out", *words),
            mlhpc("generate", workload, *words),
        ):
            assert refused.returncode == 2 and f"o accept {what}" in refused.stderr
    assert len(server.requests) == begin and not (tmp_path / "out").exists()
