"""What ledgers are made of, without documents: parts, sums, prices, limits and laws of runs.

Against closed forms, direct sums, integrals and exact laws.
"""

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest
import scipy.integrate
import scipy.optimize
from flint import arb, arb_poly

import dpmech as dm
from dpmech.checker import BadDocument, Kind, Verdict, decide, ledgers
from dpmech.checker.claims import claim_of
from dpmech.checker.confidence import Answer
from dpmech.checker.decide import Direction
from dpmech.checker.documents import decode
from dpmech.checker.losses import (
    Law,
    gaussian_delta,
    hull,
    joined,
    lattice_range,
    law_above,
    reverse,
)
from dpmech.checker.pairs import counts_curve, sampled_curve
from dpmech.checker.strategies import NotChecked
from tests.support.checker_files import certificate
from tests.support.quick_cases import slow_but

# ---- sums


def release_of(lower, upper, delta=1e-5, eps=0.5, runs=None, kind=Kind.PROVED):
    """A release whose mechanism is known to be between two Gaussian ones."""
    claim = claim_of(
        decode(certificate({"type": "Identity", "n": 1}, {"type": "EveryStep"}, eps, delta, 9.0))
    )
    shape, verdict = decide.Gaussian(arb(lower), arb(upper), "known"), Verdict(kind, "", "", 0.0)
    return ledgers._Release(claim, shape, verdict, {}, "one", delta, [], runs)


def stated_kind(square, releases, counts=None, rows=(), **total):
    total = {"gaussian": [0.0, square], "sampled": [], "counts": list(rows)} | total
    return ledgers._stated("it", total, releases, counts or {}).kind


def test_a_sum_of_squares_is_proved_from_above_and_refuted_from_below():
    for square, kind in (
        (7.8, Kind.REFUTED),  # 2^2 + 2^2 = 8
        (8.2, Kind.NOT_CHECKED),
        (12.4, Kind.NOT_CHECKED),
        (12.51, Kind.PROVED),  # 2.5^2 + 2.5^2 = 12.5
    ):
        assert stated_kind(square, 2 * [release_of(2.0, 2.5)]) is kind


@pytest.mark.parametrize(("sigma", "shift", "many"), [(3, 1, 1), (3, 2, 5), (Fraction(5, 2), 3, 2)])
def test_counts_cost_what_their_noise_and_sensitivity_say(sigma, shift, many):
    rho = float(many * Fraction(shift) ** 2 / (2 * Fraction(sigma) ** 2))
    for factor, kind in ((0.99, Kind.REFUTED), (1.01, Kind.PROVED)):
        counts, rows = {(Fraction(sigma), shift): many}, [[factor * rho, float(many)]]
        assert stated_kind(0.0, [], counts, rows) is kind


def test_a_total_is_found_at_no_less_than_the_sum_of_all_deltas(monkeypatch):
    """Of a private selection the mean number of runs counts, and 1 where that is less."""
    monkeypatch.setattr(ledgers, "_directions", lambda *given: ({"REMOVE": Direction((), ())}, 2e-12))
    monkeypatch.setattr(ledgers, "_least_eps", lambda above, delta, seconds: 0.75)
    certifier = ledgers.Certifier(1.0, np.random.default_rng(1))

    def total(*releases, counts=None):
        return ledgers._together("it", list(releases), counts or {}, [], certifier, None)

    three, half = ((arb(mean), lambda curve: arb(1)) for mean in (3.0, 0.5))
    for releases, counts, delta in (
        ([release_of(1, 1), release_of(1, 1, 1e-3)], None, 1.01e-3),
        ([release_of(1, 1, runs=three)], None, 3e-5),
        ([release_of(1, 1, runs=half)], None, 1e-5),
        ([release_of(1, 1, runs=three)], {(Fraction(1), 1): 1}, 3.3e-5),
        ([], {(Fraction(1), 1): 1}, 1e-5),
        (9 * [release_of(1, 1, 0.1)], None, 0.5),
    ):
        verdict = total(*releases, counts=counts)
        assert verdict.failure == 2e-12
        assert float(verdict.reason.split()[-1]) == pytest.approx(delta, rel=1e-12)
    # What the claims add up to is an upper end as well; not at a delta below the sum of theirs.
    assert "at most 2.0000" in total(*(2 * [release_of(1, 1, eps=0.1)])).reason
    assert "at most 7.5000" in total(*(9 * [release_of(1, 1, 0.1, eps=0.1)])).reason
    assert "at most 7.5000" in total(release_of(1, 1, eps=0.1, kind=Kind.NOT_CHECKED)).reason


# ---- nodes and parts


class Nodes:
    """Decides nodes by the parity of their eps."""

    def nodes(self, found, sides, failure):
        for name, nodes in sides.items():
            for node in nodes:
                yield name, node, Answer(verdict=True if node[0] % 2.0 else None, number="", failure=failure)


def test_nodes_that_were_proved_make_a_hull():
    claim = claim_of(decode(certificate({"type": "Identity", "n": 1}, {"type": "EveryStep"}, 2.0, 1e-3, 9.0)))
    verdict, profile = (
        Verdict(Kind.PROVED, "", ""),
        {"REMOVE": [(0.0, 0.1)] + 3 * [(9.0, 0.9)] + [(1.0, 0.1)]},
    )
    release = ledgers._Release(claim, None, verdict, profile, "", 1e-3, [], None)
    (remove, add), failure = ledgers._known(release, 1e-3, Nodes())
    # Both attempts count: which one of them succeeds is chance as well.
    assert (remove.losses, failure) == ((-2.0, 2.0), 2e-12)
    # The node at eps 1 is raised by 5 %; that at eps 0 was not shown.
    assert float(remove.curve(arb(1).exp())) == pytest.approx(0.105)
    assert float(remove.curve(arb(2).exp())) == pytest.approx(1e-3)
    assert remove.curve(arb(1)) > 0.1
    assert add.curve(arb(1).exp()) > 0.105


def test_nodes_that_a_total_rests_on_are_raised_and_large_enough_to_matter():
    asked = []

    class Told(Nodes):
        def nodes(self, found, sides, failure):
            asked.append((sides, failure))
            return super().nodes(found, sides, failure)

    profile = {"REMOVE": [(float(k), (0.99, 0.5, 1e-7, 0.9e-8)[k // 4]) for k in range(16)], "ADD": []}
    release = dataclasses.replace(release_of(1, 1), profile=profile)
    (remove, add), _ = ledgers._known(release, 1e-3, Told())
    raised = [(0.0, 1.0), (4.0, 0.5 * 1.05), (8.0, 1e-7 * 1.05)]
    assert asked == [({"REMOVE": raised, "ADD": []}, 1e-12)]
    assert (remove.times, add.times) == (1, 1)
    assert remove.losses == add.losses == (-0.5, 0.5)
    # Of a claim at eps 0 the curve is looked at about 0 as well.
    (remove, add), _ = ledgers._known(release_of(1, 1, eps=0.0), 1e-3, Nodes())
    assert remove.losses == add.losses == (-(2.0**-10), 2.0**-10)


def test_a_whole_list_is_known_from_both_sides(monkeypatch):
    """Gaussian parts as one, sampled ones as often as they come, counts and claims from above only."""
    certifier = ledgers.Certifier(5.0, np.random.default_rng(1))
    cal = dm.calibrate_sigma(dm.Identity(8), 2.0, 1e-4, participation=dm.Poisson(0.2))
    sampled = decide._shape(claim_of(decode(cal.certificate().to_dict())))
    steps = dataclasses.replace(release_of(1, 1), shape=sampled)
    apart = dataclasses.replace(release_of(1, 1, delta=1e-3), shape=None)
    counts = {(Fraction(20), 1): 3}
    part = ledgers.Part(lambda alpha: arb("0.125"), 1)
    monkeypatch.setattr(ledgers, "_known", lambda release, delta, certifier: ((part, part), 1e-12))
    found, failure = ledgers._directions(
        [release_of(3, 4), steps, release_of(4, 3), apart, steps, apart], counts, 1e-5, certifier
    )
    assert failure == 1e-12  # equal certificates are drawn for once
    assert set(found) == {"REMOVE", "ADD"}
    alpha = arb(3)
    for name, direction in found.items():
        above, below = direction.above, direction.below
        assert [one.times for one in above] == [1, 2 * 8, 3, 2]
        assert [one.times for one in below] == [1, 2 * 8]
        for one, square in ((above[0], 25), (below[0], 25)):
            assert float(one.curve(alpha)) == pytest.approx(float(gaussian_delta(arb(square).sqrt(), alpha)))
        assert above[1].curve is sampled.names[name].above[0].curve
        assert below[1].curve is sampled.names[name].below[0].curve
        assert float(above[3].curve(alpha)) == 0.125


@pytest.mark.parametrize(("taken", "enough"), [(4.9, True), (5.1, False)])
def test_parts_that_are_drawn_for_share_ten_times_the_time(monkeypatch, taken, enough):
    clock, part = [100.0], ledgers.Part(lambda alpha: arb(0), 1)

    def known(release, delta, certifier):
        clock[0] += taken
        return (part, part), 1e-12

    monkeypatch.setattr(ledgers, "_known", known)
    monkeypatch.setattr(ledgers.time, "process_time", lambda: clock[0])
    certifier = ledgers.Certifier(0.5, np.random.default_rng(1))
    releases = [dataclasses.replace(release_of(1, 1), shape=None) for _ in range(2)]
    if enough:
        assert ledgers._directions(releases, {}, 1e-5, certifier)[1] == 2e-12
    else:
        with pytest.raises(TimeoutError):
            ledgers._directions(releases, {}, 1e-5, certifier)


# ---- private selections


@pytest.mark.parametrize(
    ("shape", "gamma", "mean"),
    [
        (1.0, 0.25, 4.0),
        (1.0, 0.7, 1.0 / 0.7),
        (0.0, 0.2, 4.0 / math.log(5.0)),
        (0.5, 0.3, 0.5 * 0.7 / (0.3 * (1.0 - 0.3**0.5))),
        (-0.5, 0.3, -0.5 * 0.7 / (0.3 * (1.0 - 0.3**-0.5))),
    ],
)
def test_how_ratios_grow_with_a_negative_binomial_number_of_runs(shape, gamma, mean):
    """By the least c with gain h(c) <= c - 1, to the power 1 + shape; here h falls on a line."""
    found, grows = ledgers._runs({"law": "truncated negative binomial", "shape": shape, "gamma": gamma})
    assert float(found) == pytest.approx(mean, rel=1e-13)
    gain = (1.0 - gamma) / gamma
    for fall in (0.01, 0.1):
        exact = (1.0 + gain) / (1.0 + gain * fall)  # gain (1 - fall c) = c - 1
        exact **= 1.0 + shape
        growth = float(grows(lambda alpha, fall=fall: (1 - arb(fall) * alpha).max(arb(0))))
        assert exact * (1.0 - 1e-14) <= growth <= exact * (1.0 + 1e-9)


def test_how_ratios_grow_with_a_poisson_number_of_runs():
    mean, grows = ledgers._runs({"law": "poisson", "mean_runs": 3.0})
    assert float(mean) == 3.0
    assert float(grows(lambda alpha: arb(0.25) / alpha)) == pytest.approx(math.exp(0.75), rel=1e-13)


@pytest.mark.parametrize(("mu", "mean"), [(0.5, 2.0), (0.3, 0.5)])
def test_the_best_of_several_runs_has_the_curve_of_its_theorem(mu, mean):
    """E K h(a / b), b as ratios grow, and h of one run, here in closed form."""
    certifier, delta = ledgers.Certifier(20.0, np.random.default_rng(1)), 1e-5
    runs = ledgers._runs({"law": "poisson", "mean_runs": mean})
    (remove, add), failure = ledgers._best_of(release_of(mu, mu, runs=runs), delta, certifier)
    assert failure == 0.0
    grown = math.exp(mean * float(gaussian_delta(arb(mu), arb(1))))
    low, top = remove.losses
    assert (low, add.losses, remove.times, add.times) == (-top, (-top, top), 1, 1)
    for part in (remove, add):
        assert float(part.curve(arb(top).exp())) <= 1.01e-4 * delta
        for loss in (1.0, 1.5, 2.0, 2.5):  # nearer to 0 the hull is lower
            exact = mean * float(gaussian_delta(arb(mu), arb(loss).exp() / grown))
            assert exact <= float(part.curve(arb(loss).exp())) <= 1.03 * exact + 0.1 * delta


def test_the_best_of_several_runs_without_time_for_a_lattice_is_left_open(monkeypatch):
    certifier = ledgers.Certifier(20.0, np.random.default_rng(1))
    monkeypatch.setattr(ledgers, "lattices", lambda *arguments: iter(()))
    runs = ledgers._runs({"law": "poisson", "mean_runs": 2.0})
    with pytest.raises(TimeoutError, match="the time is up"):
        ledgers._best_of(release_of(0.5, 0.5, runs=runs), 1e-5, certifier)


@pytest.mark.parametrize(
    ("shape", "gamma", "right"),
    [
        (-0.99, 0.5, True),
        (-1.0, 0.5, False),
        (-1.5, 0.5, False),
        (1.0, 1.0, False),
        (1.0, 1.5, False),
        (1.0, 0.0, False),
    ],
)
def test_negative_binomials_are_those_with_a_mean(shape, gamma, right):
    law = {"law": "truncated negative binomial", "shape": shape, "gamma": gamma}
    if right:
        assert ledgers._runs(law)[0] > 0
    else:
        with pytest.raises(BadDocument, match="has the law"):
            ledgers._runs(law)


@pytest.mark.parametrize(("mu", "times"), slow_but([(1.0, 1), (0.5, 4), (3.0, 1), (0.02, 1)], 0))
def test_the_least_eps_is_found_from_above(mu, times):
    parts = [ledgers.Part(gaussian(mu), times)]
    for delta in (1e-5, 1e-2):
        found = ledgers._least_eps(parts, delta, 5.0)
        size = arb(mu * times**0.5)

        def above(eps, size=size, delta=delta):
            return float(gaussian_delta(size, arb(eps).exp())) - delta

        exact = scipy.optimize.brentq(above, 0.0, 60.0) if above(0.0) > 0.0 else 0.0
        assert exact * (1.0 - 1e-9) <= found <= max(exact * 1.003, 2e-6)
    assert ledgers._least_eps([], 1e-5, 5.0) == 0.0
    assert ledgers._least_eps([ledgers.Part(lambda alpha: arb(0.1), 1, (-1.0, 1.0))], 1e-5, 5.0) == math.inf


# ---- prices and limits


def filtered(accounting, limits, eps, delta, releases=(), spent=None):
    settings = {"budget": {"eps": eps, "delta": delta}, "accounting": accounting}
    total = {"limits": limits, "spent": spent or limits}
    return ledgers._filtered("it", settings, total, list(releases), None)


def renyi_delta(order, divergence, eps):
    """By the largest (r - e^eps) / r^order, found on a grid."""
    ratios = math.exp(eps) * np.linspace(1.0 + 1e-9, 60.0, 2_000_001)
    return math.exp((order - 1.0) * divergence) * float(((ratios - math.exp(eps)) / ratios**order).max())


@pytest.mark.parametrize(("eps", "limit"), [(1.0, 0.09), (3.0, 0.6)])
def test_a_limit_stands_for_the_delta_that_its_theorem_gives(eps, limit):
    gdp = float(gaussian_delta(arb(limit).sqrt(), arb(eps).exp()))
    two, five = renyi_delta(2.0, limit, eps), renyi_delta(5.0, limit, eps)
    orders = scipy.optimize.minimize_scalar(
        lambda log: math.log(renyi_delta(1.0 + math.exp(log), limit * (1.0 + math.exp(log)), eps)),
        bounds=(-3.0, 5.0),
        method="bounded",
    )
    squared = math.exp(orders.fun)
    for accounting, limits, delta, slack in (
        ({"type": "GdpAccounting"}, [limit], gdp, 1e-9),
        ({"type": "RenyiAccounting", "order": 2}, [limit], two, 1e-6),
        ({"type": "RenyiAccounting", "order": 5}, [limit], five, 1e-6),
        ({"type": "ClaimAccounting", "slack": 1e-3}, [limit, 1e-3], squared + 1e-3, 2e-3),
        ({"type": "ClaimAccounting", "slack": 0.0}, [eps, 1e-3], 1e-3, 1e-9),
        ({"type": "ClaimAccounting", "slack": 0.0}, [eps * (1.0 + 1e-9), 1e-3], 1.0 - 1e-12, None),
    ):
        wrong = Kind.REFUTED if accounting["type"] == "GdpAccounting" else Kind.NOT_CHECKED
        if slack is None:
            assert filtered(accounting, limits, eps, 0.999).kind is wrong
            continue
        assert filtered(accounting, limits, eps, delta * (1.0 + slack)).kind is Kind.PROVED
        assert filtered(accounting, limits, eps, delta * (1.0 - slack)).kind is wrong


def test_what_releases_cost_in_every_accounting():
    """Gaussian ones mu^2, or order mu^2 / 2; claims eps, or eps^2 / 2; sampled ones a divergence a step."""
    smooth = dataclasses.replace(release_of(2, 3, eps=0.5), price=[1.0, 1e-5])
    expected = {
        ("GdpAccounting", 2, False): (4.0, 9.0),
        ("RenyiAccounting", 2, False): (4.0, 9.0),
        ("RenyiAccounting", 6, False): (12.0, 27.0),
        ("ClaimAccounting", 2, False): (0.5, 0.5),
        ("ClaimAccounting", 2, True): (0.125, 0.125),
    }
    for (kind, order, squared), cost in expected.items():
        found = ledgers._cost(smooth, kind, order, squared=squared)
        assert [float(x) for x in found] == pytest.approx(cost, rel=1e-14)
    with pytest.raises(NotChecked, match="is charged delta 9e-06 only"):
        ledgers._cost(dataclasses.replace(smooth, price=[1.0, 9e-6]), "ClaimAccounting", 2, squared=False)
    entries = {"type": "Diagonal", "entries": [1.0, 2.0, 1.0]}
    claim = claim_of(decode(certificate(entries, {"type": "Poisson", "sampling_prob": 0.25}, 1.0, 1e-5, 4.0)))
    sampled = dataclasses.replace(smooth, claim=claim, shape=decide._shape(claim))
    least, most = ledgers._cost(sampled, "RenyiAccounting", 3, squared=False)
    small, large = (float(ledgers._sampled_divergence(arb(0.25), arb(mu), 3)) for mu in (0.25, 0.5))
    assert [float(least), float(most)] == pytest.approx([2 * small + large] * 2)
    replaced = dataclasses.replace(sampled, claim=dataclasses.replace(claim, adjacency="replace_one"))
    with pytest.raises(NotChecked, match="no theorem here gives"):
        ledgers._cost(replaced, "RenyiAccounting", 3, squared=False)


def test_costs_are_compared_with_prices_and_limits():
    accounting, eps, delta = {"type": "GdpAccounting"}, 8.0, 0.1
    release = dataclasses.replace(release_of(0.5, 0.6), price=[0.3])
    for price, limit, kind in (
        (0.3, 1.0, Kind.PROVED),
        (0.26, 0.5, Kind.PROVED),  # 0.25 at least
        (0.24, 1.0, Kind.REFUTED),
        (0.3, 0.35, Kind.NOT_CHECKED),  # 0.36 at most
    ):
        one = dataclasses.replace(release, price=[price])
        assert filtered(accounting, [limit], eps, delta, [one]).kind is kind
    two = [dataclasses.replace(release, price=[0.3])] * 2
    assert filtered(accounting, [0.75], eps, delta, two).kind is Kind.PROVED  # 0.72
    assert filtered(accounting, [0.7], eps, delta, two).kind is Kind.NOT_CHECKED
    for limits, spent in (([0.59], [0.6]), ([0.6], [0.59])):
        with pytest.raises(BadDocument, match="more than the limit"):
            filtered(accounting, limits, eps, delta, two, spent)
    for eps, delta, right in (
        (0.0, 0.9, True),
        (0.5, 0.9, True),
        (1e5, 0.9, True),
        (1.1e5, 0.9, False),
        (1.0, 1.0, False),
        (1.0, 1.5, False),
        (1.0, 0.0, False),
    ):
        if right:
            assert filtered(accounting, [0.1], eps, delta).kind is Kind.PROVED
        else:
            with pytest.raises(BadDocument, match="a budget of"):
                filtered(accounting, [0.1], eps, delta)
    eps, delta = 8.0, 0.1
    for order, right in ((1, False), (2, True), (10_000, True), (10_001, False)):
        accounting = {"type": "RenyiAccounting", "order": order}
        if right:
            filtered(accounting, [0.1], eps, delta)
        else:
            with pytest.raises(BadDocument, match="the order is"):
                filtered(accounting, [0.1], eps, delta)


# ---- curves against other computations


@pytest.mark.parametrize(("sigma", "shift"), [(Fraction(5, 2), 1), (Fraction(1, 2), 2), (Fraction(20), 7)])
def test_the_curve_of_counts_against_sums(sigma, shift):
    y = np.arange(-2000, 2001)
    law = np.exp(-(y**2) / (2.0 * float(sigma) ** 2))
    law /= math.fsum(law)
    moved = np.roll(law, shift)
    curve = counts_curve(sigma, shift)
    for loss in (-3.0, -0.4, 0.0, 0.1, 1.0, 2.5):
        exact = math.fsum(np.maximum(0.0, moved - math.exp(loss) * law))
        assert float(curve(arb(loss).exp())) == pytest.approx(exact, rel=1e-9, abs=1e-14)
    with pytest.raises(NotChecked):
        counts_curve(Fraction(10**5), 1)


def test_the_curve_of_counts_far_below():
    curve = counts_curve(Fraction(2), 100)
    assert float(curve(arb(-1e4).exp())) == pytest.approx(1.0)


@pytest.mark.parametrize(("q", "mu", "order"), [(0.1, 1.0, 2), (0.3, 0.7, 5), (0.01, 2.0, 3)])
def test_divergences_against_integrals(q, mu, order):
    def integrand(x):
        ratio = 1.0 - q + q * math.exp(mu * x - 0.5 * mu**2)
        return math.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi) * ratio**order

    moment = scipy.integrate.quad(integrand, -40.0, 40.0, limit=500, epsabs=0.0, epsrel=1e-12)[0]
    exact = math.log(moment) / (order - 1)
    assert float(ledgers._sampled_divergence(arb(q), arb(mu), order)) == pytest.approx(exact, rel=1e-9)


def test_delta_of_a_divergence_is_the_largest_of_ratios():
    for order, divergence, eps in ((3.0, 0.5, 2.0), (10.0, 0.1, 0.5)):
        ratios = np.exp(eps) * np.linspace(1.0, 10.0, 900_001)
        worst = np.max((ratios - np.exp(eps)) * ratios**-order) * np.exp((order - 1.0) * divergence)
        assert float(ledgers._renyi_delta(arb(order), arb(divergence), eps)) == pytest.approx(worst, rel=1e-6)


def gaussian(mu):
    return lambda alpha: gaussian_delta(arb(mu), alpha)


@pytest.mark.parametrize(
    "curve", [gaussian(1.0), sampled_curve(arb(0.3), arb(1.5))], ids=["Gaussian", "sampled"]
)
def test_hulls_are_above_their_curves_and_attained(curve):
    back, losses = reverse(curve), [0.0, 0.3, 0.7, 1.5, 3.0]
    forth = [(loss, curve(arb(loss).exp())) for loss in losses]
    joined = hull(forth, [(loss, back(arb(loss).exp())) for loss in losses])
    for loss, value in forth:
        assert float(joined(arb(loss).exp())) == pytest.approx(float(value), rel=1e-12)
    grid = np.linspace(-4.0, 5.0, 181)
    values = [float(joined(arb(loss).exp())) for loss in grid]
    exact = [float(curve(arb(loss).exp())) for loss in grid]
    assert all(one >= other - 1e-15 for one, other in zip(values, exact, strict=True))
    slopes = np.diff(values) / np.diff(np.exp(grid))
    assert np.all(np.diff(slopes) >= -1e-9)


def test_a_point_above_the_others_changes_no_hull():
    curve = gaussian(1.0)
    known = [(loss, curve(arb(loss).exp())) for loss in (0.0, 1.0, 2.0)]
    loose = [*known, (1.5, arb(0.9)), (2.5, arb(0.9)), (1.0 + 1e-14, arb(0))]
    one, other = hull(known, known), hull(loose, known)
    for loss in (-1.0, 0.5, 1.2, 1.7, 2.2, 4.0):
        assert float(one(arb(loss).exp())) == pytest.approx(float(other(arb(loss).exp())), rel=1e-12)


def test_hulls_hold_where_ratios_are_too_large_for_floats():
    known = [(700.0 + 50.0 * k, arb(0.5) ** (k + 1)) for k in range(5)]
    curve = hull(known, known)
    # Ratios grow so fast that a chord is at its beginning almost everywhere.
    for loss, value in known:
        assert float(curve(arb(loss + 25.0).exp())) == pytest.approx(float(value), rel=1e-9)


def test_a_claim_is_randomised_response_that_may_fail():
    eps, delta = 1.0, 1e-3
    known = [(eps, arb(delta))]
    curve = hull(known, known)
    for loss in (-2.0, -0.5, 0.0, 0.5, 1.0, 3.0):
        alpha = math.exp(loss)
        p = np.array([delta, (1 - delta) * math.e / (1 + math.e), (1 - delta) / (1 + math.e), 0.0])
        exact = math.fsum(np.maximum(0.0, p - alpha * p[::-1]))
        assert float(curve(arb(loss).exp())) == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize(
    ("law", "generating"),
    [
        (dm.ledgers.NegativeBinomialRuns(1.0, 0.2), lambda z: 0.2 * z / (1.0 - 0.8 * z)),
        (dm.ledgers.NegativeBinomialRuns(0.0, 0.2), lambda z: math.log(1.0 - 0.8 * z) / math.log(0.2)),
        (dm.ledgers.PoissonRuns(3.0), lambda z: math.exp(3.0 * (z - 1.0))),
    ],
)
def test_the_best_of_randomised_responses_is_below_its_bound(law, generating):
    """One run gives the better of two results with probability p, under the neighbour with 1 - p."""
    spacing, p = 0.25, math.exp(1.0) / (1.0 + math.exp(1.0))
    one = Law(spacing, -4, arb_poly([1.0 - p, *[0.0] * 7, p]), arb(0), above=True)
    mean, grows = ledgers._runs({name: value for name, value in law.settings().items()})
    assert float(mean) == pytest.approx((generating(1.0) - generating(1.0 - 1e-7)) / 1e-7, rel=1e-5)
    curve = ledgers._selected(one, mean, grows(one.delta))
    for good, bad in ((p, 1.0 - p), (1.0 - p, p)):  # with no better one, only worse ones are seen
        best, other = (
            np.array([1.0 - generating(1.0 - chance), generating(1.0 - chance) - generating(0.0)])
            for chance in (good, bad)
        )
        for loss in np.linspace(0.0, 3.0, 31):
            exact = math.fsum(np.maximum(0.0, best - math.exp(loss) * other))
            assert exact <= float(curve(arb(float(loss)).exp())) + 1e-12


def test_the_composition_of_two_gaussians_is_a_larger_one():
    curve, exact = gaussian(0.5), gaussian_delta(arb(0.5).sqrt(), arb(1).exp())
    law = law_above(curve, 0.02, lattice_range(curve, 1e-9))
    found = joined([law, law], 1e-10).delta(arb(1).exp())
    assert exact < found
    assert float(found) == pytest.approx(float(exact), rel=1e-2)


def test_a_law_of_shape_about_zero_has_a_mean():
    """Of 1 - gamma^shape nothing is left in 53 bits."""
    zero, _ = ledgers._runs({"law": "truncated negative binomial", "shape": 0.0, "gamma": 0.2})
    for shape in (1e-17, -1e-17, 1e-60):
        mean, _ = ledgers._runs({"law": "truncated negative binomial", "shape": shape, "gamma": 0.2})
        assert float(mean) == pytest.approx(float(zero), rel=1e-12)
