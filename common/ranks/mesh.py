"""The position of a rank in the mesh of data × spatial parallelism.

The ranks of a spatial group work on one sample, each on a part of the volume; the global batch is divided among
the groups. The ranks of a group are adjacent, so they are on one node if the group size divides the number of
ranks per node. This matters because they exchange halos in every layer, but gradients only once per step.
"""

from dataclasses import dataclass

from mlhpc.errors import UserError
from mlhpc.quantities import count


@dataclass(frozen=True)
class Mesh:
    """One rank's coordinates: its group is number ``data_rank`` of ``data_size`` groups, and it is rank
    ``spatial_rank`` of ``spatial_size`` in that group."""

    data_rank: int
    data_size: int
    spatial_rank: int = 0
    spatial_size: int = 1


def mesh_of(rank: int, size: int, spatial_size: int = 1) -> Mesh:
    """The coordinates of ``rank`` if ``size`` ranks form groups of ``spatial_size`` adjacent ranks.

    Raises UserError if ``size`` is not a multiple of ``spatial_size``.
    """
    if spatial_size < 1 or size % spatial_size:
        raise UserError(
            f"{count(size, 'rank')} cannot form spatial groups of {spatial_size}; start a multiple of "
            f"{max(spatial_size, 1)} ranks"
        )
    return Mesh(rank // spatial_size, size // spatial_size, rank % spatial_size, spatial_size)
