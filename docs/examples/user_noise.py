"""User-level noise where a user has m examples: users sampled, examples sampled, and group privacy.

N users with m examples each; all plans have the same expected number q N m of examples a step. Printed is the
standard deviation of the noise in the mean gradient, in clip norms, times q N: sigma where users are sampled,
and sigma / m where examples are.
"""

import math
import time

import dpmech as dm

# eps, delta, q, steps, and the numbers of examples.
PLANS = (
    (4.0, 1e-6, 0.01, 2000, (1, 2, 5, 20)),
    (8.0, 1e-6, 0.001, 500, (1, 2, 5)),
)


def row(eps: float, delta: float, q: float, steps: int, m: int) -> str:
    """One row of the table."""
    plan, start = dm.Identity(steps), time.process_time()
    users = dm.calibrate_sigma(
        dm.Mechanism(plan, dm.Poisson(q), unit=dm.Unit.USER), eps, delta
    ).sigma
    examples = dm.calibrate_sigma(
        plan, eps, delta, participation=dm.Poisson(q, max_examples_per_user=m)
    ).sigma
    # (eps, delta) for one example is (m eps, delta (e^(m eps) - 1) / (e^eps - 1)) for m of them.
    part = eps / m
    group = dm.calibrate_sigma(
        plan,
        part,
        delta * math.expm1(part) / math.expm1(eps),
        participation=dm.Poisson(q),
    ).sigma
    seconds = time.process_time() - start
    return f"| {m} | {users:.3f} | {examples / m:.3f} | {group / m:.3f} | {seconds:.1f} |"


def main() -> None:
    """Print the tables."""
    for eps, delta, q, steps, counts in PLANS:
        plan = f"eps {eps:g}, delta {delta:g}, q {q:g}, {steps} steps"
        print(
            f"| m, {plan} | users are sampled | examples are sampled | group privacy | seconds |"
        )
        print("|---|---|---|---|---|")
        for m in counts:
            print(row(eps, delta, q, steps, m))


if __name__ == "__main__":
    main()
