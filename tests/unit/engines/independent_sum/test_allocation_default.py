"""Random allocation by default: blocks of steps, but samples where the plan says that these save noise."""

import pytest

import dpmech as dm
from dpmech.engines import CertifiedAccountant
from dpmech.exceptions import ContradictionError, NumericalError
from dpmech.schemes import accountant_for, method_among
from dpmech.schemes.random_allocation import accountant as module

CERTIFIED, PLD = dm.methods.Certified(), dm.methods.Pld()
FEW = dm.RandomAllocation(
    3
)  # of 12 steps, where blocks are 0.2 % above the samples at eps 1 and 5 % at eps 8


def calibrated(eps, **settings):
    return dm.calibrate_sigma(dm.Identity(12), eps, 1e-5, participation=FEW, **settings)


def excess(n, k, eps, delta, sigma, cycle=1):
    mechanism = dm.Mechanism(dm.Identity(n), dm.RandomAllocation(k, cycle=cycle))
    return accountant_for(mechanism, None).excess(sigma, eps, delta)


@pytest.mark.slow
def test_where_blocks_are_as_good_no_sample_is_drawn():
    found = [calibrated(1.0), calibrated(1.0, rng=1), calibrated(1.0, method=PLD)]
    assert len({cal.sigma for cal in found}) == 1
    for cal in found:
        assert (cal.evidence.accountant, cal.guarantee.error) == (PLD, 0.0)
        assert cal.evidence.samples is None


@pytest.mark.slow
def test_where_samples_need_less_noise_they_are_drawn():
    cal, blocks = calibrated(8.0), calibrated(8.0, method=PLD)
    assert cal.evidence.accountant == CERTIFIED.settled(1e-5)
    assert (cal.guarantee.kind, cal.guarantee.inside_delta) == (dm.Kind.PROBABLE, True)
    assert 0.94 < cal.sigma / blocks.sigma < 0.96
    assert dm.verify(cal.certificate()).ok
    assert calibrated(8.0, rtol=0.05).evidence.accountant == PLD  # who asks for so little gets no samples


@pytest.mark.parametrize(
    ("n", "k", "eps", "delta", "sigma", "least", "most"),
    [
        # The noise of the blocks; by how much samples need less.
        (12, 3, 1.0, 1e-5, 3.30085, 0.002, 0.012),
        (12, 3, 8.0, 1e-5, 0.75899, 0.05, 0.075),
        (100, 10, 1.0, 1e-5, 3.79386, 0.0, 0.012),
        (100, 10, 2.0, 1e-5, 2.11175, 0.0, 0.012),
        (100, 10, 4.0, 1e-6, 1.38637, 0.0145, 0.02),
        (100, 10, 8.0, 1e-10, 1.11072, 0.032, 0.04),
        (1000, 5, 2.0, 1e-6, 0.78858, 0.0, 0.012),
        (10000, 200, 8.0, 1e-6, 1.47128, 0.0, 0.012),
        (100, 1, 8.0, 1e-10, 0.55707, 0.0, 0.0),
        (100, 10, 800.0, 1e-5, 0.05, 0.0, 0.0),
    ],
)
def test_the_plan_decides(n, k, eps, delta, sigma, least, most):
    found = excess(n, k, eps, delta, sigma)
    assert least <= found <= most
    assert excess(3 * n, k, eps, delta, sigma, cycle=3) == found


@pytest.mark.slow
def test_the_excess_is_that_of_the_lower_end():
    """Against a search for the noise at which the lower end of the interval is eps."""
    sigma = calibrated(8.0, method=PLD).sigma
    low, high = 0.9 * sigma, sigma
    for _ in range(9):
        middle = (low + high) / 2
        if dm.epsilon(dm.Identity(12), middle, 1e-5, participation=FEW).lower > 8.0:
            low = middle
        else:
            high = middle
    assert excess(12, 3, 8.0, 1e-5, sigma) == pytest.approx(1.0 - low / sigma, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("error", [NumericalError("too far"), OverflowError("too large")])
def test_where_samples_refuse_blocks_answer(monkeypatch, error):
    def refuses(self, *_, **__):
        raise error

    monkeypatch.setattr(CertifiedAccountant, "calibrate", refuses)
    told = []
    cal = calibrated(8.0, progress=told.append)
    assert cal.evidence.accountant == PLD
    assert any("blocks of steps answer" in line for line in told)


def test_samples_that_take_too_long_are_left(monkeypatch):
    monkeypatch.setattr(module, "_SECONDS", 1e-6)
    assert calibrated(8.0).evidence.accountant == PLD


@pytest.mark.slow
def test_a_contradiction_is_heard(monkeypatch):
    def contradicts(self, *_, **__):
        raise ContradictionError("the lower bound is above the upper bound")

    monkeypatch.setattr(CertifiedAccountant, "calibrate", contradicts)
    with pytest.raises(ContradictionError):
        calibrated(8.0)


@pytest.mark.slow
def test_samples_that_need_more_noise_are_left(monkeypatch):
    monkeypatch.setattr(module, "_WORTH", -1.0)
    cal = dm.calibrate_sigma(dm.Identity(12), 0.5, 1e-5, participation=dm.RandomAllocation(1))
    assert cal.evidence.accountant == PLD


@pytest.mark.slow
def test_one_of_several_calls_has_its_share_of_beta():
    share = method_among(FEW, None, 3)
    assert share == dm.methods.Certified(calls=3)
    assert method_among(FEW, None, 1) is None
    assert method_among(FEW, PLD, 3) == PLD
    cal = calibrated(8.0, method=share)
    assert cal.evidence.accountant == share.settled(1e-5)
    assert calibrated(1.0, method=share).evidence.accountant == PLD
    every = dm.calibrate_sigma(dm.Identity(3), 8.0, 1e-5, participation=FEW, method=share)
    assert every.guarantee.error == 0.0


@pytest.mark.slow
def test_evaluations_draw_no_samples():
    for found in (
        dm.delta(dm.Identity(12), 0.72, 8.0, participation=FEW),
        dm.epsilon(dm.Identity(12), 0.72, 1e-5, participation=FEW),
        dm.certify_sigma(dm.Identity(12), 0.72, delta=1e-5, participation=FEW),
    ):
        assert found.guarantee.error == 0.0
