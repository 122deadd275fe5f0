"""The accountant of bounds that hold with probability 1 - beta."""

import numpy as np

from dpmech.accounting.accountant import Accountant, Progress, Solution
from dpmech.accounting.balls_in_bins.gram import BinGram
from dpmech.accounting.balls_in_bins.sampling.blocks import draw_entropy
from dpmech.accounting.balls_in_bins.sampling.certified_bound import CertifiedBound, certify_delta
from dpmech.accounting.balls_in_bins.sampling.estimate_accountant import ImportanceAccountant
from dpmech.accounting.balls_in_bins.sampling.reach import _SMALLEST_EPS, delta_below
from dpmech.accounting.gaussian import gaussian_epsilon
from dpmech.accounting.methods import Certified, Importance
from dpmech.exceptions import NumericalError
from dpmech.numerics import Bounds, Guarantee, Provenance, up

__all__ = ["CertifiedAccountant"]

# A certified calibration may try this often; every probe has its share of beta.
_PROBES = (0.0, 0.004, 0.015)

_PROBE_MARGIN = 1.2


class CertifiedAccountant(Accountant):
    """An upper bound that holds with probability 1 - beta, over every probe of one call.

    Sizing uses an independent sample; the bound is then drawn at points fixed in advance, each with an
    equal share of beta.
    """

    def __init__(
        self, gram: BinGram, sensitivity: Bounds, method: Certified, rng: np.random.Generator | None
    ) -> None:
        self.gram = gram
        self.sensitivity = sensitivity
        self.settings = method
        # Whoever picks the numbers picks the sigma: only those of this call may count inside delta.
        self.fresh = rng is None
        self.entropy = draw_entropy(rng)
        self.rng = np.random.default_rng(self.entropy)
        self.sizing = ImportanceAccountant(
            gram, sensitivity, Importance(0.05, executor=method.executor), self.rng
        )
        self.guarantee = method.guarantee(inside=False)
        self.by = self._by(self.guarantee)

    def delta(self, sigma: float, eps: float, *, tolerance: float) -> Bounds:
        """An upper bound on delta; the lower end is 0."""
        del tolerance
        sampled = max(eps, _SMALLEST_EPS)
        upper = self._certify(sigma, sampled, None, self.settings.share(1)).upper
        return self._upper(delta_below(upper, sampled, eps, sigma / self.sensitivity.upper), self.guarantee)

    def epsilon(self, sigma: float, delta: float, *, tolerance: float) -> Bounds:
        """An upper bound on eps; the lower end is 0."""
        del tolerance
        unamplified = gaussian_epsilon(sigma / self.sensitivity.upper, delta, safe=True)
        guarantee = self.settings.guarantee(delta, inside=False)
        if unamplified <= _SMALLEST_EPS:
            return self._upper(unamplified, guarantee)
        guess = max(self.sizing.rough_epsilon(sigma, delta / _PROBE_MARGIN), _SMALLEST_EPS)
        for margin in _PROBES:
            eps = guess * (1.0 + 5.0 * margin)
            if self._certify(sigma, eps, delta, self.settings.share(len(_PROBES), delta)).meets(delta):
                return self._upper(eps, guarantee)
        raise NumericalError(f"no eps up to {eps!r} could be certified at delta={delta!r} ({self.method})")

    def calibrate(self, eps: float, delta: float, *, rtol: float, progress: Progress) -> Solution:
        """Size on an independent sample, a little below delta, and certify once or a little higher.

        Beta is inside delta where the random numbers are this call's own: what is certified is then the
        delta that is left.
        """
        guarantee = self.settings.guarantee(delta, inside=self.fresh)
        goal = guarantee.mechanism_delta(delta)
        start = self.sizing.calibrate(eps, goal / _PROBE_MARGIN, rtol=rtol, progress=progress).sigma
        for margin in _PROBES:
            sigma = start * (1.0 + margin)
            bound = self._certify(sigma, eps, goal, self.settings.share(len(_PROBES), delta))
            progress(f"certify: sigma {up(sigma)}: delta <= {up(bound.upper, 4)}")
            if bound.meets(goal):
                return Solution(
                    sigma,
                    self._upper(eps, guarantee),
                    bound.samples,
                    randomness="".join(f"{word:08x}" for word in self.entropy),
                    method=self.settings.settled(delta),
                )
        raise NumericalError(f"no sigma up to {sigma!r} could be certified ({self.method})")

    def _certify(self, sigma: float, eps: float, threshold: float | None, beta: float) -> CertifiedBound:
        return certify_delta(
            self.gram.scaled(sigma**-2),
            eps,
            threshold,
            beta=beta,
            rng=np.random.default_rng(self.rng.integers(2**63, size=4)),
            executor=self.settings.executor,
        )

    def _upper(self, value: float, guarantee: Guarantee) -> Bounds:
        return Bounds(0.0, value, guarantee, self._by(guarantee))

    def _by(self, guarantee: Guarantee) -> Provenance:
        return Provenance("bins.certified", {"bins": self.gram.bins, "beta": guarantee.error})
