"""Cyclic Poisson sampling as a scheme."""

import numpy as np

from dpmech.engines import Accountant, Method, Pld
from dpmech.mechanism import Mechanism
from dpmech.schemes.batch_rule import BatchRule
from dpmech.schemes.cyclic_poisson.participation import CyclicPoisson, UserCyclicPoisson
from dpmech.schemes.cyclic_poisson.sampler import CyclicPoissonSampler, UserCyclicPoissonSampler
from dpmech.schemes.poisson import of_examples, of_users
from dpmech.schemes.releases import least_of_a_group
from dpmech.schemes.scheme import Scheme


class CyclicPoissonScheme(Scheme[CyclicPoisson | UserCyclicPoisson]):
    """Fixed groups take turns; the group whose turn it is is Poisson-sampled."""

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


SCHEME = CyclicPoissonScheme()
