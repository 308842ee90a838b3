"""Counters of three tools, from files of known content, beside the model of a small network."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlhpc.common.timing.profile import Profile, Work
from mlhpc.errors import UserError
from mlhpc.perf.accelerator.roofline import Ceilings
from mlhpc.perf.networks.builder import Builder
from mlhpc.perf.profile.counters import Kernel, counters_table, of_step, read
from mlhpc.perf.profile.layers import by_layer

FILES = Path(__file__).parents[3] / "data/counters"
CONVOLUTION = "conv<float,4>(floatconst*,int)"


def network():
    net = Builder("small", (8, 8, 2))
    x = net.convolution("first", net.input, 4, 3)
    x = net.convolution("second", x, 4, 1)
    net.cross_entropy(net.dense("dense", net.mean_pool("mean", x), 10), labels=1)
    return net.network()


def profiled(*work, gpu=True):
    """A step of two samples in a second; ``work``: part, module, kernel, seconds, calls."""
    modules = ("block.a", "block.b", "head")
    return Profile("a device", 2, 1, 1.0, modules, tuple(Work(*item) for item in work), gpu=gpu)


GPU_STEP = profiled(
    ("forward", "block.a", "void conv<float, 4>(float const *, int)", 0.25, 3.0),
    ("forward", "block.b", "add", 0.125, 1.0),
    ("backward", "block.b", "add", 0.125, 1.0),
    ("optimizer", "", "uncounted", 0.1, 1.0),
)


def test_perf_counts_flops_by_width_and_bytes_by_unit():
    counters = read(FILES / "perf_stat.json", steps=2)
    flops, moved = 1e6 + 16 * 5e5, 3 * 2**20 + 16384 * 64
    assert (counters.source, counters.kernels) == ("perf stat", {"": Kernel(flops, moved)})
    step = profiled(("forward", "block.a", "aten::conv2d", 0.5, 1.0), gpu=False)
    (row,) = of_step(counters, step, network(), "float32")
    assert (row.layer, row.flops, row.bytes) == ("all", flops / 2, moved / 2)
    (layer,) = by_layer(step, network(), "float32")
    assert (row.model_flops, row.model_bytes) == (layer.product_flops + layer.other_flops, layer.bytes)


def test_counts_of_processes_are_not_those_of_one_of_two_ranks():
    with pytest.raises(UserError, match="perf stat does not state how many of the 2 ranks it covers"):
        read(FILES / "perf_stat.json", steps=2, ranks=2)
    assert read(FILES / "ncu.csv", steps=None, ranks=2).kernels, "of each launch, on whichever rank"


@pytest.mark.parametrize(
    ("file", "convolution", "add"),
    [
        # ncu: tensor operations, additions, and FMAs twice; decimal prefixes and separators of thousands.
        ("ncu.csv", Kernel(32768.0 + 100 + 400, 5000.0), Kernel(512.0, 1000.0)),
        ("rocprofv3_flops.csv", Kernel(64 * 512 + 10 * 128, 4.5 * 1024), Kernel(8 * 64.0, 1024.0)),
    ],
)
def test_launches_of_kernels_are_added_to_a_step_and_its_layers(file, convolution, add):
    counters = read(FILES / file, steps=None)
    assert counters.kernels[CONVOLUTION] == convolution and counters.kernels["add"] == add
    whole, first = of_step(counters, GPU_STEP, network(), "float32")
    # add is of two layers, so neither has a row; a kernel that was not counted has none either.
    assert (first.layer, first.direction, first.seconds) == ("first", "forward", 0.25)
    assert (first.flops, first.bytes) == (3 * convolution.flops, 3 * convolution.bytes)
    assert whole.flops == pytest.approx(3 * convolution.flops + 2 * add.flops)
    assert whole.bytes == pytest.approx(3 * convolution.bytes + 2 * add.bytes)


def test_recorded_launches_on_an_h200():
    """The projection to query, key and value of Qwen3-30B-A3B for 32 sequences: 2048 features to 32 + 2 · 4 heads
    of 128. Its tensor cores did as many operations as that product has."""
    kernels = read(FILES / "ncu_h200.csv", None).kernels
    assert kernels["nvjet_tst_64x32_64x16_4x1_v_bz_TNT"] == Kernel(2.0 * 32 * 2048 * 40 * 128, None)
    assert next(iter(kernels.values())).flops == 111616 + 2 * 73728 + 131072


def test_recorded_bytes_of_memory():
    """A product of 2048² matrices, of which each is moved at least once; the program's own lines are before it."""
    (product,) = read(FILES / "ncu_rtx5070.csv", None).kernels.values()
    assert product == Kernel(None, 53261312.0 + 3377920.0)
    assert product.bytes > 3 * 2048**2 * 4
    assert read(FILES / "perf_stat_memory.json", 1).kernels == {"": Kernel(None, 64.0 * (1117309 + 1004052))}
    kernels = read(FILES / "rocprofv3_fetch.csv", None).kernels
    assert kernels["fleet_decode_step"] == Kernel(None, 22660092.0625 * 1024)
    assert kernels["__amd_rocclr_fillBufferAligned"].bytes == (14.5 + 15.5 + 14.5 + 5.4375) / 4 * 1024


def test_what_two_events_count_counts_once(tmp_path):
    tensor, fma = "sm__ops_path_tensor", "__sass_thread_inst_executed_op_ffma_pred_on.sum"
    parts = [f"{tensor}_src_fp16{part}.sum" for part in ("", "_sparsity_off", "_dst_fp32")]
    events = [*parts, f"{tensor}_op_hgmma_src_fp16_dst_fp32_sparsity_off.sum", f"sm{fma}", f"smsp{fma}"]
    head = ["ID", "Kernel Name", *events]
    rows = [head, [""] * 8, ["0", "gemm", *["1000"] * 4, "10", "10"]]
    (tmp_path / "ncu.csv").write_text("".join(f"{','.join(row)}\n" for row in rows))
    assert read(tmp_path / "ncu.csv", None).kernels == {"gemm": Kernel(1020.0, None)}
    parts = [("4_flops", 100), ("128b_packed_single", 60), ("256b_packed_double", 40), ("scalar", 7)]
    lines = [{"event": f"FP_ARITH_INST_RETIRED.{e}", "counter-value": str(n), "unit": ""} for e, n in parts]
    (tmp_path / "perf.json").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert read(tmp_path / "perf.json", 1).kernels == {"": Kernel(407.0, None)}


def test_events_that_count_some_operations_both_are_refused(tmp_path):
    """Neither includes the other, so that no sum of them is the number of operations."""
    events = [f"sm__ops_path_tensor_src_fp16{part}.sum" for part in ("_dst_fp32", "_sparsity_off")]
    (tmp_path / "ncu.csv").write_text(f"ID,Kernel Name,{','.join(events)}\n,,,\n0,gemm,1000,900\n")
    with pytest.raises(UserError, match=r"_dst_fp32.sum and .*_sparsity_off.sum count some operations both"):
        read(tmp_path / "ncu.csv", None)


@pytest.mark.parametrize(
    ("counts", "counted"),
    [
        ({"": "1000", "_read": "400"}, 1000.0),
        ({"": "1000", "_op_read": "400", "_op_write": "600"}, 1000.0),
        ({"_read": "400", "_write": "600"}, 1000.0),
        ({"": "n/a", "_read": "400", "_write": "600"}, 1000.0),
    ],
)
def test_bytes_are_counted_once_and_as_a_whole(tmp_path, counts, counted):
    events = ",".join(f"dram__bytes{part}.sum" for part in counts)
    text = f"ID,Kernel Name,{events}\n,{',byte' * len(counts)}\n0,add,{','.join(counts.values())}\n"
    (tmp_path / "ncu.csv").write_text(text)
    assert read(tmp_path / "ncu.csv", None).kernels == {"add": Kernel(None, counted)}


def test_a_launch_without_a_figure_is_not_one_of_zero(tmp_path):
    text = "ID,Kernel Name,smsp__sass_thread_inst_executed_op_fadd_pred_on.sum,dram__bytes.sum\n,,inst,byte\n"
    (tmp_path / "ncu.csv").write_text(f"{text}0,add,100,10\n1,add,n/a,20\n")
    assert read(tmp_path / "ncu.csv", None).kernels == {"add": Kernel(100.0, 15.0)}


def test_tensor_instructions_of_volta_are_512_flops(tmp_path):
    head = '"ID","Kernel Name","CC","sm__inst_executed_pipe_tensor.sum"\n"","","","inst"\n'
    for capability, flops in (("7.0", 5 * 512.0), ("8.0", None)):
        (tmp_path / "volta.csv").write_text(head + f'"0","gemm","{capability}","5"\n')
        if flops:
            assert read(tmp_path / "volta.csv", None).kernels == {"gemm": Kernel(flops, None)}
        else:
            with pytest.raises(UserError, match="counted neither FLOPs nor bytes"):
                read(tmp_path / "volta.csv", None)


def test_the_share_of_the_roofline_is_that_of_the_counted_intensity():
    whole, first = of_step(read(FILES / "rocprofv3_flops.csv", None), GPU_STEP, network(), "float32")
    peaks = Ceilings("toy", tensor=1e6, float32=1e5, bandwidth=1e4)
    allowed = min(1e6, first.flops / first.bytes * 1e4)
    assert first.of_roofline(peaks) == pytest.approx(first.flops / 0.25 / allowed)
    assert first._replace(bytes=None).of_roofline(peaks) is None
    assert len(counters_table([whole, first], peaks).rows) == 2


@pytest.mark.parametrize("file", ["perf_stat_none.json", "rocprofv3.csv"])
def test_a_recorded_file_without_flops_and_bytes_says_so(file):
    with pytest.raises(UserError, match=f"{file}: .* counted neither FLOPs nor bytes of memory"):
        read(FILES / file, steps=1)


def test_perf_needs_the_number_of_steps_and_a_step_on_the_host():
    with pytest.raises(UserError, match="add --counted-steps"):
        read(FILES / "perf_stat.json", steps=None)
    with pytest.raises(UserError, match="measures the host, but the step runs on a device"):
        of_step(read(FILES / "perf_stat.json", 1), GPU_STEP, network(), "float32")


def test_counters_of_another_step_are_refused():
    other = profiled(("forward", "block.a", "another", 0.25, 3.0))
    with pytest.raises(UserError, match=r"none of its 3 kernels is in the profiled step"):
        of_step(read(FILES / "ncu.csv", None), other, network(), "float32")


def test_decimal_commas_are_refused(tmp_path):
    """As some languages have them: 9,00 is not 900."""
    text = (FILES / "ncu_rtx5070.csv").read_text().replace("53,261,312", "53,26")
    (tmp_path / "ncu.csv").write_text(text)
    with pytest.raises(UserError, match=r"\(53,26 byte of dram__bytes_op_read.sum\)"):
        read(tmp_path / "ncu.csv", None)


@pytest.mark.parametrize("value", ["-1", "nan", "1e999", "3805,72", "[" * 9999, '{"a": 1}'])
def test_counts_that_are_none_are_refused(tmp_path, value):
    line = json.loads((FILES / "perf_stat.json").read_text().splitlines()[2])
    path = tmp_path / "counts.json"
    path.write_text(json.dumps(line | {"counter-value": value}))
    with pytest.raises(UserError, match=r"counts.json: not valid perf stat output"):
        read(path, 1)


@given(st.sampled_from(["perf_stat.json", "ncu.csv", "ncu_h200.csv", "rocprofv3_flops.csv"]), st.data())
def test_damaged_files_are_read_or_refused_in_one_line(tmp_path_factory, file, data):
    content = (FILES / file).read_bytes()
    at = data.draw(st.integers(0, len(content) - 1))
    damage = data.draw(st.binary(max_size=4))
    path = tmp_path_factory.getbasetemp() / "damaged"
    path.write_bytes(content[:at] + damage + content[at + data.draw(st.integers(0, 2000)) :])
    try:
        counters = read(path, 1)
    except UserError as error:
        assert str(error).startswith(str(path)) and "\n" not in str(error)
    else:
        assert counters.kernels


@pytest.mark.parametrize("content", [b"", b"\0" * 99, b"perf stat, text\n", b"# \xff\n\xfe", b"{", b"[1]"])
def test_other_files_are_refused(tmp_path, content):
    (tmp_path / "other").write_bytes(content)
    with pytest.raises(UserError, match=r"other: not "):
        read(tmp_path / "other", 1)
    with pytest.raises(UserError, match=r"missing cannot be read \(No such file"):
        read(tmp_path / "missing", 1)
