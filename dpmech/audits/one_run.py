r"""Audits with one run on data that contain canaries: a lower bound on eps, and a test of a full curve.

**A lower bound on eps.** A fair coin decides for each canary whether it is included. From the release of the
run, r of m canaries are guessed; v guesses are right. If the mechanism is (eps, delta)-DP and q = e^eps / (1
+ e^eps), the probability that any guesser has at least v right guesses is at most

    p(v) = F + m delta F (1 - F) / (v b),    F = P(Bin(r, q) >= v),    b = P(Bin(r, q) = v),

for v > r q. The bound is optimal: some (eps, delta)-DP mechanism attains it.

**A test of a full certified curve.** Let m coins be fair and independent. A guesser selects r canaries and a
coin outcome for each; W guesses are right, and p_w = P(W = w). For any mechanism whose curves are at most h+
("with" against "without") and h-, for every a >= 0 and every set J of integers

    sum over w in J of  w p_w - a (r - w + 1) p_(w - 1)  <=  H(a),

with H = m / 2 times h+ if all guesses are "in", h- if all are "out", and their sum if both occur. From any
tangents a_1, ..., a_v a bound on P(W >= v) follows, with weights on these inequalities that a recursion
gives. docs/guarantees.md#proofs-of-the-audits contains the proof.

References:
    Mahloujifar, Melis and Chaudhuri 2025 (the idea, and tail sums of trade-off functions).
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import scipy

from dpmech.engines import Algebra, PrivacyProfile
from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_confidence, check_delta, check_integer, check_sigma, check_vector
from dpmech.mechanism import Mechanism, Participation, Strategy, check_strategy, mechanism_of
from dpmech.numerics import UNIT, Bounds, FloatArray, Guarantee, Kind, Provenance, error_of_level, percent, up
from dpmech.schemes import scheme_of

_DEFAULT_SHARES = (32, 16, 8)
# Coin results of lower probability under fair coins are refused; no guarantee depends on this number.
_UNFAIR = 1e-12
# Relative error of scipy's incomplete beta function in a p-value that is at most 1 / 2: 100 times the error
# that a test measures against 50 digits, for up to a million guesses.
_BETA_ROUNDING = 1e-10
_HALVINGS = 60

BoolArray = npt.NDArray[np.bool_]


def one_run_epsilon(
    scores: npt.ArrayLike,
    included: npt.ArrayLike,
    delta: float,
    *,
    guesses: Sequence[tuple[int, int]] | None = None,
    confidence: float = 0.95,
) -> Bounds:
    r"""A lower bound on eps at `delta`, from one run on data with canaries.

    The canaries with the highest scores are guessed to be in the data, and those with the lowest scores to be
    out; the others are not guessed. Equal scores are ranked in the order with the fewest right guesses. If
    this loses too much for coarse scores, add independent random numbers to them. If the bound exceeds a
    certified eps, the run had less noise than was certified.

    **Guarantee:** lower confidence bound, for any mechanism and any scores, if the coins were fair,
    independent and unknown to the run, and the scores are a function of the run's release. The bound is for
    adding or removing a canary. If there are several ways to guess, each gets an equal part of the error.

    Args:
        scores: one per canary, shape (m,), high for "included"; log-likelihood ratios are best
            (`canary_scores`).
        included: whether the coin put the canary into the data, bool, shape (m,).
        delta: in (0, 1), far below 1 / m: the bound is weak if m delta is not small, and no confidence above
            1 - delta is possible.
        guesses: one or more pairs (i, o), chosen before anyone looks at the coins: the i highest scores are
            guessed in and the o lowest out, with i + o in [1, m]. None tries the m/32, m/16 and m/8 highest
            scores, alone (best for sampled batches) and together with as many of the lowest.
        confidence: confidence level of the bound, in (0, 1).

    Returns:
        Bounds whose lower end is at most the true eps with probability `confidence` (and is 0 if nothing was
        found). The upper end is infinite, because an audit cannot prove privacy.

    Raises:
        InvalidParameterError: if an argument is invalid, or if that many included canaries have probability
            below 1e-12 under fair coins.

    References:
        Steinke, Nasr, Jagielski 2023, arXiv 2305.08846, Theorem 5.2, with a sharper term in delta
        (proof: docs/guarantees.md#proofs-of-the-audits).

    Examples:
        >>> import numpy as np, dpmech as dm
        >>> rng = np.random.default_rng(1)
        >>> included = rng.integers(0, 2, size=1000, dtype=bool)
        >>> truthful = rng.random(1000) < 0.9  # randomised response: eps = log 9 = 2.197
        >>> scores = np.where(included == truthful, 1.0, -1.0)
        >>> dm.audits.one_run_epsilon(scores, included, 1e-5, guesses=[(400, 400)]).lower < 2.197
        True
    """
    checked_delta = check_delta(delta)
    level = check_confidence(confidence)
    m, counts = guessed(scores, included, guesses)
    error = (1.0 - level) / len(counts)
    found = [
        (_largest_eps(right, high + low, m, checked_delta, error), right, high, low)
        for right, high, low in counts
    ]
    eps, right, high, low = max(found)
    facts = {"canaries": m, "right": right, "high": high, "low": low, "ways": len(counts)}
    guarantee = Guarantee(Kind.PROBABLE, error_of_level(level))
    return Bounds(eps, math.inf, guarantee, Provenance("audit.one_run", facts))


def guessed(
    scores: npt.ArrayLike, included: npt.ArrayLike, guesses: Sequence[tuple[int, int]] | None
) -> tuple[int, list[tuple[int, int, int]]]:
    """The number of canaries, and for every way to guess (right guesses, guesses "in", guesses "out").

    Raises:
        InvalidParameterError: as in `one_run_epsilon`.
    """
    values = check_vector("scores", scores)
    m = values.size
    coins = check_included(included, m)
    ascending = np.argsort(values, kind="stable")
    return m, [
        (
            _right_at_the_top(-values[ascending[::-1]], coins[ascending[::-1]], high)
            + _right_at_the_top(values[ascending], ~coins[ascending], low),
            high,
            low,
        )
        for high, low in _check_guesses(guesses, m)
    ]


def _right_at_the_top(keys: FloatArray, hits: BoolArray, count: int) -> int:
    """The fewest hits among the `count` smallest keys, over all orders of equal keys.

    The order in which scores are passed may depend on the coins, so it must not break ties. In any order
    independent of the coins there are at least as many hits, and the p-value decreases in them. Both ends of
    one ranking can attain their minimum together, even inside a single tie: where the upper end has used up
    all misses of a tie, the remaining entries are hits, which are misses for the lower end.

    Args:
        keys: ascending, shape (m,).
        hits: shape (m,).
        count: in [0, m].
    """
    if count == 0:
        return 0
    first, last = (
        np.searchsorted(keys, keys[count - 1], side="left"),
        np.searchsorted(keys, keys[count - 1], side="right"),
    )
    tied_hits = int(hits[first:last].sum())
    misses = int(last - first) - tied_hits
    return int(hits[:first].sum()) + max(0, count - int(first) - misses)


def canary_scores(
    observations: npt.ArrayLike,
    strategy: Strategy | Mechanism,
    sigma: float,
    participation: Participation | npt.ArrayLike | None = None,
    *,
    strengths: npt.ArrayLike | None = None,
) -> FloatArray:
    r"""Log-likelihood ratios of "included" against "left out", one per canary: the best possible scores.

    Let x be the release along the direction of a canary, and g its gradients over the steps. If the canary
    was included, x = g + sigma C^-1 z. The ratio is that of the densities of C x. Under sampling, g is
    secret, and the ratio is averaged over the distribution of the sampler.

    **Guarantee:** exact for Gaussian noise of that sigma. With other noise or a wrong direction, the scores
    are less powerful, but the bound remains valid.

    Args:
        observations: the release of the run along the direction of each canary, in units of the clip norm:
            sums of clipped gradients (released means times the expected batch size, divided by the clip
            norm). Shape (m, t), for the first t <= n steps.
        strategy: C; or a Mechanism, which includes the participation if that is random.
        sigma: the stated noise scale of the run at clip norm 1, > 0.
        participation: Poisson, CyclicPoisson or BallsInBins (also with `fresh`); without sampling, which
            steps each canary joins if it is included, bool, shape (m, t).
        strengths: norm of a canary's gradient along its direction in each step, as a fraction of the clip
            norm, shape (t,), >= 0; None for 1.

    Returns:
        Shape (m,).

    Raises:
        InvalidParameterError: if an argument is invalid.
        UnsupportedCombinationError: for Poisson with C not diagonal, CyclicPoisson with more bands than its
            cycle, or a new allocation every epoch with C not diagonal: no theorem covers these.

    Examples:
        >>> import numpy as np, dpmech as dm
        >>> seen = np.array([[1.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
        >>> canary_scores(seen, dm.Identity(4), 1.0, dm.BallsInBins(2)).round(3)
        array([ 0.434, -1.   ])
    """
    if isinstance(strategy, Mechanism):
        if participation is None or isinstance(participation, Participation):
            participation = mechanism_of(strategy, participation).participation
        strategy = strategy.strategy
    check_strategy(strategy)
    scale = check_sigma(sigma)
    rows = check_rows("observations", observations, strategy.n)
    steps = rows.shape[1]
    weights = check_strengths(strengths, steps)
    executed = strategy.prefix(steps)
    algebra = Algebra(executed)
    outputs = algebra.matmul(rows)
    schema = participation if isinstance(participation, Participation) else None
    if schema is not None:
        schema.pattern(strategy.n)
        score = scheme_of(schema).canary_score(schema, executed, outputs, scale, weights)
        if score is not None:
            return score
    joins = check_joins(participation, rows.shape)
    patterns, member = np.unique(joins, axis=0, return_inverse=True)
    images = algebra.matmul(weights * patterns)[member.reshape(-1)]
    energies = np.sum(images**2, axis=1) / 2.0
    return np.asarray((np.sum(outputs * images, axis=1) - energies) / scale**2)


def _largest_eps(right: int, guesses: int, canaries: int, delta: float, error: float) -> float:
    """The largest eps that `right` right guesses refute at that error; 0 if they refute none.

    The p-value increases with eps and decreases with `right`, so the result is a valid lower bound.
    """

    def refuted(eps: float) -> bool:
        return _p_value(right, guesses, canaries, eps, delta) <= error

    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high):
        low, high = high, 2.0 * high
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def _p_value(right: int, guesses: int, canaries: int, eps: float, delta: float) -> float:
    """The largest probability of `right` right guesses under any (eps, delta)-DP mechanism, rounded up.

    Below the mean of the binomial it is 1: nothing is refuted there at any level of interest.
    """
    q = float(scipy.special.expit(eps))
    if right <= guesses * q:
        return 1.0
    above = np.arange(right, guesses)
    # P(Bin >= v) / P(Bin = v): a sum of positive terms that decrease, as v is above the mean.
    residual = 1.0 + float(np.sum(np.cumprod((guesses - above) / (above + 1.0) * math.exp(eps))))
    tail = float(scipy.special.betainc(right, guesses - right + 1, q))
    value = tail + canaries * delta * residual * (1.0 - tail) / right
    # q has a relative error of 8 u, and the tail, a power of q of at most v, v times that. A term of the
    # residual has at most r - v factors, each with error 16 u (exp and four operations), and their sum has as
    # many additions.
    rounding = UNIT * (8.0 * right + 20.0 * (guesses - right) + 32.0) + _BETA_ROUNDING
    return min(1.0, value * (1.0 + 1.01 * rounding))


def check_included(value: npt.ArrayLike, size: int) -> BoolArray:
    """The coins as an array, or InvalidParameterError."""
    coins = np.asarray(value)
    if coins.dtype != np.bool_ or coins.shape != (size,):
        raise InvalidParameterError(
            "included", f"{coins.dtype} of shape {coins.shape}", f"bool of shape ({size},), one a score"
        )
    count = int(coins.sum())
    if 2.0 * float(scipy.special.bdtr(min(count, size - count), size, 0.5)) < _UNFAIR:
        raise InvalidParameterError(
            "included", f"{count} of {size}", "the results of fair coins, one a canary"
        )
    return coins


def _check_guesses(value: Sequence[tuple[int, int]] | None, canaries: int) -> list[tuple[int, int]]:
    if value is None:
        highest = {-(-canaries // share) for share in _DEFAULT_SHARES}
        return sorted({(high, low) for high in highest for low in (0, high) if high + low <= canaries})
    accepted = f"None, or pairs of integers >= 0 with a sum in [1, {canaries}]"
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        raise InvalidParameterError("guesses", value, accepted)
    pairs = set()
    for pair in value:
        if not isinstance(pair, Sequence) or len(pair) != 2:
            raise InvalidParameterError("guesses", value, accepted)
        high, low = (check_integer("guesses", one, minimum=0, maximum=canaries) for one in pair)
        if not 1 <= high + low <= canaries:
            raise InvalidParameterError("guesses", value, accepted)
        pairs.add((high, low))
    return sorted(pairs)


def check_rows(name: str, value: npt.ArrayLike, n: int) -> FloatArray:
    """Values of up to n steps in float64, or InvalidParameterError."""
    rows = np.asarray(value)
    accepted = f"finite numbers, shape (m, t) with m >= 1 and t in [1, {n}]"
    if rows.dtype.kind not in "iuf" or rows.ndim != 2 or rows.size == 0 or rows.shape[1] > n:
        raise InvalidParameterError(name, f"{rows.dtype} of shape {rows.shape}", accepted)
    rows = rows.astype(np.float64)
    if not np.all(np.isfinite(rows)):
        raise InvalidParameterError(name, "a NaN or an infinity", accepted)
    return rows


def check_strengths(value: npt.ArrayLike | None, steps: int) -> FloatArray:
    """Strengths of canaries, 1 for None, or InvalidParameterError."""
    weights = np.ones(steps) if value is None else check_vector("strengths", value)
    if weights.size != steps or weights.min() < 0.0:
        raise InvalidParameterError("strengths", value, f"None or {steps} numbers >= 0, one a step")
    return weights


def check_joins(value: object, shape: tuple[int, ...]) -> BoolArray:
    """Which steps each canary joins, as an array, or InvalidParameterError."""
    joins = None if value is None or isinstance(value, Participation) else np.asarray(value)
    if joins is None or joins.dtype != np.bool_ or joins.shape != shape:
        raise InvalidParameterError(
            "participation",
            value if joins is None else f"{joins.dtype} of shape {joins.shape}",
            "Poisson, CyclicPoisson, BallsInBins, or for batches that are not drawn the steps that each "
            f"canary joins, bool of shape {shape}",
        )
    return joins


# Grid for the curve: e^eps from small to where delta is negligible, and the number of nodes.
_LEAST_EPS, _MOST_EPS, _NEGLIGIBLE, _NODES = -3.0, 60.0, 1e-9, 64
_LARGE, _SCALE = 1e200, 2.0**-600
_CURVE_HALVINGS, _ROUNDS = 40, 2
# Probabilities for which tangents are tried.
_NEAR = (0.3, 0.1, 0.03, 1e-3, 1e-5, 1e-9)
# The relative errors of sums of positive terms and of interpolation are far smaller.
_SLACK, _ROUNDING = 1e-9, 1e-10
# Far above any probability: once it is reached, any tangent works.
_MOST_MASS = 1e6


@dataclasses.dataclass(frozen=True)
class CurveAudit:
    """The result of testing a claimed curve with one run.

    Attributes:
        p_value: upper bound on the probability of at least as many right guesses, if the mechanism has this
            curve; for several ways to guess, that of the best, with a union bound.
        confidence: the requested confidence level.
        right: number of right guesses, in the deciding way to guess.
        high: number of canaries guessed in.
        low: number of canaries guessed out.
        ways: number of ways to guess that were tried.

    Example:
        >>> import numpy as np, dpmech as dm
        >>> rng = np.random.default_rng(1)
        >>> included = rng.integers(0, 2, size=1000, dtype=bool)
        >>> claimed = dm.profile(dm.Identity(1), 1.0, participation=dm.SingleParticipation())
        >>> guessed_well = dm.audits.audit_profile(included + 0.3 * rng.normal(size=1000), included, claimed)
        >>> guessed_well.refuted, guessed_well.p_value < 0.01
        (True, True)
    """

    p_value: float
    confidence: float
    right: int
    high: int
    low: int
    ways: int

    @property
    def refuted(self) -> bool:
        """Whether the claimed curve is refuted at this confidence. If not, nothing is proved."""
        return self.p_value <= 1.0 - self.confidence

    def __str__(self) -> str:
        verdict = "refuted" if self.refuted else "not refuted"
        right = f"{self.right} of {self.high} + {self.low} guesses right"
        return (
            f"the curve is {verdict} at confidence {percent(self.confidence)} %: {right}, p = "
            f"{up(self.p_value, 3)} over {self.ways} ways to guess"
        )


def audit_profile(
    scores: npt.ArrayLike,
    included: npt.ArrayLike,
    profile: PrivacyProfile,
    *,
    guesses: Sequence[tuple[int, int]] | None = None,
    confidence: float = 0.95,
) -> CurveAudit:
    r"""Test a full claimed curve with one run on data with canaries.

    It tests whether guesses are right more often than the curve allows, at all values of eps at once, whereas
    `one_run_epsilon` tests one (eps, delta). A mechanism that has the curve is refuted with probability at
    most 1 - `confidence`.

    **Guarantee:** as in `one_run_epsilon`, under the same conditions. Any adjacency of the profile is
    allowed, because leaving out a canary, with a gap in its place, is a case of each adjacency.

    Args:
        scores: as in `one_run_epsilon`.
        included: as in `one_run_epsilon`.
        profile: the certified profile, `cal.profile()`.
        guesses: as in `one_run_epsilon`.
        confidence: confidence level, in (0, 1).

    Returns:
        A CurveAudit: whether the curve is refuted, and the p-value.

    Raises:
        InvalidParameterError: if an argument is invalid.
        NumericalError: as in `PrivacyProfile.hockey_stick`.

    Examples:
        >>> import numpy as np, dpmech as dm
        >>> rng = np.random.default_rng(1)
        >>> included = rng.integers(0, 2, size=1000, dtype=bool)
        >>> scores = included + 0.5 * rng.normal(size=1000)  # a noise multiplier of 0.5
        >>> claimed = dm.profile(dm.Identity(1), 1.0, participation=dm.SingleParticipation())
        >>> audit_profile(scores, included, claimed).refuted
        True
    """
    if not isinstance(profile, PrivacyProfile):
        raise InvalidParameterError("profile", profile, "a PrivacyProfile")
    level = check_confidence(confidence)
    canaries, counts = guessed(scores, included, guesses)
    curve, error = Tangents.of(profile), (1.0 - level) / len(counts)
    found = [
        (p_value(right, high + low, curve.a, curve.allowed(canaries, high, low), error), right, high, low)
        for right, high, low in counts
    ]
    least, right, high, low = min(found, key=lambda one: one[0])
    return CurveAudit(min(1.0, len(found) * least), level, right, high, low, len(found))


@dataclasses.dataclass(frozen=True, eq=False)
class Tangents:
    """Upper bounds on both directions of a curve at several a.

    Args:
        a: values > 0, shape (k,).
        remove: bounds on H_a of "with" against "without", shape (k,).
        add: bounds on H_a of "without" against "with", shape (k,).
    """

    a: FloatArray
    remove: FloatArray
    add: FloatArray

    @classmethod
    def of(cls, profile: PrivacyProfile) -> "Tangents":
        """Tangents from eps = -3 to where delta is negligible."""
        last = 1.0
        while last < _MOST_EPS and profile.delta(last).upper > _NEGLIGIBLE:
            last *= 1.5
        eps = np.linspace(_LEAST_EPS, min(last, _MOST_EPS), _NODES)
        # e^eps has a relative error of 8 u, which moves H by at most that times e^eps.
        a = np.exp(eps)
        remove, add = (
            np.array([profile.hockey_stick(float(one), add=side).upper for one in eps]) + 16.0 * UNIT * a
            for side in (False, True)
        )
        return cls(a, remove, add)

    def allowed(self, canaries: int, high: int, low: int) -> FloatArray:
        """H at every a: half of the coins are in, and only guesses "in" can be right about them."""
        sides = (self.remove if high else 0.0) + (self.add if low else 0.0)
        return np.asarray(0.5 * canaries * sides * (1.0 + 4.0 * UNIT))


def p_value(right: int, guesses: int, a: FloatArray, allowed: FloatArray, error: float = 0.05) -> float:
    """An upper bound on P(W >= right), close to the best from these inequalities where that is `error`."""
    best = min(tail_bound(right, guesses, a, allowed, near) for near in (error, *_NEAR))
    for _ in range(_ROUNDS):
        best = min(best, tail_bound(right, guesses, a, allowed, best))
    return best


def tail_bound(right: int, guesses: int, a: FloatArray, allowed: FloatArray, near: float) -> float:
    """An upper bound on P(W >= right), from tangents that are good if it is about `near`.

    Args:
        right: v in [0, r].
        guesses: r >= 1.
        a: > 0, shape (k,).
        allowed: H at each, shape (k,).
        near: in (0, 1].
    """
    if right == 0:
        return 1.0
    return chained_bound(right, guesses, _places(right, guesses, a, allowed, near), a, allowed)


def chained_bound(
    right: int, guesses: int, places: Sequence[int], a: FloatArray, allowed: FloatArray
) -> float:
    """An upper bound on P(W >= v), v = right >= 1, from any choice of one tangent for each w in [1, v].

    Weights y_1 < ... < y_v make the sum of the inequalities at least 0 below v; with weights y_w, at most
    y_v, from v on it is at least g.
    """
    # y, G(y) = the integral of a, 1, and the integral of H; all scaled alike.
    y, area = np.zeros(right + 1), np.zeros(right + 1)
    one, paid = 1.0, 0.0
    for w in range(right):
        slope, rest = float(a[places[w]]), float(guesses - w)
        step = max(0.0, (one + w * float(y[w])) / rest * (1.0 - _ROUNDING) - float(area[w])) / slope
        y[w + 1] = y[w] + step
        area[w + 1] = area[w] + step * slope
        paid += step * float(allowed[places[w]])
        if y[w + 1] > _LARGE:
            y, area, one, paid = _SCALE * y, _SCALE * area, _SCALE * one, _SCALE * paid
    most = float(y[-1])

    def reached(g: float) -> bool:
        """Whether weights up to y_v make the sum at least g from v on."""
        here = 0.0
        for w in range(guesses, right - 1, -1):
            over = float(np.interp(here, y, area)) if here > 0.0 else 0.0
            here = (g - one + (guesses - w) * over) / w * (1.0 + _SLACK)
            if here > most:
                return False
        return True

    low, high = one, one + right * most
    for _ in range(_CURVE_HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if reached(middle) else (low, middle)
    return min(1.0, max((one + paid) / low * (1.0 + 4.0 * _SLACK), 1e-300))


def _places(right: int, guesses: int, a: FloatArray, allowed: FloatArray, near: float) -> list[int]:
    """The tangents that hold if P(W = right) is `near` and smaller values are as rare as allowed."""
    weight, spread = right * near, (guesses - right) * near
    places = []
    for u in range(right, 0, -1):
        needed = (weight - allowed) / a
        place = int(np.argmax(needed))
        places.append(place)
        # A lower bound on (r - u + 1) p_(u - 1).
        more = min(max(0.0, float(needed[place]) - spread) / (guesses - u + 1.0), _MOST_MASS)
        weight += (u - 1.0) * more
        spread += (guesses - u + 1.0) * more
    return places[::-1]
