"""The SDE paper's listed values of eps against certified lower bounds on what the noise multipliers cost."""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

from mpmath import mp

from verification.harness.nudging import nudge
from verification.harness.verdict import Verdict, judged_erratum, statement

PAPER = "sde"
# i.i.d. uniform indices, as Definition 3.3 has it; Poisson batches; one participation in each shuffled epoch.
SAMPLERS = ("uniform", "poisson", "shuffled")


@dataclasses.dataclass(frozen=True)
class Run:
    """A schedule of the paper.

    Args:
        name: section or data set.
        batch: B.
        size: n.
        epochs: passes over the data.
        steps: T.
        delta: of the paper.
    """

    name: str
    batch: int
    size: int
    epochs: int
    steps: int
    delta: float


STACK = Run("StackOverflow", 64, 246_092, 50, 192_250, 1e-6)
IMDB = Run("IMDB", 64, 25_000, 100, 39_000, 1e-5)

# run, sigma, listed eps, statistic and its threshold. Chosen for a large bound; any threshold is a proof.
Row = tuple[Run, float, float, str, float]
ROWS: tuple[Row, ...] = (
    (STACK, 0.1, 4.238, "largest", 1.54),
    (STACK, 0.3, 1.413, "largest", 2.59),
    (STACK, 0.5, 0.848, "largest", 3.6),
    (STACK, 1.0, 0.424, "sum", 1775.0),
    (STACK, 2.0, 0.212, "sum", 3400.0),
    (IMDB, 0.5, 5.425, "largest", 3.47),
)
# Eps that is exceeded in each row under every sampler.
KNOWN = (95.85, 15.01, 4.246, 0.4567, 0.2176, 5.941)
# The sum alone, which is what the last iterate tells of gradients that never change; and the eps exceeded.
LAST_ITERATE: tuple[Row, ...] = (
    (STACK, 0.1, 4.238, "sum", 243.0),
    (STACK, 0.3, 1.413, "sum", 603.0),
    (STACK, 0.5, 0.848, "sum", 949.0),
)
KNOWN_LAST = (5.678, 1.670, 0.9607)


def listed(row: Row) -> float:
    """The eps that the paper gives for this multiplier."""
    return row[2]


def _normal(value: Any) -> Any:  # noqa: ANN401 - mpmath has no types
    """P(N(0, 1) > value)."""
    return mp.ncdf(-value)


def _largest(run: Run, sampler: str, sigma: float, threshold: float) -> tuple[Any, Any]:
    """Probabilities that some step exceeds the threshold, with the example and without (at most that)."""
    tails = [_normal((mp.mpf(threshold) - hits) / sigma) for hits in range(4)]
    if sampler == "shuffled":
        kept = (1 - tails[0]) ** (run.steps - run.epochs) * (1 - tails[1]) ** run.epochs
        return 1 - kept, run.steps * tails[0]
    rate = mp.mpf(1) / run.size
    if sampler == "uniform":
        chances = [
            mp.binomial(run.batch, hits) * rate**hits * (1 - rate) ** (run.batch - hits) for hits in range(4)
        ]
    else:
        chances = [1 - run.batch * rate, run.batch * rate]
    one = sum(chance * tail for chance, tail in zip(chances, tails, strict=False))
    return 1 - (1 - one) ** run.steps, run.steps * tails[0]


def _sum(run: Run, sampler: str, sigma: float, threshold: float) -> tuple[Any, Any]:
    """The same for the sum over all steps; the number of hits is binomial, or fixed."""
    deviation = mp.mpf(sigma) * mp.sqrt(run.steps)
    without = _normal(threshold / deviation)
    if sampler == "shuffled":
        return _normal((threshold - run.epochs) / deviation), without
    draws = run.steps * run.batch if sampler == "uniform" else run.steps
    chance = mp.mpf(run.steps * run.batch) / run.size / draws
    mean = float(draws * chance)
    width = 8 * math.sqrt(mean) + 10
    total = mp.mpf(0)
    for hits in range(max(0, int(mean - width)), int(mean + width)):
        weight = mp.exp(
            mp.loggamma(draws + 1)
            - mp.loggamma(hits + 1)
            - mp.loggamma(draws - hits + 1)
            + hits * mp.log(chance)
            + (draws - hits) * mp.log1p(-chance)
        )
        total += weight * _normal((threshold - hits) / deviation)
    return total, without


def lower_bound(row: Row, sampler: str) -> float:
    """An eps that the mechanism exceeds: ln((P - delta) / Q) of one event, in 30 digits.

    The data sets differ in one example, whose clipped gradient is C e_1 in one and 0 in the other; noise
    and steps are in units of C. What is left out of sums makes P smaller; Q is a union bound.
    """
    run, sigma, _, statistic, threshold = row
    with mp.workdps(30):
        present, absent = (_largest if statistic == "largest" else _sum)(run, sampler, sigma, threshold)
        if present <= run.delta:
            return 0.0
        return float(mp.log((present - run.delta) / absent))


def bounds(rows: tuple[Row, ...] = ROWS) -> Iterator[tuple[Row, float]]:
    """For each row the least bound over the samplers."""
    for row in rows:
        yield row, min(lower_bound(row, sampler) for sampler in SAMPLERS)


def _cut(value: float) -> float:
    """Rounded down: to two decimals, below 1 to four."""
    scale = 1e2 if value > 1.0 else 1e4
    return math.floor(scale * value) / scale


@statement("sde.eps.certified", paper=PAPER, expected="CONDITIONAL")
def listed_as_guarantee(
    *,
    claim: Callable[[Row], float] = listed,
    right: tuple[float, ...] = KNOWN,
    last: tuple[float, ...] = KNOWN_LAST,
) -> Verdict:
    """The multipliers give (eps, delta)-DP at the listed eps. Right: eps that is exceeded, row by row."""
    printed, corrected, notes = -math.inf, 0.0, []
    for (row, found), known in zip(bounds(), right, strict=True):
        printed = max(printed, found / claim(row) - 1.0)
        corrected = max(corrected, abs(found / known - 1.0))
        notes.append(
            f"On {row[0].name} at sigma = {row[1]:g}, eps exceeds {_cut(found):g}; {row[2]:g} is listed."
        )
    kept = []
    for (row, found), known in zip(bounds(LAST_ITERATE), last, strict=True):
        corrected = max(corrected, abs(found / known - 1.0), row[2] / found - 1.0)
        kept.append(f"{_cut(found):g} at sigma = {row[1]:g}")
    notes.append(f"For the last iterate alone on StackOverflow, eps exceeds {', '.join(kept)}.")
    return Verdict(
        judged_erratum(printed, corrected, 0.004, word="CONDITIONAL"),
        "The check computes the probability of one event with and without an example, with 30 digits, "
        "for three samplers, and uses the smallest of the three bounds on eps. The deviation is this "
        "bound divided by the listed eps, minus 1.",
        (len(ROWS) + len(LAST_ITERATE)) * len(SAMPLERS),
        printed,
        " ".join(notes),
    )


def _witness() -> dict[str, bool]:
    runs = {row[0] for row in ROWS}
    printed = {
        "StackOverflow": (246_092, 1e-6, 64, 50, {0.1, 0.3, 0.5, 1.0, 2.0}),
        "IMDB": (25_000, 1e-5, 64, 100, {0.5}),
    }
    used = {
        run.name: (run.size, run.delta, run.batch, run.epochs, {row[1] for row in ROWS if row[0] == run})
        for run in runs
    }
    # The sample's gradient, clipped by eq. 3 at C = 0.25: a hit moves the sum by C, as the bounds assume.
    gradient, clip = (0.3, -0.4), 0.25
    clipped = [part * min(1.0, clip / math.hypot(*gradient)) for part in gradient]
    return {
        "the data sets differ in one sample, of clipped norm C": abs(math.hypot(*clipped) / clip - 1.0)
        < 1e-12,
        "one event S of the outputs for each row": all(row[3] in {"largest", "sum"} for row in ROWS),
        "the printed n, delta, B, epochs and multipliers": used == printed,
        "T = epochs floor(n / B)": all(run.steps == run.epochs * (run.size // run.batch) for run in runs),
    }


FLIPS: dict[str, Callable[[], Verdict]] = {
    "sde.eps.certified": lambda: listed_as_guarantee(claim=lambda row: 1.1 * KNOWN[ROWS.index(row)]),
}
NUDGES = {
    "sde.eps.certified": {
        f"{row[0].name}, sigma = {row[1]:g}": nudge(listed_as_guarantee, "right", place)
        for place, row in enumerate(ROWS)
    }
    | {
        f"last iterate, sigma = {row[1]:g}": nudge(listed_as_guarantee, "last", place)
        for place, row in enumerate(LAST_ITERATE)
    },
}
WITNESSES = {"sde.eps.certified": _witness}
