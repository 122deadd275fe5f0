r"""The Gaussian audit: how much noise one run had on its canaries, from what was seen along each of them.

Seen along canary j, with b_j its coin, is x_j = b_j theta g_j + s C^-1 z_j: its gradients g_j, known up to a
common factor theta, and independent Gaussian noise of unknown scale s. The certified noise scale sigma is
s / theta for noise and clipping as certified. With k = s / (theta sigma), the law of every statistic that
does not change if all x_j are multiplied by one number depends on k alone. Such a one is

    S = sum over included canaries of l(sigma C x_j / r),    r^2 = mean square of C x_j of the others,

with l the log-likelihood ratio under the certificate. S falls as k grows, and P(S >= seen) is computed for
any k: as that of a noncentral t variable if the steps of the canaries are known, and otherwise by simulated
runs, whose rank has a known law (Barnard's test). All k whose probability is at most 1 - confidence are
refuted.

References:
    Agrawal, Wei, Singh, Magdon-Ismail, Zikas 2026, arXiv 2606.12733 (scores of canaries as two Gaussians).
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import scipy

from dpmech.audits.one_run import check_included, check_joins, check_rows, check_strengths
from dpmech.calibration import epsilon
from dpmech.certificates import Claim
from dpmech.engines import Algebra
from dpmech.exceptions import InvalidParameterError, UnsupportedCombinationError
from dpmech.guards import check_confidence, check_delta, check_rng
from dpmech.mechanism import Mechanism
from dpmech.numerics import Bounds, FloatArray, Guarantee, Kind, Provenance, error_of_level, percent, up
from dpmech.samplers import sampler_for
from dpmech.schemes import scheme_of

# The ratio is searched between 1 / _WIDEST and _WIDEST, to this relative precision, always rounded up.
_WIDEST, _PRECISION = 64.0, 2e-3
_STEP = 1.25  # of the first, wide search
# The level is the rank of the seen value among this many of the simulated ones.
_RANK = 5
_AT_ONCE = 4_000_000  # simulated values in memory
# Nodes of the integral over r, and a bound on its relative error that tests measure far below it.
_NODES, _REACH, _ROUNDING = 2001, 14.0, 1e-9
_LEAST_VALUES = 10  # for which the density of r and its first derivatives are 0 at 0


@dataclasses.dataclass(frozen=True)
class GaussianAudit:
    """An upper bound on the noise that a run added to the gradients of its canaries.

    Attributes:
        noise_ratio: the largest ratio of actual to certified noise scale, both relative to a canary's
            gradient, that is not refuted; infinite if none is.
        confidence: probability with which the actual ratio is at most `noise_ratio`.
        canaries: number of canaries.
        mechanism: the mechanism of the observed steps.
        sigma: the certified noise scale.
        delta: the delta of the claim.

    Example:
        >>> import numpy as np, dpmech as dm
        >>> claim = dm.calibrate_sigma(dm.Identity(1), 2.0, 1e-5, participation=dm.SingleParticipation())
        >>> rng = np.random.default_rng(1)
        >>> included = rng.integers(0, 2, size=1000, dtype=bool)
        >>> halved = included[:, None] + 0.5 * claim.sigma * rng.normal(size=(1000, 1))
        >>> print(dm.audits.gaussian_audit(halved, included, claim, np.ones((1000, 1), dtype=bool)))
        refuted at confidence 95 %: at most 0.591 of the certified noise, from 1000 canaries
    """

    noise_ratio: float
    confidence: float
    canaries: int
    mechanism: Mechanism
    sigma: float
    delta: float

    @property
    def refuted(self) -> bool:
        """Whether the run had less noise than certified, at this confidence. If not, nothing is proved."""
        return self.noise_ratio < 1.0

    def epsilon(self, delta: float | None = None, *, rng: np.random.Generator | int | None = None) -> Bounds:
        """A lower bound on the eps of the run, for `noise_ratio` times the certified noise scale.

        Args:
            delta: in (0, 1); None for that of the claim.
            rng: as for `dm.epsilon`.

        Returns:
            Bounds whose upper end is infinite. Under the conditions of the audit, the lower end is at most
            the true eps with the confidence of the audit. It is 0 if the accountant has no lower bound.

        Raises:
            InvalidParameterError: for a delta outside (0, 1).
            NumericalError: as for `dm.epsilon`, if there is hardly any noise.
        """
        at = self.delta if delta is None else check_delta(delta)
        error = error_of_level(self.confidence)
        found = 0.0
        if math.isfinite(self.noise_ratio):
            bounds = epsilon(self.mechanism, self.sigma * self.noise_ratio, at, rng=rng)
            found, error = max(0.0, bounds.lower), error + bounds.guarantee.error
        by = Provenance("audit.gaussian", {"canaries": self.canaries, "noise_ratio": self.noise_ratio})
        return Bounds(found, math.inf, Guarantee(Kind.PROBABLE, min(error, 1.0)), by)

    def __str__(self) -> str:
        verdict = "refuted" if self.refuted else "not refuted"
        return (
            f"{verdict} at confidence {percent(self.confidence)} %: at most {up(self.noise_ratio, 3)} of the "
            f"certified noise, from {self.canaries} canaries"
        )


def gaussian_audit(
    observations: npt.ArrayLike,
    included: npt.ArrayLike,
    claim: Claim,
    joins: npt.ArrayLike | None = None,
    *,
    strengths: npt.ArrayLike | None = None,
    confidence: float = 0.95,
    rng: np.random.Generator | int | None = None,
) -> GaussianAudit:
    """Bound the noise of one run from above, and its eps from below, from canaries and for Gaussian noise.

    This audit uses the size of the observations, whereas `one_run_epsilon` uses only which guesses are right.
    It is therefore far more powerful, but it is valid for fewer mechanisms.

    **Guarantee:** a confidence bound that is exact under the following model. The observations are the stated
    gradients, up to a common factor, plus Gaussian noise of any scale that is correlated over steps as
    certified and independent between canaries. The coins are unknown to the run. If `joins` is None, canaries
    are sampled independently, as certified, and C has no negative entry.

    Args:
        observations: as in `canary_scores`, shape (m, t), for the first t <= n steps.
        included: whether the coin put the canary into the data, bool, shape (m,).
        claim: a Calibration or a Certificate.
        joins: which steps each canary joins if it is included, bool, shape (m, t). Under random sampling,
            None averages over the batches. An auditor who knows the batches may pass them, which gives a
            sharper bound on noise and clipping, but assumes that the sampling is correct.
        strengths: as in `canary_scores`; they must not depend on the noise along the canaries.
        confidence: confidence level, in (0, 1).
        rng: for simulated runs, if the batches are not known; None uses entropy from the operating system.

    Returns:
        A GaussianAudit: the largest ratio of noise that is not refuted, and the eps that it implies.

    Raises:
        InvalidParameterError: if an argument is invalid, or if all or no canaries are included.
        UnsupportedCombinationError: if the batches are not known, as for `canary_scores`, and also for a C
            with negative entries.

    Examples:
        >>> import numpy as np, dpmech as dm
        >>> claim = dm.calibrate_sigma(dm.Identity(1), 2.0, 1e-5, participation=dm.SingleParticipation())
        >>> rng = np.random.default_rng(1)
        >>> included = rng.integers(0, 2, size=1000, dtype=bool)
        >>> seen = included[:, None] + claim.sigma * rng.normal(size=(1000, 1))
        >>> found = gaussian_audit(seen, included, claim, np.ones((1000, 1), dtype=bool))
        >>> found.refuted, 1.4 < found.epsilon().lower < 2.0
        (False, True)
    """
    if not isinstance(claim, Claim):
        raise InvalidParameterError("claim", claim, "a Calibration or a Certificate")
    level = check_confidence(confidence)
    rows = check_rows("observations", observations, claim.strategy.n)
    m, steps = rows.shape
    coins = check_included(included, m)
    if coins.all() or not coins.any():
        raise InvalidParameterError(
            "included", f"{int(coins.sum())} of {m}", "some included and some left out"
        )
    weights = check_strengths(strengths, steps)
    executed = claim.strategy.prefix(steps)
    algebra = Algebra(executed)
    outputs = algebra.matmul(rows)
    degrees = int((~coins).sum()) * steps
    if degrees < _LEAST_VALUES:
        raise InvalidParameterError(
            "observations",
            f"{degrees} of canaries left out",
            f"{_LEAST_VALUES} or more, to estimate the noise",
        )
    noise = math.sqrt(float(np.mean(outputs[~coins] ** 2)))
    if noise == 0.0:
        raise InvalidParameterError("observations", "0 for every canary left out", "with noise")
    scaled = outputs[coins] / noise
    error = 1.0 - level
    if claim.participation.random and joins is None:
        tail = _sampled(claim, scaled, weights, algebra, degrees, error, check_rng(rng))
    else:
        tail = _fixed(
            scaled, algebra.matmul(weights * check_joins(joins, rows.shape)[coins]), degrees, claim.sigma
        )
    ratio = _largest(tail, error)
    return GaussianAudit(ratio, level, m, claim.mechanism.prefix(steps), claim.sigma, claim.budget.delta)


def _largest(tail: Callable[[float], float], error: float) -> float:
    """The smallest k whose tail is at most `error`, rounded up; the tail falls as k grows."""
    tail = functools.cache(tail)
    low = high = 1.0  # most runs are near
    while tail(high) > error:
        if high >= _WIDEST:
            return math.inf
        low, high = high, high * _STEP
    while low == high or tail(low) <= error:
        if low <= 1.0 / _WIDEST:
            return low
        low, high = low / _STEP, low
    while high > low * (1.0 + _PRECISION):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if tail(middle) <= error else (middle, high)
    return high


def _fixed(scaled: FloatArray, images: FloatArray, degrees: int, sigma: float) -> Callable[[float], float]:
    """The tail if it is known which steps each canary joins.

    Along the direction of all images together there is one normal number, of mean |images| / (k sigma).
    """
    length = float(np.linalg.norm(images))
    seen = float(np.sum(scaled * images)) / length if length > 0.0 else 0.0
    # Density of sqrt(chi^2 / degrees) on a grid that leaves out the probability `outside`.
    half = _REACH / math.sqrt(2.0 * degrees)
    grid = np.linspace(max(0.0, 1.0 - half), 1.0 + half, _NODES)
    with np.errstate(divide="ignore"):
        logs = (degrees - 1.0) * np.log(grid) - 0.5 * degrees * (grid**2 - 1.0)
    mass = np.exp(logs - logs.max())
    outside = float(
        scipy.special.gammainc(0.5 * degrees, 0.5 * degrees * grid[0] ** 2)
        + scipy.special.gammaincc(0.5 * degrees, 0.5 * degrees * grid[-1] ** 2)
    )
    mass /= mass.sum()

    def tail(ratio: float) -> float:
        inside = float(np.sum(mass * scipy.special.ndtr(length / (ratio * sigma) - seen * grid)))
        return (inside + outside) * (1.0 + _ROUNDING)

    return tail


def _sampled(
    claim: Claim,
    scaled: FloatArray,
    weights: FloatArray,
    algebra: Algebra,
    degrees: int,
    error: float,
    rng: np.random.Generator | None,
) -> Callable[[float], float]:
    """The tail under random sampling: the rank of what was seen among simulated runs.

    All ratios are tried on the same simulated numbers, so that the rank falls as the ratio grows.
    """
    generator = np.random.default_rng() if rng is None else rng
    own, sigma = claim.participation, claim.sigma
    count, steps = scaled.shape

    def statistic(values: FloatArray) -> FloatArray:
        score = scheme_of(own).canary_score(own, algebra.strategy, sigma * values, sigma, weights)
        if score is None:
            raise UnsupportedCombinationError(
                f"canaries whose batches are sampled by {own!r}: they are not sampled independently",
                supported="Poisson, CyclicPoisson, BallsInBins",
            )
        return np.asarray(score.reshape(-1, count).sum(axis=1))

    seen = float(statistic(scaled)[0])
    block = max(1, _AT_ONCE // steps)
    for start in range(0, steps, block):
        unit = np.eye(min(block, steps - start), steps, start)
        if algebra.matmul(unit).min() < 0.0:
            raise UnsupportedCombinationError(
                f"sampled canaries with {claim.strategy!r}, which has negative entries: the statistic need "
                "not fall with more noise",
                supported="strategies without negative entries, or one_run_epsilon",
            )
    draws = math.ceil(_RANK / error) - 1
    lengths = np.sqrt(generator.chisquare(degrees, size=draws) / degrees)
    seed = int(generator.integers(2**63))
    at_once = max(1, _AT_ONCE // (count * steps))
    parts = [lengths[start : start + at_once] for start in range(0, draws, at_once)]
    joins = [np.packbits(_joined(claim, some.size * count, steps, generator), axis=1) for some in parts]

    def tail(ratio: float) -> float:
        numbers, higher = np.random.default_rng(seed), 0
        for some, packed in zip(parts, joins, strict=True):
            joined = np.unpackbits(packed, axis=1, count=steps)
            released = algebra.matmul(weights / (ratio * sigma) * joined)
            released += numbers.standard_normal(released.shape)
            released /= np.repeat(some, count)[:, None]
            higher += int(np.sum(statistic(released) >= seen))
        return (1.0 + higher) / (1.0 + draws)

    return tail


def _joined(claim: Claim, canaries: int, steps: int, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
    """Which steps each of some canaries joins, by the sampler of the claim."""
    joins = np.zeros((canaries, steps), dtype=np.bool_)
    sampler = sampler_for(claim.participation, canaries, n=claim.strategy.n, rng=rng)
    for step in range(steps):
        joins[sampler.indices(step), step] = True
    return joins
