"""The noise-share paper, tables and figures of training runs: only their arithmetic can be checked here."""

import itertools
from collections.abc import Callable

from verification.harness.nudging import nudge
from verification.harness.verdict import Verdict, judged_arithmetic, statement

PAPER = "noise_share"

# Table 1: floor of DP-AdamBC and its BLEU, then the control with a floor only.
FLOORS = ((1e-8, 55.8), (1e-7, 54.9), (1e-6, 52.5))
BASELINE, CONTROL = (55.8, 0.3), (52.6, 0.6)
# Table 3: BLEU by correlation for each workload, the reference last.
CORRELATED = {
    "Adam, beta_1 = 0.9": {0.0: 55.67, 0.9: 54.35, 0.95: 54.10},
    "beta_1 = 0": {0.0: 56.01, 0.9: 54.35, 0.95: 54.26, 0.99: 52.19},
    "plain SGD": {0.0: 55.70, 0.95: 55.35},
}
REFERENCE = 56.22

# Differences and ratios that the text draws from its tables, and half of the last printed digit.
DERIVED = {
    "gain of the gentlest floor": (56.73 - 56.32, 0.41, 0.005),
    "loss at 1e-11": (56.10 - 56.32, -0.22, 0.005),
    "loss at 1e-12": (54.16 - 56.32, -2.16, 0.005),
}


@statement("ov.tables", paper=PAPER, expected="UNVERIFIABLE")
def tables(*, claim: tuple[float, ...] = (0.41, -0.22, -2.16)) -> Verdict:
    """BLEU, accuracies, seeds and the Muon cosine of Tables 1 to 3: the authors' training runs."""
    worst = max(
        abs(value - printed) / allowed
        for (value, _, allowed), printed in zip(DERIVED.values(), claim, strict=True)
    )
    spread = claim[0] / 0.24
    return Verdict(
        judged_arithmetic(worst, 1.0),
        "The check recomputes the arithmetic of the printed values. Deviations are in units of half "
        "the last digit.",
        len(DERIVED),
        worst,
        f"The printed differences agree. A gain of 0.41 is {spread:.1f} times the standard deviation "
        "of 0.24, printed as about 1.5. Table 1 states 3 seeds, where its text states 2 to 3.",
    )


@statement("ov.fig1", paper=PAPER, expected="UNVERIFIABLE")
def figure_1(*, claim: float = 1.007) -> Verdict:
    """RoBERTa on MNLI, B = 64, eps = 3: the logged Phi / median(v_hat) rides at 1."""
    worst = abs(5.62e-7 / 5.58e-7 - claim)
    return Verdict(
        judged_arithmetic(worst, 5e-4),
        "The check computes the ratio of the two printed medians. Deviations are absolute.",
        1,
        worst,
        "The printed Phi and median give the printed ratio.",
    )


@statement("ov.fig2", paper=PAPER, expected="UNVERIFIABLE")
def figure_2(*, claim: tuple[float, ...] = (55.8, 54.9, 52.5)) -> Verdict:
    """BLEU follows the floor, meets the control with a floor only, and never exceeds DP-Adam's band."""
    worst = max(abs(printed - known) for (_, known), printed in zip(FLOORS, claim, strict=True))
    falls = all(later < earlier for earlier, later in itertools.pairwise(claim))
    inside = abs(claim[-1] - CONTROL[0]) < CONTROL[1] and max(claim) <= sum(BASELINE)
    return Verdict(
        judged_arithmetic(worst if falls and inside else 1.0, 0.05),
        "The check compares the numbers in the text with Table 1. Deviations are absolute.",
        len(FLOORS),
        worst,
        "The numbers of the caption and of Table 1 agree.",
    )


@statement("ov.fig3", paper=PAPER, expected="UNVERIFIABLE")
def figure_3(*, passed: tuple[float, ...] = (56.10, 54.16)) -> Verdict:
    """DP-AdamBC leads at step 40, and DP-Adam (56.32) is ahead of the floors 1e-11 and 1e-12 at step 80."""
    worst = max(value - 56.32 for value in passed)
    return Verdict(
        judged_arithmetic(worst, 0.0),
        "The check compares the printed BLEU at step 80. The deviation is the lead over DP-Adam.",
        len(passed),
        worst,
        "DP-Adam passes DP-AdamBC with two of the three floors; the text states that DP-AdamBC with the "
        "third floor stays ahead by 0.41.",
    )


@statement("ov.fig4", paper=PAPER, expected="UNVERIFIABLE")
def figure_4(
    *, claim: Callable[[dict[float, float]], bool] = lambda row: row[0.0] == max(row.values())
) -> Verdict:
    """Correlated noise never beats independent noise, and an amplified DP-Adam is above them all."""
    failed = sum(not claim(row) for row in CORRELATED.values())
    failed += sum(value >= REFERENCE for row in CORRELATED.values() for value in row.values())
    return Verdict(
        judged_arithmetic(float(failed), 0.5),
        "The check counts the rows of Table 3 that contradict the caption.",
        len(CORRELATED) + 9,
        float(failed),
        "Table 3 agrees with the caption.",
    )


FLIPS: dict[str, Callable[[], Verdict]] = {
    "ov.tables": lambda: tables(claim=(0.42, -0.22, -2.16)),
    "ov.fig1": lambda: figure_1(claim=1.07),
    "ov.fig2": lambda: figure_2(claim=(55.8, 54.9, 53.5)),
    "ov.fig3": lambda: figure_3(passed=(56.73, 56.10, 54.16)),
    "ov.fig4": lambda: figure_4(claim=lambda row: row[0.0] == min(row.values())),
}
NUDGES = {
    "ov.tables": {"differences": nudge(tables)},
    "ov.fig1": {"ratio": nudge(figure_1)},
    "ov.fig2": {"BLEU": nudge(figure_2)},
}
