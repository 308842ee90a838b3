"""Connections between ranks: how both ends prove that they belong to the same launch, and how they exchange
messages, one JSON object per line, never a pickle.

A peer is untrusted until it has answered a challenge (``introduce``, ``Admission``). So that untrusted peers
cannot delay a rank, all listeners serve them with one selector, and each peer has ``GREETING_S`` seconds and
``MAX_HELLO`` bytes. Both ends send a random challenge and prove that they know the secret of the launch, which
itself is never sent. The proofs contain the listener's port, so a stranger on another port of the node cannot
relay them.
"""

import ctypes
import errno
import hmac
import json
import os
import secrets
import selectors
import socket
import stat
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from mlhpc.common.files.untrusted import parse_json
from mlhpc.errors import UserError

LOOPBACK = "127.0.0.1"
GREETING_S = 3.0
"""Seconds within which a new connection must answer its challenge."""
MAX_HELLO = 4096
"""Maximum bytes of the answer to a challenge."""
MAX_STRANGERS = 256
"""Maximum number of unauthenticated connections, beyond the number of ranks."""
MAX_MESSAGE = 1 << 20
"""Maximum bytes of a message between authenticated ranks."""


class Connection:
    """A connected socket that carries one JSON object per line. Sending is safe from several threads.

    ``max_message``: maximum bytes of a message. ``here``, ``there``: the addresses of its ends.
    """

    def __init__(self, sock: socket.socket, max_message: int = MAX_MESSAGE) -> None:
        self.sock = sock
        self.max_message = max_message
        self._partial = b""  # the beginning of a message
        self._queued: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        try:
            names = sock.getsockname(), sock.getpeername()
        except OSError:  # the other end has just been lost, as reading will show
            names = (LOOPBACK,), (LOOPBACK,)
        self.here, self.there = (str(name[0]).removeprefix("::ffff:") for name in names)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A host that lost power does not close its connections, so the kernel probes after 10 s of silence, for 20
        # s.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)):
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def send(self, **message: Any) -> None:
        """Send ``message``. A broken connection is not an error here, since ``receive`` reports it."""
        self.send_encoded(encode(message))

    def send_encoded(self, data: bytes) -> None:
        """``send`` messages that ``encode`` has encoded."""
        with self._lock, suppress(OSError):
            self.sock.sendall(data)

    def receive(self) -> list[dict[str, Any]]:
        """The messages completed by one read, preceded by those that arrived together with an ``answer``.

        Raises ``EOFError`` if the other end is gone, ``TimeoutError`` if nothing arrives within the socket's
        timeout, ``ValueError`` for a message that is invalid or too long.
        """
        queued, self._queued = self._queued, []
        if queued:
            return queued
        try:
            data = self.sock.recv(1 << 16)
        except (TimeoutError, BlockingIOError):
            raise TimeoutError from None
        except OSError as error:
            raise EOFError from error
        if not data:
            raise EOFError
        *lines, self._partial = (self._partial + data).split(b"\n")
        if any(len(line) > self.max_message for line in (*lines, self._partial)):
            raise ValueError(f"a message of more than {self.max_message} bytes")
        return [_message(line) for line in lines]

    def answer(self, timeout_s: float) -> dict[str, Any]:
        """The next message, which must be complete within ``timeout_s`` seconds. Raises like ``receive``."""
        deadline = time.monotonic() + timeout_s
        while (left := deadline - time.monotonic()) > 0:
            self.sock.settimeout(left)
            if messages := self.receive():
                self._queued = messages[1:]
                return messages[0]
        raise TimeoutError

    def has_queued(self) -> bool:
        """Return whether ``receive`` has buffered messages, which polling the socket does not reveal."""
        return bool(self._queued)

    def close(self) -> None:
        """Close the socket."""
        self.sock.close()


def encode(*messages: dict[str, Any]) -> bytes:
    """Encode ``messages`` as they are sent; the result can be sent over any number of connections."""
    return b"".join(json.dumps(message).encode() + b"\n" for message in messages)


Kind = Literal["MLHPC_TOKEN", "munge", "a file", "a broadcast", "nothing"]
"""Where ranks get the secret from. ``nothing``: there is no secret, and anyone can pass as a rank."""


@dataclass(frozen=True)
class Secret:
    """A secret ``key`` known only to the ranks of this ``launch``; ``launch`` itself need not be secret."""

    launch: str
    key: bytes
    kind: Kind = "MLHPC_TOKEN"

    def prove(self, words: bytes) -> str:
        """The HMAC (RFC 2104) of ``words`` under the shared key."""
        return hmac.new(self.key, words, "sha256").hexdigest()

    def proves(self, proof: str, words: bytes) -> bool:
        """Return whether ``proof`` is what ``prove`` returns for ``words``. The comparison takes constant time."""
        return hmac.compare_digest(proof.encode(), self.prove(words).encode())


@dataclass(frozen=True)
class SecretFile:
    """A secret in a file that only this user can read, in a folder that all nodes of the launch see."""

    launch: str
    path: Path
    kind: Kind = "a file"

    def create(self) -> Secret:
        """Create a secret and write it to the file. Called by rank 0. Raises OSError."""
        key = secrets.token_hex(32).encode()
        new = self.path.with_name(f"{self.path.name}.{secrets.token_hex(4)}")
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(key)
        new.replace(self.path)
        return Secret(self.launch, key, self.kind)

    def fresh(self) -> Secret:
        """The secret that the file contains now. Raises OSError, and ValueError if another user created the
        file."""
        os.listdir(self.path.parent)  # makes NFS look again for a file that was missing
        with os.fdopen(os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
                raise ValueError(f"{self.path} does not belong to this user alone")
            return Secret(self.launch, file.read(MAX_HELLO), self.kind)


@dataclass(frozen=True)
class Munge:
    """Credentials from the MUNGE daemon, which identify the user who created them
    (https://dun.github.io/munge)."""

    launch: str
    library: Any
    kind: Kind = "munge"

    @classmethod
    def running(cls, launch: str) -> "Munge | None":
        """MUNGE for this ``launch``; None if no MUNGE daemon is running."""
        try:
            munge = cls(launch, ctypes.CDLL("libmunge.so.2"))
            return munge if munge.prove(b"") else None
        except OSError:
            return None

    def prove(self, words: bytes) -> str:
        """A credential of this user for ``words``; empty if the daemon does not answer."""
        credential = ctypes.c_void_p()
        if self.library.munge_encode(ctypes.byref(credential), None, words, len(words)):
            return ""
        text = ctypes.string_at(credential).decode()
        ctypes.CDLL(None).free(credential)
        return text

    def proves(self, proof: str, words: bytes) -> bool:
        """Return whether ``proof`` is a valid credential of this user for ``words``."""
        payload, length, uid, gid = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_uint(), ctypes.c_uint()
        where = [ctypes.byref(each) for each in (payload, length, uid, gid)]
        error = self.library.munge_decode(proof.encode(), None, *where)
        said = ctypes.string_at(payload, length.value) if payload else b""
        ctypes.CDLL(None).free(payload)
        return not error and uid.value == os.geteuid() and hmac.compare_digest(said, words)


Proof = Secret | Munge


def _words(proof: Proof, role: str, port: int, challenge: str, nonce: str, hello: str) -> bytes:
    return json.dumps(["mlhpc", role, proof.launch, port, challenge, nonce, hello]).encode()


def introduce(sock: socket.socket, proof: Proof, hello: dict[str, Any], seconds: float) -> None:
    """Send ``hello`` to the listener at the other end. Both ends must prove that they belong to this launch.

    Raises EOFError, OSError (TimeoutError after ``seconds``) or ValueError.
    """
    deadline = time.monotonic() + seconds
    port, nonce, said = sock.getpeername()[1], secrets.token_hex(16), json.dumps(hello)
    asked = _line(sock, deadline)
    challenge, kind = str(asked["challenge"]), asked.get("kind")
    if kind != proof.kind:
        raise ValueError(
            f"port {port} belongs to another program or, if it is rank 0's, this rank has the secret from "
            f"{proof.kind} but rank 0 does not: pass MLHPC_TOKEN to all ranks or to none"
        )
    answer = {"nonce": nonce, "hello": said}
    answer["proof"] = proof.prove(_words(proof, "rank", port, challenge, nonce, said))
    sock.sendall(encode(answer))
    if not proof.proves(
        str(_line(sock, deadline)["proof"]), _words(proof, "listener", port, challenge, nonce, said)
    ):
        raise ValueError(f"port {port} belongs to another program or to another job")


def greet(host: str, port: int, proof: Proof, hello: dict[str, Any], seconds: float) -> socket.socket:
    """A connection to the listener at ``host`` and ``port``, once both ends have proved that they belong to this
    launch. Raises like ``introduce``."""
    sock = _connected(host, port, seconds)
    try:
        introduce(sock, proof, hello, seconds)
    except BaseException:
        sock.close()
        raise
    return sock


def _connected(host: str, port: int, seconds: float) -> socket.socket:
    """A connection, by IPv4 if possible, since Horovod's rendezvous supports nothing else. Raises OSError."""
    found = [(host, port)]
    if ":" not in host:
        resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        found = [
            (str(each[4][0]), port) for each in sorted(resolved, key=lambda each: each[0] != socket.AF_INET)
        ]
    for address in found[:-1]:
        with suppress(OSError):
            return socket.create_connection(address, timeout=seconds)
    return socket.create_connection(found[-1], timeout=seconds)


def _line(sock: socket.socket, deadline: float) -> dict[str, Any]:
    """Receive one message and not a byte more: the bytes after it are for whoever uses the connection next."""
    line = bytearray()
    while not line.endswith(b"\n"):
        if len(line) > MAX_HELLO or (left := deadline - time.monotonic()) <= 0:
            raise TimeoutError("no valid answer in time")
        sock.settimeout(left)
        if not (byte := sock.recv(1)):
            raise EOFError("the connection was closed")
        line += byte
    return _message(line)


def _message(line: bytes | bytearray) -> dict[str, Any]:
    """The JSON object in ``line``. Raises ValueError."""
    message = parse_json(line.decode())
    if not isinstance(message, dict):
        raise ValueError("not a valid message")
    return message


class _Stranger:
    """A connection that has been sent a challenge, and has until ``limit`` to answer."""

    def __init__(self, sock: socket.socket, kind: Kind) -> None:
        self.sock = sock
        self.limit = time.monotonic() + GREETING_S
        self.said = b""
        self.challenge = secrets.token_hex(16)
        sock.setblocking(False)
        sock.send(encode({"challenge": self.challenge, "kind": kind}))

    def answer(self, proof: Proof, port: int) -> dict[str, Any]:
        """The peer's hello, once the peer has proved that it belongs to this launch. Raises TimeoutError while the
        answer is incomplete, and EOFError, ValueError, KeyError, TypeError or OSError if the answer is wrong or
        the connection fails."""
        try:
            data = self.sock.recv(MAX_HELLO)
        except BlockingIOError:
            raise TimeoutError from None
        if not data:
            raise EOFError
        self.said += data
        line, end, more = self.said.partition(b"\n")
        if len(self.said) > MAX_HELLO or more:
            raise ValueError("too long")
        if not end:
            raise TimeoutError
        message = _message(line)
        nonce, said = str(message["nonce"]), str(message["hello"])
        hello = parse_json(said)
        if not proof.proves(
            str(message["proof"]), _words(proof, "rank", port, self.challenge, nonce, said)
        ) or not isinstance(hello, dict):
            raise ValueError("not part of this launch")
        confirmation = proof.prove(_words(proof, "listener", port, self.challenge, nonce, said))
        self.sock.send(encode({"proof": confirmation}))
        return hello


class Admission:
    """Admits peers of this launch to ``listeners``, and closes other connections. At most ``ranks`` plus
    ``MAX_STRANGERS`` connections wait for admission."""

    def __init__(self, listeners: Sequence[socket.socket], proof: Proof, ranks: int) -> None:
        self._listeners, self._proof, self._most = listeners, proof, ranks + MAX_STRANGERS
        self._pending: dict[socket.socket, _Stranger] = {}  # in the order in which their time runs out
        self._selector = selectors.DefaultSelector()
        for listener in listeners:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ)

    def close(self) -> None:
        """Close the connections that wait for admission."""
        self._selector.close()
        for sock in self._pending:
            sock.close()

    def watch(self, sock: socket.socket) -> None:
        """Make ``wait`` also return when ``sock`` can be read."""
        self._selector.register(sock, selectors.EVENT_READ)

    def wait(self, deadline: float) -> Iterator[tuple[socket.socket, dict[str, Any] | None]]:
        """Wait for events, at most until ``deadline`` (of ``time.monotonic``). Yields pairs: each admitted
        connection and its hello, and each watched socket that can be read and None. There may be none. Raises
        UserError if the process runs out of file descriptors."""
        now = time.monotonic()
        while (oldest := next(iter(self._pending.values()), None)) and oldest.limit <= now:
            self._forget(oldest.sock).close()
        limit = min(deadline, oldest.limit) if oldest else deadline
        for key, _ in self._selector.select(max(0.0, limit - now)):
            sock = cast(socket.socket, key.fileobj)
            if sock in self._listeners:
                self._welcome(sock)
            elif stranger := self._pending.get(sock):
                if (hello := self._answer(stranger)) is not None:
                    yield sock, hello
            elif key.data is None and sock.fileno() >= 0:
                yield sock, None

    def _answer(self, stranger: _Stranger) -> dict[str, Any] | None:
        try:
            hello = stranger.answer(self._proof, stranger.sock.getsockname()[1])
        except TimeoutError:
            return None  # the answer is not complete
        except (OSError, EOFError, ValueError, KeyError, TypeError):
            self._forget(stranger.sock).close()
            return None
        self._forget(stranger.sock)
        return hello

    def _forget(self, sock: socket.socket) -> socket.socket:
        del self._pending[sock]
        self._selector.unregister(sock)
        return sock

    def _welcome(self, listener: socket.socket) -> None:
        if len(self._pending) >= self._most:
            self._forget(next(iter(self._pending))).close()
        if new := _accept(listener):
            try:
                self._pending[new] = _Stranger(new, self._proof.kind)
                self._selector.register(new, selectors.EVENT_READ, "stranger")
            except OSError:
                self._pending.pop(new, None)
                new.close()


def listen_on(port: int, local: bool, backlog: int = 1024) -> socket.socket:
    """A listening socket on ``port`` (0: any): on loopback if ``local``, otherwise on all interfaces, including
    IPv6 if available. Raises OSError."""
    if not local and socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, backlog=backlog, dualstack_ipv6=True)
    return socket.create_server((LOOPBACK if local else "", port), backlog=backlog)


def _accept(listener: socket.socket) -> socket.socket | None:
    try:
        return listener.accept()[0]
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise UserError(
                f"cannot accept a connection from another rank: {error.strerror}; raise the limit with ulimit -n"
            ) from error
        return None  # the peer has disconnected
