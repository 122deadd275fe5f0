"""Mechanisms on finitely many outputs: exact curves and compositions by enumeration, without dpmech."""

import functools

import numpy as np

SMALLEST = 1e-3


def random_pair(rng, outcomes):
    """Two laws on as many outcomes, some of which one of them may never give."""
    p, q = (rng.dirichlet(np.full(outcomes, 0.7)) for _ in range(2))
    p, q = (np.where(one < SMALLEST, 0.0, one) for one in (p, q))
    return p / p.sum(), q / q.sum()


def curve(p, q, eps):
    """H at e^eps of (p, q)."""
    return float(np.maximum(p - np.exp(eps) * q, 0.0).sum())


def product(pairs):
    """The pair of independent mechanisms together."""
    return tuple(
        functools.reduce(lambda a, b: np.outer(a, b).ravel(), laws) for laws in zip(*pairs, strict=True)
    )


def kinks(p, q):
    """Where the curve of (p, q) has its kinks: the finite losses."""
    both = (p > 0.0) & (q > 0.0)
    return np.unique(np.log(p[both] / q[both]))
