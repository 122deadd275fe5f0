"""Cyclic Poisson sampling as a scheme."""

import numpy as np

from dpmech.engines import Accountant, Canary, Method, Pld, group_score
from dpmech.mechanism import Mechanism, Strategy
from dpmech.numerics import FloatArray
from dpmech.schemes.cyclic_poisson.participation import CyclicPoisson, UserCyclicPoisson
from dpmech.schemes.cyclic_poisson.sampler import CyclicPoissonSampler, UserCyclicPoissonSampler
from dpmech.schemes.poisson import of_examples, of_group, of_users
from dpmech.schemes.releases import least_of_a_group
from dpmech.schemes.scheme import BatchRule, Scheme, Structure, as_of_one_example


class CyclicPoissonScheme(Scheme[CyclicPoisson | UserCyclicPoisson]):
    """Fixed groups take turns; the group whose turn it is is Poisson-sampled."""

    offers = {  # noqa: RUF012 - a constant
        "canary": "CyclicPoisson",
        "event": "bands under CyclicPoisson",
        "fit": "CyclicPoisson",
        "risk": "CyclicPoisson",
    }
    samplers = {CyclicPoisson: CyclicPoissonSampler, UserCyclicPoisson: UserCyclicPoissonSampler}  # noqa: RUF012 - a constant

    def default(self, participation: CyclicPoisson | UserCyclicPoisson) -> Method:
        """The composition of the losses of all releases."""
        del participation
        return Pld()

    def accountant(
        self,
        participation: CyclicPoisson | UserCyclicPoisson,
        mechanism: Mechanism,
        method: Method | None,
        rng: np.random.Generator | None,
    ) -> Accountant:
        """The turns of one group are Poisson-sampled releases; the columns of theirs are orthogonal."""
        del rng
        if isinstance(participation, UserCyclicPoisson):
            return of_users(
                mechanism,
                method,
                participation.sampling_prob,
                least_of_a_group(mechanism, participation.cycle),
            )
        return of_examples(
            mechanism, method, participation.sampling_prob, least_of_a_group(mechanism, participation.cycle)
        )

    def batch_rule(self, participation: CyclicPoisson | UserCyclicPoisson, n: int) -> BatchRule:
        """Everyone stays in one group."""
        return BatchRule(participation.pattern(n), cycle=participation.cycle)

    def canary(self, participation: CyclicPoisson | UserCyclicPoisson, mechanism: Mechanism) -> Canary:
        """In the group with the largest sum of squares."""
        return of_group(participation, mechanism, participation.cycle)

    def canary_score(
        self,
        participation: CyclicPoisson | UserCyclicPoisson,
        executed: Strategy,
        outputs: FloatArray,
        sigma: float,
        weights: FloatArray,
    ) -> FloatArray | None:
        """Of an example, in a group that nobody knows."""
        if isinstance(participation, UserCyclicPoisson):
            return None
        prob, cycle = participation.sampling_prob, participation.cycle
        return group_score(executed, outputs, sigma, prob, cycle, weights)

    def dataset_size_of(
        self, participation: CyclicPoisson | UserCyclicPoisson, batch_size: float
    ) -> tuple[float, bool] | None:
        """Of examples: a group joins with one probability, which may have been rounded."""
        if isinstance(participation, UserCyclicPoisson):
            return None
        return batch_size * participation.cycle / participation.sampling_prob, False

    def nodes_refusal(self, participation: CyclicPoisson | UserCyclicPoisson) -> str:
        """Of examples the whole curve is known."""
        if isinstance(participation, UserCyclicPoisson):
            return super().nodes_refusal(participation)
        return "whose profile is known everywhere at once"

    def structure(self, participation: CyclicPoisson | UserCyclicPoisson) -> Structure:
        """The turns of a group; of users what is best for one example is best for them."""
        if isinstance(participation, UserCyclicPoisson):
            refusal = as_of_one_example(participation, "CyclicPoisson")
            return Structure(cycle=participation.cycle, not_fitted=refusal)
        return Structure(cycle=participation.cycle)


SCHEME = CyclicPoissonScheme()
