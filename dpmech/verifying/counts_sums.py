r"""How counts in a ledger are checked: delta by sums over the integers, without the law of a loss.

The sum S of the k noises is sufficient: the likelihood ratio of k integers against all of them D larger is
e^L with L = (2 S + k D) D / (2 sigma^2). So delta(eps) is the sum of P(S = s) (1 - e^{eps - L}) over the s at
which L > eps. The law of S is found by k-fold convolution where sigma is small, and else as that of one
discrete Gaussian of k sigma^2, from which it differs by less than 1e-10 of itself (Poisson summation:
e^{-pi^2 sigma^2} at sigma = 2 is 7e-18, for each of k); sums of many integers are integrals.
"""

import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import scipy

from dpmech.accounting import DiscreteGaussian
from dpmech.composition import Ledger
from dpmech.numerics import FloatArray, spend, up
from dpmech.verifying.report import Check

__all__ = ["counts_checks", "spend_on_counts", "summed_delta"]

_SMALL_SIGMA = 2.0
_LARGE_SCALE = 2e4  # above it sums of integers are integrals up to 1e-7 of themselves
_REACH = 39.0  # standard deviations
_AGREEMENT = 1e-6
_DELTA = 1e-6  # where eps is compared


def spend_on_counts(sigma: Fraction, sensitivity: int, releases: int) -> None:
    """Count the lattice of the first route, before it is formed; errors as for `spend`."""
    points = 150.0 * float(sigma) * (2.0 if sensitivity % 2 else 1.0)
    # A sum has at most 2^25 points, and is formed some forty times for a curve.
    points += min(80.0 * float(sigma) * math.sqrt(releases), 2.0**25)
    spend(4e-5 * points, 200.0 * points, what=f"sums over {points:.2g} integers")


def summed_delta(counts: DiscreteGaussian, eps: float) -> float:
    """Delta at eps, of integers that all grow by the sensitivity; up to 1e-6 of itself, no bound."""
    sigma, k, shift = float(counts.sigma), counts.releases, counts.sensitivity
    variance = Fraction(counts.sigma) ** 2
    first = math.floor(Fraction(eps) * variance / shift - Fraction(k * shift, 2)) + 1
    scale = sigma * math.sqrt(k)
    if sigma >= _SMALL_SIGMA and scale > _LARGE_SCALE:
        near, far = (scipy.special.log_ndtr(-(at - 0.5) / scale) for at in (first, first + k * shift))
        return -math.exp(near) * math.expm1(eps + far - near)
    if sigma < _SMALL_SIGMA:
        law = _convolved(sigma, k)
    else:
        y = np.arange(math.ceil(_REACH * scale) + 1, dtype=np.float64)
        half = np.exp(-0.5 * (y / scale) ** 2) / (scale * math.sqrt(2.0 * math.pi))
        law = np.concatenate((half[:0:-1], half))
    middle = law.size // 2
    s = np.arange(max(first, -middle), middle + 1)
    # Multiples of D / (2 sigma^2), whose first is just above eps.
    over = float(2 * first + k * shift - 2 * Fraction(eps) * variance / shift) + 2.0 * (s - first)
    gains = -np.expm1(-over * shift / float(2 * variance))
    return float(np.sum((law[s + middle] * gains)[::-1]))


def counts_checks(ledger: Ledger) -> Iterator[Check]:
    """One check for every release of counts in a ledger."""
    for one in ledger.counts:
        bounds = one.counts.epsilon(_DELTA)
        # An eps at which delta is neither 0 nor 1, whatever the noise.
        eps = bounds.upper
        stated, found = one.counts.delta(eps), summed_delta(one.counts, eps)
        slack = _AGREEMENT * found + 1e-15
        ok = stated.lower - slack <= found <= stated.upper + slack
        detail = (
            f"{one.name!r}: {one.counts.releases} integers, at eps {up(eps)} delta {up(stated.upper)}, "
            f"recomputed {found!r}"
        )
        yield Check("counts", ok=ok, detail=detail)


def _convolved(sigma: float, times: int) -> FloatArray:
    """The law of a sum of discrete Gaussians, centred, its tails cut."""
    reach = math.ceil(_REACH * sigma)
    y = np.arange(-reach, reach + 1, dtype=np.float64)
    power = np.exp(-0.5 * (y / sigma) ** 2)
    power /= math.fsum(power)
    most = math.ceil(_REACH * sigma * math.sqrt(times)) + 1
    law = np.ones(1)
    while times:
        if times % 2:
            law = _cut(np.convolve(law, power), most)
        times //= 2
        if times:
            power = _cut(np.convolve(power, power), most)
    return law


def _cut(law: FloatArray, most: int) -> FloatArray:
    beyond = max(0, law.size // 2 - most)
    return law[beyond : law.size - beyond]
