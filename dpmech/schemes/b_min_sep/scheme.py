"""b-min-sep sampling as a scheme."""

import math

import numpy as np

from dpmech.engines import (
    Accountant,
    Certified,
    Exact,
    GaussianAccountant,
    Importance,
    ImportanceAccountant,
    Method,
    chain_gram,
)
from dpmech.exceptions import UnsupportedCombinationError
from dpmech.mechanism import Mechanism
from dpmech.schemes.b_min_sep.accountant import ChainCertifiedAccountant
from dpmech.schemes.b_min_sep.participation import MinSepSampling
from dpmech.schemes.b_min_sep.sampler import MinSepSampler
from dpmech.schemes.scheme import Scheme
from dpmech.schemes.structure import Structure, not_built


class BMinSepScheme(Scheme[MinSepSampling]):
    """After an example took part it waits b - 1 steps, then joins by a coin at every step."""

    samplers = {MinSepSampling: MinSepSampler}  # noqa: RUF012 - a constant

    def default(self, participation: MinSepSampling) -> Method:
        """Certified samples."""
        del participation
        return Certified()

    def accountant(
        self,
        participation: MinSepSampling,
        mechanism: Mechanism,
        method: Method | None,
        rng: np.random.Generator | None,
    ) -> Accountant:
        """Certified samples, or an estimate where it is asked for.

        Raises:
            UnsupportedCombinationError: also for a signed strategy, or one of more bands than b.
        """
        own, strategy, bounds = participation, mechanism.strategy, mechanism.sensitivity
        gram = chain_gram(strategy, own.min_sep, own.sampling_prob)
        if own.certain and (method is None or isinstance(method, Exact)):
            return GaussianAccountant(bounds)
        if method is None or isinstance(method, Certified):
            below = chain_gram(strategy, own.min_sep, own.sampling_prob, lower=True)
            return ChainCertifiedAccountant(
                gram, bounds, method or Certified(), rng, lower=below, reach=math.inf
            )
        if isinstance(method, Importance):
            return ImportanceAccountant(gram, bounds, method, rng)
        raise UnsupportedCombinationError(
            f"{method!r} does not apply to {participation!r}",
            supported="method=None, Certified(), Importance()",
        )

    def dataset_size_of(self, participation: MinSepSampling, batch_size: float) -> tuple[float, bool] | None:
        """Every example joins each step with the same probability, which may have been rounded."""
        return batch_size / participation.rate, False

    def structure(self, participation: MinSepSampling) -> Structure:
        """Samples alone tell."""
        return Structure(not_fitted=not_built(participation), judged=False)


SCHEME = BMinSepScheme()
