import math

import pytest
from dp_accounting.pld import privacy_loss_distribution as pld

import dpmech as dm
from dpmech.engines.gaussian import gaussian_delta, gaussian_epsilon
from dpmech.engines.profiles import composition
from dpmech.engines.profiles.composition import Composition
from dpmech.engines.profiles.curves import Curve, Nodes, SampledPart
from tests.support import non_adaptive

SAMPLED = SampledPart(0.02, 1.0, 200, tight=True)


def gaussian_nodes(mu, count=150):
    import numpy as np

    eps = np.linspace(0.0, 9.0 * mu + mu**2, count)
    ends = np.array([gaussian_delta(1.0 / mu, float(one)) for one in eps])
    return Nodes.of(eps, ends[:, 0], ends[:, 1])


def test_gaussian_releases_are_one():
    whole = Composition(gaussian=(0.49, 0.49))
    for eps in (0.0, 0.7, 5.0):
        lower, upper = whole.delta(eps, add=False, tolerance=1e-3)
        truth = gaussian_delta(1.0 / 0.7, eps)
        assert lower <= truth[1]
        assert truth[0] <= upper <= truth[1] * (1.0 + 1e-12)
    lower, upper = whole.epsilon(1e-6, add=True, tolerance=1e-3)
    assert lower <= gaussian_epsilon(1.0 / 0.7, 1e-6, safe=True) <= upper * (1.0 + 1e-9)
    assert upper - lower < 1e-5


@pytest.mark.parametrize(
    ("claims", "delta"),
    [([(0.1, 0.0)] * 100, 1e-6), ([(0.3, 1e-8)] * 50, 1e-6), ([(0.3, 1e-8)] * 50, 5.5e-7)],
)
def test_eps_of_claims_takes_one_upper_curve(claims, delta, monkeypatch):
    """The first one is built so close to the eps that is found that no other is needed."""
    seen, upper = [], composition._Side.upper
    monkeypatch.setattr(
        composition._Side, "upper", lambda self, *args: seen.append(args) or upper(self, *args)
    )
    parts = non_adaptive.whole(claims=claims).profile.parts
    (most, failure), times = claims[0], len(claims)
    found = parts.epsilon(delta, add=False, tolerance=1e-3)[1]
    assert len(seen) == 1
    # Randomised response, and failures of probability delta: what these claims allow at most.
    yes = math.exp(most) / (1.0 + math.exp(most))
    losses = [most * (2 * k - times) for k in range(times + 1)]
    masses = [math.comb(times, k) * yes**k * (1.0 - yes) ** (times - k) for k in range(times + 1)]
    kept = (1.0 - failure) ** times
    exact = (
        1.0
        - kept
        + kept
        * math.fsum(p * -math.expm1(found - x) for p, x in zip(masses, losses, strict=True) if x > found)
    )
    assert exact == pytest.approx(delta, rel=1e-3)


@pytest.mark.parametrize(("times", "delta"), [(5, 1e-12), (5, 1e-6), (2, 1e-9)])
def test_pure_claims_cost_their_sum_where_the_largest_loss_is_likely(times, delta):
    parts = non_adaptive.whole(claims=[(1.0, 0.0)] * times).profile.parts
    # All losses are 1 with a probability far above delta: eps is below the sum by less than delta over it.
    likely = (math.e / (1.0 + math.e)) ** times
    upper = parts.epsilon(delta, add=False, tolerance=1e-3)[1]
    assert times - 2.0 * delta / likely < upper < times * (1.0 + 1e-4)


@pytest.mark.parametrize("times", [1, 2, 7])
@pytest.mark.parametrize("eps", [-0.5, 0.1, 1.0, 4.0, 8.0])
def test_nodes_of_a_gaussian_compose_to_a_gaussian(times, eps):
    own = gaussian_nodes(0.7)
    lower, upper = Composition(curves=((Curve(own, own), times),)).delta(eps, add=False, tolerance=1e-3)
    truth = Composition(gaussian=(0.49 * times, 0.49 * times)).delta(eps, add=False, tolerance=1e-3)
    assert lower <= truth[1]
    assert truth[0] <= upper <= truth[1] * 1.03 + 1e-14
    joined = Composition(gaussian=(0.51, 0.51), curves=((Curve(own, own), times),))
    truth = Composition(gaussian=(0.51 + 0.49 * times,) * 2).delta(eps, add=True, tolerance=1e-3)
    assert truth[0] <= joined.delta(eps, add=True, tolerance=1e-3)[1] <= truth[1] * 1.03 + 1e-14


def test_kinds_in_one_lattice_against_dp_accounting():
    other = SampledPart(0.05, 2.0, 100, tight=True)
    whole = Composition((0.25, 0.25), (SAMPLED, other))
    step = 1e-3
    peer = pld.from_gaussian_mechanism(2.0, value_discretization_interval=step)
    for part in (SAMPLED, other):
        one = pld.from_gaussian_mechanism(
            part.sigma_over_sensitivity, sampling_prob=part.sampling_prob, value_discretization_interval=step
        )
        peer = peer.compose(one.self_compose(part.steps))
    for eps in (0.1, 1.0, 3.0):
        ends = [whole.delta(eps, add=add, tolerance=1e-3) for add in (False, True)]
        lower, upper = (max(end[i] for end in ends) for i in (0, 1))
        assert lower <= peer.get_delta_for_epsilon(eps) * 1.001
        assert upper == pytest.approx(peer.get_delta_for_epsilon(eps), rel=3e-3)
        assert math.log(upper / lower) < 2e-3
    lower, upper = whole.epsilon(1e-5, add=False, tolerance=1e-3)
    assert lower <= upper == pytest.approx(peer.get_epsilon_for_delta(1e-5), rel=2e-3)


def test_much_noise_beside_little_needs_no_more_memory():
    """What ran out of memory in a lattice for both: mu = 100 beside a sampled run."""
    whole = Composition((1e4, 1e4), (SAMPLED,))
    lower, upper = whole.epsilon(1e-6, add=False, tolerance=1e-3)
    alone = gaussian_epsilon(0.01, 1e-6, safe=False)
    assert alone < lower <= upper < alone + 400.0


def test_a_part_that_is_not_tight_gives_no_lower_end():
    loose = SampledPart(0.02, 1.0, 200, tight=False)
    lower, upper = Composition(sampled=(loose,)).delta(0.5, add=False, tolerance=1e-3)
    assert lower == 0.0 < upper
    both = Composition((0.04, 0.04), (loose,)).delta(0.5, add=False, tolerance=1e-3)
    assert both[0] <= gaussian_delta(5.0, 0.5)[1] <= both[1]


def test_below_zero_the_other_direction_decides():
    whole = Composition(sampled=(SAMPLED,))
    for eps in (0.2, 1.5):
        there = whole.delta(-eps, add=True, tolerance=1e-3)
        here = whole.delta(eps, add=False, tolerance=1e-3)
        for end, own in zip(there, here, strict=True):
            assert end == pytest.approx(1.0 - math.exp(-eps) + math.exp(-eps) * own, rel=1e-12)


@pytest.mark.parametrize("claim", [Curve.of_claim(1.0, 1.0), Curve.of_claim(710.0, 0.1)])
def test_a_curve_that_says_nothing_composes_to_nothing(claim):
    for whole in (Composition(curves=((claim, 2),)), Composition((0.25, 0.25), (SAMPLED,), ((claim, 1),))):
        lower, upper = whole.delta(1.0, add=False, tolerance=1e-3)
        assert 0.0 <= lower < upper == 1.0
        with pytest.raises(dm.UnattainableBudgetError, match="bounds nothing"):
            whole.epsilon(1e-5, add=True, tolerance=1e-3)


def test_a_curve_without_upper_bounds_leaves_its_own_lower_ones():
    nodes = Nodes((0.0, 1.0), (0.9, 0.8), (1.0, 1.0))
    for whole in (
        Composition(curves=((Curve(nodes, nodes), 4),)),
        Composition((0.25, 0.25), (SAMPLED,), ((Curve(nodes, nodes), 2),)),
    ):
        lower, upper = whole.delta(0.5, add=False, tolerance=1e-2)
        assert 0.8 * (1.0 - 1e-8) <= lower <= 0.9  # of one release, between its nodes
        assert upper == 1.0


def test_a_delta_that_is_never_reached():
    claim = Curve.of_claim(1.0, 1e-4)
    with pytest.raises(dm.UnattainableBudgetError, match="however large eps is"):
        Composition(curves=((claim, 3),)).epsilon(1e-4, add=False, tolerance=1e-3)
