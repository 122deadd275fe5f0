"""b-min-sep sampling, cyclic Poisson sampling and Balls-in-Bins, for 16 bands and the same batches."""

import time

import dpmech as dm

STEPS, BANDS, DELTA = 256, 16, 1e-6
RATES = (1 / 64, 1 / 32)
LEVELS = (1.0, 8.0)


def row(eps: float, rate: float) -> str:
    """One row of the table."""
    strategy = dm.SquareRoot(STEPS, BANDS)
    bins = round(1 / rate)
    sampling = dm.BMinSep(BANDS, rate / (1.0 - rate * (BANDS - 1)))
    start = time.process_time()
    rests = dm.calibrate_sigma(
        strategy,
        eps,
        DELTA,
        participation=sampling,
        method=dm.methods.Importance(),
        rng=1,
    )
    seconds = time.process_time() - start
    cyclic = dm.calibrate_sigma(
        strategy,
        eps,
        DELTA,
        participation=dm.CyclicPoisson(rate * BANDS, BANDS),
    )
    allocated = dm.calibrate_sigma(
        strategy,
        eps,
        DELTA,
        participation=dm.BallsInBins(bins),
        method=dm.methods.Importance(),
        rng=1,
    )
    apart = dm.calibrate_sigma(
        strategy, eps, DELTA, participation=dm.MinSep(BANDS)
    )
    figures = " | ".join(
        f"{cal.sigma:.3f}" for cal in (rests, cyclic, allocated, apart)
    )
    return f"| {eps:g} | 1/{bins} | {figures} | {seconds:.0f} |"


def main() -> None:
    """Print the table."""
    print(
        "| eps | fraction in a batch | b-min-sep | cyclic Poisson | Balls-in-Bins | not sampled | seconds |"
    )
    print("|---|---|---|---|---|---|---|")
    for eps in LEVELS:
        for rate in RATES:
            print(row(eps, rate), flush=True)


if __name__ == "__main__":
    main()
