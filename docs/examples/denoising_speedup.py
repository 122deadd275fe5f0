"""Does denoising gradients save steps at equal accuracy? Table 1 of the spectral paper, on texts.

A network with 32 hidden units (a matrix of 513 x 32, about the shape of the
paper's LoRA matrices of 16 x 768) learns which of six packages a paragraph of
docstrings is from (`accuracy_tasks.py`), with DP-SGD's noise under Poisson
sampling, by SGD with momentum and by Adam, each with and without shrinking the
singular values of its gradients. As in the paper, the speed-up at step T is
1 - T'/T, where the denoised run has at T' the mean accuracy that the plain one
has at T, linear between the points of its curve. Unlike there, each of the four
has its own rate, the best of a grid on a validation part.

Run as `python denoising_speedup.py FOLDER`; table and curves go into the
folder. `--settings` names another file than `denoising_speedup.toml`. It takes
some ten minutes of one core.
"""

import argparse
import dataclasses
import functools
import json
import math
import pathlib
import sys
import tomllib
from collections.abc import Sequence

import numpy as np
import torch
from accuracy_study import DELTA, interval, participation
from accuracy_tasks import TASKS, Task
from accuracy_training import (
    CLIP,
    Noise,
    Plan,
    Rule,
    of_matrices,
    tested,
    trained,
)

import dpmech as dm
from dpmech.analysis.spectral import steps_to_match
from dpmech.optim import denoise_matrices

SETTINGS = pathlib.Path(__file__).with_suffix(".toml")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Of all runs.

    Attributes:
        bins: steps of an epoch.
        epochs: of a run.
        eps: at DELTA.
        seeds: each with its split, start, batches and noise.
        every: steps between two points of a curve.
        milestones: steps at which the rules are compared, multiples of `every`.
        rates: number of learning rates, each twice the one before.
        sgd_rate: the smallest of SGD.
        adam_rate: the smallest of Adam.
    """

    bins: int
    epochs: int
    eps: float
    seeds: int
    every: int
    milestones: tuple[int, ...]
    rates: int
    sgd_rate: float
    adam_rate: float


def settings_of(path: pathlib.Path) -> Settings:
    """Read them."""
    given = tomllib.loads(path.read_text(encoding="utf-8"))
    return Settings(**given | {"milestones": tuple(given["milestones"])})


def rules(settings: Settings) -> list[Rule]:
    """Both optimizers, plain ones first."""
    sgd = Rule("SGD with momentum", settings.sgd_rate, momentum=0.9)
    adam = Rule("Adam", settings.adam_rate, adam=(0.9, 0.999), subtract=False)
    return [
        one
        for plain in (sgd, adam)
        for one in (plain, dataclasses.replace(plain, denoised=True))
    ]


@dataclasses.dataclass(frozen=True)
class Curve:
    """Accuracies of the best rate.

    Attributes:
        rate: the best one by the last accuracy on the validation part.
        inside: whether it is not at an end of the grid.
        test: one curve a seed.
        cosines: of the noisy and of the denoised gradient with the clipped one,
            means over seeds and points.
    """

    rate: float
    inside: bool
    test: list[list[float]]
    cosines: tuple[float, float]

    def mean(self) -> np.ndarray:
        """Over the seeds."""
        return np.mean(self.test, axis=0)


def curve(rule: Rule, settings: Settings, task: Task, noise: Noise) -> Curve:
    """Train with every rate, and measure on the way."""
    plan = Plan(
        task.name, "network", settings.bins, settings.epochs, settings.eps
    )
    rates = [rule.first * 2.0**power for power in range(settings.rates)]
    seen = []

    denoised = functools.partial(
        denoise_matrices, stddev=noise.sigma * CLIP * plan.bins / task.train
    )
    seen, cosines = [], []

    def watch(
        step: int,
        weights: list[torch.Tensor],
        clean: list[torch.Tensor],
        noisy: list[torch.Tensor],
    ) -> None:
        if step % settings.every == 0:
            seen.append(tested(plan, task, weights))
            shrunk = [of_matrices(denoised, one) for one in noisy]
            cosines.append(
                [cosine(one, clean).mean(dim=0) for one in (noisy, shrunk)]
            )

    trained(plan, task, noise, rule, rates, seeds=settings.seeds, watch=watch)
    best = int(np.argmax(seen[-1][0].mean(axis=0)))
    test = np.array([found[:, best] for _, found in seen]).T
    mean = [
        float(np.mean([one[place][best] for one in cosines]))
        for place in range(2)
    ]
    return Curve(
        rates[best],
        0 < best < len(rates) - 1,
        test.tolist(),
        (mean[0], mean[1]),
    )


def cosine(
    gradient: Sequence[torch.Tensor], clean: Sequence[torch.Tensor]
) -> torch.Tensor:
    """Of whole gradients, shape (seeds, rates)."""

    def inner(
        a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]
    ) -> torch.Tensor:
        products = [(x * y).sum(dim=(1, 3)) for x, y in zip(a, b, strict=True)]
        return torch.stack(products).sum(dim=0)

    lengths = inner(gradient, gradient) * inner(clean, clean)
    return inner(gradient, clean) / lengths.sqrt()


def speedup(
    plain: Curve,
    denoised: Curve,
    settings: Settings,
    cal: dm.Calibration,
    step: int,
) -> list[str]:
    """Cells of a milestone: both accuracies, the difference, the speed-up and the eps that it saves."""
    place = step // settings.every - 1
    both = [np.array(one.test)[:, place] for one in (plain, denoised)]
    steps = [settings.every * (i + 1) for i in range(len(plain.test[0]))]
    needed = steps_to_match(denoised.mean(), plain.mean()[place], steps=steps)
    mean, width = interval(both[1] - both[0])
    cells = [f"{100 * one.mean():.1f}" for one in both]
    cells.append(f"{100 * mean:+.1f} ± {100 * width:.1f}")
    if math.isinf(needed):
        return [*cells, "not reached", "none"]
    at = [
        dm.executed_epsilon(cal, count).upper
        for count in (step, math.ceil(needed))
    ]
    return [
        *cells,
        f"{100 * (1 - needed / step):.0f} %",
        f"{at[0] - at[1]:.2f}",
    ]


def table(
    curves: Sequence[tuple[Rule, Curve]],
    settings: Settings,
    cal: dm.Calibration,
) -> str:
    """Markdown, a row for each optimizer and milestone."""
    lines = [
        "| optimizer | step | plain, % | denoised, % | difference | speed-up | eps saved |",
        "|---" * 7 + "|",
    ]
    for (rule, plain), (_, denoised) in zip(
        curves[::2], curves[1::2], strict=True
    ):
        for step in settings.milestones:
            cells = speedup(plain, denoised, settings, cal, step)
            lines.append(f"| {rule.name} | {step} | {' | '.join(cells)} |")
    lines.append("")
    for rule, one in curves:
        noisy, shrunk = one.cosines
        lines.append(
            f"{name_of(rule)}: rate {one.rate:g}; cosine with the clipped "
            f"gradient {noisy:.3f} with noise, {shrunk:.3f} denoised."
        )
    return "\n".join(lines) + "\n"


def name_of(rule: Rule) -> str:
    """Of a curve."""
    return rule.name + (", denoised" if rule.denoised else "")


def main(arguments: Sequence[str] | None = None) -> int:
    """Train with all four, and print the table; 1 if a best rate is at an end of its grid."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--settings", type=pathlib.Path, default=SETTINGS)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    settings = settings_of(given.settings)
    task = TASKS["texts"]()
    where = participation("poisson", settings.bins, settings.epochs)
    cal = dm.calibrate_sigma(
        dm.Identity(settings.bins * settings.epochs),
        settings.eps,
        DELTA,
        participation=where,
    )
    noise = Noise(cal.strategy, where, cal.sigma, cal.rmse())
    curves = [
        (rule, curve(rule, settings, task, noise)) for rule in rules(settings)
    ]
    given.folder.mkdir(parents=True, exist_ok=True)
    text = table(curves, settings, cal)
    found = {name_of(rule): dataclasses.asdict(one) for rule, one in curves}
    for name, content in (
        ("json", json.dumps(found, indent=1) + "\n"),
        ("txt", text),
    ):
        path = given.folder / f"denoising_speedup.{name}"
        path.write_text(content, encoding="utf-8")
    sys.stdout.write(text)
    return int(not all(one.inside for _, one in curves))


if __name__ == "__main__":
    sys.exit(main())
