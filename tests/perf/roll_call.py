"""What the roll call costs rank 0: ``python tests/perf/roll_call.py RANKS [--nodes NODES]``.

Rank 0 runs in a process of its own, with the suite's code. The other ranks are sockets of this process that speak
the real protocol: the first rank of each node connects and reports the others of its node, those of rank 0's node
connect themselves, as do all without ``--nodes`` (one rank per node). Prints the processor time of rank 0 from
listening until every rank has the roll, its sockets, and the messages and bytes that it sent and received.

With ``--collectives``: instead what a barrier, a sum of two numbers, and a gathering of a small value from each
rank cost rank 0 afterwards, whose connections below are threads that answer at once: processor seconds of its
own thread, and bytes that it sends and receives.

With ``--lose killed`` or ``--lose silent``: after the roll call, the first rank of the last node closes its
connection, or stops sending heartbeats. Prints the seconds until rank 0 has named it, and until every other
connection has the news.

Left out: imports, the connections between the ranks of other nodes, and the time that messages take between nodes.
"""

import argparse
import json
import os
import resource
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from mlhpc.common.ranks import wire
from mlhpc.common.ranks.connection import LOOPBACK, Secret, encode, introduce
from mlhpc.common.ranks.rendezvous import Peer, Rendezvous
from mlhpc.common.ranks.rollcall import BEAT_S, RollCall
from mlhpc.common.ranks.socket_world import Tree, neighbours

SECRET = Secret("measured", b"m" * 32)
AT_ONCE = 32


class Counting(socket.socket):
    """A socket that counts its messages, one a line, and bytes."""

    messages = bytes_ = 0

    def recv(self, *args: int) -> bytes:
        data = super().recv(*args)
        self.messages += data.count(b"\n")
        self.bytes_ += len(data)
        return data

    def sendall(self, data: Any, *args: int) -> None:
        self.messages += data.count(b"\n")
        self.bytes_ += len(data)
        super().sendall(data, *args)


def peer_of(rank: int, local: int) -> Peer:
    return Peer(rank, f"nid{rank // local:06d}", rank % local, 100_000 + rank)


def rank_0(size: int, local: int, timeout_s: float) -> None:
    """In its own process: prints what it cost as JSON when all are there, and ends with its standard input."""
    with socket.create_server((LOOPBACK, 0), backlog=1024) as listener:
        print(port := listener.getsockname()[1], flush=True)
        started = time.process_time()
        meeting = Rendezvous((LOOPBACK,), (port,), SECRET, size, timeout_s=timeout_s)
        call = RollCall.call(peer_of(0, local), meeting, listener)
    cpu_s = time.process_time() - started
    sockets = sum("socket:" in os.path.realpath(fd) for fd in Path("/proc/self/fd").iterdir())
    print(json.dumps({"cpu_s": cpu_s, "sockets": sockets, "ranks": len(call.roll)}), flush=True)
    call.on_loss = lambda loss: print(loss, flush=True)
    call.start_beating()
    sys.stdin.read()
    os._exit(0)


def hello_of(rank: int, size: int, local: int) -> dict[str, object]:
    return {"size": size, "peer": vars(peer_of(rank, local))}


def measure(size: int, nodes: int, lose: str = "", timeout_s: float = 600.0) -> dict[str, float]:
    """What the roll call of ``size`` ranks on ``nodes`` nodes costs rank 0; with ``lose``, how long the loss of a
    rank then takes to be named."""
    local = -(-size // nodes)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    words = [sys.executable, __file__, str(size), "--nodes", str(nodes), "--rank-0", str(timeout_s)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as zero:
        assert zero.stdin and zero.stdout
        port = int(zero.stdout.readline())

        def connect(rank: int) -> Counting:
            sock = Counting()
            sock.connect((LOOPBACK, port))
            introduce(sock, SECRET, hello_of(rank, size, local), 60.0)
            others = range(rank + 1, min(rank + local, size)) if rank >= local else ()
            if others:
                sock.sendall(encode({"joined": [hello_of(other, size, local) for other in others]}))
            return sock

        direct = [*range(1, min(local, size)), *range(local, size, local)]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            socks = list(pool.map(connect, direct))
        read_to_the_end(socks, zero)
        cost = json.loads(zero.stdout.readline())
        lost = news_of_a_loss(socks, lose, zero) if lose else {}
        zero.stdin.close()
    assert cost["ranks"] == size
    if lose:
        return lost
    messages, sent = (sum(getattr(sock, name) for sock in socks) for name in ("messages", "bytes_"))
    for sock in socks:
        sock.close()
    return {
        "cpu_s": cost["cpu_s"],
        "sockets": cost["sockets"],
        "messages": messages,
        "bytes": sent,
    }


def read_to_the_end(socks: Sequence[Counting], zero: subprocess.Popen[str]) -> None:
    """Read what rank 0 sends, until it has printed what that cost."""
    with selectors.DefaultSelector() as selector:
        for sock in socks:
            selector.register(sock, selectors.EVENT_READ, sock)
        assert zero.stdout
        selector.register(zero.stdout, selectors.EVENT_READ)
        done = False
        while True:
            ready = [key for key, _ in selector.select(0.2 if done else None)]
            if done and not ready:
                return
            for key in ready:
                if key.data is None:
                    selector.unregister(key.fileobj)  # it is read once all has arrived
                    done = True
                elif not key.data.recv(1 << 20):
                    raise SystemExit("rank 0 has closed a connection")


def news_of_a_loss(socks: Sequence[Counting], lose: str, zero: subprocess.Popen[str]) -> dict[str, float]:
    """The seconds from the loss of the last of ``socks`` until the others have been told; prints how rank 0 names
    it."""
    *others, lost = socks
    started, told = time.monotonic(), -1.0
    if lose == "killed":
        lost.close()
    with selectors.DefaultSelector() as selector:
        for sock in others:
            selector.register(sock, selectors.EVENT_READ, sock)
        next_beat = started
        while selector.get_map():
            if time.monotonic() >= next_beat:
                for key in list(selector.get_map().values()):
                    key.data.sendall(encode({"beat": True}))
                next_beat += BEAT_S
            for key, _ in selector.select(max(0.0, next_beat - time.monotonic())):
                if b'"loss"' in key.data.recv(1 << 20):
                    told = time.monotonic() - started
                    selector.unregister(key.fileobj)
    assert zero.stdout
    print(zero.stdout.readline(), end="")
    return {"told_s": told}


def collectives(size: int) -> dict[str, dict[str, float]]:
    """What each collective costs rank 0 of ``size``."""
    below = neighbours(0, size)[1]
    numbers = [end - start for start, end in zip(below, [*below[1:], size], strict=True)]
    value = wire.encode((17, None))
    length = len(value).to_bytes(8, "little")
    answers = {
        "barrier": [b"\0" for _ in numbers],
        "sum": [framed(bytes(16)) for _ in numbers],
        "gather": [framed(length * n) + framed(value * n) for n in numbers],
    }
    calls: dict[str, Callable[[Tree], object]] = {
        "barrier": lambda tree: tree.barrier(),
        "sum": lambda tree: tree.reduce(np.add, (1.0, 2.0)),
        "gather": lambda tree: wire.decode_all(tree.gather(value)),
    }
    costs = {}
    for name, call in calls.items():
        pairs = [socket.socketpair() for _ in numbers]
        with ThreadPoolExecutor(2 * len(pairs)) as pool:
            for (_, far), answer in zip(pairs, answers[name], strict=True):
                pool.submit(far.sendall, answer)
            received = [pool.submit(read_all, far) for _, far in pairs]
            started = time.thread_time()
            call(Tree(None, tuple(near for near, _ in pairs)))
            cpu_s = time.thread_time() - started
            for near, _ in pairs:
                near.close()
            sent = sum(each.result() for each in received)
        costs[name] = {"cpu_s": cpu_s, "bytes": sent + sum(map(len, answers[name]))}
    return costs


def framed(data: bytes) -> bytes:
    return len(data).to_bytes(8, "little") + data


def read_all(sock: socket.socket) -> int:
    count = 0
    with sock:
        while data := sock.recv(1 << 20):
            count += len(data)
    return count


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("ranks", type=int)
    parser.add_argument("--nodes", type=int, help="default: as many as ranks")
    parser.add_argument("--rank-0", type=float, metavar="TIMEOUT_S", help=argparse.SUPPRESS)
    parser.add_argument("--collectives", action="store_true")
    parser.add_argument("--lose", choices=("killed", "silent"), default="")
    options = parser.parse_args()
    if options.collectives:
        for name, cost in collectives(options.ranks).items():
            print(f"ranks={options.ranks} {name} cpu_s={cost['cpu_s']:.4f} bytes={cost['bytes']}")
        sys.exit()
    nodes = options.nodes or options.ranks
    if options.rank_0:
        rank_0(options.ranks, -(-options.ranks // nodes), options.rank_0)
    cost = measure(options.ranks, nodes, options.lose)
    print(
        " ".join(
            f"{name}={value:.3f}" if name.endswith("_s") else f"{name}={value}"
            for name, value in cost.items()
        )
    )
