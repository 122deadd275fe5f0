"""A default that tries several accountants: it answers whenever one of them does."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, NamedTuple, TypeVar

from dpmech.engines.accountant import Accountant, Progress, Solution
from dpmech.engines.gaussian_mixture import FarAimError
from dpmech.engines.profiles import PrivacyProfile
from dpmech.exceptions import ContradictionError, DpmechError, UnattainableBudgetError, WorkLimitError
from dpmech.mechanism import Adjacency
from dpmech.methods import Method
from dpmech.numerics import Bounds, metered

Answer = TypeVar("Answer")

# If a sigma targets an excess above this, in log, it is compared with the results of other accountants.
_WIDE = 0.05


class Turn(NamedTuple):
    """An accountant to try if the first one refuses.

    Attributes:
        method: its method.
        make: creates the accountant.
        seconds: limit on its work, as counted by `spend`; infinite if it needs no limit.
        spare: whether it is tried only if no accountant before it has answered.
        again: whether it is tried only if the first one refused to aim too far above the right sigma, no
            answer is below where that one would have aimed, and no other such turn has tested anything: each
            has the whole failure probability.
    """

    method: Method
    make: Callable[[], Accountant]
    seconds: float = math.inf
    spare: bool = False
    again: bool = False

    def budget(self) -> contextlib.AbstractContextManager[None]:
        """A context in which work is counted, not timed, so that the choice is the same on every machine."""
        return metered(self.seconds, math.inf)


class InTurnAccountant(Accountant):
    """The first accountant or, if it refuses, the best of the others; results name the method used.

    Args:
        first: the accountant that is tried first.
        others: those tried instead; one that exceeds its work limit counts as having refused.
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
        """A sigma that meets the budget; its `method` is the one that produced it."""

        def asked(accountant: Accountant) -> Solution:
            return accountant.calibrate(eps, delta, rtol=rtol, progress=progress)

        solution, method = self._best(
            asked, lambda found: found.sigma, progress, enough=lambda found: found.excess <= _WIDE
        )
        return dataclasses.replace(solution, method=solution.method or method)

    def profile(self, sigma: float, adjacency: Adjacency, *, rel_error: float) -> PrivacyProfile:
        """The profile of the first accountant that provides one."""
        try:
            return self.first.profile(sigma, adjacency, rel_error=rel_error)
        except ContradictionError:
            raise
        except ArithmeticError as error:
            refusal = error
        for turn in self.others:
            if turn.again:  # the same samples, whose failure probability the first one may have spent
                continue
            try:
                with turn.budget():
                    return turn.make().profile(sigma, adjacency, rel_error=rel_error)
            except ContradictionError:
                raise
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
        """The first accountant's answer, or the smallest answer with the method that gave it."""
        answers: list[tuple[Answer, Method | None]] = []
        refusal: ArithmeticError | None = None
        try:
            answers.append((asked(self.first), None))
        except (UnattainableBudgetError, ContradictionError):
            raise
        except ArithmeticError as error:  # NumericalError, or overflow of float64
            refusal = error
            progress(f"{refusal}; bounds without samples take over")
        if answers and enough(answers[0][0]):
            return answers[0]
        answers += self._others(asked, size, progress, refusal)
        if not answers and refusal is not None:
            raise refusal
        found, carried = min(answers, key=lambda answer: size(answer[0]))
        progress(f"{self.method if carried is None else repr(carried)} answers, of {len(answers)} that could")
        return found, carried

    def _others(
        self,
        asked: Callable[[Accountant], Answer],
        size: Callable[[Answer], float],
        progress: Progress,
        refusal: ArithmeticError | None,
    ) -> Iterator[tuple[Answer, Method]]:
        """Answers and methods of the others, except those that refuse or exceed their work limit."""
        least, tested = math.inf, False
        for turn in self.others:
            if turn.spare and least < math.inf:
                continue
            if turn.again and (tested or not isinstance(refusal, FarAimError) or least < refusal.point):
                continue
            method = turn.method
            try:
                with turn.budget():
                    answer = asked(turn.make())
            except ContradictionError:
                raise
            except WorkLimitError as error:
                tested = tested or turn.again
                progress(
                    f"{method!r}: {error.what} takes the work to about {error.estimate[0]:.3g} s, above the "
                    f"{error.allowed[0]:.3g} s that it may take here; method={method!r} has no limit"
                )
            except (DpmechError, ArithmeticError) as error:
                tested = tested or (turn.again and not isinstance(error, FarAimError))
                progress(f"{method!r}: {error}")
            else:
                least, tested = min(least, size(answer)), tested or turn.again
                yield answer, method
