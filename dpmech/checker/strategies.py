"""The matrix C of a strategy from its parameters, as balls that contain its entries (python-flint's arb).

C is lower-triangular: C[i, j] = coefs[i - j] scale[j] with scale > 0, or given entry by entry.
"""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

from flint import arb, arb_series, ctx

from .documents import BadDocument, entries, shown

PRECISION = 192  # bits of a ball's midpoint
LARGEST_N = 2_000_000
_DEEPEST, _MOST_TERMS = 8, 20_000_000


class NotChecked(Exception):
    """No theorem here covers the claim, or it exceeds the limits for one file; the message says which."""


@dataclasses.dataclass(frozen=True)
class Strategy:
    """C, of shape (n, n)."""

    n: int  # number of steps
    coefs: list[arb] | None = None  # first column of the Toeplitz factor, length n; None for other matrices
    scale: list[arb] | None = None  # scale factors of the columns, length n; None for ones
    matrix: list[list[float]] = dataclasses.field(default_factory=list)  # rows, where `coefs` is None
    unit_columns: bool = False  # whether the columns are divided by their norms, which are exactly 1 then
    ratio: arb | None = None  # lambda where coefs[t] = lambda^t with 0 <= lambda < 1; else None

    def bands(self) -> int:
        """Number of bands: p such that C[i, j] = 0 exactly for i - j >= p."""
        if self.coefs is not None:
            return max(t + 1 for t, c in enumerate(self.coefs) if not c == 0)  # noqa: SIM201 - a ball that may be 0 counts
        return max(i - j + 1 for i, row in enumerate(self.matrix) for j in range(i + 1) if row[j] != 0.0)

    def leading(self, steps: int) -> "Strategy":
        """The leading block of C: the strategy of a run that stopped after `steps` steps."""
        coefs, scale = (part and part[:steps] for part in (self.coefs, self.scale))
        matrix, unit = [row[:steps] for row in self.matrix[:steps]], self.unit_columns and steps == self.n
        return Strategy(steps, coefs, scale, matrix, unit, self.ratio)

    def nonnegative(self) -> bool:
        """Whether every entry of C is proved to be >= 0."""
        rows = self.matrix if self.coefs is None else [self.coefs]
        return all(entry >= 0.0 for row in rows for entry in row)

    def squared_norms(self) -> list[arb]:
        """Squared Euclidean norms of the columns."""
        if self.unit_columns:
            return [arb(1)] * self.n
        if self.coefs is None:
            return [sum((arb(row[j]) ** 2 for row in self.matrix[j:]), arb(0)) for j in range(self.n)]
        norms = list(itertools.accumulate(c * c for c in self.coefs))[::-1]
        return norms if self.scale is None else [s * s * x for s, x in zip(self.scale, norms, strict=True)]


def strategy_of(data: Any) -> Strategy:  # noqa: ANN401 - what the file holds
    """Return the strategy that the decoded entry `claim.strategy` states."""
    depth = 0
    while isinstance(data, dict) and data.get("type") == "ColumnNormalized":
        data = entries(data, "a ColumnNormalized strategy", type=str, strategy=dict)["strategy"]
        depth += 1
        if depth > _DEEPEST:
            raise BadDocument(f"ColumnNormalized is nested more than {_DEEPEST} times")
    kind = data.get("type") if isinstance(data, dict) else None
    if not isinstance(kind, str):
        raise BadDocument(f"claim.strategy is {shown(data)}, which has no type")
    if kind not in _MAKERS:
        raise NotChecked(f"the strategy {shown(kind)} is unknown")
    fields, make = _MAKERS[kind]
    entries(data, f"the {kind} strategy", type=str, **fields)
    n = data.get("n", 1)
    if n < 1:
        raise BadDocument(f"the number of steps n is {n}, not an integer >= 1")
    if n > LARGEST_N:
        raise NotChecked(f"n = {n} steps; at most {LARGEST_N} are checked")
    found = make(**{name: data[name] for name in fields})
    if not depth:
        return found
    # Normalising once is enough: the norms are 1 afterwards.
    if found.coefs is None:
        raise NotChecked("a dense matrix with normalised columns is not checked: state the normalised matrix")
    before = [arb(1)] * found.n if found.scale is None else found.scale
    scale = [s / x.sqrt() for s, x in zip(before, found.squared_norms(), strict=True)]
    return dataclasses.replace(found, scale=scale, unit_columns=True)


def _balls(name: str, values: list[Any], most: int) -> list[arb]:
    if not 1 <= len(values) <= most or any(type(x) is not float for x in values):
        raise BadDocument(f"{name} of the strategy is {shown(values)}, not a list of 1 to {most} floats")
    return [arb(x) for x in values]


def _coefs(values: list[Any], n: int) -> list[arb]:
    coefs = _balls("coefs", values, n)
    if not coefs[0] > 0:
        raise BadDocument(f"coefs[0] of the strategy is {values[0]!r}, not > 0")
    return _padded(coefs, n)


def _recursion(name: str, count: int, n: int, step: Callable[[arb, int], arb]) -> list[arb]:
    """c_0 = 1 and c_t = step(c_(t-1), t); the number is that of the named entry, at most n."""
    if not 1 <= count <= n:
        raise BadDocument(f"{name} of the strategy is {count}, not an integer in [1, {n}]")
    return list(itertools.accumulate(range(1, count), step, initial=arb(1)))


def _padded(values: list[arb], n: int) -> list[arb]:
    return values + [arb(0)] * (n - len(values))


def reciprocal(values: list[arb], n: int) -> list[arb]:
    """The first n coefficients of the power series 1 / sum_t values[t] x^t."""
    before, ctx.cap = ctx.cap, n  # truncates power series
    try:
        series = list((1 / arb_series(values, prec=n)).coeffs())
    finally:
        ctx.cap = before
    if not all(c.is_finite() for c in series):
        raise BadDocument("the inverse of the strategy's coefficients is not finite")
    return _padded(series, n)


def _diagonal(entries: list[Any]) -> Strategy:
    scale = _balls("entries", entries, LARGEST_N)
    if not all(x > 0 for x in scale):
        raise BadDocument(f"entries of the strategy are {shown(entries)}, not all > 0")
    return dataclasses.replace(_geometric(len(scale)), scale=scale)


def _geometric(n: int, lam: float = 0.0) -> Strategy:
    if not 0.0 <= lam < 1.0:
        raise BadDocument(f"lam of the strategy is {lam!r}, not in [0, 1)")
    ratio = arb(lam)
    return Strategy(n, _recursion("n", n, n, lambda c, _: c * ratio), ratio=ratio)


def _square_root(n: int, bands: int | None) -> Strategy:
    """The first coefficients of (1 - x)^(-1/2): c_t = c_(t-1) (2 t - 1) / (2 t)."""
    count = n if bands is None else bands
    return Strategy(n, _padded(_recursion("bands", count, n, lambda c, t: c * (2 * t - 1) / (2 * t)), n))


def _inverse_square_root(n: int, inverse_bands: int) -> Strategy:
    """C^-1 has the first coefficients of (1 - x)^(1/2): d_t = d_(t-1) (2 t - 3) / (2 t)."""
    inverse = _recursion("inverse_bands", inverse_bands, n, lambda d, t: d * (2 * t - 3) / (2 * t))
    return Strategy(n, reciprocal(inverse, n))


def _blt(n: int, decays: list[Any], scales: list[Any]) -> Strategy:
    """c_0 = 1 and c_t = sum_j scales[j] decays[j]^(t - 1)."""
    factors, terms = _balls("decays", decays, 64), _balls("scales", scales, 64)
    if len(factors) != len(terms) or not all(0 <= x <= 1 for x in factors):
        raise BadDocument(f"decays of the strategy are {shown(decays)}, not as many as scales, in [0, 1]")
    if n * len(terms) > _MOST_TERMS:
        raise NotChecked(f"a BLT of {len(terms)} buffers over {n} steps")
    coefs = [arb(1)]
    for _ in range(n - 1):
        coefs.append(sum(terms, arb(0)))
        terms = [term * x for term, x in zip(terms, factors, strict=True)]
    return Strategy(n, coefs)


def _dense(matrix: list[Any]) -> Strategy:
    n = len(matrix)
    square = n >= 1 and all(isinstance(row, list) and len(row) == n for row in matrix)
    if not square or any(type(x) is not float for row in matrix for x in row):
        raise BadDocument(f"matrix of the strategy is {shown(matrix)}, not a square one of floats")
    if any(row[i] == 0.0 or any(row[i + 1 :]) for i, row in enumerate(matrix)):
        raise BadDocument("matrix of the strategy is not lower-triangular with a non-zero diagonal")
    return Strategy(n, matrix=matrix)


# By type: the entries that a strategy states, and the function that constructs it from them.
_MAKERS: dict[str, tuple[dict[str, Any], Callable[..., Strategy]]] = {
    "Identity": ({"n": int}, _geometric),
    "Diagonal": ({"entries": list}, _diagonal),
    "LambdaCGD": ({"n": int, "lam": float}, _geometric),
    "SquareRoot": ({"n": int, "bands": int | None}, _square_root),
    "InverseSquareRoot": ({"n": int, "inverse_bands": int}, _inverse_square_root),
    "BandedToeplitz": ({"n": int, "coefs": list}, lambda n, coefs: Strategy(n, _coefs(coefs, n))),
    "BandedInverse": (
        {"n": int, "coefs": list},
        lambda n, coefs: Strategy(n, reciprocal(_coefs(coefs, n), n)),
    ),
    "BLT": ({"n": int, "decays": list, "scales": list}, _blt),
    "Dense": ({"matrix": list}, _dense),
}
