"""Table 4 of the DP-lambda-CGD paper, amplified columns: the long check, run with --full.

It uses dpmech's accountants, which have oracles of their own in the tests; what is checked here is the
paper's table.
"""

import concurrent.futures

import dpmech as dm
from verification._verdict import Verdict, statement

PAPER = "lambda_cgd"
EPS = (8.0, 4.0, 2.0, 1.0, 0.5, 0.25)
N, BINS, DELTA = 3900, 390, 1e-5

# Balls-in-Bins rows as printed, in the order of EPS.
PRINTED: dict[tuple[str, float], tuple[float, ...]] = {
    ("cgd", 0.975): (9.33, 14.03, 21.45, 36.40, 68.37, 125.69),
    ("cgd", 0.95): (10.27, 15.28, 21.45, 31.70, 56.75, 103.44),
    ("cgd", 0.9): (13.25, 18.42, 24.73, 33.66, 54.33, 97.73),
    ("bisr", 2): (30.52, 40.58, 49.44, 58.16, 71.20, 105.09),
    ("bisr", 4): (21.00, 27.97, 34.87, 42.50, 58.27, 98.52),
    ("bisr", 16): (11.50, 15.75, 21.10, 20.25, 52.81, 96.45),
    ("bisr", 64): (6.81, 9.87, 15.92, 28.80, 53.89, 101.90),
    ("bsr", 2): (39.65, 51.87, 62.97, 74.14, 88.33, 116.43),
    ("bsr", 4): (29.29, 39.32, 48.13, 57.03, 70.47, 104.90),
    ("bsr", 16): (16.88, 22.41, 28.59, 36.78, 55.03, 97.09),
    ("bsr", 64): (9.62, 13.32, 18.88, 29.34, 52.16, 97.51),
}
PRINTED_POISSON = (21.82, 26.27, 31.68, 40.10, 59.17, 100.27)
# BISR(16) at eps = 1 prints less than at eps = 2, which is impossible.
MISPRINT = ("bisr", 16, 1.0)


def strategy(family: str, parameter: float) -> dm.Strategy:
    """The strategy of a row."""
    if family == "cgd":
        return dm.LambdaCGD(N, parameter)
    kind = dm.InverseSquareRoot if family == "bisr" else dm.SquareRoot
    return kind(N, int(parameter))


def amplified_rmse(case: tuple[str, float, float]) -> float:
    """RMSE at the calibrated sigma; the middle of its interval, not the safe end."""
    family, parameter, eps = case
    chosen = strategy(family, parameter)
    cal = dm.calibrate_sigma(
        chosen, eps, DELTA, participation=dm.BallsInBins(BINS), method=dm.Importance(rel_error=0.03), rng=2026
    )
    return cal.rmse()


@statement("cgd.tab4_amp", paper=PAPER, expected="CONDITIONAL", full=True)
def table_4_amplified() -> Verdict:
    """Amplified RMSE within 3.5 % of print, but for one misprint; the DP-SGD row by Poisson within 1 %."""
    cases = [(family, parameter, eps) for family, parameter in PRINTED for eps in EPS]
    with concurrent.futures.ProcessPoolExecutor(2) as pool:
        values = dict(zip(cases, pool.map(amplified_rmse, cases), strict=True))
    worst, misprint = 0.0, 0.0
    for (family, parameter, eps), value in values.items():
        deviation = abs(value / PRINTED[family, parameter][EPS.index(eps)] - 1.0)
        if (family, parameter, eps) == MISPRINT:
            misprint = deviation
        else:
            worst = max(worst, deviation)
    poisson = 0.0
    for eps, printed in zip(EPS, PRINTED_POISSON, strict=True):
        cal = dm.calibrate_sigma(dm.Identity(N), eps, DELTA, participation=dm.Poisson(1.0 / BINS))
        poisson = max(poisson, abs(cal.rmse() / printed - 1.0))
    holds = worst <= 0.035 and poisson <= 0.01 and misprint > 0.3
    return Verdict(
        "CONDITIONAL" if holds else "REFUTED",
        "importance sampling; Poisson by PLD; relative",
        len(cases) + len(EPS),
        max(worst, poisson),
        f"BISR(16) at eps = 1 prints 20.25, is {values[MISPRINT]:.2f}",
    )
