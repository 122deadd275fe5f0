"""What the denoiser gains: cosine with the signal before and after, on low-rank matrices under noise.

Run `python -m verification.figures.spectral_gains [FILE]`. Signals of rank 4 whose values halve one after the
other. Prints how far the simulated gain is from `dpmech.analysis.spectral.predicted_alignment`
where the signal is clear of the noise, and the worst loss where it is not.
"""

import argparse
import dataclasses
import sys
from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.progress import track

from dpmech.analysis import spectral
from dpmech.analysis import spectral as denoising
from verification.figures.drawing import dots, in_style, line
from verification.oracles import matrices as ref

SHAPES = ((16, 768), (100, 400), (256, 768))
MULTIPLES = np.array([0.5, 0.8, 1.0, 1.2, 1.4, 1.7, 2.0, 2.5, 3.0, 4.0, 6.0])
DECAY = np.array([1.0, 0.5, 0.25, 0.125])
CLEAR = 1.7


@dataclasses.dataclass(frozen=True, eq=False)
class Gains:
    """Change of the cosine by strength of the signal.

    Args:
        multiples: largest signal value over the detection threshold, shape (k,).
        simulated: changes, shape (k, draws).
        predicted: by the limits, shape (k,).
    """

    multiples: np.ndarray
    simulated: np.ndarray
    predicted: np.ndarray

    def deviation(self) -> float:
        """Largest error of the mean gain where the signal is clear."""
        clear = self.multiples >= CLEAR
        return float(np.max(np.abs(self.simulated.mean(axis=1) - self.predicted)[clear]))


def simulate(rows: int, columns: int, multiples: np.ndarray, draws: int, seed: int = 0) -> Gains:
    """Denoise `draws` noisy matrices of each strength."""
    threshold = spectral.detection_threshold(1.0, rows, columns)
    simulated, predicted = np.zeros((len(multiples), draws)), np.zeros(len(multiples))
    for index, multiple in enumerate(multiples):
        values = multiple * threshold * DECAY
        drawn = ref.noisy_draws(values, rows, columns, 1.0, draws=draws, seed=seed + index)
        for draw_index, (left, sizes, right, noisy) in enumerate(drawn):
            signal = (left * sizes) @ right.T
            after = denoising.denoise(noisy, 1.0).matrix
            simulated[index, draw_index] = ref.cosine(after, signal) - ref.cosine(noisy, signal)
        before, denoised = denoising.predicted_alignment(values, 1.0, rows, columns)
        # Below the threshold the layer passes unchanged.
        predicted[index] = denoised - before if multiple > 1.0 else 0.0
    return Gains(multiples, simulated, predicted)


@in_style
def draw(curves: dict[tuple[int, int], Gains], path: str) -> None:
    """Mean gain with its spread over draws, and the prediction."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.5, 4.2))
    axes = figure.subplots()
    for index, ((rows, columns), curve) in enumerate(curves.items()):
        low, middle, high = np.quantile(curve.simulated, (0.05, 0.5, 0.95), axis=1)
        axes.fill_between(curve.multiples, low, high, color=f"C{index}", alpha=0.2)
        dots(axes, index, curve.multiples, middle)
        line(axes, index, curve.multiples, curve.predicted, f"{rows} x {columns}")
    axes.axhline(0.0, color="grey", linewidth=0.8)
    axes.set_xlabel("largest signal value / detection threshold")
    axes.set_ylabel("gain of the cosine (median, 5-95 %; line: limit)")
    axes.legend()
    figure.savefig(path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate, draw, print the agreement; 1 if the largest matrix is off by more than 0.02."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", nargs="?", default="spectral_gains.png", help="where to draw")
    parser.add_argument("--draws", type=int, default=30, help="matrices a point")
    options = parser.parse_args(arguments)
    shapes = track(SHAPES, "simulating", console=Console(stderr=True), transient=True)
    curves = {shape: simulate(*shape, MULTIPLES, options.draws) for shape in shapes}
    draw(curves, options.file)
    for (rows, columns), curve in curves.items():
        sys.stdout.write(
            f"{rows} x {columns}: from {CLEAR} thresholds on the mean gain is {curve.deviation():.3f} or "
            f"less from the limit; the worst change anywhere is {curve.simulated.min():+.3f}\n"
        )
    return int(curves[SHAPES[-1]].deviation() > 0.02)


if __name__ == "__main__":
    sys.exit(main())
