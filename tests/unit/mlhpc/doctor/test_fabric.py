"""The transport that NCCL reports in its log, and what the doctor makes of it."""

import pytest

from mlhpc.doctor.fabric import Transport, fabric_of_node, judged, transport_of

# Lines that others have recorded, with where: the prefix of each has host, process, thread and device.
RECORDED = {
    # https://github.com/NVIDIA/nccl-tests/issues/185: InfiniBand's verbs over Ethernet.
    "IB": """\
dgxh100-4:460770:460770 [0] NCCL INFO Bootstrap : Using enp220s0np0:11.1.128.136<0>
dgxh100-4:460770:460842 [0] NCCL INFO Using non-device net plugin version 0
dgxh100-4:460770:460842 [0] NCCL INFO Using network IB
""",
    # https://github.com/NVIDIA/nccl/issues/707.
    "GDR": "10-90-43-152:120890:121560 [0] NCCL INFO Channel 01 : 2[c7000] -> 0[87000] [receive] "
    "via NET/IB/5/GDRDMA\n",
    # https://github.com/NVIDIA/nccl-tests/issues/188: sockets, over an interface of InfiniBand.
    "Socket": """\
user:169131:169131 [6] NCCL INFO NET/Plugin : No plugin found, using internal implementation
user:852750:852802 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.
user:852750:852802 [0] NCCL INFO NET/Socket : Using [0]ibs85f0:192.168.1.14<0> [1]ib0:192.168.1.15<0>
user:852750:852802 [0] NCCL INFO Using network Socket
""",
    # https://github.com/aws/aws-ofi-nccl/issues/161.
    "EFA": """\
algo-1:462:462 [0] NCCL INFO NET/OFI Using aws-ofi-nccl 1.3.0aws
algo-1:462:462 [0] NCCL INFO NET/OFI Selected Provider is efa
algo-1:462:462 [0] NCCL INFO Using network AWS Libfabric
""",
    # https://github.com/aws/aws-ofi-nccl/issues/715.
    "EFA, GDR": "algo-1:18059:20782 [2] NCCL INFO Channel 04/1 : 15[7] -> 2[2] [receive] "
    "via NET/AWS Libfabric/1/GDRDMA/Shared\n",
    # https://github.com/determined-ai/environments/pull/169.
    "Slingshot": "nid000019:51404:52019 [0] NCCL INFO NET/OFI Selected Provider is cxi\n",
}  # fmt: skip


def test_the_transport_is_the_one_that_nccl_reports():
    assert transport_of(RECORDED["IB"]) == Transport("IB", False)
    assert transport_of(RECORDED["IB"] + RECORDED["GDR"]) == Transport("IB", True)
    assert transport_of(RECORDED["Socket"]) == Transport("Socket", False)
    assert transport_of(RECORDED["EFA"] + RECORDED["EFA, GDR"]) == Transport("AWS Libfabric (efa)", True)
    network = "nid000019:51404:52019 [0] NCCL INFO Using network AWS Libfabric\n"
    assert transport_of(RECORDED["Slingshot"] + network) == Transport("AWS Libfabric (cxi)", False)
    assert transport_of("") == Transport("", False), "gloo writes no log"


TCP = RECORDED["EFA"].replace("is efa", "is tcp;ofi_rxm")
"""The plugin for libfabric without the provider of the fabric."""


@pytest.mark.parametrize(
    ("log", "fabric", "status"),
    [("IB", "InfiniBand or RoCE", "pass"), ("Socket", "InfiniBand or RoCE", "fail"), ("Socket", "", "pass"),
     ("EFA", "EFA", "pass"), (TCP, "Slingshot", "fail"), (TCP, "", "pass")],
)  # fmt: skip
def test_sockets_fail_only_where_there_is_a_fabric(log, fabric, status):
    own = transport_of(RECORDED.get(log, log))
    result = judged("1 GB/s at 1 MB", [(Transport("", False), ""), (own, fabric)])
    assert result.status == status and own.network in result.detail and "1 GB/s" in result.detail
    assert (fabric in result.remedy and "NCCL_NET" in result.remedy) == (status == "fail")


def test_one_node_with_sockets_among_many_fails():
    ranks = [(Transport("IB", True), "InfiniBand or RoCE")] * 99 + [(Transport("Socket", False), "")]
    result = judged("", ranks)
    assert result.status == "fail" and "IB and Socket, GPUDirect RDMA" in result.detail


@pytest.mark.parametrize(
    ("devices", "fabric"),
    [([], ""), (["infiniband/mlx5_0"], "InfiniBand or RoCE"), (["infiniband/efa_0"], "EFA"),
     (["infiniband/rdmap16s27"], "EFA"), (["cxi/cxi0", "infiniband/mlx5_0"], "Slingshot")],
)  # fmt: skip
def test_the_fabric_is_known_by_its_devices(tmp_path, devices, fabric):
    for device in devices:
        (tmp_path / "sys/class" / device).mkdir(parents=True)
    assert fabric_of_node(tmp_path) == fabric
