"""Poisson sampling as a scheme."""

import numpy as np

from dpmech.engines import Accountant, Canary, Method, Pld, group_score
from dpmech.mechanism import Mechanism, Strategy
from dpmech.numerics import FloatArray
from dpmech.schemes.poisson.accountant import of_examples, of_group, of_users
from dpmech.schemes.poisson.participation import Poisson, UserPoisson
from dpmech.schemes.poisson.sampler import PoissonSampler, UserPoissonSampler
from dpmech.schemes.releases import least_of_equals
from dpmech.schemes.scheme import BatchRule, Scheme, Structure, independent_noise_only


class PoissonScheme(Scheme[Poisson | UserPoisson]):
    """Every example joins every step independently."""

    offers = {  # noqa: RUF012 - a constant
        "canary": "Poisson",
        "event": "Identity under Poisson",
        "risk": "Poisson",
    }
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

    def canary(self, participation: Poisson | UserPoisson, mechanism: Mechanism) -> Canary:
        """It may join every step."""
        return of_group(participation, mechanism, 1)

    def canary_score(
        self,
        participation: Poisson | UserPoisson,
        executed: Strategy,
        outputs: FloatArray,
        sigma: float,
        weights: FloatArray,
    ) -> FloatArray | None:
        """Of an example: it may have joined every step."""
        if isinstance(participation, UserPoisson):
            return None
        return group_score(executed, outputs, sigma, participation.sampling_prob, 1, weights)

    def dataset_size_of(
        self, participation: Poisson | UserPoisson, batch_size: float
    ) -> tuple[float, bool] | None:
        """Of examples: every one joins with one probability, which may have been rounded."""
        if isinstance(participation, UserPoisson):
            return None
        return batch_size / participation.sampling_prob, False

    def nodes_refusal(self, participation: Poisson | UserPoisson) -> str:
        """Of examples the whole curve is known."""
        if isinstance(participation, UserPoisson):
            return super().nodes_refusal(participation)
        return "whose profile is known everywhere at once"

    def structure(self, participation: Poisson | UserPoisson) -> Structure:
        """Independent noise; every step may be joined."""
        if isinstance(participation, UserPoisson):
            return Structure(not_fitted=independent_noise_only(participation))
        return Structure(cycle=1)


SCHEME = PoissonScheme()
