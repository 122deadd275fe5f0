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
    ScheduleAccountant,
    TruncatedAccountant,
    TruncatedRelease,
    accountant_of_examples,
    accountant_of_users,
    canary_of_group,
    check_pld,
    group_score,
    least_of_equals,
    one_kind,
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
        """The composition of the privacy losses of all releases."""
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
        probs = participation.schedule or (participation.one_prob,) * mechanism.steps
        independent = mechanism.strategy.bands == 1 and participation.by_coins and not participation.certain
        if independent and not one_kind(mechanism, probs):
            check_pld(method, mechanism)
            return ScheduleAccountant(mechanism, probs)
        least, prob = least_of_equals(mechanism), probs[0]
        if participation.unit is not None:
            return accountant_of_users(mechanism, method, prob, least)
        return accountant_of_examples(mechanism, method, prob, least)

    def _truncated(self, participation: Poisson, mechanism: Mechanism, method: Method | None) -> Accountant:
        """T mixtures of the privacy losses of full and of other batches, composed."""
        if participation.truncation is None or not (method is None or isinstance(method, Pld)):
            raise UnsupportedCombinationError(
                f"{method!r} does not apply to {participation!r}", supported="method=None or Pld()"
            )
        least, bounds = least_of_equals(mechanism), mechanism.sensitivity
        bounds = dataclasses.replace(bounds, lower=product_down(bounds.lower, least))
        steps = participation.releases(mechanism.steps)
        return TruncatedAccountant(TruncatedRelease(participation.truncation, steps, bounds))

    def new_sampler(self, participation: Poisson, dataset_size: int, n: int, **options: Any) -> Sampler:  # noqa: ANN401 - as of the base
        """Truncated batches use another sampler."""
        most, size = participation.truncated_batch_size, participation.dataset_size
        if most is None or size is None:
            return super().new_sampler(participation, dataset_size, n, **options)
        return TruncatedPoissonSampler(dataset_size, participation.one_prob, most, size, n, **options)

    def batch_rule(self, participation: Poisson, n: int) -> BatchRule:
        """Truncated batches have a maximum size; otherwise nothing, as every step is sampled anew."""
        del n
        return BatchRule(
            None, dataset_size=participation.dataset_size, largest=participation.truncated_batch_size
        )

    def canary(self, participation: Poisson, mechanism: Mechanism) -> Canary:
        """A canary that may join every step; there is no test for truncated batches."""
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
        """For an example that may have joined every step."""
        if not participation.every_step_alike:
            return None
        return group_score(executed, outputs, sigma, participation.one_prob, 1, weights)

    def dataset_size_of(self, participation: Poisson, batch_size: float) -> tuple[float, bool] | None:
        """For examples: each joins with one probability, which may have been rounded."""
        if not participation.every_step_alike:
            return None
        return batch_size / participation.one_prob, False

    def batch_size_of(self, participation: Poisson, planned: float) -> float:
        """The mean size of a truncated batch."""
        truncation = participation.truncation
        return planned if truncation is None else truncation.expected_batch_size

    def nodes_refusal(self, participation: Poisson) -> str:
        """For examples the whole profile is known."""
        if not participation.by_coins:
            return super().nodes_refusal(participation)
        return "whose profile is known everywhere at once"

    def structure(self, participation: Poisson) -> Structure:
        """Independent noise; an example may join every step."""
        if not participation.every_step_alike:
            return Structure(not_fitted=independent_noise_only(participation))
        return Structure(cycle=1)


SCHEME = PoissonScheme()
