"""Batches of exactly B examples: all subsets, mpmath, brute-force compositions, a peer, planted faults."""

import dataclasses
import functools
import itertools
import math

import mpmath as mp
import numpy as np
import pytest
from scipy import stats

import dpmech as dm
from dpmech.certificates.claim import with_checksum
from dpmech.checker import Kind
from dpmech.engines.losses.lattice import lower_lattice, upper_lattice
from dpmech.engines.losses.release import FixedLoss
from dpmech.engines.renyi import log_even_moments, replaced_divergence
from tests.support.checked_compositions import fixed_size_delta

REPLACE_ONE = dm.Adjacency.REPLACE_ONE


def mechanism(size, batch, steps=1):
    return dm.Mechanism(dm.Identity(steps), dm.FixedSizeBatches(size, batch), REPLACE_ONE)


# ---- one step, by all subsets


def law(size, batch, gradients):
    """Weights of all sums that a batch may have, example 0 included."""
    found = {}
    batches = list(itertools.combinations(range(size), batch))
    for members in batches:
        at = tuple(np.round(sum(gradients[one] for one in members), 12))
        found[at] = found.get(at, 0.0) + 1 / len(batches)
    return found


def densities(laws, s):
    """Of two laws, with the cell, on a grid around all means."""
    means = np.array([at for one in laws for at in one])
    axes = [
        np.linspace(low - 9.0 * s, high + 9.0 * s, 4_001 if means.shape[1] == 1 else 301)
        for low, high in zip(means.min(axis=0), means.max(axis=0), strict=True)
    ]
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
    cell = math.prod(axis[1] - axis[0] for axis in axes)
    both = [
        sum(w * np.prod(stats.norm.pdf(grid, np.array(at), s), axis=-1) for at, w in one.items())
        for one in laws
    ]
    return *both, cell


def hockey_stick(p, q, cell, eps):
    return cell * float(np.maximum(p - math.exp(eps) * q, 0.0).sum())


def neighbours(own, other, rest, batch):
    """The laws of two datasets that differ in their first example."""
    return [
        law(1 + len(rest), batch, np.array([[first], *[[one] for one in rest]])) for first in (own, other)
    ]


OTHERS = {
    "against it": [-1.0] * 4,
    "as it": [1.0] * 4,
    "none": [0.0] * 4,
    "mixed": [-1.0, 1.0, 0.5, 0.0],
}


@pytest.mark.parametrize(("batch", "s"), [(2, 1.2), pytest.param(1, 2.0, marks=pytest.mark.slow)])
def test_no_gradients_lose_more_in_one_step(batch, s):
    for rest, own, other in itertools.product(OTHERS.values(), (1.0, 0.3), (-1.0, 0.0)):
        p, q, cell = densities(neighbours(own, other, rest, batch), s)
        for eps in (0.0, 0.4, 1.5):
            found = dm.delta(mechanism(5, batch), s, eps)
            worst = max(hockey_stick(p, q, cell, eps), hockey_stick(q, p, cell, eps))
            assert worst <= found.upper * (1.0 + 1e-5) + 1e-9
            if (rest, own, other) == (OTHERS["against it"], 1.0, -1.0):
                assert worst == pytest.approx(found.upper, rel=2e-3)
                assert worst == pytest.approx(found.lower, rel=2e-3)


@pytest.mark.slow
def test_vectors_lose_no_more_than_numbers():
    rng = np.random.default_rng(5)
    for _ in range(5):
        angles = rng.uniform(0.0, 2.0 * math.pi, 5)
        gradients = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        laws = [law(4, 2, np.array([gradients[first], *gradients[2:]])) for first in (0, 1)]
        p, q, cell = densities(laws, 0.9)
        for eps in (0.0, 1.0):
            found = dm.delta(mechanism(4, 2), 0.9, eps)
            for one, other in ((p, q), (q, p)):
                assert hockey_stick(one, other, cell, eps) <= found.upper * (1.0 + 1e-4)


def test_what_add_and_remove_lose_would_be_too_little():
    """The trap: B / n as a sampling probability, with the sensitivity of an example that is added."""
    s, eps, batch = 1.2, 1.0, 2
    p, q, cell = densities(neighbours(1.0, -1.0, OTHERS["against it"], batch), s)
    naive = dm.delta(dm.Identity(1), s, eps, participation=dm.Poisson(batch / 5))
    assert hockey_stick(p, q, cell, eps) > 2.0 * naive.upper


# ---- the curve, by mpmath, and what stands for it


def exact_curve(q, s, eps):
    """Q H_a(N(1) || N(0)) at e^a = 1 + (e^eps - 1) / q."""
    q, s, eps = (mp.mpf(number) for number in (q, s, eps))
    a = mp.log1p(mp.expm1(eps) / q)
    return q * (mp.ncdf(1 / (2 * s) - a * s) - mp.exp(a) * mp.ncdf(-1 / (2 * s) - a * s))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "batch", "sigma", "eps"), [(5, 2, 1.2, 0.4), (10_000, 100, 2.0, 1.0), (10**5, 10, 2.0, 1e-3)]
)
def test_one_step_by_mpmath_and_by_the_checker(size, batch, sigma, eps):
    found = dm.delta(mechanism(size, batch), sigma, eps)
    with mp.workdps(40):
        true = exact_curve(mp.mpf(batch) / size, mp.mpf(sigma) / 2, eps)
        assert found.lower <= true <= found.upper
        assert found.upper <= float(true) * (1.0 + 1e-9)
    least, most = fixed_size_delta(batch, size, sigma / 2, 1, eps)
    assert least <= float(true) <= most <= 1.004 * least
    for wrong in ((batch + 1, size, sigma / 2), (batch, size, 0.505 * sigma)):
        least, most = fixed_size_delta(*wrong, 1, eps)
        assert most < 0.996 * float(true) or least > 1.004 * float(true)
    eps_found = dm.epsilon(mechanism(size, batch), sigma, float(true))
    assert eps_found.lower <= eps * (1 + 1e-6)
    assert eps_found.upper == pytest.approx(eps, rel=1e-5)


@pytest.mark.parametrize(("size", "batch", "s"), [(10, 3, 1.3), (1000, 1, 0.6), (10, 9, 2.5)])
def test_lattices_are_on_their_sides_of_the_curve(size, batch, s):
    loss = FixedLoss(dm.FixedSizeBatches(size, batch).fixed_draw.joined, s)
    low, high = loss.interval()
    nodes = loss.quadrature(np.linspace(low - 0.1, high + 0.1, 400), upwards=True)
    assert float(nodes[1].sum()) == pytest.approx(1.0, abs=1e-9)
    # Under Q it is a law as well: what is P-mass at l is Q-mass times e^l.
    assert float((nodes[1] * np.exp(-nodes[0])).sum()) == pytest.approx(1.0, abs=1e-8)
    for eps in (0.0, 0.3, 1.1, 2.5, -0.7):
        with mp.workdps(30):
            q = mp.mpf(batch) / size
            true = exact_curve(q, s, abs(eps))
            if eps < 0:
                true = 1 - mp.exp(eps) + mp.exp(eps) * true
        ends = []
        for lattice in (lower_lattice(loss, (high - low) / 900), upper_lattice(loss, (high - low) / 900)):
            losses = lattice.losses()
            above = losses > eps
            ends.append(
                float(np.sum(lattice.masses[above] * -np.expm1(eps - losses[above]))) + lattice.infinite_mass
            )
        assert ends[0] <= true * (1 + mp.mpf(1e-8)) + mp.mpf(1e-15)
        assert true * (1 - mp.mpf(1e-12)) <= ends[1] <= 1.2 * float(true) + 1e-4


# ---- compositions


def dotted(size, batch, sigma, steps, eps, step):
    """Delta of T steps by connecting dots of the curve, and plain convolution: from above, other code."""
    q, s = batch / size, sigma / 2
    levels = step * np.arange(-int(14 / step), int(14 / step) + 1)
    a = np.log1p(np.expm1(np.abs(levels)) / q)
    half = q * (stats.norm.cdf(0.5 / s - a * s) - np.exp(a) * stats.norm.cdf(-0.5 / s - a * s))
    curve = np.where(levels >= 0, half, 1 - np.exp(levels) + np.exp(levels) * half)
    # Lines between nodes in alpha = e^eps: their kinks are masses under Q, times alpha masses under P.
    alpha = np.exp(levels)
    slopes = np.diff(curve) / np.diff(alpha)
    under_q = np.diff(slopes)
    masses = np.concatenate([[0.0], under_q * alpha[1:-1], [0.0]])
    infinite = curve[-1]
    law = np.maximum(masses, 0.0)
    for _ in range(steps - 1):
        law = np.convolve(law, np.maximum(masses, 0.0))
    losses = step * (np.arange(law.size) - steps * int(14 / step))
    above = losses > eps
    return float(np.sum(law[above] * -np.expm1(eps - losses[above]))) + 1 - (1 - infinite) ** steps


@pytest.mark.parametrize(
    ("size", "batch", "sigma", "steps", "eps"),
    [(10, 3, 3.0, 2, 0.5), (10, 3, 3.0, 3, 1.5), pytest.param(50, 1, 2.0, 3, 0.3, marks=pytest.mark.slow)],
)
def test_few_steps_by_dots_and_convolution(size, batch, sigma, steps, eps):
    found = dm.delta(mechanism(size, batch, steps), sigma, eps)
    theirs = dotted(size, batch, sigma, steps, eps, 2e-3)
    assert found.upper == pytest.approx(theirs, rel=3e-3)
    # Without the mirrored losses, as for an example that is added, it is less: the fault is seen.
    assert (
        dm.delta(dm.Identity(steps), sigma / 2, eps, participation=dm.Poisson(batch / size)).upper
        < 0.99 * theirs
    )


@pytest.mark.parametrize(
    ("steps", "s", "q"), [(2, 1.1, 0.3), pytest.param(3, 1.6, 0.2, marks=pytest.mark.slow)]
)
def test_no_roles_step_by_step_lose_more_than_is_certified(steps, s, q):
    """Products of the two worst pairs, either way round at every step, on a grid of all outputs."""
    x = np.linspace(-7.0 * s, 2.0 + 7.0 * s, 801 if steps == 2 else 201)
    cell = (x[1] - x[0]) ** steps
    noise, moved = stats.norm.pdf(x, 0, s), stats.norm.pdf(x, 2, s)
    pair = (1 - q) * noise + q * moved, noise
    # Gradients of the others that are zero: opposite means.
    centred = tuple((1 - q) * noise + q * stats.norm.pdf(x, side, s) for side in (1.0, -1.0))
    kinds = [pair, pair[::-1], centred]
    size, batch = 10, round(10 * q)
    for eps in (0.3, 1.5):
        found = dm.delta(mechanism(size, batch, steps), s, eps)
        worst = {}
        for names in itertools.combinations_with_replacement(range(3), steps):
            first, second = (
                functools.reduce(np.multiply.outer, [kinds[name][side] for name in names]) for side in (0, 1)
            )
            worst[names] = cell * float(np.maximum(first - math.exp(eps) * second, 0.0).sum())
        assert max(worst.values()) <= found.upper * (1.0 + 1e-5)
        assert max(worst.values()) >= 0.6 * found.upper
        assert found.lower == pytest.approx(max(worst[(0,) * steps], worst[(1,) * steps]), rel=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "batch", "sigma", "steps", "eps"),
    [
        (200, 5, 2.5, 5, 1.0),
        (10_000, 100, 2.25, 1000, 2.0),
        (20, 10, 12.0, 50, 1.0),
    ],
)
def test_compositions_by_the_checker(size, batch, sigma, steps, eps):
    found = dm.delta(mechanism(size, batch, steps), sigma, eps)
    least, most = fixed_size_delta(batch, size, sigma / 2, steps, eps, losses=10_000)
    assert least <= found.upper <= 1.01 * most
    assert most <= 1.01 * least
    attained = dm.delta(dm.Identity(steps), sigma / 2, eps, participation=dm.Poisson(batch / size))
    assert found.lower == pytest.approx(attained.lower, rel=1e-6)


# ---- moments


@pytest.mark.parametrize("s", [0.4, 1.0, 3.0])
def test_even_moments_by_mpmath(s):
    found = log_even_moments(s)
    with mp.workdps(400):
        for place in {0, 1, min(5, found.size - 1), found.size - 1}:
            order = 2 * (place + 1)
            true = mp.log(
                sum(
                    (-1) ** i * mp.binomial(order, i) * mp.exp(mp.mpf(i) * (i - 1) / (2 * mp.mpf(s) ** 2))
                    for i in range(order + 1)
                )
            )
            assert true <= mp.mpf(float(found[place])) <= true + abs(true) * mp.mpf(1e-14) + mp.mpf(1e-14)


def exact_bound(q, s, order):
    """The bound at an integer order, all terms by mpmath."""

    def gauss(j):
        return mp.mpf(j) / (2 * mp.mpf(s) ** 2)

    def moment(j):
        return sum((-1) ** i * mp.binomial(j, i) * mp.exp((i - 1) * gauss(i)) for i in range(j + 1))

    total = mp.mpf(1)
    for j in range(2, order + 1):
        if j == 2:
            factor = min(4 * mp.expm1(gauss(2)), 2 * mp.exp(gauss(2)))
        else:
            near = mp.sqrt(moment(j - j % 2) * moment(j + j % 2))
            factor = min(2 * mp.exp((j - 1) * gauss(j)), 4 * near)
        total += mp.mpf(q) ** j * mp.binomial(order, j) * factor
    return min(mp.log(total) / (order - 1), gauss(order))


@pytest.mark.parametrize(("q", "s"), [(0.01, 1.0), (0.1, 5.0), (0.3, 0.4)])
def test_divergences_by_mpmath(q, s):
    bound = replaced_divergence(q, s)
    with mp.workdps(300):
        for order in (2, 3, 4, 7, 32):
            true = exact_bound(q, s, order)
            assert true <= mp.mpf(bound(float(order))) <= true * (1 + mp.mpf(1e-9))
        half = (exact_bound(q, s, 2) + 2 * exact_bound(q, s, 3)) / 2 / mp.mpf(1.5)
        assert mp.mpf(bound(2.5)) <= half * (1 + mp.mpf(1e-9))
    assert bound(1e5) <= 1e5 / (2 * s * s) * (1 + 1e-12)


def test_another_package_has_the_same_divergences():
    rdp = pytest.importorskip("dp_accounting.rdp.rdp_privacy_accountant")
    orders = [2, 3, 5, 16, 64, 127]
    for q, s in ((0.01, 1.2), (0.05, 4.0), (0.2, 0.7)):
        theirs = rdp._compute_rdp_sample_wor_gaussian(q, s, orders)
        for order, other in zip(orders, theirs, strict=True):
            capped = min(other, order / (2 * s * s))
            assert replaced_divergence(q, s)(float(order)) == pytest.approx(capped, rel=1e-8)


@pytest.mark.parametrize("order", [1.5, 2.0, 3.0, 8.0])
def test_no_gradients_have_a_larger_divergence(order):
    s = 1.5
    bound = replaced_divergence(2 / 5, s / 2)(order)
    for rest, other in itertools.product(OTHERS.values(), (-1.0, 0.0)):
        p, q, cell = densities(neighbours(1.0, other, rest, 2), s)
        for one, two in ((p, q), (q, p)):
            found = math.log(cell * float(np.sum(one**order * two ** (1 - order)))) / (order - 1)
            assert found <= bound


@pytest.mark.parametrize("steps", [1, pytest.param(100, marks=pytest.mark.slow)])
def test_moments_say_no_less_than_distributions(steps):
    for sigma, delta in ((2.5, 1e-5), (6.0, 1e-8)):
        moments = dm.epsilon(mechanism(1000, 20, steps), sigma, delta, method=dm.methods.Rdp())
        assert moments.lower == 0.0
        assert moments.upper > dm.epsilon(mechanism(1000, 20, steps), sigma, delta).upper


# ---- what a run shows that does something else


def lowest_epsilon(size, batch, s, delta, steps=1):
    """A lower bound on eps by a test of 200,000 runs; it is wrong with a probability of 1e-6 at most.

    The others' gradients, and the one that is replaced, are against the one that replaces it. The test is the
    likelihood ratio of what is done, cut at every one of 25 levels.
    """
    rng, runs, q = np.random.default_rng(12), 200_000, batch / size

    def log_ratios(replacing):
        joined = replacing * (rng.random((runs, steps)) < q)
        x = 2.0 * joined + s * rng.standard_normal((runs, steps))
        return np.sort(np.logaddexp(math.log1p(-q), math.log(q) + 2.0 * (x - 1.0) / s**2).sum(axis=1))

    inside, outside = log_ratios(1.0), log_ratios(0.0)
    best = -math.inf
    for level in np.linspace(0.1, inside[-200], 25):
        hits, false = runs - np.searchsorted(inside, level), runs - np.searchsorted(outside, level)
        low = stats.beta.ppf(1e-6 / 50, hits, runs - hits + 1)
        high = stats.beta.ppf(1 - 1e-6 / 50, false + 1, runs - false)
        if low > delta:
            best = max(best, math.log((low - delta) / high))
    return best


@pytest.mark.parametrize(
    ("claimed", "actual", "s", "steps"),
    [
        # Batches are larger than stated.
        ((30, 1), (30, 6), 1.5, 1),
        # The dataset is smaller than stated.
        pytest.param((200, 5), (25, 5), 2.0, 4, marks=pytest.mark.slow),
    ],
)
def test_a_run_of_another_size_is_found_out(claimed, actual, s, steps):
    delta = 0.005
    certified = dm.epsilon(mechanism(*claimed, steps), s, delta).upper
    shown = lowest_epsilon(*actual, s, delta, steps)
    assert shown > certified
    honest = dm.epsilon(mechanism(*actual, steps), s, delta).upper
    assert 0.3 * honest < shown < honest


def test_a_claim_by_the_sensitivity_of_an_added_example_is_found_out():
    naive = dm.epsilon(dm.Identity(1), 1.5, 0.005, participation=dm.Poisson(0.2)).upper
    assert lowest_epsilon(30, 6, 1.5, 0.005) > naive


# ---- from calibration to verdict


@functools.cache
def calibrated(steps, method=None):
    return dm.calibrate_sigma(mechanism(100, 5, steps), 2.0, 1e-5, method=method)


@pytest.mark.parametrize(
    ("steps", "method"),
    [
        (1, None),
        (1, dm.methods.Rdp()),
        pytest.param(12, None, marks=pytest.mark.slow),
    ],
)
def test_from_calibration_to_verdict(tmp_path, steps, method):
    cal = calibrated(steps, method)
    assert (cal.sensitivity.upper, cal.guarantee) == (2.0, dm.Guarantee(dm.Kind.BOUND))
    assert "5 out of 100 without replacement" in str(cal.achieved.by)
    assert cal.achieved.upper <= 2.0
    assert dm.delta(cal.mechanism, cal.sigma, 2.0).upper <= 1e-5
    certificate = cal.certificate(clip_norm=1.0, expected_batch_size=5.0)
    certificate.save(tmp_path / "fixed.json")
    again = dm.Certificate.load(tmp_path / "fixed.json")
    assert again == certificate
    assert again.participation == dm.FixedSizeBatches(dataset_size=100, batch_size=5)
    for words in ("exactly 100 examples", "exactly 5 different ones", "replace_one"):
        assert words in str(again)
    found = dm.verify(tmp_path / "fixed.json", rigorous=True)
    assert found.ok, found.failures
    assert found.claim is Kind.PROVED


@pytest.mark.parametrize("batches", [(100, 6), (90, 5)])
def test_verify_refuses_a_claim_about_other_batches(batches):
    forged = with_checksum(dataclasses.replace(calibrated(1), mechanism=mechanism(*batches)))
    assert not dm.verify(forged.certificate()).ok


def test_one_batch_of_everyone_is_not_sampled():
    whole = dm.epsilon(mechanism(7, 7, 3), 4.0, 1e-5)
    plain = dm.epsilon(dm.Identity(3), 4.0, 1e-5, adjacency=REPLACE_ONE)
    assert (whole.lower, whole.upper) == pytest.approx((plain.lower, plain.upper), rel=1e-12)
    assert dm.verify(dm.calibrate_sigma(mechanism(7, 7, 3), 2.0, 1e-5).certificate()).ok


@pytest.mark.slow
@pytest.mark.parametrize(("batch", "expected"), [(10, 1.22), (1000, 14.83)])
def test_larger_batches_need_more_noise(batch, expected):
    cal = dm.calibrate_sigma(mechanism(10_000, batch, 1000), 2.0, 1e-6)
    assert cal.sigma == pytest.approx(expected, rel=0.01)
    assert fixed_size_delta(batch, 10_000, 0.5 * cal.sigma / 1.002, 1000, 2.0)[0] > 1e-6


@pytest.mark.slow
def test_a_profile_and_a_ledger_bound_the_curve():
    cal = calibrated(12)
    found = cal.profile(rel_error=0.05)
    for eps in (0.1, 0.5):
        whole = dm.delta(cal.mechanism, cal.sigma, eps)
        assert whole.lower <= found.delta(eps).upper
        assert 0.99 * whole.upper <= found.delta(eps).upper <= 1.2 * whole.upper
    ledger = dm.Ledger(adjacency=REPLACE_ONE)
    ledger.add("once", cal, batch="one")
    assert ledger.epsilon(1e-5).upper == pytest.approx(2.0, rel=1e-6)
    assert dm.executed_epsilon(cal, 3).upper < 2.0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: dm.FixedSizeBatches(5, 0), "batch_size must be an integer"),
        (lambda: dm.FixedSizeBatches(5, 6), "batch_size must be at most dataset_size=5"),
        (lambda: dm.FixedSizeBatches(0, 1), "dataset_size must be an integer"),
    ],
)
def test_bad_arguments_are_named(call, words):
    with pytest.raises(dm.InvalidParameterError, match=words):
        call()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda at: dm.Mechanism(dm.Identity(8), at), "ADD_REMOVE .* fill its place"),
        (lambda at: dm.Mechanism(dm.Identity(8), at, dm.Adjacency.ZERO_OUT), "truncated_batch_size=B"),
        (
            lambda at: dm.calibrate_sigma(
                dm.LambdaCGD(8, 0.5), 2.0, 1e-5, participation=at, adjacency=REPLACE_ONE
            ),
            "independent, equal noise",
        ),
        *(
            (
                lambda at, method=method: dm.calibrate_sigma(
                    dm.Identity(8), 2.0, 1e-5, participation=at, adjacency=REPLACE_ONE, method=method
                ),
                "does not apply to FixedSizeBatches",
            )
            for method in (dm.methods.Prv(), dm.methods.Exact())
        ),
        (
            lambda at: dm.optimize(dm.LambdaCGD, at, n=8, eps=2.0, delta=1e-5, adjacency=REPLACE_ONE),
            "nothing is fitted under FixedSizeBatches",
        ),
        (
            lambda at: dm.audits.empirical_epsilon(
                dm.Identity(8), 1.0, 0.1, participation=at, adjacency=REPLACE_ONE
            ),
            "no test under FixedSizeBatches",
        ),
    ],
)
def test_what_is_not_covered_is_refused(call, words):
    with pytest.raises(dm.UnsupportedCombinationError, match=words):
        call(dm.FixedSizeBatches(20, 3))


def test_every_sigma_meets_a_delta_above_the_chance_to_take_part():
    with pytest.raises(dm.UnattainableBudgetError, match=r"takes part with probability 0\.1 only"):
        dm.calibrate_sigma(mechanism(20, 2), 1.0, 0.2)
