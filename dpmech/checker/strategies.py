"""A strategy's parameters to the numbers of its matrix C, as balls that contain them (python-flint's arb).

C is lower-triangular with a non-zero diagonal. What is released is C G + sigma Z, so C is all that privacy
depends on. Nine of the ten strategies are a Toeplitz matrix times a positive diagonal one,
C[i, j] = coefs[i - j] scale[j]; the tenth is given entry by entry.

Every number below is a ball (midpoint and radius) that contains the exact one: arithmetic on balls rounds
outward by itself, and nothing has to be argued about rounding.
"""

import dataclasses
from typing import Any

from flint import arb, arb_series, ctx

from .documents import BadDocument, shown

__all__ = ["LARGEST_N", "PRECISION", "NotChecked", "Strategy", "reciprocal", "strategy_of"]

PRECISION = 192  # bits of a ball's midpoint
LARGEST_N = 2_000_000
_DEEPEST = 8
_MOST_TERMS = 20_000_000


class NotChecked(Exception):
    """No theorem here covers it, or it is beyond what is spent on one file; the message says which."""


@dataclasses.dataclass(frozen=True)
class Strategy:
    """C, of shape (n, n).

    Attributes:
        n: number of steps.
        coefs: first column of the Toeplitz factor, length n; None for a matrix given by its entries.
        scale: factors of the columns, length n; None for ones.
        matrix: rows of floats, where `coefs` is None.
        unit_columns: whether the columns are divided by their norms, so that these are exactly 1.
        ratio: lambda, where coefs[t] = lambda^t with 0 <= lambda < 1; else None.
    """

    n: int
    coefs: list[arb] | None = None
    scale: list[arb] | None = None
    matrix: list[list[float]] | None = None
    unit_columns: bool = False
    ratio: arb | None = None

    def bands(self) -> int:
        """p, so that C[i, j] = 0 exactly for i - j >= p."""
        if self.coefs is not None:
            return max(t + 1 for t, c in enumerate(self.coefs) if not c == 0)  # noqa: SIM201 - a ball that may be 0 counts
        assert self.matrix is not None  # noqa: S101 - one of the two is there
        return max(i - j + 1 for i, row in enumerate(self.matrix) for j in range(i + 1) if row[j] != 0.0)

    def leading(self, steps: int) -> "Strategy":
        """The first rows and columns of C: what was released of a run that stopped there."""
        return Strategy(
            steps,
            None if self.coefs is None else self.coefs[:steps],
            None if self.scale is None else self.scale[:steps],
            None if self.matrix is None else [row[:steps] for row in self.matrix[:steps]],
            self.unit_columns and steps == self.n,
            self.ratio,
        )

    def nonnegative(self) -> bool:
        """Whether every entry of C is >= 0 for certain."""
        if self.coefs is not None:
            return all(c >= 0 for c in self.coefs)
        assert self.matrix is not None  # noqa: S101 - as above
        return all(entry >= 0.0 for row in self.matrix for entry in row)

    def squared_norms(self) -> list[arb]:
        """Squared Euclidean norms of the columns."""
        if self.unit_columns:
            return [arb(1)] * self.n
        if self.coefs is None:
            assert self.matrix is not None  # noqa: S101 - as above
            return [sum((arb(row[j]) ** 2 for row in self.matrix[j:]), arb(0)) for j in range(self.n)]
        total, norms = arb(0), []
        for c in self.coefs:
            total += c * c
            norms.append(total)
        norms.reverse()
        return norms if self.scale is None else [s * s * x for s, x in zip(self.scale, norms, strict=True)]


def strategy_of(data: Any) -> Strategy:  # noqa: ANN401 - what the file holds
    """The strategy that the decoded entry `claim.strategy` states."""
    depth, kinds = 0, []
    while isinstance(data, dict) and data.get("type") == "ColumnNormalized":
        _exactly(data, ("strategy",))
        data, depth = data["strategy"], depth + 1
        if depth > _DEEPEST:
            raise BadDocument(f"ColumnNormalized is nested more than {_DEEPEST} times")
    kinds = list(_MAKERS)
    if not isinstance(data, dict) or data.get("type") not in kinds:
        raise BadDocument(
            f"claim.strategy is {shown(data)}, not one of {', '.join([*kinds, 'ColumnNormalized'])}"
        )
    found = _MAKERS[data["type"]](data)
    if not depth:
        return found
    # Normalising twice is normalising once: the norms are 1 after the first time.
    norms = [x.sqrt() for x in found.squared_norms()]
    if found.coefs is None:
        raise NotChecked("a dense matrix with normalised columns is not checked: state the normalised matrix")
    scale = [(arb(1) if found.scale is None else found.scale[j]) / norms[j] for j in range(found.n)]
    return dataclasses.replace(found, scale=scale, unit_columns=True)


def _exactly(data: dict[str, Any], names: tuple[str, ...]) -> None:
    if set(data) != {"type", *names}:
        given = shown(sorted(data))
        raise BadDocument(f"a {shown(data.get('type'))} has the entries {', '.join(names)}, not {given}")


def _steps(data: dict[str, Any]) -> int:
    n = data["n"]
    if type(n) is not int or n < 1:
        raise BadDocument(f"the number of steps n is {shown(n)}, not an integer >= 1")
    if n > LARGEST_N:
        raise NotChecked(f"n = {n} steps; at most {LARGEST_N} are checked")
    return n


def _floats(data: dict[str, Any], name: str, most: int) -> list[float]:
    values = data[name]
    if (
        not isinstance(values, list)
        or not 1 <= len(values) <= most
        or any(type(x) is not float for x in values)
    ):
        raise BadDocument(f"{name} of the strategy is {shown(values)}, not a list of 1 to {most} floats")
    return values


def _bands_of(data: dict[str, Any], name: str, n: int) -> int:
    value = data[name]
    if type(value) is not int or not 1 <= value <= n:
        raise BadDocument(f"{name} of the strategy is {shown(value)}, not an integer in [1, {n}]")
    return value


def _padded(values: list[arb], n: int) -> list[arb]:
    return values + [arb(0)] * (n - len(values))


def reciprocal(values: list[arb], n: int) -> list[arb]:
    """Coefficients of the power series 1 / sum_t values[t] x^t, the first n of them."""
    before, ctx.cap = ctx.cap, n  # power series are cut there
    try:
        series = list((1 / arb_series(values, prec=n)).coeffs())
    finally:
        ctx.cap = before
    if not all(c.is_finite() for c in series):
        raise BadDocument("the inverse of the strategy's coefficients is not finite")
    return _padded(series, n)


def _first_positive(data: dict[str, Any], n: int) -> list[arb]:
    coefs = _floats(data, "coefs", n)
    if not coefs[0] > 0.0:
        raise BadDocument(f"coefs[0] of the strategy is {coefs[0]!r}, not > 0")
    return [arb(c) for c in coefs]


def _identity(data: dict[str, Any]) -> Strategy:
    _exactly(data, ("n",))
    n = _steps(data)
    return Strategy(n, _padded([arb(1)], n), ratio=arb(0))


def _diagonal(data: dict[str, Any]) -> Strategy:
    _exactly(data, ("entries",))
    entries = _floats(data, "entries", LARGEST_N)
    if not all(x > 0.0 for x in entries):
        raise BadDocument("entries of a Diagonal strategy have to be > 0")
    n = len(entries)
    return Strategy(n, _padded([arb(1)], n), [arb(x) for x in entries], ratio=arb(0))


def _lambda_cgd(data: dict[str, Any]) -> Strategy:
    _exactly(data, ("n", "lam"))
    n, lam = _steps(data), data["lam"]
    if type(lam) is not float or not 0.0 <= lam < 1.0:
        raise BadDocument(f"lam of the strategy is {shown(lam)}, not a float in [0, 1)")
    coefs = [arb(1)]
    for _ in range(n - 1):
        coefs.append(coefs[-1] * arb(lam))
    return Strategy(n, coefs, ratio=arb(lam))


def _square_root(data: dict[str, Any]) -> Strategy:
    """The first coefficients of (1 - x)^(-1/2): c_t = c_(t-1) (2 t - 1) / (2 t)."""
    _exactly(data, ("n", "bands"))
    n = _steps(data)
    bands = n if data["bands"] is None else _bands_of(data, "bands", n)
    coefs = [arb(1)]
    for t in range(1, bands):
        coefs.append(coefs[-1] * (2 * t - 1) / (2 * t))
    return Strategy(n, _padded(coefs, n))


def _inverse_square_root(data: dict[str, Any]) -> Strategy:
    """C^-1 has the first coefficients of (1 - x)^(1/2): d_t = d_(t-1) (2 t - 3) / (2 t)."""
    _exactly(data, ("n", "inverse_bands"))
    n = _steps(data)
    coefs = [arb(1)]
    for t in range(1, _bands_of(data, "inverse_bands", n)):
        coefs.append(coefs[-1] * (2 * t - 3) / (2 * t))
    return Strategy(n, reciprocal(coefs, n))


def _banded_toeplitz(data: dict[str, Any]) -> Strategy:
    _exactly(data, ("n", "coefs"))
    n = _steps(data)
    return Strategy(n, _padded(_first_positive(data, n), n))


def _banded_inverse(data: dict[str, Any]) -> Strategy:
    _exactly(data, ("n", "coefs"))
    n = _steps(data)
    return Strategy(n, reciprocal(_first_positive(data, n), n))


def _blt(data: dict[str, Any]) -> Strategy:
    """c_0 = 1 and c_t = sum_j scales[j] decays[j]^(t - 1)."""
    _exactly(data, ("n", "decays", "scales"))
    n = _steps(data)
    decays, scales = _floats(data, "decays", 64), _floats(data, "scales", 64)
    if len(decays) != len(scales) or not all(0.0 <= x < 1.0 for x in decays):
        raise BadDocument("a BLT has as many scales as decays, and decays in [0, 1)")
    if n * len(decays) > _MOST_TERMS:
        raise NotChecked(f"a BLT of {len(decays)} buffers over {n} steps")
    coefs, terms = [arb(1)], [arb(x) for x in scales]
    for _ in range(n - 1):
        coefs.append(sum(terms, arb(0)))
        terms = [term * arb(x) for term, x in zip(terms, decays, strict=True)]
    return Strategy(n, coefs)


def _dense(data: dict[str, Any]) -> Strategy:
    _exactly(data, ("matrix",))
    rows = data["matrix"]
    n = len(rows) if isinstance(rows, list) else 0
    if n < 1 or any(not isinstance(row, list) or len(row) != n for row in rows):
        raise BadDocument("matrix of a Dense strategy is not a square matrix")
    if any(type(x) is not float for row in rows for x in row):
        raise BadDocument("matrix of a Dense strategy holds something else than floats")
    if any(x != 0.0 for i, row in enumerate(rows) for x in row[i + 1 :]) or any(
        rows[i][i] == 0.0 for i in range(n)
    ):
        raise BadDocument("matrix of a Dense strategy is not lower-triangular with a non-zero diagonal")
    return Strategy(n, matrix=rows)


_MAKERS = {
    "Identity": _identity,
    "Diagonal": _diagonal,
    "LambdaCGD": _lambda_cgd,
    "SquareRoot": _square_root,
    "InverseSquareRoot": _inverse_square_root,
    "BandedToeplitz": _banded_toeplitz,
    "BandedInverse": _banded_inverse,
    "BLT": _blt,
    "Dense": _dense,
}
