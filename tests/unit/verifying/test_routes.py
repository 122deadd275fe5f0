"""The second routes against oracles that share nothing with either route."""

import dataclasses
import math
from unittest import mock

import mpmath as mp
import numpy as np
import pytest

import dpmech as dm
from dpmech.mechanism.strategies import banded_inverse
from dpmech.verifying import integrals
from dpmech.verifying.integrals import composed_delta, gaussian_integral, one_step_delta
from dpmech.verifying.privacy_routes import certified_sensitivity, repeated_routes, second_routes
from dpmech.verifying.sensitivity_routes import best_sums, second_bracket
from tests.support.oracles import (
    epoch_sets,
    gaussian_delta,
    sampled_delta,
    sampled_delta_two_steps,
    sensitivity_ceiling,
    sensitivity_floor,
    separated_sets,
)

ADD = dm.Adjacency.ADD_REMOVE
RNG = np.random.default_rng(20)
DENSE = np.tril(RNG.normal(size=(60, 60)) * 0.2) + np.eye(60)


def strategies(n):
    return [
        dm.Identity(n),
        dm.LambdaCGD(n, 0.9),
        dm.SquareRoot(n),
        dm.SquareRoot(n, 3),
        dm.InverseSquareRoot(n, 3),
        dm.BandedToeplitz(n, [1.0, 0.5, -0.4]),
        dm.BandedInverse(n, [1.0, -0.5, 0.1]),
        dm.BLT(n, [0.9, 0.5], [0.2, 0.1]),
        dm.Diagonal(np.linspace(2.0, 1.0, n)),
        dm.Dense(DENSE[:n, :n]),
        dm.ColumnNormalized(dm.LambdaCGD(n, 0.9)),
        dm.ColumnNormalized(dm.InverseSquareRoot(n, 3)),
    ]


PATTERNS = [dm.EveryStep(), dm.SingleParticipation(), dm.MinSep(3, 2), dm.MinSep(4), dm.FixedEpochs(3)]


@pytest.mark.parametrize("n", [40, 5000])
@pytest.mark.parametrize(
    ("build", "schema"),
    [
        (lambda n: dm.BandedInverse(n, [1.0, -1.9, 0.9025]), dm.SingleParticipation()),
        (lambda n: dm.InverseSquareRoot(n, 5), dm.SingleParticipation()),
        (lambda n: dm.InverseSquareRoot(n, 5), dm.MinSep(8, 3)),
        (lambda n: dm.ColumnNormalized(dm.BandedInverse(n, [1.0, -1.2, 0.3])), dm.SingleParticipation()),
    ],
)
def test_a_wrong_inverse_is_found_by_the_second_route(n, build, schema, monkeypatch):
    """Both routes once read the same coefficients: an inverse 1e-6 off was confirmed."""
    honest = dm.calibrate_sigma(build(n), 1.0, 1e-5, participation=schema)
    assert dm.verify(honest.certificate()).ok
    right = banded_inverse.bounded_inverse

    def wrong(*args):
        found, error = right(*args)
        found[1:] *= 1.0 - 1e-6
        return found, error

    monkeypatch.setattr(banded_inverse, "bounded_inverse", wrong)
    claim = dm.calibrate_sigma(build(n), 1.0, 1e-5, participation=schema)
    found = dm.verify(claim.certificate())
    assert not found.ok
    assert found.failures[0].startswith("sensitivity")


@pytest.mark.parametrize("schema", PATTERNS, ids=repr)
@pytest.mark.parametrize("strategy", strategies(9), ids=lambda strategy: repr(strategy)[:40])
def test_brute_force_is_brute_force(strategy, schema):
    pattern = schema.pattern(9)
    sets = (
        epoch_sets(9, 3)
        if pattern.evenly_spaced
        else separated_sets(9, pattern.min_sep, pattern.max_participations)
    )
    found = second_bracket(dm.Mechanism(strategy, schema))
    matrix = strategy.to_dense()
    assert found.upper == pytest.approx(sensitivity_ceiling(matrix, sets), rel=1e-11)
    assert found.lower <= sensitivity_floor(matrix, sets) * (1 + 1e-11)
    assert found.lower >= 0.8 * found.upper
    assert "brute force over" in str(found.by)


@pytest.mark.parametrize("schema", [*PATTERNS, dm.MinSep(14), dm.MinSep(1, 5)], ids=repr)
@pytest.mark.parametrize("strategy", strategies(60), ids=lambda strategy: repr(strategy)[:40])
def test_the_second_bracket_is_as_tight_as_the_first(strategy, schema):
    first = dm.sensitivity(strategy, schema)
    second = second_bracket(dm.Mechanism(strategy, schema))
    assert second.upper <= first.upper * (1 + 1e-9)
    assert second.lower <= first.upper
    assert second.upper >= first.lower * (1 - 1e-12)
    if first.exact:
        assert second.exact


@pytest.mark.parametrize(
    ("strategy", "schema"),
    [
        (dm.LambdaCGD(5000, 0.9), dm.MinSep(500, 10)),
        (dm.SquareRoot(5000, 400), dm.MinSep(500)),
        (dm.SquareRoot(5000, 400), dm.FixedEpochs(10)),
        (dm.ColumnNormalized(dm.LambdaCGD(5000, 0.9)), dm.MinSep(500, 7)),
        (dm.ColumnNormalized(dm.BLT(5000, [0.9], [0.2])), dm.SingleParticipation()),
        (dm.Diagonal(np.linspace(2.0, 1.0, 5000)), dm.EveryStep()),
    ],
    ids=repr,
)
def test_beyond_dense_matrices_it_is_tight_too(strategy, schema):
    first = dm.sensitivity(strategy, schema)
    second = second_bracket(dm.Mechanism(strategy, schema))
    assert second.lower == pytest.approx(first.lower, rel=1e-11)
    assert second.upper == pytest.approx(first.upper, rel=1e-11)


def test_without_an_affordable_route_the_bracket_is_open():
    strategy = dm.ColumnNormalized(dm.InverseSquareRoot(5000, 16))
    assert second_bracket(dm.Mechanism(strategy, dm.MinSep(500, 7))).upper > 1.01 * math.sqrt(7)

    opaque = mock.create_autospec(dm.Strategy, instance=True, n=5000, factored=None)
    found = second_bracket(dm.Mechanism(opaque, dm.MinSep(500, 7)))
    assert (found.lower, found.upper) == (0.0, math.inf)
    assert "no second route" in str(found.by)


def test_replace_one_doubles_the_bracket():
    single = second_bracket(dm.Mechanism(strategies(9)[1], dm.MinSep(3, 2)))
    double = second_bracket(dm.Mechanism(strategies(9)[1], dm.MinSep(3, 2), dm.Adjacency.REPLACE_ONE))
    assert double.upper == 2.0 * single.upper


@pytest.mark.parametrize("b", [1, 2, 3, 7, 12])
@pytest.mark.parametrize("k", [1, 2, 5, 12])
def test_best_sums_against_all_sets(b, k):
    weights = RNG.random((3, 11))
    expected = [max(row[list(steps)].sum() for steps in separated_sets(11, b, k)) for row in weights]
    assert best_sums(weights, b, k) == pytest.approx(expected)


@pytest.mark.parametrize("sigma", [0.01, 0.3, 1.0, 7.0, 1e3, 1e9])
@pytest.mark.parametrize("eps", [0.0, 1e-6, 1e-3, 0.3, 1.0, 8.0, 50.0])
def test_the_gaussian_integral(sigma, eps):
    exact = gaussian_delta(sigma, eps, digits=120)
    value = gaussian_integral(sigma, eps)
    if exact < 1e-290:
        assert value < 1e-280
    else:
        assert abs(float(mp.mpf(value) / exact) - 1.0) < 1e-12


@pytest.mark.parametrize("q", [1e-4, 0.01, 0.3, 0.9])
@pytest.mark.parametrize("s", [0.3, 1.0, 30.0])
@pytest.mark.parametrize("eps", [0.0, 1e-3, 0.1, 2.0])
def test_one_sampled_step(q, s, eps):
    exact = max(sampled_delta(q, s, eps, remove=remove, digits=120) for remove in (True, False))
    value = one_step_delta(q, s, eps)
    assert value == composed_delta(q, s, 1, eps)
    if exact < 1e-250:
        assert value < 1e-240
    else:
        assert abs(float(mp.mpf(value) / exact) - 1.0) < 1e-11


def test_two_sampled_steps():
    exact = max(
        float(sampled_delta_two_steps(0.1, 1.0, 0.5, remove=remove, digits=12)) for remove in (True, False)
    )
    assert composed_delta(0.1, 1.0, 2, 0.5) == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize(
    ("q", "s", "steps", "eps"),
    [(0.01, 1.4, 1000, 1.0), (0.00256, 0.5, 3900, 8.0), (0.9, 24.0, 50, 1.0), (0.01, 770.0, 1000, 1e-3),
     (0.02, 1.66, 10, 3.0), (0.3, 6.6, 5, 0.1), (0.5, 3.0, 4, 0.0), (0.01, 1.057, 2, 1.0)],
)  # fmt: skip
def test_many_sampled_steps_lie_between_rigorous_bounds(q, s, steps, eps):
    bounds = dm.delta(dm.Identity(steps), s, eps, participation=dm.Poisson(q))
    assert bounds.lower * (1 - 1e-9) <= composed_delta(q, s, steps, eps) <= bounds.upper * (1 + 1e-9)
    assert bounds.upper / bounds.lower < 1.02


Q, S = 0.009647672680033685, 1.1085512451323725


# Delta of two steps by eps, from the oracle, which takes seconds for each.
TWO_STEPS = {0.0021042638431540295: 0.004446063387924094, 0.02: 0.0014506190166199435}


@pytest.mark.slow
@pytest.mark.parametrize("eps", TWO_STEPS)
def test_two_steps_at_small_eps_and_rate(eps):
    """The saddle point is close to the pole at 0: far from it the integrand cancels 100 digits away."""
    assert composed_delta(Q, S, 2, eps) == pytest.approx(TWO_STEPS[eps], rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("eps", TWO_STEPS)
def test_the_oracle_says_so(eps):
    exact = max(
        float(sampled_delta_two_steps(Q, S, eps, remove=remove, digits=10)) for remove in (True, False)
    )
    assert exact == pytest.approx(TWO_STEPS[eps], rel=1e-9)


@pytest.mark.parametrize(
    ("steps", "eps"),
    [(10, 0.003), *(pytest.param(4, eps, marks=pytest.mark.slow) for eps in (0.005, 0.0021))],
)
def test_few_steps_at_small_eps_lie_between_rigorous_bounds(steps, eps):
    bounds = dm.delta(dm.Identity(steps), S, eps, participation=dm.Poisson(Q))
    assert bounds.lower <= composed_delta(Q, S, steps, eps) <= bounds.upper
    assert bounds.upper / bounds.lower < 1.002


@pytest.mark.slow
def test_an_honest_claim_of_few_steps_at_small_eps_is_confirmed():
    schema, ten = dm.Poisson(Q), dm.Identity(10)
    delta = dm.delta(ten, S, 0.003, participation=schema).upper
    found = dm.verify(dm.calibrate_sigma(ten, 0.003, delta, participation=schema).certificate())
    assert found.ok, found.failures
    assert abs(found.margin) < 2e-3


@pytest.mark.parametrize(
    ("q", "s", "steps", "eps", "match"),
    [
        (0.000851139169364695, 0.35539173219597864, 2, 0.0024999138491324205, "did not settle"),
        (1e-5, 30.0, 10**9, 0.01, "would round visibly"),
    ],
)
def test_where_the_contour_is_not_accurate_it_says_so(q, s, steps, eps, match):
    with pytest.raises(dm.NumericalError, match=match):
        composed_delta(q, s, steps, eps)


def test_two_contours_that_disagree_are_refused(monkeypatch):
    whole = integrals.ComposedLaw.on_line
    monkeypatch.setattr(
        integrals.ComposedLaw,
        "on_line",
        lambda one, shift: whole(one, shift) * (1.0 + 1e-4 * (shift < 1.0)),
    )
    with pytest.raises(dm.NumericalError, match="depends on its contour"):
        composed_delta(0.01, 1.4, 1000, 1.0)
    monkeypatch.setattr(integrals.ComposedLaw, "on_line", whole)
    monkeypatch.setattr(integrals, "_fading", lambda count: -np.ones(count))
    with pytest.raises(dm.NumericalError, match=r"times Chernoff's bound"):
        composed_delta(0.01, 1.4, 1000, 1.0)


def test_the_contour_says_when_it_does_not_settle():
    laws = [dataclasses.replace(law, most_nodes=512) for law in integrals.directions(0.01, 1.057, 2, 1.0)]
    with pytest.raises(dm.NumericalError, match="did not settle in 512 nodes"):
        integrals.composed_integral(laws)
    assert composed_delta(0.5, 1e-4, 3, 1e12) == 0.0


PLAIN = dm.calibrate_sigma(dm.Identity(6), 1.0, 1e-5).certificate()


def routes(strategy, schema, method):
    evidence = dataclasses.replace(PLAIN.evidence, accountant=method)
    certificate = dataclasses.replace(PLAIN, mechanism=dm.Mechanism(strategy, schema), evidence=evidence)
    bracket = certified_sensitivity(
        second_bracket(dm.Mechanism(strategy, schema)), dm.Mechanism(strategy, schema)
    )
    return second_routes(certificate, bracket, None), repeated_routes(certificate, None)


@pytest.mark.parametrize(
    ("strategy", "schema", "method", "seconds", "repeats"),
    [
        (dm.Identity(6), dm.EveryStep(), dm.Exact(), ["integral of"], ["analytic Gaussian"]),
        (dm.Identity(6), dm.EveryStep(), dm.Rdp(), ["integral of"], ["RDP"]),
        (dm.Identity(6), dm.Poisson(0.2), dm.Pld(), ["contour integral of 6", "lattice", "PRV"], ["PLD"]),
        (dm.Identity(6), dm.Poisson(0.2), dm.Rdp(), ["contour integral of 6", "lattice", "PRV"], ["RDP"]),
        (dm.Identity(6), dm.Poisson(0.2), dm.Prv(), ["contour integral of 6", "PLD"], ["PRV"]),
        (dm.Identity(6), dm.Poisson(1.0), dm.Exact(), ["integral of"], ["analytic Gaussian"]),
        (dm.SquareRoot(7, 2), dm.CyclicPoisson(0.2, 3), dm.Pld(), ["contour integral of 3", "lattice", "PRV"],
         ["PLD"]),
        (dm.SquareRoot(7, 2), dm.CyclicPoisson(1.0, 3), dm.Exact(), ["integral of"], ["analytic Gaussian"]),
        (dm.Identity(6), dm.BallsInBins(1), dm.Exact(), ["integral of"], ["analytic Gaussian"]),
        (dm.LambdaCGD(6, 0.5), dm.BallsInBins(3), dm.Importance(), ["importance"], []),
        (dm.LambdaCGD(6, 0.5), dm.BallsInBins(3), dm.Rdp(), ["importance"], ["moments"]),
        (dm.LambdaCGD(6, 0.5), dm.BallsInBins(3), dm.Certified(), ["importance"], ["new samples"]),
        (dm.LambdaCGD(6, 0.5), dm.BallsInBins(3), dm.Deterministic(0.2), ["importance"],
         ["rel_error 0.1", "rel_error 0.2"]),
        (dm.Identity(6), dm.BallsInBins(3), dm.Exact(), ["importance"], ["law of their sum"]),
    ],
    ids=repr,
)  # fmt: skip
def test_no_second_route_is_the_first(strategy, schema, method, seconds, repeats):
    second, repeated = routes(strategy, schema, method)
    assert len(second) == len(seconds)
    assert len(repeated) == len(repeats)
    for route, words in zip((*second, *repeated), (*seconds, *repeats), strict=True):
        assert words in route.name
        assert "independent" in route.name or "importance" not in route.name


@pytest.mark.slow
@pytest.mark.parametrize("method", [dm.Pld(), dm.Rdp()], ids=repr)
@pytest.mark.parametrize("steps", [5000, 100_000])
def test_a_delta_that_no_package_resolves_is_confirmed_on_a_lattice(method, steps):
    # The contour integral does not settle there, and PRV is below its resolution.
    cal = dm.certify_sigma(
        dm.Identity(steps), 0.7, delta=1e-11, participation=dm.Poisson(1e-4), method=method
    )
    found = dm.verify(cal.certificate())
    assert found.ok, found.failures
    confirmed = [check.route for check in found.checks if "meets the claimed" in check.detail]
    assert any("lattice" in route for route in confirmed)


def test_the_certified_sensitivity_composes_only_what_is_not_sampled():
    bracket = dm.Bounds.bracket(1.0, 2.0, dm.Provenance("x"))
    assert certified_sensitivity(bracket, dm.Mechanism(dm.Identity(9), dm.Poisson(0.5))) == bracket
    assert certified_sensitivity(bracket, dm.Mechanism(dm.Identity(9), dm.MinSep(2))) == bracket
    whole = certified_sensitivity(bracket, dm.Mechanism(dm.Identity(9), dm.Poisson(1.0)))
    assert (whole.lower, whole.upper) == (3.0, 6.0)
    cyclic = certified_sensitivity(bracket, dm.Mechanism(dm.Identity(8), dm.CyclicPoisson(1.0, 2)))
    assert (cyclic.lower, cyclic.upper) == (1.0, 4.0)
