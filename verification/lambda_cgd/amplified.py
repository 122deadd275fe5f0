"""Table 4 of the DP-lambda-CGD paper, amplified columns: long checks, run with --full.

They use dpmech's accountants, which have oracles of their own in the tests; what is checked here is the
paper's table.
"""

import concurrent.futures
from collections.abc import Callable

import dpmech as dm
from verification.harness.verdict import Verdict, judged_condition, judged_erratum, statement
from verification.lambda_cgd.printed_table import BINS, DELTA, EPS, TABLE, N

PAPER = "lambda_cgd"
Case = tuple[str, float, float]

ROWS = [row for row in TABLE if row[0] in {"CGD", "BISR", "BSR"} and row[1] != BINS]
# Prints less at eps = 1 than at eps = 2, which is impossible; what must have been meant.
MISPRINT, MEANT = ("BISR", 16, 1.0), 30.25


def printed(case: Case) -> float:
    """A cell of the table, with its one misprint mended."""
    family, parameter, eps = case
    return MEANT if case == MISPRINT else TABLE[family, parameter][1 + EPS.index(eps)]


def strategy(family: str, parameter: float) -> dm.Strategy:
    """The strategy of a row; BandInvMF with two bands is lambda-CGD at its best lambda."""
    if family in {"CGD", "BandInvMF"}:
        return dm.LambdaCGD(N, 0.97756 if family == "BandInvMF" else parameter)
    if family == "DP-SGD":
        return dm.Identity(N)
    kind = dm.InverseSquareRoot if family == "BISR" else dm.SquareRoot
    return kind(N, int(parameter))


def amplified_rmse(case: Case) -> float:
    """RMSE at the calibrated sigma; the middle of its interval, not the safe end."""
    family, parameter, eps = case
    cal = dm.calibrate_sigma(
        strategy(family, parameter),
        eps,
        DELTA,
        participation=dm.BallsInBins(BINS),
        method=dm.Importance(rel_error=0.03),
        rng=2026,
    )
    return cal.rmse()


def poisson_rmse(eps: float) -> float:
    """The DP-SGD row: RMSE of independent noise under Poisson sampling."""
    return dm.calibrate_sigma(dm.Identity(N), eps, DELTA, participation=dm.Poisson(1.0 / BINS)).rmse()


def planted_rmse(case: Case) -> float:
    """A wrong oracle, for the test that sees the verdict change."""
    return 1.05 * printed(case)


def agreeing_rmse(case: Case) -> float:
    """The oracle that would agree with every cell."""
    return printed(case)


@statement("cgd.tab4_amp", paper=PAPER, expected="CONDITIONAL", full=True)
def table_4_amplified(
    *,
    rmse: Callable[[Case], float] = amplified_rmse,
    poisson: Callable[[float], float] = poisson_rmse,
) -> Verdict:
    """Amplified RMSE of lambda-CGD, BISR and BSR within 3.5 % of print, of DP-SGD within 1 %.

    Condition: the DP-SGD row is Poisson sampling, although the caption says Balls-in-Bins.
    """
    cases: list[Case] = [(*row, eps) for row in ROWS for eps in EPS]
    bins: Case = ("DP-SGD", 0, 8.0)
    with concurrent.futures.ProcessPoolExecutor(2) as pool:
        values = dict(zip([*cases, bins], pool.map(rmse, [*cases, bins]), strict=True))
    inside = max(abs(values[case] / printed(case) - 1.0) for case in cases) / 0.035
    sgd = max(abs(poisson(eps) / printed(("DP-SGD", 0, eps)) - 1.0) for eps in EPS) / 0.01
    outside = abs(values[bins] / printed(bins) - 1.0) / 0.01
    return Verdict(
        judged_condition(max(inside, sgd), outside, 1.0),
        "importance sampling (3.5 %), Poisson by PLD (1 %); in tolerances",
        len(cases) + len(EPS) + 1,
        max(inside, sgd),
        f"needs Poisson sampling for DP-SGD: Balls-in-Bins gives {values[bins]:.1f} at eps = 8, printed "
        f"21.82; BISR(16) at eps = 1 is {values[MISPRINT]:.2f}, so that 20.25 stands for 30.25",
    )


@statement("cgd.tab4_amp_bandinv2", paper=PAPER, expected="NOT REPRODUCED", full=True)
def table_4_amplified_inverse(*, rmse: Callable[[Case], float] = amplified_rmse) -> Verdict:
    """Amplified row of BandInvMF with p = 2, which is lambda-CGD at lambda = 0.97756."""
    cases: list[Case] = [("BandInvMF", 2, eps) for eps in EPS]
    near: list[Case] = [("CGD", 0.975, eps) for eps in EPS]
    with concurrent.futures.ProcessPoolExecutor(2) as pool:
        values = dict(zip([*cases, *near], pool.map(rmse, [*cases, *near]), strict=True))
    deviation = max(abs(values[case] / printed(case) - 1.0) for case in cases)
    # The row of lambda = 0.975 agrees with print.
    corrected = max(abs(values[case] / printed(case) - 1.0) for case in near)
    ours = "/".join(f"{values[case]:.1f}" for case in cases)
    theirs = "/".join(f"{printed(case):.1f}" for case in cases)
    return Verdict(
        judged_erratum(deviation, corrected, 0.035, word="NOT REPRODUCED"),
        "importance sampling, relative",
        len(cases) + len(near),
        deviation,
        f"{ours}, printed {theirs}, while its neighbour at lambda = 0.975 agrees within {corrected:.1%}",
    )


FLIPS: dict[str, Callable[[], Verdict]] = {
    "cgd.tab4_amp": lambda: table_4_amplified(rmse=planted_rmse, poisson=lambda _: 1.0),
    "cgd.tab4_amp_bandinv2": lambda: table_4_amplified_inverse(rmse=agreeing_rmse),
}
