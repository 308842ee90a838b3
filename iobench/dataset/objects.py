"""Data sets in an object store, through fsspec: ``s3://bucket/prefix``, and other URLs that it supports.

A read is one GET request for a range of an object, and opening an object is a HEAD request; the client caches
nothing. Credentials are found by the client library (for S3: AWS_ACCESS_KEY_ID, ~/.aws, the machine's role). All
requests of a process go through fsspec's single event loop.
"""

import asyncio
import inspect
import json
import os
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from mlhpc.common.files.untrusted import clean, printable
from mlhpc.common.timing.waiting import give_way
from mlhpc.errors import UserError, install
from mlhpc.iobench.dataset.places import RECORD
from mlhpc.iobench.definition.schema import NO_PASSWORDS, has_password
from mlhpc.iobench.formats.access import Bytes, CountedFile
from mlhpc.iobench.formats.counting import ReadStatistics, clock

T = TypeVar("T")
CONNECT_S = 10
"""Seconds after which an unresponsive server counts as unavailable."""
READ_S = 60
CONNECTIONS = 1024
"""Maximum number of connections of a rank, opened on demand; more than any rank's reader threads."""
S3 = ("s3", "s3a")
CUT_OFF = ("ClientPayloadError", "IncompleteReadError", "IncompleteRead")
"""Errors raised when a response ends early. The client library does not retry once the headers have arrived."""
LARGEST_RECORD = 1 << 20


@dataclass(frozen=True)
class ObjectStore:
    """A prefix in an object store. ``endpoint``: URL of the server; empty for AWS_ENDPOINT_URL or the provider's
    default. ``path_style``: whether requests name the bucket in the path instead of the host name; None: only if
    ``endpoint`` is set. ``attempts``: number of attempts per request, with doubling pauses in between."""

    url: str
    endpoint: str = ""
    region: str = ""
    path_style: bool | None = None
    attempts: int = 5

    def __post_init__(self) -> None:
        if has_password(self.url) or has_password(self.endpoint):
            raise UserError(f"data URL: {NO_PASSWORDS}")
        protocol, _, path = self.url.partition("://")
        if not protocol or not path.strip("/"):
            raise UserError(f"{self.url}: no bucket in this URL; write one such as s3://bucket/prefix")
        object.__setattr__(self, "url", self.url.rstrip("/"))

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, name: str) -> "ObjectStore":
        return replace(self, url=f"{self.url}/{name}")

    @property
    def protocol(self) -> str:
        """The protocol in the URL, such as ``s3``."""
        return self.url.partition("://")[0]

    @property
    def folder(self) -> Path | None:
        """None, because requests go to a server."""
        return None

    def facts(self) -> dict[str, Any]:
        """The description of the store for a result."""
        return {
            "data": self.url,
            "filesystem": self.protocol,
            "data_in_ram": False,
            "object_store": self._server(),
        }

    def _server(self) -> str:
        """The server that requests go to, which the client library may take from the environment or its
        configuration files."""
        if self.endpoint or self.protocol not in S3:
            return self.endpoint or "the provider's endpoint"
        return str(self._client().s3.meta.endpoint_url)

    def _client(self) -> Any:
        with _one_at_a_time:  # otherwise concurrent reader threads would each create a client
            return _filesystem(self.protocol, self.endpoint, self.region, self.path_style, self.attempts)

    def record(self) -> dict[str, Any] | None:
        """The record of the data set; None if there is none. Raises UserError if it cannot be read."""
        path = self / RECORD
        try:
            if path._call("read", lambda fs, key: fs.size(key)) > LARGEST_RECORD:
                raise ValueError("too large")
            value = json.loads(path._call("read", lambda fs, key: fs.cat_file(key)))
            if not isinstance(value, dict):
                raise ValueError("not a JSON object")
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path} cannot be read: {error}; choose another --data") from None
        return {printable(key): clean(item) for key, item in value.items()}

    def claim(self, record: Mapping[str, Any]) -> None:
        """Write the record of a data set. Raises UserError if the prefix has other objects or the record of a
        different data set."""
        present = self.record()
        if present is None:
            if self._listed(""):
                raise UserError(f"{self}: not empty and not created by this command; choose another prefix")
            text = json.dumps(record, indent=1).encode()
            (self / RECORD)._put(lambda fs, key: fs.pipe_file(key, text))
            present = self.record() or {}
        wanted = json.loads(json.dumps(record))  # JSON turns tuples into lists, as in the record
        if present != wanted:
            differ = sorted(
                key for key in present.keys() | wanted.keys() if present.get(key) != wanted.get(key)
            )
            raise UserError(
                f"{self} has a data set made with different settings ({', '.join(differ)}); remove it"
            )

    def missing(self, names: Sequence[str], is_whole: Callable[[Path, str], bool]) -> list[str]:
        """The files among ``names`` that do not exist. Existing objects are complete, because they are written as
        a whole."""
        present = self._listed("")
        return [name for name in names if name not in present]

    def present(self, split: str) -> set[str]:
        """The names of the files of a split."""
        return self._listed(split)

    def require_space(self, needed: int) -> None:
        """Does nothing, because object stores do not report free space."""

    def write(self, name: str, fill: Callable[[int], None]) -> int:
        """Write a file through a temporary one; returns its size in bytes."""
        # Objects are written atomically, but formats write to a descriptor and may seek, so a local file comes
        # first.
        try:
            file = tempfile.NamedTemporaryFile(prefix="mlhpc-")
        except OSError as error:
            raise self._no_room(error) from error
        with file:
            try:
                fill(file.fileno())
                size = file.seek(0, 2)
            except OSError as error:
                raise self._no_room(error) from error
            (self / name)._put(lambda fs, key: fs.put_file(file.name, key))
            return size

    def _no_room(self, error: OSError) -> UserError:
        return UserError(
            f"{tempfile.gettempdir()} cannot be written: {error.strerror or error}; files are written "
            f"to this folder before their upload; set TMPDIR to a folder with enough space"
        )

    def size(self, name: str) -> int:
        """Bytes of an object."""
        return int((self / name)._existing("opened", lambda fs, key: fs.size(key)))

    def read(self, name: str) -> Bytes:
        """The content of an object, uint8 [bytes]."""
        return np.frombuffer((self / name)._existing("read", lambda fs, key: fs.cat_file(key)), np.uint8)

    def open(
        self,
        name: str,
        statistics: ReadStatistics,
        transfer: int = 0,
        direct: bool = False,
        streaming: bool = False,
    ) -> CountedFile:
        """Open an object whose requests are counted."""
        return ObjectFile(self / name, statistics, transfer, streaming)

    def read_range(self, start: int, end: int) -> bytes:
        """Bytes ``start`` to ``end`` (exclusive) of this URL's object, in one GET request."""
        return bytes(self._existing("read", lambda fs, key: fs.cat_file(key, start=start, end=end)))

    def _listed(self, below: str) -> set[str]:
        """The names of the objects under ``below``, relative to this prefix."""
        place = self / below if below else self
        try:
            root, keys = place._call("listed", lambda fs, key: (key.removesuffix(below), fs.find(key)))
        except FileNotFoundError:
            return set()
        return {name.removeprefix(root).lstrip("/") for name in keys}

    def _existing(self, what: str, work: Callable[[Any, str], T]) -> T:
        try:
            return self._call(what, work)
        except FileNotFoundError:
            raise UserError(f"{self} cannot be {what}: it does not exist; regenerate the data") from None

    def _put(self, work: Callable[[Any, str], object]) -> None:
        try:
            self._call("written", work)
        except FileNotFoundError:
            raise UserError(f"{self} cannot be written: the bucket does not exist; create it first") from None

    def _call(self, what: str, work: Callable[[Any, str], T]) -> T:
        """Return ``work(file system, path)`` for this URL. Raises FileNotFoundError if there is no such object or
        bucket, UserError for all other errors."""
        filesystem = self._client()
        try:
            path = filesystem._strip_protocol(self.url)
            try:
                return work(filesystem, path)
            except Exception as error:
                if type(error).__name__ not in CUT_OFF:
                    raise
                return work(filesystem, path)
        except FileNotFoundError:
            raise
        except Exception as error:
            # Each client library raises different exceptions if a server is missing or refuses.
            reason = " ".join(str(error).split()) or type(error).__name__
            denied = isinstance(error, PermissionError) or "redentials" in reason
            hint = "the credentials (AWS_ACCESS_KEY_ID and so on)" if denied else "the server and the network"
            raise UserError(f"{self} cannot be {what}: {reason}; check {hint}") from error


class ObjectFile(CountedFile):
    """An object whose reads are GET requests. Not thread-safe."""

    def __init__(
        self, place: ObjectStore, statistics: ReadStatistics, transfer: int, streaming: bool
    ) -> None:
        self._begin(str(place), statistics, transfer, streaming)
        self._place = place
        start = clock()
        self.size = int(place._existing("opened", _size_to_read))
        statistics.opens += 1
        statistics.open_s += clock() - start

    def close(self) -> None:
        """Does nothing: there is no connection to close."""

    def _preadv(self, fd: int, buffers: tuple[memoryview], offset: int) -> int:  # type: ignore[override]
        """Fills the one buffer by a GET request, in place of the system call."""
        (out,) = buffers
        data = self._place.read_range(offset, offset + len(out))
        out[: len(data)] = data
        return len(data)


def _size_to_read(filesystem: Any, key: str) -> int:
    if getattr(filesystem, "async_impl", False):
        _have_way_given(filesystem.loop)
    return int(filesystem.size(key))


@cache
def _have_way_given(loop: asyncio.AbstractEventLoop) -> None:
    """Lower the priority of the thread of ``loop`` to that of the reader threads, whose requests it performs.
    Called when the first object is opened for reading, because data generation has no steps that need
    precedence."""
    loop.call_soon_threadsafe(give_way)


_one_at_a_time = threading.Lock()


@cache
def _filesystem(protocol: str, endpoint: str, region: str, path_style: bool | None, attempts: int) -> Any:
    """The process's client for stores with this ``protocol``. Raises UserError if it cannot be created."""
    try:
        import fsspec

        kind = fsspec.get_filesystem_class(protocol)
    except (ImportError, ValueError) as error:
        raise UserError(f"{protocol}:// cannot be used: {error}; s3:// needs {install('s3')}") from None
    options: dict[str, Any] = {}
    if protocol in S3:
        for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"):
            if has_password(os.environ.get(name, "")):
                raise UserError(f"{name}: {NO_PASSWORDS}")
        by_path = bool(endpoint) if path_style is None else path_style
        options = {
            "endpoint_url": endpoint or None,
            "client_kwargs": {"region_name": region} if region else {},
            "config_kwargs": {
                "connect_timeout": CONNECT_S,
                "read_timeout": READ_S,
                "max_pool_connections": CONNECTIONS,
                "retries": {"mode": "standard", "total_max_attempts": attempts},
                "s3": {"addressing_style": "path" if by_path else "auto"},
            },
        }
    elif endpoint or region:
        raise UserError(f"storage.endpoints and storage.region apply only to s3://, not to {protocol}://")
    # Neither listings nor instances are cached, since another rank may have written in the meantime.
    options |= {"skip_instance_cache": True, "use_listings_cache": False}
    try:
        inspect.signature(kind.__init__).bind(None, **options)  # fails before a client is partially created
    except TypeError as error:
        raise UserError(
            f"{protocol}:// cannot be used: its client needs more than a URL ({error}); use s3://"
        ) from None
    filesystem = kind(**options)
    if hasattr(filesystem, "retries"):
        filesystem.retries = 1  # each of which includes botocore's own retries
    return filesystem
