r"""The inverse of a power series, with a bound on the error of each column of its Toeplitz matrix.

An approximation g of 1 / f, from any algorithm, has a residual r = f g - 1, and the exact inverse is
g / (1 + r). The residual is computed with a bound on its own error, and so is the correction d of one more
Newton step: with f (g + d) - 1 = s, sum_t |s_t| <= rho < 1, the true first column is (g + d) / (1 + s), and
every column of the true matrix is within rho / (1 - rho) of that of g + d, relative to its norm. Growing
series are weighted by w^t in this argument.

Products of short series split numbers into two floats. Long series are put on a grid of fixed step and
multiplied as integers, without rounding: their coefficients are slots of two large integers (Kronecker
substitution). So no error bound is needed, but for the part of f that the grid omits.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import scipy

from dpmech.exceptions import NumericalError
from dpmech.numerics.metering import spend
from dpmech.numerics.rounding import UNIT
from dpmech.numerics.toeplitz import (
    DIRECT_WORK,
    FloatArray,
    IntArray,
    checked_finite,
    convolution_rounding,
    norm,
    series_product,
    sum_rounding,
    total,
    trimmed,
)

if TYPE_CHECKING:
    from flint import fmpz

# Products of two series of up to this length are exact.
LONGEST = 2**24
_GRID_BITS = 52
# A coefficient of a product of integers has less than this many bits, and a sign, in a slot of three words.
_PRODUCT_BITS, _WORD, _WORDS = 176, 64, 3


def exact_residual(f: FloatArray, g: FloatArray) -> tuple[FloatArray, FloatArray, float]:
    """The first coefficients of f g - 1.

    Args:
        f: shape (p,), f_0 in [1, 2), p <= n.
        g: shape (n,), n <= LONGEST.

    Returns:
        (g rounded to multiples of 2^-52 of its largest entry, f g - 1 for this g to 1e-15 relative entry by
        entry, shape (n,), and a bound on the sum of moduli of any remaining error).

    Raises:
        NumericalError: if the series grow too much for the range of the integers.
    """
    n = g.size
    b = _GRID_BITS - math.frexp(float(np.abs(g).max()))[1]
    integers = np.rint(np.ldexp(g, b)).astype(np.int64)
    rounded = np.ldexp(integers.astype(np.float64), -b)
    # The modulus of every coefficient of the product is at most ||f|| ||g||, and 1 is at most that as well.
    product_bits = math.log2(norm(f) * norm(rounded) * 1.001 + 1.0)
    # As ||f|| ||g|| is at least the product of their largest entries, no entry of f is shifted by 127 bits.
    a = math.floor(_PRODUCT_BITS - product_bits) - b
    if a + b < 0 or a < _GRID_BITS:
        raise NumericalError(
            f"the inverse of the strategy over {n} steps loses its digits to cancellation: "
            "its coefficients grow too much for their product with the strategy to be had exactly"
        )
    fractions, exponents = np.frexp(f)
    shifts = exponents.astype(np.int64) - 53 + a
    product = _integer(np.ldexp(fractions, 53).astype(np.int64), shifts) * _integer(integers, 0 * integers)
    residual = np.ldexp(_coefficients(product - (1 << (a + b)), n), -a - b)
    left_out = math.ldexp(float(np.count_nonzero(shifts < 0)), -a) * total(np.abs(rounded)) * 1.001
    return rounded, residual, left_out


def _integer(mantissas: IntArray, exponents: IntArray) -> "fmpz":
    """The value of a polynomial with coefficients mantissa 2^exponent at 2 to the bits of a slot.

    Args:
        mantissas: shape (m,), moduli below 2^53.
        exponents: shape (m,), below 128; negative ones truncate towards 0.
    """
    from flint import fmpz  # only if needed

    word, bit = np.divmod(np.maximum(exponents, 0), _WORD)
    sizes = np.abs(mantissas) >> np.minimum(_WORD - 2, np.maximum(-exponents, 0))
    found, places = fmpz(0), np.arange(mantissas.size)
    for side in (1, -1):
        own = np.where(np.sign(mantissas) == side, sizes, 0).astype(np.uint64)
        slots = np.zeros((own.size, _WORDS), "<u8")
        slots[places, word] = own << bit.astype(np.uint64)
        # A shift by all bits of a word is not defined.
        slots[places, word + 1] = own >> np.uint64(1) >> (_WORD - 1 - bit).astype(np.uint64)
        found += side * fmpz(int.from_bytes(slots.data, "little"))
    return found


def _coefficients(value: "fmpz", count: int) -> FloatArray:
    """The first coefficients of the polynomial with this value, each to a few roundings, shape (count,)."""
    width = _WORD * _WORDS
    # With half the range of a slot added to each, all coefficients are >= 0 there.
    half = int.from_bytes((b"\0" * (width // 8 - 1) + b"\x80") * count, "little")
    low = int((value + half) % (1 << (width * count)))
    slots = np.frombuffer(low.to_bytes(count * width // 8, "little"), "<u8").reshape(count, _WORDS)
    slots = slots.astype(np.uint64)
    negative = slots[:, -1] < np.uint64(1 << (_WORD - 1))
    slots[:, -1] ^= np.uint64(1 << (_WORD - 1))
    # Minus a number in two's complement is one more than all its bits inverted.
    slots[negative] = ~slots[negative]
    carry = negative
    found = np.zeros(count)
    for word in range(_WORDS):
        slots[:, word] += carry
        carry = carry & (slots[:, word] == 0)
        found += np.ldexp(slots[:, word].astype(np.float64), _WORD * word)
    return np.where(negative, -found, found)


# Largest error relative to a column norm; an inverse that is less accurate is refused.
_MOST_LOST = 1e-10
_REFINEMENTS = 12
# Number of refinements included in the estimates of `form_work`; seconds per product for each further one.
_FORESEEN, _REFINING = 3, 1e-8
# The residual is summed term by term up to this many terms, or this many per coefficient; above, exactly.
_TERMS_WORK = 100_000_000
_TERMS = 64
_BLOCK = 8192
_HEAD = 1024
_SPLITTER = 2.0**27 + 1.0
# Bound on the underflow of products: far above the number of products times 2^-1074.
_TINY = 2.0**-1000

_Weighted = Callable[[FloatArray], float]


def series_inverse(coefs: FloatArray, n: int) -> FloatArray:
    """First n coefficients of 1 / (c_0 + c_1 x + ...), shape (p,) -> (n,): those of `bounded_inverse`."""
    return bounded_inverse(coefs, n)[0]


def bounded_inverse(coefs: FloatArray, n: int, relative: float = 0.0) -> tuple[FloatArray, float]:
    """The inverse of a power series, and a bound on its error.

    Args:
        coefs: c, shape (p,), c_0 > 0.
        n: number of coefficients of 1 / c, >= 1.
        relative: bound on the relative error of each given coefficient.

    Returns:
        (g, error): g of shape (n,); for every m, the first m coefficients of the true inverse are within
        error ||g[:m]|| of g[:m], in the Euclidean norm. Guarantee: a bound, rounding included.

    Raises:
        NumericalError: if the coefficients overflow, or if no error below 1e-10 can be proved.
    """
    short = trimmed(coefs[:n])
    # Scaling by a power of two, which makes f_0 about 1, is exact.
    shift = int(np.frexp(short[0])[1]) - 1
    with np.errstate(over="ignore", invalid="ignore", under="ignore", divide="ignore"):
        f = checked_finite(np.ldexp(short, -shift), "the strategy over its first coefficient")
        exact = f.size == 1 and f[0] == 1.0 and relative == 0.0
        inverse, error = (_impulse(n), 0.0) if exact else _refined(f, n, relative)
        inverse = np.ldexp(inverse, -shift)
    return checked_finite(inverse, "the inverse of the strategy"), error


def _refined(f: FloatArray, n: int, relative: float) -> tuple[FloatArray, float]:
    terms = int(np.count_nonzero(f))
    direct = n * min(f.size, _HEAD + terms) <= DIRECT_WORK or terms <= _TERMS
    g = _recursion(f, _impulse(n)) if direct else newton_inverse(f, n)
    checked_finite(g, "the inverse of the strategy")
    exactly = terms * n > _TERMS_WORK and terms > _TERMS
    if exactly and n > LONGEST:
        raise NumericalError(
            f"the inverse of {terms} coefficients over {n} steps: above {LONGEST} steps at most {_TERMS} "
            "nonzero coefficients are accepted"
        )
    best = np.inf
    for count in range(_REFINEMENTS):
        if count >= _FORESEEN:
            # An exact product takes about half of that.
            each = 5e-6 if exactly else _REFINING * max(terms, min(f.size, _HEAD))
            spend(each * n, what=f"refining an inverse of {n} steps once more")
        if exactly:
            g, r, left = exact_residual(f, g)
            left += 2.0e-15 * total(np.abs(r))
        else:
            r, left = _summed_residual(f, g), 0.0
        d = _recursion(f, -r) if direct else -series_product(g, r, n)
        refined = g + d
        rounding = _unaccounted(f, g, r, d, direct=direct, exactly=exactly, relative=relative, left=left)
        error = _column_error(refined, rounding)
        if error <= 4.0 * UNIT:
            return refined, error
        if not error < 0.5 * best and error <= _MOST_LOST:
            return refined, error
        best, g = min(best, error), refined
    if not error <= _MOST_LOST:
        raise NumericalError(
            f"the inverse of the strategy over {n} steps loses its digits to cancellation (they are known to "
            f"{error:.1e} only): its poles are too close together"
        )
    return refined, error


def _impulse(n: int) -> FloatArray:
    impulse = np.zeros(n)
    impulse[0] = 1.0
    return impulse


def _recursion(f: FloatArray, x: FloatArray) -> FloatArray:
    """Forward substitution: y with f y = x. Zeros among the far coefficients cost nothing."""
    head = trimmed(f[:_HEAD])
    lags = _HEAD + np.flatnonzero(f[_HEAD:])
    if lags.size == 0:
        return np.asarray(scipy.signal.lfilter(np.ones(1), head, x), dtype=np.float64)
    y, state = np.zeros(x.size), np.zeros(head.size - 1)
    for start in range(0, x.size, _HEAD):
        stop = min(start + _HEAD, x.size)
        rest = x[start:stop].copy()
        for lag in lags[: int(np.searchsorted(lags, stop))]:
            first = max(start, int(lag))
            rest[first - start :] -= f[lag] * y[first - lag : stop - lag]
        y[start:stop], state = scipy.signal.lfilter(np.ones(1), head, rest, zi=state)
    return y


def newton_inverse(f: FloatArray, n: int) -> FloatArray:
    """Newton's doubling g <- g (2 - f g) by FFT; exact modulo x^(2 m) once it is exact modulo x^m.

    An approximation, without a bound on its error.
    """
    inverse = np.array([1.0 / f[0]])
    length = 1
    while length < n:
        length = min(2 * length, n)
        residual = -series_product(f, inverse, length)
        residual[0] += 2.0
        inverse = series_product(inverse, residual, length)
    return inverse


def _summed_residual(f: FloatArray, g: FloatArray) -> FloatArray:
    """The series f g - 1 by compensated sums of split products (Ogita, Rump and Oishi 2005, algorithm Dot2).

    The error is at most one rounding of itself and gamma^2 |f| |g|, gamma = m 2^-53 / (1 - m 2^-53), m terms.
    """
    n = g.size
    high = _upper_half(g)
    low = g - high
    lags = np.flatnonzero(f)
    factors = [(int(lag), float(f[lag]), *_split(float(f[lag]))) for lag in lags]
    residual = np.empty(n)
    for start in range(0, n, _BLOCK):
        stop = min(start + _BLOCK, n)
        sums, rest = np.zeros(stop - start), np.zeros(stop - start)
        if start == 0:
            sums[0] = -1.0
        for lag, factor, factor_high, factor_low in factors:
            if lag >= stop:
                break
            first = max(start, lag)
            there, here = slice(first - lag, stop - lag), slice(first - start, None)
            product = factor * g[there]
            missing = product - factor_high * high[there]
            missing -= factor_low * high[there]
            missing -= factor_high * low[there]
            missing = factor_low * low[there] - missing
            old = sums[here]
            new = old + product
            back = new - old
            missing += (old - (new - back)) + (product - back)
            sums[here] = new
            rest[here] += missing
        residual[start:stop] = sums + rest
    return residual


def _upper_half(x: FloatArray) -> FloatArray:
    """The leading 26 bits of every entry (Veltkamp)."""
    scaled = _SPLITTER * x
    return np.asarray(scaled - (scaled - x), dtype=np.float64)


def _split(x: float) -> tuple[float, float]:
    scaled = _SPLITTER * x
    high = scaled - (scaled - x)
    return high, x - high


def _unaccounted(
    f: FloatArray,
    g: FloatArray,
    r: FloatArray,
    d: FloatArray,
    *,
    direct: bool,
    exactly: bool,
    relative: float,
    left: float,
) -> _Weighted:
    """Bound on the moduli of f (g + d) - 1, as a function of the weights: sum_t |.|_t w^t.

    It is r + f d and the error of r. By recursion, f d + r is at most gamma |f| |d| (Higham 2002, Theorem
    8.5); by FFT d is -g r + e and r + f d is -r^2 + f e.
    """
    n, terms = g.size, int(np.count_nonzero(f))
    gamma = 1.01 * (terms + 4) * UNIT
    # The 1 of f g - 1 is one of the terms, and |f_0 g_0| is about as large.
    off = 0.0 if exactly else 2.5 * gamma * gamma
    product_off = 0.0 if direct else convolution_rounding(g, r) * n

    def bound(weights: FloatArray) -> float:
        def size(x: FloatArray) -> float:
            return total(np.abs(x) * weights[: x.size])

        by_f, by_r = size(f), size(r)
        known = off * by_f * size(g) + 2.0 * UNIT * by_r + left + _TINY * (1.0 + by_f) * size(np.ones(n))
        known += relative * by_f * size(g + d)
        step = gamma * by_f * size(d) if direct else by_r * by_r + by_f * product_off
        return 1.01 * (known + step)

    return bound


def _column_error(g: FloatArray, bound: _Weighted) -> float:
    """The error of `bounded_inverse`: rounding of g + d, and columns of T(s) T(g) against those of T(g)."""
    n = g.size
    rho = bound(np.ones(n))
    found = rho / (1.0 - rho) if rho < 1.0 else np.inf
    modulus = np.abs(g)
    rate = float((modulus[n // 2 :].max() / modulus[0]) ** (1.0 / n))
    if found > UNIT and rate > 1.0:
        weights = rate ** -np.arange(n, dtype=np.float64)
        rho = bound(weights)
        if rho < 1.0:
            # |(s g)_t| w^t <= rho max over u <= t of |g_u| w^u.
            ceiling = np.maximum.accumulate(modulus * weights) / weights * (1.0 + 1e-9)
            scale = ceiling.max()
            above, below = np.cumsum((ceiling / scale) ** 2), np.cumsum((modulus / scale) ** 2)
            by_norm = float(np.sqrt(np.max(above / below))) * (1.0 + n * UNIT)
            by_entry = float(np.max(ceiling / modulus))
            found = np.nanmin([found, rho / (1.0 - rho) * np.fmin(by_norm, by_entry)])
    return float(found + 1.01 * UNIT)


def error_of_terms(terms: FloatArray, majorant: FloatArray, relative: float) -> float:
    """The error, as in `bounded_inverse`, if entries have errors up to `relative` times a majorant.

    Args:
        terms: a first column, shape (n,), terms[0] not 0.
        majorant: >= 0, shape (n,).
        relative: of each entry of the majorant.
    """
    ratio = np.sqrt(np.max(np.cumsum(majorant**2) / np.cumsum(terms**2)))
    return relative * float(ratio) * (1.0 + sum_rounding(terms.size) + terms.size * UNIT)
