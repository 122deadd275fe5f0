r"""b-min-sep sampling by draws and formulas of the verifier's own.

The accountant sums over participations from the last step back, and draws from laws of participations that
are tilted. Here everything runs forward and in plain numpy: the participations are always drawn from their
own law, step after step, and the likelihood ratio is the weight of all histories, by how long they still
rest. A part of the mixture is y = C(h 1 + a pi) + sigma z, with a and h numbers; its density against Q is

    exp(h 1.w - h^2 |C 1|^2 / (2 sigma^2)) E_pi[exp(sum over t in pi of a w_t - a h (K 1)_t - a^2 K_tt / 2)].

ADD has a bound without draws too, which says where it is too small to be drawn. With rho the same law with
another p', and KL the divergence of its coins from those of p, Jensen's inequality gives

    log dP/dQ >= rate' sum_t (w_t - K_tt / 2) - KL,

so that it is at most -eps only where the normal variable rate' 1.w is at most rate' tr K / 2 + KL - eps.
"""

import math

import numpy as np
import scipy

from dpmech.certificates import Certificate
from dpmech.exceptions import UnsupportedCombinationError
from dpmech.mechanism import RestLaw
from dpmech.numerics import Bounds, FloatArray, spend
from dpmech.verifying.weighed_draws import better_odds, estimated, reaching, shown, weights_of

__all__ = ["ChainDraws", "chain_draws"]

_SCALES = (0.0, 1.0, 1.5, 2.5, 4.0)
_TRIALS, _ROWS = 200, 1000
# Other coins p' that bound ADD, as parts of p.
_OTHERS = np.geomspace(1e-4, 1.0, 81)


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

        ADD is drawn where a bound without draws leaves it open whether it is the smaller one.

        Raises:
            NumericalError: where a sample does not show a mean that may decide.
        """
        columns = self.matrix / sigma
        remove = self._direction(columns, eps, add=False)
        ends = [remove]
        if self.largest_add(columns, eps) > remove[0]:
            ends.append(self._direction(columns, eps, add=True))
        return estimated(ends, "second.chains")

    def largest_add(self, columns: FloatArray, eps: float) -> float:
        """An upper bound on delta of ADD, columns over sigma of shape (n, n): of half-spaces, proved."""
        b, p, n = self.law.min_sep, self.law.sampling_prob, len(columns)
        half, spread = 0.5 * float(np.sum(columns**2)), math.sqrt(float(np.sum(columns.sum(axis=1) ** 2)))
        best = 1.0
        for other in (p * _OTHERS).tolist() if p < 1.0 else [1.0]:
            free = 1.0 / (1.0 + other * (b - 1))
            coins = other * math.log(other / p)
            coins += (1.0 - other) * math.log((1.0 - other) / (1.0 - p)) if p < 1.0 else 0.0
            # Of the rest counter at step 0, then of the coins at all steps at which it is 0.
            start = math.log(free / (1.0 - self.law.resting)) + (1.0 - free) * math.log(other / p)
            depth = eps - other * free * half - start - n * free * coins
            best = min(best, float(scipy.special.ndtr(-depth / (other * free * spread))))
        return best * (1.0 + 1e-9)

    def rows(self, columns: FloatArray, factors: FloatArray) -> FloatArray:
        """Outputs y / sigma, one for each factor of a participation's columns, shape (factors, n)."""
        joined = self._patterns(factors.size)
        return self.rng.standard_normal(joined.shape) + (factors[:, None] * joined) @ columns.T

    def log_densities(
        self, columns: FloatArray, rows: FloatArray, sizes: FloatArray, gains: FloatArray, shift: FloatArray
    ) -> FloatArray:
        """Log of the density against Q of y = C (shift + x) + sigma z, at rows y / sigma, shape (m,).

        x is 0 but for the steps joined, where it is one of the sizes; a participation and its sizes count
        e^gains over all steps joined.

        Args:
            columns: C over sigma, shape (n, n).
            rows: shape (m, n).
            sizes: shape (J,).
            gains: of each size at each step, shape (J, n).
            shift: shape (n,).
        """
        kernel = columns.T @ columns
        values, image = rows @ columns, kernel @ shift
        terms = scipy.special.logsumexp(
            [
                size * (values - image) - 0.5 * size**2 * np.diag(kernel) + gain
                for size, gain in zip(sizes, gains, strict=True)
            ],
            axis=0,
        )
        straight: FloatArray = values @ shift - 0.5 * float(shift @ image)
        whole = self._log_ratios(scipy.special.logsumexp(gains, axis=0)[None])
        return straight + self._log_ratios(terms) - whole

    def _direction(self, columns: FloatArray, eps: float, *, add: bool) -> tuple[float, float]:
        kernel = columns.T @ columns
        parts = self._parts(columns, kernel, eps, add=add)

        def draw(count: int, odds: FloatArray) -> tuple[FloatArray, FloatArray]:
            spend(
                1e-7 * count * len(columns) * (len(_SCALES) + 0.1 * self.law.min_sep),
                100.0 * _ROWS * len(columns),
                what=f"drawing {count} samples of {len(columns)} steps",
            )
            return self._weights(columns, kernel, eps, parts, odds, count, add=add)

        return shown(draw, len(parts), add=add)

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
        # Logs of the weights of histories, by how long they still rest.
        join, stay = math.log(p), math.log1p(-p) if p < 1.0 else -math.inf
        logs = np.full((b, len(terms)), math.log(self.law.rate))
        logs[0] = math.log1p(-self.law.resting)
        for t in range(terms.shape[1]):
            joining, staying = join + terms[:, t] + logs[0], stay + logs[0]
            if b == 1:
                logs[0] = np.logaddexp(joining, staying)
            else:
                logs[0] = np.logaddexp(staying, logs[1])
                logs[1:-1] = logs[2:]
                logs[-1] = joining
        out: FloatArray = scipy.special.logsumexp(logs, axis=0)
        return out
