"""Unsampled patterns of users with several examples: by brute force over all placements of all examples."""

import dataclasses
import itertools

import numpy as np
import pytest

import dpmech as dm
from dpmech.certificates.claim import with_checksum
from dpmech.checker import Kind


def placements(n, min_sep, most):
    """Every set of at most `most` steps of n that are `min_sep` apart, as rows of zeros and ones."""
    for size in range(1, most + 1):
        for steps in itertools.combinations(range(n), size):
            if all(later - earlier >= min_sep for earlier, later in itertools.pairwise(steps)):
                yield np.isin(np.arange(n), steps).astype(float)


CASES = [
    (dm.LambdaCGD(8, 0.7), 3, None, 2),
    (dm.Identity(7), 2, 3, 3),
    (dm.SquareRoot(10, 3), 4, None, 2),
    (dm.BLT(6, [0.8], [0.3]), 1, 2, 2),
    (dm.Diagonal([1.0, 3.0, 2.0, 0.5]), 4, 1, 3),
]


@pytest.mark.parametrize(("strategy", "min_sep", "most", "m"), CASES, ids=lambda value: str(value)[:20])
def test_no_placement_of_m_examples_costs_more_than_m_alike(strategy, min_sep, most, m):
    """Of nonnegative C: gradients along one line, every example in every set of steps it may join."""
    n, dense = strategy.n, strategy.to_dense()
    fitting = -(-n // min_sep)
    images = np.array([dense @ row for row in placements(n, min_sep, min(most or fitting, fitting))])
    worst = 0.0
    for chosen in itertools.combinations_with_replacement(range(len(images)), m - 1):
        sums = images + images[list(chosen)].sum(axis=0)
        worst = max(worst, float(np.sqrt((sums**2).sum(axis=1).max())))
    found = dm.sensitivity(strategy, dm.MinSep(min_sep, most, max_examples_per_user=m))
    assert found.lower <= worst * (1 + 1e-12)
    assert worst <= found.upper * (1 + 1e-12)
    assert found.upper == pytest.approx(m * dm.sensitivity(strategy, dm.MinSep(min_sep, most)).upper)
    assert found.upper == pytest.approx(worst, rel=1e-9)


def test_with_signs_and_angles_the_bound_holds_too():
    """C of both signs, and gradients in the plane: found by random search, never above, and close."""
    strategy, rng = dm.BandedInverse(6, [1.0, -0.9, 0.6]), np.random.default_rng(4)
    dense, rows = strategy.to_dense(), list(placements(6, 2, 2))
    assert dense.min() < 0.0
    found = dm.sensitivity(strategy, dm.MinSep(2, 2, max_examples_per_user=2))
    worst = 0.0
    for first, second in itertools.combinations_with_replacement(rows, 2):
        for _ in range(40):
            one, other = rng.standard_normal((2, 6, 2))
            if rng.random() < 0.5:  # along one line
                one, other = np.sign(one[:, :1]) * [1.0, 0.0], np.sign(other[:, :1]) * [1.0, 0.0]
            one, other = (given / np.linalg.norm(given, axis=1, keepdims=True) for given in (one, other))
            worst = max(worst, np.linalg.norm(dense @ (first[:, None] * one + second[:, None] * other)))
    assert 0.9 * found.lower < worst <= found.upper * (1 + 1e-12)


def test_replaced_users_may_differ_by_twice_as_much():
    strategy, at = dm.LambdaCGD(8, 0.7), dm.MinSep(3, max_examples_per_user=2)
    one = dm.sensitivity(strategy, at)
    assert dm.sensitivity(strategy, at, adjacency=dm.Adjacency.REPLACE_ONE).upper == 2.0 * one.upper


@pytest.mark.parametrize("adjacency", list(dm.Adjacency))
def test_the_checker_counts_examples_too(adjacency):
    cal = dm.calibrate_sigma(
        dm.LambdaCGD(20, 0.7),
        2.0,
        1e-5,
        participation=dm.MinSep(5, max_examples_per_user=3),
        adjacency=adjacency,
    )
    assert dm.verify(cal.certificate()).claim is Kind.PROVED
    less = with_checksum(dataclasses.replace(cal, sigma=cal.sigma * (1.0 - 1e-6)))
    assert dm.verify(less.certificate()).claim is Kind.REFUTED


def test_one_example_is_the_claim_about_examples_and_others_do_not_change():
    strategy = dm.LambdaCGD(12, 0.8)
    plain = dm.calibrate_sigma(strategy, 2.0, 1e-5, participation=dm.MinSep(4))
    one = dm.calibrate_sigma(strategy, 2.0, 1e-5, participation=dm.MinSep(4, max_examples_per_user=1))
    five = dm.calibrate_sigma(strategy, 2.0, 1e-5, participation=dm.MinSep(4, max_examples_per_user=5))
    # Users who take part as wholes, once each, need no more.
    whole = dm.calibrate_sigma(dm.Mechanism(strategy, dm.MinSep(4), unit=dm.Unit.USER), 2.0, 1e-5)
    assert one.sigma == plain.sigma == whole.sigma
    assert five.sigma == pytest.approx(5.0 * plain.sigma, rel=1e-9)
    assert (one.unit, plain.unit, five.guarantee) == (dm.Unit.USER, dm.Unit.EXAMPLE, plain.guarantee)


def test_from_calibration_to_verdict(tmp_path):
    at = dm.MinSep(4, 3, max_examples_per_user=3)
    cal = dm.calibrate_sigma(dm.LambdaCGD(12, 0.7), 2.0, 1e-5, participation=at)
    cal.certificate(clip_norm=1.0).save(tmp_path / "users.json")
    again = dm.Certificate.load(tmp_path / "users.json")
    assert (again.unit, again.participation) == (dm.Unit.USER, at)
    assert "at most 3 examples of every user" in str(again)
    assert "at least 4 steps apart, and at most 3 in number" in str(again)
    assert dm.verify(again, rigorous=True).ok
    for wrong in (dm.MinSep(4, 3, max_examples_per_user=4), dm.MinSep(3, 3, max_examples_per_user=3)):
        forged = with_checksum(dataclasses.replace(cal, mechanism=dm.Mechanism(cal.strategy, wrong)))
        assert not dm.verify(forged.certificate()).ok


def test_a_run_with_one_example_more_than_stated_is_found_out():
    plan = dm.LambdaCGD(6, 0.5)
    cal = dm.calibrate_sigma(plan, 1.0, 0.05, participation=dm.MinSep(3, max_examples_per_user=2))
    found = {}
    for m in (2, 3):
        at = dm.MinSep(3, max_examples_per_user=m)
        found[m] = dm.audits.empirical_epsilon(
            plan, cal.sigma, 0.05, participation=at, samples=50_000, rng=1
        ).lower
    assert 0.7 < found[2] < 1.0
    assert found[3] > 1.1


def test_a_run_that_stops_early():
    mechanism = dm.Mechanism(dm.LambdaCGD(12, 0.7), dm.MinSep(6, 2, max_examples_per_user=3))
    assert mechanism.prefix(4).participation == dm.MinSep(4, 2, max_examples_per_user=3)
    assert mechanism.prefix(8).participation == mechanism.participation


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: dm.MinSep(0, max_examples_per_user=2), dm.InvalidParameterError, "min_sep must be"),
        (lambda: dm.MinSep(2, 0, max_examples_per_user=2), dm.InvalidParameterError, "max_participations"),
        (lambda: dm.MinSep(2, max_examples_per_user=0), dm.InvalidParameterError, "max_examples_per_user"),
        (
            lambda: dm.sensitivity(dm.Identity(4), dm.MinSep(5, max_examples_per_user=2)),
            dm.InvalidParameterError,
            r"min_sep must be an integer in \[1, n=4\]",
        ),
        (
            lambda: dm.optimize(dm.LambdaCGD, dm.MinSep(2, max_examples_per_user=2), n=8),
            dm.UnsupportedCombinationError,
            "a fit under MinSep with the same numbers",
        ),
    ],
)
def test_what_is_not_covered_is_refused(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_examples_of_users_in_bins_of_their_own():
    two = dm.BallsInBins(4, max_examples_per_user=2)
    assert (two.bins, two.examples, two.unit) == (4, 2, dm.Unit.USER)
    assert (dm.BallsInBins(1, max_examples_per_user=3).certain, two.certain) == (True, False)
    assert two.prefix(12, 5) == (two, 8)
    assert "one of 4 bins" in two.requirement(12)
    assert "at most 2 examples" in two.requirement(12)
    assert dm.BallsInBins(4, max_examples_per_user=None) == dm.BallsInBins(4)
    for call, words in (
        (lambda: dm.BallsInBins(4, max_examples_per_user=0), "max_examples_per_user"),
        (lambda: dm.BallsInBins(0, max_examples_per_user=2), "bins must be"),
        (lambda: two.pattern(3), "at most n=3"),
        (lambda: two.prefix(3, 3), "at most n=3"),
    ):
        with pytest.raises(dm.InvalidParameterError, match=words):
            call()


def test_examples_of_users_in_new_bins_every_epoch_are_refused_with_what_there_is():
    with pytest.raises(dm.UnsupportedCombinationError, match=r"one allocation.*UserDataset"):
        dm.BallsInBins(4, fresh=True, max_examples_per_user=2)
