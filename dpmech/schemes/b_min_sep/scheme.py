"""b-min-sep sampling as a scheme."""

import math
from typing import ClassVar

import numpy as np

from dpmech.engines import (
    Accountant,
    Certified,
    CertifiedAccountant,
    Exact,
    GaussianAccountant,
    Importance,
    ImportanceAccountant,
    Method,
    Progress,
    Solution,
    chain_gram,
)
from dpmech.exceptions import NumericalError, UnattainableBudgetError, UnsupportedCombinationError
from dpmech.mechanism import Mechanism
from dpmech.numerics import Bounds
from dpmech.schemes.b_min_sep.participation import BMinSep
from dpmech.schemes.b_min_sep.sampler import BMinSepSampler
from dpmech.schemes.scheme import Scheme, Structure, not_built


class ChainCertifiedAccountant(CertifiedAccountant):
    """Bounds that hold with probability 1 - beta; if samples prove none, the error names alternatives."""

    # A draw costs O(n): some 25 ns for each step.
    work: ClassVar[float] = 5e8
    chance: float

    def epsilon(self, sigma: float, delta: float, *, tolerance: float) -> Bounds:
        """Bounds on eps, which share beta."""
        try:
            return super().epsilon(sigma, delta, tolerance=tolerance)
        except NumericalError as error:
            raise _refusal(error) from error

    def calibrate(self, eps: float, delta: float, *, rtol: float, progress: Progress) -> Solution:
        """Choose sigma on independent samples, then certify slightly above it."""
        _check_budget(eps, delta, self.chance)
        try:
            return super().calibrate(eps, delta, rtol=rtol, progress=progress)
        except NumericalError as error:
            raise _refusal(error) from error


class ChainImportanceAccountant(ImportanceAccountant):
    """Estimates, with the same check of the budget."""

    chance: float

    def calibrate(self, eps: float, delta: float, *, rtol: float, progress: Progress) -> Solution:
        """Choose sigma by estimates of delta."""
        _check_budget(eps, delta, self.chance)
        return super().calibrate(eps, delta, rtol=rtol, progress=progress)


def _check_budget(eps: float, delta: float, chance: float) -> None:
    if delta >= chance:
        words = f"every sigma > 0 meets it, as an example takes part with probability {chance:g} only"
        raise UnattainableBudgetError(eps, delta, words)


def _refusal(error: NumericalError) -> NumericalError:
    return NumericalError(
        f"{error}; method=Importance() may give an estimate, and MinSep (not sampled), CyclicPoisson and "
        "BallsInBins have bounds"
    )


class BMinSepScheme(Scheme[BMinSep]):
    """After taking part, an example waits b - 1 steps, then joins each step with probability p."""

    samplers = {BMinSep: BMinSepSampler}  # noqa: RUF012 - a constant

    def default(self, participation: BMinSep) -> Method:
        """Certified samples."""
        del participation
        return Certified()

    def accountant(
        self,
        participation: BMinSep,
        mechanism: Mechanism,
        method: Method | None,
        rng: np.random.Generator | None,
    ) -> Accountant:
        """Certified samples, or an estimate if one is requested.

        Raises:
            UnsupportedCombinationError: also for a strategy with negative entries or more than b bands.
        """
        own, strategy, bounds = participation, mechanism.strategy, mechanism.sensitivity
        gram = chain_gram(strategy, own.min_sep, own.sampling_prob)
        if own.certain and (method is None or isinstance(method, Exact)):
            return GaussianAccountant(bounds)
        if method is None or isinstance(method, Certified):
            below = chain_gram(strategy, own.min_sep, own.sampling_prob, lower=True)
            found: ChainCertifiedAccountant | ChainImportanceAccountant = ChainCertifiedAccountant(
                gram, bounds, method or Certified(), rng, lower=below, reach=math.inf
            )
            found.chance = own.chance(strategy.n)
            return found
        if isinstance(method, Importance):
            found = ChainImportanceAccountant(gram, bounds, method, rng)
            found.chance = own.chance(strategy.n)
            return found
        raise UnsupportedCombinationError(
            f"{method!r} does not apply to {participation!r}",
            supported="method=None, Certified(), Importance()",
        )

    def dataset_size_of(self, participation: BMinSep, batch_size: float) -> tuple[float, bool] | None:
        """Every example joins each step with the same probability, which may have been rounded."""
        return batch_size / participation.rate, False

    def structure(self, participation: BMinSep) -> Structure:
        """Strategies can be evaluated only by samples."""
        return Structure(not_fitted=not_built(participation), judged=False)


SCHEME = BMinSepScheme()
