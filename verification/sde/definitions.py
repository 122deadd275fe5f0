"""The SDE paper: definitions, assumptions and the remarks on them."""

import math
from collections.abc import Callable

import numpy as np
from scipy import special, stats

from verification.harness.nudging import nudge
from verification.harness.verdict import Verdict, judged, judged_erratum, statement
from verification.oracles import sde as oracle

PAPER = "sde"
RATES = (0.02, 0.01, 0.005)


def _weak_error(rate: float, steps: int, growth: float) -> float:
    """Largest error of E x and E x^2 up to `steps`, for dX = growth X dt + sqrt(eta) dW and its iterates."""
    means, squares = oracle.sgd_walk(-growth, 1.0, rate, 1.0, steps)
    time = rate * np.arange(steps + 1)
    flow = np.exp(growth * time)
    spread = rate * (flow**2 - 1.0) / (2.0 * growth)
    return max(float(np.abs(means - flow).max()), float(np.abs(squares - flow**2 - spread).max()))


def horizon(rate: float) -> int:
    """Definition 3.1: k up to T = floor(tau / eta), tau = 1."""
    return math.floor(1.0 / rate + 1e-9)


@statement("sde.def3.1", paper=PAPER)
def definition_3_1(*, claim: Callable[[float], int] = horizon) -> Verdict:
    """Order-1 weak approximation: errors up to T = floor(tau / eta) are below M eta with one M."""
    constants = [_weak_error(rate, claim(rate), 0.5) / rate for rate in RATES]
    worst = max(constants) / min(constants) - 1.0
    return Verdict(
        judged(worst, 0.1),
        "The check computes the spread of error / eta over learning rates for a linear equation.",
        len(RATES),
        worst,
    )


def open_horizon(rate: float) -> int:
    """Definition B.4: k up to N, of which nothing is said; here twice T^2."""
    return 2 * horizon(rate) ** 2 // 100


@statement("sde.defB4", paper=PAPER, expected="MISPRINT")
def definition_b4(*, claim: Callable[[float], int] = open_horizon) -> Verdict:
    """The same with k = 0, ..., N, where N is not defined."""

    def spread(steps: Callable[[float], int]) -> float:
        constants = [_weak_error(rate, steps(rate), 0.5) / rate for rate in RATES]
        return max(constants) / min(constants) - 1.0

    printed = spread(claim)
    return Verdict(
        judged_erratum(printed, spread(horizon), 0.1, word="MISPRINT"),
        "The check computes the spread of error / eta over learning rates for a linear equation.",
        2 * len(RATES),
        printed,
        f"For an N beyond T no constant M is sufficient; the spread is {printed:.2g}. N must be T, as "
        "in Definition 3.1.",
    )


@statement("sde.rem3.1", paper=PAPER)
def remark_3_1(*, claim: float = 1.0) -> Verdict:
    """The discrepancy scales as eta to the `claim` on a finite horizon (Remarks 3.1 and B.1)."""
    errors = np.array([_weak_error(rate, horizon(rate), 0.5) for rate in (2e-3, 1e-3)])
    order = float(np.log2(errors[0] / errors[1]))
    return Verdict(
        judged(claim - order, 0.004),
        "The check measures the power of eta. The deviation is the claimed power minus the measured one.",
        2,
        claim - order,
    )


def replaced_and_added(sigma: float) -> tuple[float, float]:
    """Eps at delta = 1e-5 of one Gaussian release: a sample added, or replaced (twice the shift)."""
    return oracle.gaussian_epsilon(sigma, 1e-5), oracle.gaussian_epsilon(sigma / 2.0, 1e-5)


@statement("sde.def3.2", paper=PAPER, expected="WORDING")
def definition_3_2(*, claim: Callable[[float], tuple[float, float]] = replaced_and_added) -> Verdict:
    """Adjacent data sets differ in one sample: added or replaced is left open, and is another eps."""
    gaps = [claim(sigma)[1] / claim(sigma)[0] - 1.0 for sigma in (1.0, 4.0)]
    return Verdict(
        judged_erratum(max(gaps), 0.0, 0.01, word="WORDING"),
        "The check computes eps of one release. The deviation is the eps for a replaced sample "
        "divided by the eps for an added one, minus 1.",
        len(gaps),
        max(gaps),
        f"At sigma = 1 one release costs {claim(1.0)[0]:.2f} for an added sample, and "
        f"{claim(1.0)[1]:.2f} for a replaced one.",
    )


def gap_bound(square: float, mu: float) -> float:
    """Definition B.2: f - f* is at most this."""
    return square / (2.0 * mu)


@statement("sde.defB1-B3", paper=PAPER)
def definitions_b1_to_b3(*, claim: Callable[[float, float], float] = gap_bound) -> Verdict:
    """Smoothness, Polyak-Lojasiewicz and polynomial growth, on quadratics whose constants are known."""
    rng = np.random.default_rng(30)
    worst, cases = -math.inf, 0
    for _ in range(200):
        h = np.exp(rng.normal(size=3))
        x, y = rng.normal(size=(2, 3)) * 10.0 ** rng.uniform(-2, 2)
        if cases == 0:
            x = np.where(h == h.min(), 1.0, 0.0)  # here Polyak-Lojasiewicz is met
        value, square = 0.5 * float(h @ x**2), float(np.sum((h * x) ** 2))
        worst = max(worst, value / claim(square, float(h.min())) - 1.0)
        worst = max(worst, float(np.linalg.norm(h * (x - y)) / h.max() / np.linalg.norm(x - y)) - 1.0)
        worst = max(worst, value / (float(h.max()) * (1.0 + float(x @ x))) - 1.0)
        cases += 1
    return Verdict(
        judged(worst, 1e-12),
        "The check uses random quadratics. The deviation is the relative violation.",
        3 * cases,
        worst,
    )


def printed_range(examples: int, dimension: int) -> int:
    """Assumption B.1: the Lipschitz condition sums over the first d of the examples."""
    return min(examples, dimension)


@statement("sde.asmB1", paper=PAPER, expected="MISPRINT")
def assumption_b1(*, claim: Callable[[int, int], int] = printed_range) -> Verdict:
    """The Lipschitz condition bounds the gradient of every example: slopes of the examples left out."""
    slopes = np.array([1.0, 2.0, 50.0, 3.0])

    def missed(count: int) -> float:
        bound = float(slopes[:count].sum())
        return max(0.0, float(slopes.max()) - bound)

    printed = missed(claim(len(slopes), 2))
    return Verdict(
        judged_erratum(printed, missed(len(slopes)), 1e-12, word="MISPRINT"),
        "The check computes the slope that exceeds the bound L of the condition, for four examples in "
        "two dimensions.",
        2,
        printed,
        f"A sum up to d = 2 bounds the first two of four examples, and misses a slope of {slopes.max():g}.",
    )


@statement("sde.asmB2", paper=PAPER)
def assumption_b2(*, finite_from: float = 2.0) -> Verdict:
    """Student t noise: Gaussian in the limit, no variance below `finite_from` degrees, no mean at one."""
    grid = np.linspace(-6.0, 6.0, 241)
    worst = float(np.abs(stats.t.cdf(grid, 1e7) - stats.norm.cdf(grid)).max())

    # The second moment up to R grows without end below 2 degrees, and settles above.
    def second(freedom: float, reach: float) -> float:
        points = np.linspace(0.0, math.asinh(reach), 200_001)
        values = np.sinh(points)
        return float(np.trapezoid(values**2 * stats.t.pdf(values, freedom) * np.cosh(points), points))

    for freedom, endless in ((finite_from - 0.5, True), (finite_from + 0.5, False)):
        growth = second(freedom, 1e8) / second(freedom, 1e6)
        worst = max(worst, float((growth > 1.5) != endless))
    worst = max(worst, abs(float(stats.t.cdf(1.0, 1.0)) - 0.75))
    return Verdict(
        judged(worst, 1e-6),
        "The check compares distribution functions, with absolute deviations, and the growth of the "
        "truncated second moment.",
        5,
        worst,
        "At one degree of freedom the mean does not exist; at two, the variance is infinite too.",
    )


@statement("sde.remB2", paper=PAPER, expected="WORDING")
def remark_b2(*, claim: float = 1.0, right: float = 1.0 / 16.0) -> Verdict:
    """Noise of clipped gradients is not smoothed by averaging; right: by 1/B as any, here B = 16."""
    rng = np.random.default_rng(22)
    dimension, batch, batches = 60, 16, 6_000
    mean = np.full(dimension, 0.1)
    draws = oracle.sample_directions(rng, mean, 1.0, batches * batch, freedom=1.0).reshape(
        batches, batch, dimension
    )
    ratio = float(draws.mean(axis=1).var(axis=0).sum() / draws[:, 0].var(axis=0).sum())
    printed = abs(claim / ratio - 1.0)
    return Verdict(
        judged_erratum(printed, abs(right / ratio - 1.0), 0.006, word="WORDING"),
        "The check divides the trace of the covariance of 16 averaged clipped Cauchy gradients by the "
        "trace for one gradient. Deviations are relative.",
        batches,
        printed,
        f"The ratio is {ratio:.4f}: each gradient is clipped before the average and therefore bounded, "
        "so the average has 1/16 of the variance.",
    )


def near_one(value: float) -> float:
    """Figure A.1: Kummer's function is replaced by 1."""
    del value
    return 1.0


@statement("sde.figA1", paper=PAPER)
def figure_a1(*, claim: Callable[[float], float] = near_one) -> Verdict:
    """Kummer's function is close to 1 for z up to 100 and d from 1e4 (Figure A.1 and Remark A.1)."""
    worst, cases = 0.0, 0
    for dimension in (10_000, 100_000, 1_000_000):
        for z in (0.1, 1.0, 10.0, 100.0):
            exact = float(special.hyp1f1(0.5, dimension / 2 + 1, -z))
            worst = max(worst, abs(claim(z) - exact))
            cases += 1
    return Verdict(
        judged(worst, 0.01),
        "The check evaluates Kummer's function. Deviations are absolute.",
        cases,
        worst,
        f"The error is at most {worst:.2%}.",
    )


FLIPS: dict[str, Callable[[], Verdict]] = {
    "sde.def3.1": lambda: definition_3_1(claim=open_horizon),
    "sde.defB4": lambda: definition_b4(claim=horizon),
    "sde.rem3.1": lambda: remark_3_1(claim=1.1),
    "sde.def3.2": lambda: definition_3_2(claim=lambda _: (1.0, 1.0)),
    "sde.defB1-B3": lambda: definitions_b1_to_b3(claim=lambda square, mu: gap_bound(square, 1.1 * mu)),
    "sde.asmB1": lambda: assumption_b1(claim=lambda examples, _: examples),
    "sde.asmB2": lambda: assumption_b2(finite_from=1.0),
    "sde.remB2": lambda: remark_b2(claim=1.0 / 16.0),
    "sde.figA1": lambda: figure_a1(claim=lambda z: 1.0 - 1e-4 * z - 0.01),
}
NUDGES = {
    "sde.rem3.1": {"power": nudge(remark_3_1)},
    "sde.defB1-B3": {"bound": nudge(definitions_b1_to_b3)},
    "sde.remB2": {"ratio": nudge(remark_b2, "right")},
}
