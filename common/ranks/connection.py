"""A TCP connection between two ranks that carries one JSON object per line, never a pickle."""

import json
import socket
import threading
import time
from contextlib import suppress
from typing import Any

MAX_MESSAGE = 1 << 20
"""Maximum bytes of a message between authenticated ranks."""


class Connection:
    """A connected socket that carries one JSON object per line. Sending is safe from several threads.

    ``max_message``: maximum bytes of a message.
    """

    def __init__(self, sock: socket.socket, max_message: int = MAX_MESSAGE) -> None:
        self.sock = sock
        self.max_message = max_message
        self._partial = b""  # the beginning of a message
        self._queued: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A host that lost power does not close its connections: the kernel probes after 10 s of silence, for 20 s.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)):
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def send(self, **message: Any) -> None:
        """Send ``message``. A broken connection is not an error here: the reading side reports it."""
        with self._lock, suppress(OSError):
            self.sock.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> list[dict[str, Any]]:
        """The messages completed by one read, and those that came with an ``answer``.

        Raises ``EOFError`` if the other end is gone, ``TimeoutError`` when nothing arrived within the socket's
        timeout, ``ValueError`` for an invalid message, or one that is too long.
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
        try:
            messages = [json.loads(line) for line in lines]
        except RecursionError as error:
            raise ValueError("a message too deeply nested") from error
        if not all(isinstance(message, dict) for message in messages):
            raise ValueError("not a valid message")
        return messages

    def answer(self, timeout_s: float) -> dict[str, Any]:
        """The next message, complete within ``timeout_s`` seconds. Raises like ``receive``."""
        deadline = time.monotonic() + timeout_s
        while (left := deadline - time.monotonic()) > 0:
            self.sock.settimeout(left)
            if messages := self.receive():
                self._queued = messages[1:]
                return messages[0]
        raise TimeoutError

    def has_queued(self) -> bool:
        """Whether ``receive`` has buffered messages, which polling the socket does not show."""
        return bool(self._queued)

    def close(self) -> None:
        self.sock.close()
