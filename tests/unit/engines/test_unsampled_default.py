"""Balls-in-Bins: a default calibration uses no samples where the plan says that sigma is nearly the same."""

import numpy as np
import pytest

import dpmech as dm
from dpmech.engines.accountant import Solution
from dpmech.engines.convex_order.accountant import DeterministicAccountant
from dpmech.engines.gaussian_mixture import dense_gram, ring_profile
from dpmech.engines.gaussian_mixture import pilots as aims
from dpmech.engines.independent_sum import BlockBound
from dpmech.exceptions import ContradictionError, NumericalError
from dpmech.schemes import accountant_for
from dpmech.schemes.balls_in_bins.accountant import deterministic_accountant
from dpmech.schemes.balls_in_bins.default import CLOSE_ENOUGH, DeterministicFirst

STRATEGY, BINS, BUDGET = dm.LambdaCGD(200, 0.5), dm.BallsInBins(100), (8.0, 1e-5)


def calibrated(strategy=STRATEGY, bins=BINS, **settings):
    return dm.calibrate_sigma(strategy, *BUDGET, participation=bins, **settings)


def foreseen(strategy, bins, eps=8.0, delta=1e-5):
    mechanism = dm.Mechanism(strategy, dm.BallsInBins(bins))
    return deterministic_accountant(strategy, bins, mechanism.sensitivity).foreseen_excess(eps, delta)


def test_it_is_the_same_whatever_the_seed_and_no_probability_is_left():
    found = [calibrated(), calibrated(), calibrated(rng=1), calibrated(rng=2)]
    assert len({cal.sigma for cal in found}) == 1
    for cal in found:
        assert cal.guarantee.kind is dm.Kind.BOUND
        assert cal.guarantee.error == 0.0
        assert cal.evidence.accountant == dm.methods.Deterministic()
        assert cal.evidence.samples is None
        assert cal.evidence.randomness is None
    assert found[0].sigma == calibrated(method=dm.methods.Deterministic()).sigma


@pytest.mark.slow
def test_its_certificate_is_verified_and_proved():
    report = dm.verify(dm.Certificate.from_json(calibrated().certificate().to_json()), rigorous=True)
    assert report.ok


def test_both_ends_of_delta_and_eps_are_by_samples_as_before():
    sigma = calibrated().sigma
    delta, eps = (
        dm.delta(STRATEGY, sigma, BUDGET[0], participation=BINS, rng=1),
        dm.epsilon(STRATEGY, sigma, BUDGET[1], participation=BINS, rng=1),
    )
    assert min(delta.lower, eps.lower) > 0.0
    assert {delta.guarantee.kind, eps.guarantee.kind} == {dm.Kind.PROBABLE}


@pytest.mark.parametrize("limited", [False, True])
def test_where_it_refuses_samples_take_over(monkeypatch, limited):
    def refuses(self, *_, **__):
        raise NumericalError("no bound on the transform")

    monkeypatch.setattr(DeterministicAccountant, "calibrate", refuses)
    if limited:
        monkeypatch.setattr(DeterministicAccountant, "foreseen_excess", lambda *_: CLOSE_ENOUGH * 1.001)
    told = []
    cal = calibrated(rng=1, progress=told.append)
    assert cal.evidence.accountant != dm.methods.Deterministic()
    assert cal.guarantee.kind is dm.Kind.PROBABLE
    assert any("samples take over" in line for line in told) is not limited


def test_both_ends_that_exclude_each_other_are_heard(monkeypatch):
    """Planted: a lower end far too high."""
    monkeypatch.setattr(BlockBound, "epsilon", lambda *_, **__: 9.0)
    with pytest.raises(ContradictionError, match=r"the lower bound 9\.0 is above the upper bound"):
        calibrated(rng=1)


@pytest.mark.parametrize(
    ("strategy", "bins", "eps", "delta"),
    [
        (dm.LambdaCGD(200, 0.5), 100, 25.0, 1e-5),
        (dm.LambdaCGD(78, 0.5), 39, 8.0, 1e-5),
        (dm.LambdaCGD(3900, 0.975), 390, 8.0, 1e-5),
        (dm.LambdaCGD(500, 0.9), 50, 1.0, 1e-5),  # where the last bins have much smaller entries
        pytest.param(dm.InverseSquareRoot(3900, 64), 390, 8.0, 1e-5, marks=pytest.mark.slow),
        pytest.param(dm.SquareRoot(3900, 390), 390, 8.0, 1e-5, marks=pytest.mark.slow),
    ],
)
def test_elsewhere_samples_stay(strategy, bins, eps, delta):
    assert foreseen(strategy, bins, eps, delta) > CLOSE_ENOUGH


@pytest.mark.parametrize(("bins", "tried"), [(40, True), (1000, True), (1001, False)])
def test_with_many_bins_samples_are_first(bins, tried):
    mechanism = dm.Mechanism(dm.LambdaCGD(2 * bins, 0.5), dm.BallsInBins(bins))
    accountant = accountant_for(mechanism, None)
    assert isinstance(accountant, DeterministicFirst)
    assert (accountant.at_once > 0.0) is tried


@pytest.mark.parametrize(
    ("eps", "delta", "tried"),
    [(0.19, 1e-5, False), (0.21, 1e-5, True), (8.0, 1e-5, True), (8.0, 1e-9, False), (21.0, 1e-5, False)],
)
def test_the_budget_says_whether_it_is_first(monkeypatch, eps, delta, tried):
    """Small eps need many transforms, small deltas a tilt, and large eps are beyond the transforms."""
    monkeypatch.setattr(DeterministicAccountant, "foreseen_excess", lambda *_: 0.0)
    monkeypatch.setattr(
        DeterministicAccountant,
        "calibrate",
        lambda self, *_, **__: Solution(0.1, dm.Bounds(0.0, eps, self.guarantee, self.by)),
    )
    monkeypatch.setattr(aims, "_AIMS", (0.006,))
    told = []
    mechanism = dm.Mechanism(dm.LambdaCGD(80, 0.5), dm.BallsInBins(40))
    found = accountant_for(mechanism, None).calibrate(eps, delta, rtol=1e-3, progress=told.append)
    assert (found.sigma == 0.1) is tried


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "bins", "eps"),
    [
        (dm.LambdaCGD(500, 0.5), 50, 1.0),
        (dm.LambdaCGD(3900, 0.9), 390, 1.0),
        (dm.LambdaCGD(3900, 0.9), 390, 0.25),
    ],
)
def test_sigma_at_small_eps_is_close_to_an_estimate_of_it(strategy, bins, eps):
    bins = dm.BallsInBins(bins)
    cal = dm.calibrate_sigma(strategy, eps, 1e-5, participation=bins, rng=1)
    assert cal.guarantee.kind is dm.Kind.BOUND
    for factor, high in ((0.995, True), (1.0, False)):
        delta = dm.delta(
            strategy, factor * cal.sigma, eps, participation=bins, method=dm.methods.Importance(0.005), rng=3
        )
        assert (delta.lower > 1e-5) is high


def far_default(monkeypatch, sigma, excess=0.0, above=0.01):
    """A default calibration whose samples would aim 1 % above, with another accountant's sigma planted."""

    def planted(self, eps, delta, *, rtol, progress):
        return Solution(sigma, dm.Bounds(0.0, eps, self.guarantee, self.by))

    monkeypatch.setattr(aims, "_AIMS", (above,))
    monkeypatch.setattr(DeterministicAccountant, "calibrate", planted)
    monkeypatch.setattr(DeterministicAccountant, "foreseen_excess", lambda *_: excess)
    told = []
    mechanism = dm.Mechanism(dm.LambdaCGD(80, 0.5), dm.BallsInBins(40))
    found = accountant_for(mechanism, None).calibrate(2.0, 1e-9, rtol=1e-3, progress=told.append)
    return found, told


@pytest.mark.parametrize(
    ("sigma", "excess", "above", "unsampled"),
    [(0.1, 0.0, 0.01, True), (0.1, 0.004, 0.01, False), (50.0, 0.0, 0.01, False), (0.1, 0.0, 0.006, False)],
)
def test_where_samples_aim_high_a_close_matrix_is_tried_first(monkeypatch, sigma, excess, above, unsampled):
    """And samples only where it is not close, or its sigma is above the one that they would aim at."""
    found, told = far_default(monkeypatch, sigma, excess, above)
    assert (found.sigma == sigma) is unsampled
    assert (found.method == dm.methods.Deterministic()) is unsampled
    assert any(line.startswith("certify:") for line in told) is not unsampled


@pytest.mark.parametrize(
    ("strategy", "bins", "eps", "delta", "close"),
    [
        (dm.LambdaCGD(3900, 0.9), 390, 2.0, 1e-12, True),
        (dm.LambdaCGD(3900, 0.5), 390, 0.1, 1e-9, True),
        (dm.SquareRoot(3900, 4), 390, 2.0, 1e-9, False),
        (dm.LambdaCGD(3900, 0.99), 390, 2.0, 1e-9, False),
        (dm.LambdaCGD(390, 0.5), 39, 2.0, 1e-9, False),
        (dm.LambdaCGD(3900, 0.5), 390, 25.0, 1e-9, False),
    ],
)
def test_which_matrices_are_close(strategy, bins, eps, delta, close):
    sensitivity = dm.Mechanism(strategy, dm.BallsInBins(bins)).sensitivity
    excess = deterministic_accountant(strategy, bins, sensitivity).foreseen_excess(eps, delta)
    assert (excess <= CLOSE_ENOUGH) is close


@pytest.mark.slow
def test_at_a_small_delta_the_default_is_1_per_cent_below_the_samples():
    budget = {"eps": 2.0, "delta": 1e-12, "participation": dm.BallsInBins(390)}
    cal = dm.calibrate_sigma(dm.LambdaCGD(3900, 0.9), **budget)
    sampled = dm.calibrate_sigma(dm.LambdaCGD(3900, 0.9), **budget, method=dm.methods.Certified(), rng=3)
    assert cal.guarantee.kind is dm.Kind.BOUND
    assert cal.sigma <= 0.99 * sampled.sigma


def test_with_many_bins_no_turn_forms_a_dense_gram_matrix(monkeypatch):
    """Its factor, and moments over all its rows, take a minute with 4000 bins."""
    mechanism = dm.Mechanism(dm.LambdaCGD(3200, 0.5), dm.BallsInBins(1600))
    accountant = accountant_for(mechanism, None)

    def formed(self, matrix):
        raise AssertionError("a dense Gram matrix")

    monkeypatch.setattr(dense_gram.DenseGram, "__init__", formed)
    made = [turn.make() for turn in accountant.others]
    assert len(made) == 5
    # Nowhere below the Gram matrix of the strategy, so that all of them stay upper bounds.
    first = ring_profile(mechanism.strategy, 1600)
    for each in made:
        assert np.all(each.gram.columns(np.array([0]))[0][:801] >= first)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "bins"),
    [
        (dm.LambdaCGD(3900, 0.9), 390),
        (dm.SquareRoot(3900, 16), 390),
        (dm.InverseSquareRoot(3900, 4), 390),
        (dm.LambdaCGD(1000, 0.5), 100),
    ],
)
def test_sigma_is_within_a_third_of_a_per_cent_of_that_by_samples(strategy, bins):
    cal = calibrated(strategy, dm.BallsInBins(bins))
    sampled = calibrated(strategy, dm.BallsInBins(bins), method=dm.methods.Certified(), rng=3)
    assert cal.evidence.accountant == dm.methods.Deterministic()
    assert cal.sigma <= 1.003 * sampled.sigma
    # independent of transforms: what importance sampling says of it
    estimate = dm.delta(
        strategy, cal.sigma, 8.0, participation=dm.BallsInBins(bins), method=dm.methods.Importance(), rng=4
    )
    assert estimate.lower <= BUDGET[1]
