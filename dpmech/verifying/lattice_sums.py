r"""Delta of T steps by sums on a lattice, where a contour integral does not settle.

Over a few steps that hardly ever lose anything the integrand of `integrals` does not decay before the grid
behind it shows. Here the losses, on a finer grid, are tilted as there, each is shared out between its two
neighbours on a lattice so that the mean stays, and a power of the FFT gives the law of their sum, which is
read from above eps. The error falls like the square of the lattice's step, which is made finer until two
lattices agree. No bound, as the integrals are none.
"""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np
import scipy

from dpmech.exceptions import NumericalError
from dpmech.numerics import spend
from dpmech.verifying.integrals import ComposedLaw, composed_delta, composed_integral, directions

__all__ = ["FINER", "LATTICE_ERROR", "composed", "lattice_sum", "sampled_delta"]

# How much finer a grid is that lattices are made of.
FINER = 10
# What it is accurate to, relative: two lattices, one four times as fine, agree to this.
LATTICE_ERROR = 1e-5
_FIRST, _LAST = 2**16, 2**22
# A contour integral that needs more is dearer than these lattices.
_MOST_NODES = 2**11
# The tilted mass above eps, below which the FFT's rounding shows.
_LEAST = 1e-9


def composed(laws: Callable[[int], list[ComposedLaw]]) -> float:
    """Delta of T steps, the larger direction: by the contour integral or, where it does not settle, by sums.

    Many steps that hardly ever lose anything are too fine for a lattice: their integral gets all its nodes.

    Args:
        laws: both directions, on a grid so many times as fine as it need be.

    Raises:
        NumericalError: where neither is of use.
    """
    plain = laws(1)
    with contextlib.suppress(NumericalError):
        return composed_integral([dataclasses.replace(law, most_nodes=_MOST_NODES) for law in plain])
    with contextlib.suppress(NumericalError):
        return lattice_sum(laws(FINER))
    return composed_integral(plain)


def sampled_delta(sampling_prob: float, multiplier: float, steps: int, eps: float) -> float:
    """Delta of T Poisson-sampled releases, as `composed_delta`, and by sums where that does not settle."""
    if steps == 1:
        return composed_delta(sampling_prob, multiplier, steps, eps)
    return composed(lambda finer: directions(sampling_prob, multiplier, steps, eps, finer=finer))


def lattice_sum(laws: Sequence[ComposedLaw]) -> float:
    """Delta of T steps, the larger of the directions given, to `LATTICE_ERROR` relative: no bound.

    Args:
        laws: of each direction, on a grid far finer than the contour integral needs.

    Raises:
        NumericalError: where lattices of four million points do not agree.
    """
    found = 0.0
    for law in sorted(laws, key=lambda one: -one.chernoff):
        if law.chernoff > found:
            found = max(found, _settled(law, found))
    return found


def _settled(law: ComposedLaw, larger: float) -> float:
    """Of one direction, on lattices that agree; `larger` is what another one has."""
    if law.saddle is None:
        return 0.0
    length, last = _FIRST, math.inf
    while length <= _LAST:
        value = _on_lattice(law, length)
        if abs(value - last) <= LATTICE_ERROR * max(value, larger):
            return value
        length, last = 4 * length, value
    raise NumericalError(f"lattices of {law.steps} sampled steps at eps={law.eps!r} do not agree: {last:.6g}")


def _on_lattice(law: ComposedLaw, length: int) -> float:
    """On about so many points."""
    theta = law.real_part
    low, high = law.window(theta)
    low, high = min(low, law.eps), max(high, law.eps)
    step = (high - low) / length
    offset = law.eps / law.steps
    if law.eps > step:
        # Losses of 0 have a mass of their own: eps and 0 are both on the lattice.
        step, offset = law.eps / math.ceil(law.eps / step), 0.0
    length = scipy.fft.next_fast_len(math.ceil((high - low) / step) + 2, real=True)
    spend(2e-7 * length + 1e-7 * law.losses.size, 64.0 * length, what=f"a lattice for {law.steps} steps")
    log_moment = law.log_moment(theta)
    masses = np.exp(law.log_masses + theta * law.losses - log_moment)
    places = (law.losses - offset) / step
    below = np.floor(places)
    share = places - below
    indices = below.astype(np.int64)
    one = np.bincount(indices % length, masses * (1.0 - share), length)
    one += np.bincount((indices + 1) % length, masses * share, length)
    summed = scipy.fft.irfft(scipy.fft.rfft(one) ** law.steps, length)
    # Point k of the sum lies at eps, if k is `start`, and at as many steps above as it is further on.
    start = int(np.rint((law.eps - law.steps * offset) / step))
    count = math.floor((high - law.eps) / step)
    excess = step * np.arange(1, count + 1)
    tilted = summed[(start + np.arange(1, count + 1)) % length]
    above = float(np.sum(tilted * np.exp(-theta * excess) * -np.expm1(-excess)))
    if above < _LEAST:
        raise NumericalError(
            f"a lattice leaves {above:.3g} of {law.steps} sampled steps above eps={law.eps!r}"
        )
    return above * math.exp(law.steps * log_moment - theta * law.eps)
