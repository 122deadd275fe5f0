"""Slow and obvious versions of what dpmech computes. Nothing here imports dpmech."""

import functools
import itertools
import math
from fractions import Fraction

import mpmath as mp
import numpy as np

# ---- participation sets and sensitivities


@functools.cache
def separated_sets(n, min_sep, count):
    """All non-empty sets of at most `count` steps, pairwise at least `min_sep` apart."""
    found = []
    for size in range(1, count + 1):
        for steps in itertools.combinations(range(n), size):
            if all(b - a >= min_sep for a, b in itertools.pairwise(steps)):
                found.append(steps)
    return tuple(found)


def epoch_sets(n, epochs):
    """The sets {s, s + n / epochs, ...}."""
    stride = n // epochs
    return tuple(tuple(range(start, n, stride)) for start in range(stride))


@functools.cache
def sign_vectors(size):
    return np.array([(1.0, *rest) for rest in itertools.product((1.0, -1.0), repeat=size - 1)])


def sensitivity_floor(matrix, sets):
    """Largest || sum of signed columns || over the sets: reached by one-dimensional gradients."""
    gram = matrix.T @ matrix
    best = 0.0
    for steps in sets:
        block = gram[np.ix_(steps, steps)]
        signs = sign_vectors(len(steps))
        best = max(best, float(((signs @ block) * signs).sum(axis=1).max()))
    return math.sqrt(best)


def sensitivity_ceiling(matrix, sets):
    """Root of the largest sum of |<C_i, C_j>| over the sets: no gradients of norm 1 do more."""
    gram = np.abs(matrix.T @ matrix)
    return math.sqrt(max(float(gram[np.ix_(steps, steps)].sum()) for steps in sets))


def rank_sensitivity(matrix, steps, dimension, rng, rounds=200):
    """A lower bound from gradients in `dimension` dimensions, by coordinate ascent from a random start."""
    gram = (matrix.T @ matrix)[np.ix_(steps, steps)]
    gradients = rng.normal(size=(len(steps), dimension))
    gradients /= np.linalg.norm(gradients, axis=1, keepdims=True)
    for _ in range(rounds):
        for i in range(len(steps)):
            pull = gram[i] @ gradients - gram[i, i] * gradients[i]
            norm = np.linalg.norm(pull)
            if norm > 0.0:
                gradients[i] = pull / norm
    return math.sqrt(float(np.sum((gram @ gradients) * gradients)))


# ---- dense algebra


def toeplitz(coefs, n):
    """Dense lower-triangular Toeplitz matrix with this first column, padded with zeros."""
    matrix = np.zeros((n, n))
    for i in range(n):
        for j in range(i + 1):
            if i - j < len(coefs):
                matrix[i, j] = coefs[i - j]
    return matrix


def workload_matrix(n, beta=0.0, rates=None):
    matrix = np.zeros((n, n))
    for t in range(n):
        for j in range(t + 1):
            matrix[t, j] = sum(
                (1.0 if rates is None else rates[s]) * beta ** (s - j) for s in range(j, t + 1)
            )
    return matrix


def decoder_row_norms(strategy_matrix, workload):
    """Row norms of B with B C = A."""
    decoder = np.linalg.solve(strategy_matrix.T, workload.T).T
    return np.sqrt((decoder**2).sum(axis=1))


# ---- rational Toeplitz algebra


def rational_inverse(coefs, n):
    """First column of the inverse of the Toeplitz matrix with these Fractions as first column."""
    inverse = []
    for t in range(n):
        value = Fraction(int(t == 0))
        for i in range(1, min(t, len(coefs) - 1) + 1):
            value -= coefs[i] * inverse[t - i]
        inverse.append(value / coefs[0])
    return inverse


def rational_squares(coefs, inverse, n, steps):
    """Squares of: || sum of the columns `steps` ||, ||B||_F and the largest row norm of B, exactly."""
    coefs = [*coefs, *[Fraction(0)] * (n - len(coefs))]
    inverse = [*inverse, *[Fraction(0)] * (n - len(inverse))]
    columns = sum(sum(coefs[t - s] for s in steps if s <= t) ** 2 for t in range(n))
    partial = list(itertools.accumulate(inverse))
    rows = list(itertools.accumulate(value**2 for value in partial))
    return columns, sum(rows), max(rows)


# ---- the Gaussian mechanism


def gaussian_delta(sigma, eps, digits=60):
    """Delta of N(0, sigma^2) against N(1, sigma^2), with enough digits for the cancellation."""
    with mp.workdps(digits):
        sigma, eps = mp.mpf(sigma), mp.mpf(eps)
        a = 1 / (2 * sigma) - eps * sigma
        b = -1 / (2 * sigma) - eps * sigma
        return mp.ncdf(a) - mp.exp(eps) * mp.ncdf(b)


# ---- the Poisson-subsampled Gaussian mechanism


def sampled_delta(q, s, eps, *, remove, digits=60):
    """Hockey-stick divergence at any real eps of one step: the closed form from the two tails.

    REMOVE: the mixture (1-q) N(0, s^2) + q N(1, s^2) against N(0, s^2); ADD: the other way round.
    """
    with mp.workdps(digits):
        q, s, eps = mp.mpf(q), mp.mpf(s), mp.mpf(eps)
        level = mp.exp(eps if remove else -eps)
        if level <= 1 - q:
            return 1 - mp.exp(eps) if remove else mp.mpf(0)
        cut = mp.mpf(1) / 2 + s**2 * mp.log((level - 1 + q) / q)
        if remove:
            first = (1 - q) * mp.ncdf(-cut / s) + q * mp.ncdf((1 - cut) / s)
            return first - mp.exp(eps) * mp.ncdf(-cut / s)
        second = (1 - q) * mp.ncdf(cut / s) + q * mp.ncdf((cut - 1) / s)
        return mp.ncdf(cut / s) - mp.exp(eps) * second


def sampled_delta_two_steps(q, s, eps, *, remove, digits=30):
    """The same for two steps: the first one's output is integrated out by quadrature."""
    with mp.workdps(digits + 15):
        q, s, eps = mp.mpf(q), mp.mpf(s), mp.mpf(eps)

        def integrand(x):
            pure = mp.npdf(x, 0, s)
            mixed = (1 - q) * pure + q * mp.npdf(x, 1, s)
            loss = mp.log(1 - q + q * mp.exp((2 * x - 1) / (2 * s**2))) * (1 if remove else -1)
            rest = sampled_delta(q, s, eps - loss, remove=remove, digits=digits + 15)
            return (mixed if remove else pure) * rest

        reach = 16 * s
        points = [-reach + (2 * reach + 1) * i / 24 for i in range(25)]
        # The second step's delta has a kink where its eps passes the least loss of the mixture.
        kink = mp.exp(eps - mp.log(1 - q) if remove else -eps - mp.log(1 - q)) - (1 - q)
        if kink > 0:
            points = sorted([*points, s**2 * mp.log(kink / q) + mp.mpf(1) / 2])
        return mp.quad(integrand, points, method="gauss-legendre", maxdegree=5)
