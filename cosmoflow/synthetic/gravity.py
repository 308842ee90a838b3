"""Dark matter under gravity: Gaussian initial conditions, 2LPT displacements, COLA steps, counts in voxels.

Everything here is in mesh units: lengths in cells of a periodic cubic mesh with n cells per side, wave numbers in
radians per cell, densities relative to the mean. Only the power spectrum depends on the length of a cell. Vector
fields are lists of three arrays, one per direction.

Sources, by the names the docstrings use:
Scoccimarro 1998: MNRAS 299, 1097, appendix D (2LPT).
Tassev 2013: Tassev, Zaldarriaga & Eisenstein, JCAP 06, 036 (COLA).
Hockney & Eastwood 1988: Computer Simulation Using Particles (cloud-in-cell).
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from scipy import fft

from mlhpc.cosmoflow.synthetic.cosmology import Cosmology, gauss_legendre

Field = npt.NDArray[np.float32]
Weights = npt.NDArray[np.float64]
Cells = npt.NDArray[np.int64]
Modes = npt.NDArray[np.complex64]

COLA_START = 0.1
"""Expansion factor at which the particle-mesh steps begin: z = 9, as Tassev 2013 recommend."""

FORCE_MESH = 2
"""Cells of the COLA force mesh per particle along each side. With 1, the power at z = 0 is a third too low at half
the Nyquist frequency; 2 and 3 agree within 15% (measured in tests/unit/cosmoflow/synthetic/test_gravity.py)."""

COLA_EXPONENT = -2.5
"""n_LPT of Tassev 2013, section A.3.2."""


@lru_cache(maxsize=2)
def wave_numbers(n: int) -> tuple[list[Field], Field, npt.NDArray[np.int32]]:
    """Wave vector, 1/k² (0 at k = 0) and (k / fundamental)² of the half-space that ``rfftn`` keeps.

    The vector's three arrays broadcast to ``[n, n, n // 2 + 1]``, the shape of the other two. Its Nyquist
    component is 0, because the derivative of a real field has none there.
    """
    whole = fft.fftfreq(n, 1 / n).round().astype(np.int32)
    half = np.arange(n // 2 + 1, dtype=np.int32)
    axes = whole[:, None, None], whole[None, :, None], half[None, None, :]
    squares = sum((axis**2 for axis in axes), start=np.zeros((), np.int32))
    unit = 2 * np.pi / n
    inverse = np.zeros(squares.shape, np.float32)
    np.divide(1 / unit**2, squares, out=inverse, where=squares > 0, casting="unsafe")
    vector = [np.where(2 * abs(axis) == n, 0, unit * axis).astype(np.float32) for axis in axes]
    return vector, inverse, squares


def initial_modes(cosmology: Cosmology, box: float, n: int, rng: np.random.Generator) -> Modes:
    """Fourier modes ``[n, n, n // 2 + 1]`` of a Gaussian density field, linearly grown to today.

    White noise in space has a flat spectrum of 1 (cell³); each mode is scaled by √(P(k) / cell volume). ``box``:
    side in Mpc/h. Wave vectors have only 3n²/4 different lengths, so the spectrum is computed once for each
    length.
    """
    squares = wave_numbers(n)[2]
    amplitude = np.zeros(3 * (n // 2) ** 2 + 1)
    lengths = 2 * np.pi / box * np.sqrt(np.arange(1, amplitude.size))
    amplitude[1:] = np.sqrt(cosmology.power(lengths) * (n / box) ** 3)
    noise = rng.standard_normal((n, n, n), dtype=np.float32)
    modes: Modes = fft.rfftn(noise, overwrite_x=True)
    modes *= amplitude.astype(np.float32)[squares]
    return modes


def displacements(modes: Modes) -> tuple[list[Field], list[Field]]:
    """First- and second-order displacements Ψ₁, Ψ₂, each three arrays ``[n, n, n]``, in cells.

    A particle from q is at q + D(a) Ψ₁(q) + D₂(a) Ψ₂(q), with D and D₂ from ``Cosmology.growth`` and
    ``second_growth``:
    Ψ₁ = -∇φ, ∇²φ = δ;  Ψ₂ = ∇φ₂, ∇²φ₂ = Σ_{i<j} (φ,ii φ,jj - φ,ij²)  (Scoccimarro 1998, equations D2 to D4).
    """
    n = modes.shape[0]
    k, inverse, _ = wave_numbers(n)
    potential = modes * -inverse
    first = [_inverse(potential * (-1j * ki)) for ki in k]
    xx, yy, zz = (_inverse(potential * -(ki * ki)) for ki in k)
    source = xx * yy
    source += zz * (xx + yy)
    for i, j in ((0, 1), (0, 2), (1, 2)):
        mixed = _inverse(potential * -(k[i] * k[j]))
        source -= np.square(mixed, out=mixed)
    potential = fft.rfftn(source, overwrite_x=True)
    potential *= -inverse
    second = [_inverse(potential * (1j * ki)) for ki in k]
    return first, second


def paths(cosmology: Cosmology, modes: Modes, scales: Sequence[float], steps: int) -> Iterator[list[Field]]:
    """Displacements of the particles from their lattice at each of the ``scales``: three arrays ``[n, n, n]`` in
    cells.

    ``scales``: expansion factors in rising order. With 0 ``steps``, the displacements are those of 2LPT. Otherwise
    COLA corrects 2LPT by ``steps`` particle-mesh steps, of equal size in a, from a = 0.1 to the last scale.
    """
    first, second = displacements(modes)

    def lpt(a: float, extra: list[Field] | None = None) -> list[Field]:
        d1, d2 = np.float32(cosmology.growth(a)), np.float32(cosmology.second_growth(a))
        moved = [d1 * p1 + d2 * p2 for p1, p2 in zip(first, second, strict=True)]
        return moved if extra is None else [m + e for m, e in zip(moved, extra, strict=True)]

    if not steps:
        yield from (lpt(a) for a in scales)
        return
    # The residue is the path minus its 2LPT part; T = a³E d/da and v = T residue
    # (Tassev 2013, equations A.6 to A.15): T v = -3/2 Ω_M a (∇∇⁻²δ + D Ψ₁ + (D₂ - D²) Ψ₂).
    residue = [np.zeros_like(p) for p in first]
    velocity = [np.zeros_like(p) for p in first]
    edges = np.linspace(COLA_START, scales[-1], steps + 1)
    centres = (edges[1:] + edges[:-1]) / 2
    remaining = list(scales)
    while remaining and remaining[0] <= edges[0]:
        yield lpt(remaining.pop(0))
    kicked = edges[0]
    for (begin, end), centre in zip(pairwise(edges), centres, strict=True):
        d1, d2 = np.float32(cosmology.growth(begin)), np.float32(cosmology.second_growth(begin))
        kick = np.float32(-1.5 * cosmology.omega_m * begin * _kick(cosmology, kicked, centre, begin))
        pull = attraction(lpt(begin, residue))
        for v, g, p1, p2 in zip(velocity, pull, first, second, strict=True):
            v += kick * (d1 * p1 + (d2 - d1 * d1) * p2 - g)
        kicked = centre
        while remaining and (remaining[0] < end or end == edges[-1]):
            drift = np.float32(_drift(cosmology, begin, remaining[0], centre))
            extra = [r + drift * v for r, v in zip(residue, velocity, strict=True)]
            yield lpt(remaining.pop(0), extra)
        drift = np.float32(_drift(cosmology, begin, end, centre))
        for r, v in zip(residue, velocity, strict=True):
            r += drift * v


def attraction(moved: list[Field]) -> list[Field]:
    """The attraction -∇∇⁻²δ at the particles, which have ``moved`` from their lattice, by cloud-in-cell on a finer
    mesh. ``moved`` and the result are three fields [n, n, n] each."""
    n = moved[0].shape[0]
    fine = FORCE_MESH * n
    k, inverse, _ = wave_numbers(fine)
    cells, inside = _clouds(moved, fine)
    density = (_deposit(cells, inside, fine) * FORCE_MESH**3).astype(np.float32)
    # The last factor turns cells of the fine mesh into cells of the particles' lattice.
    potential = fft.rfftn(density, overwrite_x=True) * (inverse / -FORCE_MESH)
    return [_gather(_inverse(potential * (-1j * ki)), cells, inside).reshape(n, n, n) for ki in k]


def counts(moved: list[Field], grid: int) -> npt.NDArray[np.int64]:
    """Number of particles in each voxel, ``[grid, grid, grid]``, after they have ``moved`` from their lattice
    (three fields [n, n, n])."""
    per_cell = np.float32(grid / moved[0].shape[0])
    index = np.zeros((), np.int64)
    for axis, path in enumerate(moved):
        place = path * per_cell
        place += _lattice(path.shape[0], axis) * per_cell
        index = index * grid + np.floor(place, out=place).astype(np.int64) % grid
    return np.bincount(index.ravel(), minlength=grid**3).reshape(grid, grid, grid)


def cloud_counts(moved: list[Field], total: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Counts ``[n, n, n]`` of ``total`` particles that travel in ``n``³ clouds, each of the size of a voxel.

    The clouds have ``moved`` from their lattice and represent equal shares of the particles. Cloud-in-cell yields
    the expected count of a voxel; systematic sampling (one random offset, then one particle per unit of the
    cumulative expected count) rounds the counts, so that their total is exact and each is off by less than one.
    The voxels are visited in random order, because in array order the rounding errors of neighbours along the last
    axis would be correlated and add power along it.
    """
    n = moved[0].shape[0]
    expected = _deposit(*_clouds(moved, n), n).ravel()
    order = rng.permutation(expected.size)
    reached = np.floor(np.cumsum(expected[order]) * (total / expected.size) + rng.uniform())
    reached[-1] = total
    counts = np.empty(expected.size, np.int64)
    counts[order] = np.diff(reached, prepend=0)
    return counts.reshape(n, n, n)


def _inverse(modes: Modes) -> Field:
    n = modes.shape[0]
    field: Field = fft.irfftn(modes, s=(n, n, n), axes=(0, 1, 2), overwrite_x=True)
    return field


def _lattice(n: int, axis: int) -> Field:
    """Initial positions of the particles along ``axis``, in cells: the middle of each cell, in a shape that
    broadcasts to [n, n, n]."""
    shape = [1, 1, 1]
    shape[axis] = n
    return (np.arange(n, dtype=np.float32) + np.float32(0.5)).reshape(shape)


def _clouds(moved: list[Field], n: int) -> tuple[list[Cells], list[Weights]]:
    """For each direction, on an ``n``³ mesh: the lowest cell of each particle's cloud, and the cloud's share in
    the next cell."""
    cells, inside = [], []
    scale = np.float32(n / moved[0].shape[0])
    for axis, path in enumerate(moved):
        place = path * scale
        place += _lattice(path.shape[0], axis) * scale - np.float32(0.5)
        low = np.floor(place)
        cells.append((low.astype(np.int64) % n).ravel())
        # bincount is ten times slower if it has to convert its weights.
        inside.append((place - low).astype(np.float64).ravel())
    return cells, inside


def _deposit(cells: list[Cells], inside: list[Weights], n: int) -> Weights:
    """Cloud-in-cell density ``[n, n, n]``, 1 per particle (Hockney & Eastwood 1988, section 5-3).

    The weights of a cloud's eight cells are products of f or 1 - f. So the sums of 1, fx, fy, fx fy, fz, … over
    the particles of each lowest cell suffice; the shares of the eight cells follow by shifting whole fields.
    """
    index = (cells[0] * n + cells[1]) * n + cells[2]
    fx, fy, fz = inside
    xy = fx * fy
    sums: list[Weights] = [
        np.bincount(index, weights, n**3).astype(np.float64, copy=False).reshape(n, n, n)
        for weights in (None, fx, fy, xy, fz, fx * fz, fy * fz, xy * fz)
    ]
    for axis in range(3):
        sums = [s - f + np.roll(f, 1, axis) for s, f in zip(sums[::2], sums[1::2], strict=True)]
    return sums[0]


def _gather(field: Field, cells: list[Cells], inside: list[Weights]) -> Field:
    """``field`` at the position of each particle, with the weights of ``_deposit``, so that there is no
    self-force."""
    n = field.shape[0]
    flat = field.ravel()
    value = np.zeros(cells[0].shape, np.float64)
    ends = [((c, 1 - f), ((c + 1) % n, f)) for c, f in zip(cells, inside, strict=True)]
    for x, wx in ends[0]:
        for y, wy in ends[1]:
            row, weight = (x * n + y) * n, wx * wy
            for z, wz in ends[2]:
                value += flat[row + z] * (weight * wz)
    return value.astype(np.float32)


def _kick(cosmology: Cosmology, begin: float, end: float, at: float) -> float:
    """The integral ∫ dt of a kick whose force is known at expansion factor ``at``, dt = da/(a³E): Tassev 2013,
    equation A.15."""
    n = COLA_EXPONENT
    pace = at**3 * float(cosmology.expansion(at))
    return float((end**n - begin**n) / (n * at ** (n - 1) * pace))


def _drift(cosmology: Cosmology, begin: float, end: float, at: float) -> float:
    """The integral ∫ dt of a drift whose velocity is known at expansion factor ``at``, dt = da/(a³E): Tassev 2013,
    equation A.14."""
    nodes, weights = gauss_legendre(8)
    a = begin + (end - begin) * (nodes + 1) / 2
    pace = a**3 * cosmology.expansion(a)
    return float(((a / at) ** COLA_EXPONENT / pace * weights).sum() * (end - begin) / 2)
