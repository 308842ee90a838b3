"""Divides the volume of a sample into slabs for the ranks of a spatial group."""

from dataclasses import dataclass
from math import prod

from mlhpc.errors import UserError

Sides = tuple[int, int, int]


@dataclass(frozen=True)
class SlabPlan:
    """Slabs for ``parts`` ranks along each axis. ``bounds``: for each axis, the first plane of every slab and the
    end, at full resolution. ``split_levels``: number of halvings before the slabs are gathered; until then every
    slab has an even number of planes, so that pooling by two never crosses a boundary."""

    parts: Sides
    bounds: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    split_levels: int

    @property
    def size(self) -> int:
        """Number of ranks in a spatial group."""
        return prod(self.parts)

    def coordinates(self, spatial_rank: int) -> Sides:
        """The coordinates of a rank in the group; the last axis varies fastest."""
        _, rows, columns = self.parts
        plane, column = divmod(spatial_rank, columns)
        return plane // rows, plane % rows, column

    def slab(self, spatial_rank: int, level: int = 0) -> tuple[slice, slice, slice]:
        """The planes of a rank along each axis, after ``level`` halvings."""
        places = zip(self.bounds, self.coordinates(spatial_rank), strict=True)
        first, second, third = (slice(ends[i] >> level, ends[i + 1] >> level) for ends, i in places)
        return first, second, third

    def shape(self, spatial_rank: int, level: int = 0) -> Sides:
        """The sides of a rank's slab, after ``level`` halvings."""
        first, second, third = (part.stop - part.start for part in self.slab(spatial_rank, level))
        return first, second, third

    def neighbour(self, spatial_rank: int, axis: int, step: int) -> int | None:
        """The next (``step`` 1) or previous (-1) rank along ``axis``; None if the slab is at the end of the
        volume."""
        place = list(self.coordinates(spatial_rank))
        place[axis] += step
        if not 0 <= place[axis] < self.parts[axis]:
            return None
        return (place[0] * self.parts[1] + place[1]) * self.parts[2] + place[2]


def plan_slabs(sides: Sides, parts: Sides, levels: int, kernel: int) -> SlabPlan:
    """Divide a volume of ``sides`` planes for a network that convolves with ``kernel`` taps and then halves the
    volume, ``levels`` times.

    Slabs are equal if possible, and stay separate as long as each has an even number of planes. Raises UserError
    if a slab would be thinner than the halo of its neighbours.
    """
    cut = [_cut(side, number, levels) for side, number in zip(sides, parts, strict=True)]
    split_levels = min(depth for _, depth in cut)
    first, second, third = (bounds for bounds, _ in cut)
    plan = SlabPlan(parts, (first, second, third), split_levels)
    thinnest = (
        min(
            (ends[i + 1] - ends[i]) >> max(split_levels - 1, 0)
            for ends, number in zip(plan.bounds, parts, strict=True)
            if number > 1
            for i in range(number)
        )
        if plan.size > 1
        else kernel
    )
    if thinnest < kernel // 2 or not split_levels:
        raise UserError(f"training.spatial={list(parts)}: slabs are thinner than a halo; use fewer parts")
    return plan


def _cut(side: int, parts: int, levels: int) -> tuple[tuple[int, ...], int]:
    """The bounds of the slabs of one axis, and the number of halvings for which they remain separate."""
    for equal in (True, False):
        for depth in range(levels, 0, -1):
            units = side >> depth
            if units >= parts and side % (1 << depth) == 0 and not (equal and units % parts):
                return tuple((units * i // parts) << depth for i in range(parts + 1)), depth
    return tuple(side * i // parts for i in range(parts + 1)), 0
