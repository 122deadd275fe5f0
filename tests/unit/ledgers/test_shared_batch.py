import math
from fractions import Fraction

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize

import dpmech as dm

SIGMAS = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=40)


def grid_delta(sigmas, q, eps):
    """Delta of two blocks on one sampled batch, by summing both densities over a fine plane."""
    axes = [np.linspace(-9.0, 9.0 + 1.0 / sigma, 2401) for sigma in sigmas]
    cell = np.prod([axis[1] - axis[0] for axis in axes])
    here = [scipy.stats.norm.pdf(axis) for axis in axes]
    there = [scipy.stats.norm.pdf(axis - 1.0 / sigma) for axis, sigma in zip(axes, sigmas, strict=True)]
    absent = np.outer(*here)
    present = (1.0 - q) * absent + q * np.outer(*there)
    excesses = present - math.exp(eps) * absent, absent - math.exp(eps) * present
    return [float(np.maximum(excess, 0.0).sum() * cell) for excess in excesses]


@given(SIGMAS)
def test_the_joint_sigma_is_the_root_of_summed_precisions_rounded_down(sigmas):
    joint = Fraction(dm.ledgers.joint_release(sigmas).sigma)
    product = joint**2 * sum(1 / Fraction(sigma) ** 2 for sigma in sigmas)
    assert 1 - Fraction(1, 10**14) <= product <= 1


def test_a_single_release_keeps_its_sigma_and_a_join_is_a_number():
    assert dm.ledgers.joint_release([0.7]).sigma == 0.7
    assert float(dm.ledgers.joint_release([3.0, 4.0])) == pytest.approx(2.4, rel=1e-14)
    assert dm.ledgers.joint_release(np.array([1.0, 1.0])).sigmas == (1.0, 1.0)


@pytest.mark.parametrize(("sigmas", "q", "eps"), [((1.0, 1.0), 0.3, 0.5), ((0.8, 2.5), 0.1, 1.0)])
def test_two_blocks_on_a_batch_are_one_release_at_the_joint_sigma(sigmas, q, eps):
    joint = dm.delta(dm.Identity(1), dm.ledgers.joint_release(sigmas).sigma, eps, participation=dm.Poisson(q))
    assert max(grid_delta(sigmas, q, eps)) == pytest.approx(joint.upper, rel=2e-5)
    # The test can tell: one percent in one sigma is seen.
    assert max(grid_delta((sigmas[0] * 1.01, sigmas[1]), q, eps)) != pytest.approx(joint.upper, rel=2e-3)


def test_sigma_one_twice_on_a_batch():
    found = dm.epsilon(
        dm.Identity(1000), dm.ledgers.joint_release([1.0, 1.0]).sigma, 1e-6, participation=dm.Poisson(0.01)
    )
    assert found.upper == pytest.approx(5.287, rel=5e-3)


@pytest.mark.parametrize("sigmas", [[], [0.0], [-1.0, 1.0], [math.nan], [math.inf], "1", 1.0, [[1.0]], None])
def test_bad_sigmas_are_refused(sigmas):
    with pytest.raises(dm.InvalidParameterError, match="sigmas"):
        dm.ledgers.joint_release(sigmas)


# ---- batches


def make_batch(**options):
    return dm.ledgers.SharedBatch("run", dm.Identity(20), dm.Poisson(0.1), **options)


def test_a_batch_accounts_its_mechanisms_jointly_and_closes():
    batch = make_batch()
    batch.register("gradients", 1.0)
    batch.register("moments", 2.0)
    assert batch.blocks == {"gradients": 1.0, "moments": 2.0}
    assert not batch.closed
    joint = dm.ledgers.joint_release([1.0, 2.0]).sigma
    assert batch.sigma == joint
    expected = dm.epsilon(dm.Identity(20), joint, 1e-5, participation=dm.Poisson(0.1))
    assert batch.epsilon(1e-5) == expected
    assert batch.closed
    with pytest.raises(dm.UnsupportedCombinationError, match="closed"):
        batch.register("late", 100.0)
    assert batch.blocks == {"gradients": 1.0, "moments": 2.0}
    assert batch.delta(1.0) == dm.delta(dm.Identity(20), joint, 1.0, participation=dm.Poisson(0.1))
    assert "closed" in repr(batch)


def test_closing_gives_the_join():
    batch = make_batch()
    batch.register("a", 3.0)
    batch.register("b", 4.0)
    assert batch.close() == dm.ledgers.joint_release([3.0, 4.0])
    assert batch.closed


def test_a_batch_takes_methods_adjacencies_and_generators():
    batch = dm.ledgers.SharedBatch("r", dm.LambdaCGD(12, 0.5), dm.BallsInBins(4))
    batch.register("a", 2.0)
    rough = dm.methods.Importance(rel_error=0.2)
    first = batch.delta(1.0, method=rough, rng=np.random.default_rng(3))
    second = dm.delta(dm.LambdaCGD(12, 0.5), 2.0, 1.0, participation=dm.BallsInBins(4), method=rough, rng=3)
    assert first == second
    assert batch.epsilon(1e-5, method=dm.methods.Rdp()).lower == 0.0
    replaced = dm.ledgers.SharedBatch("r", dm.Identity(2), dm.EveryStep(), adjacency=dm.Adjacency.REPLACE_ONE)
    replaced.register("a", 5.0)
    plain = dm.epsilon(dm.Identity(2), 2.5, 1e-5)
    assert replaced.epsilon(1e-5).upper == pytest.approx(plain.upper, rel=1e-12)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda batch: batch.sigma, "at least one registered"),
        (lambda batch: batch.epsilon(1e-5), "at least one registered"),
        (lambda batch: batch.close(), "at least one registered"),
        (lambda batch: batch.register("", 1.0), "name"),
        (lambda batch: batch.register("a", 0.0), "sigma"),
        (lambda batch: batch.epsilon(1e-5, rng=3), "rng"),
        (lambda batch: batch.epsilon(2.0), "delta"),
        (lambda batch: batch.delta(-1.0), "eps"),
        (lambda batch: batch.epsilon(1e-5, method="pld"), "method"),
    ],
)
def test_bad_use_of_a_batch_is_refused_and_leaves_it_open(act, message):
    batch = make_batch()
    with pytest.raises(dm.InvalidParameterError, match=message):
        act(batch)
    assert not batch.closed


def test_a_name_registers_once():
    batch = make_batch()
    batch.register("a", 1.0)
    with pytest.raises(dm.InvalidParameterError, match="new on batch"):
        batch.register("a", 2.0)


@pytest.mark.parametrize(
    "arguments",
    [
        ("", dm.Identity(2), dm.EveryStep()),
        (3, dm.Identity(2), dm.EveryStep()),
        ("a", "identity", dm.EveryStep()),
        ("a", dm.Identity(2), "poisson"),
    ],
)
def test_a_batch_checks_what_it_is_given(arguments):
    with pytest.raises(dm.InvalidParameterError):
        dm.ledgers.SharedBatch(*arguments)
    with pytest.raises(dm.InvalidParameterError, match="adjacency"):
        make_batch(adjacency="add_remove")


# ---- block clipping


@given(st.lists(st.tuples(st.floats(1e-2, 1e2), st.floats(1e-2, 1e2)), min_size=1, max_size=12))
def test_the_joint_sigma_does_not_depend_on_clip_norms(pairs):
    norms, sigmas = zip(*pairs, strict=True)
    blocks = dm.ledgers.BlockClipping(norms, sigmas)
    assert blocks.sigma == dm.ledgers.joint_release(sigmas).sigma
    assert blocks.replace_one_sigma == 0.5 * blocks.sigma
    assert blocks.joint_clip_norm == pytest.approx(np.linalg.norm(norms), rel=1e-13)
    stddevs = np.array(sigmas) * np.array(norms)
    np.testing.assert_allclose(blocks.noise_stddevs, stddevs, rtol=1e-14)
    # The worst example moves every block by its clip norm: one shift of this many standard deviations.
    assert np.linalg.norm(np.array(norms) / stddevs) == pytest.approx(1.0 / blocks.sigma, rel=1e-12)
    np.testing.assert_allclose(np.array(blocks.effective_clip_norms) * blocks.sigma, stddevs, rtol=1e-13)


def test_one_sigma_serves_all_blocks():
    blocks = dm.ledgers.BlockClipping([0.1, 0.2, 0.3], 2.0)
    assert blocks.sigmas == (2.0, 2.0, 2.0)
    assert blocks.sigma == pytest.approx(2.0 / math.sqrt(3.0), rel=1e-14)
    assert dm.ledgers.BlockClipping((0.1,), np.float64(2.0)).sigmas == (2.0,)


@given(st.lists(st.floats(0.01, 100.0), min_size=1, max_size=50), st.floats(1e-2, 1e3))
def test_sharing_a_joint_sigma_gives_at_least_it(norms, sigma):
    shared = dm.ledgers.BlockClipping.from_joint(norms, sigma)
    assert sigma <= shared.sigma <= sigma * (1.0 + 1e-13)
    assert len(set(shared.sigmas)) == 1
    assert shared.sigmas[0] == pytest.approx(sigma * math.sqrt(len(norms)), rel=1e-13)


def test_shares_by_dimension_have_the_least_total_noise():
    norms, dims, sigma = np.array([0.1, 0.5, 0.2]), [1000, 20, 3], 1.7
    shared = dm.ledgers.BlockClipping.from_joint(norms, sigma, dimensions=dims)
    assert sigma <= shared.sigma <= sigma * (1.0 + 1e-13)
    total = float(np.sum(np.array(dims) * np.array(shared.noise_stddevs) ** 2))

    def energy(logs):
        # Precisions on the simplex, so that the joint sigma is the one asked for.
        precisions = np.exp(np.append(logs, 0.0))
        sigmas = sigma / np.sqrt(precisions / precisions.sum())
        return float(np.sum(np.array(dims) * (sigmas * norms) ** 2))

    best = optimize.minimize(
        energy, np.zeros(2), method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12}
    )
    assert total == pytest.approx(best.fun, rel=1e-8)
    equal = dm.ledgers.BlockClipping.from_joint(norms, sigma)
    assert total < 0.9 * float(np.sum(np.array(dims) * np.array(equal.noise_stddevs) ** 2))


def test_replacing_one_example_doubles_every_block():
    blocks = dm.ledgers.BlockClipping([0.1, 0.4], [3.0, 5.0])
    by_sensitivity = dm.epsilon(
        dm.Identity(1), blocks.sigma, 1e-5, adjacency=dm.Adjacency.REPLACE_ONE, participation=dm.EveryStep()
    )
    by_hand = dm.epsilon(dm.Identity(1), blocks.replace_one_sigma, 1e-5)
    assert by_sensitivity.upper == pytest.approx(by_hand.upper, rel=1e-12)
    with pytest.raises(dm.UnsupportedCombinationError, match="REPLACE_ONE"):
        dm.epsilon(
            dm.Identity(1),
            blocks.sigma,
            1e-5,
            adjacency=dm.Adjacency.REPLACE_ONE,
            participation=dm.Poisson(0.1, max_examples_per_user=2),
        )


def test_the_noise_variance_of_a_block_follows_from_its_effective_clip_norm():
    cal = dm.calibrate_sigma(dm.LambdaCGD(12, 0.8), 2.0, 1e-5, participation=dm.MinSep(4, 3))
    blocks = dm.ledgers.BlockClipping.from_joint([0.1, 0.3], cal.sigma)
    for block, norm in enumerate(blocks.effective_clip_norms):
        phi = cal.noise_variance(5, norm, 64)
        stddev = blocks.noise_stddevs[block] / 64 * cal.strategy.noising_row_norms()[5]
        assert phi == pytest.approx(stddev**2, rel=1e-12)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], 1.0), "clip_norms"),
        (([1.0], [1.0, 2.0]), "one for each of 1"),
        (([0.0], 1.0), "clip_norms"),
        (([1.0], 0.0), "sigma"),
        (([1.0], [0.0]), "sigmas"),
        (([1.0], "x"), "sigmas"),
    ],
)
def test_bad_blocks_are_refused(arguments, message):
    with pytest.raises(dm.InvalidParameterError, match=message):
        dm.ledgers.BlockClipping(*arguments)


@pytest.mark.parametrize("dimensions", [[1], [1, 0], [1, 2.5], 3])
def test_bad_dimensions_are_refused(dimensions):
    with pytest.raises(dm.InvalidParameterError, match="dimensions"):
        dm.ledgers.BlockClipping.from_joint([1.0, 2.0], 1.0, dimensions=dimensions)
