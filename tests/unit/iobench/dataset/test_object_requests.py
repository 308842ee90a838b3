"""Requests to a misbehaving object store, and URLs that are refused."""

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import fsspec
import fsspec.asyn
import pytest

from mlhpc.errors import UserError
from mlhpc.iobench.dataset import objects
from mlhpc.iobench.dataset.generate import require_data
from mlhpc.iobench.dataset.layout import root_of
from mlhpc.iobench.dataset.objects import ObjectStore
from mlhpc.iobench.definition import load
from mlhpc.iobench.definition.schema import Dataset, Storage, has_password
from mlhpc.iobench.formats.counting import ReadStatistics


@pytest.fixture(autouse=True)
def credentials(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@contextmanager
def answering(answer: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[ObjectStore]:
    """A store on a server whose GET requests are answered by ``answer``."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            answer(self)

        def log_message(self, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64

    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield ObjectStore("s3://bucket/x", f"http://127.0.0.1:{server.server_port}", attempts=2)
        finally:
            server.shutdown()


def reply(handler: BaseHTTPRequestHandler, status: int, body: bytes, sent: int | None = None) -> None:
    """``sent``: bytes after which the connection is closed."""
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body[:sent])
    handler.close_connection = sent is not None


def test_all_threads_read_at_once():
    together = threading.Barrier(24)

    def answer(handler: BaseHTTPRequestHandler) -> None:
        try:
            together.wait(timeout=10)
            reply(handler, 206, b"data")
        except threading.BrokenBarrierError:
            reply(handler, 404, b"")

    with answering(answer) as store, ThreadPoolExecutor(24) as pool:
        assert list(pool.map(lambda _: store.read_range(0, 4), range(24))) == [b"data"] * 24


def test_threads_that_come_together_get_one_client(monkeypatch):
    both = threading.Barrier(2)
    made: list[object] = []

    class Client(fsspec.get_filesystem_class("memory")):
        def __init__(self, **options: object) -> None:
            with suppress(threading.BrokenBarrierError):
                both.wait(timeout=0.2)  # as long as it takes for another one to be made meanwhile
            made.append(self)
            super().__init__(**options)

    monkeypatch.setattr(fsspec, "get_filesystem_class", lambda protocol: Client)
    store = ObjectStore("memory://bucket", attempts=71)
    with ThreadPoolExecutor(2) as pool:
        clients = list(pool.map(lambda _: store._client(), range(2)))
    assert len(made) == 1 and clients == [made[0]] * 2


def test_the_thread_of_all_requests_gives_way_to_the_loop_once_there_are_readers(monkeypatch):
    """Not while data are generated, when there is no loop to give way to. With a thread of its own, since that of
    other tests may have given way."""
    monkeypatch.setattr("mlhpc.common.timing.waiting._others_are_busy", lambda: False)  # whatever the load is
    ours = asyncio.new_event_loop()
    threading.Thread(target=ours.run_forever, daemon=True).start()
    monkeypatch.setattr(fsspec.asyn, "get_loop", lambda: ours)

    async def policy() -> int:
        return os.sched_getscheduler(threading.get_native_id())

    before = os.sched_getscheduler(0)
    store = ObjectStore("s3://bucket/x", "http://127.0.0.1:9", attempts=1)
    with pytest.raises(UserError, match="cannot be written"):
        store.write("y", lambda fd: None)
    assert fsspec.asyn.sync(ours, policy) == before
    with pytest.raises(UserError, match="cannot be opened"):
        store.open("y", ReadStatistics(), transfer=0, direct=False, streaming=False)
    assert fsspec.asyn.sync(ours, policy) == os.SCHED_IDLE
    assert os.sched_getscheduler(0) == before != os.SCHED_IDLE


def test_a_silent_server_is_asked_as_often_as_stated(monkeypatch):
    monkeypatch.setattr(objects, "READ_S", 0.3)
    asked: list[str] = []
    over = threading.Event()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        asked.append(handler.path)
        over.wait(30)

    with answering(answer) as store:
        with pytest.raises(UserError, match=r"cannot be read: .*; check the server and the network"):
            store.read_range(0, 4)
        over.set()
    assert len(asked) == store.attempts == 2


@pytest.mark.parametrize(("cut", "answers"), [(1, 2), (2, 2)])
def test_a_response_that_is_cut_off_is_asked_for_once_more(cut, answers):
    asked: list[str] = []

    def answer(handler: BaseHTTPRequestHandler) -> None:
        asked.append(handler.path)
        reply(handler, 206, b"data", 2 if len(asked) <= cut else None)

    with answering(answer) as store:
        if cut < answers:
            assert store.read_range(0, 4) == b"data"
        else:
            with pytest.raises(UserError, match="check the server and the network"):
                store.read_range(0, 4)
    assert len(asked) == answers


@pytest.mark.parametrize(
    "url",
    [
        "s3://user:hunter2@bucket/x",
        "s3://user:hunt/er2@bucket/x",
        "s3://hunter2@bucket",
        "ftp://user:hunter2@host/x",
    ],
)
def test_passwords_in_urls_are_refused_and_not_repeated(url):
    for work in (
        lambda: root_of(url, Storage(), 0),
        lambda: load.load("mlperf_unet3d", [f"storage.url='{url}'"]),
        lambda: load.load(
            "mlperf_unet3d", ["storage.endpoints='http://a:1, https://user:hunter2@host:9000'"]
        ),
        lambda: ObjectStore("s3://bucket/x", "https://user:hunter2@host:9000"),
        lambda: ObjectStore("s3://bucket/x", "user:hunter2@host:9000"),
    ):
        with pytest.raises(UserError, match="credentials in a URL would be recorded") as caught:
            work()
        assert "hunt" not in str(caught.value) and "\n" not in str(caught.value)


def test_a_password_in_the_environments_endpoint_is_refused(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://user:hunter2@host:9000")
    with pytest.raises(UserError, match="AWS_ENDPOINT_URL: credentials in a URL") as caught:
        ObjectStore("s3://bucket/x", attempts=9).record()
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "s3://bucket/me@home/x:y", "http://host:9000", "memory://bucket/x", "sftp://user@host/x",
        # Hadoop's URLs of Azure name the container so.
        "abfs://container@account.dfs.core.windows.net/x",
        # The AWS CLI's URLs of access points.
        "s3://arn:aws:s3:us-west-2:123456789012:accesspoint/mine/x",
    ],
)  # fmt: skip
def test_urls_without_passwords_are_taken(url):
    assert not has_password(url)


def test_a_store_for_which_a_url_does_not_suffice_is_a_line():
    with pytest.raises(
        UserError, match=r"ftp:// cannot be used: its client needs more than a URL .*host"
    ) as caught:
        require_data(Dataset(format="npz", files=1, sample_bytes=100), root_of("ftp://host/x", Storage(), 0))
    assert "\n" not in str(caught.value)
