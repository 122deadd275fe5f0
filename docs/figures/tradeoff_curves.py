"""Trade-off curves of DP-SGD and LambdaCGD at the same (eps, delta), next to the bound from that pair only.

3900 steps, 390 to an epoch: DP-SGD with Poisson-sampled batches, LambdaCGD (lambda 0.9) with Balls-in-Bins,
both calibrated to eps 1 and 8 at delta 1e-5. A curve is the largest true-positive rate of any attack at a
false-positive rate, proved.

Run as `python docs/figures/tradeoff_curves.py FOLDER`: it writes the figure and its numbers, in some ten
minutes of one core. A figure that was drawn before is regenerated from its numbers with `--redraw`.
"""

import argparse
import json
import math
import pathlib
import sys

import matplotlib.style
import numpy as np

import dpmech as dm

DELTA = 1e-5
BUDGETS = (1.0, 8.0)
BINS, EPOCHS = 390, 10
RATES = (*(float(rate) for rate in np.logspace(-5, 0, 16)[:-1]), 0.8)
SEED = 1


def envelope(eps: float, fpr: float) -> float:
    """The bound from (eps, delta) only."""
    return min(
        1.0,
        DELTA + math.exp(eps) * fpr,
        1.0 - math.exp(-eps) * (1.0 - DELTA - fpr),
    )


def numbers() -> list[dict[str, object]]:
    """One entry a curve: the scheme, eps, sigma, rates."""
    n = BINS * EPOCHS
    schemes = {
        "DP-SGD, Poisson": (dm.Identity(n), dm.Poisson(1.0 / BINS)),
        "LambdaCGD, Balls-in-Bins": (
            dm.LambdaCGD(n, 0.9),
            dm.BallsInBins(BINS),
        ),
    }
    found = []
    for eps in BUDGETS:
        for name, (strategy, participation) in schemes.items():
            cal = dm.calibrate_sigma(
                strategy, eps, DELTA, participation=participation, rng=SEED
            )
            known = dm.profile(
                strategy, cal.sigma, participation=participation, rng=SEED
            )
            rates = [known.tpr(rate).upper for rate in RATES]
            found.append(
                {
                    "scheme": name,
                    "eps": eps,
                    "sigma": cal.sigma,
                    "fpr": RATES,
                    "tpr": rates,
                }
            )
            sys.stderr.write(f"{name}, eps {eps:g}: sigma {cal.sigma:.4g}\n")
    return found


def draw(curves: list[dict[str, object]], path: pathlib.Path) -> None:
    """A panel for each eps, in the current style; both axes logarithmic, as small rates are what matters."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.2, 4.2))
    panels = figure.subplots(1, len(BUDGETS), sharey=True)
    # Open rings around small squares, where the curves lie on each other.
    looks = {
        "DP-SGD, Poisson": {
            "color": "#0072B2",
            "marker": "o",
            "ms": 8,
            "mfc": "none",
        },
        "LambdaCGD, Balls-in-Bins": {
            "color": "#D55E00",
            "marker": "s",
            "ms": 3.5,
        },
    }
    fine = np.logspace(-5, 0, 400)
    for eps, axes in zip(BUDGETS, panels, strict=True):
        allowed = [envelope(eps, float(rate)) for rate in fine]
        axes.plot(
            fine,
            allowed,
            color="#000000",
            ls="--",
            lw=1.2,
            label="(eps, 1e-5) alone",
        )
        for one in curves:
            if one["eps"] == eps:
                axes.plot(
                    one["fpr"],
                    one["tpr"],
                    lw=1.2,
                    label=one["scheme"],
                    **looks[one["scheme"]],
                )
        axes.plot(fine, fine, color="#999999", ls=":", lw=1.2, label="guessing")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("false-positive rate")
        axes.set_title(f"eps = {eps:g} at delta = 1e-5")
    panels[0].set_ylabel("true-positive rate of any attack, at most")
    panels[0].legend()
    figure.savefig(path)


def main() -> int:
    """Write numbers and figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument(
        "--redraw", action="store_true", help="from the numbers that are there"
    )
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    path = given.folder / "tradeoff_curves.json"
    if not given.redraw:
        path.write_text(
            json.dumps(numbers(), indent=1) + "\n", encoding="utf-8"
        )
    with matplotlib.style.context("dpmech.figures"):
        draw(
            json.loads(path.read_text(encoding="utf-8")),
            given.folder / "tradeoff_curves.png",
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
