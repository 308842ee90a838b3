"""Connections between ranks when file descriptors run out."""

import errno
import os
import resource

import pytest

from mlhpc.common.ranks import links
from mlhpc.common.ranks.links import accept, require_descriptors
from mlhpc.errors import UserError


@pytest.mark.parametrize(
    ("soft", "hard", "raised"),
    [(1024, 4096, [(4096, 4096)]), (4096, 4096, []), (1024, -1, [(-1, -1)]), (-1, -1, [])],
)
def test_the_limit_of_open_files_is_raised_where_connections_need_it(monkeypatch, soft, hard, raised):
    limits = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda which, both: limits.append(both))
    require_descriptors(2000)
    assert limits == raised


def test_too_low_a_limit_is_refused_with_what_is_needed(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, 1024))
    monkeypatch.setattr(links.os, "listdir", lambda folder: ["0"] * 30)
    with pytest.raises(UserError, match=r"needs 1130 open .* limit is 1024; .* ulimit -n 1130 "):
        require_descriptors(1100)


class Full:
    """A listener of a process that has no descriptor left."""

    def settimeout(self, seconds):
        pass

    def accept(self):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_running_out_of_descriptors_is_one_line():
    with pytest.raises(
        UserError, match=r"cannot accept connections of other ranks: Too many open files; .*ulimit -n"
    ):
        accept(Full(), b"secret", [1])
