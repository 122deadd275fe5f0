"""Five private optimizers on scikit-learn's digits at the same (eps, delta): accuracy against eps.

Four of them add independent noise to batches by Poisson sampling (DP-SGD, DP-AdamBC, DP-SignSGD, DP-Muon);
one adds correlated noise to batches by Balls-in-Bins (LambdaCGD), its lam chosen by `dm.optimize`, which sees
no data. All make 50 steps on batches of a fifth of the data, clip at 1, have momentum 0.9 and a rate that
falls linearly. Every method picks one of six rates, neighbours a factor of 2 apart, at each eps: by the
number of right answers on a fifth of the training data, mean of two runs, with a model trained on the rest.
The choice is accounted for: every such number gets Gaussian noise, and the table says what all runs and
numbers behind one published model cost together (with `--exact-scores` no noise is added, and there is no
such total). Not accounted for are the seeding, which makes the figure repeatable, and the accuracies on test
images, which concern nobody who was trained on.

Run as `python digits_comparison.py FOLDER`; it writes a figure, a table and the numbers into the folder: ten
minutes of one core. A run that was stopped goes on with what the folder has.
"""

import argparse
import dataclasses
import json
import math
import pathlib
import sys
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import dpmech as dm
from dpmech.optim import AdamBC, Muon, SignSGD, make_private, noise_share

DELTA = 1e-5
BINS = 5
# Standard deviation of the noise on a number of right answers: of some 300.
SCORE_NOISE = 10.0
SCORED_RUNS = 2
BUDGETS = (0.5, 1.0, 2.0, 4.0, 8.0)
MODELS = ("logistic", "cnn")


@dataclasses.dataclass(frozen=True)
class Method:
    """An update rule and the noise that it gets.

    Args:
        name: as in the figure.
        rule: (parameters, rate, noise variance of the first gradient) to an optimizer.
        largest_rate: of the grid.
        correlated: LambdaCGD under Balls-in-Bins; otherwise independent noise under Poisson sampling.
    """

    name: str
    rule: Callable[[Iterable[Tensor], float, float], torch.optim.Optimizer]
    largest_rate: float
    correlated: bool = False

    def rates(self, count: int) -> list[float]:
        """The grid, largest first."""
        return [self.largest_rate / 2**power for power in range(count)]


def sgd(
    params: Iterable[Tensor], rate: float, _: float
) -> torch.optim.Optimizer:
    """SGD with momentum."""
    return torch.optim.SGD(params, lr=rate, momentum=0.9)


METHODS = (
    Method("DP-SGD", sgd, 16.0),
    Method("LambdaCGD", sgd, 16.0, correlated=True),
    # A floor at the variance of the noise: less is noise itself.
    Method(
        "DP-AdamBC",
        lambda params, rate, phi: AdamBC(params, rate, floor=phi),
        0.64,
    ),
    Method(
        "DP-SignSGD",
        lambda params, rate, _: SignSGD(params, rate, momentum=0.9),
        0.32,
    ),
    Method(
        "DP-Muon",
        lambda params, rate, _: Muon(params, rate, momentum=0.9),
        1.92,
    ),
)


# One of each kind of noise.
PAIR = ("DP-SGD", "LambdaCGD")


@dataclasses.dataclass(frozen=True, eq=False)
class Split:
    """Examples to train on, and others to test on.

    Args:
        train: images (N, 64) and digits (N,).
        test: the same, of other examples.
        batch_size: expected examples of a step; declared, as nothing may follow from how many there are.
    """

    train: TensorDataset
    test: tuple[Tensor, Tensor]
    batch_size: float


def splits() -> tuple[Split, Split]:
    """(for the choice of a rate, for the result); the test images of the second are not in the first."""
    pixels, digits = (
        torch.from_numpy(values) for values in load_digits(return_X_y=True)
    )
    images = (
        torch.nn.functional.layer_norm(pixels.float(), [64]) / 8
    )  # of each image alone
    place = torch.arange(len(digits))
    held, rest = place[place % 6 == 0], place[place % 6 != 0]
    inner = torch.arange(len(rest)) % BINS == 0
    return tuple(
        Split(
            TensorDataset(images[train], digits[train]),
            (images[test], digits[test]),
            batch_size,
        )
        for train, test, batch_size in (
            (rest[~inner], rest[inner], 239.4),
            (rest, held, 299.4),
        )
    )


def network(name: str) -> nn.Module:
    """Softmax regression, or two convolutions and a linear layer; for single images and batches."""
    if name == "logistic":
        return nn.Linear(64, 10)
    return nn.Sequential(
        nn.Unflatten(-1, (1, 8, 8)),
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(-3),
        nn.Linear(64, 10),
    )


def loss(model: nn.Module, image: Tensor, digit: Tensor) -> Tensor:
    """Of one example."""
    return torch.nn.functional.cross_entropy(model(image), digit)


def calibrations(
    budgets: Iterable[float], steps: int
) -> dict[tuple[float, bool], dm.Calibration]:
    """(eps, whether correlated) to a calibration; all of them rigorous."""
    found = {}
    for eps in track(
        list(budgets),
        "calibrating",
        console=Console(stderr=True),
        transient=True,
    ):
        best = dm.optimize(
            dm.LambdaCGD,
            dm.BallsInBins(BINS),
            n=steps,
            eps=eps,
            delta=DELTA,
            rng=0,
        )
        for correlated, strategy, participation, method in (
            (False, dm.Identity(steps), dm.Poisson(1 / BINS), dm.methods.Pld()),
            (
                True,
                best.strategy,
                best.participation,
                dm.methods.Deterministic(),
            ),
        ):
            found[eps, correlated] = dm.calibrate_sigma(
                strategy, eps, DELTA, participation=participation, method=method
            )
    return found


def train(
    method: Method,
    rate: float,
    model: str,
    split: Split,
    cal: dm.Calibration,
    seed: int,
) -> tuple[float, float]:
    """(accuracy, noise share of the private gradients) of one private run."""
    torch.manual_seed(seed)
    plain = network(model)
    variance = cal.noise_variance(0, 1.0, split.batch_size)
    inner = method.rule(plain.parameters(), rate, variance)
    private, optimizer, batches = make_private(
        plain,
        inner,
        DataLoader(split.train),
        cal,
        1.0,
        loss=loss,
        expected_batch_size=split.batch_size,
        generator=seed,
        rng=seed,
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: 1.0 - step / cal.strategy.n
    )
    # It moves nothing (its rate is 0) and sees only what is released; its second moment has the noise share.
    probe = AdamBC(plain.parameters(), lr=0.0)
    while optimizer.steps_left:
        for images, digits in batches:
            private.backward(images, digits)
            optimizer.step()
            schedule.step()
            probe.param_groups[0]["phi"] = optimizer.phi
            probe.step()
    images, digits = split.test
    with torch.no_grad():
        accuracy = float((private(images).argmax(1) == digits).float().mean())
    return accuracy, noise_share(probe, strategy=cal.strategy).rho


def total(cal: dm.Calibration, rates: int) -> float:
    """Eps at DELTA of one published model with all that chose its rate.

    Who is in the fifth that scores is in the published run and in every score, who is in the rest of the
    training data in the published run and in every run that was scored. Nobody is in both.
    """
    scores = rates * SCORED_RUNS
    run = dm.profile(cal.mechanism, cal.sigma, rel_error=0.05, rng=0)
    # One person changes every number of right answers by at most 1.
    counts = dm.profile(
        dm.Identity(scores), SCORE_NOISE, participation=dm.EveryStep()
    )
    trained_on, scored = run.self_compose(scores + 1), run.compose(counts)
    return max(one.epsilon(DELTA).upper for one in (trained_on, scored))


def result(
    method: Method,
    model: str,
    cal: dm.Calibration,
    *,
    rates: int,
    seeds: int,
    score_noise: float,
) -> dict[str, str | float | list[float]]:
    """The chosen rate, and what the runs with it gave."""
    choosing, final = splits()
    place = (
        METHODS.index(method),
        MODELS.index(model),
        round(1000 * cal.budget.eps),
    )
    noise = np.random.default_rng(place)

    def noisy_score(rate: float, seed: int) -> float:
        """The number of right answers, noised: the choice sees nothing else of this run."""
        accuracy, _ = train(method, rate, model, choosing, cal, 100 + seed)
        return (
            round(accuracy * len(choosing.test[1]))
            + score_noise * noise.standard_normal()
        )

    tried = {
        rate: np.mean([noisy_score(rate, seed) for seed in range(SCORED_RUNS)])
        for rate in method.rates(rates)
    }
    rate = max(tried, key=lambda one: tried[one])
    runs = [
        train(method, rate, model, final, cal, seed) for seed in range(seeds)
    ]
    return {
        "model": model,
        "method": method.name,
        "eps": cal.budget.eps,
        "noise_multiplier": cal.noise_multiplier,
        "lam": getattr(cal.strategy, "lam", 0.0),
        "rate": rate,
        "accuracies": [accuracy for accuracy, _ in runs],
        "noise_shares": [share for _, share in runs],
    }


def table(results: Sequence[dict], model: str) -> str:
    """Markdown: accuracies by eps and method, and the noise shares of the two kinds of noise."""
    mine = {
        (one["eps"], one["method"]): one
        for one in results
        if one["model"] == model
    }
    columns = [
        *(method.name for method in METHODS),
        "lam",
        "noise share, DP-SGD",
        "noise share, LambdaCGD",
    ]
    totals = any("total" in one for one in mine.values())
    columns += ["total eps, DP-SGD", "total eps, LambdaCGD"] if totals else []
    lines = [
        f"| {model}, eps | {' | '.join(columns)} |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for eps in sorted({eps for eps, _ in mine}):
        cells = []
        for method in METHODS:
            one = mine[eps, method.name]
            spread = (
                np.std(one["accuracies"], ddof=1)
                if len(one["accuracies"]) > 1
                else 0.0
            )
            cells.append(
                f"{100 * np.mean(one['accuracies']):.1f} ± {100 * spread:.1f} ({one['rate']:g})"
            )
        cells.append(f"{mine[eps, 'LambdaCGD']['lam']:.2f}")
        for name in PAIR:
            cells.append(f"{np.mean(mine[eps, name]['noise_shares']):.2f}")
        if totals:
            # Of the privacy that is spent nothing is rounded away.
            cells += [
                f"{math.ceil(100 * mine[eps, name]['total']) / 100:.2f}"
                for name in PAIR
            ]
        lines.append(f"| {eps:g} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def draw(results: Sequence[dict], path: pathlib.Path) -> None:
    """Mean accuracy against eps, one panel a model, with standard deviations over seeds; current style."""
    from matplotlib.figure import Figure

    models = [
        name for name in MODELS if any(one["model"] == name for one in results)
    ]
    figure = Figure(figsize=(4.6 * len(models), 4))
    panels = figure.subplots(1, len(models), sharey=True, squeeze=False)[0]
    for index, method in enumerate(METHODS):
        for model, axes in zip(models, panels, strict=True):
            mine = [
                one
                for one in results
                if (one["model"], one["method"]) == (model, method.name)
            ]
            mine.sort(key=lambda one: one["eps"])
            values = [np.array(one["accuracies"]) for one in mine]
            axes.errorbar(
                # Side by side, so that bars do not hide each other.
                [one["eps"] * 1.03 ** (index - 2) for one in mine],
                [one.mean() for one in values],
                [one.std(ddof=1) if one.size > 1 else 0.0 for one in values],
                capsize=2,
                label=method.name,
            )
            axes.set_xscale("log", base=2)
            axes.set_xticks(sorted({one["eps"] for one in mine}))
            axes.xaxis.set_major_formatter("{x:g}")
            axes.set_xlabel(f"eps at delta = {DELTA:g}")
            axes.set_title(
                {"logistic": "softmax regression", "cnn": "small CNN"}[model]
            )
    panels[0].set_ylabel("test accuracy")
    panels[-1].legend()
    figure.savefig(path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train all of them, and write figure, table and numbers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="two budgets, few steps, rates and seeds",
    )
    parser.add_argument(
        "--exact-scores",
        action="store_true",
        help="choose by scores without noise: no total",
    )
    given = parser.parse_args(arguments)
    budgets, steps, rates, seeds = (
        ((2.0, 8.0), 10, 2, 1) if given.quick else (BUDGETS, 50, 6, 5)
    )
    given.folder.mkdir(parents=True, exist_ok=True)
    numbers = given.folder / "digits_comparison.json"
    results = (
        json.loads(numbers.read_text(encoding="utf-8"))
        if numbers.exists()
        else []
    )
    done = {(one["method"], one["model"], one["eps"]) for one in results}
    cals = calibrations(budgets, steps)
    costs: dict[tuple[float, bool], float] = {}
    plan = [
        (method, model, eps)
        for model in given.models
        for eps in budgets
        for method in METHODS
    ]
    for method, model, eps in track(
        plan, "training", console=Console(stderr=True), transient=True
    ):
        if (method.name, model, eps) not in done:
            key = eps, method.correlated
            noise = 0.0 if given.exact_scores else SCORE_NOISE
            found = result(
                method,
                model,
                cals[key],
                rates=rates,
                seeds=seeds,
                score_noise=noise,
            )
            if noise:
                costs[key] = costs.get(key) or total(cals[key], rates)
                found["total"] = costs[key]
            results.append(found)
            numbers.write_text(json.dumps(results, indent=1), encoding="utf-8")
    text = "\n".join(table(results, model) for model in given.models)
    (given.folder / "digits_comparison.txt").write_text(text, encoding="utf-8")
    import matplotlib.style

    with matplotlib.style.context("dpmech.figures"):
        draw(results, given.folder / "digits_comparison.png")
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
