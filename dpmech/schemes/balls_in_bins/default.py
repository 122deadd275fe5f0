"""The default of Balls-in-Bins for examples: without samples where that is as good, else by samples."""

import dataclasses
import math
from collections.abc import Callable, Sequence

from dpmech.engines import (
    CertifiedAccountant,
    DeterministicAccountant,
    InTurnAccountant,
    Progress,
    Solution,
    Turn,
)
from dpmech.exceptions import ContradictionError, DpmechError, NumericalError, UnattainableBudgetError
from dpmech.numerics import metered

# Largest excess of sigma, in log, that the matrix without samples may add. Proofs by samples aim 0.1 % above
# the smallest sigma or more, so that sigma is within about 0.3 % of theirs (page.md).
CLOSE_ENOUGH = 0.003
# A proof by sampling whose target is further above the true sigma, in log, is tried after such a matrix.
NEAR = 0.008
# Below this eps, transforms take longer than samples.
LEAST_EPS = 0.2
# Limit on its work.
_CLOSE_SECONDS = 60.0


class DeterministicFirst(InTurnAccountant):
    """Calibrates without samples where the plan says that sigma is nearly the same, or that of samples high.

    Samples prove both ends of delta and of eps, so that these are left to them everywhere.

    Args:
        first: the accountant by samples.
        others: those tried instead of it.
        close: makes the accountant without samples, which serves where its matrix is close to that of the
            strategy.
        at_once: limit on its work before samples are tried; 0 if they are always tried before it.
    """

    def __init__(
        self,
        first: CertifiedAccountant,
        others: Sequence[Turn],
        close: Callable[[], DeterministicAccountant],
        at_once: float,
    ) -> None:
        super().__init__(first, others)
        self.samples, self.close, self.at_once = first, close, at_once

    def calibrate(self, eps: float, delta: float, *, rtol: float, progress: Progress) -> Solution:
        """A sigma that meets the budget: the same in every call where no samples are drawn."""
        accountant = self.close()
        if (
            self.at_once > 0.0
            and eps >= LEAST_EPS
            and accountant.clear(eps, delta)
            and accountant.foreseen_excess(eps, delta) <= CLOSE_ENOUGH
        ):
            try:
                with metered(self.at_once, math.inf):
                    found = accountant.calibrate(eps, delta, rtol=rtol, progress=progress)
                return dataclasses.replace(found, method=accountant.settings)
            except (UnattainableBudgetError, ContradictionError):
                raise
            except (DpmechError, ArithmeticError) as error:
                progress(f"{accountant.settings!r}: {error}; samples take over")

        def close() -> DeterministicAccountant:
            if accountant.foreseen_excess(eps, delta) > CLOSE_ENOUGH:
                raise NumericalError("no ring with one exponential is close to the Gram matrix")
            return accountant

        turns = (
            Turn(accountant.settings, close, _CLOSE_SECONDS),
            # aims further up than `NEAR`
            Turn(self.samples.settings, lambda: self.samples, again=True),
            *self.others,
        )
        near = InTurnAccountant(self.samples.reaching(NEAR), turns)
        return near.calibrate(eps, delta, rtol=rtol, progress=progress)
