r"""Poisson sampling by the prv-accountant package, in both directions, with a bounded domain.

The package models REMOVE only, and sizes its domain from RDP orders. Here the ADD direction has its own
privacy random variable, and the domain comes from Chernoff bounds on both tails, as the error theorem
requires (Gopi, Lee and Wutschitz 2021, Theorem 5.5): with total tail mass at most delta_error / 4, single
tails at most delta_error / (8 T) and mesh eps_error / sqrt(T/2 log(12 / delta_error)),
delta(eps + eps_error) - delta_error <= estimate(eps) <= delta(eps - eps_error) + delta_error.
"""

import math
from typing import TYPE_CHECKING

import numpy as np
import scipy

from dpmech.engines.accountant import Accountant, Progress, Solution
from dpmech.engines.losses.accountants import saddle_point_sigma
from dpmech.engines.losses.convolution import LossMoments
from dpmech.engines.losses.lattice import Loss
from dpmech.engines.losses.release import PoissonRelease
from dpmech.engines.sigma_search import smallest_sigma
from dpmech.exceptions import NumericalError
from dpmech.numerics import BOUND, Bounds, FloatArray, Provenance, quotient_down, register_words, spend

if TYPE_CHECKING:
    from prv_accountant.discrete_privacy_random_variable import DiscretePrivacyRandomVariable

register_words({"prv.poisson": "PRV, Poisson q={q}, {steps} steps, both directions"})


_MAX_POINTS = 1 << 20
_DELTA_SHARE = 1e-3
_ULP = 2.0**-52


class PrvAccountant(Accountant):
    """PRV accountant of T Poisson-subsampled releases: bounds within eps_error and delta_error.

    It returns the bounds from 2^20 lattice points, which may be wider than the requested tolerance.
    """

    def __init__(self, release: PoissonRelease) -> None:
        self.release = release
        self.sensitivity = release.sensitivity
        self.by = Provenance("prv.poisson", {"q": release.sampling_prob, "steps": release.steps})
        self.guarantee = BOUND

    def delta(self, sigma: float, eps: float, *, tolerance: float) -> Bounds:
        """Bounds on delta; see the base class."""
        sides = self._sides(sigma)
        log_delta = max(side.moments.saddle_log_delta(eps) for side in sides)
        lower, upper = 0.0, 0.0
        for side in sides:
            composed, delta_error, eps_error = side.composed(0.25 * tolerance * eps, math.exp(log_delta))
            lower = max(lower, float(composed.compute_delta_estimate(eps + eps_error)) - delta_error)
            upper = max(upper, float(composed.compute_delta_estimate(eps - eps_error)) + delta_error)
        return Bounds(
            max(0.0, lower) if self.release.tight else 0.0, min(1.0, upper), self.guarantee, self.by
        )

    def epsilon(self, sigma: float, delta: float, *, tolerance: float) -> Bounds:
        """Bounds on eps; see the base class."""
        lower, upper = 0.0, 0.0
        for side in self._sides(sigma):
            guess = side.moments.chernoff_eps(math.log(delta))
            composed, delta_error, eps_error = side.composed(0.25 * tolerance * guess, delta)
            if float(composed.compute_delta_estimate(-eps_error)) + delta_error <= delta:
                continue
            try:
                least, _, most = composed.compute_epsilon(delta, delta_error, eps_error)
            except (ValueError, RuntimeError) as error:
                raise NumericalError(f"{self.method} at sigma={sigma!r}, delta={delta!r}: {error}") from error
            if math.isnan(least) or math.isnan(most):
                raise NumericalError(f"{self.method} at sigma={sigma!r}, delta={delta!r} gave NaN")
            lower, upper = max(lower, least), max(upper, most)
        return Bounds(max(0.0, lower) if self.release.tight else 0.0, upper, self.guarantee, self.by)

    def calibrate(self, eps: float, delta: float, *, rtol: float, progress: Progress) -> Solution:
        """Safeguarded secant on the upper bound; see the base class."""
        start = saddle_point_sigma(self.release, eps, delta)
        return smallest_sigma(self, eps, delta, rtol=rtol, start=start, step=0.01, progress=progress)

    def _sides(self, sigma: float) -> "tuple[_PrivacyLoss, _PrivacyLoss]":
        multiplier = quotient_down(sigma, self.sensitivity.upper)
        q, steps = self.release.sampling_prob, self.release.steps
        return (
            _PrivacyLoss(Loss(q, multiplier, remove=True), steps),
            _PrivacyLoss(Loss(q, multiplier, remove=False), steps),
        )


class _PrivacyLoss:
    """One direction in the form that the package's discretiser requires: truncated masses and mean."""

    pm_inf = 0.0

    def __init__(self, loss: Loss, steps: int) -> None:
        self.loss = loss
        self.steps = steps
        self.moments = LossMoments(*loss.sampled(), steps)
        self.low, self.high = -math.inf, math.inf

    def composed(
        self, eps_error: float, delta: float
    ) -> "tuple[DiscretePrivacyRandomVariable, float, float]":
        """The composed variable, with bounds on its errors in delta and in eps.

        Raises:
            NumericalError: if float64 masses are too coarse for this delta.
        """
        spend(5.0, 1e9, what=f"composing {self.steps} steps by PRV")
        noise = 4.0 * _ULP * self.steps
        delta_error = _DELTA_SHARE * delta
        if noise > 10.0 * delta_error:
            raise NumericalError(
                f"delta={delta!r} over {self.steps} steps is below the resolution of PRV; "
                "use dm.methods.Pld()"
            )
        tail = -float(scipy.special.ndtri_exp(math.log(delta_error / (8.0 * self.steps))))
        single = Loss(
            self.loss.sampling_prob, self.loss.sigma_over_sensitivity, self.loss.remove, min(38.0, tail)
        )
        ends = (*single.interval(), *self.moments.window(0.0, math.log(delta_error / 8.0)))
        reach = 1.01 * max(abs(end) for end in ends) + eps_error
        steepness = math.sqrt(0.5 * self.steps * math.log(12.0 / delta_error))
        eps_error = max(eps_error, 2.0 * reach * steepness / _MAX_POINTS)
        # The package takes a second to import and is rarely needed.
        from prv_accountant.composers import Fourier
        from prv_accountant.discretisers import CellCentred
        from prv_accountant.domain import Domain

        domain = Domain.create_aligned(-reach, reach, eps_error / steepness)
        self.low, self.high = float(domain.t_min()), float(domain.t_max())
        try:
            discrete = CellCentred().discretise(self, domain)
        except RuntimeError as error:
            raise NumericalError(f"PRV discretisation of {self.loss!r}: {error}") from error
        return Fourier([discrete]).compute_composition([self.steps]), delta_error + noise, eps_error

    def probability(self, a: FloatArray, b: FloatArray) -> FloatArray:
        """Mass of (a, b], conditioned on the domain."""
        low, high = np.array([self.low]), np.array([self.high])
        total = self._cdf(high)[0] - self._cdf(low)[0]
        inside = self._cdf(np.clip(b, low, high)) - self._cdf(np.clip(a, low, high))
        return np.asarray(inside / total, dtype=np.float64)

    def mean(self) -> float:
        """Mean, conditioned on the domain; the package's own quadrature has error up to 1e-8, times T."""
        losses, log_masses = self.loss.sampled()
        inside = (losses > self.low) & (losses <= self.high)
        masses = np.exp(log_masses[inside])
        return float(np.sum(masses * losses[inside]) / masses.sum())

    def _cdf(self, t: FloatArray) -> FloatArray:
        q, s = self.loss.sampling_prob, self.loss.sigma_over_sensitivity
        ratio = np.asarray(t, dtype=np.float64) * (1.0 if self.loss.remove else -1.0)
        possible = ratio > math.log1p(-q)
        x = self.loss.output_at(np.where(possible, ratio, 0.0))
        if self.loss.remove:
            below = (1.0 - q) * scipy.special.ndtr(x / s) + q * scipy.special.ndtr((x - 1.0) / s)
            return np.where(possible, below, 0.0)
        return np.where(possible, scipy.special.ndtr(-x / s), 1.0)
