"""The noise-share paper (an optimization view of private fine-tuning): noise variance, second moment, rho.

dpmech.analysis.noise_share.share and dpmech.analysis.noise_share.moment_scatter compute what is checked here.
"""

from collections.abc import Callable

import numpy as np
import sympy
from scipy import stats

from verification.harness.verdict import Verdict, judged, judged_condition, judged_erratum, statement
from verification.oracles import linear as ref
from verification.oracles import noise_share as oracle

PAPER = "noise_share"
BETA2 = 0.999


def phi_formula(sigma: float, clip: float, size: float) -> float:
    """The paper's noise variance."""
    return (sigma * clip / size) ** 2


@statement("ov.def.phi", paper=PAPER)
def definition_phi(*, claim: Callable[[float, float, float], float] = phi_formula) -> Verdict:
    """Phi = (sigma C / B)^2 is the variance per coordinate of (sum + noise) / B."""
    rng = np.random.default_rng(1)
    draws, worst, cases = 200_000, 0.0, 0
    for sigma, clip, size in ((0.7, 0.1, 512.0), (1.3, 2.0, 64.0), (0.02, 1.0, 1.0)):
        noise = rng.normal(scale=sigma * clip, size=draws) / size
        allowed = oracle.STANDARD_ERRORS * np.sqrt(2.0 / draws)
        worst = max(worst, abs(float(np.mean(noise**2)) / claim(sigma, clip, size) - 1.0) / allowed)
        cases += 1
    # What the paper prints at B = 512, eps = 3, 150 steps; sigma by the accountant that it used.
    sigma = oracle.rdp_sigma(3.0, 1e-5, 512 / oracle.CORPUS, 150)
    worst = max(worst, abs(claim(sigma, 0.1, 512.0) / 2.2e-8 - 1.0) / 0.01)
    return Verdict(
        judged(worst, 1.0),
        "Monte Carlo of the noise (6.5 SE), and the printed 2.2e-8 within 1 %; over tolerance",
        cases + 1,
        worst,
    )


def inflated(clean: np.ndarray, phi: float) -> np.ndarray:
    """The paper's expectation of the second moment, given that of the clipped means."""
    return clean + phi


@statement("ov.thm1", paper=PAPER)
def theorem_1(*, claim: Callable[[np.ndarray, float], np.ndarray] = inflated) -> Verdict:
    """E v_t = v_true + Phi at every step, with no independence across steps (a closed loop is allowed)."""
    worst, cases, draws = 0.0, 0, 100_000
    for steps in (1, 5, 40):
        for beta2 in (0.0, 0.9, BETA2):
            for feedback in (0.0, -0.8):
                noisy, clean = oracle.second_moments(
                    beta2, steps, 0.6, draws, lambda past, f=feedback: 0.5 + f * past, seed=steps
                )
                gap = noisy - claim(clean, 0.6)
                error = float(np.std(gap)) / np.sqrt(draws)
                worst = max(worst, abs(float(np.mean(gap))) / (oracle.STANDARD_ERRORS * error))
                cases += 1
    for beta2 in (0.0, 0.5, 0.99, 0.9999):
        for steps in (1, 7, 500):
            total = (1.0 - beta2) * sum(beta2**k for k in range(steps))
            worst = max(worst, abs(total - (1.0 - beta2**steps)) / 1e-12)
            cases += 1
    return Verdict(judged(worst, 1.0), "Monte Carlo in closed loop, 6.5 SE; weights summed", cases, worst)


def effective_samples(beta2: float, steps: int) -> float:
    """n_eff, in closed form."""
    return (1 + beta2) / (1 - beta2) * (1 - beta2**steps) / (1 + beta2**steps)


@statement("ov.thm1.var", paper=PAPER)
def theorem_1_variance(*, claim: Callable[[float, int], float] = effective_samples) -> Verdict:
    """For pure noise v_t / Phi has variance 2 / n_eff, and the median of a chi-square over n_eff."""
    worst, cases = 0.0, 0
    for beta2 in (0.3, 0.9, BETA2):
        for steps in (1, 2, 10, 80, 500):
            exact = 1.0 / float(np.sum(oracle.weights_by_recursion(beta2, steps) ** 2))
            worst = max(worst, abs(claim(beta2, steps) / exact - 1.0) / 1e-10)
            cases += 1
    draws = 100_000
    for steps, printed in ((10, 1.0705), (40, 1.0169), (150, 1.0045)):
        noisy, _ = oracle.second_moments(BETA2, steps, 1.0, draws, np.zeros_like, seed=steps)
        samples = claim(BETA2, steps)
        predicted = float(stats.chi2.ppf(0.5, samples)) / samples
        allowed = 0.005 + oracle.STANDARD_ERRORS * 1.26 * np.sqrt(2.0 / samples / draws)
        worst = max(worst, abs(float(np.median(noisy)) - predicted) / allowed)
        worst = max(worst, abs(1.0 / predicted / printed - 1.0) / 1e-4)
        cases += 2
    return Verdict(
        judged(worst, 1.0), "sum of squared weights; median by Monte Carlo (6.5 SE + 0.005)", cases, worst
    )


def share(phi: float, clean: float) -> float:
    """The paper's rho."""
    return phi / (clean + phi)


@statement("ov.thm3.def", paper=PAPER)
def theorem_3_definition(*, claim: Callable[[float, float], float] = share) -> Verdict:
    """Rho = Phi / (v + Phi) lies in (0, 1], is 1 only at v = 0, and equals r / (1 + r) with r = Phi / v."""
    rng = np.random.default_rng(3)
    worst, cases = 0.0, 0
    for phi, clean in 10.0 ** rng.uniform(-6, 6, size=(300, 2)):
        ratio = phi / clean
        rho = claim(phi, clean)
        outside = 0.0 if 0.0 < rho < 1.0 or ratio > 1e9 else 1.0
        worst = max(worst, abs(rho - ratio / (1 + ratio)), abs(1 - rho - 1 / (1 + ratio)), outside)
        cases += 1
    worst = max(worst, abs(claim(2.0, 0.0) - 1.0))
    # The logged Phi / median exceeds 1 by the median of a chi-square: 1.07 is ten steps of pure noise.
    samples = effective_samples(BETA2, 10)
    logged = samples / float(stats.chi2.ppf(0.5, samples))
    return Verdict(
        judged(worst, 1e-12),
        "identities in r, absolute",
        cases + 1,
        worst,
        f"the logged ratio to a median is not bounded by 1: {logged:.3f} after 10 steps of pure noise",
    )


def corrected_moment(noisy: np.ndarray, phi: float) -> np.ndarray:
    """What the correction subtracts."""
    return noisy - phi


@statement("ov.thm3.i", paper=PAPER, expected="CONDITIONAL")
def theorem_3_unbiased(*, claim: Callable[[np.ndarray, float], np.ndarray] = corrected_moment) -> Verdict:
    """E[v_hat - Phi] = v_true, as long as the clamp at the floor is inactive."""
    phi, draws = 0.955, 200_000
    noisy, clean = oracle.second_moments(
        BETA2, 40, phi, draws, lambda past: np.full_like(past, np.sqrt(0.045)), seed=7
    )
    free = claim(noisy, phi) - clean
    clamped = np.maximum(claim(noisy, phi), 1e-4) - clean
    margins = [
        abs(float(np.mean(gap))) / (oracle.STANDARD_ERRORS * float(np.std(gap)) / np.sqrt(draws))
        for gap in (free, clamped)
    ]
    return Verdict(
        judged_condition(margins[0], margins[1], 1.0),
        "Monte Carlo, in units of 6.5 SE",
        draws,
        margins[0],
        f"only unclamped: with a floor at rho = 0.955, t = 40, the mean is {np.mean(clamped) + 0.045:.3f}, "
        "v_true is 0.045",
    )


def plug_in(rho: float) -> float:
    """The paper's enlargement of a step."""
    return (1.0 - rho) ** -0.5


@statement("ov.thm3.ii", paper=PAPER, expected="CONDITIONAL")
def theorem_3_factor(*, claim: Callable[[float], float] = plug_in) -> Verdict:
    """kappa_BC = (1 - rho)^(-1/2) is the ratio of expected denominators; not a bound on the mean ratio."""
    worst = 0.0
    for rho, printed in ((0.955, 4.7140), (0.5, 1.41421), (0.75, 2.0), (0.0, 1.0)):
        exact = float(sympy.sqrt(1 / (1 - sympy.Rational(str(rho)))))
        worst = max(worst, abs(claim(rho) / exact - 1.0), abs(claim(rho) / printed - 1.0) - 1e-5)
    # The paper adds that the expected enlargement is at least that, by Jensen. With the clamp it is not.
    phi, rho, floor = oracle.PHI_4096, oracle.RHO_4096, 1e-10
    samples = 1.0 / float(np.sum(oracle.weights_by_recursion(BETA2, 40) ** 2))
    noisy = phi / rho * oracle.chi_square_grid(samples)
    mean_ratio = float(np.mean(np.sqrt(noisy / np.maximum(noisy - phi, floor))))
    below = float(np.mean(noisy < phi))
    return Verdict(
        judged_condition(worst, claim(rho) - mean_ratio, 1e-9),
        "closed form; mean ratio by chi-square quantiles",
        5,
        worst,
        f"as a ratio of means only: at rho = 0.955, t = 40, floor 1e-10 the mean ratio is {mean_ratio:.2f} "
        f"< 4.71, and v_hat < Phi with probability {below:.3f}",
    )


def sandwich(r: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The paper's bounds on the relative change."""
    return r / 2 - r**2 / 2, r / 2


@statement("ov.thm3.iii", paper=PAPER)
def theorem_3_sandwich(*, claim: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]] = sandwich) -> Verdict:
    """r/2 - r^2/2 <= sqrt(1 + r) - 1 <= r/2 for r >= 0 (and the sharper r/2 - r^2/8)."""
    ratios = np.geomspace(1e-6, 1e6, 4001)
    change = ratios / (np.sqrt(1 + ratios) + 1)
    lower, upper = claim(ratios)
    sharper = ratios / 2 - ratios**2 / 8
    worst = max(
        float(np.max((bound - above) / ratios))
        for bound, above in ((lower, change), (sharper, change), (change, upper))
    )
    r = sympy.symbols("r", positive=True)
    identity = (1 + r) - (1 + r / 2 - r**2 / 2) ** 2 - r**2 / 4 * (3 - r) * (1 + r)
    worst = max(worst, float(abs(sympy.expand(identity))))
    return Verdict(
        judged(worst, 1e-12), "violation over r on a grid; identity by sympy", ratios.size + 1, worst
    )


def logistic_slope(rho: float) -> float:
    """The paper's sensitivity of rho."""
    return rho * (1 - rho)


@statement("ov.thm3.iv", paper=PAPER)
def theorem_3_slope(*, claim: Callable[[float], float] = logistic_slope) -> Verdict:
    """The slope d rho / d ln r = rho (1 - rho), with its largest value 1/4 at rho = 1/2."""
    u = sympy.symbols("u", real=True)
    logistic = sympy.exp(u) / (1 + sympy.exp(u))
    worst, cases = 0.0, 0
    for point in (-5.0, -1.2, 0.0, 0.4, 3.0):
        rho = float(logistic.subs(u, point))
        worst = max(worst, abs(claim(rho) - float(sympy.diff(logistic, u).subs(u, point))))
        cases += 1
    grid = np.linspace(0.0, 1.0, 2001)
    values = np.array([claim(float(rho)) for rho in grid])
    worst = max(worst, abs(float(values.max()) - 0.25), abs(float(grid[np.argmax(values)]) - 0.5))
    # The text says that g passes 1 above rho = 1/2; it does so at 3/4.
    passes = float(sympy.nsolve((1 - u) ** sympy.Rational(-1, 2) - 2, u, 0.7))
    worst = max(worst, abs(passes - 0.75))
    return Verdict(judged(worst, 1e-12), "derivative by sympy, absolute", cases + 2, worst)


def share_derivative(phi: float, clean: float) -> float:
    """The paper's derivative in v_true."""
    return -phi / (clean + phi) ** 2


@statement("ov.thm3.v", paper=PAPER)
def theorem_3_saturation(*, claim: Callable[[float, float], float] = share_derivative) -> Verdict:
    """Rho falls strictly in v_true, with derivative -Phi / (v + Phi)^2, and tends to 1 as v does to 0."""
    phi, clean = sympy.symbols("phi v", positive=True)
    derivative = sympy.diff(phi / (clean + phi), clean)
    worst, cases = 0.0, 0
    for point in ((0.3, 0.0), (1.0, 2.0), (5.0, 0.1), (1e-8, 1e-9)):
        exact = float(derivative.subs({phi: sympy.Float(point[0], 30), clean: sympy.Float(point[1], 30)}))
        worst = max(worst, abs(claim(*point) / exact - 1.0), 0.0 if claim(*point) < 0 else 1.0)
        cases += 1
    worst = max(worst, abs(float(sympy.limit(phi / (clean + phi), clean, 0, "+")) - 1.0))
    return Verdict(judged(worst, 1e-12), "derivative and limit by sympy, relative", cases + 1, worst)


def clamp_floor(clean: float, floor: float) -> float:
    """The paper's lower bound on the clamped mean."""
    return max(clean, floor)


@statement("ov.thm3.rem.floor", paper=PAPER)
def remark_floor(*, claim: Callable[[float, float], float] = clamp_floor) -> Verdict:
    """E max(v_hat - Phi, xi) >= max(v_true, xi); fully clamped, the step scale is 1 / sqrt(xi)."""
    worst, cases = -np.inf, 0
    for samples in (1.0, 40.0, 150.0):
        grid = oracle.chi_square_grid(samples)
        grid = grid / grid.mean()
        for clean in (0.0, 1e-3, 0.1, 3.0):
            for floor in (1e-4, 0.2, 1.0):
                mean = float(np.mean(np.maximum((1.0 + clean) * grid - 1.0, floor)))
                worst = max(worst, claim(clean, floor) - mean)
                cases += 1
    samples = 1.0 / float(np.sum(oracle.weights_by_recursion(BETA2, 150) ** 2))
    clamped = float(stats.chi2.cdf(samples * (1.0 + 1e-8 / oracle.PHI_512), samples))
    worst = max(worst, abs(clamped - 0.99977) - 1e-5)
    return Verdict(
        judged(worst, 1e-9),
        "chi-square quantiles, violation in units of Phi; clamp fraction at t = 150",
        cases + 1,
        worst,
        f"{clamped:.5f} of the coordinates are clamped at xi = 1e-8, t = 150 (the paper logs 1.00)",
    )


def full_batch_shrink(phi_ratio: float) -> float:
    """The paper: the shrink of Phi that a batch near the whole corpus is said to bring."""
    return 1.0 / phi_ratio


@statement("ov.num.700x", paper=PAPER, expected="NOT REPRODUCED")
def seven_hundred_fold(*, claim: Callable[[float], float] = full_batch_shrink) -> Verdict:
    """Rho = 1/2 needs Phi 700 times smaller, a batch near the full corpus: not at a fixed budget."""
    needed = claim(1.4e-3)
    at_512 = phi_formula(oracle.rdp_sigma(3.0, 1e-5, 512 / oracle.CORPUS, 150), 0.1, 512)
    at_all = phi_formula(150**0.5 * ref.gaussian_sigma(3.0, 1e-5), 0.1, oracle.CORPUS)
    reached = at_512 / at_all
    # Corrected: the measured median, -3e-11 beside Phi, means v_true / Phi = 3.1e-3 once debiased.
    samples = 1.0 / float(np.sum(oracle.weights_by_recursion(BETA2, 150) ** 2))
    median = float(stats.chi2.ppf(0.5, samples)) / samples
    debiased = (1.0 - 3e-11 / oracle.PHI_512) / median - 1.0
    return Verdict(
        judged_erratum(needed / reached - 1.0, abs(debiased / 3.1e-3 - 1.0), 0.05, word="NOT REPRODUCED"),
        "exact Gaussian at the full batch; debiased median, relative",
        2,
        needed / reached - 1.0,
        f"the full batch at eps = 3, T = 150 shrinks Phi {reached:.1f} times; debiased, "
        f"{1 / debiased:.0f} times would do",
    )


FLIPS: dict[str, Callable[[], Verdict]] = {
    "ov.def.phi": lambda: definition_phi(claim=lambda sigma, clip, size: (sigma * clip) ** 2 / size),
    "ov.thm1": lambda: theorem_1(claim=lambda clean, phi: clean + 0.95 * phi),
    "ov.thm1.var": lambda: theorem_1_variance(
        claim=lambda beta2, steps: 1.01 * effective_samples(beta2, steps)
    ),
    "ov.thm3.def": lambda: theorem_3_definition(claim=lambda phi, clean: phi / (clean + 2 * phi)),
    "ov.thm3.i": lambda: theorem_3_unbiased(claim=lambda noisy, phi: noisy - 0.95 * phi),
    "ov.thm3.ii": lambda: theorem_3_factor(claim=lambda rho: 1.0 / (1.0 - rho)),
    "ov.thm3.iii": lambda: theorem_3_sandwich(claim=lambda r: (r / 2 - r**2 / 16, r / 2)),
    "ov.thm3.iv": lambda: theorem_3_slope(claim=lambda rho: rho * (1 - rho) ** 2),
    "ov.thm3.v": lambda: theorem_3_saturation(claim=lambda phi, clean: -clean / (clean + phi) ** 2),
    "ov.thm3.rem.floor": lambda: remark_floor(claim=lambda clean, floor: clean + floor),
    "ov.num.700x": lambda: seven_hundred_fold(claim=lambda _: 10.0),
}
