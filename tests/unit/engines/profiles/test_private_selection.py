"""The best of a random number of runs against exact laws: every order of outputs, every number of runs."""

import decimal
import itertools
import math

import numpy as np
import pytest
from scipy import special, stats

import dpmech as dm
from dpmech.engines.profiles import private_selection as module
from dpmech.engines.profiles.composition import Composition
from dpmech.engines.profiles.curves import Curve, Nodes
from dpmech.engines.profiles.private_selection import rank_atoms, selected_curve
from tests.support.finite_mechanisms import curve, kinks, random_pair

LAWS = [
    dm.ledgers.PoissonRuns(0.4),
    dm.ledgers.PoissonRuns(7.0),
    dm.ledgers.NegativeBinomialRuns(1.0, 0.1),
    dm.ledgers.NegativeBinomialRuns(0.0, 0.05),
    dm.ledgers.NegativeBinomialRuns(-0.6, 0.02),
    dm.ledgers.NegativeBinomialRuns(2.5, 0.3),
]
EPS = np.linspace(0.0, 6.0, 25)


def probabilities(law, most=4000):
    """P(K = k) for k = 0, 1, ..., by closed forms."""
    k = np.arange(most)
    if isinstance(law, dm.ledgers.PoissonRuns):
        return stats.poisson.pmf(k, law.mean_runs)
    with np.errstate(divide="ignore", invalid="ignore"):
        if law.shape == 0.0:
            found = stats.logser.pmf(k, 1.0 - law.gamma)
        else:
            logs = special.gammaln(k + law.shape) - special.gammaln(k + 1) + k * math.log1p(-law.gamma)
            scale = abs(special.gamma(law.shape)) * abs(law.gamma**-law.shape - 1.0)
            found = np.exp(logs) / scale
    found[0] = 0.0
    return found


def best_of(p, order, numbers):
    """The law of the best output of a random number of runs; best first in `order`. The last is "none"."""
    law = np.zeros(p.size + 1)
    law[-1] = numbers[0]
    better = 0.0
    k = np.arange(1, numbers.size)
    for outcome in order:
        # All runs are this or worse, and not all are worse.
        low = max(0.0, 1.0 - better - p[outcome])
        law[outcome] = numbers[1:] @ ((1.0 - better) ** k - low**k)
        better += p[outcome]
    return law


def exact_curve(p, q):
    """Known at every kink, where the hull loses nothing."""
    at = np.unique(np.abs(np.concatenate([kinks(p, q), [0.0]])))
    sides = [np.array([curve(*pair, one) for one in at]) for pair in ((p, q), (q, p))]
    return Curve(*(Nodes.of(at, side * (1.0 - 1e-12), side * (1.0 + 1e-12)) for side in sides))


def worst(p, q, law):
    """The largest delta at every eps that some order of the outputs has."""
    numbers = probabilities(law)
    pairs = [
        (best_of(p, order, numbers), best_of(q, order, numbers))
        for order in itertools.permutations(range(p.size))
    ]
    return np.array([max(curve(*pair, one) for pair in pairs) for one in EPS])


def bound(p, q, law):
    found = selected_curve(Composition(curves=((exact_curve(p, q), 1),)), law, 0.05)
    return found.atoms(add=False).deltas(EPS), found.atoms(add=True).deltas(EPS)


@pytest.mark.parametrize("outcomes", [3, 4, pytest.param(5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_never_below_the_exact_law_of_the_best_and_not_far_above(law, outcomes):
    rng = np.random.default_rng(4)
    near = 0
    for _ in range(2):
        p, q = random_pair(rng, outcomes)
        for pair, found in zip(((p, q), (q, p)), bound(p, q, law), strict=True):
            truth = worst(*pair, law)
            assert np.all(found >= truth * (1.0 - 1e-9))
            near += int(np.sum((found < 1.0) & (truth > 1e-9) & (found < 2.0 * truth)))
    assert near >= 3


def test_a_bound_that_leaves_out_the_rank_is_found(monkeypatch):
    monkeypatch.setattr(module, "_powers", lambda at, *_: at.copy())
    fell = 0
    rng = np.random.default_rng(4)
    for _ in range(4):
        p, q = random_pair(rng, 4)
        for pair, found in zip(((p, q), (q, p)), bound(p, q, LAWS[2]), strict=True):
            fell += bool(np.any(found < worst(*pair, LAWS[2]) * (1.0 - 1e-6)))
    assert fell >= 3


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_the_mean_number_of_runs_is_attained_by_rare_outputs(law):
    """An output that both laws seldom give, if it is the best, is released E K times as often."""
    p, q = np.array([0.5, 0.49999, 1e-5]), np.array([0.5, 0.499999, 1e-6])
    found, truth = bound(p, q, law)[0], worst(p, q, law)
    assert np.all(found >= truth * (1.0 - 1e-9))
    inner = (EPS > 0.2) & (EPS < 1.6)
    assert inner.sum() >= 5
    assert np.all(0.98 * found[inner] < truth[inner])


@pytest.mark.parametrize("mean", [100.0, 800.0, 2000.0, 1e5])
@pytest.mark.parametrize("seed", [1, 2])
def test_many_poisson_runs(mean, seed):
    """How often each output comes is Poisson, independently: the law of the best has a closed form."""
    p, q = random_pair(np.random.default_rng(seed), 5)
    # The best outputs are rare, so that several may be the best of so many.
    rare = np.array([0.3, 1.0, 3.0]) / mean
    p, q = np.append(rare, (1.0 - rare.sum()) * p), np.append(2.0 * rare, (1.0 - 2.0 * rare.sum()) * q)
    laws = [-np.diff(np.exp(-mean * np.append(0.0, np.cumsum(one)))) for one in (p, q)]
    found = bound(p, q, dm.ledgers.PoissonRuns(mean))
    for pair, upper in zip((laws, laws[::-1]), found, strict=True):
        truth = np.array([curve(*pair, one) for one in EPS])
        assert truth.max() > 0.1
        assert np.all(upper >= truth * (1.0 - 1e-9))


def test_many_runs_of_a_gaussian_release():
    """The best of 2000 costs more than one run, where its rank alone hardly bounds anything."""
    once = dm.profile(dm.Identity(1), 1.0, participation=dm.SingleParticipation())
    best = once.private_selection(dm.ledgers.PoissonRuns(2000.0))
    # A score above x is seen in some run: a test of the released result.
    x = stats.norm.isf(1e-3)
    seen = [-math.expm1(-2000.0 * stats.norm.sf(x - shift)) for shift in (0.0, 1.0)]
    for eps in (0.0, 0.1, 1.0, 3.0):
        truth = max((1.0 - seen[0]) - math.exp(eps) * (1.0 - seen[1]), seen[1] - math.exp(eps) * seen[0])
        assert best.delta(eps).upper >= truth
    assert best.delta(1.5).upper >= once.delta(1.5).lower


def test_many_runs_of_a_release_that_says_nothing():
    """With next to no loss the best of many has next to none, though weights of late ranks vanish."""
    once = dm.profile(dm.Identity(1), 1e8, participation=dm.SingleParticipation())
    assert once.private_selection(dm.ledgers.PoissonRuns(900.0)).epsilon(1e-3).upper < 0.1


@pytest.mark.parametrize(("shape", "gamma"), [(-0.99, 1.1e-300), (-0.95, 1e-90), (-0.5, 1e-9), (1e-12, 1e-4)])
def test_means_against_decimals(shape, gamma):
    with decimal.localcontext(prec=60):
        one, other = decimal.Decimal(shape), decimal.Decimal(gamma)
        mean = one * (1 - other) / (other * (1 - other**one))
    assert dm.ledgers.NegativeBinomialRuns(shape, gamma).mean == pytest.approx(float(mean), rel=1e-11)


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_the_rank_is_a_loss_of_its_own(law):
    p, q = random_pair(np.random.default_rng(3), 5)
    rank = rank_atoms(exact_curve(p, q).atoms(add=True), law)
    assert rank.masses.sum() + rank.infinite == pytest.approx(1.0, abs=1e-6)
    with np.errstate(divide="ignore"):
        order = np.argsort(-(q / p))
    s = np.linspace(0.0, 1.0, 30_001)
    # The best test of Q against P, by Neyman and Pearson.
    power = np.interp(s, np.append(0.0, np.cumsum(p[order])), np.append(0.0, np.cumsum(q[order])))
    power[0] = q[p == 0.0].sum()
    own, rival = np.exp(law.log_weight(s)), np.exp(law.log_weight(power))
    for eps in (-1.0, 0.0, 0.3, 1.0, 2.0):
        truth = max(0.0, float(np.max(own - math.exp(eps) * rival)))
        assert truth * (1.0 - 1e-9) <= rank.delta(eps) <= truth * 1.02 + 2e-3


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_numbers_are_drawn_from_their_law(law):
    numbers = probabilities(law)
    assert numbers.sum() == pytest.approx(1.0, abs=1e-9)
    assert law.mean == pytest.approx(float(numbers @ np.arange(numbers.size)), rel=1e-7)
    draws = np.array([law.draw(np.random.default_rng(seed)) for seed in range(3000)])
    cells = np.append(np.arange(0, 12), numbers.size)
    seen = np.histogram(draws, cells)[0]
    expected = 3000 * np.array([numbers[a:b].sum() for a, b in itertools.pairwise(cells)])
    used = expected > 5.0
    statistic = float(np.sum((seen[used] - expected[used]) ** 2 / expected[used]))
    assert stats.chi2.sf(statistic, int(used.sum())) > 1e-6
    if isinstance(law, dm.ledgers.NegativeBinomialRuns):
        assert draws.min() >= 1
    # Weights are those of f'.
    s = np.array([0.0, 0.1, 0.7, 1.0])
    k = np.arange(1, numbers.size)
    slopes = np.array([numbers[1:] @ (k * (1.0 - one) ** (k - 1)) for one in s])
    assert np.exp(law.log_weight(s)) == pytest.approx(slopes / slopes[0], rel=1e-6)


def test_draws_without_a_generator_differ():
    law = dm.ledgers.NegativeBinomialRuns.of_mean(1000.0)
    assert len({law.draw() for _ in range(20)}) > 3
    assert dm.ledgers.PoissonRuns(1e4).draw() > 8000


@pytest.mark.parametrize("mean", [1.01, 3.0, 20.0, 5e4])
@pytest.mark.parametrize("shape", [-0.9, 0.0, 1e-9, 1.0, 4.0])
def test_laws_are_found_by_their_mean(mean, shape):
    assert dm.ledgers.NegativeBinomialRuns.of_mean(mean, shape=shape).mean == pytest.approx(mean, rel=1e-9)


def test_a_gaussian_release():
    """One run of mean 1 costs at least itself; more runs cost more; the error of a sample stays."""
    once = dm.profile(dm.Identity(1), 2.0, participation=dm.SingleParticipation())
    few, many = (
        once.private_selection(dm.ledgers.NegativeBinomialRuns.of_mean(mean)) for mean in (2.0, 20.0)
    )
    assert once.epsilon(1e-6).upper < few.epsilon(1e-6).upper < many.epsilon(1e-6).upper
    # At most a factor E K of delta and the shift that is known for all.
    rate = min(math.exp(e) + 19.0 * once.delta(e).upper for e in np.linspace(0.0, 3.0, 40))
    geometric = once.private_selection(dm.ledgers.NegativeBinomialRuns(1.0, 0.05))
    for eps in (0.5, 1.0, 2.0):
        assert geometric.delta(eps + 2.0 * math.log(rate)).upper <= 20.0 * once.delta(eps).upper * 1.03
    assert many.guarantee.kind is dm.Kind.BOUND
    assert "secret number of runs" in str(many.by)
    assert many.epsilon(1e-6).lower == 0.0
    assert many.compose(once).epsilon(1e-6).upper > many.epsilon(1e-6).upper


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: dm.ledgers.PoissonRuns(0.0), "mean_runs"),
        (lambda: dm.ledgers.PoissonRuns(1e6), "mean_runs"),
        (lambda: dm.ledgers.NegativeBinomialRuns(-1.0, 0.1), "shape"),
        (lambda: dm.ledgers.NegativeBinomialRuns(0.0, 1.0), "gamma"),
        (lambda: dm.ledgers.NegativeBinomialRuns(1.0, 1e-9), "gamma"),
        (lambda: dm.ledgers.NegativeBinomialRuns(-0.99, 2.3e-308), "gamma"),
        (lambda: dm.ledgers.NegativeBinomialRuns.of_mean(1.0), "mean"),
        (lambda: dm.ledgers.NegativeBinomialRuns.of_mean(20.0, shape=-0.9999), "mean"),
        (lambda: dm.profile(dm.Identity(1), 1.0).private_selection(20), "runs"),
    ],
)
def test_bad_input(make, name):
    with pytest.raises(dm.InvalidParameterError, match=name):
        make()
