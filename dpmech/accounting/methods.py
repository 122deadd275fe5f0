"""Method objects: which accountant to use, and with which settings."""

import concurrent.futures
import dataclasses
import math

from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_real
from dpmech.numerics import check_executor, error_of_level

__all__ = ["Certified", "Deterministic", "Exact", "Importance", "Method", "Pld", "Prv", "Rdp"]


@dataclasses.dataclass(frozen=True)
class Method:
    """Base of all method objects; None in place of one means the best valid default."""

    @property
    def error(self) -> float:
        """The probability that a result fails, over its own sampling; 0 where nothing is drawn."""
        return 0.0


@dataclasses.dataclass(frozen=True)
class Pld(Method):
    """Privacy loss distributions on a lattice, composed by FFT: a rigorous bracket at any delta."""


@dataclasses.dataclass(frozen=True)
class Prv(Method):
    """The PRV accountant of the prv-accountant package, in both directions, with its error bounds."""


@dataclasses.dataclass(frozen=True)
class Rdp(Method):
    """Renyi differential privacy: an upper bound only, loose at small eps."""


@dataclasses.dataclass(frozen=True)
class Exact(Method):
    """An exact formula without sampling; for Balls-in-Bins, the deterministic programme on Identity only."""


@dataclasses.dataclass(frozen=True)
class Importance(Method):
    """Balls-in-Bins by importance sampling: an estimate with a two-sided confidence interval.

    Args:
        rel_error: relative standard error of delta aimed at, in [1e-4, 0.5].
        confidence: level of the interval, in (0, 1); sigma uses its upper end.
        executor: where sampling blocks run; the result does not depend on it.
    """

    rel_error: float = 0.02
    confidence: float = 0.9999
    executor: concurrent.futures.Executor | None = None

    def __post_init__(self) -> None:
        check_real("rel_error", self.rel_error, minimum=1e-4, maximum=0.5)
        check_real(
            "confidence", self.confidence, minimum=0.0, maximum=1.0, open_minimum=True, open_maximum=True
        )
        check_executor(self.executor)

    @property
    def error(self) -> float:
        """1 - confidence."""
        return error_of_level(self.confidence)


@dataclasses.dataclass(frozen=True)
class Deterministic(Method):
    """Balls-in-Bins by the convex-order programme: an upper bound with no confidence level, at any delta.

    Args:
        rel_error: relative excess of delta aimed at on the dominating ring, in (0, 10].
    """

    rel_error: float = 0.05

    def __post_init__(self) -> None:
        check_real("rel_error", self.rel_error, minimum=0.0, maximum=10.0, open_minimum=True)


@dataclasses.dataclass(frozen=True)
class Certified(Method):
    """Balls-in-Bins by sampling with a rigorous finite-sample bound.

    Args:
        beta: probability that the bound fails, over all probes of one call, in (0, 1).
        executor: where sampling blocks run; the result does not depend on it.
    """

    beta: float = 1e-9
    executor: concurrent.futures.Executor | None = None

    def __post_init__(self) -> None:
        check_real("beta", self.beta, minimum=0.0, maximum=1.0, open_minimum=True, open_maximum=True)
        check_executor(self.executor)

    @property
    def error(self) -> float:
        """Beta."""
        return self.beta

    def shared(self, trials: int) -> "Certified":
        """The method for one of several tries that may not fail more often together than this one."""
        # Rounded down: the shares must not add up to more.
        return dataclasses.replace(
            self, beta=math.nextafter(self.beta / trials, 0.0) if trials > 1 else self.beta
        )


def check_method(value: object) -> Method | None:
    """Return a method object or None, else raise InvalidParameterError."""
    if value is not None and not isinstance(value, Method):
        raise InvalidParameterError("method", value, "None or a method object such as dm.Pld()")
    return value
