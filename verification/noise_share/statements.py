"""The noise-share paper (an optimization view of private fine-tuning): noise variance, second moment, rho.

dpmech.analysis.noise_share.moments and dpmech.analysis.noise_share.moments compute what is checked here.
"""

import functools
import itertools
from collections.abc import Callable

import numpy as np
from scipy import stats

from verification.harness.nudging import nudge
from verification.harness.verdict import Verdict, judged, judged_condition, statement
from verification.oracles import noise_share as oracle

PAPER = "noise_share"
BETA2 = 0.999
# Clipped means that react to the noise of the step before.
LOOPS: tuple[Callable[[np.ndarray], np.ndarray], ...] = (
    lambda past: np.full_like(past, 0.5),
    lambda past: 0.5 - 0.8 * past,
    lambda past: 0.3 * past,
)


def phi_formula(sigma: float, clip: float, size: float) -> float:
    """The paper's noise variance."""
    return (sigma * clip / size) ** 2


@statement("ov.def.phi", paper=PAPER)
def definition_phi(*, claim: Callable[[float, float, float], float] = phi_formula) -> Verdict:
    """Phi = (sigma C / B)^2 is the variance per coordinate of (sum + noise) / B."""
    points, weights = np.polynomial.hermite_e.hermegauss(10)
    worst, cases = 0.0, 0
    for sigma, clip, size in ((0.7, 0.1, 512.0), (1.3, 2.0, 64.0), (0.02, 1.0, 1.0)):
        released = (0.4 + sigma * clip * points) / size
        mean = float(weights @ released) / float(weights.sum())
        spread = float(weights @ (released - mean) ** 2) / float(weights.sum())
        worst = max(worst, abs(claim(sigma, clip, size) / spread - 1.0) / 1e-10)
        cases += 1
    # What the paper prints, to two digits, at B = 512, eps = 3, 150 steps; sigma by the accountant it used.
    sigma = oracle.rdp_sigma(3.0, 1e-5, 512 / oracle.CORPUS, 150)
    worst = max(worst, abs(claim(sigma, 0.1, 512.0) - 2.2e-8) / 0.05e-8)
    return Verdict(
        judged(worst, 1.0),
        "The check integrates over the noise with Gauss-Hermite nodes, to 1e-10, and recomputes the "
        "printed 2.2e-8 to all its digits. Deviations are in units of the tolerance.",
        cases + 1,
        worst,
    )


def inflated(clean: np.ndarray, phi: float) -> np.ndarray:
    """The paper's expectation of the second moment, given that of the clipped means."""
    return clean + phi


def _fed_back(feedback: float, past: np.ndarray) -> np.ndarray:
    return 0.5 + feedback * past


@statement("ov.thm1", paper=PAPER)
def theorem_1(*, claim: Callable[[np.ndarray, float], np.ndarray] = inflated) -> Verdict:
    """E v_t = v_true + Phi at every step, with no independence across steps (a closed loop is allowed)."""
    worst, cases, draws = 0.0, 0, 100_000
    for steps in (1, 5, 40):
        for beta2 in (0.0, 0.9, BETA2):
            for feedback in (0.0, -0.8):
                noisy, clean = oracle.second_moments(
                    beta2, steps, 0.6, draws, functools.partial(_fed_back, feedback), seed=steps
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
    return Verdict(
        judged(worst, 1.0),
        "The check runs Monte Carlo simulations in a closed loop, with a tolerance of 6.5 standard "
        "errors, and verifies the sum of the weights.",
        cases,
        worst,
    )


def effective_samples(beta2: float, steps: int) -> float:
    """n_eff, in closed form."""
    return (1 + beta2) / (1 - beta2) * (1 - beta2**steps) / (1 + beta2**steps)


@statement("ov.thm1.var", paper=PAPER, expected="BEYOND THE PAPER")
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
        judged(worst, 1.0, word="BEYOND THE PAPER"),
        "The check sums the squared weights, and estimates the median by Monte Carlo, with a "
        "tolerance of 6.5 standard errors plus 0.005.",
        cases,
        worst,
    )


def share(phi: float, clean: float) -> float:
    """The paper's rho."""
    return phi / (clean + phi)


def _zeros(past: np.ndarray) -> np.ndarray:
    return np.zeros_like(past)


@statement("ov.thm3.def", paper=PAPER)
def theorem_3_definition(*, claim: Callable[[float, float], float] = share) -> Verdict:
    """Rho = Phi / E v_hat, E v_hat from the recursion, is Phi / (v + Phi), in (0, 1], 1 only at v = 0."""
    worst, cases = 0.0, 0
    for phi in (1e-8, 0.6, 30.0):
        for beta2 in (0.0, 0.9, BETA2):
            for loop in (*LOOPS, _zeros):
                expected, clean = oracle.exact_moments(beta2, phi, loop)
                rho = claim(phi, clean)
                worst = max(worst, abs(rho * expected / phi - 1.0), rho - 1.0)
                ratio = phi / max(clean, 1e-300)
                worst = max(worst, abs(rho - ratio / (1 + ratio)), float(rho <= 0.0))
                worst = max(worst, float((clean == 0.0) != (abs(rho - 1.0) < 1e-12)))
                cases += 1
    # The logged Phi / median exceeds 1 by the median of a chi-square: 1.07 is ten steps of pure noise.
    samples = effective_samples(BETA2, 10)
    logged = samples / float(stats.chi2.ppf(0.5, samples))
    return Verdict(
        judged(worst, 1e-10),
        "The check computes E v_hat of two steps in a closed loop with Gauss-Hermite nodes. Deviations "
        "are relative.",
        cases,
        worst,
        f"The logged ratio of Phi to a median is not bounded by 1: it is {logged:.3f} after 10 steps "
        "of pure noise.",
    )


def corrected_moment(expected: float, phi: float) -> float:
    """The mean of what the correction leaves."""
    return expected - phi


@statement("ov.thm3.i", paper=PAPER)
def theorem_3_unbiased(*, claim: Callable[[float, float], float] = corrected_moment) -> Verdict:
    """E[v_hat - Phi] = v_true, as long as the clamp at the floor is inactive, which the proof says."""
    worst, cases = 0.0, 0
    for phi in (0.1, 0.955, 20.0):
        for beta2 in (0.0, 0.9, BETA2):
            for loop in LOOPS:
                expected, clean = oracle.exact_moments(beta2, phi, loop)
                worst = max(worst, abs(claim(expected, phi) / clean - 1.0))
                cases += 1
    samples = effective_samples(BETA2, 40)
    clamped = float(np.mean(np.maximum(oracle.chi_square_grid(samples) - 0.955, 1e-4)))
    return Verdict(
        judged(worst, 1e-9),
        "The check computes two steps in a closed loop with Gauss-Hermite nodes. Deviations are relative.",
        cases,
        worst,
        f"With the clamp, the mean is larger: at rho = 0.955 and t = 40, it is {clamped:.3f} times E v_hat, "
        "whereas v_true is 0.045 times E v_hat.",
    )


def plug_in(rho: float) -> float:
    """The paper's enlargement of a step."""
    return (1.0 - rho) ** -0.5


@statement("ov.thm3.ii", paper=PAPER)
def theorem_3_factor(*, claim: Callable[[float], float] = plug_in) -> Verdict:
    """kappa_BC = (1 - rho)^(-1/2) is the ratio of the roots of the expected denominators."""
    worst, cases = 0.0, 0
    for phi in (0.01, 0.6, 20.0):
        for loop in LOOPS:
            expected, clean = oracle.exact_moments(BETA2, phi, loop)
            worst = max(worst, abs(claim(phi / expected) / np.sqrt(expected / clean) - 1.0))
            cases += 1
    worst = max(worst, abs(claim(0.955) - 4.71) - 0.005)
    return Verdict(
        judged(worst, 1e-9),
        "The check computes the expected denominators with Gauss-Hermite nodes, and recomputes the "
        "printed 4.71 to all its digits. Deviations are relative.",
        cases + 1,
        worst,
    )


@statement("ov.thm3.ii.jensen", paper=PAPER, expected="CONDITIONAL")
def remark_jensen(*, claim: Callable[[float], float] = plug_in) -> Verdict:
    """The expected enlargement of a step is at least kappa_BC: if v_hat > Phi for certain."""
    # Noise of +-1 around a clipped mean of 3: v_hat is at least 4. All 2^12 outcomes of twelve steps.
    weights = oracle.weights_by_recursion(BETA2, 12)
    noisy = np.array(
        [weights @ (3.0 + np.array(noise)) ** 2 for noise in itertools.product((-1, 1), repeat=12)]
    )
    inside = claim(0.1) - float(np.mean(np.sqrt(noisy / (noisy - 1.0))))
    # The paper's own point, Gaussian noise: rho = 0.955, t = 40, floor 1e-10.
    phi, rho, floor = oracle.PHI_4096, oracle.RHO_4096, 1e-10
    noisy = phi / rho * oracle.chi_square_grid(effective_samples(BETA2, 40))
    clamped = float(np.mean(np.sqrt(noisy / np.maximum(noisy - phi, floor))))
    above = noisy[noisy > phi]
    given = float(np.mean(np.sqrt(above / (above - phi))))
    return Verdict(
        judged_condition(inside, claim(rho) - max(clamped, given), 1e-9),
        "The check enumerates all outcomes of two-point noise, and uses chi-square quantiles. The "
        "deviation is the shortfall.",
        len(weights) + 2,
        inside,
        "The statement requires that v_hat > Phi with probability 1. At rho = 0.955 and t = 40, v_hat "
        f"is below Phi with probability {1.0 - above.size / noisy.size:.3f}. The mean enlargement is "
        f"{clamped:.2f} with the floor 1e-10, and {given:.2f} conditional on v_hat > Phi; both are "
        "below 4.71.",
    )


FLIPS: dict[str, Callable[[], Verdict]] = {
    "ov.def.phi": lambda: definition_phi(claim=lambda sigma, clip, size: (sigma * clip) ** 2 / size),
    "ov.thm1": lambda: theorem_1(claim=lambda clean, phi: clean + 0.95 * phi),
    "ov.thm1.var": lambda: theorem_1_variance(
        claim=lambda beta2, steps: 1.01 * effective_samples(beta2, steps)
    ),
    "ov.thm3.def": lambda: theorem_3_definition(claim=lambda phi, clean: phi / (clean + 1.01 * phi)),
    "ov.thm3.i": lambda: theorem_3_unbiased(claim=lambda expected, phi: expected - 0.99 * phi),
    "ov.thm3.ii": lambda: theorem_3_factor(claim=lambda rho: (1.0 - rho) ** -0.51),
    "ov.thm3.ii.jensen": lambda: remark_jensen(claim=lambda rho: (1.0 - rho) ** -0.6),
}
NUDGES = {
    "ov.def.phi": {"Phi": nudge(definition_phi)},
    "ov.thm1": {"mean": nudge(theorem_1)},
    "ov.thm1.var": {"n_eff": nudge(theorem_1_variance)},
    "ov.thm3.def": {"rho": nudge(theorem_3_definition)},
    "ov.thm3.i": {"mean": nudge(theorem_3_unbiased)},
    "ov.thm3.ii": {"kappa": nudge(theorem_3_factor)},
    "ov.thm3.ii.jensen": {"kappa": nudge(remark_jensen)},
}
