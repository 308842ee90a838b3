"""Which node holds which file, and which rank copies it."""

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mlhpc.common.data.manifest import File
from mlhpc.common.data.partition import Mode, balance, files_of_node
from mlhpc.common.staging import stage as module
from mlhpc.common.staging.ring import Share
from mlhpc.common.staging.target import StagingGroup


@given(
    st.lists(st.integers(0, 10**7), max_size=300),
    st.one_of(st.integers(1, 1024), st.sampled_from([1, 2, 3, 1024])),
)
def test_bins_differ_by_one_file_and_by_at_most_the_largest(sizes: list[int], bins: int) -> None:
    bin_of = balance(sizes, bins)
    counts = np.bincount(bin_of, minlength=bins)
    sums = np.bincount(bin_of, weights=sizes, minlength=bins) if sizes else np.zeros(bins)
    assert len(counts) == bins
    assert counts.max() - counts.min() <= 1
    assert sums.max() - sums.min() <= max(sizes, default=0)


def groups_of(nodes: int, local_size: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(range(n * local_size, (n + 1) * local_size)) for n in range(nodes))


def shares_of(
    files: list[File],
    node: int,
    groups: tuple[tuple[int, ...], ...],
    mode: Mode,
    read_once: bool = False,
) -> list[Share]:
    group = StagingGroup(groups[node], False, groups)
    held = files_of_node(files, node, len(groups), mode)
    return [module._share_of_rank(files, held, rank, group, mode, read_once) for rank in group.members]


def files_of(folders: dict[str, list[int]]) -> list[File]:
    return sorted(
        File(f"{name}/{i:04d}" if name else f"{i:04d}", size, i)
        for name, sizes in folders.items()
        for i, size in enumerate(sizes)
    )


@given(
    st.dictionaries(
        st.sampled_from(["", "train", "train/deep", "validation", "test"]),
        st.lists(st.sampled_from([0, 1, 10, 1000, 1001, 10**6]), max_size=40),
        max_size=5,
    ),
    st.one_of(st.integers(1, 12), st.sampled_from([64, 1023, 1024])),
    st.integers(1, 8),
    st.sampled_from(["replicate", "shard"]),
)
def test_every_file_goes_exactly_once_where_it_should(
    folders: dict[str, list[int]], nodes: int, local_size: int, mode: Mode
) -> None:
    files = files_of(folders)
    outside = {file for file in files if "/" not in file.path}
    everywhere: Counter[File] = Counter()
    held: dict[str, list[int]] = {}
    groups = groups_of(nodes, local_size)
    for node in range(nodes):
        shares = [share.alone for share in shares_of(files, node, groups, mode)]
        on_node = Counter(file for share in shares for file in share)
        assert set(on_node.values()) <= {1}
        assert sorted(on_node) == files_of_node(files, node, nodes, mode)
        loads = [sum(file.size for file in share) for share in shares]
        assert max(loads) - min(loads) <= max((file.size for file in on_node), default=0)
        everywhere += on_node
        for folder in {file.path.partition("/")[0] for file in set(files) - outside}:
            held.setdefault(folder, []).append(sum(f.path.startswith(f"{folder}/") for f in on_node))
    for file in files:
        assert everywhere[file] == (nodes if mode == "replicate" or file in outside else 1)
    if mode == "shard":
        assert all(max(counts) - min(counts) <= 1 for counts in held.values())


@given(
    st.lists(st.sampled_from([0, 1, 1000, 10**6]), max_size=30),
    st.integers(2, 6),
    st.integers(1, 4),
    st.sampled_from(["replicate", "shard"]),
)
def test_read_once_reads_what_all_nodes_hold_on_one_of_them(
    sizes: list[int], nodes: int, local_size: int, mode: Mode
) -> None:
    files = files_of({"": sizes, "train": sizes})
    groups = groups_of(nodes, local_size)
    read: Counter[File] = Counter()
    for node in range(nodes):
        shares = shares_of(files, node, groups, mode, read_once=True)
        on_node = Counter(file for share in shares for file in (*share.alone, *share.passed))
        assert set(on_node.values()) <= {1}
        assert sorted(on_node) == files_of_node(files, node, nodes, mode)
        for share in shares:
            read.update(share.alone)
            read.update(file for file, by in zip(share.passed, share.readers, strict=True) if by == node)
    assert sorted(read.elements()) == sorted(files)  # each once, by all nodes together


def test_a_hundred_thousand_files_are_planned_for_1024_nodes() -> None:
    rng = np.random.default_rng(0)
    sizes = rng.integers(3_000_000, 4_000_000, 100_000)
    files = [File(f"train/{i:07d}", int(size), i) for i, size in enumerate(sizes)]
    groups = groups_of(1024, 1)
    shares = [shares_of(files, node, groups, "shard")[0].alone for node in (0, 511, 1023)]
    counts = [len(share) for share in shares]
    assert set(counts) <= {97, 98}
    assert len({file for share in shares for file in share}) == sum(counts)
