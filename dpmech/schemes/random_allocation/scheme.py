"""Random allocation as a scheme."""

import numpy as np

from dpmech.engines import Accountant, Canary, Certified, Method, Pld
from dpmech.exceptions import UnsupportedCombinationError
from dpmech.mechanism import Mechanism
from dpmech.schemes.random_allocation.accountant import Allocated, group_columns, of_allocation
from dpmech.schemes.random_allocation.participation import RandomAllocation
from dpmech.schemes.random_allocation.sampler import RandomAllocationSampler
from dpmech.schemes.scheme import BatchRule, Scheme, Structure, independent_noise_only


class RandomAllocationScheme(Scheme[RandomAllocation]):
    """Every example takes part in exactly k of the n steps, or of those of its group, in a random set."""

    offers = {"canary": "RandomAllocation", "fit": "RandomAllocation with a cycle"}  # noqa: RUF012 - constant
    samplers = {RandomAllocation: RandomAllocationSampler}  # noqa: RUF012 - a constant

    def default(self, participation: RandomAllocation) -> Method:
        """The composition of the privacy losses of blocks of steps; calibrations may use samples instead."""
        del participation
        return Pld()

    def shared(self, participation: RandomAllocation, calls: int) -> Method | None:
        """The default, whose samples have a share of beta."""
        del participation
        return Certified(calls=calls) if calls > 1 else None

    def unsampled(self, participation: RandomAllocation) -> Method:
        """The composition of blocks, for calibrations too."""
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

    def batch_rule(self, participation: RandomAllocation, n: int) -> BatchRule:
        """With groups every example stays in one."""
        groups = participation.cycle if participation.cycle > 1 else None
        return BatchRule(participation.pattern(n), cycle=groups)

    def canary(self, participation: RandomAllocation, mechanism: Mechanism) -> Canary:
        """A canary in a random set of k steps: with groups, of the one with the largest sum of squares."""
        if participation.cycle > 1:
            return Allocated(participation.participations, *group_columns(participation, mechanism))
        if mechanism.strategy.bands != 1:
            raise UnsupportedCombinationError(
                f"no canary for {participation!r} with {mechanism.strategy!r}, which correlates noise",
                supported="Identity; BallsInBins for other strategies",
            )
        steps, norms = np.arange(mechanism.steps), mechanism.strategy.column_norms()
        return Allocated(participation.participations, steps, np.diag(norms))

    def structure(self, participation: RandomAllocation) -> Structure:
        """The turns of a group; else independent noise."""
        if participation.cycle > 1:
            return Structure(cycle=participation.cycle)
        return Structure(not_fitted=independent_noise_only(participation))


SCHEME = RandomAllocationScheme()
