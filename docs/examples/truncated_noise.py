"""The cost of truncated batches: sigma for one sampling probability, and the best one for one size.

Noise is the standard deviation in the mean gradient, in thousandths of the clip norm: sigma divided by the
expected batch size.
"""

import time

import dpmech as dm

EPS, DELTA, SIZE, STEPS = 2.0, 1e-6, 10_000, 1000
BATCH, LIMITS = 100, (100, 110, 120, 130, 140, 150, 160)
LIMIT, BATCHES = 128, (70, 80, 90, 100, 110, 120, 128)


def truncated(batch: int, most: int) -> dm.Mechanism:
    """Batches of at most `most` examples; `batch` examples are sampled on average."""
    batches = dm.Poisson(
        batch / SIZE, truncated_batch_size=most, dataset_size=SIZE
    )
    return dm.Mechanism(dm.Identity(STEPS), batches, dm.Adjacency.ZERO_OUT)


def row(first: int, batch: int, most: int) -> str:
    """One row of a table."""
    start = time.process_time()
    cal = dm.calibrate_sigma(truncated(batch, most), EPS, DELTA)
    plain = dm.calibrate_sigma(
        dm.Identity(STEPS), EPS, DELTA, participation=dm.Poisson(batch / SIZE)
    ).sigma
    batches = cal.participation.truncation
    if batches is None:
        raise ValueError(cal.participation)
    seconds = time.process_time() - start
    return (
        f"| {first} | {batches.truncated[1]:.1e} | {plain:.3f} | {cal.sigma:.3f} | "
        f"{cal.sigma / plain:.3f} | {1e3 * cal.sigma / batches.expected_batch_size:.2f} | {seconds:.1f} |"
    )


def main() -> None:
    """Print the tables."""
    print(f"eps {EPS:g}, delta {DELTA:g}, {SIZE} examples, {STEPS} steps")
    for title, rows in (
        (
            f"B, with {BATCH} examples sampled on average",
            [(most, BATCH, most) for most in LIMITS],
        ),
        (
            f"examples sampled on average, with B = {LIMIT}",
            [(batch, batch, LIMIT) for batch in BATCHES],
        ),
    ):
        print(
            f"| {title} | tau | sigma without truncation | sigma with truncation | ratio | noise | seconds |"
        )
        print("|---|---|---|---|---|---|---|")
        for one in rows:
            print(row(*one))


if __name__ == "__main__":
    main()
