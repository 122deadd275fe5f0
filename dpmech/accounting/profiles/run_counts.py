r"""How often a random number of runs may be made of which only the best is released: its laws, exactly drawn.

What a law does to privacy is in its generating function f(z) = E z^K: in the mean number of runs f'(1), and
in the weight f'(1 - s) / f'(1) of a run that is beaten by another one with probability s.
"""

import abc
import dataclasses
import decimal
import math
import secrets
from typing import ClassVar

import numpy as np

from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_real
from dpmech.numerics import FloatArray

__all__ = ["NegativeBinomialRuns", "PoissonRuns", "RunCount", "run_count_from"]

_LARGEST_MEAN = 1e5
_LARGEST_SHAPE = 1e3
# Below it 1 / gamma and gamma^shape near the end of float64.
_LEAST_GAMMA = 1e-300
# Bits of the number that decides, and digits of the probabilities that it is compared with: what is drawn
# differs from the law by less than 1e-60 in total variation.
_BYTES, _DIGITS = 32, 90


class RunCount(abc.ABC):
    """The law of a secret number of runs."""

    @property
    @abc.abstractmethod
    def mean(self) -> float:
        """The mean number of runs; off by less than 1e-12 of itself."""

    @abc.abstractmethod
    def log_weight(self, beaten: FloatArray) -> FloatArray:
        """Log f'(1 - s) / f'(1) at s in [0, 1]; 0 at 0, non-increasing, off by less than 1e-12 of itself."""

    @abc.abstractmethod
    def settings(self) -> dict[str, float | str]:
        """Plain data, with the name of the law."""

    @abc.abstractmethod
    def _first(self) -> tuple[int, decimal.Decimal]:
        """The smallest number of runs, and its probability."""

    @abc.abstractmethod
    def _next(self, count: int, probability: decimal.Decimal) -> decimal.Decimal:
        """The probability of `count` + 1 from that of `count`."""

    def draw(self, rng: np.random.Generator | None = None) -> int:
        """A number of runs. Whoever knows it has no protection from the selection: keep it secret.

        Args:
            rng: None draws from the operating system. Whoever knows another generator knows the number.
        """
        bits = secrets.token_bytes(_BYTES) if rng is None else rng.bytes(_BYTES)
        with decimal.localcontext(prec=_DIGITS):
            level = decimal.Decimal(int.from_bytes(bits, "big")) / (1 << (8 * _BYTES))
            count, probability = self._first()
            reached = probability
            # What is left beyond is less than what rounding moves.
            while reached <= level and (count < self.mean or probability > decimal.Decimal("1e-75")):
                probability = self._next(count, probability)
                count += 1
                reached += probability
        return count


@dataclasses.dataclass(frozen=True)
class PoissonRuns(RunCount):
    """A Poisson number of runs. With probability e^-mean there is none, and nothing is released.

    Args:
        mean_runs: in (0, 1e5].

    Raises:
        InvalidParameterError: on another number.

    Examples:
        >>> import dpmech as dm
        >>> once = dm.profile(dm.Identity(4), 5.0)
        >>> best = once.private_selection(dm.PoissonRuns(20.0))
        >>> round(once.epsilon(1e-5).upper, 2), round(best.epsilon(1e-5).upper, 2)
        (1.55, 4.31)
    """

    law: ClassVar[str] = "poisson"

    mean_runs: float

    def __post_init__(self) -> None:
        mean = check_real("mean_runs", self.mean_runs, minimum=0.0, maximum=_LARGEST_MEAN, open_minimum=True)
        object.__setattr__(self, "mean_runs", mean)

    @property
    def mean(self) -> float:
        """The mean number of runs."""
        return self.mean_runs

    def log_weight(self, beaten: FloatArray) -> FloatArray:
        """-mean s."""
        return -self.mean_runs * beaten

    def settings(self) -> dict[str, float | str]:
        """Plain data."""
        return {"law": self.law, "mean_runs": self.mean_runs}

    def _first(self) -> tuple[int, decimal.Decimal]:
        return 0, (-decimal.Decimal(self.mean_runs)).exp()

    def _next(self, count: int, probability: decimal.Decimal) -> decimal.Decimal:
        return probability * decimal.Decimal(self.mean_runs) / (count + 1)


@dataclasses.dataclass(frozen=True)
class NegativeBinomialRuns(RunCount):
    r"""A truncated negative binomial number of runs, at least one.

    P(K = k) is proportional to (1 - gamma)^k prod_{l < k} (l + shape) / (l + 1), k >= 1. Shape 1 is the
    geometric law, shape 0 the logarithmic one.

    Args:
        shape: in (-1, 1e3]. The smaller it is the less a selection costs at one mean, and the more the number
            of runs varies.
        gamma: in [1e-300, 1); the smaller, the more runs. `of_mean` finds the one of a mean.

    Raises:
        InvalidParameterError: on another number, or if the mean is above 1e5.

    Examples:
        >>> import dpmech as dm
        >>> law = dm.NegativeBinomialRuns.of_mean(20.0, shape=1.0)
        >>> law.gamma, law.mean
        (0.05, 20.0)

    References:
        Papernot and Steinke 2022, Definition 1.
    """

    law: ClassVar[str] = "truncated negative binomial"

    shape: float
    gamma: float

    def __post_init__(self) -> None:
        shape = check_real("shape", self.shape, minimum=-1.0, maximum=_LARGEST_SHAPE, open_minimum=True)
        gamma = check_real("gamma", self.gamma, minimum=_LEAST_GAMMA, maximum=1.0, open_maximum=True)
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "gamma", gamma)
        if not self.mean <= _LARGEST_MEAN * (1.0 + 1e-6):
            raise InvalidParameterError("gamma", gamma, f"one with a mean of at most {_LARGEST_MEAN:g} runs")

    @classmethod
    def of_mean(cls, mean: float, *, shape: float = 0.0) -> "NegativeBinomialRuns":
        """The law with this mean number of runs, in (1, 1e5], as closely as floats allow.

        Raises:
            InvalidParameterError: on another number, or a mean that no gamma has at a shape near -1.
        """
        wanted = check_real("mean", mean, minimum=1.0, maximum=_LARGEST_MEAN, open_minimum=True)
        checked = check_real("shape", shape, minimum=-1.0, maximum=_LARGEST_SHAPE, open_minimum=True)
        if checked == 1.0:
            return cls(1.0, 1.0 / wanted)
        low, high = math.log(_LEAST_GAMMA) + 1e-9, math.log1p(-1e-9)
        for _ in range(100):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if _mean(checked, math.exp(middle)) > wanted else (low, middle)
        found = cls(checked, math.exp(high))
        if found.mean < wanted * (1.0 - 1e-6):
            raise InvalidParameterError("mean", wanted, f"at most {found.mean:.6g} at shape {checked!r}")
        return found

    @property
    def mean(self) -> float:
        """The mean number of runs."""
        if self.shape == 1.0:
            return 1.0 / self.gamma
        return _mean(self.shape, self.gamma)

    def log_weight(self, beaten: FloatArray) -> FloatArray:
        """-(1 + shape) log(1 + s (1 - gamma) / gamma)."""
        return -(1.0 + self.shape) * np.log1p(beaten * ((1.0 - self.gamma) / self.gamma))

    def settings(self) -> dict[str, float | str]:
        """Plain data."""
        return {"law": self.law, "shape": self.shape, "gamma": self.gamma}

    def _first(self) -> tuple[int, decimal.Decimal]:
        gamma, shape = decimal.Decimal(self.gamma), decimal.Decimal(self.shape)
        if self.shape == 0.0:
            return 1, (1 - gamma) / -gamma.ln()
        # gamma^-shape - 1, without cancellation for a shape near 0.
        exponent = -shape * gamma.ln()
        power = exponent.exp() - 1
        if abs(exponent) < decimal.Decimal("1e-20"):
            power = exponent * (1 + exponent / 2 * (1 + exponent / 3 * (1 + exponent / 4)))
        return 1, shape * (1 - gamma) / power

    def _next(self, count: int, probability: decimal.Decimal) -> decimal.Decimal:
        shape, rest = decimal.Decimal(self.shape), 1 - decimal.Decimal(self.gamma)
        return probability * rest * (count + shape) / (count + 1)


def run_count_from(settings: dict[str, float | str]) -> RunCount:
    """The law of `RunCount.settings`.

    Raises:
        InvalidParameterError: if it is none of those here.
    """
    given = {name: value for name, value in settings.items() if name != "law"}
    for kind, names in ((PoissonRuns, {"mean_runs"}), (NegativeBinomialRuns, {"shape", "gamma"})):
        if settings.get("law") == kind.law and set(given) == names:
            return kind(**given)  # type: ignore[arg-type]  # each is checked there
    raise InvalidParameterError("runs", settings, "a law of dm.PoissonRuns or dm.NegativeBinomialRuns")


def _mean(shape: float, gamma: float) -> float:
    """Shape (1 - gamma) / (gamma (1 - gamma^shape)); at shape 0 its limit."""
    log_gamma = math.log(gamma)
    exponent = shape * log_gamma
    share = -log_gamma if abs(exponent) < 1e-300 else -math.expm1(exponent) / shape
    return (1.0 - gamma) / gamma / share
