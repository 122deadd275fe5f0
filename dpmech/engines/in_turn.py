"""Accountants in turn: a default that refuses nothing which another of them could answer."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, NamedTuple, TypeVar

from dpmech.engines.accountant import Accountant, Progress, Solution
from dpmech.engines.gaussian_mixture import FarAimError
from dpmech.engines.profiles import PrivacyProfile
from dpmech.exceptions import DpmechError, UnattainableBudgetError, WorkLimitError
from dpmech.mechanism import Adjacency
from dpmech.methods import Method
from dpmech.numerics import Bounds, metered

Answer = TypeVar("Answer")

# A sigma that was aimed at so far above the right one, in log, is compared with what the others have.
_WIDE = 0.05


class Turn(NamedTuple):
    """An accountant to ask where the first one refuses.

    Attributes:
        method: its method.
        make: what makes it.
        seconds: the work that it may take, as `spend` counts it; infinite where it needs no limit.
        spare: it is asked only where none before it has answered.
        again: it is asked only where the first one refused as it would aim too far above the right sigma.
    """

    method: Method
    make: Callable[[], Accountant]
    seconds: float = math.inf
    spare: bool = False
    again: bool = False

    def budget(self) -> contextlib.AbstractContextManager[None]:
        """Inside, what it may take is counted, not timed: the same ones answer on every machine."""
        return metered(self.seconds, math.inf)


class InTurnAccountant(Accountant):
    """The first accountant, and where it refuses the best of the others; what is returned says which it was.

    Args:
        first: answers where it can.
        others: those to ask in its place; one whose work goes beyond its limit counts as having refused.
    """

    evaluates: ClassVar[bool] = False

    def __init__(self, first: Accountant, others: Sequence[Turn]) -> None:
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

        solution, method = self._best(
            asked, lambda found: found.sigma, progress, enough=lambda found: found.excess <= _WIDE
        )
        return solution if method is None else dataclasses.replace(solution, method=method)

    def profile(self, sigma: float, adjacency: Adjacency, *, rel_error: float) -> PrivacyProfile:
        """Of the first accountant in turn that gives one."""
        try:
            return self.first.profile(sigma, adjacency, rel_error=rel_error)
        except ArithmeticError as error:
            refusal = error
        for turn in self.others:
            try:
                with turn.budget():
                    return turn.make().profile(sigma, adjacency, rel_error=rel_error)
            except (DpmechError, ArithmeticError):
                continue
        raise refusal

    def _best(
        self,
        asked: Callable[[Accountant], Answer],
        size: Callable[[Answer], float],
        progress: Progress = lambda _: None,
        enough: Callable[[Answer], bool] = lambda _: True,
    ) -> tuple[Answer, Method | None]:
        """What the first accountant answers, or the smallest answer of all, with the method of another."""
        answers: list[tuple[Answer, Method | None]] = []
        refusal: ArithmeticError | None = None
        try:
            answers.append((asked(self.first), None))
        except UnattainableBudgetError:
            raise
        except ArithmeticError as error:  # NumericalError, or what leaves the range of float64
            refusal = error
            progress(f"{refusal}; bounds without samples take over")
        if answers and enough(answers[0][0]):
            return answers[0]
        answers += self._others(asked, progress, far=isinstance(refusal, FarAimError))
        if not answers and refusal is not None:
            raise refusal
        found, carried = min(answers, key=lambda answer: size(answer[0]))
        progress(f"{self.method if carried is None else repr(carried)} answers, of {len(answers)} that could")
        return found, carried

    def _others(
        self, asked: Callable[[Accountant], Answer], progress: Progress, *, far: bool
    ) -> Iterator[tuple[Answer, Method]]:
        """Their answers, and their methods, but for those that refuse or would work too long."""
        answered = False
        for turn in self.others:
            if (turn.spare and answered) or (turn.again and not far):
                continue
            method = turn.method
            try:
                with turn.budget():
                    answer = asked(turn.make())
            except WorkLimitError as error:
                progress(
                    f"{method!r}: {error.what} takes the work to about {error.estimate[0]:.3g} s, above the "
                    f"{error.allowed[0]:.3g} s that it may take here; method={method!r} has no limit"
                )
            except (DpmechError, ArithmeticError) as error:
                progress(f"{method!r}: {error}")
            else:
                answered = True
                yield answer, method
