"""Determines which cells belong to a storm, by a heuristic that uses only the fields, as for the published masks.

Cyclones: the criteria and default thresholds of TECA's detector (Prabhat et al. 2012, Procedia Computer Science 9,
866; teca_tc_candidates in its source), then the extent of the wind. Rivers: thresholds for water vapour (Ralph et
al. 2004, Monthly Weather Review 132, 1721) and for its transport (Rutz et al. 2014, ibid. 142, 905), then the
geometry of Guan and Waliser 2015 (JGR Atmospheres 120, 12514). A planted storm that is too weak is not marked, but
weather that happens to look like a river is.
"""

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from mlhpc.deepcam.data.hdf5 import CHANNELS
from mlhpc.deepcam.synthetic import sphere
from mlhpc.deepcam.synthetic.sphere import RADIUS, Field, Grid

CLASSES = ("background", "tropical cyclone", "atmospheric river")
BACKGROUND, CYCLONE, RIVER = range(3)

MIN_VORTICITY = 1.6e-4
"""Minimum vorticity of a cyclone's centre at 850 hPa, 1/s, on grids of the published spacing."""
MIN_RISE = 400.0
"""Minimum rise of sea-level pressure from the centre to CORE_REACH, Pa."""
MIN_WARM_CORE = 0.8
"""Minimum by which the mean of T200 and T500 is higher in the centre than around it, K."""
MIN_WARMER_THAN_SIDES = 0.0
"""Minimum by which it (the centre's mean of T200 and T500) is higher than on each of the four sides, K."""
MIN_WIND = 17.0
"""Minimum of a cyclone's largest mean tangential wind at 850 hPa, and the wind at the edge of its mask, m/s (a
gale)."""
WINDOW = np.deg2rad(7.75)
"""Angle of the window in which there can be only one cyclone."""
CORE_REACH = np.deg2rad(5.0)
CORE_RADIUS = np.deg2rad(2.0)
"""Maximum angular distance of the pressure minimum from the vorticity maximum."""
TROPICS = np.deg2rad(40.0)
"""Cyclones are searched up to this latitude."""

MIN_VAPOUR = 20.0
"""Minimum column water vapour of a river, kg/m² (Ralph et al. 2004: 2 cm)."""
MIN_ANOMALY = 1.25
"""Minimum ratio of a river's water vapour to the mean at its latitude."""
MIN_TRANSPORT = 250.0
"""Minimum transport: water vapour times the wind at 850 hPa, kg/m/s (Rutz et al. 2014)."""
MIN_POLEWARD = 50.0
"""Minimum poleward component of the transport, averaged over the river, kg/m/s."""
MIN_LENGTH = 2.0e6
"""Minimum length of a river, metres."""
MIN_ELONGATION = 2.0
"""Minimum ratio of length to width, where width is area divided by length."""
RIVER_LATITUDES = np.deg2rad((18.0, 65.0))

_SIDES = ((1, 0), (-1, 0), (0, 1), (0, -1))
_COLUMN = {name: number for number, name in enumerate(CHANNELS)}


def label(channels: Field, storm_size: float = 1.0) -> npt.NDArray[np.uint8]:
    """The mask ``[rows, columns]`` of a sample ``[rows, columns, 16]``: 0 background, 1 cyclone, 2 river.

    ``storm_size``: the simulation's setting, to which the length scales of the search for cyclones are
    proportional.
    """
    grid = sphere.grid(*channels.shape[:2])
    mask = np.where(rivers(grid, channels), RIVER, BACKGROUND).astype(np.uint8)
    for row, column, radius in cyclones(grid, channels, storm_size):
        rows = grid.reach(float(grid.latitude[row, 0]), radius)
        mask[rows][_distance(grid, row, column, rows) <= radius] = CYCLONE
    return mask


def cyclones(grid: Grid, channels: Field, storm_size: float = 1.0) -> list[tuple[int, int, float]]:
    """The row and column of each cyclone's pressure minimum, and the radius of its gales in metres, sorted by
    vorticity with the strongest first. ``channels`` are [rows, columns, 16]."""
    tropics = slice(*np.searchsorted(grid.latitude[:, 0], (-TROPICS, TROPICS)))
    u, v, pressure = (channels[..., _COLUMN[name]] for name in ("U850", "V850", "PSL"))
    core = channels[..., _COLUMN["T200"]] + channels[..., _COLUMN["T500"]]
    core *= 0.5
    spin = grid.vorticity(u, v) * np.sign(grid.latitude)
    # On a coarse grid, a vortex appears wider and has less vorticity (Walsh et al. 2007).
    coarse = max(storm_size, grid.spacing / 50e3, 1.0)
    spots, number = ndimage.label(spin[tropics] > MIN_VORTICITY / coarse)
    peaks = ndimage.maximum_position(spin[tropics], spots, range(1, number + 1))
    peaks = [(row + tropics.start, column) for row, column in peaks]
    reach = max(CORE_REACH * storm_size, 3 * grid.spacing / RADIUS) * RADIUS
    near = max(CORE_RADIUS * storm_size, 1.5 * grid.spacing / RADIUS) * RADIUS
    window = max(WINDOW * storm_size, 4 * grid.spacing / RADIUS) * RADIUS / 2
    centres: list[tuple[int, int, float]] = []
    for row, column in sorted(peaks, key=lambda peak: -spin[peak]):
        rows = grid.reach(float(grid.latitude[row, 0]), reach)
        distance = _distance(grid, row, column, rows)
        if any(distance[r - rows.start, c] < window for r, c, _ in centres if rows.start <= r < rows.stop):
            continue
        inside = np.where(distance <= near, pressure[rows], np.inf)
        low = np.unravel_index(np.argmin(inside), inside.shape)
        row, column = int(low[0]) + rows.start, int(low[1])
        rows = grid.reach(float(grid.latitude[row, 0]), reach)
        distance = _distance(grid, row, column, rows)
        around = (distance > 0.8 * reach) & (distance <= reach)
        middle = distance <= max(0.2 * reach, 0.75 * grid.spacing)
        if pressure[rows][around].mean() - pressure[row, column] < MIN_RISE:
            continue
        # A cyclone is warmer than the mean around it and, unlike a low on a front, than the air on every side.
        east, north = grid.offsets(float(grid.latitude[row, 0]), float(grid.longitude[0, column]), rows)
        sides = [core[rows][around & (east * x + north * y > 0.7 * distance)] for x, y in _SIDES]
        warmth = core[rows][middle].max()
        if warmth - core[rows][around].mean() < MIN_WARM_CORE or any(
            warmth - side.mean() < MIN_WARMER_THAN_SIDES for side in sides
        ):
            continue
        if radius := _gales(grid, row, column, u, v, 1.5 * reach):
            centres.append((row, column, radius))
    return centres


def rivers(grid: Grid, channels: Field) -> npt.NDArray[np.bool_]:
    """A mask of the cells that belong to an atmospheric river, ``[rows, columns]``. ``channels`` are
    [rows, columns, 16]."""
    vapour, u, v = (channels[..., _COLUMN[name]] for name in ("TMQ", "U850", "V850"))
    size = np.abs(grid.latitude)
    poleward = vapour * v * np.sign(grid.latitude)
    wet = (
        (vapour >= np.maximum(MIN_VAPOUR, MIN_ANOMALY * vapour.mean(axis=1, keepdims=True)))
        & (vapour * np.hypot(u, v) >= MIN_TRANSPORT)
        & (poleward > 0)
        & (size >= RIVER_LATITUDES[0])
        & (size <= RIVER_LATITUDES[1])
    )
    parts, number = ndimage.label(wet, np.ones((3, 3)))
    _join(parts)
    area = grid.weight * np.float32(4 * np.pi * RADIUS**2 / parts.size)
    areas = np.bincount(parts.ravel(), np.broadcast_to(area, parts.shape).ravel(), number + 1)
    chosen = np.zeros(number + 1, np.bool_)
    for part, box in enumerate(ndimage.find_objects(parts), start=1):
        # Most parts are specks, too small even for a river that is one cell wide; joined parts have no box.
        if box is None or areas[part] < 0.2 * MIN_LENGTH * min(grid.spacing, 100e3):
            continue
        rows, columns = np.nonzero(parts[box] == part)
        rows += box[0].start
        columns += box[1].start
        length = _length(grid, rows, columns)
        chosen[part] = (
            length >= MIN_LENGTH
            and length**2 / areas[part] >= MIN_ELONGATION
            and poleward[rows, columns].mean() >= MIN_POLEWARD
        )
    cells: npt.NDArray[np.bool_] = chosen[parts]
    return cells


def _distance(grid: Grid, row: int, column: int, rows: slice) -> Field:
    east, north = grid.offsets(float(grid.latitude[row, 0]), float(grid.longitude[0, column]), rows)
    return np.hypot(east, north)


def _gales(grid: Grid, row: int, column: int, u: Field, v: Field, farthest: float) -> float:
    """The radius, in metres, up to which the tangential wind, averaged around the centre, reaches MIN_WIND.
    Returns 0 if the wind does not reach MIN_WIND within ``farthest`` metres, or if it exceeds MIN_WIND all the way
    to ``farthest``, as in an extratropical low. ``u`` and ``v`` are [rows, columns]."""
    latitude = float(grid.latitude[row, 0])
    rows = grid.reach(latitude, farthest)
    east, north = grid.offsets(latitude, float(grid.longitude[0, column]), rows)
    distance = np.hypot(east, north)
    near = distance < farthest
    east, north, distance = east[near], north[near], distance[near]
    tangential = np.sign(latitude) * (v[rows][near] * east - u[rows][near] * north) / np.maximum(distance, 1)
    # Rings are one cell wide, and the first one around the centre half as wide, so that none is empty.
    ring = (distance / grid.spacing + 0.5).astype(np.intp)
    wind = np.bincount(ring, tangential) / np.bincount(ring)
    strong = np.flatnonzero(wind >= MIN_WIND)
    if not strong.size:
        return 0.0
    # From the first strong ring outward to the last before a weak one.
    weak = np.flatnonzero(wind[strong[0] :] < MIN_WIND)
    if not weak.size:
        return 0.0
    last = int(strong[0] + weak[0] - 1)
    return float((last + (wind[last] - MIN_WIND) / (wind[last] - wind[last + 1])) * grid.spacing)


def _join(parts: npt.NDArray[np.int32]) -> None:
    """Give the same number to parts [rows, columns] that touch across longitude 0."""
    for step in (-1, 0, 1):
        west, east = parts[max(0, step) : parts.shape[0] + min(0, step), 0], parts[:, -1]
        east = east[max(0, -step) : parts.shape[0] - max(0, step)]
        for row in np.flatnonzero((west > 0) & (east > 0) & (west != east)):
            if west[row] != east[row]:
                parts[parts == west[row]] = east[row]


def _length(grid: Grid, rows: npt.NDArray[np.intp], columns: npt.NDArray[np.intp]) -> float:
    """The great-circle distance in metres between the two ends of a set of cells at ``rows`` and ``columns``
    [cells]. The cell farthest from an arbitrary cell is one end, and the cell farthest from that end is the
    other."""
    latitude, longitude = grid.latitude[rows, 0], grid.longitude[0, columns]
    places = np.stack(
        (np.cos(latitude) * np.cos(longitude), np.cos(latitude) * np.sin(longitude), np.sin(latitude))
    )
    end = places[:, np.argmin(places[:, 0] @ places)]
    return float(RADIUS * np.arccos(np.clip((end @ places).min(), -1, 1)))
