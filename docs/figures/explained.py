"""Two figures that explain: who takes part when, and what correlated noise does.

Run as `python docs/figures/explained.py FOLDER`; it writes bins.png and correlated_noise.png, in seconds. The
draws are seeded: the pictures are examples.
"""

import pathlib
import sys
from collections.abc import Callable

import matplotlib.style
import numpy as np
from matplotlib.figure import Figure

import dpmech as dm

PEOPLE, BINS, EPOCHS = 10, 5, 3
STEPS = BINS * EPOCHS
LAM, SUMS, SHOWN = 0.9, 100, 12


def fixed(rng: np.random.Generator) -> np.ndarray:
    """Person i in step i mod 5 of every epoch; shape (people, steps), as of all below."""
    return np.equal.outer(np.arange(PEOPLE) % BINS, np.arange(STEPS) % BINS)


def poisson(rng: np.random.Generator) -> np.ndarray:
    """A coin for every person and step."""
    return rng.random((PEOPLE, STEPS)) < 1 / BINS


def cyclic(rng: np.random.Generator) -> np.ndarray:
    """Five groups, as many as steps in an epoch, and a coin in the steps of one's group."""
    return fixed(rng) & (rng.random((PEOPLE, STEPS)) < 0.5)


def bins(rng: np.random.Generator) -> np.ndarray:
    """A bin for every person, drawn once."""
    return np.equal.outer(
        rng.integers(BINS, size=PEOPLE), np.arange(STEPS) % BINS
    )


def fresh(rng: np.random.Generator) -> np.ndarray:
    """A bin for every person and epoch."""
    return np.hstack(
        [
            np.equal.outer(rng.integers(BINS, size=PEOPLE), np.arange(BINS))
            for _ in range(EPOCHS)
        ]
    )


def shuffled(rng: np.random.Generator) -> np.ndarray:
    """Batches of two from a new order every epoch."""
    return np.hstack(
        [
            np.equal.outer(rng.permutation(PEOPLE) % BINS, np.arange(BINS))
            for _ in range(EPOCHS)
        ]
    )


SCHEMES: tuple[tuple[str, Callable[[np.random.Generator], np.ndarray]], ...] = (
    ("fixed order: MinSep(5, 3)", fixed),
    ("Poisson(0.2)", poisson),
    ("CyclicPoisson(0.5, cycle=5)", cyclic),
    ("BallsInBins(5)", bins),
    ("BallsInBins(5, fresh=True)", fresh),
    ("shuffled every epoch: no theorem here", shuffled),
)


def draw_bins(path: pathlib.Path) -> None:
    """A square where a person takes part in a step; one person stands out."""
    figure = Figure(figsize=(6.4, 6.8))
    panels = figure.subplots(3, 2, sharex=True, sharey=True)
    for number, (axes, (title, scheme)) in enumerate(
        zip(panels.flat, SCHEMES, strict=True)
    ):
        taken = scheme(np.random.default_rng(number))
        for person, step in zip(*np.nonzero(taken), strict=True):
            one = person == PEOPLE // 2
            axes.plot(
                step,
                person,
                marker="s" if one else "o",
                ms=8 if one else 5,
                color="C1" if one else "C0",
            )
        for epoch in range(1, EPOCHS):
            axes.axvline(
                epoch * BINS - 0.5, color="gray", lw=0.8, ls="--", marker=""
            )
        axes.set_title(title, fontsize="small")
        axes.set(
            xlim=(-0.5, STEPS - 0.5),
            ylim=(PEOPLE - 0.5, -0.5),
            xticks=range(0, STEPS, 5),
            yticks=[0, 5, 9],
        )
        axes.grid(visible=False)
    for axes in panels[-1]:
        axes.set_xlabel("step, from 0")
    for axes in panels[:, 0]:
        axes.set_ylabel("person")
    figure.savefig(path)


def draw_noise(path: pathlib.Path) -> None:
    """What a step adds and takes back, and the sums of noise, independent and correlated, for one budget."""
    once = dm.SingleParticipation()
    apart = dm.calibrate_sigma(dm.Identity(SUMS), 2.0, 1e-5, participation=once)
    together = dm.calibrate_sigma(
        dm.LambdaCGD(SUMS, LAM), 2.0, 1e-5, participation=once
    )
    fresh_noise = np.random.default_rng(3).normal(size=SUMS)
    figure = Figure(figsize=(6.4, 6.0))
    above, below = figure.subplots(2, 1, height_ratios=(2, 3))
    steps, own = np.arange(SHOWN), together.sigma * fresh_noise[:SHOWN]
    back = np.concatenate([[0.0], -LAM * own[:-1]])
    above.bar(
        steps - 0.2, own, width=0.4, color="C0", label="fresh noise of step t"
    )
    above.bar(
        steps + 0.2,
        back,
        width=0.4,
        color="C1",
        hatch="//",
        label="taken back: -0.9 of step t - 1",
    )
    above.axhline(0.0, color="black", lw=0.8, marker="")
    top = 1.5 * float(np.abs(own).max())
    above.set(
        xlabel="step t, from 0", ylabel="noise, in clip norms", ylim=(-top, top)
    )
    above.legend(loc="upper left")
    every = np.arange(SUMS)
    for name, cal, color, marker in (
        ("independent", apart, "C3", "D"),
        ("correlated", together, "C2", "^"),
    ):
        added = cal.sigma * cal.strategy.solve(fresh_noise[:, None])[:, 0]
        error = cal.sigma * dm.per_step_error(cal.strategy)
        below.fill_between(every, -error, error, color=color, alpha=0.2, lw=0)
        below.plot(
            every,
            np.cumsum(added),
            color=color,
            ls="-",
            marker=marker,
            markevery=8,
            label=name,
        )
    below.axhline(0.0, color="black", lw=0.8, marker="")
    below.set(
        xlabel="step t, from 0", ylabel="sum of the noise of steps 0 to t"
    )
    below.legend(loc="upper left")
    figure.savefig(path)


def main() -> int:
    """Draw both."""
    folder = pathlib.Path(sys.argv[1])
    with matplotlib.style.context("dpmech.figures"):
        draw_bins(folder / "bins.png")
        draw_noise(folder / "correlated_noise.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
