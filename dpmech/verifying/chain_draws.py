r"""b-min-sep sampling by draws and formulas of the verifier's own.

The accountant sums over participations from the last step back, and draws from laws of participations that
are tilted. Here everything runs forward and in plain numpy: the participations are always drawn from their
own law, step after step, and the likelihood ratio is the weight of all histories, by how long they still
rest. A part of the mixture is y = C(h 1 + a pi) + sigma z, with a and h numbers; its density against Q is

    exp(h 1.w - h^2 |C 1|^2 / (2 sigma^2)) E_pi[exp(sum over t in pi of a w_t - a h (K 1)_t - a^2 K_tt / 2)].
"""

import math

import numpy as np

from dpmech.certificates import Certificate
from dpmech.exceptions import UnsupportedCombinationError
from dpmech.mechanism import RestLaw
from dpmech.numerics import Bounds, FloatArray, spend
from dpmech.verifying.weighed_draws import better_odds, estimated, interval, reaching, weights_of

__all__ = ["ChainDraws", "chain_draws"]

_SCALES = (0.0, 1.0, 1.5, 2.5, 4.0)
_PILOT, _DRAWS, _TRIALS, _ROWS = 4000, 40_000, 200, 1000


def chain_draws(certificate: Certificate, rng: np.random.Generator | None) -> "ChainDraws":
    """Draws for the strategy and the law of a certificate.

    Raises:
        UnsupportedCombinationError: where nobody rests.
    """
    law, strategy = certificate.participation.rest_law, certificate.strategy
    if law is None:
        raise UnsupportedCombinationError(
            f"{certificate.participation!r} lets nobody rest", supported="MinSepSampling"
        )
    spend(1e-9 * strategy.n**2, 32.0 * strategy.n**2, what=f"a dense matrix of {strategy.n} steps")
    return ChainDraws(strategy.to_dense(), law, np.random.default_rng() if rng is None else rng)


class ChainDraws:
    """Intervals for delta from draws of its own.

    Args:
        matrix: C, shape (n, n).
        law: of the participations.
        rng: of the draws.
    """

    name = "draws of its own, forward over the rest counter"

    def __init__(self, matrix: FloatArray, law: RestLaw, rng: np.random.Generator) -> None:
        self.matrix, self.law, self.rng = matrix, law, rng

    def delta(self, sigma: float, eps: float) -> Bounds:
        """Both directions, the larger one: mean weights with five standard errors either way.

        Raises:
            NumericalError: where a sample does not show its mean.
        """
        columns = self.matrix / sigma
        spend(
            2e-7 * (_DRAWS + _PILOT) * len(columns) * (len(_SCALES) + 0.1 * self.law.min_sep),
            100.0 * _ROWS * len(columns),
            what=f"drawing {_DRAWS} samples of {len(columns)} steps",
        )
        ends = [self._direction(columns, eps, add=add) for add in (False, True)]
        return estimated(ends, "second.chains")

    def _direction(self, columns: FloatArray, eps: float, *, add: bool) -> tuple[float, float]:
        kernel = columns.T @ columns
        parts = self._parts(columns, kernel, eps, add=add)
        odds = np.full(len(parts), 1.0 / len(parts))
        _, odds = self._weights(columns, kernel, eps, parts, odds, _PILOT, add=add)
        weights, _ = self._weights(columns, kernel, eps, parts, odds, _DRAWS, add=add)
        return interval(weights, add=add)

    def _parts(
        self, columns: FloatArray, kernel: FloatArray, eps: float, *, add: bool
    ) -> list[tuple[float, float]]:
        """(a, h), so that half of the losses of each part are beyond eps; and the law itself."""
        sign = -1.0 if add else 1.0
        normals = self.rng.standard_normal((_TRIALS, len(columns)))
        joined = self._patterns(_TRIALS)
        parts = [(0.0, 0.0)] if add else [(1.0, 0.0)]
        for scale in _SCALES[:1] if add else _SCALES:

            def beyond(shift: float, scale: float = scale) -> bool:
                rows = normals + (sign * shift + scale * joined) @ columns.T
                return float(np.median(sign * self._losses(rows @ columns, kernel))) >= eps

            if beyond(0.0):
                continue
            parts.append((scale, sign * reaching(beyond)))
        return parts

    def _weights(
        self,
        columns: FloatArray,
        kernel: FloatArray,
        eps: float,
        parts: list[tuple[float, float]],
        odds: FloatArray,
        count: int,
        *,
        add: bool,
    ) -> tuple[FloatArray, FloatArray]:
        """The weights of draws, and by how much of their second moment each part would be better drawn."""
        found, gains = [], np.zeros(len(parts))
        totals, n = kernel.sum(axis=1), len(columns)
        for _ in range(math.ceil(count / _ROWS)):
            chosen = self.rng.choice(len(parts), size=_ROWS, p=odds)
            scales, shifts = np.array(parts)[chosen].T
            means = shifts[:, None] + scales[:, None] * self._patterns(_ROWS)
            rows = self.rng.standard_normal((_ROWS, n)) + means @ columns.T
            values = rows @ columns
            losses = self._losses(values, kernel)
            logs = np.empty((_ROWS, len(parts)))
            for place, (scale, shift) in enumerate(parts):
                logs[:, place] = shift * values.sum(axis=1) - 0.5 * shift**2 * float(totals.sum())
                if scale > 0.0:
                    terms = scale * values - scale * shift * totals - 0.5 * scale**2 * np.diag(kernel)
                    logs[:, place] += self._log_ratios(terms)
            weights, gained = weights_of(losses, logs, odds, eps, add=add)
            found.append(weights)
            gains += gained
        return np.concatenate(found), better_odds(odds, gains)

    def _patterns(self, count: int) -> FloatArray:
        """Who joins when, 1.0 or 0.0, shape (count, n), step after step."""
        b, p, n = self.law.min_sep, self.law.sampling_prob, len(self.matrix)
        resting = self.rng.random(count) < self.law.resting
        rest = np.where(resting, self.rng.integers(1, max(b, 2), size=count), 0)
        out = np.zeros((count, n))
        for t in range(n):
            joins = (rest == 0) & (self.rng.random(count) < p)
            out[:, t] = joins
            rest = np.where(joins, b - 1, np.maximum(rest - 1, 0))
        return out

    def _losses(self, values: FloatArray, kernel: FloatArray) -> FloatArray:
        """Log dP/dQ of rows C^T y / sigma^2."""
        return self._log_ratios(values - 0.5 * np.diag(kernel))

    def _log_ratios(self, terms: FloatArray) -> FloatArray:
        """Log E_pi[exp(sum over t in pi of terms_t)], from the first step on, shape (m,)."""
        b, p = self.law.min_sep, self.law.sampling_prob
        # By how long a history still rests; what leaves the rest is put back at its end.
        weights = np.full((b, len(terms)), self.law.rate)
        weights[0] = 1.0 - self.law.resting
        scale = np.zeros(len(terms))
        for t in range(terms.shape[1]):
            grown = np.exp(np.minimum(terms[:, t], 600.0))
            joining, staying = p * grown * weights[0], (1.0 - p) * weights[0]
            if b == 1:
                weights[0] = joining + staying
            else:
                weights[0] = staying + weights[1]
                weights[1:-1] = weights[2:]
                weights[-1] = joining
            top = weights.max(axis=0)
            weights /= top
            scale += np.log(top)
        out: FloatArray = scale + np.log(weights.sum(axis=0))
        return out
