"""Which accountant answers for b-min-sep sampling: certified draws, or an estimate where it is asked for."""

import math

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
from dpmech.exceptions import NumericalError, UnsupportedCombinationError
from dpmech.mechanism import Mechanism
from dpmech.numerics import Bounds


class ChainCertifiedAccountant(CertifiedAccountant):
    """Bounds that hold with probability 1 - beta; where draws cannot prove one, what else there is."""

    def epsilon(self, sigma: float, delta: float, *, tolerance: float) -> Bounds:
        """Bounds on eps, which share beta."""
        try:
            return super().epsilon(sigma, delta, tolerance=tolerance)
        except NumericalError as error:
            raise _refusal(error) from error

    def calibrate(self, eps: float, delta: float, *, rtol: float, progress: Progress) -> Solution:
        """Size on independent samples, then certify a little above."""
        try:
            return super().calibrate(eps, delta, rtol=rtol, progress=progress)
        except NumericalError as error:
            raise _refusal(error) from error


def min_sep_sampling(
    mechanism: Mechanism, method: Method | None, rng: np.random.Generator | None
) -> Accountant:
    """The accountant of a mechanism under b-min-sep sampling.

    Raises:
        UnsupportedCombinationError: for a signed strategy, one of more bands than b, or any other method.
    """
    law, strategy, bounds = mechanism.participation.rest_law, mechanism.strategy, mechanism.sensitivity
    if law is None:
        raise UnsupportedCombinationError(
            f"{mechanism.participation!r} lets nobody rest", supported="MinSepSampling"
        )
    gram = chain_gram(strategy, law.min_sep, law.sampling_prob)
    if mechanism.certain and (method is None or isinstance(method, Exact)):
        return GaussianAccountant(bounds)
    if method is None or isinstance(method, Certified):
        below = chain_gram(strategy, law.min_sep, law.sampling_prob, lower=True)
        return ChainCertifiedAccountant(gram, bounds, method or Certified(), rng, lower=below, reach=math.inf)
    if isinstance(method, Importance):
        return ImportanceAccountant(gram, bounds, method, rng)
    raise UnsupportedCombinationError(
        f"{method!r} does not apply to {mechanism.participation!r}",
        supported="method=None, Certified(), Importance()",
    )


def _refusal(error: NumericalError) -> NumericalError:
    return NumericalError(
        f"{error}; method=Importance() gives an estimate here, and MinSep (not sampled), CyclicPoisson and "
        "BallsInBins have bounds"
    )
