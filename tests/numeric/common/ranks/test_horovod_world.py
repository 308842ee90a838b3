"""What Horovod's part of a run opens to the network."""

import psutil

from mlhpc.common.ranks.horovod_world import _serve_rendezvous
from mlhpc.common.ranks.rendezvous import LOOPBACK


def test_gloos_rendezvous_listens_only_where_the_ranks_connect():
    """Whoever can write to it can give the ranks other addresses."""
    port = _serve_rendezvous(LOOPBACK, [])
    listening = [
        connection.laddr.ip
        for connection in psutil.Process().net_connections("inet")
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
    ]
    assert listening == [LOOPBACK]
