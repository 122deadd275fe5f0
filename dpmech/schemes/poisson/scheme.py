"""Poisson sampling as a scheme."""

import dataclasses
from typing import Any

import numpy as np

from dpmech.drawing import Sampler
from dpmech.engines import (
    Accountant,
    Canary,
    Method,
    Pld,
    TruncatedAccountant,
    TruncatedRelease,
    accountant_of_examples,
    accountant_of_users,
    canary_of_group,
    group_score,
    least_of_equals,
)
from dpmech.exceptions import UnsupportedCombinationError
from dpmech.mechanism import Mechanism, Strategy
from dpmech.numerics import FloatArray, product_down
from dpmech.schemes.poisson.participation import Poisson
from dpmech.schemes.poisson.sampler import PoissonSampler
from dpmech.schemes.poisson.truncated_sampler import TruncatedPoissonSampler
from dpmech.schemes.scheme import BatchRule, Scheme, Structure, independent_noise_only


class PoissonScheme(Scheme[Poisson]):
    """Every example joins every step independently; batches may be truncated."""

    offers = {  # noqa: RUF012 - a constant
        "canary": "Poisson",
        "event": "Identity under Poisson",
        "risk": "Poisson",
    }
    samplers = {Poisson: PoissonSampler}  # noqa: RUF012 - a constant

    def default(self, participation: Poisson) -> Method:
        """The composition of the losses of all releases."""
        del participation
        return Pld()

    def accountant(
        self,
        participation: Poisson,
        mechanism: Mechanism,
        method: Method | None,
        rng: np.random.Generator | None,
    ) -> Accountant:
        """T Poisson-sampled releases, composed."""
        del rng
        if participation.truncation is not None:
            return self._truncated(participation, mechanism, method)
        least, prob = least_of_equals(mechanism), participation.sampling_prob
        if participation.unit is not None:
            return accountant_of_users(mechanism, method, prob, least)
        return accountant_of_examples(mechanism, method, prob, least)

    def _truncated(self, participation: Poisson, mechanism: Mechanism, method: Method | None) -> Accountant:
        """T mixtures of what full batches and others lose, composed."""
        if participation.truncation is None or not (method is None or isinstance(method, Pld)):
            raise UnsupportedCombinationError(
                f"{method!r} does not apply to {participation!r}", supported="method=None or Pld()"
            )
        least, bounds = least_of_equals(mechanism), mechanism.sensitivity
        bounds = dataclasses.replace(bounds, lower=product_down(bounds.lower, least))
        steps = participation.releases(mechanism.steps)
        return TruncatedAccountant(TruncatedRelease(participation.truncation, steps, bounds))

    def new_sampler(self, participation: Poisson, dataset_size: int, n: int, **options: Any) -> Sampler:  # noqa: ANN401 - as of the base
        """With batches that are truncated another one."""
        most, size = participation.truncated_batch_size, participation.dataset_size
        if most is None or size is None:
            return super().new_sampler(participation, dataset_size, n, **options)
        return TruncatedPoissonSampler(dataset_size, participation.sampling_prob, most, size, n, **options)

    def batch_rule(self, participation: Poisson, n: int) -> BatchRule:
        """No batch is too large; else nothing, as every step is sampled anew."""
        del n
        return BatchRule(
            None, dataset_size=participation.dataset_size, largest=participation.truncated_batch_size
        )

    def canary(self, participation: Poisson, mechanism: Mechanism) -> Canary:
        """It may join every step; no test of truncated batches is known."""
        if participation.truncation is not None:
            return super().canary(participation, mechanism)
        return canary_of_group(participation, mechanism, 1)

    def canary_score(
        self,
        participation: Poisson,
        executed: Strategy,
        outputs: FloatArray,
        sigma: float,
        weights: FloatArray,
    ) -> FloatArray | None:
        """Of an example: it may have joined every step."""
        if not participation.every_step_alike:
            return None
        return group_score(executed, outputs, sigma, participation.sampling_prob, 1, weights)

    def dataset_size_of(self, participation: Poisson, batch_size: float) -> tuple[float, bool] | None:
        """Of examples: every one joins with one probability, which may have been rounded."""
        if not participation.every_step_alike:
            return None
        return batch_size / participation.sampling_prob, False

    def batch_size_of(self, participation: Poisson, planned: float) -> float:
        """The mean size of a batch, where it is truncated."""
        truncation = participation.truncation
        return planned if truncation is None else truncation.expected_batch_size

    def nodes_refusal(self, participation: Poisson) -> str:
        """Of examples the whole curve is known."""
        if not participation.every_step_alike:
            return super().nodes_refusal(participation)
        return "whose profile is known everywhere at once"

    def structure(self, participation: Poisson) -> Structure:
        """Independent noise; every step may be joined."""
        if not participation.every_step_alike:
            return Structure(not_fitted=independent_noise_only(participation))
        return Structure(cycle=1)


SCHEME = PoissonScheme()
