"""Linear theory of a flat ΛCDM universe: expansion, growth and the matter power spectrum.

Sources, by the names the docstrings use:
EH98: Eisenstein & Hu 1998, ApJ 496, 605 (the transfer function with baryon oscillations).
Planck 2015: Planck Collaboration XIII 2016, A&A 594, A13, table 4, last column (TT,TE,EE+lowP+lensing+ext).
Bouchet 1995: Bouchet, Colombi, Hivon & Juszkiewicz 1995, A&A 296, 575.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

PARAMETERS = ("Ω_M", "σ_8", "n_s", "H_0")
"""The four targets, in the order of the published data set."""

MEAN = (0.3089, 0.8159, 0.9667, 67.74)
"""Means of ``PARAMETERS`` (Planck 2015): matter density, amplitude, spectral index, Hubble constant in
km/s/Mpc."""

OMEGA_B_H2 = 0.02230
"""Physical baryon density (Planck 2015), the same in every universe, since it is known to 1%. The fits of EH98 are
off by up to 12% where Ω_M h² is lowest, so that baryons are almost half of all matter
(docs/reference/data_cosmoflow.md)."""

T_CMB = 2.7255
"""Temperature of the cosmic microwave background in kelvin (Fixsen 2009, ApJ 707, 916)."""


@lru_cache
def gauss_legendre(count: int) -> tuple[Array, Array]:
    """Nodes in (-1, 1) and weights of Gauss-Legendre quadrature, each [count]. Cached, since NumPy takes a
    millisecond to compute them."""
    nodes, weights = np.polynomial.legendre.leggauss(count)  # type: ignore[no-untyped-call]
    return nodes, weights


@dataclass(frozen=True)
class Cosmology:
    """A flat universe of matter and a cosmological constant. Wave numbers are in h/Mpc, lengths in Mpc/h."""

    omega_m: float
    sigma_8: float
    n_s: float
    h: float
    omega_b_h2: float = OMEGA_B_H2

    @classmethod
    def from_unit(cls, unit: npt.ArrayLike, spread: float) -> Self:
        """The universe whose parameters deviate from their means by the relative amount ``spread`` times ``unit``,
        [4] in [-1, 1]."""
        omega_m, sigma_8, n_s, hubble = np.array(MEAN) * (1 + spread * np.asarray(unit, np.float64))
        return cls(float(omega_m), float(sigma_8), float(n_s), float(hubble) / 100)

    def expansion(self, a: npt.ArrayLike) -> Array:
        """H(a)/H_0, of the shape of ``a``, without radiation, which matters only before z = 10."""
        squared: Array = self.omega_m * np.asarray(a, np.float64) ** -3 + 1 - self.omega_m
        return squared**0.5

    def growth(self, a: npt.ArrayLike) -> Array:
        """Linear growth D(a), of the shape of ``a``, 1 today, accurate to 1e-6: E(a) ∫ da'/(a' E(a'))³ (Heath
        1977, MNRAS 179, 351).

        With a' = u^(2/5) the integrand is smooth and nearly constant, so that a few Gauss-Legendre nodes suffice.
        """
        nodes, weights = gauss_legendre(16)
        ends = np.append(np.asarray(a, np.float64).ravel(), 1.0)[:, None] ** 2.5
        u = ends * (nodes + 1) / 2
        shrink = (self.omega_m + (1 - self.omega_m) * u**1.2) ** -1.5  # (a E)^-3 = a^1.5 · this
        grown = self.expansion(ends[:, 0] ** 0.4) * (ends / 2 * weights * shrink).sum(axis=1)
        relative: Array = grown[:-1] / grown[-1]
        return relative.reshape(np.shape(a))

    def second_growth(self, a: npt.ArrayLike) -> Array:
        """Growth of the second-order displacement, of the shape of ``a``: -3/7 D² Ω_M(a)^(-1/143) (Bouchet
        1995)."""
        a = np.asarray(a, np.float64)
        omega_at_a = self.omega_m * a**-3 / self.expansion(a) ** 2
        grown: Array = -3 / 7 * self.growth(a) ** 2 * omega_at_a ** (-1 / 143)
        return grown

    def transfer(self, k: npt.ArrayLike) -> Array:
        """Matter transfer function T(k > 0), of the shape of ``k``, 1 on the largest scales: EH98, equations 2 to
        24."""
        k = np.asarray(k, np.float64) * self.h  # EH98 uses 1/Mpc
        theta = T_CMB / 2.7
        om, ob = self.omega_m * self.h**2, self.omega_b_h2
        fb = ob / om
        fc = 1 - fb
        # Equality, drag epoch, sound horizon, Silk damping: equations 2 to 7.
        z_eq = 2.50e4 * om * theta**-4
        k_eq = 7.46e-2 * om * theta**-2
        b1 = 0.313 * om**-0.419 * (1 + 0.607 * om**0.674)
        b2 = 0.238 * om**0.223
        z_d = 1291 * om**0.251 / (1 + 0.659 * om**0.828) * (1 + b1 * ob**b2)
        r_d, r_eq = (31.5 * ob * theta**-4 * 1000 / z for z in (z_d, z_eq))
        sound = 2 / (3 * k_eq) * np.sqrt(6 / r_eq)
        sound *= np.log((np.sqrt(1 + r_d) + np.sqrt(r_d + r_eq)) / (1 + np.sqrt(r_eq)))
        k_silk = 1.6 * ob**0.52 * om**0.73 * (1 + (10.4 * om) ** -0.95)
        # Cold dark matter: equations 10 to 12 and 17 to 20.
        q = k / (13.41 * k_eq)
        a1 = (46.9 * om) ** 0.670 * (1 + (32.1 * om) ** -0.532)
        a2 = (12.0 * om) ** 0.424 * (1 + (45.0 * om) ** -0.582)
        alpha_c = a1**-fb * a2 ** -(fb**3)
        b1 = 0.944 / (1 + (458 * om) ** -0.708)
        b2 = (0.395 * om) ** -0.0266
        beta_c = 1 / (1 + b1 * (fc**b2 - 1))

        def pressureless(alpha: float, beta: float) -> Array:
            log = np.log(np.e + 1.8 * beta * q)
            c = 14.2 / alpha + 386 / (1 + 69.9 * q**1.08)
            shape: Array = log / (log + c * q**2)
            return shape

        ks = k * sound
        f = 1 / (1 + (ks / 5.4) ** 4)
        cold = f * pressureless(1, beta_c) + (1 - f) * pressureless(alpha_c, beta_c)
        # Baryons: equations 14, 15 and 21 to 24.
        y = (1 + z_eq) / (1 + z_d)
        root = np.sqrt(1 + y)
        g = y * (-6 * root + (2 + 3 * y) * np.log((root + 1) / (root - 1)))
        alpha_b = 2.07 * k_eq * sound * (1 + r_d) ** -0.75 * g
        beta_b = 0.5 + fb + (3 - 2 * fb) * np.sqrt((17.2 * om) ** 2 + 1)
        shift = (1 + (8.41 * om**0.435 / ks) ** 3) ** (-1 / 3)
        baryons = pressureless(1, 1) / (1 + (ks / 5.2) ** 2)
        baryons += alpha_b / (1 + (beta_b / ks) ** 3) * np.exp(-((k / k_silk) ** 1.4))
        baryons *= np.sinc(ks * shift / np.pi)  # numpy's sinc(x) is sin(πx)/(πx)
        both: Array = fb * baryons + fc * cold
        return both

    def power(self, k: npt.ArrayLike) -> Array:
        """Linear matter power spectrum P(k > 0) today in (Mpc/h)³, of the shape of ``k``, normalised to
        ``sigma_8``."""
        k = np.asarray(k, np.float64)
        lnk = np.linspace(np.log(1e-4), np.log(20), 512)
        # One call of the transfer function for both, since its cost is per call, not per k.
        all_k = np.concatenate([k.ravel(), np.exp(lnk)])
        shape: Array = all_k**self.n_s * self.transfer(all_k) ** 2
        unnormalised = variance(np.exp(lnk), shape[k.size :], radius=8.0)
        return (shape[: k.size] * self.sigma_8**2 / unnormalised).reshape(k.shape)


def variance(k: Array, power: Array, radius: float) -> float:
    """Variance of the density in spheres of ``radius`` Mpc/h: ∫ dlnk k³P/2π² W², where W is the top hat's Fourier
    transform. ``k`` and ``power`` are [wave numbers].

    ``k`` is in h/Mpc, equally spaced in the logarithm, and must span the spectrum.
    """
    x = k * radius
    window = 3 * (np.sin(x) - x * np.cos(x)) / x**3
    integrand = k**3 * power / (2 * np.pi**2) * window**2
    return float(integrand.sum() * np.log(k[-1] / k[0]) / (k.size - 1))  # the ends are negligible
