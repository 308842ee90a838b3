"""What Horovod opens to the network during a run, and needs from the host."""

import psutil
import pytest

from mlhpc.common.ranks import horovod_world
from mlhpc.common.ranks.connection import LOOPBACK
from mlhpc.common.ranks.horovod_world import _serve_rendezvous
from mlhpc.errors import UserError


def test_gloos_rendezvous_listens_only_where_the_ranks_connect():
    """Anyone who can write to it can give the ranks other addresses."""
    port = _serve_rendezvous(LOOPBACK, [])
    listening = [
        connection.laddr.ip
        for connection in psutil.Process().net_connections("inet")
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
    ]
    assert listening == [LOOPBACK]


def test_a_host_whose_name_has_no_address_is_refused_in_one_line(monkeypatch):
    """Gloo inside Horovod aborts the process there: "Unable to find address for: HOST"."""
    monkeypatch.setattr(horovod_world.socket, "gethostname", lambda: "127.0.0.1")
    horovod_world.require_host_name()
    monkeypatch.setattr(horovod_world.socket, "gethostname", lambda: "no-such-host.invalid")
    with pytest.raises(UserError, match=r"no-such-host\.invalid, has no IP address") as raised:
        horovod_world.require_host_name()
    assert "\n" not in str(raised.value)
