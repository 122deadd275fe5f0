"""Speed and tuned learning rates of DP-SGD and DP-SignSGD on real data: the SDE paper's Figures 2 and 4.

Run `python -m verification.figures.sde_tuned [FILE]` (needs scikit-learn): softmax regression on digits, as
in `sde_digits`. Figure 2: at one learning rate the speed of DP-SGD does not depend on the noise, that of
DP-SignSGD does. Figure 4 (protocol B): where the learning rate is tuned for every noise, DP-SGD's best one
falls with it, DP-SignSGD's stays. Measured over the noise multiplier sigma, where the theory states its
powers; an accountant gives the eps (`dm.epsilon`).
"""

import argparse
import dataclasses
import math
import sys
from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.progress import track

from verification.figures.drawing import in_style, line
from verification.figures.sde_digits import BATCH, CLASSES, DECAY, RATES, Problem, digits

SIGMAS = (4.0, 8.0, 16.0, 32.0, 64.0)
# Of the steps to half the way, which floors near the start would hide.
LITTLE = (1.0, 2.0, 4.0, 8.0)
# Powers of sigma by theory: of the steps to half the way (Theorems 4.1, 4.3), of the best rate (4.6, 4.7).
THEORY = {"DP-SGD": (0.0, -1.0), "DP-SignSGD": (1.0, 0.0)}
# Rates that are tried, neighbours a factor of sqrt 2 apart.
TRIED = {
    "DP-SGD": 0.8 * 2.0 ** (-0.5 * np.arange(26)),
    "DP-SignSGD": 0.2 * 2.0 ** (-0.5 * np.arange(16)),
}
SEEDS = (1, 2, 3)


def path(problem: Problem, method: str, rate: float, sigma: float, steps: int, seed: int) -> np.ndarray:
    """Losses after every tenth step of one private run from 0, shape (steps // 10,); inf from overflow on."""
    rng = np.random.default_rng(seed)
    weights = np.zeros((problem.features.shape[1], CLASSES))
    losses = np.full(steps // 10, np.inf)
    for step in range(steps):
        batch = rng.random(len(problem.features)) < BATCH / len(problem.features)
        noise = sigma * problem.clip_norm * rng.standard_normal(weights.shape)
        total = problem.features[batch].T @ problem.errors(weights, batch) + noise
        gradient = total / BATCH + DECAY * weights
        weights -= rate * (np.sign(gradient) if method == "DP-SignSGD" else gradient)
        if not np.all(np.abs(weights) < 1e6):
            break
        if step % 10 == 9:
            losses[step // 10] = problem.loss(weights)
    return losses


def halfway(problem: Problem, method: str, sigma: float, steps: int) -> float:
    """Steps until half of what can be gained is, at the rate of protocol A; of the mean path."""
    smallest, _ = problem.minimum()
    start = problem.loss(np.zeros((problem.features.shape[1], CLASSES)))
    rate = RATES[method]
    losses = np.mean([path(problem, method, rate, sigma, steps, seed) for seed in SEEDS], axis=0)
    values = np.concatenate([[start], losses])
    below = np.flatnonzero(values <= 0.5 * (start + smallest))
    if below.size == 0:
        return math.inf
    first = int(below[0])
    part = (values[first - 1] - 0.5 * (start + smallest)) / (values[first - 1] - values[first])
    return 10.0 * (first - 1 + float(part))


@dataclasses.dataclass(frozen=True, eq=False)
class Tuned:
    """Final losses of one optimizer over learning rates.

    Args:
        rates: shape (r,).
        losses: above the minimum, shape (k, r), a row for each of SIGMAS.
    """

    rates: np.ndarray
    losses: np.ndarray

    def best(self) -> np.ndarray:
        """The best rate at every sigma, shape (k,), by a parabola through it and its neighbours."""
        found = []
        for row in self.losses:
            place = min(max(int(np.argmin(row)), 1), len(row) - 2)
            near = slice(place - 1, place + 2)
            curve = np.polyfit(np.log(self.rates[near]), np.log(row[near]), 2)
            found.append(math.exp(-0.5 * curve[1] / curve[0]))
        return np.array(found)

    def power(self) -> float:
        """Slope of log best rate over log sigma."""
        return float(np.polyfit(np.log(SIGMAS), np.log(self.best()), 1)[0])


def tuned(problem: Problem, method: str, steps: int) -> Tuned:
    """The last tenth of runs with every rate and noise, mean over seeds."""
    smallest, _ = problem.minimum()
    rows = []
    for sigma in track(SIGMAS, method, console=Console(stderr=True), transient=True):
        row = []
        for rate in TRIED[method]:
            runs = [path(problem, method, float(rate), sigma, steps, seed) for seed in SEEDS]
            row.append(float(np.mean([run[-max(1, len(run) // 10) :] for run in runs])) - smallest)
        rows.append(row)
    losses = np.array(rows)
    finite = np.all(np.isfinite(losses), axis=0)
    return Tuned(TRIED[method][finite], losses[:, finite])


@in_style
def draw(curves: dict[str, Tuned], file: str) -> None:
    """Final loss against the learning rate, a line for every sigma."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.5))
    for axes, (method, curve) in zip(figure.subplots(1, 2, sharey=True), curves.items(), strict=True):
        for index, (sigma, row) in enumerate(zip(SIGMAS, curve.losses, strict=True)):
            line(axes, index, curve.rates, row, f"sigma {sigma:g}")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_title(method)
        axes.set_xlabel("learning rate")
    figure.axes[0].set_ylabel("loss above the minimum")
    figure.axes[0].legend()
    figure.savefig(file)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, draw, print the powers of sigma; 1 if a speed is off by 0.1, or a best rate by 0.4."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", nargs="?", default="sde_tuned.png", help="where to draw")
    parser.add_argument("--steps", type=int, default=400, help="steps of a tuned run")
    options = parser.parse_args(arguments)
    problem = digits()
    curves, failed = {}, False
    for method, (speed, rate) in THEORY.items():
        needed = [halfway(problem, method, sigma, 1500) for sigma in LITTLE]
        slower = float(np.polyfit(np.log(LITTLE), np.log(needed), 1)[0])
        curves[method] = tuned(problem, method, options.steps)
        own = curves[method].power()
        failed |= not abs(slower - speed) < 0.1 or not abs(own - rate) < 0.4
        sys.stdout.write(
            f"{method}: steps to half the way grow as sigma^{slower:.2f} (theory {speed:g}); the best rate "
            f"goes as sigma^{own:.2f} (theory {rate:g})\n"
        )
    draw(curves, options.file)
    least = [curve.losses.min(axis=1) for curve in curves.values()]
    words = ", ".join(f"{value:.2f}" for value in least[1] / least[0])
    sys.stdout.write(f"tuned loss of DP-SignSGD over that of DP-SGD at sigma 4 to 64: {words}\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
