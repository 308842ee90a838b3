"""Fused messages from Horovod's timeline: events as horovod/common/timeline.cc 0.28.1 writes them."""

import json

import pytest

from mlhpc.common.timing.horovod_timeline import fused_messages


def named(pid, tensor):
    return {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": tensor}}


def begin(pid, name, ts):
    return {"ph": "B", "name": name, "ts": ts, "pid": pid}


def end(pid, ts, **args):
    return {"ph": "E", "ts": ts, "pid": pid} | ({"args": args} if args else {})


def fused(tensors, start, stop):
    """Negotiation, copies and the all-reduce of tensors that are sent as one, (pid, shape)."""
    events = []
    for pid, _ in tensors:
        events += [begin(pid, "NEGOTIATE_ALLREDUCE", start - 9), end(pid, start - 8)]
    events += [begin(pid, "ALLREDUCE", start - 7) for pid, _ in tensors]
    for name, first, last in (
        ("MEMCPY_IN_FUSION_BUFFER", start - 6, start - 5),
        ("GLOO_ALLREDUCE", start, stop),
        ("MEMCPY_OUT_FUSION_BUFFER", stop + 1, stop + 2),
    ):
        events += [begin(pid, name, first) for pid, _ in tensors] + [end(pid, last) for pid, _ in tensors]
    return events + [end(pid, stop + 3, dtype="float32", shape=shape) for pid, shape in tensors]


TWO = [(1, "[3, 3, 8]"), (2, "[8]")]
ALONE = [(3, "[1000, 10]")]


def test_tensors_that_are_reduced_together_are_one_message(tmp_path):
    steps = [*fused(TWO, 100, 150), *fused(ALONE, 200, 500), *fused(TWO, 1100, 1130)]
    path = tmp_path / "timeline.json"
    path.write_text(json.dumps([named(1, "a"), named(2, "b"), named(3, "c"), *steps]))
    assert fused_messages(path) == [
        (4 * (72 + 8), pytest.approx(50e-6)),
        (4 * 10_000, pytest.approx(300e-6)),
        (4 * (72 + 8), pytest.approx(30e-6)),
    ]


def test_a_timeline_that_was_not_closed_can_be_read(tmp_path):
    """Horovod writes an event a line, each with a comma after it, and the bracket when it stops."""
    path = tmp_path / "timeline.json"
    path.write_text("[\n" + "".join(json.dumps(event) + ",\n" for event in fused(ALONE, 10, 20)))
    assert [message.bytes for message in fused_messages(path)] == [40_000]


def test_another_file_is_refused(tmp_path):
    path = tmp_path / "timeline.json"
    path.write_text("not a Horovod timeline")
    with pytest.raises(ValueError, match="not a Horovod timeline"):
        fused_messages(path)
