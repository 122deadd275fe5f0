"""The phase transition: singular values and vectors of a rank-one signal under noise, against the limits.

Run `python -m verification.figures.spectral_transition [FILE]`. Draws the largest singular value over the
noise edge and the two squared cosines against the strength of the signal, for growing matrices, and prints
how far the simulation is from `dpmech.analysis.spectral`.
"""

import argparse
import dataclasses
import sys
from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.progress import track

from dpmech.analysis import spectral
from verification.figures.drawing import dots, in_style, line
from verification.oracles import matrices as ref

SHAPES = ((16, 768), (100, 400), (300, 1200))
MULTIPLES = np.concatenate([np.linspace(0.2, 1.0, 5), np.linspace(1.1, 3.0, 10)])
# Beyond this multiple of the threshold the limits are compared; closer, finite size shows.
CLEAR = 1.5


@dataclasses.dataclass(frozen=True, eq=False)
class Transition:
    """Simulated and predicted curves of one shape, one entry a multiple of the threshold.

    Args:
        multiples: signal over the detection threshold.
        simulated: means of (top value over the edge, left and right squared cosine), shape (3, k).
        predicted: the same by `dpmech.analysis.spectral`.
    """

    multiples: np.ndarray
    simulated: np.ndarray
    predicted: np.ndarray

    def deviations(self) -> tuple[float, float]:
        """Largest relative error of the value, and largest absolute one of the cosines, where clear."""
        clear = self.multiples >= CLEAR
        ratio = self.simulated[0, clear] / self.predicted[0, clear] - 1.0
        return float(np.max(np.abs(ratio))), float(np.max(np.abs(self.simulated - self.predicted)[1:, clear]))


def simulate(rows: int, columns: int, multiples: np.ndarray, draws: int, seed: int = 0) -> Transition:
    """Draw rank-one signals of each strength under unit noise and average what is observed."""
    threshold = spectral.detection_threshold(1.0, rows, columns)
    edge = spectral.noise_edge(1.0, rows, columns)
    simulated = np.zeros((3, len(multiples)))
    for index, multiple in enumerate(multiples):
        values = np.array([multiple * threshold])
        for left, _, right, noisy in ref.noisy_draws(
            values, rows, columns, 1.0, draws=draws, seed=seed + index
        ):
            u, y, v = np.linalg.svd(noisy, full_matrices=False)
            seen = y[0] / edge, float(u[:, 0] @ left[:, 0]) ** 2, float(v[0] @ right[:, 0]) ** 2
            simulated[:, index] += np.array(seen) / draws
    signal = multiples * threshold
    predicted = np.array(
        [
            spectral.observed_singular_value(signal, 1.0, rows, columns) / edge,
            spectral.left_cosine_squared(signal, 1.0, rows, columns),
            spectral.right_cosine_squared(signal, 1.0, rows, columns),
        ]
    )
    return Transition(multiples, simulated, predicted)


@in_style
def draw(curves: dict[tuple[int, int], Transition], path: str) -> None:
    """Three panels, a colour a shape; lines are predictions, dots simulations."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.6))
    titles = ("largest singular value / noise edge", "left cosine, squared", "right cosine, squared")
    for panel, (axes, title) in enumerate(zip(figure.subplots(1, 3), titles, strict=True)):
        for index, ((rows, columns), curve) in enumerate(curves.items()):
            line(axes, index, curve.multiples, curve.predicted[panel], f"{rows} x {columns}")
            dots(axes, index, curve.multiples, curve.simulated[panel])
        axes.axvline(1.0, color="grey", linewidth=0.8)
        axes.set_xlabel("signal / detection threshold")
        axes.set_title(title)
    figure.axes[0].legend()
    figure.savefig(path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate, draw, print the agreement; 1 if the largest matrix is off by more than 1 % or 0.02."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", nargs="?", default="spectral_transition.png", help="where to draw")
    parser.add_argument("--draws", type=int, default=20, help="matrices a point")
    options = parser.parse_args(arguments)
    shapes = track(SHAPES, "simulating", console=Console(stderr=True), transient=True)
    curves = {shape: simulate(*shape, MULTIPLES, options.draws) for shape in shapes}
    draw(curves, options.file)
    for (rows, columns), curve in curves.items():
        value, cosine = curve.deviations()
        sys.stdout.write(
            f"{rows} x {columns}, from {CLEAR} thresholds on: value off by at most {value:.2%}, "
            f"squared cosines by {cosine:.3f}\n"
        )
    value, cosine = curves[SHAPES[-1]].deviations()
    return int(value > 0.01 or cosine > 0.02)


if __name__ == "__main__":
    sys.exit(main())
