"""Method objects: the accountant to use and its settings."""

import concurrent.futures
import dataclasses
import math
from fractions import Fraction
from typing import ClassVar

from dpmech.exceptions import InvalidParameterError, UnsupportedCombinationError
from dpmech.guards import check_confidence, check_integer, check_real
from dpmech.numerics import BOUND, Guarantee, Kind, check_executor, error_of_level, rounded_down

# Default beta of `Certified`: the smaller of 1e-9 and delta / 1000.
_LARGEST_BETA, _PARTS_OF_DELTA = 1e-9, 1000.0


@dataclasses.dataclass(frozen=True)
class Method:
    """Base class of all method objects. None instead of a method selects the best valid default.

    Attributes:
        draws: whether results depend on random samples.
        estimates: whether results are estimates, which cannot serve as evidence.
        composes: whether it composes different kinds of releases.
        by_moments: whether it composes them by Renyi divergences.
    """

    draws: ClassVar[bool] = False
    estimates: ClassVar[bool] = False
    composes: ClassVar[bool] = False
    by_moments: ClassVar[bool] = False

    @property
    def keeps_randomness(self) -> bool:
        """Whether its random numbers are part of the certified procedure, and cannot be used again."""
        return self.draws and not self.estimates

    def of_one_release(self, sensitivity: Guarantee) -> Guarantee:
        """The guarantee of a result without sampling, given the guarantee of the sensitivity."""
        del sensitivity
        return BOUND

    @property
    def error(self) -> float:
        """The probability that a result is wrong, over the samples of the method; 0 without samples."""
        return 0.0

    def among(self, calls: int) -> "Method":
        """The method for each of several calls from which one is selected; unchanged if it cannot fail.

        Estimates prove nothing and are not adjusted.

        Raises:
            UnsupportedCombinationError: if it can fail, and its error cannot be divided among calls.
        """
        if calls > 1 and self.error > 0.0 and not self.estimates:
            raise UnsupportedCombinationError(
                f"{self!r} does not divide its error among several calls",
                supported="one call, or a method with `among`",
            )
        return self

    def with_error_shared(self, calls: int) -> "Method | None":
        """The method of an estimate with its error divided by the number of calls; None for other methods."""
        del calls
        return None

    def guarantee(self, delta: float | None = None, *, inside: bool) -> Guarantee | None:
        """The guarantee of a result; None (the default) if the accountant determines it."""
        del delta, inside
        return None


@dataclasses.dataclass(frozen=True)
class Pld(Method):
    """Privacy loss distributions, composed by transforms: rigorous lower and upper bounds at any delta.

    Example:
        >>> import dpmech as dm
        >>> sampled, method = dm.Poisson(0.1), dm.methods.Pld()
        >>> bounds = dm.epsilon(dm.Identity(12), 1.0, 1e-5, participation=sampled, method=method)
        >>> f"{bounds.lower:.3f}, {bounds.upper:.3f}"
        '3.021, 3.021'
    """

    composes: ClassVar[bool] = True


@dataclasses.dataclass(frozen=True)
class Prv(Method):
    """The PRV accountant of the prv-accountant package, in both directions, with its error bounds.

    Example:
        >>> import dpmech as dm
        >>> dm.methods.Prv()
        Prv()
    """


@dataclasses.dataclass(frozen=True)
class Rdp(Method):
    """Renyi differential privacy: an upper bound only, loose at small eps.

    Example:
        >>> import dpmech as dm
        >>> sampled, method = dm.Poisson(0.1), dm.methods.Rdp()
        >>> bounds = dm.epsilon(dm.Identity(12), 1.0, 1e-5, participation=sampled, method=method)
        >>> f"{bounds.upper:.2f}"  # an upper bound, above that of dm.methods.Pld()
        '3.62'
    """

    composes: ClassVar[bool] = True
    by_moments: ClassVar[bool] = True


@dataclasses.dataclass(frozen=True)
class Exact(Method):
    """The exact formula without sampling; for independent bins of Balls-in-Bins, the exact law of the sum.

    Example:
        >>> import dpmech as dm
        >>> dm.delta(dm.Identity(4), 2.0, 1.0, method=dm.methods.Exact()).guarantee.kind
        <Kind.EXACT: 0>
    """

    def of_one_release(self, sensitivity: Guarantee) -> Guarantee:
        """The guarantee of the sensitivity; the formula itself is exact."""
        return sensitivity


@dataclasses.dataclass(frozen=True)
class Importance(Method):
    """Balls-in-Bins by importance sampling: an estimate with a two-sided confidence interval.

    Args:
        rel_error: target relative standard error of delta, in [1e-4, 0.5].
        confidence: level of the interval, in (0, 1); sigma is based on its upper end.
        executor: where blocks of samples are computed; the result does not depend on it.

    Example:
        >>> import dpmech as dm
        >>> dm.methods.Importance(rel_error=0.02).confidence
        0.9999
    """

    rel_error: float = 0.02
    confidence: float = 0.9999
    executor: concurrent.futures.Executor | None = None
    draws: ClassVar[bool] = True
    estimates: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_real("rel_error", self.rel_error, minimum=1e-4, maximum=0.5)
        check_confidence(self.confidence)
        check_executor(self.executor)

    @property
    def error(self) -> float:
        """1 - confidence."""
        return error_of_level(self.confidence)

    def with_error_shared(self, calls: int) -> "Importance":
        """The method with 1 - confidence divided by the number of calls."""
        # Rounded up, because the shares of the error must not sum to more than the total.
        share = min(math.nextafter(1.0 - self.error / calls, 1.0), math.nextafter(1.0, 0.0))
        return self if calls == 1 else dataclasses.replace(self, confidence=share)


@dataclasses.dataclass(frozen=True)
class Deterministic(Method):
    """A deterministic upper bound that is closer than that of the default method, or covers smaller deltas.

    Balls-in-Bins: by a convex-order dynamic program, at any delta. Lower bounds are those of independent
    blocks of bins, and may be far too low if bins are correlated. Random allocation of independent noise: by
    two moments of the likelihood ratio given a sum over the releases, or by blocks, whichever is less.

    Args:
        rel_error: target relative excess of delta, in (0, 10], for the cyclic dominating pair, whose
            covariance depends only on the cyclic distance of bins.

    Example:
        >>> import dpmech as dm
        >>> dm.methods.Deterministic(rel_error=0.05)
        Deterministic(rel_error=0.05)
    """

    rel_error: float = 0.05

    def __post_init__(self) -> None:
        check_real("rel_error", self.rel_error, minimum=0.0, maximum=10.0, open_minimum=True)


@dataclasses.dataclass(frozen=True)
class Certified(Method):
    """Balls-in-Bins by random samples, with a rigorous finite-sample bound.

    The default for Balls-in-Bins, except for calibrations in which `Deterministic` gives nearly the same
    sigma.

    A calibration includes beta in delta: sigma is certified for delta - beta, with random numbers that the
    call draws itself. The whole procedure "draw, calibrate, train" is then (eps, delta)-differentially
    private. If `rng` is passed, and for `dm.epsilon` and `dm.delta`, beta is outside delta: the returned
    number holds with probability 1 - beta.

    Args:
        beta: probability that the bound fails, over all probes of one call, in (0, 1), and below delta if it
            is inside delta. None selects the smaller of 1e-9 and delta / 1000 (1e-9 for `dm.delta`).
        executor: where blocks of samples are computed; the result does not depend on it.
        calls: number of calibrations from which one is selected, including failed ones. Each is given an
            equal share of beta, so that beta covers all of them together.

    Example:
        >>> import dpmech as dm
        >>> dm.methods.Certified(), dm.methods.Certified(calls=6)  # one calibration, or the best of six
        (Certified(beta=None, executor=None, calls=1), Certified(beta=None, executor=None, calls=6))
    """

    beta: float | None = None
    executor: concurrent.futures.Executor | None = None
    calls: int = 1
    draws: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.beta is not None:
            check_real("beta", self.beta, minimum=0.0, maximum=1.0, open_minimum=True, open_maximum=True)
        check_executor(self.executor)
        object.__setattr__(self, "calls", check_integer("calls", self.calls, minimum=1, maximum=10**6))

    @property
    def error(self) -> float:
        """Beta; if none is given, the largest default."""
        return _LARGEST_BETA if self.beta is None else self.beta

    def settled(self, delta: float | None = None) -> "Certified":
        """This method with beta resolved to a number.

        Args:
            delta: of the budget, in (0, 1); None if there is none.
        """
        if self.beta is not None:
            return self
        part = _LARGEST_BETA if delta is None else delta / _PARTS_OF_DELTA
        return dataclasses.replace(self, beta=min(_LARGEST_BETA, max(part, math.ulp(0.0))))

    def guarantee(self, delta: float | None = None, *, inside: bool) -> Guarantee:
        """The guarantee of a result.

        Args:
            delta: of the budget, in (0, 1); None if there is none.
            inside: whether beta is counted inside delta.

        Raises:
            InvalidParameterError: if beta is inside delta and not below it.
        """
        found = Guarantee(Kind.PROBABLE, self.settled(delta).error, inside_delta=inside)
        if delta is not None:
            found.mechanism_delta(delta)
        return found

    def among(self, calls: int) -> "Certified":
        """The method for one of several calls from which one is selected, multiplied with its own `calls`."""
        return dataclasses.replace(self, calls=self.calls * calls)

    def share(self, probes: int, delta: float | None = None) -> float:
        """The part of beta for one probe of a call, rounded down so that all parts add up to at most beta.

        Raises:
            InvalidParameterError: if beta is too small to be shared.
        """
        beta, parts = self.settled(delta).error, self.calls * probes
        found = rounded_down(Fraction(beta) / parts)
        if found <= 0.0:
            raise InvalidParameterError("beta", beta, f"large enough to be shared by {parts}")
        return found


def check_method(value: object) -> Method | None:
    """Return a method object or None, else raise InvalidParameterError."""
    if value is not None and not isinstance(value, Method):
        raise InvalidParameterError("method", value, "None or a method object such as dm.methods.Pld()")
    return value
