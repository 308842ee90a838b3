"""Collectives between two processes, without PyTorch: what they move, and how they round."""

import json
import os
import subprocess
import sys

from fake_cuda.library import build, devices

PROGRAM = """
import ctypes, json, struct, sys

library, rank, folder = ctypes.CDLL(sys.argv[1]), int(sys.argv[2]), sys.argv[3].encode()
INT64, FLOAT, BFLOAT16, SUM, MAX, MEAN = 4, 7, 9, 0, 2, 4  # nccl.h

class Id(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * 128)]

def checked(name, *words):
    assert not getattr(library, name)(*words), name

def sent(layout, *values):
    memory = ctypes.c_void_p()
    checked("cudaMalloc", ctypes.byref(memory), ctypes.c_size_t(4096))
    ctypes.memmove(memory, struct.pack(layout, *values), struct.calcsize(layout))
    return memory

def halves(*values):  # bfloat16: the upper halves of floats
    return [struct.unpack("<2H", struct.pack("<f", value))[1] for value in values]

comm, stream = ctypes.c_void_p(), ctypes.c_void_p()
checked("ncclCommInitRankConfig", ctypes.byref(comm), 2, Id(folder), rank, None)
checked("cudaStreamCreateWithPriority", ctypes.byref(stream), 0, 0)
number = ctypes.c_size_t

summed = sent("<3H", *halves(*((256, 258, 1 / 128), (1, 1, 1 / 128))[rank]))
checked("ncclAllReduce", summed, summed, number(3), BFLOAT16, SUM, comm, stream)
mean = sent("<2f", 1 + 2 * rank, -3)
checked("ncclAllReduce", mean, mean, number(2), FLOAT, MEAN, comm, stream)
gathered = sent("<4f", 0, 0, 0, 0)
checked("ncclAllGather", sent("<2f", rank, 7), gathered, number(2), FLOAT, comm, stream)
root = sent("<q", 2**40 + rank)
checked("ncclBcast", root, number(1), INT64, 1, comm, stream)
received = sent("<f", 0)
checked("ncclGroupStart")
checked("ncclRecv", received, number(1), FLOAT, 1 - rank, comm, stream)
checked("ncclSend", sent("<f", 10 + rank), number(1), FLOAT, 1 - rank, comm, stream)
checked("ncclGroupEnd")
checked("cudaStreamSynchronize", stream)

def there(memory, layout):
    return struct.unpack(layout, ctypes.string_at(memory, struct.calcsize(layout)))

print(json.dumps({
    "sums": [struct.unpack("<f", struct.pack("<2H", 0, half))[0] for half in there(summed, "<3H")],
    "means": there(mean, "<2f"),
    "gathered": there(gathered, "<4f"),
    "root": there(root, "<q"),
    "received": there(received, "<f"),
    "maximum": library.ncclAllReduce(mean, mean, number(2), FLOAT, MAX, comm, stream),
}))
"""


def test_two_ranks_exchange_data_and_sums_are_rounded_once(tmp_path):
    """In bfloat16, whose values have 8 bits, 257 lies between 256 and 258 and goes to the even one, 259 to 260."""
    words = [sys.executable, "-c", PROGRAM, str(build())]
    env = os.environ | devices(changes={"devices": 2})
    (tmp_path / "nccl").mkdir()
    ranks = [
        subprocess.Popen(
            [*words, str(rank), str(tmp_path / "nccl")], env=env, stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    said = [json.loads(rank.communicate(timeout=300)[0]) for rank in ranks]
    for rank, found in enumerate(said):
        assert found.pop("received") == [10 + (1 - rank)]
        assert found.pop("maximum") != 0  # refused, not summed
    assert said[0] == said[1]
    assert said[0]["sums"] == [256, 260, 1 / 64]
    assert (said[0]["means"], said[0]["gathered"], said[0]["root"]) == ([2, -3], [0, 7, 1, 7], [2**40 + 1])
    assert not list((tmp_path / "nccl").iterdir())
