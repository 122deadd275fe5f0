"""What audits of one run find: median lower bounds on eps, and how often a certificate is refuted.

1,000 canaries, each included by a fair coin, certified at eps 2 and delta 1e-5, confidence 95 %: the noise as
certified, and half of it. The values seen along canaries are drawn from the mechanism itself.

Run as `python docs/figures/audit_power.py FOLDER`: it writes `audit_power.txt`, in some minutes of one core.
"""

import pathlib
import sys

import numpy as np

import dpmech as dm

CANARIES, EPS, DELTA, SEED = 1000, 2.0, 1e-5, 1
KNOWN = 200  # audits that know the batches: fast
# Name, strategy, participation, number of audits that average over the batches.
PLANS = (
    ("one release", dm.Identity(1), dm.SingleParticipation(), 0),
    (
        "`LambdaCGD(40, 0.5)`, `MinSep(8, 5)`",
        dm.LambdaCGD(40, 0.5),
        dm.MinSep(8, 5),
        0,
    ),
    (
        "`LambdaCGD(24, 0.5)`, `BallsInBins(8)`",
        dm.LambdaCGD(24, 0.5),
        dm.BallsInBins(8),
        40,
    ),
    ("`Identity(12)`, `Poisson(0.25)`", dm.Identity(12), dm.Poisson(0.25), 40),
    (
        "`Identity(200)`, `Poisson(0.03)`",
        dm.Identity(200),
        dm.Poisson(0.03),
        16,
    ),
)


def seen(
    claim: dm.Calibration,
    included: np.ndarray,
    noise: float,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Observations of one run, and the steps of the canaries."""
    n, own = claim.strategy.n, claim.participation
    if own.random:
        sampler = dm.samplers.sampler_for(own, CANARIES, n=n, rng=rng)
        joins = np.zeros((CANARIES, n), dtype=bool)
        for step in range(n):
            joins[sampler.indices(step), step] = True
    else:
        gap = own.pattern(n).min_sep
        joins = np.arange(n) % gap == np.arange(CANARIES)[:, None] % gap
    z = rng.standard_normal((n, CANARIES))
    released = noise * claim.sigma * claim.strategy.solve(z).T
    released[included] += joins[included]
    return released, joins


def row(
    name: str,
    strategy: dm.Strategy,
    participation: dm.Participation,
    audits: int,
    noise: float,
    *,
    known: bool,
) -> str:
    """One line of the table; `known`, whether the audit knows sampled batches."""
    rng = np.random.default_rng(SEED)
    claim = dm.calibrate_sigma(
        strategy, EPS, DELTA, participation=participation
    )
    guesses, ratios = [], []
    for _ in range(audits):
        included = rng.integers(0, 2, size=CANARIES, dtype=bool)
        released, joins = seen(claim, included, noise, rng)
        scores = dm.audits.canary_scores(
            released,
            strategy,
            claim.sigma,
            participation if participation.random else joins,
        )
        guesses.append(dm.audits.one_run_epsilon(scores, included, DELTA).lower)
        found = dm.audits.gaussian_audit(
            released, included, claim, joins if known else None, rng=rng
        )
        ratios.append(found.noise_ratio)
    ratio = float(np.quantile(ratios, 0.5, method="higher"))
    least = dm.epsilon(claim.mechanism, ratio * claim.sigma, DELTA).lower
    caught = [
        100 * np.mean(np.asarray(guesses) > EPS),
        100 * np.mean(np.asarray(ratios) < 1.0),
    ]
    batches = "known" if known else "averaged over"
    return (
        f"| {name} | {batches} | x {noise:g} | {np.median(guesses):.2f} ({caught[0]:.0f} %) | "
        f"{least:.2f} ({caught[1]:.0f} %) | {ratio:.2f} | {audits} |"
    )


def main(arguments: list[str]) -> int:
    """Write the table into the folder that is named."""
    lines = [
        "| plan | batches | noise | `one_run_epsilon` | `gaussian_audit` | noise at most | audits |",
        "|---|---|---|---|---|---|---|",
    ]
    for *plan, audits in PLANS:
        for known in (True, False) if plan[2].random else (True,):
            for noise in (1.0, 0.5):
                lines.append(
                    row(*plan, KNOWN if known else audits, noise, known=known)
                )
                print(lines[-1], flush=True)
    path = pathlib.Path(arguments[0]) / "audit_power.txt"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
