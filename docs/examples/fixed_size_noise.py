"""Sigma of fixed-size batches under replace-one, compared with Poisson sampling at the same batch size."""

import time

import dpmech as dm

EPS, DELTA, SIZE, STEPS = 2.0, 1e-6, 10_000, 1000
BATCHES = (10, 100, 300, 1000, 3000)


def row(batch: int) -> str:
    """One row of the table."""
    start = time.process_time()
    fixed = dm.Mechanism(
        dm.Identity(STEPS),
        dm.FixedSizeBatches(SIZE, batch),
        dm.Adjacency.REPLACE_ONE,
    )
    cal = dm.calibrate_sigma(fixed, EPS, DELTA)
    seconds = time.process_time() - start
    moments = dm.calibrate_sigma(
        fixed, EPS, DELTA, method=dm.methods.Rdp()
    ).sigma
    poisson = dm.calibrate_sigma(
        dm.Identity(STEPS), EPS, DELTA, participation=dm.Poisson(batch / SIZE)
    ).sigma
    whole = dm.calibrate_sigma(
        dm.Identity(STEPS), EPS, DELTA, adjacency=dm.Adjacency.REPLACE_ONE
    ).sigma
    lower = dm.epsilon(fixed, cal.sigma, DELTA).lower
    figures = f"{poisson:.3f} | {cal.sigma:.3f} | {lower:.2f} | {moments:.3f} | {whole:.1f} | {seconds:.1f}"
    return f"| {batch} | {figures} |"


def main() -> None:
    """Print the table."""
    print(f"eps {EPS:g}, delta {DELTA:g}, {SIZE} examples, {STEPS} steps")
    print(
        "| B | Poisson, add-remove | fixed-size batches | lower bound on eps | "
        "fixed-size batches, `Rdp()` | not sampled | seconds |"
    )
    print("|---|---|---|---|---|---|---|")
    for batch in BATCHES:
        print(row(batch))


if __name__ == "__main__":
    main()
