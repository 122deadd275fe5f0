"""The noise-share paper, what is said of the DP-SGD floor: budget, non-convex losses, clipping bias."""

from collections.abc import Callable

import numpy as np

from verification.harness.nudging import nudge
from verification.harness.verdict import Verdict, judged, judged_condition, judged_erratum, statement
from verification.noise_share.floor import PAPER, printed_floor
from verification.oracles import noise_share as oracle

BATCHES = (16, 64, 512, 4096, 16384)
# Small budgets need large orders.
LARGE_ORDERS = (16.0, 24.0, 32.0, 40.0, 48.0, 56.0, 64.0, 80.0, 96.0, 112.0, 128.0, 160.0, 192.0)


def fixed_epoch_noise(
    eps: float, sizes: tuple[int, ...], orders: tuple[float, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Phi (C = 1) and c = sigma eps / (q sqrt(T ln 1/delta)) over batch sizes, ten epochs, by accounting."""
    phi, constants = [], []
    for size in sizes:
        rate, steps = size / oracle.CORPUS, round(10 * oracle.CORPUS / size)
        sigma = oracle.rdp_sigma(eps, 1e-5, rate, steps, orders)
        phi.append((sigma / size) ** 2)
        constants.append(sigma * eps / (rate * np.sqrt(steps * np.log(1e5))))
    return np.array(phi), np.array(constants)


@statement("ov.cor.coupling", paper=PAPER, expected="CONDITIONAL", full=True)
def corollary_coupling(*, claim: float = -1.0) -> Verdict:
    """The floor follows sigma = c q sqrt(T ln 1/delta) / eps with one c, so Phi falls like B^claim."""

    def slopes(
        eps: float, sizes: tuple[int, ...], orders: tuple[float, ...]
    ) -> tuple[np.ndarray, np.ndarray]:
        phi, constants = fixed_epoch_noise(eps, sizes, orders)
        return np.diff(np.log(phi)) / np.diff(np.log(sizes)), constants

    # Large sigma, from 6 to 25: there the constant is one.
    small, settled = slopes(0.3, (1024, 4096, 16384), LARGE_ORDERS)
    inside = float(np.max(np.abs(small / claim - 1.0)))
    found, constants = slopes(3.0, BATCHES, oracle.ORDERS)
    outside = float(np.max(np.abs(found / claim - 1.0)))
    return Verdict(
        judged_condition(inside, outside, 0.008),
        "The check uses Renyi accounting, and computes d ln Phi / d ln B. Deviations are relative.",
        found.size + 1,
        inside,
        "The statement requires large sigma. At eps = 0.3, with sigma from 6 to 25, the slope is "
        f"{small[0]:.3f} and {small[1]:.3f}, and c ranges from {settled[0]:.2f} to {settled[-1]:.2f}. "
        f"At eps = 3, c ranges from {constants[0]:.2f} (B = 16) to {constants[-1]:.2f} (B = 16384), "
        f"and the slope from {found[0]:.2f} to {found[-1]:.2f}.",
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
        ages = np.arange(2000)
        second = ratio**ages + product**2 * 0.3 * (1 - ratio**ages) / (1 - ratio)
        worst = max(worst, float(np.mean(second)) / claim(product, 1.0, 2000, 0.5, 0.3) - 1.0)
        cases += 1
    return Verdict(
        judged(worst, 1e-3),
        "The check uses distributions on a grid and in closed form. The deviation is the relative violation.",
        cases,
        worst,
    )


# The witness: h x^2 / 2 with one example, whose gradient is clipped; noise of standard deviation 1.
STEP, CURVATURE, SPREAD = 0.1, 1.0, 1.0
CLIPS = (0.3, 1.0)


def clipped_law(clip: float) -> tuple[float, float]:
    """Stationary E x^2 of x <- x - gamma (clip(h x) + noise), and how often the gradient is clipped."""
    places = np.linspace(-3.0, 3.0, 601)
    targets = places - STEP * np.clip(CURVATURE * places, -clip, clip)
    kernel = np.exp(-((places[None, :] - targets[:, None]) ** 2) / (2 * (STEP * SPREAD) ** 2))
    kernel /= kernel.sum(axis=1, keepdims=True)
    system = np.vstack([kernel.T - np.eye(places.size), np.ones(places.size)])
    law = np.linalg.lstsq(system, np.append(np.zeros(places.size), 1.0), rcond=None)[0]
    return float(law @ places**2), float(law[np.abs(CURVATURE * places) > clip].sum())


def unclipped_floor(step: float, curvature: float, spread: float) -> float:
    """The exact stationary E x^2 where nothing is clipped: what clipping can only add to here."""
    return step * spread**2 / (curvature * (2 - step * curvature))


@statement("ov.rem.clipbias", paper=PAPER, expected="WORDING")
def remark_clipping(
    *,
    claim: Callable[[float, float, float, float], float] = printed_floor,
    right: Callable[[float, float, float], float] = unclipped_floor,
) -> Verdict:
    """The floor of Theorem 5 as a lower bound on the floor that a run with clipping reaches."""
    below, above, notes = -np.inf, -np.inf, []
    for clip in CLIPS:
        true, often = clipped_law(clip)
        below = max(below, claim(STEP, CURVATURE, 0.0, SPREAD**2) / true - 1.0)
        above = max(above, right(STEP, CURVATURE, SPREAD) / true - 1.0)
        notes.append(f"{true:.4f} at C = {clip:g}, where {often:.2g} of the gradients are clipped")
    return Verdict(
        judged_erratum(below, above, 1e-4, word="WORDING"),
        "The check computes the stationary distribution on a grid for h x^2 / 2. The deviation is the "
        "excess of the claimed lower bound.",
        len(CLIPS),
        below,
        "At gamma = 0.1, mu = 1 and d Phi = 1 the floor of Theorem 5 is "
        f"{printed_floor(STEP, 1.0, 0.0, 1.0):.2f}. The true floor is {', and '.join(notes)}.",
    )


FLIPS: dict[str, Callable[[], Verdict]] = {
    "ov.cor.coupling": lambda: corollary_coupling(claim=-1.1),
    "ov.rem.nonconvex": lambda: remark_nonconvex(claim=lambda *terms: 0.5 * stationarity(*terms)),
    "ov.rem.clipbias": lambda: remark_clipping(claim=lambda *terms: printed_floor(*terms) / 4),
}
NUDGES = {
    "ov.cor.coupling": {"power of B": nudge(corollary_coupling)},
    "ov.rem.nonconvex": {"bound": nudge(remark_nonconvex)},
    "ov.rem.clipbias": {"floor": nudge(remark_clipping, "right")},
}
