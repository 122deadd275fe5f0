r"""An audit of released noise: whether numbers that should be pure noise are that of the certificate.

Coordinates that no gradient reaches release row t of sigma C^-1 Z alone, in units of clip norm over batch
size. So C applied to t rows of N such numbers, over sigma, is Z: t N independent standard normal numbers.
Every test below has a p-value that is exact or bounded for these, and the level is divided among them.

References:
    Laurent and Massart 2000, Lemma 1 (quadratic forms); Massart 1990 (distribution functions).
"""

import dataclasses
import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import scipy

from dpmech.certificates import Claim
from dpmech.exceptions import InvalidParameterError, NumericalError
from dpmech.guards import check_real, check_vector
from dpmech.mechanism import Strategy
from dpmech.numerics import FloatArray, down, up

# Bits of a significand that are 0 in numbers of float16 (and bfloat16), and a bound on the probability that
# all of them are in a rounded real number, twice that of uniform bits.
_LOW_BITS: Mapping[int, tuple[npt.DTypeLike, int]] = {4: (np.uint32, 13), 8: (np.uint64, 42)}
_MOST_ROUNDING = 0.02
_SLOPE = 1.0  # above twice the density of a normal number: rounding moves the distribution function by less
_ROWS_AT_ONCE = 1024
_ROOM = 1.25  # norms of rows of noise exceed their means by less


@dataclasses.dataclass(frozen=True, eq=False)
class NoiseAudit:
    """Released noise compared with the noise of a certificate.

    Attributes:
        ratio: estimate of the noise scale over the certified one.
        interval: confidence interval of that ratio at the level of the audit, for Gaussian noise with the
            certified correlation.
        step_ratios: the same estimate for every step, shape (t,).
        correlations: estimates of the correlation of Z at lags 1, ..., t - 1, shape (t - 1,), which is 0 if
            noise is correlated over steps as certified.
        p_values: the p-value of every test, by name: an upper bound on the probability of such an extreme
            result under the certified noise. "scale", "steps": the scale of all rows, and of each. "lags",
            "repeats": correlation at a lag, and between two rows. "coordinates": correlation within rows.
            "shape": the Gaussian distribution. "resolution": numbers that were rounded to 11 bits or fewer.
        level: the bound on the probability that certified noise is refuted.
        values: number of values.

    Example:
        >>> import numpy as np, dpmech as dm
        >>> claim = dm.calibrate_sigma(dm.LambdaCGD(50, 0.9), 2.0, 1e-5, participation=dm.MinSep(10))
        >>> z = np.random.default_rng(1).normal(size=(50, 2000))
        >>> found = dm.audits.noise_audit(0.9 * claim.sigma * claim.strategy.solve(z), claim)
        >>> found.refuted, round(found.ratio, 3), found.findings
        (True, 0.897, ('scale', 'steps', 'shape'))
    """

    ratio: float
    interval: tuple[float, float]
    step_ratios: FloatArray
    correlations: FloatArray
    p_values: Mapping[str, float]
    level: float
    values: int

    @property
    def findings(self) -> tuple[str, ...]:
        """The names of the tests that refute the certified noise."""
        return tuple(name for name, p in self.p_values.items() if len(self.p_values) * p <= self.level)

    @property
    def refuted(self) -> bool:
        """Whether the noise is not that of the certificate, at this level."""
        return bool(self.findings)

    def __str__(self) -> str:
        verdict = "refuted" if self.refuted else "not refuted"
        low, high = self.interval
        names = f"; {', '.join(self.findings)}" if self.refuted else ""
        return (
            f"{verdict} at level {self.level:g}: {self.ratio:.3f} of the certified noise ({down(low, 3)} to "
            f"{up(high, 3)}), {self.values} values in {self.step_ratios.size} steps{names}"
        )


def noise_audit(
    released: npt.ArrayLike,
    claim: Claim,
    *,
    units: npt.ArrayLike = 1.0,
    level: float = 1e-9,
    rounding: float | None = None,
) -> NoiseAudit:
    """Compare released values that contain only noise with the noise of a certificate.

    **Guarantee:** noise as certified is refuted with probability at most `level`, for any sample size. If it
    is not refuted, nothing is proved. The smallest fault that is detected depends on the number of values: a
    scale that is wrong by a fraction d is detected with about 50 / d^2 values (level 1e-9).

    The memory is 40 bytes per value. The time is that of applying C to the rows and to t unit vectors, t^2 N
    / 2 products, and sorting.

    Args:
        released: the values of the steps 0, ..., t - 1, shape (t, N), with t in [1, n] and N >= 2; float32 or
            float64.
        claim: a Calibration or a Certificate.
        units: clip norm divided by batch size, the factor by which sigma C^-1 Z was multiplied: a number > 0,
            or one per step, shape (t,).
        level: the largest probability of refuting certified noise, in (0, 1).
        rounding: the largest relative error by which `released` was rounded after the noise was added, in
            [0, 0.02]; None for that of its dtype. If it is larger than that of the dtype, the resolution is
            not tested.

    Raises:
        InvalidParameterError: if an argument is invalid.
        NumericalError: if C enlarges rounding errors to more than 2 % of the noise.

    Examples:
        >>> import numpy as np, dpmech as dm
        >>> claim = dm.calibrate_sigma(dm.LambdaCGD(50, 0.9), 2.0, 1e-5, participation=dm.MinSep(10))
        >>> z = np.random.default_rng(1).normal(size=(50, 2000))
        >>> noise_audit(claim.sigma * claim.strategy.solve(z), claim).refuted
        False
        >>> noise_audit(claim.sigma * z, claim).correlations[:3].round(1)  # z left uncorrelated
        array([0.9, 0.8, 0.7])
    """
    if not isinstance(claim, Claim):
        raise InvalidParameterError("claim", claim, "a Calibration or a Certificate")
    chance = check_real("level", level, minimum=0.0, maximum=1.0, open_minimum=True, open_maximum=True)
    rows = _check_released(released, claim.strategy.n)
    steps, width = rows.shape
    scales = check_vector("units", np.atleast_1d(np.asarray(units)))
    if scales.shape not in {(1,), (steps,)} or scales.min() <= 0.0:
        raise InvalidParameterError("units", units, f"a number > 0, or {steps} of them")
    own = float(np.finfo(rows.dtype).eps) / 2.0
    coarse = (
        own if rounding is None else check_real("rounding", rounding, minimum=0.0, maximum=_MOST_ROUNDING)
    )
    executed = claim.strategy.prefix(steps)
    most = _ROOM * coarse * _enlargement(executed)
    if most > _MOST_ROUNDING:
        raise NumericalError(
            f"values rounded by {coarse:g} of themselves determine Z of {executed!r} only up to {most:.2g}: "
            "meter a parameter of dtype float32 or float64"
        )
    normal = executed.matmul(rows.astype(np.float64) / (claim.sigma * scales[:, None]))
    squares, lagged, highest = _products(normal)
    total = float(squares.sum())
    mean = total / normal.size
    p_values = {
        "scale": float(_of_squares(np.array([total]), normal.size, most)[0]),
        "steps": min(1.0, steps * float(_of_squares(squares, width, most).min())),
        "lags": 1.0,
        "repeats": 1.0,
        "coordinates": _coordinates(normal, most),
        "shape": _shape(normal, most),
    }
    pairs = width * np.arange(steps - 1, 0, -1.0)
    if steps > 1:
        p_values["lags"] = min(1.0, (steps - 1) * float(_of_products(lagged, pairs, mean, most).min()))
        p_values["repeats"] = _repeats(highest, steps, width, most)
    if coarse <= own:
        p_values["resolution"] = _resolution(rows)
    each = chance / len(p_values)
    ends = 2.0 * scipy.special.gammainccinv(0.5 * normal.size, [0.5 * each, 1.0 - 0.5 * each])
    low, high = (math.sqrt(total / end) for end in ends)
    return NoiseAudit(
        math.sqrt(mean),
        (low / (1.0 + most), high / (1.0 - most)),
        np.sqrt(squares / width),
        lagged / pairs / mean,
        p_values,
        chance,
        normal.size,
    )


def _check_released(value: npt.ArrayLike, n: int) -> npt.NDArray[np.floating]:
    rows = np.asarray(value)
    accepted = f"finite float32 or float64, shape (t, N) with t in [1, {n}] and N >= 2, not all 0"
    if rows.dtype not in (np.float32, np.float64) or rows.ndim != 2 or not 1 <= len(rows) <= n:
        raise InvalidParameterError("released", f"{rows.dtype} of shape {rows.shape}", accepted)
    if rows.shape[1] < 2 or not np.all(np.isfinite(rows)) or not rows.any():
        raise InvalidParameterError("released", f"shape {rows.shape}", accepted)
    return rows


def _enlargement(executed: Strategy) -> float:
    """The most by which C enlarges a relative error of rows of C^-1 Z, as a part of the norm of a row of Z.

    By the triangle inequality: the largest row sum of |C| times the norms of the rows of C^-1.
    """
    norms, total = executed.noising_row_norms(), np.zeros(executed.n)
    for start in range(0, executed.n, _ROWS_AT_ONCE):
        unit = np.eye(executed.n, min(_ROWS_AT_ONCE, executed.n - start), -start)
        total += np.abs(executed.matmul(unit)) @ norms[start : start + unit.shape[1]]
    return float(total.max())


def _products(normal: FloatArray) -> tuple[FloatArray, FloatArray, float]:
    """Sums of squares of all rows, products of rows added over pairs at each lag, and the largest cosine."""
    steps = len(normal)
    squares = np.sum(normal**2, axis=1)
    norms = np.sqrt(np.where(squares > 0.0, squares, np.inf))
    lagged, highest = np.zeros(steps), 0.0
    places = np.arange(steps)
    for start in range(0, steps, _ROWS_AT_ONCE):
        early = places[start : start + _ROWS_AT_ONCE]
        for later in range(start, steps, _ROWS_AT_ONCE):
            late = places[later : later + _ROWS_AT_ONCE]
            lags = late - early[:, None]
            gram = np.where(lags > 0, normal[early] @ normal[late].T, 0.0)
            lagged += np.bincount(np.maximum(lags, 0).ravel(), gram.ravel(), steps)
            highest = max(highest, float(np.max(np.abs(gram) / norms[early][:, None] / norms[late])))
    return squares, lagged[1:], highest


def _of_squares(squares: FloatArray, degrees: int, most: float) -> FloatArray:
    """Two-sided p-values of sums of `degrees` squares of normal numbers with that relative error."""
    above = scipy.special.gammaincc(0.5 * degrees, 0.5 * squares / (1.0 + most) ** 2)
    below = scipy.special.gammainc(0.5 * degrees, 0.5 * squares / (1.0 - most) ** 2)
    return np.asarray(np.minimum(1.0, 2.0 * np.minimum(above, below)))


def _of_products(sums: FloatArray, counts: FloatArray, mean: float, most: float) -> FloatArray:
    """Bounds on two-sided p-values of sums of products z_i z_(i + k) of normal numbers.

    The matrix of the form has Frobenius norm sqrt(count / 2) and spectral norm at most 1, so that the sum is
    above 2 sqrt(count / 2 x) + 2 x with probability at most e^-x. A mean square above 1 has its own test
    and is divided out.
    """
    clear = np.maximum(np.abs(sums) - most * (2.0 + most) * mean * counts, 0.0) / max(1.0, mean)
    norm = np.sqrt(0.5 * counts)
    root = 0.5 * (np.sqrt(norm**2 + 2.0 * clear) - norm)
    return np.asarray(np.minimum(1.0, 2.0 * np.exp(-(root**2))))


def _repeats(cosine: float, rows: int, width: int, most: float) -> float:
    """The largest correlation of two rows: the square of each has a beta distribution."""
    highest = min(1.0, max(0.0, cosine - 4.0 * most))
    one = float(scipy.special.betainc(0.5 * (width - 1), 0.5, max(0.0, 1.0 - highest**2)))
    return min(1.0, one * rows * (rows - 1) / 2)


def _coordinates(normal: FloatArray, most: float) -> float:
    """Correlation within rows at every distance, added over the rows."""
    steps, width = normal.shape
    size = scipy.fft.next_fast_len(2 * width - 1, real=True)
    power = np.zeros(size // 2 + 1)
    for row in normal:
        power += np.abs(scipy.fft.rfft(row, size)) ** 2
    sums: FloatArray = scipy.fft.irfft(power, size)
    counts = steps * np.arange(width - 1, 0, -1.0)
    found = _of_products(sums[1:width], counts, float(sums[0]) / normal.size, most)
    return float(min(1.0, (width - 1) * found.min()))


def _shape(normal: FloatArray, most: float) -> float:
    """The largest distance to the Gaussian distribution function."""
    size = normal.size
    expected = scipy.special.ndtr(np.sort(normal, axis=None))
    ranks = np.arange(size + 1) / size
    distance = max(float((ranks[1:] - expected).max()), float((expected - ranks[:-1]).max()))
    return min(1.0, 2.0 * math.exp(-2.0 * size * max(0.0, distance - _SLOPE * most) ** 2))


def _resolution(rows: npt.NDArray[np.floating]) -> float:
    """How many significands end in as many zero bits as those of float16."""
    kind, bits = _LOW_BITS[rows.dtype.itemsize]
    whole = np.ascontiguousarray(rows).view(kind)
    count = int(np.sum(whole & ((1 << bits) - 1) == 0))
    chance = 2.0 ** (1 - bits)
    return 1.0 if not count else float(scipy.special.betainc(count, rows.size - count + 1, chance))
