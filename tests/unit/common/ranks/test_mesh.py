"""The position of ranks in the mesh of data × spatial parallelism."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlhpc.common.ranks.mesh import Mesh, mesh_of
from mlhpc.errors import UserError

sizes = st.integers(1, 40)


@given(sizes, sizes)
def test_every_coordinate_belongs_to_exactly_one_rank(data_size, spatial_size):
    size = data_size * spatial_size
    meshes = [mesh_of(rank, size, spatial_size) for rank in range(size)]
    assert {(m.data_size, m.spatial_size) for m in meshes} == {(data_size, spatial_size)}
    assert sorted((m.data_rank, m.spatial_rank) for m in meshes) == [
        (data, spatial) for data in range(data_size) for spatial in range(spatial_size)
    ]


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 8))
def test_a_spatial_group_stays_on_one_node(nodes, groups_per_node, spatial_size):
    """Launchers number the ranks of a node consecutively."""
    per_node = groups_per_node * spatial_size
    nodes_of_group: dict[int, set[int]] = {}
    for rank in range(nodes * per_node):
        group = mesh_of(rank, nodes * per_node, spatial_size).data_rank
        nodes_of_group.setdefault(group, set()).add(rank // per_node)
    assert all(len(used) == 1 for used in nodes_of_group.values())


@given(sizes, st.data())
def test_without_spatial_parallelism_the_data_rank_is_the_rank(size, data):
    rank = data.draw(st.integers(0, size - 1))
    assert mesh_of(rank, size) == Mesh(rank, size, 0, 1)


@pytest.mark.parametrize(("size", "spatial_size"), [(6, 4), (1, 2), (4, 0), (4, -2)])
def test_ranks_that_do_not_fill_the_groups_are_refused(size, spatial_size):
    with pytest.raises(UserError, match=f"cannot form spatial groups of {spatial_size}; start a multiple of"):
        mesh_of(0, size, spatial_size)
