"""Batches of at most B examples: against every subset, mpmath, another package, vectors, planted faults."""

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
from dpmech.engines.losses.lattice import Loss, lower_lattice, upper_lattice
from dpmech.engines.losses.lattice_route import LatticeRoute
from dpmech.engines.losses.release import TruncatedLoss
from dpmech.engines.losses.step_losses import OneSidedLoss
from dpmech.schemes import accountant_for
from tests.support.checked_compositions import joined_prob, truncated_delta

ZERO_OUT = dm.Adjacency.ZERO_OUT
SIDED = [(0.3, 1.3), (0.01, 0.7), (1e-6, 4.0), (0.9, 0.4)]


def cut(q, most, size):
    return dm.Poisson(q, truncated_batch_size=most, dataset_size=size)


def mechanism(q, most, size, steps=1):
    return dm.Mechanism(dm.Identity(steps), cut(q, most, size), ZERO_OUT)


# ---- the law of one step, by all subsets


def laws(q, most, size, gradients, own):
    """Weights and sums over everything that can be drawn and kept; `own` is example 0's gradient."""
    present, absent = {}, {}
    for coins in itertools.product((0, 1), repeat=size):
        drawn = [example for example in range(size) if coins[example]]
        chance = q ** len(drawn) * (1 - q) ** (size - len(drawn))
        if chance == 0.0:
            continue
        batches = list(itertools.combinations(drawn, min(most, len(drawn))))
        for batch in batches:
            others = tuple(np.round(sum((gradients[one] for one in batch if one), np.zeros(len(own))), 12))
            whole = tuple(np.round(np.add(others, own if 0 in batch else np.zeros(len(own))), 12))
            for law, at in ((present, whole), (absent, others)):
                law[at] = law.get(at, 0.0) + chance / len(batches)
    assert sum(present.values()) == pytest.approx(1.0)
    return present, absent


def hockey_sticks(first, second, s, eps):
    """Both directions, on a grid around all means."""
    means = np.array([*first, *second])
    axes = [
        np.linspace(low - 9.0 * s, high + 9.0 * s, 4_001 if means.shape[1] == 1 else 301)
        for low, high in zip(means.min(axis=0), means.max(axis=0), strict=True)
    ]
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
    cell = math.prod(axis[1] - axis[0] for axis in axes)

    def density(law):
        return sum(w * np.prod(stats.norm.pdf(grid, np.array(at), s), axis=-1) for at, w in law.items())

    p, q = density(first), density(second)
    return [
        cell * float(np.maximum(one - math.exp(eps) * other, 0.0).sum()) for one, other in ((p, q), (q, p))
    ]


GRADIENTS = {
    "against it": [-1.0] * 4,
    "as it": [1.0] * 4,
    "none": [0.0] * 4,
    "mixed": [-1.0, 1.0, 0.5, 0.0],
}


@pytest.mark.parametrize(
    ("q", "most", "s"),
    [
        (0.6, 2, 0.8),
        pytest.param(0.3, 1, 1.5, marks=pytest.mark.slow),
        pytest.param(1.0, 2, 0.6, marks=pytest.mark.slow),
    ],
)
def test_no_gradients_lose_more_in_one_step(q, most, s):
    for others, eps in itertools.product(GRADIENTS.values(), (0.0, 0.4, 1.5)):
        gradients = np.array([0.0, *others])[:, None]
        found = dm.delta(mechanism(q, most, 5), s, eps)
        remove, add = hockey_sticks(*laws(q, most, 5, gradients, np.ones(1)), s, eps)
        assert max(remove, add) <= found.upper * (1.0 + 1e-5) + 1e-9
        if others == GRADIENTS["none"]:
            assert max(remove, add) == pytest.approx(found.lower, rel=1e-3, abs=1e-9)


def test_full_batches_are_attained_by_gradients_against_the_example():
    gradients = np.array([0.0, *GRADIENTS["against it"]])[:, None]
    for most, s, eps in ((2, 0.6, 0.5), (1, 1.0, 0.0), (3, 0.5, 2.0)):
        found = dm.delta(mechanism(1.0, most, 5), s, eps)
        remove, _ = hockey_sticks(*laws(1.0, most, 5, gradients, np.ones(1)), s, eps)
        assert remove == pytest.approx(found.upper, rel=2e-3)


def test_poisson_sampling_with_the_probability_to_be_kept_would_say_too_little():
    """The trap: who is kept depends on how many were, which the others' gradients show."""
    gradients = np.array([0.0, *GRADIENTS["against it"]])[:, None]
    q, most, s, eps = 1.0, 2, 0.6, 1.5
    naive = dm.delta(dm.Identity(1), s, eps, participation=dm.Poisson(most / 5))
    remove, _ = hockey_sticks(*laws(q, most, 5, gradients, np.ones(1)), s, eps)
    assert remove > 1.2 * naive.upper


@pytest.mark.slow
def test_vectors_lose_no_more_than_numbers():
    rng = np.random.default_rng(3)
    q, most, s = 0.8, 2, 0.7
    for _ in range(4):
        angles = rng.uniform(0.0, 2.0 * math.pi, 4)
        gradients = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        own, gradients[0] = gradients[0].copy(), 0.0
        present, absent = laws(q, most, 4, gradients, own)
        for eps in (0.0, 1.0):
            found = dm.delta(mechanism(q, most, 4), s, eps)
            assert max(hockey_sticks(present, absent, s, eps)) <= found.upper * (1.0 + 1e-4)


def test_three_full_batches_lose_little_less_than_is_certified():
    """Two steps in the plane: what gradients against the example lose, by the product of its laws."""
    s, p = 0.9, 2 / 5
    x = np.linspace(-7.0, 10.0, 1201)
    one, other = ((1 - p) * stats.norm.pdf(x, 0, s) + p * stats.norm.pdf(x, mean, s) for mean in (2.0, 1.0))
    cell = (x[1] - x[0]) ** 2
    for eps in (0.5, 2.0):
        attained = cell * np.maximum(np.outer(one, one) - math.exp(eps) * np.outer(other, other), 0.0).sum()
        found = dm.delta(mechanism(1.0, 2, 5, steps=2), s, eps)
        assert 0.9 * found.upper <= attained <= found.upper * (1.0 + 1e-5)


# ---- losses of one sign, and their lattices


def exact_mixture(p, shift, s, x):
    return 1 - mp.mpf(p) + mp.mpf(p) * mp.exp(shift * (mp.mpf(x) - mp.mpf(shift) / 2) / mp.mpf(s) ** 2)


def exact_above(p, shift, s, x):
    """The mass of (1 - p) N(0) + p N(shift) above x."""
    return (1 - mp.mpf(p)) * mp.ncdf(-mp.mpf(x) / s) + mp.mpf(p) * mp.ncdf((shift - mp.mpf(x)) / s)


@pytest.mark.parametrize(("p", "s"), SIDED)
@pytest.mark.parametrize("shift", [1, 2])
def test_losses_of_one_sign_by_mpmath(p, s, shift):
    loss = OneSidedLoss(p, shift, s, remove=True)
    x = np.linspace(*loss.outputs(), 21)
    off, relative = loss.rounding(x)
    with mp.workdps(60):
        for at, found, most in zip(x, loss.log_ratio(x), off, strict=True):
            true = mp.log(exact_mixture(p, shift, s, at) / exact_mixture(p, shift - 1, s, at))
            assert abs(true - mp.mpf(float(found))) <= most
            assert true >= -1e-50
        for remove, mean in ((True, shift), (False, shift - 1)):
            one = OneSidedLoss(p, shift, s, remove=remove)
            assert one.whole == pytest.approx(float(exact_above(p, mean, s, shift - 0.5)), rel=1e-13)
            log_density = one._log_density(x, x)
            for at, found, most in zip(x[:12], log_density[:12], relative[:12], strict=True):
                true = exact_mixture(p, mean, s, at) * mp.npdf(mp.mpf(float(at)), 0, s)
                assert abs(mp.exp(mp.mpf(float(found))) / true - 1) <= max(most, relative[11])
    assert np.all(np.diff(loss.log_ratio(x)) > 0.0)
    wanted = np.geomspace(1e-6, 0.99 * loss.interval()[1], 50)
    assert loss.log_ratio(loss.output_at(wanted)) == pytest.approx(wanted, rel=1e-6, abs=1e-9)
    losses, logs = loss.sampled()
    assert float(np.exp(logs).sum()) == pytest.approx(loss.whole, rel=1e-12)
    assert float(losses.min()) >= 0.0


def exact_curve(law, eps, *, remove):
    """(1 - tau) of Poisson sampling and tau of the full batches' largest curve, by normal tails."""
    q, p, s = law.sampling_prob, law.kept[1], law.sigma_over_sensitivity
    found = mp.mpf(0)
    if q < 1.0:
        start = float(Loss(q, s, True).output_at(np.array([eps if remove else -eps]))[0])
        if remove:
            stick = exact_above(q, 1, s, start) - mp.exp(eps) * exact_above(q, 0, s, start)
        elif -eps <= math.log1p(-q):
            stick = mp.mpf(0)
        else:
            stick = (1 - exact_above(q, 0, s, start)) - mp.exp(eps) * (1 - exact_above(q, 1, s, start))
        found += mp.mpf(law.untruncated[1]) * stick
    shift = 2 if remove else 1
    start = shift - 0.5
    if eps > 0.0:
        start = float(OneSidedLoss(p, shift, s, remove=True).output_at(np.array([eps]))[0])
    stick = exact_above(p, shift, s, start) - mp.exp(eps) * exact_above(p, shift - 1, s, start)
    return found + mp.mpf(law.truncated[1]) * stick


@pytest.mark.parametrize(
    ("q", "most", "size", "s"), [(0.3, 4, 12, 1.2), (0.01, 9, 700, 0.6), (1.0, 3, 9, 2.0)]
)
@pytest.mark.parametrize("remove", [True, False])
def test_lattices_are_on_their_sides_of_the_curve(q, most, size, s, remove):
    odds = cut(q, most, size).truncation
    law = TruncatedLoss(q, odds.untruncated, odds.truncated, odds.kept, s, remove)
    low, high = law.interval()
    step = (high - low) / 900
    nodes = law.quadrature(np.linspace(low - 0.1, high + 0.1, 400), upwards=True)
    assert float(nodes[1].sum()) == pytest.approx(1.0, abs=1e-9)
    # Under Q it is a law as well: what is P-mass at l is Q-mass times e^l.
    assert float((nodes[1] * np.exp(-nodes[0])).sum()) == pytest.approx(1.0, abs=1e-8)
    for eps in (0.0, 0.3, 1.1, 2.5):
        with mp.workdps(30):
            true = exact_curve(law, eps, remove=remove)
        found = []
        for lattice in (lower_lattice(law, step), upper_lattice(law, step)):
            losses = lattice.losses()
            above = losses > eps
            found.append(
                float(np.sum(lattice.masses[above] * -np.expm1(eps - losses[above]))) + lattice.infinite_mass
            )
        assert found[0] <= true * (1 + mp.mpf(1e-8)) + mp.mpf(1e-15)
        assert true * (1 - mp.mpf(1e-12)) <= found[1]
        assert found[1] <= 1.2 * float(true) + 1e-4


@pytest.mark.parametrize(
    ("q", "most", "size", "s", "eps"),
    [(0.3, 4, 12, 1.2, 0.8), (0.02, 9, 300, 0.7, 1.5), (1.0, 3, 9, 1.0, 0.2)],
)
def test_one_step_by_normal_tails_and_by_the_checker(q, most, size, s, eps):
    found = dm.delta(mechanism(q, most, size), s, eps)
    odds = cut(q, most, size).truncation
    with mp.workdps(30):
        true = max(
            exact_curve(
                TruncatedLoss(q, odds.untruncated, odds.truncated, odds.kept, s, side), eps, remove=side
            )
            for side in (True, False)
        )
    assert float(true) <= found.upper <= 1.002 * float(true)
    least, greatest = truncated_delta(q, most, size, s, 1, eps, losses=1000)
    assert least <= float(true) <= greatest <= 1.004 * float(true)


@pytest.mark.parametrize(
    ("q", "most", "size", "sigma", "steps", "eps"),
    [
        (1.0, 5, 200, 1.5, 5, 1.0),
        pytest.param(0.05, 8, 100, 2.0, 50, 1.0, marks=pytest.mark.slow),
        pytest.param(0.01, 15, 1000, 1.0, 200, 2.0, marks=pytest.mark.slow),
    ],
)
def test_compositions_by_the_checker(q, most, size, sigma, steps, eps):
    found = dm.delta(mechanism(q, most, size, steps), sigma, eps)
    least, greatest = truncated_delta(q, most, size, sigma, steps, eps)
    assert least <= found.upper <= 1.01 * greatest
    assert greatest <= 1.01 * least
    assert joined_prob(q, most, size) == pytest.approx(cut(q, most, size).truncation.joined[0], rel=1e-9)


# ---- against what others know


@pytest.mark.slow
@pytest.mark.parametrize(
    ("q", "most", "size", "sigma", "steps"),
    [(0.01, 120, 10_000, 1.0, 1000), (0.05, 50, 1000, 5.0, 100), (0.5, 30, 50, 3.0, 1)],
)
def test_another_package_says_no_less(q, most, size, sigma, steps):
    """It bounds a full batch by examples replaced at twice the norm, for every adjacency."""
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    one = pld.from_truncated_subsampled_gaussian_mechanism(
        size, q, most, sigma, value_discretization_interval=1e-3
    )
    theirs = one.self_compose(steps).get_epsilon_for_delta(1e-5)
    ours = dm.epsilon(mechanism(q, most, size, steps), sigma, 1e-5)
    assert ours.lower < ours.upper < theirs


@pytest.mark.slow
def test_where_nothing_is_truncated_it_is_poisson_sampling():
    """And so says the other package."""
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    plain = dm.epsilon(dm.Identity(100), 1.0, 1e-5, participation=dm.Poisson(0.01))
    found = dm.epsilon(mechanism(0.01, 60, 1000, 100), 1.0, 1e-5)
    assert found.upper == pytest.approx(plain.upper, rel=1e-3)
    assert found.lower == pytest.approx(plain.lower, rel=1e-3)
    one = pld.from_truncated_subsampled_gaussian_mechanism(
        1000, 0.01, 60, 1.0, value_discretization_interval=1e-3
    )
    assert found.upper == pytest.approx(one.self_compose(100).get_epsilon_for_delta(1e-5), rel=5e-3)


@pytest.mark.slow
def test_rare_truncation_is_added_to_delta():
    batches = cut(0.01, 62, 2000)
    often = 100 * batches.truncation.truncated[1]
    assert 1e-13 < often < 1e-9
    whole = dm.delta(dm.Identity(100), 1.0, 1.0, participation=dm.Poisson(0.01))
    found = dm.delta(mechanism(0.01, 62, 2000, 100), 1.0, 1.0)
    assert whole.upper + often <= found.upper <= (whole.upper + often) * (1.0 + 1e-9)
    assert found.lower <= whole.upper
    eps = dm.epsilon(mechanism(0.01, 62, 2000, 100), 1.0, 1e-5)
    assert dm.epsilon(dm.Identity(100), 1.0, 1e-5, participation=dm.Poisson(0.01)).lower <= eps.upper
    assert dm.delta(mechanism(0.01, 62, 2000, 100), 1.0, eps.upper).lower <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(("most", "expected"), [(80, 1.69), (120, 1.46), (160, 1.029)])
def test_smaller_batches_need_more_noise(most, expected):
    cal = dm.calibrate_sigma(mechanism(0.01, most, 10_000, 1000), 2.0, 1e-6)
    assert cal.sigma == pytest.approx(expected, rel=0.01)
    assert cal.achieved.upper <= 2.0
    assert dm.delta(cal.mechanism, cal.sigma, 2.0).upper <= 1e-6
    assert truncated_delta(0.01, most, 10_000, cal.sigma / 1.002, 1000, 2.0)[0] > 1e-6


# ---- what a run shows that does something else


def lowest_epsilon(batches, s, delta):
    """A lower bound on eps by a test of 200,000 single steps, each way; alpha 1e-6.

    The others' gradients are against the example's, so that how many of them were kept shows. The test is
    the likelihood ratio, cut at every one of 25 levels.
    """
    q, most, size = batches
    rng = np.random.default_rng(11)
    runs = 200_000

    def outputs(present):
        mine = rng.random(runs) < q
        others = rng.binomial(size - 1, q, runs)
        kept = mine & (rng.random(runs) * (others + 1) < most)
        held = np.minimum(others, most) - (kept & (others >= most))
        return -held + present * kept + s * rng.standard_normal(runs), held, kept

    both = [outputs(present) for present in (1.0, 0.0)]
    held, kept = (np.concatenate([one[place] for one in both]) for place in (1, 2))
    table = {}
    for at, own in zip(held, kept, strict=True):
        table[(int(at), bool(own))] = table.get((int(at), bool(own)), 0) + 1 / (2 * runs)

    def log_ratio(x):
        first = sum(w * np.exp(-((x + at - own) ** 2) / (2 * s * s)) for (at, own), w in table.items())
        second = sum(w * np.exp(-((x + at) ** 2) / (2 * s * s)) for (at, _), w in table.items())
        return np.log(first / second)

    inside, outside = (np.sort(log_ratio(one[0])) for one in both)
    best = -math.inf
    for level in np.linspace(0.1, inside[-200], 25):
        hits, false = runs - np.searchsorted(inside, level), runs - np.searchsorted(outside, level)
        low = stats.beta.ppf(1e-6 / 50, hits, runs - hits + 1)
        high = stats.beta.ppf(1 - 1e-6 / 50, false + 1, runs - false)
        if low > delta:
            best = max(best, math.log((low - delta) / high))
    return best


@pytest.mark.parametrize(
    ("claimed", "actual", "s"),
    [
        # The dataset is larger than stated, so that batches are full; smaller, so that examples join more
        # often.
        pytest.param((0.05, 10, 20), (0.05, 10, 500), 0.5, marks=pytest.mark.slow),
        pytest.param((1.0, 5, 100), (1.0, 5, 10), 0.8, marks=pytest.mark.slow),
        # Batches are larger than stated.
        ((1.0, 1, 12), (1.0, 6, 12), 0.8),
    ],
)
def test_a_run_of_another_size_is_found_out(claimed, actual, s):
    delta = 0.005
    certified = dm.epsilon(mechanism(*claimed), s, delta).upper
    assert lowest_epsilon(actual, s, delta) > certified
    honest = dm.epsilon(mechanism(*actual), s, delta).upper
    assert 0.3 * honest < lowest_epsilon(actual, s, delta) < honest


# ---- from calibration to verdict


@functools.cache
def calibrated(steps):
    return dm.calibrate_sigma(mechanism(0.05, 8, 100, steps), 2.0, 1e-5)


@pytest.mark.parametrize("steps", [1, pytest.param(12, marks=pytest.mark.slow)])
def test_from_calibration_to_verdict(tmp_path, steps):
    cal = calibrated(steps)
    assert (cal.sensitivity.upper, cal.guarantee) == (1.0, dm.Guarantee(dm.Kind.BOUND))
    assert "at most 8 of 100 kept" in str(cal.achieved.by)
    certificate = cal.certificate(clip_norm=1.0)
    certificate.save(tmp_path / "cut.json")
    again = dm.Certificate.load(tmp_path / "cut.json")
    assert again == certificate
    assert again.participation == cut(0.05, 8, 100)
    for words in ("exactly 100 examples", "more than 8 are drawn", "zero_out"):
        assert words in str(again)
    found = dm.verify(tmp_path / "cut.json", rigorous=True)
    assert found.ok, found.failures
    assert found.claim is Kind.PROVED


@pytest.mark.parametrize("batches", [(0.05, 9, 100), (0.05, 7, 100), (0.05, 8, 120), (0.06, 8, 100)])
def test_verify_refuses_a_claim_about_other_batches(batches):
    cal = calibrated(1)
    forged = with_checksum(dataclasses.replace(cal, mechanism=mechanism(*batches)))
    assert not dm.verify(forged.certificate()).ok


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_published_claim_with_cut_batches_can_be_checked():
    """Of the size of a language model: 100,000 batches of half a million out of 1.3e10 sequences."""
    size, batch, most = 12_700_000_000, 518_144, 525_000
    batches = mechanism(batch / size, most, size, steps=100_000)
    claim = dm.certify_sigma(batches, 0.614, delta=1.1e-10)
    assert claim.budget.eps <= 2.0
    found = dm.verify(claim.certificate(expected_batch_size=float(batch)))
    assert found.ok, found.failures


@pytest.mark.slow
def test_a_profile_bounds_the_curve():
    cal = dm.calibrate_sigma(mechanism(0.1, 4, 30, 10), 2.0, 1e-5)
    found = cal.profile(rel_error=0.05)
    for eps in (0.1, 0.5):
        whole = dm.delta(cal.mechanism, cal.sigma, eps)
        assert whole.lower <= found.delta(eps).upper
        assert 0.99 * whole.upper <= found.delta(eps).upper <= 1.2 * whole.upper
    with pytest.raises(dm.UnsupportedCombinationError, match="which nothing checks"):
        cal.certificate(profile=found)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: cut(0.0, 2, 9), "sampling_prob must be"),
        (lambda: cut(0.1, 0, 9), "truncated_batch_size must be an integer"),
        (lambda: cut(0.1, 9, 9), "truncated_batch_size must be less than dataset_size=9"),
        (lambda: cut(0.1, 1, 1), "dataset_size must be an integer"),
        (
            lambda: dm.Poisson(0.1, truncated_batch_size=3),
            "truncated_batch_size and dataset_size belong together",
        ),
        (lambda: dm.Poisson(0.1, dataset_size=3), "truncated_batch_size must be given"),
    ],
)
def test_bad_arguments_are_named(call, words):
    with pytest.raises(dm.InvalidParameterError, match=words):
        call()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda at: dm.Mechanism(dm.Identity(8), at), "ADD_REMOVE .* whether others are kept depends"),
        (lambda at: dm.Mechanism(dm.Identity(8), at, dm.Adjacency.REPLACE_ONE), "REPLACE_ONE"),
        (
            lambda at: dm.calibrate_sigma(
                dm.LambdaCGD(8, 0.5), 2.0, 1e-5, participation=at, adjacency=ZERO_OUT
            ),
            "independent, equal noise",
        ),
        *(
            (
                lambda at, method=method: dm.calibrate_sigma(
                    dm.Identity(8), 2.0, 1e-5, participation=at, adjacency=ZERO_OUT, method=method
                ),
                "does not apply to Poisson",
            )
            for method in (dm.methods.Rdp(), dm.methods.Prv(), dm.methods.Exact())
        ),
        (
            lambda at: dm.optimize(dm.LambdaCGD, at, n=8, eps=2.0, delta=1e-5, adjacency=ZERO_OUT),
            "nothing is fitted under Poisson",
        ),
        (
            lambda at: dm.audits.empirical_epsilon(
                dm.Identity(8), 1.0, 0.1, participation=at, adjacency=ZERO_OUT
            ),
            "no test under Poisson",
        ),
        (
            lambda at: dm.Poisson(0.1, 2, truncated_batch_size=at.truncated_batch_size, dataset_size=9),
            "users with several",
        ),
    ],
)
def test_what_is_not_covered_is_refused(call, words):
    with pytest.raises(dm.UnsupportedCombinationError, match=words):
        call(cut(0.1, 3, 20))


def test_every_sigma_meets_a_delta_above_the_chance_to_take_part():
    with pytest.raises(dm.UnattainableBudgetError, match=r"takes part with probability 0\.1 only"):
        dm.calibrate_sigma(mechanism(1.0, 2, 20), 1.0, 0.2)


def test_an_error_says_what_to_try(monkeypatch):
    def fail(self, *given, **options):
        raise dm.NumericalError("no lattice")

    found = accountant_for(mechanism(0.05, 8, 100, 3), None)
    for name in ("delta", "bracket", "epsilon"):
        monkeypatch.setattr(LatticeRoute, name, fail)
    for ask in (found.bounded_delta, found.upper_delta, found.epsilon):
        with pytest.raises(dm.NumericalError, match=r"no lattice; .* Try a larger truncated_batch_size"):
            ask(1.0, 0.5, tolerance=1e-3)
