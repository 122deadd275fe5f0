"""Truncated Poisson sampling as a scheme."""

import dataclasses

import numpy as np

from dpmech.engines import Accountant, Method, Pld, TruncatedAccountant, TruncatedRelease
from dpmech.exceptions import UnsupportedCombinationError
from dpmech.mechanism import Mechanism
from dpmech.numerics import product_down
from dpmech.schemes.releases import least_of_equals
from dpmech.schemes.scheme import BatchRule, Scheme, Structure, independent_noise_only
from dpmech.schemes.truncated_poisson.participation import TruncatedPoisson
from dpmech.schemes.truncated_poisson.sampler import TruncatedPoissonSampler


class TruncatedPoissonScheme(Scheme[TruncatedPoisson]):
    """Every example joins every step independently; of a batch of more than B examples, B are kept."""

    samplers = {TruncatedPoisson: TruncatedPoissonSampler}  # noqa: RUF012 - a constant

    def default(self, participation: TruncatedPoisson) -> Method:
        """The composition of the losses of all releases."""
        del participation
        return Pld()

    def accountant(
        self,
        participation: TruncatedPoisson,
        mechanism: Mechanism,
        method: Method | None,
        rng: np.random.Generator | None,
    ) -> Accountant:
        """T mixtures of what full batches and others lose, composed."""
        del rng
        if not (method is None or isinstance(method, Pld)):
            raise UnsupportedCombinationError(
                f"{method!r} does not apply to {participation!r}", supported="method=None or Pld()"
            )
        least, bounds = least_of_equals(mechanism), mechanism.sensitivity
        bounds = dataclasses.replace(bounds, lower=product_down(bounds.lower, least))
        steps = participation.releases(mechanism.steps)
        return TruncatedAccountant(TruncatedRelease(participation.truncation, steps, bounds))

    def batch_rule(self, participation: TruncatedPoisson, n: int) -> BatchRule:
        """No batch is too large."""
        del n
        return BatchRule(
            None, dataset_size=participation.dataset_size, largest=participation.truncated_batch_size
        )

    def batch_size_of(self, participation: TruncatedPoisson, planned: float) -> float:
        """The mean size of a batch, cut down where it is too large."""
        del planned
        return participation.truncation.expected_batch_size

    def structure(self, participation: TruncatedPoisson) -> Structure:
        """Independent noise."""
        return Structure(not_fitted=independent_noise_only(participation))


SCHEME = TruncatedPoissonScheme()
