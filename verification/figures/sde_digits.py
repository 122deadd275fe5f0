"""The law 1/eps^2 of DP-SGD and 1/eps of DP-SignSGD on real data, with an eps that is a guarantee.

Run `python -m verification.figures.sde_digits [FILE]` (needs scikit-learn): softmax regression with weight
decay on the 1797 digits that scikit-learn ships. Batches are drawn by Poisson sampling and nothing is
clipped: the clip norm is the largest gradient that an example can have. Learning rates stay the same at every
eps (the SDE paper's protocol A). The noise multiplier of every eps comes from the accountant, under which
sigma is not proportional to 1/eps, so the powers are measured twice: over sigma, where theory has 2 and 1,
and over eps. Prints how far the losses are from the floors of `dpmech.analysis.sde.bounds`.
"""

import argparse
import dataclasses
import math
import sys
from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.progress import track
from scipy import optimize, special

import dpmech as dm
from dpmech.analysis.sde.bounds import sgd_loss_bound, sign_loss_bound
from dpmech.analysis.sde.dynamics import GradientNoise
from verification.figures.drawing import dots, in_style, line

BUDGETS = (0.5, 1.0, 2.0, 4.0, 8.0)
DELTA = 1e-5
BATCH = 256
DECAY = 0.05
RATES = {"DP-SGD": 0.01, "DP-SignSGD": 0.005}
CLASSES = 10


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """Softmax regression with weight decay.

    Args:
        features: shape (N, p), every row of norm at most `clip_norm` / sqrt 2.
        targets: one-hot, shape (N, 10).
        clip_norm: bound on the gradient of one example's log-loss, in the Frobenius norm.
    """

    features: np.ndarray
    targets: np.ndarray
    clip_norm: float

    @property
    def dimension(self) -> int:
        """Number of weights."""
        return self.features.shape[1] * CLASSES

    def errors(self, weights: np.ndarray, chosen: np.ndarray | slice) -> np.ndarray:
        """Predicted probabilities minus targets of some examples."""
        errors: np.ndarray = special.softmax(self.features[chosen] @ weights, axis=1) - self.targets[chosen]
        return errors

    def loss(self, weights: np.ndarray) -> float:
        """Mean log-loss plus half the decay times the squared norm."""
        logits = self.features @ weights
        fit = np.mean(special.logsumexp(logits, axis=1) - np.sum(logits * self.targets, axis=1))
        return float(fit + 0.5 * DECAY * np.sum(weights**2))

    def gradient(self, weights: np.ndarray) -> np.ndarray:
        """Of the loss."""
        return self.features.T @ self.errors(weights, slice(None)) / len(self.features) + DECAY * weights

    def minimum(self) -> tuple[float, np.ndarray]:
        """The smallest loss, and where."""
        shape = self.features.shape[1], CLASSES
        found = optimize.minimize(  # type: ignore[call-overload] # whose stubs want a jac of known type
            lambda flat: self.loss(flat.reshape(shape)),
            np.zeros(self.dimension),
            jac=lambda flat: self.gradient(flat.reshape(shape)).ravel(),
            method="L-BFGS-B",
            options={"maxiter": 5000, "gtol": 1e-9, "ftol": 1e-14},
        )
        return float(found.fun), found.x.reshape(shape)

    def batch_noise(self, weights: np.ndarray, batch_size: int = BATCH) -> float:
        """Root mean square deviation of one coordinate of an example's gradient, sampled or not."""
        squares = np.sum(self.features**2, axis=1) * np.sum(self.errors(weights, slice(None)) ** 2, axis=1)
        thinning = 1.0 - batch_size / len(self.features)
        return math.sqrt(thinning * float(np.mean(squares)) / self.dimension)


def digits() -> Problem:
    """The data set of scikit-learn, centred, scaled to norms below 1, with a constant feature of 0.5."""
    from sklearn.datasets import load_digits

    features, labels = load_digits(return_X_y=True)
    features = features - features.mean(axis=0)
    features = features / np.linalg.norm(features, axis=1).max()
    features = np.hstack([features, np.full((len(features), 1), 0.5)])
    largest = float(np.linalg.norm(features, axis=1).max())
    return Problem(features, np.eye(CLASSES)[labels], math.sqrt(2.0) * largest)


def excess(
    problem: Problem,
    method: str,
    sigma: float,
    steps: int,
    seed: int = 7,
    *,
    rate: float | None = None,
    batch_size: int = BATCH,
    normal: bool = False,
) -> float:
    """Mean loss over the last quarter of one private run, above the minimum.

    `rate` None is that of RATES, for DP-Adam (betas 0.9 and 0.999) that of DP-SignSGD. With `normal`,
    examples have normal weights with the mean and variance of the coin flips of Poisson sampling: batch noise
    of the same covariance, as the equations assume it.
    """
    step_size = RATES.get(method, RATES["DP-SignSGD"]) if rate is None else rate
    share = batch_size / len(problem.features)
    rng = np.random.default_rng(seed)
    smallest, _ = problem.minimum()
    weights = np.zeros((problem.features.shape[1], CLASSES))
    first, second = np.zeros_like(weights), np.zeros_like(weights)
    losses = []
    for step in range(steps):
        if normal:
            shares = share + math.sqrt(share * (1.0 - share)) * rng.standard_normal(len(problem.features))
            total = problem.features.T @ (shares[:, None] * problem.errors(weights, slice(None)))
        else:
            batch = rng.random(len(problem.features)) < share
            total = problem.features[batch].T @ problem.errors(weights, batch)
        noise = sigma * problem.clip_norm * rng.standard_normal(weights.shape)
        gradient = (total + noise) / batch_size + DECAY * weights
        if method == "DP-Adam":
            first = 0.9 * first + 0.1 * gradient
            second = 0.999 * second + 0.001 * gradient**2
            root = np.sqrt(second / (1.0 - 0.999 ** (step + 1)))
            weights -= step_size * first / (1.0 - 0.9 ** (step + 1)) / root
        else:
            weights -= step_size * (np.sign(gradient) if method == "DP-SignSGD" else gradient)
        if step >= 0.75 * steps and (steps - step) % 10 == 1:  # the last step among them
            losses.append(problem.loss(weights) - smallest)
    return float(np.mean(losses))


def floor(problem: Problem, method: str, sigma: float) -> float:
    """The floor near the minimum, where curvatures cancel: lr d V / 4, and its analogue for signs."""
    noise = GradientNoise(
        dimension=problem.dimension,
        clip_norm=problem.clip_norm,
        batch_size=BATCH,
        batch_noise=problem.batch_noise(problem.minimum()[1]),
        noise_multiplier=sigma,
    )
    bound = sign_loss_bound if method == "DP-SignSGD" else sgd_loss_bound
    return bound(noise, learning_rate=RATES[method], pl_constant=DECAY, smoothness=DECAY).floor


@dataclasses.dataclass(frozen=True, eq=False)
class Curve:
    """Excess losses and floors of one optimizer, by budget.

    Args:
        eps: budgets, shape (k,).
        sigma: noise multipliers, shape (k,).
        simulated: excess losses, shape (k,).
        predicted: floors, shape (k,).
    """

    eps: np.ndarray
    sigma: np.ndarray
    simulated: np.ndarray
    predicted: np.ndarray

    def deviation(self) -> float:
        """Largest relative distance from the floors."""
        return float(np.max(np.abs(self.simulated / self.predicted - 1.0)))

    def powers(self) -> tuple[float, float]:
        """Slopes of log excess over log sigma and over log eps."""
        over_sigma, over_eps = (
            float(np.polyfit(np.log(axis), np.log(self.simulated), 1)[0]) for axis in (self.sigma, self.eps)
        )
        return over_sigma, over_eps


@in_style
def draw(curves: dict[str, Curve], path: str) -> None:
    """Excess loss against eps; lines are floors, dots runs."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 4))
    axes = figure.subplots()
    for index, (method, curve) in enumerate(curves.items()):
        line(axes, index, curve.eps, curve.predicted, f"{method}, floor")
        dots(axes, index, curve.eps, curve.simulated)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(f"eps at delta = {DELTA:g}")
    axes.set_ylabel("loss above the minimum")
    axes.legend()
    figure.savefig(path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, draw, print the agreement; 1 if a power of sigma is off by 0.1 or a floor by 15 %."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", nargs="?", default="sde_digits.png", help="where to draw")
    parser.add_argument("--steps", type=int, default=8000, help="steps of a run")
    options = parser.parse_args(arguments)
    problem = digits()
    sampling = dm.Poisson(BATCH / len(problem.features))
    strategy = dm.Identity(options.steps)
    sigmas = [dm.calibrate_sigma(strategy, eps, DELTA, participation=sampling).sigma for eps in BUDGETS]
    curves = {}
    for method in RATES:
        settings = track(sigmas, method, console=Console(stderr=True), transient=True)
        simulated = [excess(problem, method, sigma, options.steps) for sigma in settings]
        predicted = [floor(problem, method, sigma) for sigma in sigmas]
        curves[method] = Curve(*(np.array(column) for column in (BUDGETS, sigmas, simulated, predicted)))
    draw(curves, options.file)
    failed = False
    for (method, curve), power in zip(curves.items(), (2.0, 1.0), strict=True):
        over_sigma, over_eps = curve.powers()
        failed |= abs(over_sigma - power) > 0.1 or curve.deviation() > 0.15
        sys.stdout.write(
            f"{method}: the loss above the minimum grows as sigma^{over_sigma:.2f} (theory {power:g}) and as "
            f"eps^{over_eps:.2f}; floors off by at most {curve.deviation():.1%}\n"
        )
    settings = track(sigmas, "DP-Adam", console=Console(stderr=True), transient=True)
    adam = [excess(problem, "DP-Adam", sigma, options.steps) for sigma in settings]
    own = float(np.polyfit(np.log(sigmas), np.log(adam), 1)[0])
    failed |= abs(own - 1.0) > 0.1
    sys.stdout.write(
        f"DP-Adam: the loss above the minimum grows as sigma^{own:.2f} (the paper: as DP-SignSGD's)\n"
    )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
