"""The certified accountant: how beta is spent, the order of tries, and answers that are bounds."""

import math
from fractions import Fraction

import numpy as np
import pytest

import dpmech as dm
from dpmech.engines.gaussian import gaussian_epsilon
from dpmech.engines.gaussian_mixture import certified_accountant
from dpmech.engines.gaussian_mixture import certified_bound as bound_module
from dpmech.engines.gaussian_mixture import pilots as aims
from dpmech.engines.gaussian_mixture import samples as blocks
from dpmech.engines.gaussian_mixture.certified_accountant import _FLOOR_SHARE, _TRIES, CertifiedAccountant
from dpmech.engines.gaussian_mixture.certified_accountant import CertifiedAccountant as Accountant
from dpmech.engines.gaussian_mixture.dense_gram import DenseGram
from dpmech.engines.gaussian_mixture.streams import Stage
from dpmech.exceptions import NumericalError
from dpmech.numerics import Bounds
from tests.support.bins_oracles import quadrature
from tests.support.quick_cases import slow_but

TWO = np.array([[1.0, 0.3], [0.3, 1.2]])
BETA, DELTA = 1e-4, 1e-3


def accountant(matrix=TWO, seed=1, beta=BETA):
    largest = math.sqrt(float(np.max(np.diag(matrix))))
    return Accountant(
        DenseGram(matrix),
        Bounds.bracket(largest, largest, dm.numerics.Provenance("one")),
        dm.methods.Certified(beta),
        np.random.default_rng(seed),
        lower=DenseGram(matrix),
    )


def exact_delta(sigma, eps, matrix=TWO):
    return max(quadrature(matrix / sigma**2, eps))


def calibrated(one):
    return one.calibrate(1.0, DELTA, rtol=1e-3, progress=lambda line: None)


CALLS = {
    "delta": lambda one: one.delta(1.0, 1.0, tolerance=1e-3),
    "epsilon": lambda one: one.epsilon(1.0, DELTA, tolerance=1e-3),
    "calibrate": calibrated,
}


def test_the_parts_of_beta_are_at_most_all_of_it():
    assert sum(Fraction(share) for _, share in _TRIES) + Fraction(_FLOOR_SHARE) <= 1
    assert [further for further, _ in _TRIES] == sorted(further for further, _ in _TRIES)


@pytest.fixture
def spent(monkeypatch):
    """Every sequential test, by the beta that it was given."""
    found, kept = {}, []
    for kind in (bound_module.UpperTest, bound_module.LowerTest):
        make, add = kind.__init__, kind.add

        def made(self, log_unit, beta, goal, pilot, *, make=make, rounding):
            self.beta_given = beta
            make(self, log_unit, beta, goal, pilot, rounding=rounding)

        def noted(self, log_weights, add=add):
            kept.append(self)
            found[id(self)] = self.beta_given
            add(self, log_weights)

        monkeypatch.setattr(kind, "__init__", made)
        monkeypatch.setattr(kind, "add", noted)
    return found


@pytest.mark.parametrize(
    ("name", "failures"),
    slow_but([(name, count) for name in ("epsilon", "calibrate") for count in (0, 1, 3, len(_TRIES))], 1, 7),
)
def test_all_tries_and_the_lower_end_spend_at_most_beta(spent, monkeypatch, name, failures):
    points = []
    true = certified_accountant.certify_delta

    def refused(gram, eps, threshold, **options):
        points.append((gram, eps))
        found = true(gram, eps, threshold, **options)
        refuse = len(points) <= failures
        worst = bound_module.CertifiedDirection(1.0, 0)
        return bound_module.CertifiedBound(worst, worst) if refuse else found

    monkeypatch.setattr(certified_accountant, "certify_delta", refused)
    if failures == len(_TRIES):
        with pytest.raises(dm.NumericalError, match="could be certified"):
            CALLS[name](accountant())
    else:
        found = CALLS[name](accountant())
        # What is handed out is what was proved, to the last bit.
        gram, eps = points[-1]
        if name == "epsilon":
            assert found.upper == eps
        else:
            assert np.array_equal(gram.diagonal, accountant().gram.scaled(found.sigma**-2).diagonal)
    assert len(points) >= min(failures + 1, len(_TRIES))
    assert sum(Fraction(beta) for beta in spent.values()) <= Fraction(BETA)
    # The order is fixed beforehand.
    if name == "epsilon":
        places = [math.log(eps) for _, eps in points]
    else:
        places = [-0.5 * math.log(gram.diagonal[0]) for gram, _ in points]
    for place, (further, _) in zip(places, _TRIES, strict=False):
        assert place - places[0] == pytest.approx(further, abs=1e-9)


def test_bounds_on_delta_spend_at_most_beta(spent):
    CALLS["delta"](accountant())
    assert len(spent) == 3
    assert sum(Fraction(beta) for beta in spent.values()) <= Fraction(BETA)


@pytest.mark.parametrize("name", CALLS)
def test_no_sample_that_counts_is_drawn_twice_or_was_looked_at(monkeypatch, name):
    """Main streams are drawn once each, under seeds that no pilot of the call had."""
    drawn = []
    true = blocks.stage_seed
    monkeypatch.setattr(blocks, "stage_seed", lambda *key: drawn.append(tuple(key)) or true(*key))
    monkeypatch.setattr(blocks.os, "sched_getaffinity", lambda _: {0}, raising=False)
    CALLS[name](accountant())
    mains = [key for key in drawn if key[1] in (Stage.REMOVE_MAIN, Stage.ADD_MAIN)]
    assert mains
    assert len(set(mains)) == len(mains)
    if name != "delta":
        assert not {key[0] for key in mains} & {key[0] for key in drawn if key not in set(mains)}


def test_bounds_hold_the_exact_values():
    one = accountant()
    for sigma, eps in ((1.0, 1.0), (0.6, 3.0), (3.0, 0.1), (2.0, 1e-5)):
        found = one.delta(sigma, eps, tolerance=1e-3)
        exact = exact_delta(sigma, eps)
        assert found.lower * (1.0 - 1e-6) <= exact <= found.upper * (1.0 + 1e-6)
        assert found.upper < 1.2 * exact
        assert found.lower > exact / 1.2
        assert found.guarantee == dm.Guarantee(dm.Kind.PROBABLE, BETA)
    for sigma, delta in ((1.0, 1e-3), (0.6, 1e-5)):
        found = one.epsilon(sigma, delta, tolerance=1e-3)
        assert exact_delta(sigma, found.upper) <= delta * (1.0 + 1e-6)
        assert exact_delta(sigma, found.lower) >= delta * (1.0 - 1e-6)
        assert 0.0 < found.upper / 1.15 < found.lower < found.upper


def test_a_calibration_is_proved_and_little_above():
    found = calibrated(accountant())
    assert exact_delta(found.sigma, 1.0) <= DELTA * (1.0 + 1e-6)
    assert exact_delta(0.98 * found.sigma, 1.0) > DELTA
    # Beta of supplied numbers is outside delta, so that the lower end is that of the same delta.
    assert found.achieved.upper == 1.0
    assert exact_delta(found.sigma, found.achieved.lower) >= DELTA * (1.0 - 1e-6)
    assert 0.9 < found.achieved.lower < 1.0
    assert calibrated(accountant()).sigma == found.sigma
    assert calibrated(accountant(seed=2)).sigma != found.sigma


@pytest.mark.parametrize("sigma", [1e3, 1e6, 1e12])
def test_very_large_noise(sigma):
    one = accountant()
    found = one.delta(sigma, 1.0, tolerance=1e-3)
    assert 0.0 <= found.lower <= found.upper < 1e-200
    assert found.upper > 0.0
    eps = one.epsilon(sigma, 1e-3, tolerance=1e-3)
    unamplified = gaussian_epsilon(sigma / math.sqrt(1.2), 1e-3, safe=True)
    assert 0.0 <= eps.lower <= eps.upper <= max(unamplified, 1e-4)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_eps_that_is_next_to_nothing():
    """Delta hardly depends on it, so that no proof is found, and no amplification is what is left."""
    sigma, delta = 300.0, 1e-3
    found = accountant().epsilon(sigma, delta, tolerance=1e-3)
    assert found.lower <= found.upper <= gaussian_epsilon(sigma / math.sqrt(1.2), delta, safe=True)
    assert exact_delta(sigma, found.upper) <= delta


def test_eps_below_what_is_sampled():
    one, sigma = accountant(), 300.0
    bounds = one.delta(sigma, 1e-6, tolerance=1e-3)
    assert bounds.lower <= exact_delta(sigma, 1e-6) * (1.0 + 1e-6)
    assert exact_delta(sigma, 1e-6) <= bounds.upper * (1.0 + 1e-6)


@pytest.mark.slow
def test_a_longer_reach_locates_nothing_again(monkeypatch):
    short = accountant()
    short.reach = 1e-5
    with pytest.raises(aims.FarAimError):
        calibrated(short)
    located, at = [], aims.Pilots.at
    monkeypatch.setattr(aims.Pilots, "at", lambda *one, **more: located.append(one) or at(*one, **more))
    found = calibrated(short.reaching(math.inf))
    assert not located
    assert exact_delta(found.sigma, 1.0) <= DELTA
    assert short.reach == 1e-5
    calibrated(accountant())
    assert located


def test_where_a_close_proof_takes_many_draws_a_sigma_further_up_is_proved(monkeypatch):
    near = calibrated(accountant())
    assert near.excess <= 0.08
    monkeypatch.setattr(certified_accountant, "_LEAST_DRAWS", 30.0)
    monkeypatch.setattr(CertifiedAccountant, "work", 1.0)
    found = calibrated(accountant())
    # A proof takes some hundred draws whatever delta is; fewer are not to be had.
    assert 0.08 < found.excess < 0.6
    assert near.sigma * 1.08 < found.sigma < near.sigma * math.exp(found.excess + 0.05)
    assert exact_delta(found.sigma, 1.0) < DELTA / 2
    assert found.samples <= near.samples
    monkeypatch.setattr(certified_accountant, "_LEAST_DRAWS", 1.0)
    # At last the bound on the weights is below delta itself: then none is drawn.
    assert calibrated(accountant()).samples == 0
    monkeypatch.setattr(aims, "_FAR_AIMS", ())
    with pytest.raises(NumericalError, match="would take some"):
        calibrated(accountant())


@pytest.mark.parametrize("participation", [dm.RandomAllocation(1), dm.BallsInBins(2)])
def test_a_delta_below_float64_needs_no_samples(participation):
    # A loss of 20 is 41 standard deviations of the noise from its mean.
    certified = dm.methods.Certified()
    found = dm.delta(dm.Identity(2), 2.06, 20.0, participation=participation, method=certified, rng=1)
    assert 0.0 == found.lower < found.upper <= 1e-300
