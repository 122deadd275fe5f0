"""Batches of a fixed size as a scheme."""

import dataclasses

import numpy as np

from dpmech.engines import (
    Accountant,
    FixedAccountant,
    FixedRelease,
    Method,
    Pld,
    Rdp,
    RenyiAccountant,
    least_of_equals,
    unsampled,
)
from dpmech.exceptions import UnsupportedCombinationError
from dpmech.mechanism import Mechanism
from dpmech.numerics import product_down
from dpmech.schemes.fixed_size.participation import FixedSizeBatches
from dpmech.schemes.fixed_size.sampler import FixedSizeSampler
from dpmech.schemes.scheme import BatchRule, Scheme, Structure, independent_noise_only


class FixedSizeScheme(Scheme[FixedSizeBatches]):
    """At every step a uniform set of exactly B of n examples."""

    samplers = {FixedSizeBatches: FixedSizeSampler}  # noqa: RUF012 - a constant

    def default(self, participation: FixedSizeBatches) -> Method:
        """The composition of the privacy losses of all releases."""
        del participation
        return Pld()

    def accountant(
        self,
        participation: FixedSizeBatches,
        mechanism: Mechanism,
        method: Method | None,
        rng: np.random.Generator | None,
    ) -> Accountant:
        """T copies of the largest privacy loss of one step, composed."""
        del rng
        least, bounds = least_of_equals(mechanism), mechanism.sensitivity
        bounds = dataclasses.replace(bounds, lower=product_down(bounds.lower, least))
        steps = participation.releases(mechanism.steps)
        if participation.certain:
            return unsampled(bounds.times_root(steps), None if isinstance(method, Pld) else method)
        if isinstance(method, Rdp):
            return RenyiAccountant(bounds, steps=steps, draw=participation.fixed_draw)
        if method is None or isinstance(method, Pld):
            return FixedAccountant(FixedRelease(participation.fixed_draw, steps, bounds))
        raise UnsupportedCombinationError(
            f"{method!r} does not apply to {participation!r}", supported="method=None, Pld() or Rdp()"
        )

    def batch_rule(self, participation: FixedSizeBatches, n: int) -> BatchRule:
        """All batches have the same size."""
        del n
        return BatchRule(None, dataset_size=participation.dataset_size, exactly=participation.batch_size)

    def structure(self, participation: FixedSizeBatches) -> Structure:
        """Independent noise."""
        return Structure(not_fitted=independent_noise_only(participation))


SCHEME = FixedSizeScheme()
