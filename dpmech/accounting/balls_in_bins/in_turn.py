"""Accountants in turn: a default that refuses nothing which another of them could answer."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from dpmech.accounting.accountant import Accountant, Progress, Solution
from dpmech.accounting.methods import Method
from dpmech.exceptions import DpmechError, UnattainableBudgetError
from dpmech.numerics import Bounds

__all__ = ["InTurnAccountant"]

Answer = TypeVar("Answer")


class InTurnAccountant(Accountant):
    """The first accountant, and where it refuses the best of the others; what is returned says which it was.

    Args:
        first: answers where it can.
        others: the methods to try in its place, and what makes their accountants.
    """

    def __init__(self, first: Accountant, others: Sequence[tuple[Method, Callable[[], Accountant]]]) -> None:
        self.first = first
        self.others = others
        self.by, self.guarantee, self.sensitivity = first.by, first.guarantee, first.sensitivity

    def delta(self, sigma: float, eps: float, *, tolerance: float) -> Bounds:
        """Bounds on delta."""

        def asked(accountant: Accountant) -> Bounds:
            return accountant.delta(sigma, eps, tolerance=tolerance)

        return self._best(asked, lambda bounds: bounds.upper)[0]

    def epsilon(self, sigma: float, delta: float, *, tolerance: float) -> Bounds:
        """Bounds on eps."""

        def asked(accountant: Accountant) -> Bounds:
            return accountant.epsilon(sigma, delta, tolerance=tolerance)

        return self._best(asked, lambda bounds: bounds.upper)[0]

    def calibrate(self, eps: float, delta: float, *, rtol: float, progress: Progress) -> Solution:
        """A sigma that meets the budget; its `method` is the one that carried it."""

        def asked(accountant: Accountant) -> Solution:
            return accountant.calibrate(eps, delta, rtol=rtol, progress=progress)

        solution, method = self._best(asked, lambda found: found.sigma, progress)
        if method is None:
            return solution
        return Solution(solution.sigma, solution.achieved, method=method)

    def _best(
        self,
        asked: Callable[[Accountant], Answer],
        size: Callable[[Answer], float],
        progress: Progress = lambda _: None,
    ) -> tuple[Answer, Method | None]:
        try:
            return asked(self.first), None
        except UnattainableBudgetError:
            raise
        except ArithmeticError as error:  # NumericalError, or what leaves the range of float64
            refusal = error
        progress(f"{refusal}; bounds without samples take over")
        answers: list[tuple[Answer, Method]] = []
        for method, make in self.others:
            try:
                answers.append((asked(make()), method))
            except (DpmechError, ArithmeticError) as error:
                progress(f"{method!r}: {error}")
        if not answers:
            raise refusal
        return min(answers, key=lambda answer: size(answer[0]))
