"""Moments of DP-SGD's and DP-SignSGD's iterates on a quadratic, against the corrected formulas.

Run `python -m verification.figures.sde_stationary [FILE]`: the setting of Figure C.3 of the SDE paper,
H = diag(2, 1). Draws mean and variance over the steps and prints how far `dpmech.analysis.sde.stationary` is
from the simulated iterates.
"""

import argparse
import dataclasses
import sys
from collections.abc import Callable, Sequence

import numpy as np
from rich.console import Console
from rich.progress import track

from dpmech.analysis.sde.dynamics import GradientNoise
from dpmech.analysis.sde.stationary import Moments, sgd_moments, sign_moments
from verification.figures.drawing import dots, in_style, line

CURVATURES = np.array([2.0, 1.0])
START = np.array([0.01, 0.005])
RATE = 1e-3
NOISE = GradientNoise(dimension=2, clip_norm=5.0, batch_size=1, batch_noise=0.1, noise_multiplier=0.1)
METHODS: dict[str, Callable[..., Moments]] = {"DP-SGD": sgd_moments, "DP-SignSGD": sign_moments}


@dataclasses.dataclass(frozen=True, eq=False)
class Curve:
    """Moments of one optimizer at some steps, arrays of shape (steps, 2)."""

    steps: np.ndarray
    means: np.ndarray
    variances: np.ndarray
    predicted_means: np.ndarray
    predicted_variances: np.ndarray

    def deviations(self, runs: int) -> tuple[float, float]:
        """Largest error of the mean in standard errors, and largest relative one of the variance."""
        error = np.sqrt(self.predicted_variances / runs)
        mean = np.abs(self.means - self.predicted_means) / error
        variance = np.abs(self.variances / self.predicted_variances - 1.0)
        return float(mean.max()), float(variance.max())


def simulate(method: str, runs: int, steps: int, points: int = 40, seed: int = 3) -> Curve:
    """Run the iterates themselves: clip every gradient, add the noise, step."""
    rng = np.random.default_rng(seed)
    state = np.tile(START, (runs, 1))
    chosen = np.unique(np.linspace(0, steps, points + 1, dtype=int)[1:])
    means, variances = [], []
    for step in range(1, steps + 1):
        gradient = CURVATURES * state + NOISE.batch_noise * rng.standard_normal(state.shape)
        norms = np.linalg.norm(gradient, axis=1, keepdims=True)
        gradient *= np.minimum(1.0, NOISE.clip_norm / norms)
        gradient += NOISE.noise_multiplier * NOISE.clip_norm * rng.standard_normal(state.shape)
        state -= RATE * (np.sign(gradient) if method == "DP-SignSGD" else gradient)
        if step in chosen:
            means.append(state.mean(axis=0))
            variances.append(state.var(axis=0))
    predicted = [
        METHODS[method](NOISE, curvatures=CURVATURES, start=START, learning_rate=RATE, time=RATE * step)
        for step in chosen
    ]
    return Curve(
        chosen,
        np.array(means),
        np.array(variances),
        np.array([moments.mean for moments in predicted]),
        np.array([moments.variance for moments in predicted]),
    )


@in_style
def draw(curves: dict[str, Curve], path: str) -> None:
    """A row an optimizer: mean and variance; lines are predictions, dots simulations."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6))
    for axes, (method, curve) in zip(figure.subplots(2, 2), curves.items(), strict=True):
        panels = (
            ("mean", curve.means, curve.predicted_means),
            ("variance", curve.variances, curve.predicted_variances),
        )
        for panel, (title, seen, predicted) in zip(axes, panels, strict=True):
            for place, curvature in enumerate(CURVATURES):
                line(panel, place, curve.steps, predicted[:, place], f"curvature {curvature:g}")
                dots(panel, place, curve.steps, seen[:, place])
            panel.set_title(f"{method}: {title}")
            panel.set_xlabel("step")
    figure.axes[0].legend()
    figure.savefig(path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate, draw, print the agreement; 1 if a variance is off by more than 6 %."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", nargs="?", default="sde_stationary.png", help="where to draw")
    parser.add_argument("--runs", type=int, default=20_000, help="independent runs")
    parser.add_argument("--steps", type=int, default=5000, help="steps of a run")
    options = parser.parse_args(arguments)
    methods = track(METHODS, "simulating", console=Console(stderr=True), transient=True)
    curves = {method: simulate(method, options.runs, options.steps) for method in methods}
    draw(curves, options.file)
    worst = 0.0
    for method, curve in curves.items():
        mean, variance = curve.deviations(options.runs)
        worst = max(worst, variance)
        sys.stdout.write(
            f"{method}: mean off by at most {mean:.1f} standard errors, variance by {variance:.2%}; "
            f"at the end {curve.variances[-1][0]:.3e} and {curve.variances[-1][1]:.3e}\n"
        )
    return int(worst > 0.06)


if __name__ == "__main__":
    sys.exit(main())
