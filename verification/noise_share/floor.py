"""The noise-share paper, section on the DP-SGD floor: small problems whose moments are exact.

Poisson sampling of eight examples has 256 outcomes, so every expectation is a finite sum.
"""

from collections.abc import Callable

import numpy as np
from scipy import linalg

from verification.harness.verdict import Verdict, judged, judged_condition, judged_erratum, statement
from verification.oracles import noise_share as oracle

PAPER = "noise_share"
RATE = 0.4


def problem(seed: int, examples: int = 8, dimension: int = 2) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Least squares: features, targets, optimum."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(examples, dimension))
    targets = rng.normal(size=examples)
    return features, targets, np.linalg.lstsq(features, targets, rcond=None)[0]


def expected_divisor(chosen: np.ndarray, expected: float) -> float:
    """The paper divides by the expected batch size."""
    del chosen
    return expected


@statement("ov.asm1-2", paper=PAPER)
def assumption_unbiased(*, claim: Callable[[np.ndarray, float], float] = expected_divisor) -> Verdict:
    """With clipping inactive and B = q N as divisor, the mean of the DP gradient is the full gradient."""
    worst, cases = 0.0, 0
    for seed in range(5):
        features, targets, _ = problem(seed)
        gradients = features * (features @ np.ones(2) - targets)[:, None]
        for rate in (0.1, RATE, 0.9):
            mean = sum(
                weight * (chosen @ gradients) / claim(chosen, rate * len(features))
                for chosen, weight in oracle.poisson_subsets(len(features), rate)
            )
            worst = max(worst, float(np.abs(mean - gradients.mean(axis=0)).max()))
            cases += 1
    return Verdict(judged(worst, 1e-12), "sum over all 256 samples, absolute", cases, worst)


def smoothness_matrix(features: np.ndarray, rate: float) -> float:
    """The exact constant for least squares: the largest eigenvalue of a pencil."""
    examples = len(features)
    hessian = features.T @ features / examples
    fourth = sum(float(row @ row) * np.outer(row, row) for row in features) / examples
    pencil = (1 - rate) / (rate * examples) * fourth + hessian @ hessian
    return float(linalg.eigh(pencil, hessian, eigvals_only=True)[-1])


@statement("ov.asm3", paper=PAPER, expected="CONDITIONAL")
def assumption_smoothness(*, claim: Callable[[np.ndarray, float], float] = smoothness_matrix) -> Verdict:
    """E ||g(x) - g(x*)||^2 <= 2 A (F(x) - F*), if both gradients share sample and noise."""
    rng = np.random.default_rng(5)
    worst, cases, apart = -np.inf, 0, 0.0
    for seed in range(4):
        features, targets, best = problem(seed)
        examples = len(features)
        size = RATE * examples
        constant = claim(features, RATE)
        largest = float(np.max(np.sum(features**2, axis=1)))
        smooth = float(np.linalg.eigvalsh(features.T @ features / examples)[-1])
        worst = max(worst, constant / (smooth + (1 - RATE) / size * largest) - 1.0)
        for _ in range(40):
            point = best + rng.normal(size=2)
            change = features * (features @ (point - best))[:, None]
            left = sum(
                weight * float(np.sum((chosen @ change / size) ** 2))
                for chosen, weight in oracle.poisson_subsets(examples, RATE)
            )
            gap = 0.5 * float(np.mean((features @ (point - best)) ** 2))
            worst = max(worst, left / (2 * constant * gap) - 1.0)
            cases += 1
        # Independent draws at x = x*: the left side is positive, the right side is 0.
        residual = features * (features @ best - targets)[:, None]
        apart = max(apart, 2 * (1 - RATE) / size * float(np.mean(np.sum(residual**2, axis=1))))
    return Verdict(
        judged_condition(worst, apart, 1e-9),
        "sum over all samples; violation, relative",
        cases,
        worst,
        f"needs shared draws: with independent ones the left side at x* is {apart:.3f}, the right side 0",
    )


def variance_split(gradients: np.ndarray, rate: float, dimension: int, phi: float) -> float:
    """The paper's variance of the DP gradient at the optimum."""
    size = rate * len(gradients)
    return (1 - rate) / size * float(np.mean(np.sum(gradients**2, axis=1))) + dimension * phi


@statement("ov.asm3.split", paper=PAPER)
def assumption_split(*, claim: Callable[[np.ndarray, float, int, float], float] = variance_split) -> Verdict:
    """sigma_*^2 = sigma_sub^2 + d Phi, sigma_sub^2 = (1 - q) / B mean ||grad l_i(x*)||^2."""
    worst, cases = 0.0, 0
    for seed in range(6):
        features, targets, best = problem(seed)
        gradients = features * (features @ best - targets)[:, None]
        for rate in (0.15, RATE, 1.0):
            size = rate * len(features)
            sampled = sum(
                weight * float(np.sum((chosen @ gradients / size) ** 2))
                for chosen, weight in oracle.poisson_subsets(len(features), rate)
            )
            # Noise of covariance Phi I adds its trace.
            exact = sampled + float(np.trace(0.03 * np.eye(2)))
            worst = max(worst, abs(claim(gradients, rate, 2, 0.03) / exact - 1.0))
            cases += 1
    return Verdict(judged(worst, 1e-12), "sum over all 256 samples, relative", cases, worst)


def convexity_order(constant: float, convexity: float) -> float:
    """The paper: A >= mu. Positive where it fails."""
    return convexity - constant


@statement("ov.thm5.A", paper=PAPER)
def theorem_5_constant(*, claim: Callable[[float, float], float] = convexity_order) -> Verdict:
    """The expected-smoothness constant is at least the strong-convexity constant."""
    worst, cases = -np.inf, 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        features = rng.normal(size=(8, 2)) * 10.0 ** rng.uniform(-2, 2, size=2)
        spectrum = np.linalg.eigvalsh(features.T @ features / 8)
        for rate in (0.1, 0.5, 1.0):
            constant = smoothness_matrix(features, rate)
            worst = max(worst, claim(constant, float(spectrum[0])) / constant)
            # The right argument (Jensen) gives more: A >= L for quadratics.
            worst = max(worst, float(spectrum[-1]) / constant - 1.0)
            cases += 2
    return Verdict(judged(worst, 1e-9), "random least squares; violation, relative", cases, worst)


def distances(features: np.ndarray, targets: np.ndarray, step: float, phi: float, steps: int) -> np.ndarray:
    """E ||x_k - x*||^2 of Poisson-sampled DP-SGD from 0, exactly: moments of (x - x*, 1) over all samples."""
    examples, dimension = features.shape
    best = np.linalg.lstsq(features, targets, rcond=None)[0]
    residual = features @ best - targets
    size = RATE * examples
    maps = []
    for chosen, weight in oracle.poisson_subsets(examples, RATE):
        part = np.eye(dimension + 1)
        part[:dimension, :dimension] -= step / size * (features.T * chosen) @ features
        part[:dimension, dimension] = -step / size * (chosen * residual) @ features
        maps.append(np.sqrt(weight) * part)
    stacked = np.array(maps)
    moments = np.outer(np.append(-best, 1.0), np.append(-best, 1.0))
    noise = step**2 * phi * np.diag([1.0] * dimension + [0.0])
    found = []
    for _ in range(steps):
        found.append(float(np.trace(moments[:dimension, :dimension])))
        moments = np.einsum("sij,jk,slk->il", stacked, moments, stacked) + noise
    return np.array(found)


def printed_floor(step: float, convexity: float, sampling: float, noise: float) -> float:
    """The paper's floor 2 gamma sigma_*^2 / mu."""
    return 2 * step * (sampling + noise) / convexity


def sharper_floor(step: float, convexity: float, sampling: float, noise: float) -> float:
    """Half the noise part: the noise is independent of the rest."""
    return step * (2 * sampling + noise) / convexity


@statement("ov.thm5", paper=PAPER)
def theorem_5(*, claim: Callable[[float, float, float, float], float] = printed_floor) -> Verdict:
    """E ||x_k - x*||^2 <= (1 - gamma mu)^k ||x_0 - x*||^2 + 2 gamma sigma_*^2 / mu for gamma <= 1 / (2A)."""
    worst, cases = -np.inf, 0
    for seed in range(3):
        features, targets, best = problem(seed)
        convexity = float(np.linalg.eigvalsh(features.T @ features / len(features))[0])
        constant = smoothness_matrix(features, RATE)
        gradients = features * (features @ best - targets)[:, None]
        for step in (0.5 / constant, 0.125 / constant):
            for phi in (0.0, 0.5):
                exact = distances(features, targets, step, phi, 400)
                sampling = variance_split(gradients, RATE, 2, 0.0)
                shrink = (1 - step * convexity) ** np.arange(400) * exact[0]
                for floor in (claim, sharper_floor):
                    bound = shrink + floor(step, convexity, sampling, 2 * phi)
                    worst = max(worst, float(np.max(exact / bound)) - 1.0)
                    cases += 1
    # Noise alone on h x^2 / 2: the stationary value of x <- (1 - gamma h) x + noise.
    ratios = []
    for product in (0.01, 0.25, 0.5):
        stationary = product**2 / (1 - (1 - product) ** 2)
        ratios.append(stationary / claim(product, 1.0, 0.0, 1.0))
    worst = max(worst, max(ratios) - 1.0)
    return Verdict(
        judged(worst, 1e-9),
        "exact second moments over all samples; violation, relative",
        cases + 3,
        worst,
        f"loose: noise alone reaches {ratios[0]:.4f} to {ratios[-1]:.4f} of the bound",
    )


BATCHES = (16, 64, 256, 512, 1024, 4096, 16384)


def fixed_epoch_noise(eps: float) -> tuple[np.ndarray, np.ndarray]:
    """Phi (C = 1) and c = sigma eps / (q sqrt(T ln 1/delta)) over batch sizes, ten epochs, by accounting."""
    phi, constants = [], []
    for size in BATCHES:
        rate, steps = size / oracle.CORPUS, round(10 * oracle.CORPUS / size)
        sigma = oracle.rdp_sigma(eps, 1e-5, rate, steps)
        phi.append((sigma / size) ** 2)
        constants.append(sigma * eps / (rate * np.sqrt(steps * np.log(1e5))))
    return np.array(phi), np.array(constants)


@statement("ov.cor.coupling", paper=PAPER, expected="CONDITIONAL", full=True)
def corollary_coupling(
    *, accountant: Callable[[float], tuple[np.ndarray, np.ndarray]] = fixed_epoch_noise
) -> Verdict:
    """The floor follows sigma = c q sqrt(T ln 1/delta) / eps with one c, so Phi falls like 1 / B."""
    printed, corrected, notes, cases = 0.0, 0.0, [], 0
    for eps in (3.0, 1.0):
        phi, constants = accountant(eps)
        slopes = np.diff(np.log(phi)) / np.diff(np.log(BATCHES))
        printed = max(printed, float(np.max(np.abs(slopes + 1.0))))
        corrected = max(corrected, float(np.max(slopes)) + 1.0, -2.0 - float(np.min(slopes)))
        notes.append(
            f"eps = {eps:g}: c from {constants[0]:.2f} (B = 16) to {constants[-1]:.2f} (B = 16384), "
            f"slopes {slopes[0]:.2f} to {slopes[-1]:.2f}"
        )
        cases += slopes.size
    return Verdict(
        judged_erratum(printed, corrected, 0.02, word="CONDITIONAL"),
        "Renyi accounting; d ln Phi / d ln B, corrected: in [-2, -1]",
        cases,
        printed,
        "; ".join(notes),
    )


def stationarity(step: float, smooth: float, steps: int, gap: float, spread: float) -> float:
    """The order statement with its constants."""
    return 2 * gap / (step * steps) + step * smooth * spread


@statement("ov.rem.nonconvex", paper=PAPER)
def remark_nonconvex(*, claim: Callable[[float, float, int, float, float], float] = stationarity) -> Verdict:
    """Mean ||grad F||^2 <= O(Delta / (gamma K)) + O(gamma L (base + d Phi)): with 2 and 1, gamma <= 1 / L."""
    worst, cases = -np.inf, 0
    # F = 1 - cos x (not convex, L = 1): the law of x on a periodic grid, one exact step at a time.
    points = 720
    angles = np.arange(points) * 2 * np.pi / points - np.pi
    for step in (1.0, 0.2):
        for phi in (0.0, 0.5, 5.0):
            law = np.zeros(points)
            law[points - 20] = 1.0
            start = 1.0 - np.cos(angles[points - 20])
            targets = angles - step * np.sin(angles)
            width = max(step * np.sqrt(phi), 1e-9)
            turns = angles[None, :, None] - targets[:, None, None] + 2 * np.pi * np.arange(-3, 4)
            kernel = np.exp(-(turns**2) / (2 * width**2)).sum(axis=2)
            if phi == 0.0:
                kernel = np.zeros((points, points))
                kernel[
                    np.arange(points), np.round((targets + np.pi) / (2 * np.pi) * points).astype(int) % points
                ] = 1
            kernel /= kernel.sum(axis=1, keepdims=True)
            total = 0.0
            for steps in range(1, 61):
                total += float(law @ np.sin(angles) ** 2)
                law = law @ kernel
                worst = max(worst, total / steps / claim(step, 1.0, steps, start, phi) - 1.0)
                cases += 1
    # h x^2 / 2 in closed form: E x_k^2 = (1 - gamma h)^(2k) x_0^2 + gamma^2 Phi (1 - r^k) / (1 - r).
    for product in (0.05, 0.5, 1.0):
        ratio = (1 - product) ** 2
        steps = np.arange(2000)
        second = ratio**steps + product**2 * 0.3 * (1 - ratio**steps) / (1 - ratio)
        worst = max(worst, float(np.mean(second)) / claim(product, 1.0, 2000, 0.5, 0.3) - 1.0)
        cases += 1
    return Verdict(
        judged(worst, 1e-3), "laws on a grid and in closed form; violation, relative", cases, worst
    )


def lower_bound_reading(floor: float) -> float:
    """The paper: the floor of Theorem 5 bounds the true one from below."""
    return floor


@statement("ov.rem.clipbias", paper=PAPER, expected="COUNTEREXAMPLE")
def remark_clipping(*, claim: Callable[[float], float] = lower_bound_reading) -> Verdict:
    """Clipping bias only adds to the floor, so the floor of Theorem 5 is a lower bound on the true one."""
    below, above, cases = 0.0, -np.inf, 0
    for product in (0.01, 0.25, 0.5):
        true = product**2 / (1 - (1 - product) ** 2)
        floor = printed_floor(product, 1.0, 0.0, 1.0)
        below = max(below, claim(floor) / true - 1.0)
        above = max(above, true / floor - 1.0)
        cases += 1
    return Verdict(
        judged_erratum(below, above, 1e-9, word="COUNTEREXAMPLE"),
        "stationary variance on h x^2 / 2, clipping inactive; excess of the alleged lower bound",
        cases,
        below,
        f"Theorem 5 is an upper bound: at gamma h = 0.01 it is {1 + below:.2f} times the true floor",
    )


FLIPS: dict[str, Callable[[], Verdict]] = {
    "ov.asm1-2": lambda: assumption_unbiased(claim=lambda chosen, _: max(float(chosen.sum()), 1.0)),
    "ov.asm3": lambda: assumption_smoothness(claim=lambda rows, rate: 0.7 * smoothness_matrix(rows, rate)),
    "ov.asm3.split": lambda: assumption_split(
        claim=lambda rows, rate, d, phi: variance_split(rows, rate, d, phi) + phi
    ),
    "ov.thm5.A": lambda: theorem_5_constant(claim=lambda constant, convexity: constant - convexity),
    "ov.thm5": lambda: theorem_5(claim=lambda *terms: printed_floor(*terms) / 8),
    "ov.cor.coupling": lambda: corollary_coupling(
        accountant=lambda _: (1.0 / np.array(BATCHES), np.ones(len(BATCHES)))
    ),
    "ov.rem.nonconvex": lambda: remark_nonconvex(claim=lambda *terms: 0.2 * stationarity(*terms)),
    "ov.rem.clipbias": lambda: remark_clipping(claim=lambda floor: floor / 8),
}
