r"""Delta of fresh allocations again: transforms of the likelihood ratio by Mellin's integral, no lattice.

One epoch with b independent bins has dP/dQ = r = (1/b) sum_l a_l, the a_l lognormal. Along a line z = theta
+ i w

- REMOVE needs E_Q r^(1 + z), ADD needs E_Q r^(-z). Both are E[r^m r^(-s)] with an integer m >= 0 and Re s >
  0, and Gamma(s) E[r^m r^(-s)] = int_0^oo t^(s - 1) E[r^m e^(-t r)] dt, where E[r^m e^(-t r)] = (-d/dt)^m
  phi(t)^b with phi(t) = E e^(-t a / b): a coefficient of a power of the series of phi around t.
- The integral is taken along a ray close to the imaginary axis, t = e^(u + i psi), so that it falls no
  faster than Gamma(s) does and keeps its digits; phi by the trapezoidal rule, its line moved in the complex
  plane to where e^(-t a) hardly turns.
- delta(eps) = (1 / 2 pi i) int prod_e M_e(z) e^(-z eps) / (z (z + 1)) dz, as for Poisson-sampled steps.

Everything is smooth, and taken on two lines, whose difference is refused above 1e-4. No bound, as the other
integrals.
"""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import scipy

from dpmech.exceptions import NumericalError
from dpmech.numerics import FloatArray, spend
from dpmech.verifying.integrals import ComplexArray

__all__ = ["fresh_delta", "one_allocation_delta"]

_LINES_AGREE = 1e-4
# How close to the imaginary axis a ray runs, and the digits, in log, that moving the line of phi may cost.
_ASIDE, _CANCELLED = 0.15, 6.0
# Spacing of the rules for phi, and along a ray.
_FINE, _NODES = 0.02, 0.04
_LARGEST_ORDER = 40
_FARTHEST = 4000.0
# Beyond this t what is left does not turn.
_TURNS = 100.0
_NO_MORE = 1e-17
_MOST_POINTS = 6000


def fresh_delta(
    bins: int, epochs: Sequence[tuple[float, int]], eps: float, tilts: tuple[float, float]
) -> float:
    """Delta of independent epochs, the larger of both directions.

    Args:
        bins: b >= 2.
        epochs: kappa = column norm / sigma of an epoch, with how many have it.
        eps: >= 0.
        tilts: about the best theta > 0 of REMOVE and of ADD; it decides only how many digits are left.

    Raises:
        NumericalError: if two lines differ by more than 1e-4.
    """
    found = [
        [_line(bins, epochs, eps, share * max(theta, 0.3), remove=remove) for share in (1.0, 0.85)]
        for theta, remove in zip(tilts, (True, False), strict=True)
    ]
    first, second = (max(one[line] for one in found) for line in (0, 1))
    if not abs(first - second) <= _LINES_AGREE * first:
        raise NumericalError(f"two lines give delta {first!r} and {second!r}")
    return first


def one_allocation_delta(bins: int, kappa: float, eps: float, tilt: float, *, add: bool) -> float:
    """One direction of one epoch; arguments and errors as for `fresh_delta`."""
    first, second = (
        _line(bins, [(kappa, 1)], eps, share * max(tilt, 0.3), remove=not add) for share in (1.0, 0.85)
    )
    if not abs(first - second) <= _LINES_AGREE * first:
        raise NumericalError(f"two lines give delta {first!r} and {second!r}")
    return first


def _line(bins: int, epochs: Sequence[tuple[float, int]], eps: float, theta: float, *, remove: bool) -> float:
    """Delta of one direction, from the line Re z = theta."""
    count = sum(times for _, times in epochs)
    # The sum of the losses has about this standard deviation, that of a mean of b lognormals.
    spread = math.sqrt(sum(times * math.log1p(math.expm1(kappa**2) / bins) for kappa, times in epochs))
    spacing = min(0.05, 0.25 / (eps + 12.0 * spread + 1.0))
    reach = min(9.0 / spread + 6.0, spacing * _MOST_POINTS)
    w = np.arange(0.0, reach, spacing)
    z: ComplexArray = np.asarray(theta + 1j * w, dtype=np.complex128)
    logs = np.zeros(w.size, dtype=np.complex128)
    for kappa, times in epochs:
        logs += times * np.log(_moments(bins, kappa, z, remove=remove))
    terms = np.exp(logs - z * eps) / (z * (z + 1.0))
    if not abs(terms[-1]) * reach <= 1e-6 * abs(terms[0]) or count < 1:
        raise NumericalError(f"the integral over {w.size} points of a line has not settled")
    terms[0] *= 0.5
    return float(terms.real.sum()) * spacing / math.pi


def _moments(bins: int, kappa: float, z: ComplexArray, *, remove: bool) -> ComplexArray:
    """E_Q r^(1 + z), or E_Q r^(-z), at points of a line, shape as given."""
    theta = float(z[0].real)
    order = math.ceil(theta) + 2 if remove else 0
    if order > _LARGEST_ORDER:
        raise NumericalError(f"a transform of order {order}")
    s = order - 1.0 - z if remove else z
    side = -1.0 if remove else 1.0
    psi = side * (0.5 * math.pi - _ASIDE)
    u, weights = _ray(bins, kappa, order, float(s[0].real), psi)
    factors = np.exp(np.outer(s, u)) @ weights
    return np.asarray(np.exp(1j * psi * s - scipy.special.loggamma(s)) * factors)


def _ray(bins: int, kappa: float, order: int, rate: float, psi: float) -> tuple[FloatArray, ComplexArray]:
    """Nodes u of the ray t = e^(u + i psi), and E[r^m e^(-t r)] there times the weights of the rule."""
    low = -42.0 / rate - 2.0
    places = np.arange(low, _FARTHEST, _NODES)
    found_u, found = [], []
    largest = 0.0
    for start, end in itertools.pairwise([*range(0, places.size, 512), places.size]):
        u = _places_on_ray(places[start:end])
        t = np.exp(u)
        values = _derivative(bins, kappa, order, u, psi) / (1.0 + t / (1.0 + t / _TURNS))
        sizes = np.abs(values) * np.exp(rate * u)
        largest = max(largest, float(sizes.max()))
        found_u.append(u)
        found.append(values * _NODES)
        if float(sizes[-64:].max()) <= _NO_MORE * largest:
            return np.concatenate(found_u), np.concatenate(found)
    raise NumericalError("a transform does not fall along its ray")


def _places_on_ray(places: FloatArray) -> FloatArray:
    """The u with u + T log(1 + e^u / T) = place: even in t up to T, where transforms turn, then in log t."""
    u = places.copy()
    for _ in range(60):
        t = np.exp(np.minimum(u, 690.0))
        step = (u + _TURNS * np.log1p(t / _TURNS) - places) / (1.0 + t / (1.0 + t / _TURNS))
        u = u - step
        if float(np.abs(step).max()) <= 1e-13:
            break
    return u


def _derivative(bins: int, kappa: float, order: int, u: FloatArray, psi: float) -> ComplexArray:
    """(-d/dt)^m phi(t)^b at t = e^(u + i psi), shape as u."""
    alpha = math.copysign(min(abs(psi), kappa * math.sqrt(2.0 * _CANCELLED)), psi)
    x = np.arange(-9.5, 9.5 + (order + 1) * kappa, _FINE)
    spend(3e-8 * u.size * x.size, 48.0 * u.size * x.size, what="a transform along a ray")
    # a / b at the moved line; e^(i (psi - alpha)) is what is left of the turn.
    log_part = kappa * x - 0.5 * kappa**2 - math.log(bins)
    law = np.exp(-0.5 * x * x + 1j * x * alpha / kappa + 0.5 * (alpha / kappa) ** 2)
    law *= _FINE / math.sqrt(2.0 * math.pi)
    turned = np.exp(1j * (psi - alpha))
    damped = np.exp(-turned * np.exp(np.minimum(u[:, None] + log_part, 12.0)))
    powers = np.exp(np.arange(order + 1)[None, :] * (log_part[:, None] - 1j * alpha)) * law[:, None]
    moments = damped @ powers
    # Coefficients of phi(t - y) = sum_j y^j / j! E[(a/b)^j e^(-t a / b)], and of its power.
    series = moments / scipy.special.factorial(np.arange(order + 1))
    power = np.zeros_like(series)
    power[:, 0] = np.exp(bins * np.log(series[:, 0]))
    for n in range(1, order + 1):
        for k in range(1, n + 1):
            power[:, n] += (k * bins - n + k) * series[:, k] * power[:, n - k]
        power[:, n] /= n * series[:, 0]
    return np.asarray(power[:, order] * math.factorial(order))
