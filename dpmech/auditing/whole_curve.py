r"""One run against a whole certified curve: how often canaries can be guessed rightly under it.

Let m coins be fair and independent. A guesser names r canaries and a coin for each; W guesses are right, and
p_w = P(W = w). Whatever the mechanism, if its curves are at most h+ ("with" against "without") and h-, for
every a >= 0 and every set J of numbers

    sum over w in J of  w p_w - a (r - w + 1) p_(w - 1)  <=  H(a),

with H = m / 2 times h+ where guesses are "in", h- where they are "out", and their sum where both occur. From
any tangents a_1, ..., a_v a bound on P(W >= v) follows, by weights on these inequalities that a recursion
gives. The proof is on the page "Canaries" of the documentation.

References:
    Mahloujifar, Melis and Chaudhuri 2025 (the idea, and tail sums of trade-off functions).
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dpmech.auditing.one_run import guessed
from dpmech.engines import PrivacyProfile
from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_real
from dpmech.numerics import UNIT, FloatArray, percent, up

__all__ = ["CurveAudit", "audit_profile"]

# Where the curve is asked: e^eps from little to where delta no longer matters, as many times.
_LEAST_EPS, _MOST_EPS, _NEGLIGIBLE, _NODES = -3.0, 60.0, 1e-9, 64
_LARGE, _SCALE = 1e200, 2.0**-600
_HALVINGS, _ROUNDS = 40, 2
# Probabilities for which tangents are tried.
_NEAR = (0.3, 0.1, 0.03, 1e-3, 1e-5, 1e-9)
# Sums of positive terms and interpolation are off by far less, relative.
_SLACK, _ROUNDING = 1e-9, 1e-10
# Far more than a probability: where it is reached any tangent will do.
_MOST_MASS = 1e6


@dataclasses.dataclass(frozen=True)
class CurveAudit:
    """What one run says of a claimed curve.

    Attributes:
        p_value: if the mechanism had this curve, guesses as right as these would have had at most this
            probability; of several ways to guess the best, with a union bound.
        confidence: that was asked for.
        right: how many guesses were right, in the way that decided.
        high: how many canaries were guessed in.
        low: how many were guessed out.
        ways: how many ways to guess were tried.

    Example:
        >>> import numpy as np, dpmech as dm
        >>> rng = np.random.default_rng(1)
        >>> included = rng.integers(0, 2, size=1000, dtype=bool)
        >>> claimed = dm.profile(dm.Identity(1), 1.0, participation=dm.SingleParticipation())
        >>> guessed_well = dm.audit_profile(included + 0.3 * rng.normal(size=1000), included, claimed)
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
    r"""Test a whole claimed curve with one run over data with canaries.

    It asks whether guesses are right more often than the curve allows, at all eps at once; `one_run_epsilon`
    compares with one (eps, delta). A mechanism that has the curve is refuted with probability at most 1 -
    `confidence`.

    **Guarantee:** as for `one_run_epsilon`, and under the same conditions. The adjacency of the profile may
    be any: leaving a canary out, with a gap in its place, is a case of each.

    Args:
        scores: as for `one_run_epsilon`.
        included: as for `one_run_epsilon`.
        profile: what was certified, `cal.profile()`.
        guesses: as for `one_run_epsilon`.
        confidence: in (0, 1).

    Returns:
        A CurveAudit: whether the curve is refuted, and the p-value.

    Raises:
        InvalidParameterError: on a bad argument.
        NumericalError: as for `PrivacyProfile.hockey_stick`.

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
    level = check_real(
        "confidence", confidence, minimum=0.0, maximum=1.0, open_minimum=True, open_maximum=True
    )
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
        a: > 0, shape (k,).
        remove: on H_a of "with" against "without", shape (k,).
        add: on H_a of "without" against "with", shape (k,).
    """

    a: FloatArray
    remove: FloatArray
    add: FloatArray

    @classmethod
    def of(cls, profile: PrivacyProfile) -> "Tangents":
        """From eps -3 to where delta no longer matters."""
        last = 1.0
        while last < _MOST_EPS and profile.delta(last).upper > _NEGLIGIBLE:
            last *= 1.5
        eps = np.linspace(_LEAST_EPS, min(last, _MOST_EPS), _NODES)
        # e^eps is off by 8 u, which moves H by that times e^eps at most.
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
    """An upper bound on P(W >= right), near the least that these inequalities give where that is `error`."""
    best = min(tail_bound(right, guesses, a, allowed, near) for near in (error, *_NEAR))
    for _ in range(_ROUNDS):
        best = min(best, tail_bound(right, guesses, a, allowed, best))
    return best


def tail_bound(right: int, guesses: int, a: FloatArray, allowed: FloatArray, near: float) -> float:
    """An upper bound on P(W >= right), by tangents that are good if it is about `near`.

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
    """An upper bound on P(W >= v), v = right >= 1, by one tangent for each w in [1, v]; any will do.

    Weights y_1 < ... < y_v make the sum of the inequalities at least 0 below v; where they are y_w from v on,
    never above y_v, it is at least g.
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
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if reached(middle) else (low, middle)
    return min(1.0, max((one + paid) / low * (1.0 + 4.0 * _SLACK), 1e-300))


def _places(right: int, guesses: int, a: FloatArray, allowed: FloatArray, near: float) -> list[int]:
    """The tangents that hold where W is `right` with probability `near`, and below as seldom as allowed."""
    weight, spread = right * near, (guesses - right) * near
    places = []
    for u in range(right, 0, -1):
        needed = (weight - allowed) / a
        place = int(np.argmax(needed))
        places.append(place)
        # (r - u + 1) p_(u - 1), at least.
        more = min(max(0.0, float(needed[place]) - spread) / (guesses - u + 1.0), _MOST_MASS)
        weight += (u - 1.0) * more
        spread += (guesses - u + 1.0) * more
    return places[::-1]
