"""Cyclic Poisson sampling as a scheme."""

import numpy as np

from dpmech.engines import (
    Accountant,
    Canary,
    Method,
    Pld,
    accountant_of_examples,
    accountant_of_users,
    canary_of_group,
    group_score,
    least_of_a_group,
)
from dpmech.mechanism import Mechanism, Strategy
from dpmech.numerics import FloatArray
from dpmech.schemes.cyclic_poisson.participation import CyclicPoisson
from dpmech.schemes.cyclic_poisson.sampler import CyclicPoissonSampler
from dpmech.schemes.scheme import BatchRule, Scheme, Structure, as_of_one_example


class CyclicPoissonScheme(Scheme[CyclicPoisson]):
    """Fixed groups take turns; the active group is Poisson-sampled."""

    offers = {  # noqa: RUF012 - a constant
        "canary": "CyclicPoisson",
        "event": "bands under CyclicPoisson",
        "fit": "CyclicPoisson",
        "risk": "CyclicPoisson",
    }
    samplers = {CyclicPoisson: CyclicPoissonSampler}  # noqa: RUF012 - a constant

    def default(self, participation: CyclicPoisson) -> Method:
        """The composition of the privacy losses of all releases."""
        del participation
        return Pld()

    def accountant(
        self,
        participation: CyclicPoisson,
        mechanism: Mechanism,
        method: Method | None,
        rng: np.random.Generator | None,
    ) -> Accountant:
        """The turns of one group are Poisson-sampled releases, whose columns of C are orthogonal."""
        del rng
        least, prob = least_of_a_group(mechanism, participation.cycle), participation.sampling_prob
        if participation.unit is not None:
            return accountant_of_users(mechanism, method, prob, least)
        return accountant_of_examples(mechanism, method, prob, least)

    def batch_rule(self, participation: CyclicPoisson, n: int) -> BatchRule:
        """Every example stays in one group."""
        return BatchRule(participation.pattern(n), cycle=participation.cycle)

    def canary(self, participation: CyclicPoisson, mechanism: Mechanism) -> Canary:
        """A canary in the group with the largest sum of squares."""
        return canary_of_group(participation, mechanism, participation.cycle)

    def canary_score(
        self,
        participation: CyclicPoisson,
        executed: Strategy,
        outputs: FloatArray,
        sigma: float,
        weights: FloatArray,
    ) -> FloatArray | None:
        """For an example whose group is not known."""
        if participation.unit is not None:
            return None
        prob, cycle = participation.sampling_prob, participation.cycle
        return group_score(executed, outputs, sigma, prob, cycle, weights)

    def dataset_size_of(self, participation: CyclicPoisson, batch_size: float) -> tuple[float, bool] | None:
        """For examples: the group is sampled with one probability, which may have been rounded."""
        if participation.unit is not None:
            return None
        return batch_size * participation.cycle / participation.sampling_prob, False

    def nodes_refusal(self, participation: CyclicPoisson) -> str:
        """For examples the whole profile is known."""
        if participation.unit is not None:
            return super().nodes_refusal(participation)
        return "whose profile is known everywhere at once"

    def structure(self, participation: CyclicPoisson) -> Structure:
        """The turns of a group; a strategy that is optimal for one example is also optimal for users."""
        if participation.unit is not None:
            refusal = as_of_one_example(participation, "CyclicPoisson")
            return Structure(cycle=participation.cycle, not_fitted=refusal)
        return Structure(cycle=participation.cycle)


SCHEME = CyclicPoissonScheme()
