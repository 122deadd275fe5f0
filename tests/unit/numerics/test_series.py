"""Inverses of power series against recursions in 300 bits."""

import ast
import pathlib
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dpmech as dm
from dpmech.mechanism.strategies import banded_inverse, toeplitz
from dpmech.numerics import series
from dpmech.numerics import series as integer_convolution
from dpmech.numerics import toeplitz as linalg

pytestmark = pytest.mark.usefixtures("longdouble")
PACKAGE = pathlib.Path(dm.__file__).parent
NEAR_UNIT = 0.99555


def exact_inverse(coefs, n):
    """The recursion in 300 bits, zeros left out."""
    with mp.workprec(300):
        taps = [(j, mp.mpf(c)) for j, c in enumerate(coefs) if c]
        first = taps[0][1]
        found = [1 / first]
        for t in range(1, n):
            found.append(-mp.fsum(c * found[t - j] for j, c in taps[1:] if j <= t) / first)
        return found


def column_error(found, exact):
    """The largest distance of a column, over all lengths, relative to the norm of the one found."""
    with mp.workprec(300):
        worst = square = off = mp.mpf(0)
        for a, b in zip(found, exact, strict=True):
            square += mp.mpf(float(a)) ** 2
            off += (mp.mpf(float(a)) - b) ** 2
            worst = max(worst, off / square)
        return float(mp.sqrt(worst))


def largest_norm(exact):
    with mp.workprec(300):
        return mp.sqrt(mp.fsum(c * c for c in exact))


def pair(angle, power):
    """A polynomial with equal pairs of zeros on the unit circle."""
    out = np.ones(1)
    for _ in range(power):
        out = np.convolve(out, [1.0, -2.0 * np.cos(angle), 1.0])
    return out


def padded(head, n, last):
    coefs = np.zeros(n)
    coefs[: len(head)] = head
    coefs[-1] = last
    return coefs


NEAR_DOUBLE = [1.0, -2.0 * NEAR_UNIT, NEAR_UNIT**2]
CASES = {
    "one pole": ([1.0, -0.9], 300),
    "double pole": ([1.0, -1.9, 0.9025], 1500),
    "three poles": ([1.0, -2.9, 2.81, -0.909], 1500),
    "three poles near 1": ([1.0, -2.9997, 2.9994, -0.9997], 2000),
    "triple pair": (pair(0.3, 3), 300),
    "near 1, long, tiny end": (padded(NEAR_DOUBLE, 3000, 1e-300), 3000),
    "growing": ([1.0, -1.1], 1000),
    "growing, signed": ([0.5, 1.1, 0.2], 300),
    "scaled": (np.array([1.0, -0.9, 0.3]) * 1e-120, 500),
    "far": (padded([1.0, -0.5], 1500, -0.25), 1600),
}
METHODS = {
    "recursion, summed": {},
    "recursion, integers": {"_TERMS_WORK": 0, "_TERMS": 0},
    "transform, integers": {"_TERMS_WORK": 0, "_TERMS": 0, "DIRECT_WORK": 0},
}


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize(("coefs", "n"), CASES.values(), ids=CASES)
def test_the_error_is_bounded_or_the_inverse_refused(coefs, n, method, monkeypatch):
    for name, value in method.items():
        monkeypatch.setattr(series, name, value)
    try:
        found, error = series.bounded_inverse(np.asarray(coefs), n)
    except dm.NumericalError:
        assert method, "the direct way finds them all"
        return
    assert column_error(found, exact_inverse(coefs, n)) <= error
    assert error <= (1e-15 if not method else 1e-10)


def test_a_long_inverse_near_a_double_pole():
    """By doubling and FFT alone its largest norm was wrong, and was called exact."""
    n = 20_100
    coefs = padded(NEAR_DOUBLE, n, 1e-300)
    bounds = dm.sensitivity(dm.BandedInverse(n, coefs), dm.SingleParticipation())
    exact = largest_norm(exact_inverse(coefs, n))
    assert mp.mpf(bounds.lower) <= exact <= mp.mpf(bounds.upper)
    assert bounds.exact


@pytest.mark.parametrize(("power", "n"), [(3, 8000), (6, 3000)])
def test_an_inverse_that_loses_its_digits_is_refused(power, n):
    with pytest.raises(dm.NumericalError, match="loses its digits"):
        dm.sensitivity(dm.BandedInverse(n, pair(0.003, power)), dm.SingleParticipation())


def test_too_many_steps_for_an_exact_product_are_refused(monkeypatch):
    for name, value in METHODS["transform, integers"].items():
        monkeypatch.setattr(series, name, value)
    monkeypatch.setattr(series, "LONGEST", 99)
    with pytest.raises(dm.NumericalError, match="above 99 steps at most 0 nonzero coefficients"):
        series.bounded_inverse(np.array([1.0, -0.5]), 100)


@st.composite
def coefficient_lists(draw):
    """Poles near the unit circle times a long list, at times with a tiny end."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    coefs = np.array([draw(st.floats(0.1, 10.0))])
    for _ in range(draw(st.integers(0, 2))):
        radius, angle = 1.0 - 10.0 ** draw(st.floats(-6.0, -0.3)), draw(st.floats(0.0, 3.14))
        coefs = np.convolve(coefs, [1.0, -2.0 * radius * np.cos(angle), radius**2])
    if draw(st.booleans()):
        tail = rng.normal(size=draw(st.integers(1, 60))) * 10.0 ** draw(st.floats(-12.0, -2.0))
        coefs = np.convolve(coefs, np.append(1.0, tail))
    if draw(st.booleans()):
        coefs = np.append(coefs, np.append(np.zeros(draw(st.integers(0, 50))), 1e-300))
    return coefs


@settings(max_examples=40)
@given(coefficient_lists(), st.integers(1, 250), st.sampled_from(list(METHODS)))
def test_random_inverses_are_within_their_error(coefs, n, method):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in METHODS[method].items():
            patch.setattr(series, name, value)
        patch.setattr(series, "_BLOCK", 64)
        patch.setattr(series, "_HEAD", 16)
        try:
            found, error = series.bounded_inverse(coefs, n)
        except dm.NumericalError:
            return
    exact = exact_inverse(coefs[:n], n)
    assert column_error(found, exact) <= error
    bounds = dm.sensitivity(dm.BandedInverse(n, coefs[:n]), dm.SingleParticipation())
    assert mp.mpf(bounds.lower) <= largest_norm(exact) <= mp.mpf(bounds.upper)


@pytest.mark.parametrize("shift", [1e-9, 1e-12])
def test_a_planted_error_leaves_the_bound(shift):
    coefs, n = CASES["double pole"]
    found, error = series.bounded_inverse(np.asarray(coefs), n)
    assert column_error(found * (1.0 + shift), exact_inverse(coefs, n)) > error


@pytest.mark.parametrize("schema", [dm.SingleParticipation(), dm.MinSep(4, 3), dm.EveryStep()], ids=repr)
def test_what_an_inverse_may_be_off_widens_the_sensitivity(schema, monkeypatch):
    narrow = dm.sensitivity(dm.InverseSquareRoot(12, 4), schema)
    k = schema.pattern(12).max_participations
    monkeypatch.setattr(
        banded_inverse, "bounded_inverse", lambda *args: (series.bounded_inverse(*args)[0], 1e-6)
    )
    wide = dm.sensitivity(dm.InverseSquareRoot(12, 4), schema)
    assert wide.upper >= narrow.upper * (1.0 + 0.99e-6 * np.sqrt(k))
    assert wide.lower <= narrow.lower * (1.0 - 0.99e-6 * np.sqrt(k))
    assert narrow.exact
    assert not wide.exact
    monkeypatch.setattr(
        banded_inverse, "bounded_inverse", lambda *args: (series.bounded_inverse(*args)[0], 1e-3)
    )
    with pytest.raises(dm.NumericalError, match="rounding moves its sensitivity"):
        dm.sensitivity(dm.InverseSquareRoot(12, 4), schema)


@pytest.mark.parametrize(("p", "n"), [(1, 1), (2, 2), (2, 3), (20, 50), (64, 64), (130, 200)])
def test_the_integer_product_is_exact(p, n):
    rng = np.random.default_rng(n)
    f = rng.normal(size=p) * 10.0 ** rng.integers(-40, 2, size=p)
    f[0], g = 1.3, rng.normal(size=n)
    rounded, residual, left = integer_convolution.exact_residual(f, g)
    assert np.abs(rounded - g).max() <= 2.0**-52 * np.abs(g).max()
    factors, others = [Fraction(x) for x in f], [Fraction(x) for x in rounded]
    for t in range(n):
        exact = sum(factors[j] * others[t - j] for j in range(min(t, p - 1) + 1)) - (t == 0)
        found = Fraction(float(residual[t]))
        assert abs(found - exact) <= abs(exact) * Fraction(1e-15) + Fraction(left)


@pytest.mark.parametrize("n", [2, 31, 32, 33, 5000, 10**6])
def test_square_root_coefficients_are_within_their_rounding(n):
    found = toeplitz.square_root_coefs(n)
    inverse = toeplitz.inverse_square_root_coefs(n)
    with mp.workdps(40):
        for t in {0, 1, n // 3, n // 2, n - 1, *range(min(n, 40))}:
            exact = mp.gamma(mp.mpf(t) + 0.5) / mp.sqrt(mp.pi) / mp.gamma(mp.mpf(t) + 1)
            assert abs(mp.mpf(float(found[t])) / exact - 1) <= toeplitz.SQUARE_ROOT_ROUNDING
            exact /= 1 - 2 * t
            assert abs(mp.mpf(float(inverse[t])) / exact - 1) <= toeplitz.SQUARE_ROOT_ROUNDING


@pytest.mark.parametrize("base", [0.0, 0.3, 0.9, 1.0 - 1e-7, 5e-324])
def test_powers_are_within_their_rounding(base):
    n = 10**5
    found = toeplitz.powers(base, n)
    with mp.workdps(40):
        for t in (0, 1, 2, 3, 100, 4097, n - 1):
            exact = mp.mpf(base) ** t
            assert abs(mp.mpf(float(found[t])) - exact) <= linalg.sum_rounding(n) * exact + mp.mpf(10) ** -300


@pytest.mark.parametrize("schema", [dm.SingleParticipation(), dm.MinSep(5), dm.EveryStep()], ids=repr)
@pytest.mark.parametrize(
    "build",
    [
        lambda: dm.LambdaCGD(40, 1.0 - 1e-6),
        lambda: dm.SquareRoot(40),
        lambda: dm.InverseSquareRoot(40, 7),
        lambda: dm.BandedInverse(40, [1.0, -1.9, 0.9025]),
        lambda: dm.BLT(40, [0.99, 0.4], [0.3, 0.2]),
    ],
)
def test_brackets_hold_the_truth_to_the_last_digit(build, schema):
    """Leftmost columns of non-negative, non-increasing or all columns, in exact rationals or 60 digits."""
    strategy = build()
    n, pattern = strategy.n, schema.pattern(strategy.n)
    bounds = dm.sensitivity(strategy, schema)
    with mp.workdps(60):
        coefs = exact_coefficients(strategy, n)
        steps = range(0, n, pattern.min_sep)[: pattern.max_participations]
        rows = [mp.fsum(coefs[t - s] for s in steps if s <= t) for t in range(n)]
        truth = mp.sqrt(mp.fsum(row * row for row in rows))
        if bounds.exact:
            assert mp.mpf(bounds.lower) <= truth <= mp.mpf(bounds.upper)
            assert bounds.relative_gap < 1e-12
        assert mp.mpf(bounds.upper) >= truth


def exact_coefficients(strategy, n):
    match strategy:
        case dm.LambdaCGD():
            return [mp.mpf(strategy.lam) ** t for t in range(n)]
        case dm.SquareRoot():
            return [mp.binomial(2 * t, t) / mp.mpf(4) ** t for t in range(n)]
        case dm.InverseSquareRoot():
            root = [
                mp.binomial(2 * t, t) / mp.mpf(4) ** t / (1 - 2 * t) for t in range(strategy.inverse_bands)
            ]
            return exact_inverse(root, n)
        case dm.BandedInverse():
            return exact_inverse(strategy.coefs, n)
        case _:
            terms = list(zip(strategy.scales, strategy.decays, strict=True))
            tail = [mp.fsum(mp.mpf(s) * mp.mpf(d) ** t for s, d in terms) for t in range(n - 1)]
            return [mp.mpf(1), *tail]


def test_no_number_rests_on_a_format_that_some_processors_lack():
    """Only what asks the format for its own bits names it, and bounds that rest on them."""
    wide = {"longdouble", "clongdouble", "float128", "float96", "longfloat", "complex256"}
    known = {
        "numerics/rounding.py",
        "certificates/claim.py",
        "certificates/certificate.py",
        "optim/noise/rows.py",
    }
    known |= {
        f"engines/convex_order/{name}.py"
        for name in ("arma_traces", "exponentials", "interpolated", "traces")
    }
    for path in PACKAGE.rglob("*.py"):
        found = {
            node.attr if isinstance(node, ast.Attribute) else node.value
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Attribute)
            or (isinstance(node, ast.Constant) and isinstance(node.value, str))
        }
        assert path.relative_to(PACKAGE).as_posix() in known or not wide & found, path
