"""Random allocation as a scheme."""

import numpy as np

from dpmech.engines import Accountant, Canary, Method, Pld
from dpmech.exceptions import UnsupportedCombinationError
from dpmech.mechanism import Mechanism
from dpmech.schemes.random_allocation.accountant import Allocated, of_allocation
from dpmech.schemes.random_allocation.participation import RandomAllocation
from dpmech.schemes.random_allocation.sampler import RandomAllocationSampler
from dpmech.schemes.scheme import Scheme, Structure, independent_noise_only


class RandomAllocationScheme(Scheme[RandomAllocation]):
    """Every example takes part in exactly k of the n steps, in a uniformly random set of them."""

    offers = {"canary": "RandomAllocation"}  # noqa: RUF012 - a constant
    samplers = {RandomAllocation: RandomAllocationSampler}  # noqa: RUF012 - a constant

    def default(self, participation: RandomAllocation) -> Method:
        """The composition of the privacy losses of blocks of steps."""
        del participation
        return Pld()

    def accountant(
        self,
        participation: RandomAllocation,
        mechanism: Mechanism,
        method: Method | None,
        rng: np.random.Generator | None,
    ) -> Accountant:
        """The composition of k allocations of one step of a block each, or samples."""
        return of_allocation(participation, mechanism, method, rng)

    def canary(self, participation: RandomAllocation, mechanism: Mechanism) -> Canary:
        """A canary in a uniformly random set of k steps, with independent noise."""
        if mechanism.strategy.bands != 1:
            raise UnsupportedCombinationError(
                f"no canary for {participation!r} with {mechanism.strategy!r}, which correlates noise",
                supported="Identity; BallsInBins for other strategies",
            )
        return Allocated(participation.participations, mechanism.strategy.column_norms())

    def structure(self, participation: RandomAllocation) -> Structure:
        """Independent noise."""
        return Structure(not_fitted=independent_noise_only(participation))


SCHEME = RandomAllocationScheme()
