"""The noise-share paper, tables of training runs: only their arithmetic can be checked here."""

from collections.abc import Callable

from verification.harness.verdict import Verdict, judged_arithmetic, statement

PAPER = "noise_share"

# Differences and ratios that the text draws from its tables, with the last printed digit.
DERIVED = (
    (5.62e-7 / 5.58e-7, 1.0072, 1e-4),
    (56.73 - 56.32, 0.41, 0.005),
    (56.10 - 56.32, -0.22, 0.005),
    (54.16 - 56.32, -2.16, 0.005),
    (54.79 + 1.57, 56.36, 0.005),
)


def spread(gain: float, deviation: float) -> float:
    """A difference in standard deviations."""
    return gain / deviation


@statement("ov.tables", paper=PAPER, expected="UNVERIFIABLE")
def tables(*, claim: Callable[[float, float], float] = spread) -> Verdict:
    """BLEU, accuracies, seeds and the Muon cosine of Tables 1 to 3: the authors' training runs."""
    worst = max(abs(value - printed) / allowed for value, printed, allowed in DERIVED)
    # +0.41 with a spread of 0.24 is 1.7 standard deviations (the text says about 1.5).
    worst = max(worst, abs(claim(0.41, 0.24) - 1.7) / 0.05)
    return Verdict(
        judged_arithmetic(worst, 1.0),
        "arithmetic of printed figures, in units of the last digit",
        len(DERIVED) + 1,
        worst,
        "needs the authors' training runs; arithmetic agrees, but Table 1 says 3 seeds and its text 2 to 3",
    )


FLIPS: dict[str, Callable[[], Verdict]] = {"ov.tables": lambda: tables(claim=lambda gain, _: gain)}
