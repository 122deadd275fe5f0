"""Discrete Gaussian noise on counts: against sums over all outcomes with 50 digits, and dp_accounting."""

from fractions import Fraction

import mpmath as mp
import pytest

import dpmech as dm
from dpmech.engines import discrete_gaussian as module

CASES = [
    (1, 1, 1, 0.0),
    (1, 1, 1, 1.0),
    (0.25, 1, 1, 9.0),
    (2.5, 2, 1, 1.0),
    (Fraction(7, 3), 3, 2, 2.0),
    (2, 1, 3, 1.0),
    (4, 1, 2, 3.0),
    (3, 2, 2, 0.3),
]


def law(sigma):
    """{y: probability} with 50 digits; what is left out is below 1e-42."""
    variance = mp.mpf(Fraction(sigma).numerator) ** 2 / mp.mpf(Fraction(sigma).denominator) ** 2
    reach = int(14 * float(sigma)) + 3
    weights = {y: mp.exp(-mp.mpf(y * y) / (2 * variance)) for y in range(-reach, reach + 1)}
    total = sum(weights.values())
    return {y: weight / total for y, weight in weights.items()}


def brute(sigma, shift, releases, eps):
    """Sum of (P - e^eps Q)+ over all outcomes of `releases` numbers; P is Q shifted.

    Outcomes are vectors; those of one sum have the same ratio, which only the definition is used for: both
    probabilities of a sum are convolved by themselves, and no loss is computed.
    """
    with mp.workdps(50):
        base = law(sigma)
        first, second = {0: mp.mpf(1)}, {0: mp.mpf(1)}
        for _ in range(releases):
            grown, other = {}, {}
            for at, prob in first.items():
                for y, more in base.items():
                    grown[at + y + shift] = grown.get(at + y + shift, 0) + prob * more
            for at, prob in second.items():
                for y, more in base.items():
                    other[at + y] = other.get(at + y, 0) + prob * more
            first, second = grown, other
        limit = mp.exp(mp.mpf(eps))
        return sum(max(prob - limit * second.get(at, mp.mpf(0)), mp.mpf(0)) for at, prob in first.items())


@pytest.mark.parametrize(("sigma", "shift", "releases", "eps"), CASES)
def test_delta_is_that_of_all_outcomes(sigma, shift, releases, eps):
    found = dm.DiscreteGaussian(sigma, shift, releases).delta(eps)
    exact = brute(sigma, shift, releases, eps)
    assert found.lower <= exact <= found.upper
    assert found.upper - found.lower < 1e-9 * found.upper


def test_vectors_have_the_ratio_of_their_sum():
    """Without the step from vectors to sums: two releases, all pairs of outcomes."""
    with mp.workdps(30):
        base = law(0.8)
        limit, delta = mp.exp(mp.mpf("0.7")), mp.mpf(0)
        for one, a in base.items():
            for two, b in base.items():
                delta += max(a * b - limit * base.get(one + 1, 0) * base.get(two + 1, 0), mp.mpf(0))
    found = dm.DiscreteGaussian(0.8, releases=2).delta(0.7)
    assert found.lower <= delta <= found.upper


def test_smaller_shifts_cost_less():
    """What makes the largest shift the worst one."""
    values = [brute(Fraction(3, 2), shift, 1, 0.5) for shift in range(5)]
    assert values == sorted(values)
    assert values[0] == 0


@pytest.mark.parametrize("upper", [True, False])
def test_a_wrong_law_is_seen(monkeypatch, upper):
    """With the constant of the continuous law, sigma sqrt(2 pi), in place of the sum."""
    true = module._loss(Fraction(1, 4), 1, upper=upper)
    wrong = mp.sqrt(2 * mp.pi * 0.25) / mp.nsum(lambda y: mp.exp(-2 * y * y), [-mp.inf, mp.inf])
    loss = type(true)(true.step, true.first, true.masses / float(wrong), true.infinite_mass)
    monkeypatch.setattr(module, "_loss", lambda *_, **__: loss)
    module._moments.cache_clear()
    found = dm.DiscreteGaussian(0.5).delta(1.0)
    module._moments.cache_clear()
    exact = brute(0.5, 1, 1, 1.0)
    assert not found.lower <= exact <= found.upper


@pytest.mark.parametrize(
    ("sigma", "shift", "releases"),
    [
        (5.0, 1, 1),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in [(20.0, 3, 12), (2.0, 1, 30)]),
    ],
)
def test_dp_accounting_agrees(sigma, shift, releases):
    from dp_accounting.pld import privacy_loss_distribution as pld

    one = pld.from_discrete_gaussian_mechanism(sigma, sensitivity=shift, value_discretization_interval=1e-4)
    peer = one.self_compose(releases)
    counts = dm.DiscreteGaussian(sigma, shift, releases)
    for delta in (1e-3, 1e-6):
        found = counts.epsilon(delta)
        assert found.lower <= peer.get_epsilon_for_delta(delta) * (1 + 1e-9)
        assert found.upper == pytest.approx(peer.get_epsilon_for_delta(delta), rel=2e-3)


def test_eps_is_where_delta_is_reached():
    counts = dm.DiscreteGaussian(6, releases=4)
    found = counts.epsilon(1e-5)
    assert counts.delta(found.upper).upper <= 1e-5 < counts.delta(found.lower).upper
    assert found.upper - found.lower < 1e-8
    assert dm.DiscreteGaussian(1000).epsilon(0.1).upper == 0.0


def test_it_is_near_the_gaussian_where_sigma_is_large():
    gaussian = dm.profile(dm.Identity(1), 50.0, participation=dm.SingleParticipation()).epsilon(1e-6)
    assert dm.DiscreteGaussian(50).epsilon(1e-6).upper == pytest.approx(gaussian.upper, rel=2e-2)


def test_releases_add_up_as_rho_does():
    assert dm.DiscreteGaussian(3, 2, 5).rho == pytest.approx(5 * 4 / 18, rel=1e-15)
    assert Fraction(dm.DiscreteGaussian(3, 2, 5).rho) >= Fraction(20, 18)
    once = dm.DiscreteGaussian(Fraction(5, 2))
    assert once.with_releases(7) == dm.DiscreteGaussian(Fraction(5, 2), releases=7)


def test_the_profile_is_above_and_near():
    counts = dm.DiscreteGaussian(6, releases=4)
    profile = counts.profile()
    for eps in (0.0, 0.3, 1.0, 2.5):
        found, direct = profile.delta(eps), counts.delta(eps)
        assert direct.upper <= found.upper <= 1.03 * direct.upper + 1e-11
        assert found.lower <= direct.upper
    assert profile.guarantee == dm.DiscreteGaussian(6).delta(1.0).guarantee


@pytest.mark.slow
def test_profiles_compose_like_releases():
    """Two profiles of two releases each lie above four releases, and near them."""
    two, four = dm.DiscreteGaussian(6, releases=2).profile(), dm.DiscreteGaussian(6, releases=4)
    both = two.self_compose(2).epsilon(1e-5)
    exact = four.epsilon(1e-5)
    assert both.lower <= exact.upper
    assert exact.lower <= both.upper <= 1.02 * exact.upper


@pytest.mark.parametrize(
    ("kwargs", "name"),
    [
        ({"sigma": 0.1}, "sigma"),
        ({"sigma": 2e5}, "sigma"),
        ({"sigma": "3"}, "sigma"),
        ({"sigma": float("nan")}, "sigma"),
        ({"sigma": 1, "sensitivity": 0}, "sensitivity"),
        ({"sigma": 1, "sensitivity": 1.5}, "sensitivity"),
        ({"sigma": 1, "releases": 0}, "releases"),
        ({"sigma": 1, "releases": 10_001}, "sigma"),
    ],
)
def test_what_is_refused(kwargs, name):
    with pytest.raises(dm.InvalidParameterError, match=name):
        dm.DiscreteGaussian(**kwargs)


def test_bad_questions_are_refused():
    counts = dm.DiscreteGaussian(1)
    for eps in (-1.0, float("nan"), 1e6):
        with pytest.raises(dm.InvalidParameterError, match="eps"):
            counts.delta(eps)
    with pytest.raises(dm.InvalidParameterError, match="delta"):
        counts.epsilon(0.0)
    with pytest.raises(dm.InvalidParameterError, match="rel_error"):
        counts.profile(rel_error=0.0)
