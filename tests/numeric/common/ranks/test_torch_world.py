"""What PyTorch opens to the network during a run."""

import psutil

from mlhpc.common.ranks.connection import LOOPBACK
from mlhpc.common.ranks.torch_world import _serve_store


def test_the_store_listens_only_where_the_ranks_connect():
    """Anyone who can write to it can give the ranks other addresses."""
    store = _serve_store(LOOPBACK)
    listening = [
        connection.laddr.ip
        for connection in psutil.Process().net_connections("inet")
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == store.port
    ]
    assert listening == [LOOPBACK]
