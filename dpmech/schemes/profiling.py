"""The privacy profile of a mechanism: what its accountant knows of the whole curve."""

import dataclasses
from fractions import Fraction

import numpy as np

from dpmech.engines import (
    Accountant,
    CertifiedAccountant,
    Composition,
    Curve,
    FixedAccountant,
    FreshEpochsAccountant,
    GaussianAccountant,
    IndependentAccountant,
    InTurnAccountant,
    Method,
    PoissonAccountant,
    PrivacyProfile,
    SampledPart,
    TruncatedAccountant,
    UserAccountant,
    curve_of_bounds,
    gaussian_delta,
)
from dpmech.exceptions import DpmechError
from dpmech.mechanism import Adjacency, Mechanism
from dpmech.numerics import BOUND, Guarantee, Provenance, quotient_down, rounded_down, rounded_up
from dpmech.schemes.scheme import accountant_for

# As a relative change of sigma, how far apart the ends of an accountant may be at a node.
_TOLERANCE = 1e-3


def profile_for(
    mechanism: Mechanism,
    sigma: float,
    method: Method | None,
    rng: np.random.Generator | None = None,
    *,
    rel_error: float,
) -> PrivacyProfile:
    """The profile of a mechanism at one noise scale.

    Args:
        mechanism: what runs.
        sigma: > 0.
        method: None for the default accountant.
        rng: for randomised ones.
        rel_error: by how much, relative, the hull of nodes may be above the curve.

    Raises:
        UnsupportedCombinationError: if no theorem covers it.
        NumericalError: if the accountant has no bounds on the curve.
    """
    accountant = accountant_for(mechanism, method, rng)
    found = _profile(accountant, mechanism.adjacency, sigma, rel_error)
    return dataclasses.replace(found, unit=mechanism.unit, of=(mechanism, sigma))


def _profile(accountant: Accountant, adjacency: Adjacency, sigma: float, rel_error: float) -> PrivacyProfile:
    if isinstance(accountant, GaussianAccountant):
        bounds, scale = accountant.sensitivity, Fraction(sigma)
        least, most = ((Fraction(end) / scale) ** 2 for end in (bounds.lower, bounds.upper))
        parts = Composition((rounded_down(least), rounded_up(most)))
        return PrivacyProfile(parts, accountant.guarantee, accountant.by, adjacency)
    if isinstance(accountant, PoissonAccountant):
        release = accountant.release
        multiplier = quotient_down(sigma, release.sensitivity.upper)
        gap = release.sensitivity.relative_gap
        part = SampledPart(release.sampling_prob, multiplier, release.steps, release.tight, gap)
        return PrivacyProfile(Composition(sampled=(part,)), accountant.guarantee, accountant.by, adjacency)
    if isinstance(accountant, FreshEpochsAccountant):
        parts = accountant.profile(sigma, rel_error=rel_error)
        return PrivacyProfile(parts, *nodes_label(accountant, 0), adjacency)
    curve, answered = _curve(accountant, sigma, rel_error)
    guarantee, by = nodes_label(answered, len(curve.remove.eps))
    return PrivacyProfile(Composition(curves=((curve, 1),)), guarantee, by, adjacency)


def nodes_label(answered: Accountant, nodes: int) -> tuple[Guarantee, Provenance]:
    """How sure the nodes of one curve are, and how they were found.

    Args:
        answered: the accountant that gave them.
        nodes: how many there are in the direction REMOVE.
    """
    if isinstance(answered, FreshEpochsAccountant):
        return answered.guarantee, answered.by
    by = Provenance("profile.nodes", {"nodes": nodes}, (answered.by,))
    if isinstance(answered, CertifiedAccountant):
        return answered.settings.guarantee(inside=False), by
    # Whatever the accountant says of single numbers, lines between them are a bound at most.
    return (BOUND if answered.guarantee.rigorous else answered.guarantee), by


def _curve(accountant: Accountant, sigma: float, rel_error: float) -> tuple[Curve, Accountant]:
    """The curve, and the accountant that gave it."""
    if isinstance(accountant, InTurnAccountant):
        return _first_curve(accountant, sigma, rel_error)
    if isinstance(accountant, CertifiedAccountant | IndependentAccountant):
        return accountant.curve(sigma, rel_error=rel_error), accountant
    joined = accountant.sensitivity
    if isinstance(accountant, TruncatedAccountant | UserAccountant | FixedAccountant):
        # Of one release; all of them, joined by everyone, cost no less.
        joined = joined.times_root(accountant.release.steps)
    multiplier = quotient_down(sigma, joined.upper)
    curve = curve_of_bounds(
        lambda eps: accountant.delta(sigma, eps, tolerance=_TOLERANCE),
        rel_error,
        lambda eps: gaussian_delta(multiplier, eps)[1],
    )
    return curve, accountant


def _first_curve(accountant: InTurnAccountant, sigma: float, rel_error: float) -> tuple[Curve, Accountant]:
    """Of the first accountant in turn that gives one."""
    try:
        return _curve(accountant.first, sigma, rel_error)
    except ArithmeticError as error:
        refusal = error
    for turn in accountant.others:
        try:
            with turn.budget():
                return _curve(turn.make(), sigma, rel_error)
        except (DpmechError, ArithmeticError):
            continue
    raise refusal
