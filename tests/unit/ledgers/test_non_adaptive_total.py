"""A non-adaptive list against exact numbers, dp-accounting, and compositions by hand."""

import functools
import math
from fractions import Fraction

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld

import dpmech as dm
from dpmech.engines.gaussian import gaussian_delta
from dpmech.engines.profiles.curves import SampledPart
from dpmech.ledgers.ledger_totals import claimed, known_profile, what_runs
from dpmech.numerics import quotient_down
from tests.support.non_adaptive import whole

BINS = dm.BallsInBins(3)


@functools.cache
def drawn(eps=2.0, delta=1e-5, strategy=None):
    """A release whose profile takes work; that of independent bins takes little, and no draws."""
    return dm.calibrate_sigma(
        strategy or dm.Identity(6), eps, delta, participation=BINS, method=dm.methods.Rdp()
    )


def ledger_of(*claims):
    ledger = dm.Ledger()
    for number, one in enumerate(claims):
        ledger.add(f"run {number}", one, batch=f"batch {number}" if one.participation.random else None)
    return ledger


# ---- claims


@pytest.mark.parametrize("delta", [1e-6, 1e-5, 0.3])
def test_a_single_claim_keeps_its_eps(delta):
    found = whole(claims=((1.0, 1e-6),)).epsilon(delta, renyi=False)
    assert 1.0 <= found.upper <= 1.0 + 1e-12
    assert found.lower == 0.0
    assert "basic composition" in str(found.by)


@pytest.mark.parametrize("renyi", [False, True])
def test_claims_that_use_up_all_of_delta_leave_nothing_to_others(renyi):
    mixed = whole(gaussian=(0.5, 0.5), claims=((1.0, 1e-5),))
    with pytest.raises(dm.UnattainableBudgetError, match="use up all of delta"):
        mixed.epsilon(1e-5, renyi=renyi)
    with pytest.raises(dm.UnattainableBudgetError, match="fail with probability"):
        mixed.epsilon(0.99e-5, renyi=renyi)
    assert mixed.epsilon(1.1e-5, renyi=renyi).upper > 1.0


@pytest.mark.parametrize("eps", [1.5, 3.0])
def test_a_claim_beside_a_gaussian_costs_at_least_what_each_alone_does(eps):
    # (1, 1e-3) is attained by a release that fails with 1e-3 and else has loss exactly 1 or -1.
    mixed = whole(gaussian=(0.25, 0.25), claims=((1.0, 1e-3),))
    share = math.e / (1.0 + math.e)
    truth = 1e-3 + (1.0 - 1e-3) * (
        share * gaussian_delta(2.0, eps - 1.0)[0] + (1.0 - share) * gaussian_delta(2.0, eps + 1.0)[0]
    )
    for renyi in (False, True):
        bound = mixed.delta(eps, renyi=renyi)
        assert truth <= bound.upper
        back = mixed.epsilon(bound.upper, renyi=renyi)
        assert back.upper == pytest.approx(eps, rel=0.02)
    assert mixed.delta(eps, renyi=False).upper <= 1.002 * truth


def test_claims_fail_with_the_probability_that_any_does_rounded_up():
    for deltas in ([0.1, 0.2], [1e-6] * 5, [1e-12, 1e-3, 0.4]):
        claims = whole(claims=tuple((0.5, delta) for delta in deltas))
        exact = 1 - math.prod(1 - Fraction(delta) for delta in deltas)
        spent = claims.delta(0.5 * len(deltas) * (1.0 + 1e-12), renyi=False).upper
        assert exact <= Fraction(spent) <= exact * (1 + Fraction(1, 10**14))
        # Just below their sum a lattice would say more than rounding does.
        assert spent <= claims.delta(0.5 * len(deltas) * (1.0 - 1e-15), renyi=False).upper <= spent + 1e-14
        assert claims.delta(0.4, renyi=True).upper == 1.0
        with pytest.raises(dm.UnattainableBudgetError, match="claims alone fail"):
            claims.epsilon(float(exact) * 0.99, renyi=False)
    assert whole(claims=((0.5, 1e-7),)).delta(0.5, renyi=False).upper == 1e-7


def test_basic_composition_adds_claims_rounded_up():
    for eps in ([0.1] * 3, [0.3, 0.7, 1.1], [1e-3] * 7):
        claims = whole(claims=tuple((one, 1e-9) for one in eps))
        exact = sum(map(Fraction, eps))
        for renyi in (False, True):
            found = claims.epsilon(1e-6, renyi=renyi)
            assert found.lower == 0.0
            assert found.upper <= float(exact) * (1 + 1e-14)
        assert exact <= Fraction(found.upper)
        # Where claims only just fit, nothing is better than their sum.
        fits = claims.delta(found.upper, renyi=False).upper
        assert exact <= Fraction(claims.epsilon(fits, renyi=False).upper) <= exact * (1 + Fraction(1, 10**14))


def test_moments_of_nothing_but_claims_say_nothing_below_their_sum():
    claims = whole(claims=((1.0, 1e-6), (0.5, 1e-6)))
    assert claims.delta(1.4, renyi=True).upper == 1.0
    assert claims.delta(1.4, renyi=False).upper < 0.2


# ---- profiles


@pytest.mark.slow
def test_the_profiles_of_a_list_compose_below_its_claims():
    one, other = drawn(), dm.calibrate_sigma(dm.Identity(100), 1.0, 1e-6, participation=dm.Poisson(0.05))
    ledger = ledger_of(one, one, other)
    claims, profiles = (ledger.epsilon(3e-5, profiles=switch) for switch in (False, True))
    assert 0.0 < claims.lower < profiles.lower < profiles.upper < 0.85 * claims.upper
    assert ledger.epsilon(3e-5, method=dm.methods.Pld()) == profiles
    byhand = one.profile().self_compose(2).compose(other.profile())
    assert profiles.upper == pytest.approx(byhand.epsilon(3e-5).upper, rel=1e-4)
    assert "claims" not in str(profiles.by)
    assert profiles.guarantee == dm.Guarantee(dm.Kind.BOUND)


def test_a_single_release_stays_with_its_claim_unless_asked():
    one = drawn()
    ledger = ledger_of(one)
    assert ledger.epsilon(1e-5).upper == 2.0
    found = ledger.epsilon(1e-5, profiles=True)
    assert found.upper == pytest.approx(one.profile().epsilon(1e-5).upper, rel=1e-9)
    assert found.upper < 2.0
    with pytest.raises(dm.UnattainableBudgetError, match="alone fail"):
        ledger.epsilon(1e-6)
    assert ledger.epsilon(1e-6, profiles=True).upper > found.upper


@pytest.mark.slow
def test_a_profile_is_computed_once_a_mechanism_and_noise(monkeypatch):
    from dpmech.ledgers import ledger_totals as release_profiles

    one, other = drawn(), drawn(eps=1.0)
    made, said = [], []
    monkeypatch.setattr(release_profiles, "profile", lambda *a, **k: made.append(a[1]) or dm.profile(*a, **k))
    ledger = ledger_of(one, other, one)
    composed = ledger.profile(progress=said.append)
    assert made == [one.sigma, other.sigma]
    assert len(said) == 2
    assert "Identity(n=6)" in said[0]
    ledger.epsilon(1e-4)
    ledger.delta(1.0)
    assert made == [one.sigma, other.sigma]
    assert [times for _, times in composed.parts.curves] == [2, 1]


def test_claims_stand_in_for_a_profile_that_is_not_to_be_had(monkeypatch):
    from dpmech.ledgers import ledger_totals as release_profiles

    def refuse(*_, **__):
        raise dm.NumericalError("no curve")

    ledger = ledger_of(drawn(), drawn(eps=1.0))
    monkeypatch.setattr(release_profiles, "profile", refuse)
    assert ledger.epsilon(1e-4).upper == ledger.epsilon(1e-4, profiles=False).upper
    with pytest.raises(dm.UnsupportedCombinationError, match="no privacy profile"):
        ledger.profile()


def test_what_runs_is_mechanism_and_noise():
    one = drawn().certificate()
    assert what_runs(one) == what_runs(drawn(delta=1e-5).certificate())
    assert what_runs(one) != what_runs(drawn(eps=1.0).certificate())
    assert what_runs(one) != what_runs(drawn(strategy=dm.LambdaCGD(6, 0.5)).certificate())
    assert known_profile(one) is None
    adjacency = dm.Adjacency.ADD_REMOVE
    assert claimed(1.0, 1e-6, adjacency) is claimed(1.0, 1e-6, adjacency)


@pytest.mark.slow
def test_a_budget_pays_for_what_profiles_leave_to_chance(monkeypatch):
    ledger = ledger_of(drawn(), dm.calibrate_sigma(dm.Identity(1), 1.0, 1e-6))
    eps = 3.0
    upper = ledger.delta(eps).upper
    assert ledger.meets(dm.PrivacyBudget(eps, upper))
    assert not ledger.meets(dm.PrivacyBudget(eps, upper * (1.0 - 1e-9)))
    probable = dm.Bounds(0.0, 1e-6, dm.Guarantee(dm.Kind.PROBABLE, 1e-7), dm.numerics.Provenance("given"))
    monkeypatch.setattr(type(ledger._total), "delta", lambda *_, **__: probable)
    assert not ledger.meets(dm.PrivacyBudget(eps, 1.0999e-6))
    assert ledger.meets(dm.PrivacyBudget(eps, 1.1001e-6))
    estimate = dm.Bounds(0.0, 1e-6, dm.Guarantee(dm.Kind.ESTIMATE, 1e-7), dm.numerics.Provenance("given"))
    monkeypatch.setattr(type(ledger._total), "delta", lambda *_, **__: estimate)
    with pytest.raises(dm.UnsupportedCombinationError, match="estimate"):
        ledger.meets(dm.PrivacyBudget(eps, 0.1))


def test_a_filter_has_no_profile():
    ledger = dm.Ledger(budget=dm.PrivacyBudget(2.0, 1e-5))
    ledger.add("all", dm.calibrate_sigma(dm.Identity(1), 2.0, 1e-5))
    assert ledger.meets(dm.PrivacyBudget(2.0, 1.001e-5))
    with pytest.raises(dm.UnsupportedCombinationError, match="no privacy profile"):
        ledger.profile()
    with pytest.raises(dm.UnsupportedCombinationError, match="profiles=False is no privacy filter"):
        ledger.epsilon(1e-5, profiles=False)


# ---- other accountants


def test_mixtures_are_those_of_dp_accounting():
    """Four kinds at once; its connect-the-dots lattice is an upper bound, ours stays within a thousandth."""
    step, parts = 5e-4, (SampledPart(0.02, 1.0, 200, tight=True), SampledPart(0.1, 2.0, 30, tight=True))
    mixed = whole((0.25, 0.25), parts, ((0.5, 1e-7), (0.5, 1e-7)))
    peer = pld.from_gaussian_mechanism(2.0, value_discretization_interval=step)
    for part in parts:
        one = pld.from_gaussian_mechanism(
            part.sigma_over_sensitivity, sampling_prob=part.sampling_prob, value_discretization_interval=step
        )
        peer = peer.compose(one.self_compose(part.steps))
    claim = pld.common.DifferentialPrivacyParameters(0.5, 1e-7)
    for _ in range(2):
        peer = peer.compose(pld.from_privacy_parameters(claim, value_discretization_interval=step))
    for eps in (0.5, 2.0, 4.0):
        assert mixed.delta(eps, renyi=False).upper == pytest.approx(peer.get_delta_for_epsilon(eps), rel=2e-3)
    found = mixed.epsilon(1e-5, renyi=False)
    assert found.upper == pytest.approx(peer.get_epsilon_for_delta(1e-5), rel=1e-3)


@pytest.mark.slow
def test_deltas_that_float64_distributions_do_not_resolve():
    mixed = whole((1.0, 1.0), (SampledPart(0.01, 1.0, 2000, tight=True),))
    found, moments = (mixed.epsilon(1e-11, renyi=renyi) for renyi in (False, True))
    assert 0.9 * moments.upper < found.lower <= found.upper < moments.upper
    far = whole((1e-4, 1e-4), (SampledPart(0.01, 10.0, 1000, tight=True),)).delta(40.0, renyi=False)
    assert 0.0 <= far.lower <= far.upper < 1e-240


def test_one_kind_of_release_lies_between_its_own_sensitivities():
    """The multiplier of a part is rounded down: the lower end has to allow for it, in exact fractions."""
    rng = np.random.default_rng(3)
    for _ in range(500):
        sigma, upper = (float(number) for number in np.exp(rng.uniform(-3.0, 3.0, 2)))
        own = dm.Bounds.bracket(
            upper * float(rng.choice([1.0, 1.0 - 1e-15, 0.99])),
            upper,
            dm.numerics.Provenance("sensitivity.best_rows"),
        )
        part = SampledPart(0.1, quotient_down(sigma, own.upper), 5, True, own.relative_gap)
        found = part.release.sensitivity
        assert Fraction(found.lower) <= Fraction(own.lower) / Fraction(sigma)
        assert Fraction(found.upper) >= Fraction(own.upper) / Fraction(sigma)
        assert found.relative_gap <= own.relative_gap + 1e-15
