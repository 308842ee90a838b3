"""The device itself: its clock, and what it refuses."""

import pytest
from smoke.fake_cuda.conftest import python

CLOCK = """
import time, torch
x = torch.zeros(8, device="cuda")
torch.cuda.synchronize()
first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
start = time.perf_counter()
first.record()
for _ in range(4):
    x.cosh_()
last.record()
launched = time.perf_counter() - start
torch.cuda.synchronize()
print(launched < 0.5, time.perf_counter() - start, first.elapsed_time(last) / 1e3)
"""


def test_the_host_runs_ahead_and_waits_until_the_kernels_are_done():
    ahead, waited, between = python(CLOCK, **{"kernel_us cosh": 250_000}).split()
    assert ahead == "True"
    assert float(waited) >= 1.0 and float(between) == pytest.approx(1.0, rel=0.05)


CAPTURE = """
import torch
x, side = torch.zeros(8, device="cuda"), torch.cuda.Stream()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x.cosh_()
    if {joined}:
        torch.cuda.current_stream().wait_stream(side)
    if {waits}:
        torch.cuda.synchronize()
graph.replay()
"""


@pytest.mark.parametrize("joined, waits", [(True, False), (False, False), (True, True)])
def test_a_capture_follows_forked_streams_and_refuses_what_cuda_refuses(joined, waits):
    program = CAPTURE.format(joined=joined, waits=waits)
    if joined and not waits:
        python(program)
    else:
        with pytest.raises(
            AssertionError, match="unjoined work" if not joined else "not permitted when stream"
        ):
            python(program)


def test_memory_beyond_that_of_the_model_is_not_there():
    program = "import torch; torch.zeros(20 << 20, device='cuda')"
    with pytest.raises(AssertionError, match="OutOfMemoryError"):
        python(program, memory_bytes=16 << 20)
