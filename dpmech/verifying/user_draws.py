r"""Users with several examples in bins, by draws and formulas of the verifier's own.

The accountant sums over ordered tuples of bins and draws from mixtures that are made for them. Here it is how
many examples each bin has, n, with its multinomial probability p(n); outputs are drawn themselves, and all is
plain numpy. A part of the mixture is y = M (h u + a n) + sigma z with u = 1 / b in every bin, numbers a and
h, and n drawn with probability proportional to `p(n) e^((a - 1) n^T K n / 2)`; its density against Q is, with
w = M^T y / sigma^2 and p_a that law,

    exp(h u.w - h^2 u^T K u / 2) sum_n p_a(n) exp(a n.w - a h n^T K u - a^2 n^T K n / 2).
"""

import itertools
import math

import numpy as np
import scipy

from dpmech.certificates import Certificate
from dpmech.exceptions import UnsupportedCombinationError
from dpmech.mechanism import UserBallsInBins
from dpmech.numerics import Bounds, FloatArray, spend
from dpmech.verifying.privacy_routes import SECOND_ROUTES, Route
from dpmech.verifying.weighed_draws import better_odds, estimated, interval, reaching, weights_of

__all__ = ["UserDraws"]

_SCALES = (0.0, 1.0, 1.4, 2.0, 3.5)
_PILOT, _DRAWS, _TRIALS, _ROWS = 4000, 40_000, 200, 500


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

        Raises:
            NumericalError: where a sample does not show its mean.
        """
        columns = self.means / sigma
        spend(
            4e-8 * (_DRAWS + _PILOT) * len(_SCALES) * len(self.counts),
            50.0 * _ROWS * len(self.counts),
            what=f"drawing {_DRAWS} samples of {len(self.counts)} ways to fill the bins",
        )
        ends = [self._direction(columns, eps, add=add) for add in (False, True)]
        return estimated(ends, "second.users")

    def _direction(self, columns: FloatArray, eps: float, *, add: bool) -> tuple[float, float]:
        squares = np.sum((self.counts @ columns.T) ** 2, axis=1)
        parts = self._parts(columns, squares, eps, add=add)
        odds = np.full(len(parts), 1.0 / len(parts))
        _, odds = self._weights(columns, squares, eps, parts, odds, _PILOT, add=add)
        weights, _ = self._weights(columns, squares, eps, parts, odds, _DRAWS, add=add)
        return interval(weights, add=add)

    def _law(self, squares: FloatArray, scale: float) -> FloatArray:
        """Log p_a."""
        logs = self.logs + 0.5 * max(scale - 1.0, 0.0) * squares
        out: FloatArray = logs - scipy.special.logsumexp(logs)
        return out

    def _drawn(self, squares: FloatArray, scale: float, count: int) -> FloatArray:
        """Counts from p_a, shape (count, b)."""
        odds = np.exp(self._law(squares, scale))
        chosen: FloatArray = self.counts[self.rng.choice(len(odds), size=count, p=odds / odds.sum())]
        return chosen

    def _parts(
        self, columns: FloatArray, squares: FloatArray, eps: float, *, add: bool
    ) -> list[tuple[float, float]]:
        """(a, h), so that half of the losses of each part are beyond eps; and the law itself."""
        sign = -1.0 if add else 1.0
        level = columns.mean(axis=1)
        normals = self.rng.standard_normal((_TRIALS, len(columns)))
        parts = [(0.0, 0.0)] if add else [(1.0, 0.0)]
        for scale in _SCALES[:1] if add else _SCALES:
            rows = normals + scale * self._drawn(squares, scale, _TRIALS) @ columns.T

            def beyond(shift: float, rows: FloatArray = rows) -> bool:
                losses = self._losses((rows + sign * shift * level) @ columns, squares)
                return float(np.median(sign * losses)) >= eps

            if beyond(0.0):
                # Tilts of means alone reach far enough; a smaller one of them is among the others.
                parts.append((scale, 0.0))
                continue
            parts.append((scale, sign * reaching(beyond)))
        return parts

    def _weights(
        self,
        columns: FloatArray,
        squares: FloatArray,
        eps: float,
        parts: list[tuple[float, float]],
        odds: FloatArray,
        count: int,
        *,
        add: bool,
    ) -> tuple[FloatArray, FloatArray]:
        """The weights of draws, and by how much of their second moment each part would be better drawn."""
        found, gains = [], np.zeros(len(parts))
        level = columns.mean(axis=1)
        along = self.counts @ (columns.T @ level)
        for _ in range(math.ceil(count / _ROWS)):
            chosen = self.rng.choice(len(parts), size=_ROWS, p=odds)
            rows = self.rng.standard_normal((_ROWS, len(columns)))
            for place, (scale, shift) in enumerate(parts):
                own = np.flatnonzero(chosen == place)
                rows[own] += shift * level + scale * self._drawn(squares, scale, own.size) @ columns.T
            values = rows @ columns
            sums = values @ self.counts.T
            losses = scipy.special.logsumexp(sums - 0.5 * squares + self.logs, axis=1)
            logs = np.empty((_ROWS, len(parts)))
            for place, (scale, shift) in enumerate(parts):
                logs[:, place] = shift * values.mean(axis=1) - 0.5 * shift**2 * float(level @ level)
                if scale > 0.0:
                    terms = self._law(squares, scale) - scale * shift * along - 0.5 * scale**2 * squares
                    logs[:, place] += scipy.special.logsumexp(scale * sums + terms, axis=1)
            weights, gained = weights_of(losses, logs, odds, eps, add=add)
            found.append(weights)
            gains += gained
        return np.concatenate(found), better_odds(odds, gains)

    def _losses(self, values: FloatArray, squares: FloatArray) -> FloatArray:
        """Log dP/dQ of rows M^T y / sigma^2."""
        out: FloatArray = scipy.special.logsumexp(values @ self.counts.T - 0.5 * squares + self.logs, axis=1)
        return out


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
