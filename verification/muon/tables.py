"""The DP-Muon paper: Tables 1 and 2 from the seeds of Tables 4 and 5."""

from collections.abc import Callable

import numpy as np
from scipy import stats

from verification.harness.nudging import nudge
from verification.harness.verdict import Verdict, judged, judged_arithmetic, statement

PAPER = "muon"

# Tables 4 and 5: three seeds of (NLL, BLEU, ROUGE-L).
SEEDS = {
    ("E2E", "DP-SGD"): (
        (0.623912, 3.4213, 28.5357),
        (0.623665, 3.3772, 28.5479),
        (0.623515, 3.4578, 28.5667),
    ),
    ("E2E", "DP-Adam"): (
        (0.497869, 19.3435, 32.1121),
        (0.492847, 18.0204, 31.8323),
        (0.497539, 18.0937, 31.8795),
    ),
    ("E2E", "DP-Muon"): (
        (0.457545, 32.6287, 37.7329),
        (0.452549, 33.2230, 37.6692),
        (0.455812, 32.8659, 37.5109),
    ),
    ("E2E", "DP-MuonBC"): (
        (0.449040, 34.7773, 37.4699),
        (0.447836, 34.8611, 37.5768),
        (0.450056, 35.1223, 37.3661),
    ),
    ("DART", "DP-SGD"): (
        (0.628779, 6.1392, 33.1959),
        (0.628669, 6.1306, 33.2128),
        (0.628664, 6.1013, 33.1673),
    ),
    ("DART", "DP-Adam"): (
        (0.473339, 7.4410, 34.4168),
        (0.465946, 7.4820, 34.3734),
        (0.469796, 7.4647, 34.3694),
    ),
    ("DART", "DP-Muon"): (
        (0.452999, 7.4305, 34.4096),
        (0.452771, 7.4226, 34.3905),
        (0.453593, 7.3695, 34.3289),
    ),
    ("DART", "DP-MuonBC"): (
        (0.448216, 7.4511, 34.3969),
        (0.446495, 7.5162, 34.4366),
        (0.443422, 7.5276, 34.4384),
    ),
}

# Tables 1 and 2: (mean, standard deviation) of NLL, BLEU, ROUGE-L.
PRINTED = {
    ("E2E", "DP-SGD"): ((0.6237, 0.0002), (3.42, 0.04), (28.55, 0.02)),
    ("E2E", "DP-Adam"): ((0.4961, 0.0028), (18.49, 0.74), (31.94, 0.15)),
    ("E2E", "DP-Muon"): ((0.4553, 0.0025), (32.91, 0.30), (37.64, 0.11)),
    ("E2E", "DP-MuonBC"): ((0.4490, 0.0011), (34.92, 0.18), (37.47, 0.11)),
    ("DART", "DP-SGD"): ((0.6287, 0.0001), (6.12, 0.02), (33.19, 0.02)),
    ("DART", "DP-Adam"): ((0.4697, 0.0037), (7.46, 0.02), (34.39, 0.03)),
    ("DART", "DP-Muon"): ((0.4531, 0.0004), (7.41, 0.03), (34.38, 0.04)),
    ("DART", "DP-MuonBC"): ((0.4460, 0.0024), (7.50, 0.04), (34.42, 0.02)),
}


def sample_deviation(values: np.ndarray) -> float:
    """Standard deviation with n - 1."""
    return float(np.std(values, ddof=1))


def mean_value(values: np.ndarray) -> float:
    """Mean over the seeds."""
    return float(values.mean())


def welch(dataset: str, one: str, other: str, metric: int) -> float:
    """Two-sided p-value of Welch's test over three seeds."""
    samples = [np.array(SEEDS[dataset, name])[:, metric] for name in (one, other)]
    return float(stats.ttest_ind(*samples, equal_var=False).pvalue)


def against_muon(dataset: str, metric: int) -> float:
    """The p-value of DP-MuonBC against DP-Muon."""
    return welch(dataset, "DP-MuonBC", "DP-Muon", metric)


@statement("muon.tab1_2_4_5", paper=PAPER)
def tables_1_and_2(
    *,
    deviation: Callable[[np.ndarray], float] = sample_deviation,
    mean_of: Callable[[np.ndarray], float] = mean_value,
) -> Verdict:
    """Means and sample deviations over three seeds, in units of the last printed digit."""
    worst, cases = 0.0, 0
    for key, cells in PRINTED.items():
        for metric, (mean, spread) in enumerate(cells):
            values = np.array(SEEDS[key])[:, metric]
            digit = 1e-4 if metric == 0 else 1e-2
            worst = max(worst, abs(mean_of(values) - mean) / digit, abs(deviation(values) - spread) / digit)
            cases += 2
    return Verdict(
        judged(worst, 0.51),
        "The check recomputes the means and standard deviations. Deviations are in units of the last digit.",
        cases,
        worst,
        f"The Welch p-values of DP-MuonBC compared with DP-Muon are {against_muon('E2E', 0):.3f} (NLL) "
        f"and {against_muon('E2E', 1):.4f} (BLEU) on E2E, and {against_muon('DART', 0):.3f} and "
        f"{against_muon('DART', 1):.3f} on DART. For BLEU on DART, DP-MuonBC compared with DP-Adam has "
        f"p = {welch('DART', 'DP-MuonBC', 'DP-Adam', 1):.2f}.",
    )


def order_of_methods() -> tuple[str, ...]:
    """Figure 1, from the lowest final NLL up."""
    return ("DP-MuonBC", "DP-Muon", "DP-Adam", "DP-SGD")


@statement("muon.fig1", paper=PAPER, expected="UNVERIFIABLE")
def figure_1(*, claim: Callable[[], tuple[str, ...]] = order_of_methods) -> Verdict:
    """Figure 1: curves of the evaluation NLL. Its order at the end is that of the means in Tables 4 and 5."""
    wrong = 0
    for dataset in ("E2E", "DART"):
        final = [float(np.array(SEEDS[dataset, name])[:, 0].mean()) for name in claim()]
        wrong += final != sorted(final)
    return Verdict(
        judged_arithmetic(wrong, 0.5),
        "The check compares the order of the means over the seeds.",
        2,
        float(wrong),
        "The final order is that of the tables.",
    )


FLIPS: dict[str, Callable[[], Verdict]] = {
    "muon.tab1_2_4_5": lambda: tables_1_and_2(deviation=lambda values: float(np.std(values))),
    "muon.fig1": lambda: figure_1(claim=lambda: order_of_methods()[::-1]),
}

NUDGES: dict[str, dict[str, Callable[[float], Verdict]]] = {
    "muon.tab1_2_4_5": {
        "means": nudge(tables_1_and_2, "mean_of"),
        "deviations": nudge(tables_1_and_2, "deviation"),
    },
}
