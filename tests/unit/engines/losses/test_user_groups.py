"""Users with several examples under cyclic Poisson sampling: other routes, and groups of batches."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

import dpmech as dm
from dpmech.certificates.claim import with_checksum
from dpmech.checker import Kind
from dpmech.samplers import sampler_for
from dpmech.schemes import accountant_for
from dpmech.schemes.cyclic_poisson.sampler import CyclicPoissonSampler
from tests.support import saved
from tests.support.checked_compositions import users_delta


def together(q, cycle, m):
    return dm.CyclicPoisson(q, cycle, max_examples_per_user=m)


def test_one_example_is_cyclic_poisson_sampling():
    strategy = dm.SquareRoot(13, 3)
    one = dm.delta(strategy, 1.0, 1.5, participation=together(0.3, 4, 1))
    same = dm.delta(strategy, 1.0, 1.5, participation=dm.CyclicPoisson(0.3, 4))
    assert one.lower <= same.upper
    assert same.lower <= one.upper <= 1.01 * same.upper


def test_a_cycle_of_one_is_poisson_sampling():
    one = dm.delta(dm.Identity(9), 4.0, 0.8, participation=together(0.2, 1, 3))
    same = dm.delta(dm.Identity(9), 4.0, 0.8, participation=dm.Poisson(0.2, max_examples_per_user=3))
    assert (one.lower, one.upper) == (same.lower, same.upper)


@pytest.mark.parametrize(
    ("strategy", "cycle", "turns"),
    [
        (dm.SquareRoot(11, 3), 3, 4),
        pytest.param(dm.SquareRoot(11, 3), 11, 1, marks=pytest.mark.slow),
        pytest.param(dm.BandedToeplitz(12, [1.0, 0.5, 0.2]), 5, 3, marks=pytest.mark.slow),
    ],
)
def test_turns_compose_at_the_largest_norm(strategy, cycle, turns):
    """From dense C: the columns of a group are orthogonal, and nobody has more turns, or a larger column."""
    q, m, sigma, eps = 0.3, 3, 4.0, 0.7
    dense = strategy.to_dense()
    for start in range(cycle):
        columns = dense[:, start::cycle]
        inner = columns.T @ columns
        assert np.abs(inner - np.diag(np.diag(inner))).max() < 1e-15
        assert columns.shape[1] <= turns
    norm = np.linalg.norm(dense, axis=0).max()
    found = dm.delta(strategy, sigma, eps, participation=together(q, cycle, m))
    least, most = users_delta(q, m, sigma / norm, turns, eps, losses=2000)
    assert found.lower <= most
    assert least <= found.upper <= 1.01 * most <= 1.02 * least
    assert users_delta(q, m, sigma / norm, turns + 1, eps, losses=2000)[0] > found.upper
    assert dm.sensitivity(strategy, together(q, cycle, m)).upper == pytest.approx(m * norm)


@pytest.mark.slow
def test_compositions_against_another_package():
    dp = pytest.importorskip("dp_accounting")
    pld = pytest.importorskip("dp_accounting.pld")
    strategy, q, cycle, m, sigma, delta = dm.SquareRoot(20, 3), 0.2, 5, 3, 3.0, 1e-5
    norm = float(np.linalg.norm(strategy.to_dense(), axis=0).max())
    shifts = [float(k) for k in range(m + 1)]
    weights = stats.binom.pmf(shifts, m, q).tolist()
    mixture = dp.dp_event.MixtureOfGaussiansDpEvent(sigma / norm, shifts, weights)
    accountant = pld.PLDAccountant(value_discretization_interval=1e-3)
    accountant.compose(mixture, math.ceil(20 / cycle))
    theirs = accountant.get_epsilon(delta)
    found = dm.epsilon(strategy, sigma, delta, participation=together(q, cycle, m))
    assert found.lower <= theirs * (1 + 1e-6)
    assert theirs == pytest.approx(found.upper, rel=0.01)


@pytest.mark.slow
def test_no_lower_bound_where_no_group_reaches_the_largest_norm_in_all_turns():
    """The last columns of a band are short, and the one group with three turns has the last column."""
    strategy, at = dm.BandedToeplitz(9, [1.0, 0.5]), together(0.3, 4, 2)
    found = accountant_for(dm.Mechanism(strategy, at), None)
    assert not found.release.tight
    bounds = found.delta(2.0, 0.5, tolerance=1e-3)
    assert bounds.lower == 0.0
    # Upper ends hold: two turns at the norm of inner columns and one at that of the last cost less.
    assert bounds.upper >= users_delta(0.3, 2, 2.0 / math.sqrt(1.25), 2, 0.5)[0]


def test_a_run_with_one_example_more_than_stated_is_found_out():
    plan = dm.BandedToeplitz(6, [1.0, 0.5])
    cal = dm.calibrate_sigma(plan, 1.0, 0.01, participation=together(0.5, 2, 2))
    options = {"samples": 100_000, "rng": 1}
    honest = dm.audits.empirical_epsilon(plan, cal.sigma, 0.01, participation=together(0.5, 2, 2), **options)
    assert 0.7 < honest.lower < 1.0
    more = dm.audits.empirical_epsilon(plan, cal.sigma, 0.01, participation=together(0.5, 2, 3), **options)
    assert more.lower > 1.1


def test_from_calibration_to_verdict(tmp_path):
    at, cal = together(0.3, 4, 2), saved.calibration("users in groups")
    assert cal.achieved.upper <= 2.0
    assert dm.delta(cal.mechanism, cal.sigma / 1.001, 2.0).lower > 1e-5
    cal.certificate(clip_norm=1.0).save(tmp_path / "users.json")
    again = dm.Certificate.load(tmp_path / "users.json")
    assert (again.unit, again.participation) == (dm.Unit.USER, at)
    assert "Put every user, with all of these examples, into one of 4 groups" in str(again)
    found = dm.verify(again, rigorous=True)
    assert found.ok, found.failures
    assert found.claim is Kind.PROVED


@pytest.mark.slow
def test_claims_with_other_numbers_are_refused():
    cal = dm.calibrate_sigma(dm.SquareRoot(12, 2), 2.0, 1e-5, participation=together(0.2, 3, 2))
    for wrong in (together(0.2, 3, 3), together(0.25, 3, 2), together(0.2, 2, 2), together(0.2, 1, 2)):
        forged = with_checksum(dataclasses.replace(cal, mechanism=dm.Mechanism(cal.strategy, wrong)))
        assert not dm.verify(forged.certificate()).ok


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: together(1.0, 2, 2), dm.InvalidParameterError, "sampling_prob must be"),
        (lambda: together(0.1, 0, 2), dm.InvalidParameterError, "cycle must be an integer"),
        (lambda: together(0.1, 2, 0), dm.InvalidParameterError, "max_examples_per_user must be an integer"),
        (
            lambda: dm.delta(dm.SquareRoot(8, 3), 2.0, 1.0, participation=together(0.1, 2, 2)),
            dm.UnsupportedCombinationError,
            "at most cycle=2 bands",
        ),
        (
            lambda: dm.delta(dm.LambdaCGD(8, 0.5), 2.0, 1.0, participation=together(0.1, 2, 2)),
            dm.UnsupportedCombinationError,
            "at most cycle=2 bands",
        ),
        (
            lambda: dm.calibrate_sigma(
                dm.Identity(8), 2.0, 1e-5, participation=together(0.1, 2, 2), method=dm.methods.Rdp()
            ),
            dm.UnsupportedCombinationError,
            r"Rdp\(\)",
        ),
        (
            lambda: dm.Mechanism(dm.Identity(8), together(0.1, 2, 2), dm.Adjacency.REPLACE_ONE),
            dm.UnsupportedCombinationError,
            "REPLACE_ONE",
        ),
        (
            lambda: dm.optimize(dm.BandedToeplitz, together(0.1, 2, 2), n=8, bands=2, eps=2.0, delta=1e-5),
            dm.UnsupportedCombinationError,
            "a fit under CyclicPoisson with the same numbers",
        ),
        (
            lambda: dm.audits.empirical_epsilon(
                dm.LambdaCGD(4, 0.5), 1.0, 0.1, participation=together(0.1, 2, 2), samples=1000
            ),
            dm.UnsupportedCombinationError,
            "no test of",
        ),
        (
            lambda: dm.TrainingPlan(100, 50, 1).participation(
                "cyclic-poisson", cycle=2, max_examples_per_user=2
            ),
            dm.InvalidParameterError,
            r"cycle must be below 1 / 0\.5",
        ),
        (
            lambda: CyclicPoissonSampler(4, 0.5, 2, 6, user_ids=[1, 1, 2, 2]),
            dm.InvalidParameterError,
            "user_ids must be None: without max_examples_per_user",
        ),
    ],
)
def test_what_is_not_covered_is_refused(call, error, words):
    with pytest.raises(error, match=words):
        call()


@pytest.mark.slow
def test_fits_under_cyclic_poisson_are_best_here_too():
    """Sigma over the largest column norm is one number, whatever the strategy."""
    sigmas = {}
    for coefs in ([1.0], [1.0, 0.5], [1.0, 0.3, 0.2]):
        cal = dm.calibrate_sigma(dm.BandedToeplitz(12, coefs), 2.0, 1e-3, participation=together(0.3, 3, 2))
        sigmas[len(coefs)] = cal.sigma / np.linalg.norm(coefs)
    assert max(sigmas.values()) <= 1.002 * min(sigmas.values())


# ---- batches

IDS = [number // 3 for number in range(60)]


def groups_of(sampler):
    """The residue of the steps that each example joins; -1 where it joins none."""
    found = np.full(sampler.dataset_size, -1)
    for step in range(sampler.n):
        batch = sampler.indices(step)
        assert np.all((found[batch] == -1) | (found[batch] == step % sampler.participation.cycle))
        found[batch] = step % sampler.participation.cycle
    return found


@pytest.mark.parametrize("rng", [1, None, "philox"])
def test_all_examples_of_a_user_are_in_one_group(rng):
    sampler = CyclicPoissonSampler(60, 0.9, 4, 40, max_examples_per_user=3, user_ids=IDS, rng=rng)
    found = groups_of(sampler).reshape(-1, 3)
    assert np.all(found >= 0)
    assert np.all(found == found[:, :1])
    # Examples that are drawn by themselves are not.
    apart = groups_of(CyclicPoissonSampler(60, 0.9, 4, 40, rng=1)).reshape(-1, 3)
    assert not np.all(apart == apart[:, :1])


def test_groups_are_uniform_and_users_independent():
    """Of two users: all nine pairs of groups equally likely, whatever the other has."""
    counts = np.zeros((3, 3))
    for seed in range(450):
        sampler = CyclicPoissonSampler(
            3, 0.999, 3, 6, max_examples_per_user=2, user_ids=["a", "b", "a"], rng=seed
        )
        first, second, same = groups_of(sampler)
        assert first == same
        counts[first, second] += 1
    assert stats.chisquare(counts.ravel()).pvalue > 1e-6


def test_who_has_one_example_is_drawn_as_examples_are():
    users = CyclicPoissonSampler(50, 0.4, 3, 9, max_examples_per_user=1, user_ids=list(range(50)), rng=5)
    plain = CyclicPoissonSampler(50, 0.4, 3, 9, rng=5)
    assert [batch.tolist() for batch in users] == [batch.tolist() for batch in plain]
    assert users.expected_batch_size == plain.expected_batch_size == 50 * 0.4 / 3


def test_a_state_belongs_to_its_users():
    state = CyclicPoissonSampler(60, 0.4, 3, 9, max_examples_per_user=3, user_ids=IDS, rng=5).state_dict()
    again = sampler_for(together(0.4, 3, 3), 60, n=9, user_ids=np.array(IDS))
    again.load_state_dict(state)
    named = sampler_for(together(0.4, 3, 3), 60, n=9, user_ids=[f"user {one}" for one in IDS], rng=5)
    assert [batch.tolist() for batch in again] == [batch.tolist() for batch in named]
    other = CyclicPoissonSampler(
        60, 0.4, 3, 9, max_examples_per_user=3, user_ids=[number // 2 for number in range(60)], rng=5
    )
    with pytest.raises(dm.exceptions.CertificateError, match="another configuration"):
        other.load_state_dict(state)


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        (None, "whose each example is"),
        ([1, 1, 1, 2], "user_ids must be at most 2 of everyone, .* got 'a user with 3 examples"),
        ([1, 1, 2], "one for each of 4 examples"),
        ([1, "1", 2, 3], "text"),
    ],
)
def test_ids_are_checked(ids, words):
    with pytest.raises(dm.InvalidParameterError, match=words):
        CyclicPoissonSampler(4, 0.5, 2, 6, max_examples_per_user=2, user_ids=ids)
    with pytest.raises(dm.InvalidParameterError, match=words):
        sampler_for(together(0.5, 2, 2), 4, n=6, user_ids=ids)


def test_ids_are_refused_where_batches_do_not_depend_on_them():
    for at in (dm.CyclicPoisson(0.5, 2), dm.Poisson(0.5, max_examples_per_user=2), dm.MinSep(2)):
        with pytest.raises(dm.InvalidParameterError, match="user_ids must be None"):
            sampler_for(at, 4, n=6, user_ids=[1, 1, 2, 2])
