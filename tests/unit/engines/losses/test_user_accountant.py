"""Users with several Poisson-sampled examples: against mpmath, another package, vectors, planted faults."""

import itertools
import math

import mpmath as mp
import numpy as np
import pytest
from scipy import optimize, stats

import dpmech as dm
from dpmech.checker import Kind
from dpmech.engines.losses.lattice import Loss, lower_lattice, upper_lattice
from dpmech.engines.losses.step_losses import MixtureLoss
from dpmech.schemes import accountant_for
from tests.support.checked_compositions import users_delta

CASES = [(0.3, 2, 1.3), (0.05, 5, 4.0), (1e-4, 20, 9.0), (0.9, 3, 2.0)]
cases = pytest.mark.parametrize(("q", "m", "s"), CASES)
directions = pytest.mark.parametrize("remove", [True, False])


def users(q, m):
    return dm.Poisson(q, max_examples_per_user=m)


def exact_ratio(q, m, s, x):
    """Log of the mixture over the noise, to 40 digits."""
    with mp.workdps(40):
        q, s, x = mp.mpf(q), mp.mpf(s), mp.mpf(x)
        terms = (
            mp.binomial(m, k) * q**k * (1 - q) ** (m - k) * mp.exp((k * x - mp.mpf(k * k) / 2) / s**2)
            for k in range(m + 1)
        )
        return mp.log(mp.fsum(terms))


def exact_delta(q, m, s, eps, *, remove):
    """One step, by integrals of both densities in mpmath beyond where they are equal."""
    with mp.workdps(25):
        level = mp.mpf(eps if remove else -eps)
        low, high = mp.mpf(-60 * s), mp.mpf(60 * s + m)
        if not exact_ratio(q, m, s, low) < level < exact_ratio(q, m, s, high):
            return mp.mpf(0)
        for _ in range(90):
            start = (low + high) / 2
            low, high = (start, high) if exact_ratio(q, m, s, start) < level else (low, start)
        weights = [mp.binomial(m, k) * mp.mpf(q) ** k * (1 - mp.mpf(q)) ** (m - k) for k in range(m + 1)]
        above = [mp.ncdf((k - start) / mp.mpf(s)) for k in range(m + 1)]
        mixed = mp.fsum(w * p for w, p in zip(weights, above, strict=True))
        if remove:
            return mixed - mp.exp(eps) * above[0]
        return (1 - above[0]) - mp.exp(eps) * (1 - mixed)


@cases
def test_the_ratio_is_off_by_no_more_than_it_says(q, m, s):
    loss = MixtureLoss(q, m, s, True)
    x = np.linspace(*loss.outputs(), 23)
    off, relative = loss.rounding(x)
    errors = [
        abs(float(exact_ratio(q, m, s, float(at)) - float(one)))
        for at, one in zip(x, loss.log_ratio(x), strict=True)
    ]
    assert np.all(errors <= off)
    assert off.max() < 1e-9
    for at, one in zip(x[5:18], np.exp(loss.log_density(x))[5:18], strict=True):
        true = mp.exp(exact_ratio(q, m, s, float(at))) * mp.npdf(mp.mpf(float(at)), 0, s)
        assert abs(one / true - 1) <= relative[5:18].max()


@cases
def test_the_inverse_finds_the_output(q, m, s):
    loss = MixtureLoss(q, m, s, True)
    low, high = loss.interval()
    wanted = np.linspace(max(low, loss.least_ratio) + 1e-6 * (high - low), high, 400)[:-1]
    assert np.abs(loss.log_ratio(loss.output_at(wanted)) - wanted).max() <= 1e-11 * (1.0 + high)


@directions
def test_one_example_is_the_loss_of_poisson_sampling(remove):
    one, other = MixtureLoss(0.02, 1, 0.9, remove), Loss(0.02, 0.9, remove)
    x = np.linspace(*other.outputs(), 301)
    assert one.log_ratio(x) == pytest.approx(other.log_ratio(x), abs=1e-12)
    assert (one.interval(), one.least_ratio) == (pytest.approx(other.interval()), other.least_ratio)


@cases
@directions
def test_lattices_are_on_their_sides_of_one_step(q, m, s, remove):
    loss = MixtureLoss(q, m, s, remove)
    low, high = loss.interval()
    step = (high - low) / 700
    for eps in (0.0, 0.1 * min(high, 8.0), 0.5 * min(high, 8.0)):
        true = exact_delta(q, m, s, eps, remove=remove)
        found = []
        for lattice in (lower_lattice(loss, step), upper_lattice(loss, step)):
            losses = lattice.losses()
            above = losses > eps
            found.append(
                float(np.sum(lattice.masses[above] * -np.expm1(eps - losses[above]))) + lattice.infinite_mass
            )
        assert found[0] <= true * (1 + mp.mpf(1e-13))
        assert true * (1 - mp.mpf(1e-13)) <= found[1]


@pytest.mark.parametrize(
    ("q", "m", "sigma", "eps"), [(0.3, 2, 1.3, 0.7), (0.05, 5, 2.0, 2.0), (0.01, 20, 6.0, 0.1)]
)
def test_one_step_by_mpmath(q, m, sigma, eps):
    found = dm.delta(dm.Identity(1), sigma, eps, participation=users(q, m))
    true = float(max(exact_delta(q, m, sigma, eps, remove=remove) for remove in (True, False)))
    assert found.lower <= true <= found.upper <= 1.01 * found.lower
    # A fault of 1 % in sigma, or of one example, is seen.
    for wrong in ((q, m, 1.01 * sigma), (q, m + 1, sigma), (q, m - 1, sigma)):
        other = float(max(exact_delta(*wrong, eps, remove=remove) for remove in (True, False)))
        assert not found.lower <= other <= found.upper


@pytest.mark.parametrize(
    ("q", "m", "sigma", "steps", "eps", "log_gap"),
    [
        # One refinement brings no gain, and more do.
        (0.05, 2, 0.67, 100, 6.58, 1e-3),
        # Losses are rare and large: Chernoff's bound is far above delta, and far tails are no reason to stop.
        (1e-4, 3, 2.1, 20, 0.0, 1e-3),
        (7e-4, 5, 1.13, 2, 0.0966, 1e-3),
    ],
)
def test_rare_and_large_losses_are_resolved(q, m, sigma, steps, eps, log_gap):
    found = dm.delta(dm.Identity(steps), sigma, eps, participation=users(q, m))
    assert found.upper <= found.lower * math.exp(log_gap)
    if eps > 1.0:
        least, most = users_delta(q, m, sigma, steps, eps)
        assert least <= found.upper
        assert found.lower <= most
        return
    # Steps in which nobody of the user is there lose next to nothing; by a sum over all of two of 20,000.
    x = np.linspace(-12.0 * sigma, 12.0 * sigma + m, 20_001)
    k = np.arange(m + 1)
    logs = stats.binom.logpmf(k, m, q) + (k * x[:, None] - k * k / 2) / sigma**2
    loss = np.logaddexp.reduce(logs, axis=1)
    masses = stats.norm.pdf(x, 0, sigma) * np.exp(loss) * (x[1] - x[0])
    # Unions of single steps: one alone from below, all of them one after another from above.
    alone = float(np.sum(masses * np.maximum(-np.expm1(eps - loss), 0.0)))
    assert alone <= found.upper
    assert found.lower <= steps * float(np.sum(masses * np.maximum(-np.expm1(eps / steps - loss), 0.0)))


@pytest.mark.parametrize(
    ("q", "m", "sigma", "steps", "eps"),
    [pytest.param(0.3, 4, 2.0, 5, 6.0, marks=pytest.mark.slow), (0.01, 5, 3.0, 200, 1.0)],
)
def test_compositions_against_another_package(q, m, sigma, steps, eps):
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    shifts = [float(k) for k in range(m + 1)]
    one = pld.from_mixture_gaussian_mechanism(
        sigma, shifts, list(stats.binom.pmf(shifts, m, q)), value_discretization_interval=1e-3
    )
    above = one.self_compose(steps).get_delta_for_epsilon(eps)
    found = dm.delta(dm.Identity(steps), sigma, eps, participation=users(q, m))
    assert found.lower <= above * (1.0 + 1e-9)
    # It is an upper bound as well, up to what its lattice adds.
    assert found.upper >= 0.99 * above
    assert found.upper <= 1.01 * found.lower
    least, most = users_delta(q, m, sigma, steps, eps)
    assert least <= found.upper
    assert found.lower <= most <= 1.02 * least


@pytest.mark.slow
def test_one_example_is_poisson_sampling_and_a_user_costs_less_than_a_group():
    plan = dm.Identity(100)
    one = dm.calibrate_sigma(plan, 2.0, 1e-5, participation=users(0.02, 1))
    same = dm.calibrate_sigma(plan, 2.0, 1e-5, participation=dm.Poisson(0.02))
    assert one.sigma == pytest.approx(same.sigma, rel=1e-3)
    assert (one.unit, same.unit) == (dm.Unit.USER, dm.Unit.EXAMPLE)
    three = dm.calibrate_sigma(plan, 2.0, 1e-5, participation=users(0.02, 3))
    # Group privacy asks every example for eps / 3, and for a delta that is smaller still.
    group = dm.calibrate_sigma(plan, 2.0 / 3, 1e-5 / (3 * math.exp(2.0)), participation=dm.Poisson(0.02))
    assert one.sigma < three.sigma < group.sigma


def test_vectors_cost_no_more_than_shifts_along_one_line():
    """Two examples with gradients at an angle, in the plane: both hockey sticks, on a grid."""
    q, s = 0.4, 0.9
    grid = np.linspace(-7.0, 9.0, 401)
    x, y = np.meshgrid(grid, grid)
    cell = (grid[1] - grid[0]) ** 2

    def density(mean):
        return stats.norm.pdf(x, mean[0], s) * stats.norm.pdf(y, mean[1], s)

    for eps, remove in itertools.product((0.0, 0.5, 1.5), (True, False)):
        found = []
        for angle, length in ((0.0, 1.0), (0.4, 1.0), (math.pi / 2, 1.0), (3.0, 1.0), (0.0, 0.3)):
            first = np.array([1.0, 0.0])
            second = length * np.array([math.cos(angle), math.sin(angle)])
            mixed = sum(
                q ** (a + b) * (1 - q) ** (2 - a - b) * density(a * first + b * second)
                for a, b in itertools.product((0, 1), repeat=2)
            )
            one, other = (mixed, density((0, 0))) if remove else (density((0, 0)), mixed)
            found.append(cell * float(np.maximum(one - math.exp(eps) * other, 0.0).sum()))
        true = float(exact_delta(q, 2, s, eps, remove=remove))
        assert found[0] == pytest.approx(true, rel=1e-3, abs=1e-6)
        assert max(found[1:]) <= true * (1.0 + 1e-3) + 1e-6


@pytest.mark.parametrize(("q", "m", "sigma", "eps"), [(0.3, 2, 1.3, 0.3), (0.9, 3, 4.0, 0.2)])
def test_each_direction_by_itself(q, m, sigma, eps):
    """No plan is known where ADD decides, so that a result alone would not miss it."""
    found = accountant_for(dm.Mechanism(dm.Identity(1), users(q, m)), None)
    sides = found.route.sides(sigma)
    assert [side.loss.remove for side in sides] == [True, False]
    for side in sides:
        true = float(exact_delta(q, m, sigma, eps, remove=side.loss.remove))
        lower, upper = side.delta(eps, 1e-3)
        assert 0.0 < lower <= true <= upper <= 1.01 * lower


class Told:
    """A direction that says what it is told to; one without ends is not to be looked at."""

    def __init__(self, ceiling, ends=None):
        self.moments, self.log_ceiling, self.ends = self, math.log(ceiling), ends

    def chernoff_log_delta(self, eps):
        return self.log_ceiling

    def steepness(self, eps):
        return 1.0

    def delta(self, eps, tolerance, *, settled=0.0):
        assert self.ends is not None
        return self.ends


def test_a_direction_is_left_out_only_far_below_the_other(monkeypatch):
    route = accountant_for(dm.Mechanism(dm.Identity(2), users(0.1, 2)), None).route
    first = Told(0.9, (0.2, 0.3))
    for second, expected in [
        (Told(0.8, (0.4, 0.5)), (0.4, 0.5)),
        (Told(0.8, (0.1, 0.5)), (0.2, 0.5)),
        (Told(0.8, (0.1, 0.15)), (0.2, 0.3)),
        # Chernoff's bound comes from a quadrature: twice of it has to be below.
        (Told(0.11, (0.1, 0.35)), (0.2, 0.35)),
        (Told(0.09), (0.2, 0.3)),
    ]:
        for both in ((first, second), (second, first)):
            monkeypatch.setattr(type(route), "sides", lambda self, sigma, both=both: both)
            assert route.bracket(1.0, 0.5, 1e-3)[:2] == expected


class Asked(Told):
    """One direction whose eps and Chernoff bounds are told, and which notes whether its eps is asked for."""

    def __init__(self, eps, ceiling, ends):
        super().__init__(ceiling, ends)
        self.moments.chernoff_eps = lambda log_delta: eps
        self.calls = 0

    def epsilon(self, delta, tolerance, *, settled=0.0):
        self.calls += 1
        return self.ends


def test_a_direction_has_no_lattice_where_its_eps_cannot_be_the_larger(monkeypatch):
    route = accountant_for(dm.Mechanism(dm.Identity(2), users(0.1, 2)), None).route
    # Of the second one, Chernoff's bound on delta at the other's lower end: twice of it has to be below 1e-5.
    for ceiling, calls, expected in [(0.49e-5, 0, (2.0, 2.001)), (0.51e-5, 1, (2.005, 2.01))]:
        for turned in (False, True):
            larger, other = Asked(2.1, 1.0, (2.0, 2.001)), Asked(2.05, ceiling, (2.005, 2.01))
            both = (other, larger) if turned else (larger, other)
            monkeypatch.setattr(type(route), "sides", lambda self, sigma, both=both: both)
            assert route.epsilon(1.0, 1e-5, 1e-3) == expected
            assert (larger.calls, other.calls) == (1, calls)


def rounded_epsilon(q, sigma, steps, delta, step):
    """Lower and upper eps of direction REMOVE for two examples: all losses rounded down, all rounded up.

    The law of one loss is that of a fine rule in the output; delta is above what an FFT rounds.
    """
    x = np.arange(-9.0 * sigma, 2.0 + 9.0 * sigma, 1e-4 * sigma)
    weights = np.array([(1 - q) ** 2, 2 * q * (1 - q), q * q])
    pure = stats.norm.pdf(x[:, None], [0.0, 1.0, 2.0], sigma)
    mass = pure @ weights * 1e-4 * sigma
    shift = np.arange(3.0)
    logs = np.log(weights) + (shift * x[:, None] - shift**2 / 2) / sigma**2
    places = np.floor(np.logaddexp.reduce(logs, axis=1) / step).astype(int)
    first, length = places.min(), 1 << 21
    spectrum = np.fft.rfft(np.bincount(places - first, mass, length))
    law = np.fft.irfft(spectrum**steps, length)
    losses = (steps * first + np.arange(length)) * step
    assert law[-length // 4 :].max() < 1e-15

    def excess(eps):
        above = losses > eps
        return float(law[above] @ -np.expm1(eps - losses[above])) - delta

    lower = optimize.brentq(excess, 0.0, losses[-1], xtol=1e-6)
    return lower, lower + steps * step


def test_little_noise_against_losses_rounded_down_and_up():
    q, sigma, steps = 0.01, 0.1, 1000
    least, most = rounded_epsilon(q, sigma, steps, 1e-5, 4e-3)
    assert most <= 1.002 * least
    # The losses of ADD have a maximum, which is far below.
    assert -2 * steps * math.log1p(-q) < 0.02 * least
    found = dm.epsilon(dm.Identity(steps), sigma, 1e-5, participation=users(q, 2))
    assert found.lower <= most
    assert least <= found.upper <= 1.001 * found.lower
    # One per cent of noise is seen.
    other = dm.epsilon(dm.Identity(steps), 1.01 * sigma, 1e-5, participation=users(q, 2))
    assert other.upper < least
    cal = dm.calibrate_sigma(dm.Identity(steps), least, 1e-5, participation=users(q, 2))
    assert cal.sigma == pytest.approx(sigma, rel=2e-3)


@pytest.mark.parametrize("steps", [1, 40])
def test_eps_is_zero_at_a_delta_that_is_no_less_than_the_chance_to_take_part(steps):
    q, m = 0.001, 2
    chance = -math.expm1(m * steps * math.log1p(-q))
    for sigma in (0.01, 0.1, 1.0):
        found = dm.epsilon(dm.Identity(steps), sigma, chance * (1.0 + 1e-12), participation=users(q, m))
        assert (found.lower, found.upper) == (0.0, 0.0)
    # With little noise whoever takes part is seen: a delta slightly below is not met.
    assert dm.epsilon(dm.Identity(steps), 0.1, 0.99 * chance, participation=users(q, m)).lower > 0.0


def test_the_larger_direction_decides_whichever_comes_first(monkeypatch):
    q, m, sigma, steps, eps = 0.2, 2, 2.0, 8, 1.0
    found = accountant_for(dm.Mechanism(dm.Identity(steps), users(q, m)), None)
    remove, add = found.route.sides(sigma)
    assert add.delta(eps, 1e-3)[1] < 0.9 * remove.delta(eps, 1e-3)[0]
    known = found.delta(sigma, eps, tolerance=1e-3)
    at = found.epsilon(sigma, 1e-4, tolerance=1e-3)
    assert add.epsilon(1e-4, 1e-3)[1] < 0.99 * at.lower
    monkeypatch.setattr(type(found.route), "sides", lambda self, sigma: (add, remove))
    assert found.delta(sigma, eps, tolerance=1e-3) == known
    again = found.epsilon(sigma, 1e-4, tolerance=1e-3)
    assert again.lower <= at.upper <= 1.001 * again.upper
    assert at.lower <= again.upper <= 1.001 * at.upper


def test_a_run_with_one_example_more_than_stated_is_found_out():
    plan = dm.Identity(3)
    cal = dm.calibrate_sigma(plan, 1.0, 0.01, participation=users(0.5, 2))
    honest = dm.audits.empirical_epsilon(
        plan, cal.sigma, 0.01, participation=users(0.5, 2), samples=100_000, rng=1
    )
    assert 0.7 < honest.lower < 1.0
    more = dm.audits.empirical_epsilon(
        plan, cal.sigma, 0.01, participation=users(0.5, 3), samples=100_000, rng=1
    )
    assert more.lower > 1.1


def test_from_calibration_to_verdict(tmp_path):
    cal = dm.calibrate_sigma(dm.Identity(40), 2.0, 1e-5, participation=users(0.05, 3))
    assert cal.achieved.upper <= 2.0
    assert dm.delta(cal.mechanism, cal.sigma, 2.0).upper <= 1e-5
    assert dm.delta(cal.mechanism, cal.sigma / 1.001, 2.0).lower > 1e-5
    assert (cal.sensitivity.upper, cal.guarantee) == (3.0, dm.Guarantee(dm.Kind.BOUND))
    assert "unit user" in str(cal)
    certificate = cal.certificate(clip_norm=1.0)
    certificate.save(tmp_path / "users.json")
    again = dm.Certificate.load(tmp_path / "users.json")
    assert again == certificate
    assert (again.unit, again.participation) == (dm.Unit.USER, users(0.05, 3))
    assert "unit user" in str(again)
    assert "at most 3 examples of every user" in str(again)
    found = dm.verify(tmp_path / "users.json", rigorous=True)
    assert found.ok, found.failures
    assert found.claim is Kind.PROVED


def test_verify_refuses_a_claim_with_more_examples_than_it_was_sized_for():
    import dataclasses

    from dpmech.certificates.claim import with_checksum

    cal = dm.calibrate_sigma(dm.Identity(40), 2.0, 1e-5, participation=users(0.05, 3))
    more = dm.Mechanism(cal.strategy, users(0.05, 4))
    for sensitivity in (cal.sensitivity, more.sensitivity):
        forged = with_checksum(dataclasses.replace(cal, mechanism=more, sensitivity=sensitivity))
        assert not dm.verify(forged.certificate()).ok


@pytest.mark.slow
def test_a_profile_bounds_the_curve_and_says_whose_it_is():
    mechanism = dm.Mechanism(dm.Identity(10), users(0.1, 2))
    found = dm.profile(mechanism, 3.0, rel_error=0.05)
    assert found.unit is dm.Unit.USER
    for eps in (0.1, 0.5, 1.0):
        assert found.delta(eps).upper >= dm.delta(mechanism, 3.0, eps).lower
        assert found.delta(eps).upper <= 1.2 * dm.delta(mechanism, 3.0, eps).upper
    with pytest.raises(dm.UnsupportedCombinationError, match="one adjacency and one unit"):
        found.compose(dm.profile(dm.Identity(10), 3.0, participation=dm.Poisson(0.1)))


def test_a_ledger_holds_one_unit():
    of_users = dm.calibrate_sigma(dm.Identity(10), 2.0, 1e-5, participation=users(0.1, 2))
    of_examples = dm.calibrate_sigma(dm.Identity(10), 2.0, 1e-5, participation=dm.Poisson(0.1))
    for first, second in itertools.permutations([of_users, of_examples]):
        ledger = dm.Ledger()
        ledger.add("first", first, batch="first")
        with pytest.raises(dm.UnsupportedCombinationError, match="one unit of privacy per ledger"):
            ledger.add("second", second, batch="second")


@pytest.mark.slow
def test_two_runs_in_a_ledger_cost_what_twice_as_many_steps_do():
    of_users = dm.calibrate_sigma(dm.Identity(10), 2.0, 1e-5, participation=users(0.1, 2))
    ledger = dm.Ledger()
    for name in ("first", "second"):
        ledger.add(name, of_users, batch=name)
    whole = dm.epsilon(dm.Identity(20), of_users.sigma, 2e-5, participation=users(0.1, 2))
    assert whole.lower <= ledger.epsilon(2e-5).upper <= 1.1 * whole.upper


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: users(1.0, 2), r"sampling_prob must be .*\(0, 1\)"),
        (lambda: users(0.0, 2), "sampling_prob must be"),
        (lambda: users(0.1, 0), "max_examples_per_user must be an integer"),
        (lambda: users(0.1, 2.5), "max_examples_per_user must be an integer"),
        (lambda: users(0.1, 1001), "max_examples_per_user must be an integer"),
    ],
)
def test_bad_arguments_are_named(call, words):
    with pytest.raises(dm.InvalidParameterError, match=words):
        call()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda at: dm.calibrate_sigma(dm.LambdaCGD(8, 0.5), 2.0, 1e-5, participation=at),
            "independent, equal noise",
        ),
        (
            lambda at: dm.delta(dm.ColumnNormalized(dm.LambdaCGD(4, 0.5)), 2.0, 1.0, participation=at),
            "independent, equal noise",
        ),
        (
            lambda at: dm.delta(dm.Diagonal([1.0, 1.5]), 2.0, 1.0, participation=at),
            "independent, equal noise",
        ),
        (
            lambda at: dm.calibrate_sigma(
                dm.Identity(8), 2.0, 1e-5, participation=at, method=dm.methods.Rdp()
            ),
            r"Rdp\(\)",
        ),
        (
            lambda at: dm.calibrate_sigma(
                dm.Identity(8), 2.0, 1e-5, participation=at, method=dm.methods.Prv()
            ),
            r"Prv\(\)",
        ),
        (lambda at: dm.Mechanism(dm.Identity(8), at, dm.Adjacency.REPLACE_ONE), "REPLACE_ONE"),
        (
            lambda at: dm.optimize(dm.LambdaCGD, at, n=8, eps=2.0, delta=1e-5),
            "nothing is fitted under Poisson",
        ),
        (
            lambda at: dm.calibrate_sigma_to(dm.Identity(8), dm.AdvantageTarget(0.1), participation=at),
            "no search for sigma by",
        ),
    ],
)
def test_what_is_not_covered_is_refused(call, words):
    with pytest.raises(dm.UnsupportedCombinationError, match=words):
        call(users(0.1, 2))


def test_every_sigma_meets_a_delta_above_the_chance_to_take_part():
    with pytest.raises(dm.UnattainableBudgetError, match=r"a user takes part with probability 0\.19"):
        dm.calibrate_sigma(dm.Identity(1), 1.0, 0.2, participation=users(0.1, 2))


def test_the_accountant_says_what_it_took():
    found = accountant_for(dm.Mechanism(dm.Diagonal([2.0, 2.0]), users(0.1, 3)), None)
    assert found.sensitivity.upper == pytest.approx(6.0)
    assert found.release.sensitivity.upper == pytest.approx(2.0)
    assert found.method == "PLD on a lattice, Poisson q=0.1, 3 examples a user, 2 steps, both ways"
    twice = dm.epsilon(dm.Diagonal([2.0, 2.0]), 6.0, 1e-5, participation=users(0.1, 3))
    assert twice.upper == pytest.approx(
        dm.epsilon(dm.Identity(2), 3.0, 1e-5, participation=users(0.1, 3)).upper, rel=1e-6
    )
