import math

import mpmath as mp
import numpy as np
import pytest

import dpmech as dm
from dpmech.engines.losses import lattice as losses
from dpmech.engines.losses import step_losses as step_loss
from dpmech.engines.losses.lattice import Loss, lower_lattice, upper_lattice
from tests.support import oracles as oracle

# (q, s): tiny, usual and almost full sampling; noise from far below to far above the sensitivity.
CASES = [
    (1e-6, 0.3), (1e-3, 0.1), (0.01, 0.5), (0.01, 1.0), (0.01, 100.0), (0.3, 1.0), (0.3, 0.05), (0.9, 2.0),
    (0.999, 0.3), (0.999, 30.0),
]  # fmt: skip
directions = pytest.mark.parametrize("remove", [True, False])
cases = pytest.mark.parametrize(("q", "s"), CASES)
# Those whose loss has no atom-like part that a lattice over the whole interval cannot resolve.
smooth_cases = pytest.mark.parametrize(
    ("q", "s"), [case for case in CASES if case[0] > 1e-3 and case[1] > 0.1]
)


def hockey_stick(lattice, eps):
    """In long double: the lattices are on their side to the last digit of float64."""
    wide = np.longdouble
    index = np.arange(lattice.first, lattice.first + lattice.masses.size)
    at = wide(lattice.offset) + index.astype(wide) * wide(lattice.step)
    above = at > eps
    terms = lattice.masses[above].astype(wide) * -np.expm1(wide(eps) - at[above])
    total = np.sum(terms) + wide(lattice.infinite_mass)
    head = float(total)
    return mp.mpf(head) + mp.mpf(float(total - wide(head)))


# Of the sum above; where long double is float64, the margins are too close to it to be seen.
SEEN = 1 + 32 * float(np.finfo(np.longdouble).eps)


def spread(q, s, remove):
    """Standard deviation of the loss, roughly: what a lattice step is measured against."""
    x, weights = np.polynomial.hermite_e.hermegauss(80)
    points = np.concatenate([s * x, s * x + 1.0])
    share = (
        np.concatenate([(1 - q) * weights, q * weights]) if remove else np.concatenate([weights, 0 * weights])
    )
    values = np.array([float(mp.log(1 - q + q * mp.exp((2 * p - 1) / (2 * s * s)))) for p in points])
    share = share / share.sum()
    mean = (share * values).sum()
    return math.sqrt((share * (values - mean) ** 2).sum())


def lattice_step(q, s, remove, fineness):
    low, high = Loss(q, s, remove).interval()
    return max(fineness * spread(q, s, remove), (high - low) / 5_000)


def levels(q, s, remove):
    """Values of eps over the range of the loss."""
    low, high = Loss(q, s, remove).interval()
    scale = spread(q, s, remove)
    near = [sign * factor * scale for factor in (0.0, 0.3, 1.0, 3.0, 8.0) for sign in (1, -1)]
    return sorted({*near, *np.linspace(low, min(high, 600.0), 9)[1:-1].tolist()})


@cases
@directions
@pytest.mark.parametrize("fineness", [0.02, 0.3, 2.0])
def test_lattices_enclose_the_hockey_stick_curve(q, s, remove, fineness):
    loss = Loss(q, s, remove)
    step = lattice_step(q, s, remove, fineness)
    upper, lower = upper_lattice(loss, step), lower_lattice(loss, step)
    for eps in levels(q, s, remove):
        truth = oracle.sampled_delta(q, s, eps, remove=remove)
        assert hockey_stick(upper, eps) * SEEN >= truth
        assert hockey_stick(lower, eps) <= truth * SEEN


@cases
@directions
def test_total_masses(q, s, remove):
    loss = Loss(q, s, remove)
    step = lattice_step(q, s, remove, 0.1)
    for lattice in (upper_lattice(loss, step), lower_lattice(loss, step)):
        assert (lattice.masses >= 0.0).all()
        assert lattice.masses.sum() <= 1 + 1e-11
    upper = upper_lattice(loss, step)
    assert upper.masses.sum() + upper.infinite_mass >= 1
    # Connecting the dots keeps the mass of the second distribution too.
    at = upper.losses()
    assert np.sum(upper.masses[at > -600.0] * np.exp(-at[at > -600.0])) == pytest.approx(1.0, abs=1e-10)


@smooth_cases
@directions
def test_lattices_close_in_as_the_step_shrinks(q, s, remove):
    loss = Loss(q, s, remove)
    eps = spread(q, s, remove)
    gaps = []
    for cells in (400, 1600):
        step = (loss.interval()[1] - loss.interval()[0]) / cells
        gaps.append(
            hockey_stick(upper_lattice(loss, step), eps) - hockey_stick(lower_lattice(loss, step), eps)
        )
    truth = float(oracle.sampled_delta(q, s, eps, remove=remove))
    assert gaps[1] < 0.5 * gaps[0] or gaps[1] < 1e-6 * truth


@cases
@directions
@pytest.mark.parametrize("cells", [10, 30, 90])
def test_very_coarse_lattices_stay_valid_and_on_the_interval(q, s, remove, cells):
    # The heaviest cell cannot always be aligned with a node: the lattice must not drift away meanwhile.
    loss = Loss(q, s, remove)
    low, high = loss.interval()
    step = (high - low) / cells
    lower = lower_lattice(loss, step)
    assert abs(lower.losses()[0] - low) < 5 * step
    for eps in np.linspace(low, min(high, 600.0), 25)[1:-1]:
        truth = oracle.sampled_delta(q, s, float(eps), remove=remove)
        assert hockey_stick(lower, eps) <= truth * SEEN
        assert hockey_stick(upper_lattice(loss, step), eps) * SEEN >= truth


@smooth_cases
@directions
def test_planted_faults_leave_the_enclosure(q, s, remove):
    """A wrong q, a wrong sigma and the wrong direction fall outside the two curves somewhere."""
    loss = Loss(q, s, remove)
    step = lattice_step(q, s, remove, 0.02)
    upper, lower = upper_lattice(loss, step), lower_lattice(loss, step)

    def enclosed(**changed):
        truths = [
            oracle.sampled_delta(**{"q": q, "s": s, "eps": eps, "remove": remove} | changed)
            for eps in levels(q, s, remove)
        ]
        return all(
            hockey_stick(lower, eps) <= truth * SEEN and hockey_stick(upper, eps) * SEEN >= truth
            for eps, truth in zip(levels(q, s, remove), truths, strict=True)
        )

    assert enclosed()
    assert not enclosed(q=q * 0.98)
    assert not enclosed(s=s * 0.98)
    assert not enclosed(remove=not remove)


@cases
def test_log_ratio_and_its_inverse(q, s):
    loss = Loss(q, s, True)
    x = np.linspace(-20 * s, 20 * s + 1, 41)
    expected = [float(mp.log(1 - q + q * mp.exp((2 * mp.mpf(p) - 1) / (2 * mp.mpf(s) ** 2)))) for p in x]
    np.testing.assert_allclose(loss.log_ratio(x), expected, rtol=1e-9, atol=1e-15)
    back = loss.log_ratio(loss.output_at(loss.log_ratio(x)))
    np.testing.assert_allclose(back, expected, rtol=1e-9, atol=1e-15)


@cases
@directions
def test_densities_and_tails(q, s, remove):
    loss = Loss(q, s, remove, reach=4.0)
    low, high = loss.outputs()
    with mp.workdps(30):
        inside = mp.ncdf(high / mp.mpf(s)) - mp.ncdf(low / mp.mpf(s))
        shifted = mp.ncdf((high - 1) / mp.mpf(s)) - mp.ncdf((low - 1) / mp.mpf(s))
        mass = (1 - q) * inside + q * shifted if remove else inside
        assert 1 - mass <= loss.tail_mass()
    points = np.linspace(low, high, 400_001)
    total = np.trapezoid(np.exp(loss.log_density(points)), points)
    assert total == pytest.approx(float(mass), abs=1e-6)


def test_lost_mass_is_an_error(monkeypatch):
    nodes, weights = np.polynomial.legendre.leggauss(8)
    monkeypatch.setattr(step_loss, "_WIDE", (nodes, 0.999 * weights))
    with pytest.raises(dm.NumericalError, match="lost mass"):
        upper_lattice(Loss(0.01, 1.0, True), 0.001)


@cases
def test_the_rounding_of_losses_and_densities_is_as_stated(q, s):
    """Nodes between the ends of a panel, to 50 digits; the bounds are no thousand times what is seen."""
    rng = np.random.default_rng(4)
    loss = Loss(q, s, True, reach=30.0)
    low, high = loss.outputs()
    width = min(0.25 * s, 0.5 * s * s)
    left = rng.uniform(low, high - width, 150)
    left = np.concatenate([left, 0.5 + s * s * rng.uniform(-60.0, 60.0, 150)])
    left = left[(left > low) & (left < high)]
    nodes = left + width * rng.uniform(0.0, 1.0, left.size)
    bounds = [
        np.maximum(*ends) for ends in zip(loss.rounding(left), loss.rounding(left + width), strict=True)
    ]
    # What this leaves to others: x itself (2 u), quadrature and weights, and what becomes of cells.
    shares = []
    with mp.workdps(50):
        for x, ratio, density, off, mass in zip(
            nodes, loss.log_ratio(nodes), np.exp(loss.log_density(nodes)), *bounds, strict=True
        ):
            z = (mp.mpf(float(x)) - mp.mpf("0.5")) / mp.mpf(s) ** 2
            exact = mp.log(1 - mp.mpf(q) + mp.mpf(q) * mp.exp(z))
            seen = float(abs(mp.mpf(float(ratio)) - exact))
            assert seen <= off
            pure = mp.npdf(mp.mpf(float(x)), 0, mp.mpf(s))
            assert abs(mp.mpf(float(density)) / (pure * mp.exp(exact)) - 1) <= mass
            shares.append(seen / off)
    assert max(shares) > 1e-3


def test_without_its_rounding_a_lattice_is_on_the_wrong_side_somewhere(monkeypatch):
    monkeypatch.setattr(losses, "UNIT", 0.0)
    monkeypatch.setattr(Loss, "tail_mass", lambda loss: 1e-13)
    wrong = 0
    for q, s in CASES:
        loss = Loss(q, s, True)
        step = lattice_step(q, s, True, 0.3)
        lower = lower_lattice(loss, step)
        total = mp.mpf(0)
        for mass in lower.masses:
            total += mp.mpf(float(mass))
        wrong += total > 1
    assert wrong > 0


@pytest.mark.parametrize("cut", [2.0, 12.0, 25.0, 33.0, 37.0])
@pytest.mark.parametrize("upwards", [True, False])
def test_masses_are_on_their_side_however_far_out(cut, upwards):
    """A rule whose panels are a quarter of a deviation everywhere is 7e-9 short beyond 37 of them."""
    loss = Loss(0.3, 1.0, True)
    level = float(loss.log_ratio(np.array([cut]))[0])
    top = loss.interval()[1]
    edges = np.array([level - 1.0, level, top])
    _, masses, cells = loss.quadrature(edges, upwards=upwards)
    mass = mp.fsum(mp.mpf(float(one)) for one in masses[cells == 1])
    with mp.workdps(50):
        rest, part = 1 - mp.mpf(0.3), mp.mpf(0.3)
        start = mp.mpf("0.5") + mp.log((mp.exp(mp.mpf(level)) - rest) / part)
        exact = rest * (mp.ncdf(-start) - mp.ncdf(-39)) + part * (mp.ncdf(1 - start) - mp.ncdf(-38))
        # The edge itself is only known to its own rounding, of which the density makes `start` times as much.
        edge = 64 * mp.mpf(2) ** -53 * start * abs(level)
        if upwards:
            assert exact * (1 - edge) <= mass <= exact * (1 + mp.mpf(10) ** -11)
        else:
            assert exact * (1 - mp.mpf(10) ** -11) <= mass <= exact * (1 + edge)
