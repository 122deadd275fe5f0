"""The loss that DP-SGD and DP-SignSGD reach on a quadratic against the noise, and the corrected floors.

Run `python -m verification.figures.sde_loss_floors [FILE]`: the setting of the left panel of Figure 1 of the
SDE paper, with the multipliers 0 to 0.2 that its listed eps belong to. The axis is the noise multiplier: the
paper's eps is its inverse times 0.0679, and no privacy guarantee. Prints how far the floors of
`dpmech.analysis.sde.bounds` are from the simulated losses, and the measured powers of the multiplier.
"""

import argparse
import dataclasses
import sys
from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.progress import track

from dpmech.analysis.sde.bounds import sgd_loss_bound, sign_loss_bound
from dpmech.analysis.sde.dynamics import GradientNoise
from verification.figures.drawing import dots, in_style, line

CURVATURE = 10.0
DIMENSION = 1024
BASE_RATE = 0.01
MULTIPLIERS = np.linspace(0.0, 0.2, 8)
METHODS = ("DP-SGD", "DP-SignSGD")
# The end of a run that is averaged: a few relaxation times.
TAIL = 0.04


def noise_of(multiplier: float, dimension: int = DIMENSION) -> GradientNoise:
    """The paper's noise: one vector, C = 5, sigma_gamma = 0.01."""
    return GradientNoise(
        dimension=dimension, clip_norm=5.0, batch_size=1, batch_noise=0.01, noise_multiplier=multiplier
    )


def rate_at(step: float) -> float:
    """The paper's schedule 0.01 (1 + 0.01 k)^-0.6."""
    return float(BASE_RATE * (1.0 + BASE_RATE * step) ** -0.6)


def final_loss(method: str, multiplier: float, steps: int, dimension: int, seed: int = 5) -> float:
    """Mean loss over the last steps of one run."""
    rng = np.random.default_rng(seed)
    noise = noise_of(multiplier, dimension)
    state = 0.1 * rng.standard_normal(dimension)
    losses = []
    for step in range(steps):
        gradient = CURVATURE * state + noise.batch_noise * rng.standard_normal(dimension)
        norm = float(np.linalg.norm(gradient))
        if norm > noise.clip_norm:
            gradient *= noise.clip_norm / norm
        gradient += multiplier * noise.clip_norm * rng.standard_normal(dimension)
        state -= rate_at(step) * (np.sign(gradient) if method == "DP-SignSGD" else gradient)
        if step >= (1.0 - TAIL) * steps:
            losses.append(0.5 * CURVATURE * float(state @ state))
    return float(np.mean(losses))


def floor(method: str, multiplier: float, steps: int, dimension: int) -> float:
    """The floor at the rate of the averaged steps, which the loss follows."""
    bound = sign_loss_bound if method == "DP-SignSGD" else sgd_loss_bound
    rate = rate_at((1.0 - 0.5 * TAIL) * steps)
    return bound(
        noise_of(multiplier, dimension), learning_rate=rate, pl_constant=CURVATURE, smoothness=CURVATURE
    ).floor


@dataclasses.dataclass(frozen=True, eq=False)
class Floors:
    """Final losses and floors of one optimizer over MULTIPLIERS."""

    simulated: np.ndarray
    predicted: np.ndarray

    def deviation(self) -> float:
        """Largest relative error."""
        return float(np.max(np.abs(self.simulated / self.predicted - 1.0)))

    def power(self) -> float:
        """Slope of log loss over log multiplier, where privacy noise dominates."""
        logs = np.log(MULTIPLIERS[2:]), np.log(self.simulated[2:])
        return float(np.polyfit(*logs, 1)[0])


@in_style
def draw(curves: dict[str, Floors], path: str) -> None:
    """Final loss against the multiplier; lines are floors, dots simulations."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 4))
    axes = figure.subplots()
    for index, (method, curve) in enumerate(curves.items()):
        line(axes, index, MULTIPLIERS, curve.predicted, f"{method}, floor")
        dots(axes, index, MULTIPLIERS, curve.simulated)
    axes.set_yscale("log")
    axes.set_xlabel("noise multiplier")
    axes.set_ylabel("final loss")
    axes.legend()
    figure.savefig(path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate, draw, print the agreement; 1 if a floor is off by more than 10 %."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", nargs="?", default="sde_loss_floors.png", help="where to draw")
    parser.add_argument("--steps", type=int, default=50_000, help="steps of a run")
    parser.add_argument("--dimension", type=int, default=DIMENSION, help="coordinates")
    options = parser.parse_args(arguments)
    size = options.steps, options.dimension
    curves = {}
    for method in METHODS:
        multipliers = track(MULTIPLIERS, method, console=Console(stderr=True), transient=True)
        simulated = [final_loss(method, float(sigma), *size) for sigma in multipliers]
        predicted = [floor(method, float(sigma), *size) for sigma in MULTIPLIERS]
        curves[method] = Floors(np.array(simulated), np.array(predicted))
    draw(curves, options.file)
    for method, curve in curves.items():
        sys.stdout.write(
            f"{method}: floor off by at most {curve.deviation():.2%}; the loss grows as the "
            f"multiplier to the power {curve.power():.2f}\n"
        )
    return int(max(curve.deviation() for curve in curves.values()) > 0.1)


if __name__ == "__main__":
    sys.exit(main())
