"""The noise-share paper, section on the first moment of Adam at rho = 1."""

from collections.abc import Callable

import numpy as np

from verification.harness.nudging import nudge
from verification.harness.verdict import Verdict, judged, judged_condition, judged_erratum, statement
from verification.oracles import noise_share as oracle

PAPER = "noise_share"
BETAS = (0.0, 0.3, 0.5, 0.9, 0.99, 0.999)
STEPS = (1, 2, 5, 20, 200)


def weights(beta: float, steps: int) -> np.ndarray:
    """The paper's weights, oldest first."""
    return (1 - beta) * beta ** np.arange(steps - 1, -1, -1.0) / (1 - beta**steps)


@statement("ov.thm6.i", paper=PAPER)
def theorem_6_mean(*, claim: Callable[[float, int], np.ndarray] = weights) -> Verdict:
    """The mean of the average is sum_k w_k E g_(t-k), w >= 0 of sum 1; the mean gradient if stationary."""
    rng = np.random.default_rng(2)
    worst, lag, cases = 0.0, 0.0, 0
    for beta in BETAS:
        for steps in STEPS:
            means = rng.normal(size=steps)
            found = claim(beta, steps)
            worst = max(
                worst,
                abs(float(found @ means) - float(oracle.average_by_recursion(means, beta))),
                abs(float(found.sum()) - 1.0),
                -float(found.min()),
                abs(float(oracle.average_by_recursion(np.full(steps, 0.7), beta)) - 0.7),
            )
            # A mean that grows by 1 a step, outside of (A2): the average lags behind it.
            lag = max(lag, steps - float(oracle.average_by_recursion(np.arange(1.0, steps + 1), beta)))
            cases += 1
    return Verdict(
        judged(worst, 1e-10),
        "The check runs the recursion itself. Deviations are absolute.",
        cases,
        worst,
        "Condition (A2) is needed: if the mean drifts by 1 per step, the average lags behind it by up "
        f"to {lag:.1f}.",
    )


def variance(beta: float, steps: int) -> float:
    """The paper's variance factor."""
    return (1 - beta) / (1 + beta) * (1 + beta**steps) / (1 - beta**steps)


def closed_loop(steps: int, rate: float, beta: float) -> tuple[float, float, float]:
    """Momentum SGD on x^2 / 2 with unit noise: variance of the average, of its signal and of its noise.

    Everything is a linear map of the noises xi_1..xi_T, so the variances are squared norms.
    """
    position = np.zeros(steps)
    momentum = np.zeros(steps)
    gradients, noises = [], np.eye(steps)
    for t in range(steps):
        gradients.append(position.copy())
        momentum = beta * momentum + (1 - beta) * (position + noises[t])
        position = position - rate * momentum
    signal = weights(beta, steps) @ np.array(gradients)
    noise = weights(beta, steps) @ noises
    return float(np.sum((signal + noise) ** 2)), float(signal @ signal), float(noise @ noise)


@statement("ov.thm6.ii", paper=PAPER)
def theorem_6_variance(*, claim: Callable[[float, int], float] = variance) -> Verdict:
    """The noise part has variance (1-b)/(1+b) (1+b^t)/(1-b^t) Phi; lag-l covariance (1-b)/(1+b) b^l Phi."""
    worst, cases = 0.0, 0
    for beta in BETAS:
        for steps in STEPS:
            exact = float(np.sum(oracle.weights_by_recursion(beta, steps) ** 2))
            worst = max(worst, abs(claim(beta, steps) / exact - 1.0))
            cases += 1
    worst = max(worst, abs(claim(0.9, 2000) - 0.0526316) - 1e-7)
    for lag in (0, 1, 7):
        long = oracle.weights_by_recursion(0.9, 600)
        exact = float(long[lag:] @ long[: 600 - lag])
        worst = max(worst, abs(0.1 / 1.9 * 0.9**lag / exact - 1.0))
        cases += 1
    total, signal, noise = closed_loop(60, 0.3, 0.9)
    return Verdict(
        judged(worst, 1e-9),
        "The check sums the squared weights. Deviations are relative.",
        cases,
        worst,
        "The split (18) requires gradients that do not depend on past noise. On x^2 / 2 the variance "
        f"is {total:.4f}, while the two parts add up to {signal + noise:.4f}.",
    )


# Pure noise: the second moment after these steps, at these decays; the last of them hardly scatters.
SCATTERED = ((0.999, 1), (0.0, 5), (0.999, 80))
STEADY = ((0.999, 20_000), (0.99999, 1_000_000))


def no_scatter(beta2: float, steps: int) -> float:
    """The paper: where the signal vanishes the second moment does not vary."""
    del beta2, steps
    return 0.0


def scatter(beta2: float, steps: int) -> float:
    """Its relative standard deviation, sqrt(2 / n_eff)."""
    return float(np.sqrt(2 * (1 - beta2) / (1 + beta2) * (1 + beta2**steps) / (1 - beta2**steps)))


@statement("ov.thm6.iii", paper=PAPER, expected="CONDITIONAL")
def theorem_6_constant(
    *, claim: Callable[[float, int], float] = no_scatter, right: Callable[[float, int], float] = scatter
) -> Verdict:
    """At rho = 1 the second moment is Phi in every coordinate, and varies only with the signal.

    Condition: of the mean, at every step; of the moment itself where it averages over so many steps that
    `right`, its relative standard deviation without any signal, is negligible.
    """
    inside, outside, notes = 0.0, 0.0, []
    for beta2, steps in SCATTERED:
        draws = 2_000_000 // steps**0.5
        noisy, _ = oracle.second_moments(beta2, steps, 1.0, int(draws), np.zeros_like, seed=steps)
        found = float(np.std(noisy))
        outside = max(outside, abs(claim(beta2, steps) - found))
        inside = max(inside, abs(right(beta2, steps) / found - 1.0))
        # The mean is Phi = 1 whatever the weights, which the sample shows to five standard errors.
        inside = max(inside, abs(float(np.mean(noisy)) - 1.0) - 5.0 * found / int(draws) ** 0.5)
        inside = max(inside, abs(float(oracle.weights_by_recursion(beta2, steps).sum()) - 1.0))
        notes.append(f"{found:.0%} at beta_2 = {beta2:g}, t = {steps}")
    # In the steady state, by the recursion of the variance of the average: that of a squared noise is 2.
    for beta2, steps in STEADY:
        spread = 0.0
        for _ in range(steps):
            spread = beta2**2 * spread + (1.0 - beta2) ** 2 * 2.0
        found = spread**0.5
        inside = max(inside, abs(right(beta2, steps) / found - 1.0))
        notes.append(f"{found:.1%} at beta_2 = {beta2:g} in the steady state")
    # That last one is long enough for the tolerance.
    inside = max(inside, abs(claim(*STEADY[-1]) - found))
    # At the first step the update is the sign of the gradient, not a constant times it.
    gradient = np.random.default_rng(4).normal(size=100)
    first = oracle.average_by_recursion(gradient[None], 0.9) / np.sqrt(
        oracle.average_by_recursion(gradient[None] ** 2, 0.999)
    )
    inside = max(inside, float(np.max(np.abs(first - np.sign(gradient)))))
    return Verdict(
        judged_condition(inside, outside, 0.006),
        "The check computes the mean and the relative standard deviation of pure noise over "
        "coordinates, by sampling and by recursion.",
        len(SCATTERED) + len(STEADY) + 1,
        inside,
        "The statement requires the mean, or a long average. The second moment of pure noise has a relative "
        f"standard deviation of {'; '.join(notes)}.",
    )


def deviation(clean: np.ndarray, phi: np.ndarray, eps: np.ndarray) -> np.ndarray:
    """The paper's bound on the change of the preconditioner."""
    return clean / (2 * np.sqrt(phi) * (np.sqrt(phi) + eps) ** 2)


@statement("ov.thm6.iv", paper=PAPER)
def theorem_6_deviation(
    *, claim: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray] = deviation
) -> Verdict:
    """|1/(sqrt(a+b)+e) - 1/(sqrt b+e)| <= a / (2 sqrt b (sqrt b+e)^2); relative deviation <= a / (2b)."""
    rng = np.random.default_rng(6)
    clean, phi, eps = 10.0 ** rng.uniform(-8, 4, size=(3, 20_000))
    root = np.sqrt(phi)
    # The difference of the two, without cancellation.
    gap = clean / (np.sqrt(clean + phi) + root) / ((np.sqrt(clean + phi) + eps) * (root + eps))
    worst = float(np.max(gap / claim(clean, phi, eps))) - 1.0
    worst = max(worst, float(np.max(gap * (root + eps) / (clean / (2 * phi)))) - 1.0)
    return Verdict(
        judged(worst, 1e-12),
        "The check uses random a, b and eps. The deviation is the relative violation.",
        clean.size,
        worst,
    )


def step_inflation(lam: float) -> float:
    """The paper's factor on the standard deviation of a step's noise."""
    return float((1 - lam**2) ** -0.5)


def noise_inflation(lam: float) -> float:
    """With the spread of z_t - lam z_(t-1) itself."""
    return float(np.sqrt((1 + lam**2) / (1 - lam**2)))


@statement("ov.vhat.corr", paper=PAPER, expected="WORDING")
def remark_12_inflation(
    *, claim: Callable[[float], float] = step_inflation, right: Callable[[float], float] = noise_inflation
) -> Verdict:
    """Correlated noise at equal privacy enters sqrt(v_hat) kappa times as large, 2.29 at lambda = 0.9."""
    printed, corrected, notes, cases = 0.0, 0.0, [], 0
    for lam, steps in ((0.5, 60), (0.9, 200), (0.95, 400), (0.99, 1600)):
        noising = oracle.bidiagonal(lam, steps)
        norm = np.sqrt(np.sum(lam ** (2.0 * np.arange(steps))))
        factor = float(norm * np.linalg.norm(noising[steps // 2]))
        printed = max(printed, abs(claim(lam) / factor - 1.0))
        corrected = max(corrected, abs(right(lam) / factor - 1.0))
        notes.append(f"{factor:.2f} at {lam}")
        cases += 1
    return Verdict(
        judged_erratum(printed, corrected, 1e-9, word="WORDING"),
        "The check multiplies the norm of the first column of L^-1 by the row norms of L. Deviations "
        "are relative.",
        cases,
        printed,
        "The factor is sqrt((1 + lambda^2) / (1 - lambda^2)): " + ", ".join(notes) + ".",
    )


FLIPS: dict[str, Callable[[], Verdict]] = {
    "ov.thm6.i": lambda: theorem_6_mean(claim=lambda b, t: (1 - b) * b ** np.arange(t - 1, -1, -1.0)),
    "ov.thm6.ii": lambda: theorem_6_variance(claim=lambda b, t: variance(b, t + 1)),
    "ov.thm6.iii": lambda: theorem_6_constant(claim=scatter),
    "ov.thm6.iv": lambda: theorem_6_deviation(claim=lambda a, b, e: deviation(a, 1.01 * b, e)),
    "ov.vhat.corr": lambda: remark_12_inflation(claim=noise_inflation),
}
NUDGES = {
    "ov.thm6.i": {"weights": nudge(theorem_6_mean)},
    "ov.thm6.ii": {"variance": nudge(theorem_6_variance)},
    "ov.thm6.iii": {"scatter": nudge(theorem_6_constant, "right")},
    "ov.thm6.iv": {"bound": nudge(theorem_6_deviation)},
    "ov.vhat.corr": {"inflation": nudge(remark_12_inflation, "right")},
}
