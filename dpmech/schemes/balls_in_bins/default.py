"""The default of Balls-in-Bins for examples: without samples where that is as good, else by samples."""

import dataclasses
from collections.abc import Callable, Sequence

from dpmech.engines import (
    CertifiedAccountant,
    Deterministic,
    DeterministicAccountant,
    InTurnAccountant,
    Progress,
    Solution,
    Turn,
)
from dpmech.exceptions import ContradictionError, DpmechError, NumericalError, UnattainableBudgetError

# Largest excess of sigma, in log, that the matrix without samples may add. With the error of the evaluations
# and the tolerance of the search sigma is then within 0.3 % of that by samples (docs/balls_in_bins.md).
CLOSE_ENOUGH = 0.0015
# A proof by sampling whose target is further above the true sigma, in log, is tried after such a matrix.
NEAR = 0.008
# Limit on its work.
_CLOSE_SECONDS = 60.0


class DeterministicFirst(InTurnAccountant):
    """Calibrates without samples where the plan says that sigma is nearly the same, or that of samples high.

    Samples prove both ends of delta and of eps, so that these are left to them everywhere.

    Args:
        first: the accountant by samples.
        others: those tried instead of it.
        unsampled: the turn of the accountant without samples, and its limit on work; None if samples are
            always tried before it.
        close: makes the accountant that is tried first where the target of samples is high and its matrix is
            close to that of the strategy.
    """

    def __init__(
        self,
        first: CertifiedAccountant,
        others: Sequence[Turn],
        unsampled: Turn | None,
        close: Callable[[], DeterministicAccountant],
    ) -> None:
        super().__init__(first, others)
        self.samples, self.unsampled, self.close = first, unsampled, close

    def calibrate(self, eps: float, delta: float, *, rtol: float, progress: Progress) -> Solution:
        """A sigma that meets the budget: the same in every call where no samples are drawn."""
        if self.unsampled is not None:
            try:
                with self.unsampled.budget():
                    accountant = self.unsampled.make()
                    if accountant.foreseen_excess(eps, delta) <= CLOSE_ENOUGH:
                        found = accountant.calibrate(eps, delta, rtol=rtol, progress=progress)
                        return dataclasses.replace(found, method=self.unsampled.method)
            except (UnattainableBudgetError, ContradictionError):
                raise
            except (DpmechError, ArithmeticError) as error:
                progress(f"{self.unsampled.method!r}: {error}; samples take over")

        def close() -> DeterministicAccountant:
            accountant = self.close()
            if accountant.ring_excess(eps, delta) > CLOSE_ENOUGH:
                raise NumericalError("no ring with one exponential is close to the Gram matrix")
            return accountant

        turns = (
            Turn(Deterministic(), close, _CLOSE_SECONDS),
            # aims further up than `NEAR`
            Turn(self.samples.settings, lambda: self.samples, again=True),
            *self.others,
        )
        near = InTurnAccountant(self.samples.reaching(NEAR), turns)
        return near.calibrate(eps, delta, rtol=rtol, progress=progress)
