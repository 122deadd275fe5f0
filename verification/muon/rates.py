"""The DP-Muon paper: the lemmas behind the stationarity bound, and the rates that follow from it."""

import itertools
import math
from collections.abc import Callable

import numpy as np
from scipy import integrate, special

from verification.harness.nudging import nudge
from verification.harness.verdict import Verdict, judged, judged_erratum, statement
from verification.oracles import matrices as ref

PAPER = "muon"


def clip_factor(norm: float, bound: float) -> float:
    """The clip factor alpha = min(1, C / ||G||)."""
    return min(1.0, bound / norm)


@statement("muon.lemB3", paper=PAPER)
def lemma_b3(*, claim: Callable[[float, int, float, int], float] = ref.batch_variance) -> Verdict:
    """The private gradient is g + b + xi with E ||b||_* <= sqrt(r) E (||G|| - C)_+, E ||xi||^2 <= v_C^2.

    All batches of B samples from four equally likely gradients are enumerated; the noise adds its variance.
    """
    rng = np.random.default_rng(103)
    worst, cases = 0.0, 0
    for _ in range(60):
        rows, columns = (int(size) for size in rng.integers(1, 4, size=2))
        samples = rng.standard_normal((4, rows, columns)) * 10.0 ** rng.uniform(-1, 1, (4, 1, 1))
        bound, sigma, size = 10.0 ** rng.uniform(-1, 1), rng.uniform(0.0, 2.0), int(rng.integers(1, 4))
        norms = [float(np.linalg.norm(sample)) for sample in samples]
        factors = np.array([clip_factor(norm, bound) for norm in norms])
        cut = samples * factors[:, None, None]
        residuals = [
            (1.0 - a) * norm - max(norm - bound, 0.0) for a, norm in zip(factors, norms, strict=True)
        ]
        worst = max(worst, *(abs(residual) for residual in residuals))
        center = cut.mean(axis=0)
        bias = ref.nuclear_norm(center - samples.mean(axis=0))
        residual = math.sqrt(min(rows, columns)) * float(np.mean([max(n - bound, 0.0) for n in norms]))
        worst = max(worst, bias - residual)
        batches = [cut[list(batch)].mean(axis=0) for batch in itertools.product(range(4), repeat=size)]
        spread = float(np.mean([np.sum((batch - center) ** 2) for batch in batches]))
        noise = rows * columns * (sigma * bound / size) ** 2
        worst = max(worst, spread + noise - claim(bound, size, sigma, rows * columns))
        cases += len(batches)
    # Met where every gradient is far out and their mean is zero.
    far = np.array([[[100.0]], [[-100.0]]])
    spread = float(
        np.mean([far[list(batch), 0, 0].mean() ** 2 for batch in itertools.product(range(2), repeat=3)])
    )
    worst = max(worst, abs(spread / 1e4 + 3.0 * (0.5 / 3.0) ** 2 - claim(1.0, 3, 0.5, 3)))
    return Verdict(
        judged(worst, 1e-12),
        "The check enumerates all batches. The deviation is the excess over the bound.",
        cases,
        worst,
    )


def pairing_bound(error: float, size: float, distance: float) -> float:
    """(1 - eps) ||g||_* - (2 - eps) ||M - g||_*."""
    return (1.0 - error) * size - (2.0 - error) * distance


@statement("muon.lemB4", paper=PAPER)
def lemma_b4(*, claim: Callable[[float, float, float], float] = pairing_bound) -> Verdict:
    """<g, O> >= (1 - eps) ||g||_* - (2 - eps) ||M - g||_*, eps the operator-norm error of O.

    It holds as well with the smaller eps = 1 - <M, O> / ||M||_*, and is met at g = M, O = M's polar factor.
    """
    rng = np.random.default_rng(104)
    worst, cases = 0.0, 0
    for _ in range(2_000):
        rows, columns = rng.integers(1, 6, size=2)
        gradient = rng.standard_normal((rows, columns))
        momentum = gradient + rng.standard_normal((rows, columns)) * 10.0 ** rng.uniform(-2, 0.5)
        output = ref.muon_map(int(rng.integers(1, 3)), int(rng.integers(0, 6)))(momentum)
        pairing = float(np.sum(gradient * output))
        size, distance = ref.nuclear_norm(gradient), ref.nuclear_norm(momentum - gradient)
        weighted = 1.0 - float(np.sum(momentum * output)) / ref.nuclear_norm(momentum)
        for error in (ref.operator_norm(output - ref.polar(momentum)), weighted):
            worst = max(worst, (claim(error, size, distance) - pairing) / size)
        # Met by g = M and its polar factor.
        met = float(np.sum(gradient * ref.polar(gradient)))
        worst = max(worst, abs(claim(0.0, size, 0.0) - met) / size)
        cases += 2
    return Verdict(
        judged(worst, 1e-12),
        "The check uses random g and M. The deviation is the excess, relative to ||g||_*.",
        cases,
        worst,
    )


def weights_squared(beta: float, updates: int) -> float:
    """(1 - b) / (1 + b) (1 + b^t) / (1 - b^t)."""
    return (1.0 - beta) / (1.0 + beta) * (1.0 + beta**updates) / (1.0 - beta**updates)


def tracking_constants() -> tuple[float, float]:
    """c_1 and c_2 of the bound on Gamma_T, which the paper leaves open."""
    return 1.02, 1.0


@statement("muon.lemB5", paper=PAPER)
def lemma_b5(
    *,
    claim: Callable[[float, int], float] = weights_squared,
    constants: Callable[[], tuple[float, float]] = tracking_constants,
) -> Verdict:
    """Momentum weights: the sum of their squares, their mean age below b / (1 - b), and the bound of Gamma_T.

    The paper's unnamed constants can be (1.02, 1): c_2 = 1 is forced by b = 0, and then c_1 is at most the
    integral of the excess, 1.01826.
    """
    worst, cases = 0.0, 0
    first, second = constants()
    for beta in (0.0, 0.1, 0.5, 0.9, 0.99, 0.999):
        for updates in (1, 2, 3, 10, 100, 3_000):
            weights = beta ** np.arange(updates, dtype=float)
            age = float(weights @ np.arange(updates) / weights.sum())
            worst = max(worst, age - beta / (1.0 - beta) - 1e-9)
            square = float(weights @ weights / weights.sum() ** 2)
            worst = max(worst, abs(claim(beta, updates) / square - 1.0))
            cases += 1
        for horizon in (1, 2, 5, 30, 1_000, 100_000):
            root = math.sqrt(1.0 - beta)
            worst = max(worst, ref.average_weight(beta, horizon) - first / (horizon * root) - second * root)
            cases += 1
    excess = lambda x: math.sqrt(0.5 / math.tanh(0.5 * x)) - 1.0  # noqa: E731
    area = integrate.quad(excess, 0.0, math.log(3.0))[0]
    worst = max(worst, area - first, abs(area - 1.01826) - 1e-5)
    return Verdict(
        judged(worst, 1e-9),
        "The check sums the weights term by term, and computes the integral by quadrature.",
        cases,
        worst,
    )


def log_slope(bound: Callable[[float], float], low: float, high: float) -> float:
    """Slope of log bound in log T."""
    return math.log(bound(high) / bound(low)) / math.log(high / low)


def scheduled(
    horizon: float, *, rate: float, gap: float, clip_norm: float, clipping: float, sigma: float
) -> float:
    """The bound at chi = 1, unit constants, B = 32, d = 64, r = 8, with Gamma_T by its own bound."""
    weight = 1.02 / (horizon * math.sqrt(gap)) + math.sqrt(gap)
    noise = math.sqrt(8.0 * ref.batch_variance(clip_norm, 32, sigma, 64)) * weight
    return 1.0 / (rate * horizon) + rate / 2.0 + 2.0 * (clipping + noise + rate * (1.0 - gap) / gap)


def light_tail_schedule(horizon: float, sigma: float = 1.0) -> float:
    """Corollary 3.5: rate T^-3/4, 1 - beta = T^-1/2, C = sqrt(2 log T) at K = 1."""
    bound = math.sqrt(2.0 * math.log(horizon))
    clipping = math.sqrt(8.0) * math.e / (2.0 * bound) * math.exp(-(bound**2))
    return scheduled(
        horizon, rate=horizon**-0.75, gap=horizon**-0.5, clip_norm=bound, clipping=clipping, sigma=sigma
    )


def second_moment_schedule(horizon: float, sigma: float = 1.0) -> float:
    """Corollary B.6: rate T^-5/6, 1 - beta = T^-2/3, C = T^1/6 at G_2 = 1."""
    bound = horizon ** (1.0 / 6.0)
    return scheduled(
        horizon,
        rate=horizon ** (-5.0 / 6.0),
        gap=horizon ** (-2.0 / 3.0),
        clip_norm=bound,
        clipping=math.sqrt(8.0) / bound,
        sigma=sigma,
    )


def tail_bound(bound: float, scale: float) -> float:
    """The tail integral's bound e K^2 / (2 C) exp(-C^2 / K^2)."""
    return math.e * scale**2 / (2.0 * bound) * math.exp(-((bound / scale) ** 2))


def heaviest_tail(norm: float, scale: float) -> float:
    """P(||G|| >= u) at most, by Markov's inequality."""
    return min(1.0, math.e * math.exp(-((norm / scale) ** 2)))


def exact_light_tail(horizon: int) -> float:
    """The bound of Theorem 3.4 itself at the schedule of Corollary 3.5, term by term.

    The gradient's norm is that of a normal with E exp(||G||^2 / K^2) = e at K = 1; its clipping residual is
    exact, and Gamma_T is summed.
    """
    rate, beta, bound = horizon**-0.75, 1.0 - horizon**-0.5, math.sqrt(2.0 * math.log(horizon))
    spread = math.sqrt(0.5 * (1.0 - math.exp(-2.0)))
    tail = special.ndtr(-bound / spread)
    density = math.exp(-0.5 * (bound / spread) ** 2) / math.sqrt(2.0 * math.pi)
    clipping = math.sqrt(8.0) * 2.0 * (spread * density - bound * tail)
    noise = math.sqrt(8.0 * ref.batch_variance(bound, 32, 1.0, 64)) * ref.average_weight(beta, horizon)
    return 1.0 / (rate * horizon) + rate / 2.0 + 2.0 * (clipping + noise + rate * beta / (1.0 - beta))


# Horizons so long that the slopes have settled to a few parts in ten thousand.
EARLY, LATE = 1e80, 1e110


@statement("muon.cor3_5", paper=PAPER)
def corollary_3_5(
    *, exponent: float = -0.25, residual: Callable[[float, float], float] = tail_bound
) -> Verdict:
    """Light tails: with its schedule the bound is O(T^-1/4 sqrt(log T)); also printed as Corollary B.7.

    The bound of Theorem 3.4, summed term by term for a law that meets the hypothesis, stays below the
    schedule's closed form, whose slope is measured. The clipping residual is checked on the heaviest law that
    Markov's inequality allows, where it is met as C / K grows.
    """
    rate = lambda horizon: light_tail_schedule(horizon) / math.sqrt(math.log(horizon))  # noqa: E731
    worst, cases = abs(log_slope(rate, EARLY, LATE) - exponent) / 1e-3, 1
    for horizon in (10, 1_000, 100_000):
        worst = max(worst, (exact_light_tail(horizon) / light_tail_schedule(horizon) - 1.0) / 1e-12)
        cases += 1
    for scale in (0.5, 1.0, 3.0):
        for multiple in (1.0, 1.2, 2.0, 4.0, 20.0):
            mean = math.e * scale * math.sqrt(math.pi) / 2.0 * math.erfc(multiple)
            worst = max(worst, (mean / residual(multiple * scale, scale) - 1.0) / 1e-12)
            cases += 1
    spread = math.sqrt(0.5 * (1.0 - math.exp(-2.0)))
    law = lambda x: math.exp(x**2 - 0.5 * (x / spread) ** 2) / (spread * math.sqrt(2.0 * math.pi))  # noqa: E731
    worst = max(worst, abs(integrate.quad(law, -40.0, 40.0, points=[0.0])[0] - math.e) / 1e-6)
    return Verdict(
        judged(worst, 1.0),
        "The check computes the slope of the bound from T = 1e80 to 1e110 to within 1e-3, sums the terms "
        "of the bound in Theorem 3.4, and integrates the tails. Deviations are in units of the tolerance.",
        cases + 1,
        worst,
    )


def quadratic_residual(norm: float, bound: float) -> float:
    """x^2 / C."""
    return norm**2 / bound


def sharp_residual(norm: float, bound: float) -> float:
    """x^2 / (4 C), ours: met at x = 2 C."""
    return norm**2 / (4.0 * bound)


def exact_second_moment(horizon: int) -> float:
    """The bound of Theorem 3.4 at the schedule of Corollary B.6, for a norm of 1 always, Gamma_T summed."""
    rate, beta = horizon ** (-5.0 / 6.0), 1.0 - horizon ** (-2.0 / 3.0)
    bound = horizon ** (1.0 / 6.0)
    noise = math.sqrt(8.0 * ref.batch_variance(bound, 32, 1.0, 64)) * ref.average_weight(beta, horizon)
    return 1.0 / (rate * horizon) + rate / 2.0 + 2.0 * (noise + rate * beta / (1.0 - beta))


@statement("muon.corB6", paper=PAPER)
def corollary_b6(
    *,
    exponent: float = -1.0 / 6.0,
    residual: Callable[[float, float], float] = quadratic_residual,
    sharp: Callable[[float, float], float] = sharp_residual,
) -> Verdict:
    """Second moments: with its schedule the bound is O(T^-1/6). (x - C)_+ <= x^2 / C, sharply x^2 / (4 C)."""
    worst, cases = abs(log_slope(second_moment_schedule, EARLY, LATE) - exponent) / 1e-3, 1
    for horizon in (10, 1_000, 100_000):
        worst = max(worst, (exact_second_moment(horizon) / second_moment_schedule(horizon) - 1.0) / 1e-12)
        cases += 1
    for norm in np.linspace(0.0, 10.0, 401):
        for bound in (0.5, 1.0, 2.5):
            excess = max(float(norm) - bound, 0.0)
            worst = max(worst, (excess - residual(float(norm), bound)) / 1e-12)
            worst = max(worst, (excess - sharp(float(norm), bound)) / 1e-12)
            cases += 1
    return Verdict(
        judged(worst, 1.0),
        "The check computes the slope of the bound from T = 1e80 to 1e110 to within 1e-3, sums the terms "
        "of the bound in Theorem 3.4, and searches a grid. Deviations are in units of the tolerance.",
        cases,
        worst,
    )


def fixed_budget(horizon: float) -> float:
    """The multiplier that keeps eps over T unsampled (or fixed-rate) steps grows like sqrt T."""
    return math.sqrt(horizon)


@statement("muon.rate_scope", paper=PAPER, expected="CONDITIONAL")
def vanishing_stationarity(
    *, growth: Callable[[float], float] = fixed_budget, right: float = 1.0 / 3.0
) -> Verdict:
    """Vanishing stationarity of a private method. Condition: sigma is held fixed, so that eps grows with T.

    At a fixed budget sigma grows like sqrt T and both schedules diverge, as T^1/3 and, up to the logarithm,
    T^1/4.
    """
    slopes = {
        "B.6": log_slope(lambda horizon: second_moment_schedule(horizon, growth(horizon)), EARLY, LATE),
        "B.7": log_slope(
            lambda horizon: light_tail_schedule(horizon, growth(horizon)) / math.sqrt(math.log(horizon)),
            EARLY,
            LATE,
        ),
    }
    schedule = lambda horizon: second_moment_schedule(horizon, math.sqrt(horizon))  # noqa: E731
    at_budget = log_slope(schedule, EARLY, LATE) - right
    printed = max(slopes.values())
    return Verdict(
        judged_erratum(printed, abs(at_budget), 1e-3, word="CONDITIONAL"),
        "The check computes the slope of the bound from T = 1e80 to 1e110 on a log-log scale. The deviation "
        "is the larger slope at a fixed budget.",
        2,
        printed,
        "At a fixed budget the bounds grow, with slopes "
        + " and ".join(f"{v:+.3f} ({k})" for k, v in slopes.items())
        + ".",
    )


FLIPS: dict[str, Callable[[], Verdict]] = {
    "muon.lemB3": lambda: lemma_b3(claim=lambda c, b, s, d: ref.batch_variance(c, b, s / math.sqrt(2.0), d)),
    "muon.lemB4": lambda: lemma_b4(claim=lambda error, size, d: (1.0 - error) * (size - d)),
    "muon.lemB5": lambda: lemma_b5(constants=lambda: (0.9, 1.0)),
    "muon.cor3_5": lambda: corollary_3_5(exponent=-0.5),
    "muon.corB6": lambda: corollary_b6(residual=lambda x, c: x**2 / (5.0 * c)),
    "muon.rate_scope": lambda: vanishing_stationarity(growth=lambda _: 1.0),
}

NUDGES: dict[str, dict[str, Callable[[float], Verdict]]] = {
    "muon.lemB3": {"variance": nudge(lemma_b3)},
    "muon.lemB4": {"pairing": nudge(lemma_b4)},
    "muon.lemB5": {
        "weights": nudge(lemma_b5),
        "c1": nudge(lemma_b5, "constants", 0),
        "c2": nudge(lemma_b5, "constants", 1),
    },
    "muon.cor3_5": {
        "exponent": nudge(corollary_3_5, "exponent"),
        "residual": nudge(corollary_3_5, "residual"),
    },
    "muon.corB6": {
        "exponent": nudge(corollary_b6, "exponent"),
        "residual": nudge(corollary_b6, "residual"),
        "sharp": nudge(corollary_b6, "sharp"),
    },
    "muon.rate_scope": {"slope": nudge(vanishing_stationarity, "right")},
}
