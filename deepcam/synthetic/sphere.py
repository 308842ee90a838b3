"""The planet's grid: positions, distances, derivatives, and random fields without seams or special poles.

Rows are latitudes from south to north, columns longitudes eastward from 0; a cell's position is its centre, so no
row lies on a pole. All fields are float32 ``[rows, columns]``, lengths are in metres, and angles in radians.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from scipy import fft

RADIUS = 6.371e6
"""Radius of the earth, metres."""

ROTATION = 7.292e-5
"""Angular velocity of the earth, radians per second."""

Field = npt.NDArray[np.float32]
T = TypeVar("T", float, Field)


@dataclass(frozen=True)
class Grid:
    rows: int
    columns: int
    latitude: Field
    """Latitude of each row, ``[rows, 1]``"""
    longitude: Field
    """Longitude of each column, ``[1, columns]``"""

    @property
    def spacing(self) -> float:
        """The larger side, in metres, of a cell at the equator."""
        return float(RADIUS * max(np.pi / self.rows, 2 * np.pi / self.columns))

    @property
    def weight(self) -> Field:
        """The area of each row's cells relative to the mean, ``[rows, 1]``."""
        cosine = np.cos(self.latitude)
        weight: Field = cosine / cosine.mean()
        return weight

    def gradient(self, field: Field) -> tuple[Field, Field]:
        """The eastward and the northward derivative of ``field``, per metre, by central differences; all are
        [rows, columns]."""
        east = np.empty_like(field)
        np.subtract(field[:, 2:], field[:, :-2], out=east[:, 1:-1])
        np.subtract(field[:, 1], field[:, -1], out=east[:, 0])
        np.subtract(field[:, 0], field[:, -2], out=east[:, -1])
        east /= 2 * (2 * np.pi / self.columns) * RADIUS * np.cos(self.latitude)
        north = np.empty_like(field)
        step = np.float32(RADIUS * np.pi / self.rows)
        np.subtract(field[2:], field[:-2], out=north[1:-1])
        north[1:-1] /= 2 * step
        north[0] = (field[1] - field[0]) / step
        north[-1] = (field[-1] - field[-2]) / step
        return east, north

    def vorticity(self, u: Field, v: Field) -> Field:
        """The vertical component, in 1/s, of the curl of the wind with eastward component ``u`` and northward
        component ``v``; all are [rows, columns]."""
        cosine = np.cos(self.latitude)
        east, _ = self.gradient(v)
        _, north = self.gradient(u * cosine)
        curl: Field = east - north / cosine
        return curl

    def offsets(self, latitude: float, longitude: float, rows: slice) -> tuple[Field, Field]:
        """The eastward and northward offsets, in metres, of the cells of ``rows`` from a place: the great-circle
        distance from that place along the bearing, split into components. Each is [len(rows), columns]."""
        row_latitude = self.latitude[rows]
        turn = self.longitude - np.float32(longitude)
        # The cell's unit vector in the place's frame (east, north, up).
        east = np.cos(row_latitude) * np.sin(turn)
        along = np.cos(row_latitude) * np.cos(turn)
        north = np.sin(row_latitude) * np.cos(latitude) - along * np.sin(latitude)
        up = np.sin(row_latitude) * np.sin(latitude) + along * np.cos(latitude)
        across = np.hypot(east, north)
        stretch = RADIUS * np.arctan2(across, up) / np.maximum(across, 1e-12)
        return (east * stretch).astype(np.float32), (north * stretch).astype(np.float32)

    def reach(self, latitude: float, distance: float) -> slice:
        """The rows that have cells within ``distance`` metres of ``latitude``."""
        row = (np.array([-1, 1]) * distance / RADIUS + latitude + np.pi / 2) / np.pi * self.rows
        return slice(max(0, int(row[0])), min(self.rows, int(row[1]) + 1))


def coriolis(latitude: T) -> T:
    """The Coriolis parameter f = 2Ω sin φ, 1/s."""
    return 2 * ROTATION * np.sin(latitude)  # type: ignore[no-any-return]


@lru_cache(maxsize=4)
def grid(rows: int, columns: int) -> Grid:
    """A grid that covers the whole planet with ``rows`` by ``columns`` cells of equal angles."""
    latitude = ((np.arange(rows) + 0.5) / rows - 0.5) * np.pi
    longitude = np.arange(columns) / columns * 2 * np.pi
    return Grid(rows, columns, latitude.astype(np.float32)[:, None], longitude.astype(np.float32)[None])


@lru_cache(maxsize=4)
def legendre(rows: int, degree: int) -> tuple[Field, ...]:
    """Associated Legendre functions at northern latitudes, one array ``[degree + 1 - m, rows / 2]`` for each order
    m.

    They are normalised as in geodesy: the mean of (P cos mλ)² over the sphere is 1. The recurrence in the degree
    follows Holmes and Featherstone 2002 (J. Geodesy 76, 279), equations 11 to 13.
    """
    latitude = ((np.arange(rows // 2, rows) + 0.5) / rows - 0.5) * np.pi
    sine, cosine = np.sin(latitude), np.cos(latitude)
    sectoral = np.ones(latitude.size)
    orders = []
    for m in range(degree + 1):
        if m:
            sectoral = sectoral * cosine * np.sqrt((2 * m + 1) / (2 * m) if m > 1 else 3.0)
        functions = np.empty((degree + 1 - m, latitude.size))
        functions[0] = sectoral
        before = np.zeros(latitude.size)
        for n in range(m + 1, degree + 1):
            a = np.sqrt((4 * n * n - 1) / (n * n - m * m))
            b = np.sqrt(((n - 1) ** 2 - m * m) / (4 * (n - 1) ** 2 - 1))
            functions[n - m] = a * (sine * functions[n - m - 1] - b * before)
            before = functions[n - m - 1]
        orders.append(functions.astype(np.float32))
    return tuple(orders)


def random_fields(
    rows: int, columns: int, spectra: npt.NDArray[np.float64], rng: np.random.Generator
) -> Field:
    """Gaussian fields ``[fields, rows, columns]``, statistically homogeneous and isotropic on the sphere.

    ``rows`` must be even. ``spectra[field, n]`` is the total variance of the waves of degree n (which are
    2π·RADIUS/n long); degrees that the grid cannot resolve are left out.
    """
    degree = min(spectra.shape[1], rows // 2, columns // 2) - 1
    fields = len(spectra)
    n = np.arange(degree + 1)
    size = np.sqrt(spectra[:, : degree + 1] / (2 * n + 1)).astype(np.float32)
    waves = np.zeros((fields, rows, columns // 2 + 1), np.complex64)
    for m, functions in enumerate(legendre(rows, degree)):
        drawn = rng.standard_normal((2, fields, degree + 1 - m), np.float32) * size[:, m:]
        if m == 0:
            drawn[1] = 0
        # P(-φ) = (-1)^(n-m) P(φ), so the south follows from the north. einsum rather than BLAS, because a matrix
        # product may round differently with a different number of threads.
        even = np.einsum("cfn,nr->cfr", drawn[..., ::2], functions[::2])
        odd = np.einsum("cfn,nr->cfr", drawn[..., 1::2], functions[1::2])
        north, south = even + odd, (even - odd)[..., ::-1]
        both = np.concatenate((south, north), axis=-1)
        waves[..., m] = (both[0] - 1j * both[1]) * (1 if m == 0 else 0.5)
    return fft.irfft(waves * np.float32(columns), n=columns, axis=-1, overwrite_x=True)  # type: ignore[no-any-return]
