"""Hypothesis generators for everything the public functions take."""

import numpy as np
from hypothesis import strategies as st

import dpmech as dm

SIZES = st.integers(1, 12)


def finite(low, high):
    return st.floats(low, high, allow_nan=False, allow_subnormal=False)


def _vector(elements, low, high):
    return st.lists(elements, min_size=low, max_size=high)


@st.composite
def coefficients(draw, n, *, signed):
    head = draw(finite(0.2, 2.0))
    return [head, *draw(_vector(finite(-1.0 if signed else 0.0, 1.0), 0, n - 1))]


@st.composite
def dense(draw, n, *, signed=True):
    entries = draw(_vector(finite(-1.0 if signed else 0.0, 1.0), n * n, n * n))
    diagonal = draw(_vector(finite(0.3, 2.0), n, n))
    return dm.Dense(np.tril(np.reshape(entries, (n, n)), -1) + np.diag(diagonal))


@st.composite
def blt(draw, n, *, signed=True):
    size = draw(st.integers(1, 3))
    decays = draw(_vector(finite(0.0, 0.999), size, size))
    return dm.BLT(n, decays, draw(_vector(finite(-0.5 if signed else 0.0, 0.5), size, size)))


def plain_strategies(n):
    """Every kind but ColumnNormalized, over n steps."""
    return st.one_of(
        st.just(dm.Identity(n)),
        finite(0.0, 0.999).map(lambda lam: dm.LambdaCGD(n, lam)),
        st.one_of(st.none(), st.integers(1, n)).map(lambda bands: dm.SquareRoot(n, bands)),
        st.integers(1, n).map(lambda bands: dm.InverseSquareRoot(n, bands)),
        st.booleans()
        .flatmap(lambda signed: coefficients(n, signed=signed))
        .map(lambda coefs: dm.BandedToeplitz(n, coefs)),
        st.booleans()
        .flatmap(lambda signed: coefficients(n, signed=signed))
        .map(lambda coefs: dm.BandedInverse(n, coefs)),
        blt(n),
        _vector(finite(0.1, 3.0), n, n).map(dm.Diagonal),
        dense(n),
        dense(n, signed=False),
    )


def strategies(n):
    """Every kind of strategy over n steps."""
    plain = plain_strategies(n)
    return st.one_of(plain, plain, plain.map(dm.ColumnNormalized))


@st.composite
def min_seps(draw, n):
    """MinSep with n not always a multiple of min_sep, and k at, above and below its cap."""
    b = draw(st.integers(1, n))
    return dm.MinSep(b, draw(st.one_of(st.none(), st.integers(1, n + 1))))


def divisors(n):
    return st.sampled_from([k for k in range(1, n + 1) if n % k == 0])


def user_min_seps(n):
    """MinSep for users who have up to three examples."""
    return st.builds(
        lambda one, users: dm.MinSep(one.min_sep, one.max_participations, max_examples_per_user=users),
        min_seps(n),
        st.integers(2, 3),
    )


def unsampled(n):
    """Every participation that is not random."""
    return st.one_of(
        st.just(dm.EveryStep()),
        st.just(dm.SingleParticipation()),
        min_seps(n),
        min_seps(n),
        user_min_seps(n),
        divisors(n).map(dm.FixedEpochs),
    )


def independent(n):
    """Every participation whose steps are releases of their own."""
    prob, users, few = finite(0.01, 0.99), st.integers(2, 3), st.integers(1, n)
    return st.one_of(
        prob.map(dm.Poisson),
        st.builds(lambda q, m: dm.Poisson(q, max_examples_per_user=m), prob, users),
        st.builds(
            lambda q, most: dm.Poisson(q, truncated_batch_size=most, dataset_size=9), prob, st.integers(1, 8)
        ),
        st.integers(1, 9).map(lambda size: dm.FixedSizeBatches(9, size)),
        st.builds(dm.CyclicPoisson, prob, few),
        st.builds(lambda q, b, m: dm.CyclicPoisson(q, b, max_examples_per_user=m), prob, few, users),
    )


def joint(n):
    """Every participation of which the whole run is one release: the error does not depend on sigma."""
    few = st.integers(1, n)
    return st.one_of(
        unsampled(n),
        st.builds(dm.BMinSep, few, finite(0.01, 1.0)),
        few.map(dm.BallsInBins),
        st.builds(lambda b, m: dm.BallsInBins(b, max_examples_per_user=m), few, st.integers(2, 3)),
        divisors(n).map(lambda bins: dm.BallsInBins(bins, fresh=True)),
        few.map(dm.RandomAllocation),
        divisors(n).flatmap(
            lambda c: st.builds(dm.RandomAllocation, st.integers(1, n // c), cycle=st.just(c))
        ),
    )


def participations(n):
    """Every participation."""
    return st.one_of(joint(n), joint(n), independent(n))


@st.composite
def strategy_and_participation(draw, max_n=12, of=participations):
    n = draw(st.integers(1, max_n))
    return draw(strategies(n)), draw(of(n))


def random_bins_problem(rng):
    """A non-negative strategy, a number of bins, sigma and eps, with delta neither 0 nor 1."""
    bins, epochs = int(rng.integers(2, 41)), int(rng.integers(1, 6))
    n = bins * epochs
    bands = int(rng.integers(1, min(n, 12) + 1))
    matrix = np.tril(rng.uniform(size=(n, n)) * (rng.uniform(size=(n, n)) < 0.3)) + np.eye(n)
    kinds = (
        lambda: dm.LambdaCGD(n, float(rng.uniform(0.0, 0.98))),
        lambda: dm.SquareRoot(n, bands),
        lambda: dm.InverseSquareRoot(n, bands),
        lambda: dm.BandedToeplitz(n, np.append(1.0, np.sort(rng.uniform(size=bands - 1))[::-1])),
        lambda: dm.ColumnNormalized(dm.LambdaCGD(n, float(rng.uniform(0.0, 0.95)))),
        lambda: dm.Dense(matrix),
    )
    strategy = kinds[int(rng.integers(len(kinds)))]()
    largest = dm.sensitivity(strategy, dm.FixedEpochs(epochs)).upper
    # In units of the noise, the largest bin mean is between 0.5 and 3.
    return strategy, bins, largest / float(rng.uniform(0.5, 3.0)), float(np.exp(rng.uniform(-1.5, 1.6)))
