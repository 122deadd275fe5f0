"""What a privacy profile says, as sentences for people who do not know eps, and the same numbers as data."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from dpmech.accounting import PrivacyProfile, Progress
from dpmech.numerics import Bounds, percent, product_up, typed, up

__all__ = ["Finding", "findings"]

_DIGITS = 3


@dataclasses.dataclass(frozen=True)
class Finding:
    """One number.

    Attributes:
        name: of the quantity.
        given: what it was asked for.
        bounds: its value.
        words: one sentence, whose numbers are rounded to the safe side.
    """

    name: str
    given: dict[str, float]
    bounds: Bounds
    words: str

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        ends = {"lower": self.bounds.lower, "upper": self.bounds.upper}
        return {"name": self.name, **self.given, **ends, "words": self.words}


def findings(
    known: PrivacyProfile,
    *,
    rates: Sequence[float],
    priors: Sequence[float],
    baselines: Sequence[float],
    tail: float | None,
    report: Progress,
) -> list[Finding]:
    """Every number that was asked for; `report` is told of each before and "" after it.

    Args:
        known: the profile.
        rates: false-positive rates.
        priors: how likely an example was used, before.
        baselines: chances of guessing a record without the release.
        tail: what mu leaves out, in delta; None for no mu.
        report: as above.

    Raises:
        InvalidParameterError: on a rate, prior, baseline or tail out of range.
        NumericalError: where a number could not be bounded.
    """
    found: list[Finding] = []

    def add(name: str, given: dict[str, float], bounds: Bounds, words: str) -> None:
        found.append(Finding(name, given, bounds, words))
        report("")

    for fpr in rates:
        report(f"attacks at a false-positive rate of {typed(fpr)}")
        best = known.tpr(fpr)
        add(
            "tpr",
            {"fpr": fpr},
            best,
            f"An attack that wrongly suspects {percent(fpr)} % of the examples that were not used finds at "
            f"most {_share(best.upper)} of those that were.",
        )
    report("advantage")
    gain = known.advantage
    add(
        "advantage",
        {},
        gain,
        "At any rate of false suspicions, the share of used examples that an attack finds is at most "
        f"{_share(gain.upper, 'percentage points')} above it.",
    )
    for prior in priors:
        report(f"guesses at a prior of {typed(prior)}")
        right = known.bayes_success(prior)
        add(
            "bayes_success",
            {"prior": prior},
            right,
            f"Who takes it for {percent(prior)} % likely beforehand that an example was used is right about "
            f"it at most {_share(right.upper)} of the time, and {_share(max(prior, 1.0 - prior))} without "
            "the release.",
        )
    for baseline in baselines:
        report(f"reconstruction at a baseline of {typed(baseline)}")
        rebuilt = known.reconstruction(baseline)
        add(
            "reconstruction",
            {"baseline": baseline},
            rebuilt,
            f"Who would guess a record with probability {typed(baseline)} without the release "
            f"reconstructs it with probability at most {up(rebuilt.upper, _DIGITS)}.",
        )
    if tail is None:
        return found
    report("Gaussian mu")
    mu = known.gaussian_mu(tail)
    add(
        "gaussian_mu",
        {"tail": tail},
        mu,
        f"But for {typed(tail)} in probability it hides an example as well as one number with Gaussian "
        f"noise that the example moves by {up(mu.upper, _DIGITS)} standard deviations (mu).",
    )
    return found


def _share(value: float, unit: str = "%") -> str:
    """In per cent, rounded up."""
    return f"{up(min(100.0, product_up(100.0, value)), _DIGITS)} {unit}"
