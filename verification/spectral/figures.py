"""The spectral denoising paper: its figures, and what their captions say."""

import math
from collections.abc import Callable

import numpy as np

from verification.harness.verdict import Verdict, judged_arithmetic, judged_erratum, statement
from verification.oracles import matrices as ref
from verification.spectral.denoiser import closed_shrinker, noise_edge, pure_noise_ratios

PAPER = "spectral"


def kappa_grid() -> tuple[float, ...]:
    """The values of kappa that were tried."""
    return 1.01, 1.02, 1.05, 1.1


@statement("rmt.figs_1_2_4_to_11", paper=PAPER, expected="UNVERIFIABLE")
def figures(*, grid: Callable[[], tuple[float, ...]] = kappa_grid) -> Verdict:
    """Training curves and sweeps over kappa of the authors' runs.

    What arithmetic can check: every kappa tried leaves something to rescale wherever it denoises.
    """
    worst, cases = -math.inf, 0
    for kappa in grid():
        for rows, columns in ((16, 768), (768, 768), (16, 3072)):
            top = kappa * noise_edge(1.0, rows, columns)
            left = closed_shrinker(top, 1.0, rows, columns) if kappa > 1.0 else 0.0
            worst = max(worst, 0.05 - left / top)
            cases += 1
    return Verdict(
        judged_arithmetic(worst, 0.0),
        "The check computes the fraction of the top value that the denoiser keeps at the threshold, and "
        "requires at least 5 %.",
        cases,
        worst,
        "At every kappa of the grid, the denoiser keeps at least 5 % of the top value at the "
        "threshold. The runs and their logs are not public.",
    )


@statement("rmt.fig3", paper=PAPER, expected="UNVERIFIABLE")
def figure_3(*, multiples: tuple[float, float] = (0.4, 2.0)) -> Verdict:
    """Below the threshold the noisy spectrum looks like that of noise; above, its top leaves the bulk."""
    rows, columns = 64, 768
    noise = pure_noise_ratios(rows, columns, 200, 33)

    def tops(multiple: float) -> np.ndarray:
        value = np.array([multiple * (rows * columns) ** 0.25])
        draws = ref.noisy_draws(value, rows, columns, 1.0, draws=40, seed=34)
        return np.array([ref.top_value(noisy) for *_, noisy in draws]) / noise_edge(1.0, rows, columns)

    below, above = tops(multiples[0]), tops(multiples[1])
    hidden = abs(float(below.mean() - noise.mean())) / float(noise.std())
    outside = float(np.mean(above <= noise.max()))
    worst = max(hidden - 1.0, outside)
    return Verdict(
        judged_arithmetic(worst, 0.0),
        "The check draws random 64 x 768 matrices. The deviation is the shift of the mean minus one "
        "standard deviation of the noise, or the share of top values inside the bulk.",
        len(noise) + 80,
        worst,
        f"For random signals at {multiples[0]:g} thresholds the top value moves by {hidden:.2f} "
        f"standard deviations of the noise. At {multiples[1]:g} thresholds it is above all "
        f"{len(noise)} draws of noise.",
    )


def printed_condition(top: float, edge: float, kappa: float) -> bool:
    """Caption of Figure 6."""
    return top > kappa * top / edge


def meant_condition(top: float, edge: float, kappa: float) -> bool:
    """Caption of Figure 4, and Section 3.2."""
    return top > kappa * edge


@statement("rmt.captions", paper=PAPER, expected="MISPRINT")
def captions(*, claim: Callable[[float, float, float], bool] = printed_condition) -> Verdict:
    """Figure 6 counts layers whose top value exceeds kappa lambda_1 / (sigma (sqrt n + sqrt m))."""
    rng = np.random.default_rng(66)
    differ = 0
    for _ in range(500):
        rows, columns = rng.integers(8, 800, size=2)
        edge = noise_edge(10.0 ** rng.uniform(-4, 0), int(rows), int(columns))
        top = edge * rng.uniform(0.9, 2.0)
        differ += claim(top, edge, 1.02) != meant_condition(top, edge, 1.02)
    return Verdict(
        judged_erratum(differ, 0.0, 0.5, word="MISPRINT"),
        "The check counts the random layers on which the two conditions differ.",
        500,
        float(differ),
        f"The conditions differ on {differ} of 500 layers. As printed, lambda_1 is on both sides, so "
        "the condition reduces to edge > kappa.",
    )


FLIPS: dict[str, Callable[[], Verdict]] = {
    "rmt.figs_1_2_4_to_11": lambda: figures(grid=lambda: (0.98, 1.02)),
    "rmt.fig3": lambda: figure_3(multiples=(1.5, 2.0)),
    "rmt.captions": lambda: captions(claim=meant_condition),
}
