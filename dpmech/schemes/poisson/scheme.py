"""Poisson sampling as a scheme."""

import numpy as np

from dpmech.engines import Accountant, Method, Pld
from dpmech.mechanism import Mechanism
from dpmech.schemes.batch_rule import BatchRule
from dpmech.schemes.poisson.accountant import of_examples, of_users
from dpmech.schemes.poisson.participation import Poisson, UserPoisson
from dpmech.schemes.poisson.sampler import PoissonSampler, UserPoissonSampler
from dpmech.schemes.releases import least_of_equals
from dpmech.schemes.scheme import Scheme


class PoissonScheme(Scheme[Poisson | UserPoisson]):
    """Every example joins every step independently."""

    samplers = {Poisson: PoissonSampler, UserPoisson: UserPoissonSampler}  # noqa: RUF012 - a constant

    def default(self, participation: Poisson | UserPoisson) -> Method:
        """The composition of the losses of all releases."""
        del participation
        return Pld()

    def accountant(
        self,
        participation: Poisson | UserPoisson,
        mechanism: Mechanism,
        method: Method | None,
        rng: np.random.Generator | None,
    ) -> Accountant:
        """T Poisson-sampled releases, composed."""
        del rng
        least = least_of_equals(mechanism)
        if isinstance(participation, UserPoisson):
            return of_users(mechanism, method, participation.sampling_prob, least)
        return of_examples(mechanism, method, participation.sampling_prob, least)

    def batch_rule(self, participation: Poisson | UserPoisson, n: int) -> BatchRule:
        """Nothing: every step is sampled anew."""
        del participation, n
        return BatchRule(None)


SCHEME = PoissonScheme()
