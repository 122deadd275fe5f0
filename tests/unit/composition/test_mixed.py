import math
import types
from fractions import Fraction

import numpy as np
import pytest

import dpmech as dm
from dpmech.accounting.gaussian import gaussian_delta
from dpmech.composition.mixed import MixedComposition, SampledPart
from dpmech.numerics import quotient_down

BY = dm.Provenance("composition.distributions")


@pytest.mark.parametrize("delta", [1e-6, 1e-5, 0.3])
def test_a_single_claim_keeps_its_eps(delta):
    found = MixedComposition(claims=((1.0, 1e-6),)).epsilon(delta)
    assert 1.0 <= found.upper <= 1.0 + 1e-12
    assert found.lower == 0.0
    assert "basic composition" in str(found.by)


@pytest.mark.parametrize("renyi", [False, True])
def test_claims_that_use_up_all_of_delta_leave_nothing_to_others(renyi):
    mixed = MixedComposition(gaussian=(0.5, 0.5), claims=((1.0, 1e-5),))
    with pytest.raises(dm.UnattainableBudgetError, match="use up all of delta"):
        mixed.epsilon(1e-5, renyi=renyi)
    with pytest.raises(dm.UnattainableBudgetError, match="fail with probability"):
        mixed.epsilon(0.99e-5, renyi=renyi)
    assert mixed.epsilon(1.1e-5, renyi=renyi).upper > 1.0


@pytest.mark.parametrize("eps", [1.5, 3.0])
def test_a_claim_beside_a_gaussian_costs_at_least_what_each_alone_does(eps):
    # (1, 1e-3) is attained by a release that fails with 1e-3 and else has loss exactly 1 or -1.
    mixed = MixedComposition(gaussian=(0.25, 0.25), claims=((1.0, 1e-3),))
    share = math.e / (1.0 + math.e)
    truth = 1e-3 + (1.0 - 1e-3) * (
        share * gaussian_delta(2.0, eps - 1.0)[0] + (1.0 - share) * gaussian_delta(2.0, eps + 1.0)[0]
    )
    for renyi in (False, True):
        bound = mixed.delta(eps, renyi=renyi)
        assert truth <= bound.upper
        back = mixed.epsilon(bound.upper, renyi=renyi)
        assert back.upper == pytest.approx(eps, rel=0.02)
    assert mixed.delta(eps).upper <= 1.01 * truth + 1e-6


def test_claims_fail_with_the_probability_that_any_does_rounded_up():
    for deltas in ([0.1, 0.2], [1e-6] * 5, [1e-12, 1e-3, 0.4]):
        claims = MixedComposition(claims=tuple((0.5, delta) for delta in deltas))
        exact = 1 - math.prod(1 - Fraction(delta) for delta in deltas)
        assert exact <= Fraction(claims._spent()) <= exact * (1 + Fraction(1, 10**14))
        # What is left to the pure parts, rounded down, and put together again, rounded up.
        total = float(exact) * 1.5
        left = (Fraction(total) - exact) / (1 - exact)
        assert left * (1 - Fraction(1, 10**13)) <= Fraction(claims._left(total)) <= left
        for rest in (0.0, 1e-9, 0.3):
            whole = exact + (1 - exact) * Fraction(rest)
            found = Fraction(claims._with_claims(rest, BY).upper)
            assert whole <= found <= whole * (1 + Fraction(1, 10**14))
        assert claims._with_claims(2.0, BY).upper == 1.0
        with pytest.raises(dm.UnattainableBudgetError, match="claims alone fail"):
            claims._left(float(exact) * 0.99)
    rng = np.random.default_rng(1)
    for delta, share in zip(rng.random(60) * 0.5, rng.random(60), strict=True):
        # One claim's delta is taken as it is.
        total = float(delta + (1.0 - delta) * share)
        left = (Fraction(total) - Fraction(float(delta))) / (1 - Fraction(float(delta)))
        found = Fraction(MixedComposition(claims=((0.5, float(delta)),))._left(total))
        assert left * (1 - Fraction(1, 10**14)) <= found <= left
    assert MixedComposition()._spent() == 0.0
    assert MixedComposition(claims=((0.5, 1e-7),))._spent() == 1e-7
    assert MixedComposition()._left(1e-5) == 1e-5


def test_basic_composition_adds_claims_rounded_up():
    for eps in ([0.1] * 3, [0.3, 0.7, 1.1], [1e-3] * 7):
        claims = MixedComposition(claims=tuple((one, 1e-9) for one in eps))
        exact = sum(map(Fraction, eps))
        found = claims.epsilon(1e-6, renyi=True)
        assert exact <= Fraction(found.upper) <= exact * (1 + Fraction(1, 10**14))
        assert found.lower == 0.0
        # At that eps the claims' own deltas are all there is.
        assert claims.delta(found.upper).upper == claims._spent()


def test_rounding_is_counted_once_a_step_and_a_claim():
    parts = (SampledPart(0.1, 1.0, 300, True), SampledPart(0.2, 1.0, 50, True))
    mixed = MixedComposition((0.1, 0.1), parts, ((0.5, 1e-9), (0.1, 1e-9)))
    rounding = 1e-15 * (300 + 50 + 2 + 1)
    assert mixed._noise(100.1 * rounding) == pytest.approx(rounding, rel=1e-12, abs=0.0)
    with pytest.raises(dm.NumericalError, match="below the resolution"):
        mixed._noise(99.9 * rounding)


def test_releases_of_one_kind_keep_their_multiplier_within_its_rounding():
    for multiplier in (0.7, 1.1, 3.0, 7.7):
        one = MixedComposition(sampled=(SampledPart(0.1, multiplier, 5, True),))._single_kind()
        bounds = one.release.sensitivity
        exact = 1 / Fraction(multiplier)
        assert bounds.lower <= exact <= bounds.upper <= exact * (1 + Fraction(1, 10**14))
        assert (one.release.steps, one.release.sampling_prob, one.release.tight) == (5, 0.1, True)
    several = (SampledPart(0.1, 1.0, 5, True), SampledPart(0.1, 2.0, 5, True))
    assert MixedComposition(sampled=several)._single_kind() is None
    assert MixedComposition((0.1, 0.1), several[:1])._single_kind() is None
    assert MixedComposition((0.1, 0.1))._single_kind() is None
    with pytest.raises(dm.NumericalError, match=r"returned -1\.0"):
        MixedComposition()._with_claims(-1.0, BY)


def test_distributions_are_read_with_their_rounding_on_the_safe_side(monkeypatch):
    asked = []

    def distribution(self, step):
        asked.append(step)
        return types.SimpleNamespace(
            get_epsilon_for_delta=lambda delta: asked.append(delta) or 1.25,
            get_delta_for_epsilon=lambda eps: asked.append(eps) or 1e-6,
        )

    monkeypatch.setattr(MixedComposition, "_distribution", distribution)
    mixed = MixedComposition((0.1, 0.1), (SampledPart(0.1, 1.0, 300, True),), ((0.5, 1e-7),))
    rounding = 1e-15 * (300 + 1 + 1)
    assert mixed.epsilon(1e-5).upper == 1.25
    # The same eps on two lattices is enough.
    left = (1e-5 - 1e-7) / (1.0 - 1e-7)
    assert asked[1::2] == pytest.approx([left - rounding] * 2, rel=1e-12, abs=0.0)
    assert asked[1] < left - 0.99 * rounding
    asked.clear()
    found = mixed.delta(1.0).upper
    assert asked[1::2] == [1.0, 1.0]
    assert found == pytest.approx(1e-7 + (1.0 - 1e-7) * (1e-6 + rounding), rel=1e-12, abs=0.0)


def test_one_kind_of_release_lies_between_its_own_sensitivities():
    """The multiplier of a part is rounded down: the lower end has to allow for it, in exact fractions."""
    rng = np.random.default_rng(3)
    for _ in range(2000):
        sigma, upper = (float(number) for number in np.exp(rng.uniform(-3.0, 3.0, 2)))
        own = dm.Bounds.bracket(
            upper * float(rng.choice([1.0, 1.0 - 1e-15, 0.99])), upper, dm.Provenance("sensitivity.best_rows")
        )
        part = SampledPart(0.1, quotient_down(sigma, own.upper), 5, True, own.relative_gap)
        found = MixedComposition(sampled=(part,))._single_kind().sensitivity
        assert Fraction(found.lower) <= Fraction(own.lower) / Fraction(sigma)
        assert Fraction(found.upper) >= Fraction(own.upper) / Fraction(sigma)
        assert found.relative_gap <= own.relative_gap + 1e-15
