"""Table 4 of the DP-lambda-CGD paper, amplified columns: long checks, run with --full.

They use dpmech's accountants, which have oracles of their own in the tests; what is checked here is the
paper's table.
"""

import concurrent.futures
import math
from collections.abc import Callable
from functools import cache

import numpy as np

import dpmech as dm
from verification.harness.verdict import Verdict, judged, judged_erratum, statement
from verification.lambda_cgd.printed_table import BINS, DELTA, EPS, TABLE, N
from verification.oracles import lambda_cgd as oracle

PAPER = "lambda_cgd"
Case = tuple[str, float, float]

# Importance sampling to 3 %, beside the authors' own Monte Carlo; Poisson by PLD.
SAMPLED, EXACT = 0.035, 0.004
ROWS = [row for row in TABLE if row[0] in {"CGD", "BISR", "BSR"} and row[1] != BINS]
# Prints less at eps = 1 than at eps = 2, which is impossible; what must have been meant.
MISPRINT, MEANT = ("BISR", 16, 1.0), 30.25


def printed(case: Case) -> float:
    """A cell of the table, with its one misprint mended."""
    family, parameter, eps = case
    return MEANT if case == MISPRINT else TABLE[family, parameter][1 + EPS.index(eps)]


@cache
def fitted(family: str, bands: int) -> np.ndarray:
    """The coefficients that the first column's fit finds: of C^-1 for BandInvMF, else of C."""
    plan = oracle.Plan()
    if family == "BLT":
        lengths = np.geomspace(2.0, plan.n / 8.0, 4)[1:]
        start = np.concatenate([np.log(lengths), np.full(3, math.log(0.4))])
        return oracle.fit_buffers(plan, start).coefs
    inverse = family == "BandInvMF"
    starts = oracle.bandinv_start(bands) if inverse else oracle.bandmf_start(bands)
    # With p = b eq. 3 holds, and Balls-in-Bins has a dominating pair, only for C >= 0: all of it.
    weight, floor, steps = (1e3, 2e-5, 100) if inverse and bands == BINS else (0.0, 0.0, 4000)
    found = oracle.fit(bands, plan, inverse=inverse, starts=starts, weight=weight, floor=floor, steps=steps)
    return found.inverse[:bands] if inverse else found.coefs[:bands]


def strategy(family: str, parameter: float) -> dm.Strategy:
    """The strategy of a row; BandInvMF with two bands is lambda-CGD at its best lambda."""
    if family == "CGD" or (family, parameter) == ("BandInvMF", 2):
        return dm.LambdaCGD(N, 0.97756 if family == "BandInvMF" else parameter)
    if family == "DP-SGD":
        return dm.Identity(N)
    if family in {"BISR", "BSR"}:
        return (dm.InverseSquareRoot if family == "BISR" else dm.SquareRoot)(N, int(parameter))
    kind = dm.BandedInverse if family == "BandInvMF" else dm.BandedToeplitz
    return kind(N, fitted(family, int(parameter)))


def amplified_rmse(case: Case) -> float:
    """RMSE at the calibrated sigma; the middle of its interval, not the safe end."""
    family, parameter, eps = case
    cal = dm.calibrate_sigma(
        strategy(family, parameter),
        eps,
        DELTA,
        participation=dm.BallsInBins(BINS),
        method=dm.methods.Importance(rel_error=0.03),
        rng=2026,
    )
    return cal.rmse()


def poisson_rmse(eps: float) -> float:
    """The DP-SGD row: RMSE of independent noise under Poisson sampling."""
    return dm.calibrate_sigma(dm.Identity(N), eps, DELTA, participation=dm.Poisson(1.0 / BINS)).rmse()


def agreeing_rmse(case: Case) -> float:
    """The oracle that would agree with every cell."""
    return printed(case)


def off_in_one_cell(case: Case) -> float:
    """The oracle that disagrees with one cell of every table by 5 %."""
    planted = {("BSR", 16, 2.0), ("BISR", BINS, 2.0), ("BandMF", 16, 2.0), ("BLT", 0, 2.0)}
    return printed(case) * (1.05 if case in planted else 1.0)


def printed_poisson(eps: float) -> float:
    """The DP-SGD row as printed."""
    return printed(("DP-SGD", 0, eps))


def computed(rmse: Callable[[Case], float], cases: list[Case]) -> dict[Case, float]:
    """Every cell, on two processes."""
    with concurrent.futures.ProcessPoolExecutor(2) as pool:
        return dict(zip(cases, pool.map(rmse, cases), strict=True))


def deviation(values: dict[Case, float]) -> float:
    """The largest relative deviation from print."""
    return max(abs(value / printed(case) - 1.0) for case, value in values.items())


def cells(*families: str) -> list[Case]:
    """All amplified cells of these rows."""
    return [(*row, eps) for row in TABLE if row[0] in families for eps in EPS]


def listing(values: dict[Case, float], *, families: bool) -> str:
    """A sentence with each computed cell and the printed one, by family or number of bands."""
    rows: dict[tuple[str, float], list[str]] = {}
    for case, value in values.items():
        rows.setdefault(case[:2], []).append(f"{value:.2f} ({printed(case):.2f})")
    listed = "; ".join(
        f"{family if families else f'p = {parameter:g}'}: " + ", ".join(cells_of)
        for (family, parameter), cells_of in rows.items()
    )
    return f"The printed values are in parentheses. {listed}."


@statement("cgd.tab4_amp", paper=PAPER, full=True)
def table_4_amplified(
    *,
    rmse: Callable[[Case], float] = amplified_rmse,
    poisson: Callable[[float], float] = printed_poisson,
    truth: Callable[[float], float] = poisson_rmse,
) -> Verdict:
    """Amplified RMSE of lambda-CGD, BISR and BSR with p < b within 3.5 % of print, of DP-SGD within 0.4 %.

    The DP-SGD row is under Poisson sampling, as Section 6 says.
    """
    sampled: list[Case] = [(*row, eps) for row in ROWS for eps in EPS]
    bins: Case = ("DP-SGD", 0, 8.0)
    values = computed(rmse, [*sampled, bins])
    in_bins = values.pop(bins)
    sgd = max(abs(truth(eps) / poisson(eps) - 1.0) for eps in EPS)
    worst = max(deviation(values) / SAMPLED, sgd / EXACT)
    return Verdict(
        judged(worst, 1.0),
        "The check recomputes the cells, by importance sampling for Balls-in-Bins (tolerance 3.5 %) "
        "and from the privacy loss distribution for Poisson sampling (0.4 %). Deviations are in units "
        "of the tolerance.",
        len(sampled) + len(EPS),
        worst,
        f"BISR(16) has {values[MISPRINT]:.2f} at eps = 1, so 20.25 is a misprint of 30.25. Under "
        f"Balls-in-Bins DP-SGD would have {in_bins:.1f} at eps = 8.",
    )


@statement("cgd.tab4_amp_full", paper=PAPER, full=True)
def table_4_amplified_full_bands(*, rmse: Callable[[Case], float] = amplified_rmse) -> Verdict:
    """Amplified RMSE of BISR and BSR with p = b within 3.5 % of print."""
    values = computed(rmse, [(family, BINS, eps) for family in ("BISR", "BSR") for eps in EPS])
    worst = deviation(values)
    return Verdict(
        judged(worst, SAMPLED),
        "The check recomputes the cells by importance sampling. Deviations are relative.",
        len(values),
        worst,
        listing(values, families=True),
    )


@statement("cgd.tab4_amp_bandmf", paper=PAPER, full=True)
def table_4_amplified_banded(*, rmse: Callable[[Case], float] = amplified_rmse) -> Verdict:
    """Amplified RMSE of BandMF, with the fits of the first column, within 3.5 % of print."""
    values = computed(rmse, cells("BandMF"))
    worst = deviation(values)
    return Verdict(
        judged(worst, SAMPLED),
        "The check fits the strategies and recomputes the cells by importance sampling. Deviations "
        "are relative.",
        len(values),
        worst,
        listing(values, families=False),
    )


@statement("cgd.tab4_amp_blt", paper=PAPER, full=True)
def table_4_amplified_buffers(*, rmse: Callable[[Case], float] = amplified_rmse) -> Verdict:
    """Amplified RMSE of BLT, with the fit of the first column, within 3.5 % of print."""
    values = computed(rmse, cells("BLT"))
    worst = deviation(values)
    return Verdict(
        judged(worst, SAMPLED),
        "The check fits a BLT with 3 buffers and recomputes the cells by importance sampling. "
        "Deviations are relative.",
        len(values),
        worst,
        listing(values, families=True),
    )


@statement("cgd.tab4_amp_bandinv2", paper=PAPER, expected="NOT REPRODUCED", full=True)
def table_4_amplified_inverse(*, rmse: Callable[[Case], float] = amplified_rmse) -> Verdict:
    """Amplified row of BandInvMF with p = 2, which is lambda-CGD at lambda = 0.97756.

    Tried: that strategy, and its neighbour at lambda = 0.975, which agrees with the row printed for it.
    """
    cases: list[Case] = [("BandInvMF", 2, eps) for eps in EPS]
    near: list[Case] = [("CGD", 0.975, eps) for eps in EPS]
    values = computed(rmse, [*cases, *near])
    found = deviation({case: values[case] for case in cases})
    corrected = deviation({case: values[case] for case in near})
    ours = "/".join(f"{values[case]:.1f}" for case in cases)
    theirs = "/".join(f"{printed(case):.1f}" for case in cases)
    return Verdict(
        judged_erratum(found, corrected, SAMPLED, word="NOT REPRODUCED"),
        "The check recomputes both rows by importance sampling. Deviations are relative.",
        len(cases) + len(near),
        found,
        f"The recomputed values are {ours}, and the printed ones are {theirs}. The neighbouring "
        f"strategy at lambda = 0.975 agrees within {corrected:.1%}.",
    )


@statement("cgd.tab4_amp_bandinv", paper=PAPER, expected="NOT REPRODUCED", full=True)
def table_4_amplified_inverses(*, rmse: Callable[[Case], float] = amplified_rmse) -> Verdict:
    """Amplified rows of BandInvMF with p = 4, 16, 64 and b.

    Tried: the fits of the first column, for p = b with C >= 0. The row of BISR with p = 64 shows that the
    route agrees.
    """
    parameters = [parameter for family, parameter in TABLE if family == "BandInvMF" and parameter != 2]
    cases: list[Case] = [("BandInvMF", parameter, eps) for parameter in parameters for eps in EPS]
    near: list[Case] = [("BISR", 64, eps) for eps in EPS]
    values = computed(rmse, [*cases, *near])
    found = deviation({case: values[case] for case in cases})
    corrected = deviation({case: values[case] for case in near})
    return Verdict(
        judged_erratum(found, corrected, SAMPLED, word="NOT REPRODUCED"),
        "The check fits the strategies and recomputes the cells by importance sampling. Deviations "
        "are relative.",
        len(cases) + len(near),
        found,
        listing({case: values[case] for case in cases}, families=False)
        + f" BISR with p = 64 agrees with its printed row within {corrected:.1%}.",
    )


FLIPS: dict[str, Callable[[], Verdict]] = {
    "cgd.tab4_amp": lambda: table_4_amplified(rmse=off_in_one_cell, truth=printed_poisson),
    "cgd.tab4_amp_full": lambda: table_4_amplified_full_bands(rmse=off_in_one_cell),
    "cgd.tab4_amp_bandmf": lambda: table_4_amplified_banded(rmse=off_in_one_cell),
    "cgd.tab4_amp_blt": lambda: table_4_amplified_buffers(rmse=off_in_one_cell),
    "cgd.tab4_amp_bandinv2": lambda: table_4_amplified_inverse(rmse=agreeing_rmse),
    "cgd.tab4_amp_bandinv": lambda: table_4_amplified_inverses(rmse=agreeing_rmse),
}


def with_agreeing_cells(poisson: Callable[[float], float]) -> Verdict:
    """The check of the table where only the DP-SGD row is in question."""
    return table_4_amplified(rmse=agreeing_rmse, poisson=poisson)


# The sampled cells agree to 3.5 % only, so that 1 % does not turn their verdicts; the entries say so.
NUDGES: dict[str, dict[str, Callable[[float], Verdict]]] = {
    "cgd.tab4_amp": {
        "DP-SGD": lambda factor: with_agreeing_cells(lambda eps: factor * printed_poisson(eps)),
    },
}
