"""The SDE paper on DP-SignSGD: bounds and stationary moments (Theorems B.12 to B.15)."""

import math
from collections.abc import Callable

import numpy as np

from verification.harness.nudging import nudge
from verification.harness.verdict import Verdict, judged_condition, judged_erratum, statement
from verification.oracles import sde as oracle
from verification.sde.sign import PAPER, ROOT, exact_slope


def clipped_bound(
    time: float, start: float, rate: float, dimension: int, rule: tuple[float, float, float, float]
) -> float:
    """Eq. 145 with the constants of eq. 149, 150; L = mu = sigma_gamma = K = 1; rule is (T, Phi, B, eps)."""
    steps, phi, batch, eps = rule
    speed = 2.0 * math.sqrt(2.0 / (dimension * math.pi)) * batch * eps / (math.sqrt(steps) * phi)
    floor = math.sqrt(math.pi * steps / 2.0) * rate * dimension**1.5 * phi / (4.0 * batch * eps)
    decay = math.exp(-speed * time)
    return start * decay + (1.0 - decay) * floor


def _clipped_loss(
    dimension: int, ratio: float, rate: float, share: float, times: float
) -> tuple[float, float]:
    """Loss of the iterates on |x|^2 / 2 after `times` relaxation times, and in the end.

    Every coordinate starts at `share`. Its law is exact, the length of the vector that of noise.
    """
    grid = np.linspace(-2.0, 2.0, 801)
    signs = oracle.clipped_mean_sign(dimension, ratio, grid)
    slope = exact_slope(dimension, ratio)
    steps = round(times / (2.0 * slope * rate))

    def rising(x: np.ndarray) -> np.ndarray:
        return 0.5 * (1.0 - np.interp(x, grid, signs))

    end = oracle.settled_square(lambda x: np.log(rising(x)), rate, math.sqrt(0.5 * rate / slope) + rate)
    early = float(oracle.walk_up(rising, rate, share, steps)[1][-1])
    return 0.5 * dimension * early, 0.5 * dimension * end


@statement("sde.thm4.3/B12.1", paper=PAPER, expected="CONDITIONAL")
def theorem_b12_clipped(*, claim: Callable[..., float] = clipped_bound) -> Verdict:
    """Loss of DP-SignSGD while all is clipped: at most the printed decay and floor, if privacy noise rules.

    On |x|^2 / 2, where the bound is met in the linear drift; Phi = q sqrt(ln(1/delta)).
    """

    def values(dimension: int, ratio: float, rate: float, share: float) -> tuple[float, float]:
        """Loss over bound early and in the end; ratio is B / sigma_DP, sigma_DP = sqrt(T) Phi / eps."""
        rule = (1.0, 1.0 / ratio, 1.0, 1.0)
        early, end = _clipped_loss(dimension, ratio, rate, share, 1.0)
        slope = exact_slope(dimension, ratio)
        time = round(0.5 / (slope * rate)) * rate
        start = 0.5 * dimension * share**2
        return (
            early / claim(time, start, rate, dimension, rule),
            end / claim(1e12, start, rate, dimension, rule),
        )

    small = 0.05 * math.sqrt(200.0)
    inside = max(values(200, small, 0.01, 0.05)) - 1.0
    outside = {sigma: values(200, 1.0 / sigma, 0.002, 0.05)[1] for sigma in (0.05, 1e-3)}
    loss = _clipped_loss(200, 20.0, 0.002, 0.05, 1.0)[1]
    bound = clipped_bound(1e12, 0.0, 0.002, 200, (1.0, 0.05, 1.0, 1.0))
    return Verdict(
        judged_condition(inside, max(outside.values()) - 1.0, 0.005),
        "The check computes the distribution of a coordinate of the iterates. The deviation is the "
        "loss divided by the bound, minus 1.",
        4,
        inside,
        "The bound requires that B / (sigma_DP sqrt d) is well below 1 (sde.corB11.1). At d = 200, B "
        f"= 1, sigma_DP = 0.05 and eta = 0.002, the run ends at a loss of {loss:.3f}, and the bound is "
        f"{bound:.4f}. At sigma_DP = 0.001 the loss is {outside[1e-3]:.0f} times the bound, more than "
        "any constant allows.",
    )


def printed_decay(time: float, variance: float, eps: float) -> float:
    """Eq. 146 as printed, at T = B = 1 and eps^2 sigma_gamma^2 + C^2 Phi^2 = eps^2 V; rate and mu are 1."""
    del time
    return math.exp(math.sqrt(eps**2 * variance))


def corrected_decay(time: float, variance: float, eps: float) -> float:
    """Eq. 154: exponent -2 mu K t, K = sqrt(2/pi) eps / sqrt(eps^2 V)."""
    return math.exp(-2.0 * ROOT * eps / math.sqrt(eps**2 * variance) * time)


@statement("sde.thm4.3/B12.2", paper=PAPER, expected="MISPRINT")
def theorem_b12_unclipped(
    *,
    claim: Callable[[float, float, float], float] = printed_decay,
    right: Callable[[float, float, float], float] = corrected_decay,
    floor: float = 0.25 / ROOT,
) -> Verdict:
    """Decay and floor of DP-SignSGD's loss while nothing is clipped, against their exact law."""
    rate, eps = 0.001, 0.7
    printed = corrected = 0.0
    for variance in (0.5, 4.0):
        width = math.sqrt(variance)
        square = oracle.sign_walk(1.0, variance, rate, 0.1 * width, 2000)[1]
        for step in (0, 100, 600, 2000):
            truth = 0.5 * square[step]
            for form, kind in ((claim, "printed"), (right, "right")):
                decay = form(rate * step, variance, eps)
                value = 0.5 * square[0] * decay + (1.0 - decay) * floor * rate * width
                if kind == "printed":
                    printed = max(printed, abs(value / truth - 1.0))
                else:
                    corrected = max(corrected, abs(value / truth - 1.0))
        settled = 0.5 * oracle.sign_stationary_square(1.0, variance, rate)
        corrected = max(corrected, abs(floor * rate * width / settled - 1.0))
    far = 0.5 * float(oracle.sign_walk(1.0, 1.0, 0.01, 100.0, 100)[1][-1])
    return Verdict(
        judged_erratum(printed, corrected, 0.006, word="MISPRINT"),
        "The check computes the exact distribution of the iterates. Deviations are relative.",
        10,
        printed,
        "The printed exponent is positive and does not contain t, so the loss would not decay. Eq. "
        "154 requires small gradients: from x = 100 (V = 1, eta = 0.01) the loss after 100 steps is "
        f"{far:.1f}, where eq. 154 gives {5000.0 * corrected_decay(1.0, 1.0, eps):.1f}.",
    )


def equation_161(variance: float, start: float, rate: float, steps: int) -> float:
    """The bound where nothing is clipped, at d = L = 1: K3 sqrt(T) / eps = sqrt(pi/2) sqrt V."""
    return math.sqrt(math.pi / 2.0 * variance) * (start / (rate * steps) + 0.5 * rate)


def _mean_squared_gradient(variance: float, rate: float, start: float, steps: int) -> float:
    return float(oracle.sign_walk(1.0, variance, rate, start, steps)[1][:-1].mean())


@statement("sde.thm4.4/B13", paper=PAPER, expected="CONDITIONAL")
def theorem_b13(*, claim: Callable[[float, float, float, int], float] = equation_161) -> Verdict:
    """Mean squared gradient of DP-SignSGD over a run: for gradients small against the noise."""
    inside, cases = -math.inf, 0
    for variance in (0.3, 1.0, 4.0):
        for share in (0.0, 0.3):
            start = share * math.sqrt(variance)
            found = _mean_squared_gradient(variance, 0.005, start, 3000)
            inside = max(inside, found / claim(variance, 0.5 * start**2, 0.005, 3000) - 1.0)
            cases += 1
        # A run without end, where the bound is met.
        settled = oracle.sign_stationary_square(1.0, variance, 1e-4)
        inside = max(inside, settled / claim(variance, 0.0, 1e-4, 1) - 1.0)
        cases += 1
    far = _mean_squared_gradient(1.0, 0.01, 100.0, 100)
    bound = claim(1.0, 5000.0, 0.01, 100)
    slow = _mean_squared_gradient(1.0, 0.01, 1000.0, 2000) / claim(1.0, 500_000.0, 0.01, 2000)
    outside = max(far / bound, slow) - 1.0
    return Verdict(
        judged_condition(inside, outside, 0.005),
        "The check computes the exact distribution of the iterates. The deviation is the mean squared "
        "gradient divided by the bound, minus 1.",
        cases + 2,
        inside,
        "The bound requires gradients below about 0.3 sqrt V. From x = 1000 with V = 1, eta = 0.01 "
        f"and T = 2000, the mean squared gradient is {slow:.1f} times the bound.",
    )


# |x|^2 / 2 from 0, noise sigma_gamma = 1, every gradient below the clip norm, K = 1, a run without end.
DIMENSION, BATCH, CLIP, LEARNING = 10_000, 1, 1e3, 5e-7
# The multipliers where privacy noise rules the batch noise, and where it does not.
LOUD, QUIET = (0.02, 0.05, 0.2), (1e-4, 3e-3)


def bound_k4(sigma: float) -> float:
    """Theorem B.14 there: K4 sqrt(T) / eps times eta d L / 2, sigma_DP for q sqrt(T ln(1/delta)) / eps."""
    first = math.sqrt(math.pi * DIMENSION / 2.0) * sigma / BATCH
    second = math.sqrt(math.pi / 2.0) * CLIP * sigma / BATCH
    return max(first, second) * 0.5 * LEARNING * DIMENSION


def bound_k3(sigma: float) -> float:
    """Theorem B.13 there."""
    first = math.sqrt(math.pi * DIMENSION / 2.0) * sigma / BATCH
    second = math.sqrt(math.pi / 2.0) * math.hypot(1.0 / math.sqrt(BATCH), CLIP * sigma / BATCH)
    return max(first, second) * 0.5 * LEARNING * DIMENSION


def size_of_argument(sigma: float) -> float:
    """B |G_i| / (C sigma_DP sqrt 2) for a gradient of sigma_gamma = 1: what the proof takes as small."""
    return BATCH / (CLIP * sigma * math.sqrt(2.0))


@statement("sde.thmB14", paper=PAPER, expected="CONDITIONAL")
def theorem_b14(
    *, claim: Callable[[float], float] = bound_k4, wide: Callable[[float], float] = bound_k3
) -> Verdict:
    """The tighter constant K4 for mixed batches holds where privacy noise rules; K3's (`wide`) everywhere."""

    def found(sigma: float) -> float:
        variance = 1.0 / BATCH + (CLIP * sigma / BATCH) ** 2
        return DIMENSION * oracle.sign_stationary_square(1.0, variance, LEARNING)

    inside = max(found(sigma) / claim(sigma) for sigma in LOUD) - 1.0
    inside = max(inside, max(found(sigma) / wide(sigma) for sigma in LOUD + QUIET) - 1.0)
    outside = found(QUIET[0]) / claim(QUIET[0]) - 1.0
    return Verdict(
        judged_condition(inside, outside, 0.002),
        "The check computes the exact distribution of the iterates at the end, with no gradient "
        "clipped. The deviation is the mean squared gradient divided by the bound, minus 1.",
        2 * len(LOUD) + len(QUIET) + 1,
        inside,
        "The bound requires that the ratio B |G_i| / (C sigma_DP sqrt 2) is well below 1. In the cases "
        f"that satisfy this condition, the ratio is at most {size_of_argument(LOUD[0]):.3f}. At d = 1e4, "
        "B = 1, sigma_gamma = 1, C = 1000, sigma_DP = 1e-4, eta = 5e-7 and f_0 = 0 the ratio is "
        f"{size_of_argument(QUIET[0]):.1f}. The mean squared gradient is then {found(QUIET[0]):.5f}, the "
        f"bound {bound_k4(QUIET[0]):.5f}, and the bound with K3 {bound_k3(QUIET[0]):.5f}.",
    )


def printed_b15(x: float, slope: float, h: float, rate: float, time: float) -> float:
    """Variance by eq. 187-188, with H and not its square in the first exponent."""
    decay = 2.0 * slope * h + rate * slope**2 * h**2
    first = x**2 * math.exp(-2.0 * slope * h * time) * math.expm1(-rate * slope**2 * h * time)
    return first - rate / decay * math.expm1(-decay * time)


def corrected_b15(x: float, slope: float, h: float, rate: float, time: float) -> float:
    """With the square, as eq. 195 has it."""
    decay = 2.0 * slope * h + rate * slope**2 * h**2
    first = x**2 * math.exp(-2.0 * slope * h * time) * math.expm1(-rate * slope**2 * h**2 * time)
    return first - rate / decay * math.expm1(-decay * time)


@statement("sde.thmB15", paper=PAPER, expected="MISPRINT")
def theorem_b15(
    *, claim: Callable[..., float] = printed_b15, right: Callable[..., float] = corrected_b15
) -> Verdict:
    """Variance of DP-SignSGD on a quadratic: the linearised equation's moments, and the iterates."""
    h, slope, rate, time = 4.0, ROOT, 0.05, 0.3
    x = 0.9 / (slope * h)
    # Ito: d E x^2 = (-2 K h E x^2 + eta (1 - K^2 h^2 E x^2)) dt.
    square = oracle.linear_flow(2.0 * slope * h + rate * slope**2 * h**2, rate, x**2, time)
    found = square - oracle.linear_flow(slope * h, 0.0, x, time) ** 2
    # And the end of the run of Figure C.3 against the exact iterates.
    slope_c3 = ROOT / math.sqrt(0.26)
    mean, squares = oracle.sign_walk(2.0, 0.26, 1e-3, 0.01, 3000)
    end = squares[-1] - mean[-1] ** 2
    late = (0.01, slope_c3, 2.0, 1e-3, 3.0)
    setting = (x, slope, h, rate, time)

    def deviation(form: Callable[..., float]) -> float:
        return max(abs(form(*setting) / found - 1.0), abs(form(*late) / end - 1.0))

    printed = deviation(claim)
    return Verdict(
        judged_erratum(printed, deviation(right), 0.006, word="MISPRINT"),
        "The check integrates the moment equations by a Runge-Kutta method, and computes the exact "
        "distribution of the iterates. Deviations are relative.",
        2,
        printed,
        "At lambda = 4, V = 1, K lambda x0 = 0.9, eta = 0.05 and t = 0.3, the variance is "
        f"{found:.5f}. The formula gives {claim(*setting):.5f} with H and "
        f"{corrected_b15(*setting):.5f} with H^2.",
    )


FLIPS: dict[str, Callable[[], Verdict]] = {
    "sde.thm4.3/B12.1": lambda: theorem_b12_clipped(
        claim=lambda *arguments: 1000.0 * clipped_bound(*arguments)
    ),
    "sde.thm4.3/B12.2": lambda: theorem_b12_unclipped(claim=corrected_decay),
    "sde.thm4.4/B13": lambda: theorem_b13(claim=lambda *arguments: 0.98 * equation_161(*arguments)),
    "sde.thmB14": lambda: theorem_b14(claim=bound_k3),
    "sde.thmB15": lambda: theorem_b15(claim=corrected_b15),
}
NUDGES = {
    "sde.thm4.3/B12.1": {"bound": nudge(theorem_b12_clipped)},
    "sde.thm4.3/B12.2": {
        "decay": nudge(theorem_b12_unclipped, "right"),
        "floor": nudge(theorem_b12_unclipped, "floor"),
    },
    "sde.thm4.4/B13": {"bound": nudge(theorem_b13)},
    "sde.thmB14": {"K4": nudge(theorem_b14), "K3": nudge(theorem_b14, "wide")},
    "sde.thmB15": {"variance": nudge(theorem_b15, "right")},
}
