"""PrivateSelection: tuning with a secret number of runs, of which only the best is released."""

import math
from collections.abc import Callable, Sequence
from typing import Never, TypeVar

import numpy as np

from dpmech.engines import PrivacyProfile, RunCount
from dpmech.exceptions import InvalidParameterError, UnsupportedCombinationError
from dpmech.guards import check_rng

Candidate = TypeVar("Candidate")
Result = TypeVar("Result")


class PrivateSelection:
    """The best of a secret, random number of private runs, and its privacy cost.

    `best` draws the number of runs and a uniform candidate for each run, makes the runs, and returns the run
    with the highest score. The cost, `profile`, covers both the tuning and the released run.

    The code cannot check the following assumptions:

    - Each run is private by itself, **including its score**: `run` covers all data that `train` reads. A
      score from validation data of the same people is a release that `run` must include. A score from public
      data has no privacy cost.
    - Runs are independent: each run has fresh noise and fresh batches, and only the candidate differs.
    - **The number of runs stays secret**, and so does every run except the best one. No log, progress bar,
      timing or bill that others can read may reveal them. The proof does not protect against anyone who knows
      the number. This object does not reveal the number, cannot be copied and is not written to files.

    Args:
        run: the profile of one run. If candidates differ in noise or sampling, it must hold for each of them.
        runs: the distribution of the number of runs, dm.ledgers.NegativeBinomialRuns or
            dm.ledgers.PoissonRuns.
        rng: None uses the operating system. With a different generator, anyone who knows its state knows the
            number, so use one only in tests.

    Raises:
        InvalidParameterError: if an argument is invalid.

    Examples:
        >>> import dpmech as dm
        >>> once = dm.profile(dm.Identity(8), 20.0, participation=dm.FixedEpochs(2))
        >>> selection = dm.ledgers.PrivateSelection(once, dm.ledgers.NegativeBinomialRuns.of_mean(6.0))
        >>> found = selection.best(lambda rate: (-abs(rate - 0.2), f"trained at {rate}"), [0.2])
        >>> found
        (0.2, 'trained at 0.2')
        >>> round(once.epsilon(1e-6).upper, 2), round(selection.profile.epsilon(1e-6).upper, 2)
        (0.27, 0.37)
    """

    def __init__(
        self, run: PrivacyProfile, runs: RunCount, *, rng: np.random.Generator | int | None = None
    ) -> None:
        if not isinstance(run, PrivacyProfile):
            raise InvalidParameterError("run", run, "the PrivacyProfile of one run")
        if not isinstance(runs, RunCount):
            raise InvalidParameterError(
                "runs", runs, "a dm.ledgers.PoissonRuns or a dm.ledgers.NegativeBinomialRuns"
            )
        self.run = run
        self.runs = runs
        self._rng = check_rng(rng)
        self._spent = False
        self._profile: PrivacyProfile | None = None

    @property
    def profile(self) -> PrivacyProfile:
        """The profile of the result of `best`; errors as in `PrivacyProfile.private_selection`."""
        if self._profile is None:
            self._profile = self.run.private_selection(self.runs)
        return self._profile

    def best(
        self, train: Callable[[Candidate], tuple[float, Result]], candidates: Sequence[Candidate]
    ) -> tuple[Candidate, Result] | None:
        """Make the runs, and return the best candidate with its result; callable once.

        Args:
            train: makes one private run with a candidate, and returns (score, result). Higher scores are
                better, and a NaN is the lowest score. `train` must not reveal how often it was called. If it
                raises an error, the selection ends, and the profile does not cover what the error reveals.
            candidates: at least one candidate, fixed independently of the data. Each run uses a random one.

        Returns:
            (candidate, result); ties are broken at random. None if no run was drawn, which happens under
            PoissonRuns only.

        Raises:
            InvalidParameterError: without candidates, or if a score is not a number.
            UnsupportedCombinationError: on the second call, which would be a second release.
        """
        if isinstance(candidates, str) or not isinstance(candidates, Sequence) or not candidates:
            raise InvalidParameterError("candidates", candidates, "a sequence with at least one candidate")
        if self._spent:
            raise UnsupportedCombinationError(
                "this selection was made already, and a second one is another release",
                supported="a new dm.ledgers.PrivateSelection, in the ledger next to this one",
            )
        self._spent = True
        coins = np.random.default_rng() if self._rng is None else self._rng
        found: tuple[tuple[float, float], Candidate, Result] | None = None
        for _ in range(self.runs.draw(self._rng)):
            candidate = candidates[int(coins.integers(len(candidates)))]
            score, result = train(candidate)
            rank = _rank(score), float(coins.random())
            if found is None or rank > found[0]:
                found = rank, candidate, result
        return None if found is None else (found[1], found[2])

    def __repr__(self) -> str:
        return f"PrivateSelection({self.run!r}, {self.runs!r})"

    def __reduce__(self) -> Never:
        raise UnsupportedCombinationError(
            "a selection holds what must stay secret, and has no copy in a file",
            supported="its `run` and `runs`, of which another selection can be made",
        )


def _rank(score: object) -> float:
    try:
        number = float(score)  # type: ignore[arg-type]  # non-numbers are refused below
    except (TypeError, ValueError):
        raise InvalidParameterError("score", type(score).__name__, "a number: higher is better") from None
    return -math.inf if math.isnan(number) else number
