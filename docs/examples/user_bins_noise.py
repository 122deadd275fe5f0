"""Noise of Balls-in-Bins where a user has two examples: users as wholes, examples, group privacy."""

import math
import time

import dpmech as dm

BINS, EPOCHS, EXAMPLES, DELTA = 40, 5, 2, 1e-6
PLANS = {
    "Identity": dm.Identity(BINS * EPOCHS),
    "LambdaCGD 0.5": dm.LambdaCGD(BINS * EPOCHS, 0.5),
}
LEVELS = (1.0, 4.0, 8.0)


def row(name: str, eps: float) -> str:
    """One row of the table."""
    strategy, m = PLANS[name], EXAMPLES
    start = time.process_time()
    examples = dm.calibrate_sigma(
        strategy,
        eps,
        DELTA,
        participation=dm.BallsInBins(BINS, max_examples_per_user=m),
    ).sigma
    seconds = time.process_time() - start
    wholes = dm.Mechanism(strategy, dm.BallsInBins(BINS), unit=dm.Unit.USER)
    whole = dm.calibrate_sigma(wholes, eps, DELTA).sigma
    # (eps, delta) for one example is (m eps, delta (e^(m eps) - 1) / (e^eps - 1)) for m of them.
    part = eps / m
    small = DELTA * math.expm1(part) / math.expm1(eps)
    group = dm.calibrate_sigma(
        strategy, part, small, participation=dm.BallsInBins(BINS)
    ).sigma
    placed = dm.MinSep(BINS, EPOCHS, max_examples_per_user=m)
    fixed = dm.calibrate_sigma(strategy, eps, DELTA, participation=placed).sigma
    shown = " | ".join(f"{sigma / m:.3f}" for sigma in (examples, group, fixed))
    return f"| {name} | {eps:g} | {whole:.3f} | {shown} | {seconds:.0f} |"


def main() -> None:
    """Print the table."""
    print(
        "| strategy | eps | users in bins | examples in bins | group privacy | not sampled | seconds |"
    )
    print("|---|---|---|---|---|---|---|")
    for name in PLANS:
        for eps in LEVELS:
            print(row(name, eps), flush=True)


if __name__ == "__main__":
    main()
