r"""Users with several examples in bins, by draws and formulas of the verifier's own.

The accountant sums over ordered tuples of bins and draws from mixtures that are made for them. Here it is how
many examples each bin has, n, with its multinomial probability p(n); outputs are drawn themselves, and all is
plain numpy. A part of the mixture is y = M (h u + a n) + sigma z with u = 1 / b in every bin, numbers a and
h, and n drawn from a table: all counts of one user, with probability proportional to
`p(n) e^((a - 1) n^T K n / 2)`, or some counts of several users at once. Its density against Q is, with
w = M^T y / sigma^2 and p_a the law of the table,

    exp(h u.w - h^2 u^T K u / 2) sum_n p_a(n) exp(a n.w - a h n^T K u - a^2 n^T K n / 2).
"""

import dataclasses
import itertools
import math

import numpy as np
import scipy

from dpmech.certificates import Certificate
from dpmech.exceptions import UnsupportedCombinationError
from dpmech.mechanism import UserBallsInBins
from dpmech.numerics import Bounds, FloatArray, spend
from dpmech.verifying.privacy_routes import SECOND_ROUTES, Route
from dpmech.verifying.weighed_draws import better_odds, estimated, reaching, shown, weights_of

__all__ = ["UserDraws"]

_SCALES = (1.0, 1.4, 2.0, 3.5)
_COPIES, _CENTRES = (2, 3, 5, 8), 400
_TRIALS, _ROWS = 200, 500


@dataclasses.dataclass(frozen=True, eq=False)
class _Part:
    """One part of the mixture.

    Attributes:
        scale: a.
        counts: n, shape (k, b).
        logs: log of their probabilities, shape (k,).
        shift: h.
    """

    scale: float
    counts: FloatArray
    logs: FloatArray
    shift: float

    def log_density(self, values: FloatArray, columns: FloatArray) -> FloatArray:
        """Log of the density against Q, of rows w of shape (m, b)."""
        level = columns.mean(axis=1)
        straight = self.shift * values.mean(axis=1) - 0.5 * self.shift**2 * float(level @ level)
        means = self.scale * self.counts @ columns.T
        offsets = self.logs - self.shift * (means @ level) - 0.5 * np.sum(means**2, axis=1)
        sums = scipy.special.logsumexp(self.scale * (values @ self.counts.T) + offsets, axis=1)
        out: FloatArray = straight + sums
        return out


class UserDraws:
    """Intervals for delta from draws of its own.

    Args:
        means: M, the output means of the bins at clip norm 1, shape (n, b).
        examples: m >= 1.
        rng: of the draws.
    """

    name = "draws of its own, by how many examples each bin has"

    def __init__(self, means: FloatArray, examples: int, rng: np.random.Generator) -> None:
        self.means, self.rng = means, rng
        bins = means.shape[1]
        chosen = itertools.combinations_with_replacement(range(bins), examples)
        self.counts = np.array([np.bincount(one, minlength=bins) for one in chosen], dtype=np.float64)
        ways = math.lgamma(examples + 1) - scipy.special.gammaln(self.counts + 1.0).sum(axis=1)
        self.logs: FloatArray = ways - examples * math.log(bins)

    def delta(self, sigma: float, eps: float) -> Bounds:
        """Both directions, the larger one: mean weights with five standard errors either way.

        ADD is drawn where a bound without draws leaves it open whether it is the smaller one.

        Raises:
            NumericalError: where a sample does not show a mean that may decide.
        """
        columns = self.means / sigma
        remove = self._direction(columns, eps, add=False)
        ends = [remove]
        if self.largest_add(columns, eps) > remove[0]:
            ends.append(self._direction(columns, eps, add=True))
        return estimated(ends, "second.users")

    def largest_add(self, columns: FloatArray, eps: float) -> float:
        """An upper bound on delta of ADD, columns over sigma of shape (n, b): of a half-space, proved.

        log dP/dQ is at least the mean over the ways to fill the bins of each one's log ratio (Jensen), which
        is normal under Q: so that it is at most -eps only where that mean is.
        """
        half = 0.5 * float(np.exp(self.logs) @ np.sum((self.counts @ columns.T) ** 2, axis=1))
        spread = float(np.linalg.norm(columns @ (np.exp(self.logs) @ self.counts)))
        return float(scipy.special.ndtr((half - eps) / spread)) * (1.0 + 1e-9)

    def _direction(self, columns: FloatArray, eps: float, *, add: bool) -> tuple[float, float]:
        parts = self._parts(columns, eps, add=add)

        def draw(count: int, odds: FloatArray) -> tuple[FloatArray, FloatArray]:
            spend(
                4e-8 * count * (len(_SCALES) + 1) * (len(self.counts) + _CENTRES),
                50.0 * _ROWS * len(self.counts),
                what=f"drawing {count} samples of {len(self.counts)} ways to fill the bins",
            )
            return self._weights(columns, eps, parts, odds, count, add=add)

        return shown(draw, len(parts), add=add)

    def _laws(self, columns: FloatArray, *, add: bool) -> list[tuple[float, FloatArray, FloatArray]]:
        """A, the counts and their log probabilities, of every part."""
        squares = np.sum((self.counts @ columns.T) ** 2, axis=1)
        laws = [(0.0, self.counts[:1], np.zeros(1))]
        if add:
            return laws
        for scale in _SCALES:
            logs = self.logs + 0.5 * (scale - 1.0) * squares
            laws.append((scale, self.counts, logs - scipy.special.logsumexp(logs)))
        for copies in _COPIES:
            centres = self._copies(columns, squares, copies)
            laws.append((1.0, centres, np.full(len(centres), -math.log(len(centres)))))
        return laws

    def _copies(self, columns: FloatArray, squares: FloatArray, copies: int) -> FloatArray:
        """Counts of several users at once, drawn so that they are near each other, shape (_CENTRES, b)."""
        pull = 0.5 * copies
        logs = self.logs + 0.5 * pull * squares
        first = self.counts[self.rng.choice(len(logs), size=_CENTRES, p=scipy.special.softmax(logs))]
        fields = pull * (first @ columns.T) @ columns @ self.counts.T + self.logs
        bounds = np.cumsum(scipy.special.softmax(fields, axis=1), axis=1)
        out = first.copy()
        for _ in range(copies - 1):
            places = (self.rng.random((_CENTRES, 1)) >= bounds).sum(axis=1)
            out += self.counts[np.minimum(places, len(self.counts) - 1)]
        return out

    def _parts(self, columns: FloatArray, eps: float, *, add: bool) -> list[_Part]:
        """Of every law one, so that half of its losses are beyond eps; and P or Q itself."""
        sign = -1.0 if add else 1.0
        level = columns.mean(axis=1)
        normals = self.rng.standard_normal((_TRIALS, len(columns)))
        laws = self._laws(columns, add=add)
        parts = [_Part(*laws[0], 0.0)] if add else [_Part(*laws[1], 0.0)]
        for scale, counts, logs in laws:
            drawn = counts[self.rng.choice(len(logs), size=_TRIALS, p=scipy.special.softmax(logs))]
            means = drawn @ columns.T

            def beyond(shift: float, scale: float = scale, means: FloatArray = means) -> bool:
                rows = normals + scale * means + sign * shift * level
                return float(np.median(sign * self._losses(rows @ columns, columns))) >= eps

            if not beyond(0.0):
                parts.append(_Part(scale, counts, logs, sign * reaching(beyond)))
                continue

            def wider(part: float, means: FloatArray = means) -> bool:
                losses = self._losses((normals + part * means) @ columns, columns)
                return float(np.median(losses)) >= eps

            parts.append(_Part(min(reaching(wider), scale), counts, logs, 0.0))
        return parts

    def _weights(
        self,
        columns: FloatArray,
        eps: float,
        parts: list[_Part],
        odds: FloatArray,
        count: int,
        *,
        add: bool,
    ) -> tuple[FloatArray, FloatArray]:
        """The weights of draws, and by how much of their second moment each part would be better drawn."""
        found, gains = [], np.zeros(len(parts))
        level = columns.mean(axis=1)
        for _ in range(math.ceil(count / _ROWS)):
            chosen = self.rng.choice(len(parts), size=_ROWS, p=odds)
            rows = self.rng.standard_normal((_ROWS, len(columns)))
            for place, part in enumerate(parts):
                own = np.flatnonzero(chosen == place)
                law = scipy.special.softmax(part.logs)
                drawn = part.counts[self.rng.choice(len(law), size=own.size, p=law)]
                rows[own] += part.shift * level + part.scale * drawn @ columns.T
            values = rows @ columns
            losses = self._losses(values, columns)
            logs = np.stack([part.log_density(values, columns) for part in parts], axis=1)
            weights, gained = weights_of(losses, logs, odds, eps, add=add)
            found.append(weights)
            gains += gained
        return np.concatenate(found), better_odds(odds, gains)

    def _losses(self, values: FloatArray, columns: FloatArray) -> FloatArray:
        """Log dP/dQ of rows M^T y / sigma^2."""
        return _Part(1.0, self.counts, self.logs, 0.0).log_density(values, columns)


def user_draws(certificate: Certificate, rng: np.random.Generator | None) -> UserDraws:
    """Draws for the strategy and the bins of a certificate.

    Raises:
        UnsupportedCombinationError: where no examples of users are put into bins.
    """
    participation, strategy = certificate.participation, certificate.strategy
    bins = participation.user_bins
    if bins is None:
        raise UnsupportedCombinationError(
            f"{participation!r} puts no examples of users into bins", supported="UserBallsInBins"
        )
    spend(1e-9 * strategy.n**2, 32.0 * strategy.n**2, what=f"a dense matrix of {strategy.n} steps")
    means = strategy.to_dense().reshape(strategy.n, -1, bins).sum(axis=1)
    return UserDraws(means, participation.examples, np.random.default_rng() if rng is None else rng)


SECOND_ROUTES.add(
    UserBallsInBins,
    lambda own, _, rng: (Route(UserDraws.name, user_draws(own, rng).delta, math.inf, decides=False),),
)
