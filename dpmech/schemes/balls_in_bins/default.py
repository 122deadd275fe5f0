"""The default of Balls-in-Bins for examples: without samples where that is as good, else by samples."""

import dataclasses
from collections.abc import Sequence

from dpmech.engines import Accountant, InTurnAccountant, Progress, Solution, Turn
from dpmech.exceptions import ContradictionError, DpmechError, UnattainableBudgetError

# Largest excess of sigma, in log, that the matrix without samples may add. With the error of the evaluations
# and the tolerance of the search sigma is then within 0.3 % of that by samples (docs/balls_in_bins.md).
CLOSE_ENOUGH = 0.0015


class DeterministicFirst(InTurnAccountant):
    """Calibrates without samples where the plan alone says that sigma is nearly the same; else as before.

    Samples prove both ends of delta and of eps, so that these are left to them everywhere.

    Args:
        first: the accountant by samples.
        others: those tried instead of it.
        unsampled: the turn of the accountant without samples, and its limit on work.
    """

    def __init__(self, first: Accountant, others: Sequence[Turn], unsampled: Turn) -> None:
        super().__init__(first, others)
        self.unsampled = unsampled

    def calibrate(self, eps: float, delta: float, *, rtol: float, progress: Progress) -> Solution:
        """A sigma that meets the budget: the same in every call where no samples are drawn."""
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
        return super().calibrate(eps, delta, rtol=rtol, progress=progress)
