"""Risk from profiles: closed forms, every test of finite mechanisms, other packages, faults found."""

import dataclasses
import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import norm

import dpmech as dm
from dpmech.engines.losses.direction import Direction
from dpmech.engines.profiles.composition import Composition
from dpmech.engines.profiles.curves import Curve, Nodes
from dpmech.exceptions import InvalidParameterError, NumericalError
from dpmech.numerics import BOUND, Provenance

RATES = (0.0, 1e-5, 0.01, 0.1, 0.5, 0.9, 1.0)
ONCE = dm.SingleParticipation()


def gaussian(mu):
    return dm.profile(dm.Identity(1), 1.0 / mu, participation=ONCE)


def poisson():
    return dm.profile(dm.Identity(200), 0.9, participation=dm.Poisson(0.02))


def stick(p, q, eps):
    return float(np.maximum(p - math.exp(eps) * q, 0.0).sum())


def nodes(p, q, eps):
    exact = tuple(stick(p, q, one) for one in eps)
    return Nodes(tuple(eps), exact, exact)


def profile_of(remove, add):
    parts = Composition(curves=((Curve(remove, add), 1),))
    return dm.PrivacyProfile(parts, BOUND, Provenance("profile.nodes", {"nodes": len(remove.eps)}))


def ratios(p, q):
    both = (p > 0) & (q > 0)
    # Two that differ by rounding are one.
    return sorted({0.0, *(round(abs(one), 12) for one in np.log(p[both] / q[both]).tolist())})


def finite(p, q):
    """A profile whose nodes are where its curve bends: its hull is the curve."""
    eps = ratios(p, q)
    return profile_of(nodes(p, q, eps), nodes(q, p, eps))


def rates_of(p, q):
    """False- and true-positive rates of every set of outputs."""
    sets = np.array(list(itertools.product([0.0, 1.0], repeat=p.size)))
    return sets @ q, sets @ p


def best_power(p, q, fpr):
    """By trying all sets of outputs and all coins between two of them."""
    false, true = rates_of(p, q)
    best = float(true[false <= fpr + 1e-15].max())
    for low, high in itertools.product(range(false.size), repeat=2):
        if false[low] <= fpr < false[high]:
            coin = (fpr - false[low]) / (false[high] - false[low])
            best = max(best, float(true[low] + coin * (true[high] - true[low])))
    return min(best, 1.0)


@st.composite
def pairs(draw, least=0):
    size = draw(st.integers(2, 5))
    laws = [
        np.array(draw(st.lists(st.integers(least, 30), min_size=size, max_size=size)), dtype=float)
        for _ in range(2)
    ]
    assume(all(law.sum() > 0 for law in laws))
    return tuple(law / law.sum() for law in laws)


@pytest.mark.parametrize("mu", [0.01, 0.3, 1.0, 4.0])
class TestGaussian:
    @pytest.mark.parametrize("fpr", RATES)
    def test_tradeoff_curve(self, mu, fpr):
        truth = float(norm.sf(norm.isf(fpr) - mu)) if 0.0 < fpr < 1.0 else fpr
        found = gaussian(mu).tpr(fpr)
        assert found.lower <= truth * (1 + 1e-12)
        assert truth * (1 - 1e-12) <= found.upper
        assert found.upper == pytest.approx(truth, rel=1e-6, abs=1e-12)
        assert found.lower == pytest.approx(truth, rel=1e-4)
        missed = gaussian(mu).tradeoff(fpr)
        assert missed.lower <= 1.0 - truth + 1e-15
        assert missed.lower == pytest.approx(1.0 - truth, abs=1e-6)
        assert missed.lower <= missed.upper

    def test_advantage(self, mu):
        truth = 2 * norm.cdf(mu / 2) - 1
        found = gaussian(mu).advantage
        assert found.lower <= truth * (1 + 1e-12)
        assert truth * (1 - 1e-12) <= found.upper
        assert found.upper == pytest.approx(truth, rel=1e-9)

    def test_mu_itself(self, mu):
        found = gaussian(mu).gaussian_mu()
        assert mu * (1 - 1e-8) < found.lower <= found.upper <= mu * (1 + 1e-12)

    @pytest.mark.parametrize("prior", [0.01, 0.3, 0.5, 0.9])
    def test_best_guess(self, mu, prior):
        """Right at best: the posterior's larger half, integrated over the output."""
        x = np.linspace(-40.0, 40.0 + mu, 400_001)
        joint = np.maximum(prior * norm.pdf(x - mu), (1.0 - prior) * norm.pdf(x))
        truth = float(np.trapezoid(joint, x))
        found = gaussian(mu).bayes_success(prior)
        assert found.lower <= truth + 1e-8
        assert found.upper == pytest.approx(truth, abs=1e-8)


@pytest.mark.parametrize("prior", [0.1, 0.3, 0.05, 1e-3, 0.7, 0.49999999999999994])
def test_the_lower_end_of_a_guess_without_a_release_is_rounded_down(prior):
    """Who learns nothing is right with probability max(prior, 1 - prior), as an exact fraction."""
    nothing = Nodes((0.0,), (0.0,), (0.0,))
    found = profile_of(nothing, nothing).bayes_success(prior)
    exact = max(Fraction(prior), 1 - Fraction(prior))
    assert Fraction(found.lower) <= exact <= Fraction(found.upper)
    assert found.upper - found.lower <= 1e-13


def test_mu_of_sampled_steps_takes_few_lines_and_no_memory(monkeypatch):
    """What was asked before changes nothing; one line of the transform serves several nodes."""
    made, own = [], Direction.resolved

    def counted(self, eps, tolerance):
        made.append(eps)
        return own(self, eps, tolerance)

    monkeypatch.setattr(Direction, "resolved", counted)
    run, again = (dm.profile(dm.Identity(1000), 1.0, participation=dm.Poisson(0.01)) for _ in range(2))
    found = run.gaussian_mu(1e-9)
    assert 4 <= len(made) <= 16
    made.clear()
    for eps in (0.0, 0.3, 1.0):
        again.delta(eps)
    assert len(made) == 6  # once for each direction
    assert again.gaussian_mu(1e-9) == found
    assert found.upper <= 1.001 * found.lower
    # At every eps the Gaussian curve is above delta, and somewhere that of the lower end is not.
    missed = 0
    for eps in np.linspace(0.0, 4.0, 17):
        value = run.delta(float(eps))
        above, below = (
            norm.cdf(mu / 2 - eps / mu) - math.exp(eps) * norm.cdf(-mu / 2 - eps / mu) + 1e-9
            for mu in (found.upper, 0.99 * found.lower)
        )
        assert value.lower <= above
        missed += value.upper > below
    assert missed


def test_mu_of_nodes_between_them():
    """A Gaussian release known at nodes only: mu is shown for the hull, a little above the curve."""
    eps = tuple(np.linspace(0.0, 9.0, 40))
    values = tuple(dm.delta(dm.Identity(1), 1.0, one, participation=ONCE).upper for one in eps)
    known = profile_of(*[Nodes(eps, values, values)] * 2)
    found = known.gaussian_mu(tail=1e-9)
    assert 1.0 < found.upper < 1.03
    assert found.lower <= 1.0 + 1e-6
    for at in np.linspace(0.0, 12.0, 500):
        limit = norm.cdf(found.upper / 2 - at / found.upper) - math.exp(at) * norm.cdf(
            -found.upper / 2 - at / found.upper
        )
        assert known.delta(float(at)).upper <= limit + 1e-9


@settings(max_examples=60, deadline=None)
@given(pairs(), st.floats(0.0, 1.0))
@pytest.mark.slow
def test_no_test_of_a_finite_mechanism_is_better(pair, fpr):
    p, q = pair
    known = finite(p, q)
    truth = max(best_power(p, q, fpr), best_power(q, p, fpr))
    found = known.tpr(fpr)
    assert found.lower - 1e-12 <= truth <= found.upper + 1e-12
    assert found.upper <= truth * (1 + 2e-3) + 1e-9
    assert known.reconstruction(fpr).upper == found.upper
    missed = known.tradeoff(fpr)
    assert missed.lower <= 1.0 - truth + 1e-12


@settings(max_examples=60, deadline=None)
@given(pairs(), st.floats(1e-3, 0.999))
def test_no_guess_about_a_finite_mechanism_is_better(pair, prior):
    known = finite(*pair)
    truth = 0.0
    for p, q in (pair, pair[::-1]):
        false, true = rates_of(p, q)
        truth = max(truth, float((prior * true + (1.0 - prior) * (1.0 - false)).max()))
    found = known.bayes_success(prior)
    assert found.lower - 1e-12 <= truth <= found.upper + 1e-12
    assert found.upper == pytest.approx(truth, abs=1e-9)
    gain = max(float((true - false).max()) for false, true in [rates_of(*pair)])
    assert known.advantage.upper == pytest.approx(gain, abs=1e-9)
    assert gain <= known.advantage.upper + 1e-12


@settings(max_examples=30, deadline=None)
@given(pairs(least=1), st.sampled_from([1e-3, 1e-6]))
@pytest.mark.slow
def test_mu_is_above_a_finite_mechanism_everywhere(pair, tail):
    p, q = pair
    known = finite(p, q)
    found = known.gaussian_mu(tail)
    mu = max(found.upper, 1e-6)
    for eps in np.linspace(-8.0, 8.0, 300):
        limit = norm.cdf(mu / 2 - eps / mu) - math.exp(eps) * norm.cdf(-mu / 2 - eps / mu) + tail
        for one, other in ((p, q), (q, p)):
            assert stick(one, other, eps) <= limit + 1e-9
    assert found.upper <= found.lower * 1.05 + 1e-3


def test_a_node_lowered_by_one_per_cent_is_found():
    """At the false-positive rate where that node decides, the bound falls below what a test reaches."""
    rng, found = np.random.default_rng(5), 0
    for _ in range(80):
        p, q = rng.dirichlet(np.ones(4)), rng.dirichlet(np.ones(4))
        eps, other = ratios(p, q), nodes(q, p, ratios(p, q))
        true = nodes(p, q, eps)
        for index, at in enumerate(eps):
            above, from_here = (float(q[np.log(p / q) > at + one].sum()) for one in (1e-9, -1e-9))
            fpr, low = 0.5 * (above + from_here), list(true.upper)
            low[index] *= 0.99
            if from_here < above + 0.02 or any(later > low[index] for later in low[index + 1 :]):
                continue
            truth = best_power(p, q, fpr)
            if true.upper[index] < 0.02 * truth or best_power(q, p, fpr) > 0.98 * truth:
                continue
            wrong = dataclasses.replace(true, lower=tuple(low), upper=tuple(low))
            assert profile_of(true, other).tpr(fpr).upper >= truth * (1 - 1e-12)
            assert profile_of(wrong, other).hockey_stick(at, add=False).upper + math.exp(at) * fpr < truth
            found += 1
    assert found >= 20


class TestOrder:
    """What is below is below what is above, and more releases are no safer."""

    @pytest.mark.parametrize(
        "fpr", [pytest.param(1e-4, marks=pytest.mark.slow), pytest.param(0.01, marks=pytest.mark.slow), 0.3]
    )
    def test_poisson_ends(self, fpr):
        found = poisson().tpr(fpr)
        assert fpr <= found.lower <= found.upper <= 1.0
        assert found.lower > 0.98 * found.upper
        assert poisson().self_compose(2).tpr(fpr).lower > found.upper

    @pytest.mark.slow
    def test_mixture(self):
        known = poisson().compose(gaussian(0.4))
        for ask in (lambda one: one.tpr(0.01), lambda one: one.advantage, lambda one: one.bayes_success(0.4)):
            assert ask(poisson()).lower <= ask(known).lower <= ask(known).upper
            assert ask(gaussian(0.4)).lower <= ask(known).upper

    def test_upper_ends_alone(self):
        """Where only upper bounds are known, guessing at random is what is known from below."""
        claim = Curve.of_claim(1.0, 1e-5)
        known = dm.PrivacyProfile(
            Composition(curves=((claim, 1),)), BOUND, Provenance("profile.nodes", {"nodes": 1})
        )
        found = known.tpr(0.01)
        # The classical envelope of (eps, delta).
        assert found.upper == pytest.approx(math.e * 0.01 + 1e-5, rel=1e-4)
        assert found.upper >= math.e * 0.01 + 1e-5
        assert found.lower == pytest.approx(0.01)
        with pytest.raises(InvalidParameterError, match=r"tail must be above 1\.0+\d*e-05, what delta stays"):
            known.gaussian_mu()
        assert known.gaussian_mu(1e-4).upper < 3.0

    @pytest.mark.parametrize("mu", [30.0, 41.0, 400.0])
    def test_a_large_gaussian_release_has_its_own_mu(self, mu):
        for tail in (1e-12, 0.01, 1e-290):
            found = gaussian(mu).gaussian_mu(tail)
            assert found.lower <= found.upper <= mu * (1.0 + 1e-12)
            eps = mu**2 / 2
            value = norm.cdf(mu / 2 - eps / mu) - math.exp(norm.logcdf(-mu / 2 - eps / mu) + eps)
            least = dm.profile(dm.Identity(1), 1.0 / found.lower, participation=ONCE).delta(eps).lower
            assert least <= value - tail * (1.0 - 1e-6)
            assert found.lower >= mu - 4.0 * tail - 1e-6

    def test_what_is_not_followed_is_no_fault_of_the_tail(self):
        large = gaussian(45.0).compose(poisson())
        with pytest.raises(NumericalError, match="not followed beyond eps 600"):
            large.gaussian_mu()
        assert dm.GaussianTarget(41.0).risk(gaussian(41.0)).upper == pytest.approx(41.0)


@pytest.mark.parametrize(
    ("ask", "name"),
    [
        (lambda one: one.tpr(-0.1), "fpr"),
        (lambda one: one.tradeoff(1.5), "alpha"),
        (lambda one: one.bayes_success(math.nan), "prior"),
        (lambda one: one.reconstruction(2.0), "baseline"),
        (lambda one: one.gaussian_mu(0.0), "tail"),
        (lambda one: one.hockey_stick(1.0, add=3), "add"),
    ],
)
def test_bad_input(ask, name):
    with pytest.raises(InvalidParameterError, match=name):
        ask(gaussian(1.0))


class TestOtherPackages:
    """Two packages read trade-off curves off a lattice of dp_accounting.

    What they read there may be a third of a per cent below the best tangent to the lattice's own curve.
    """

    @staticmethod
    def lattice():
        from dp_accounting.pld import privacy_loss_distribution as pld

        one = pld.from_gaussian_mechanism(0.9, sampling_prob=0.02, value_discretization_interval=1e-4)
        return one.self_compose(200)

    @pytest.mark.slow
    @pytest.mark.exhaustive
    def test_dp_accounting(self):
        """The best tangent to its curve at a grid of eps: an upper bound as well, from another lattice."""
        lattice = self.lattice()
        for fpr in (1e-3, 0.01, 0.2):
            grid = np.linspace(-1.0, 3.0, 801)
            theirs = min(lattice.get_delta_for_epsilon(eps) + math.exp(eps) * fpr for eps in grid)
            found = poisson().tpr(fpr)
            assert found.lower <= theirs
            assert found.upper == pytest.approx(theirs, rel=2e-3)

    def test_riskcal(self):
        analysis = pytest.importorskip("riskcal.analysis")
        lattice = self.lattice()
        for fpr in (1e-3, 0.01, 0.2):
            theirs = 1.0 - float(analysis.get_beta_from_pld(lattice, alpha=fpr))
            found = poisson().tpr(fpr)
            assert found.upper == pytest.approx(theirs, rel=0.01)
        assert poisson().advantage.upper == pytest.approx(
            float(analysis.get_advantage_from_pld(lattice)), rel=2e-3
        )

    def test_gdpnum(self):
        gdpnum = pytest.importorskip("gdpnum")
        theirs = gdpnum.PLDConverter(self.lattice())
        for fpr in (1e-3, 0.01):
            assert poisson().tpr(fpr).upper == pytest.approx(1.0 - theirs.get_beta(fpr), rel=0.01)

    def test_gdpnum_on_mu(self):
        gdpnum = pytest.importorskip("gdpnum")
        from dp_accounting.pld import privacy_loss_distribution as pld

        # Its mu leaves out rates of error, ours a delta: only for a Gaussian release they are the same.
        lattice = pld.from_gaussian_mechanism(2.0, value_discretization_interval=1e-4)
        theirs, _ = gdpnum.PLDConverter(lattice).get_mu_and_regret()
        assert gaussian(0.5).gaussian_mu().upper == pytest.approx(float(theirs), rel=2e-3)
