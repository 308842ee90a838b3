"""The world without a framework, as real processes."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "ranks" / "socket_collectives.py"
START = """\
import sys
from mlhpc.common.ranks.local import run_local
sys.exit(run_local({ranks}, [sys.executable, {program!r}]))
"""


@pytest.mark.parametrize("ranks", [2, 6])
def test_collectives_agree(ranks):
    code = START.format(ranks=ranks, program=str(PROGRAM))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert f"[rank {ranks - 1}] all agree" in done.stderr


def test_a_stranger_is_turned_away():
    """A connection without this start's token gets no place in the tree."""
    import socket
    import threading

    from mlhpc.common.ranks.links import _HELLO, accept, connect

    secret = b"s" * 32
    with socket.create_server(("127.0.0.1", 0)) as listener:
        place = ("127.0.0.1", listener.getsockname()[1])

        def strangers() -> None:
            for hello in (_HELLO.pack(b"w" * 32, 1), _HELLO.pack(secret, 7), b"GET / HTTP/1.1\r\n\r\n"):
                with socket.create_connection(place) as connection:
                    connection.sendall(hello)
            wanted.append(connect(place, secret, 1))

        wanted: list[socket.socket] = []
        thread = threading.Thread(target=strangers)
        thread.start()
        (accepted,) = accept(listener, secret, [1])
        thread.join()
        accepted.sendall(b"welcome")
        assert wanted[0].recv(7) == b"welcome"
        accepted.close()
        wanted[0].close()
