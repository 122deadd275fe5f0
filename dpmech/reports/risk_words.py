"""What a privacy profile says, as sentences for people who do not know eps, and the same numbers as data."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from dpmech.engines import PrivacyProfile, Progress
from dpmech.mechanism import Adjacency, Unit
from dpmech.numerics import Bounds, percent, product_up, typed, up

__all__ = ["Finding", "findings"]

_DIGITS = 3


@dataclasses.dataclass(frozen=True)
class _Subject:
    """Whom sentences are about, as parts of them.

    Attributes:
        unused: those that an attack suspects wrongly.
        rest: the others.
        used: the same by themselves.
        secret: what is guessed of one of them.
        hidden: what noise hides.
        mover: what makes the difference that it hides.
        record: what would be rebuilt of one.
    """

    unused: str
    rest: str
    used: str
    secret: str
    hidden: str
    mover: str
    record: str


_PRESENT = {
    Unit.EXAMPLE: _Subject(
        unused="examples that were not used",
        rest="those that were",
        used="used examples",
        secret="an example was used",
        hidden="an example",
        mover="the example",
        record="a record",
    ),
    Unit.USER: _Subject(
        unused="users whose data were not used",
        rest="those whose data were",
        used="users whose data were used",
        secret="a user's data were used",
        hidden="a user",
        mover="the user",
        record="a user's data",
    ),
}
# Neighbours have the same number of examples: one is in the place of another.
_EXCHANGED = {
    Unit.EXAMPLE: _Subject(
        unused="examples in whose place another one was used",
        rest="those that were used",
        used="used examples",
        secret="one example was used and not a certain other one in its place",
        hidden="which of two examples was used",
        mover="their exchange",
        record="a record",
    ),
    Unit.USER: _Subject(
        unused="users in whose place another one's data were used",
        rest="those whose data were used",
        used="users whose data were used",
        secret="one user's data were used and not a certain other one's in their place",
        hidden="whose data were used, of two users,",
        mover="their exchange",
        record="a user's data",
    ),
}


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
        priors: how likely an example, or a user's data, was used, before.
        baselines: chances of guessing a record without the release.
        tail: what mu leaves out, in delta; None for no mu.
        report: as above.

    Raises:
        InvalidParameterError: on a rate, prior, baseline or tail out of range.
        NumericalError: where a number could not be bounded.
    """
    found: list[Finding] = []
    about = (_EXCHANGED if known.adjacency is Adjacency.REPLACE_ONE else _PRESENT)[known.unit]

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
            f"An attack that wrongly suspects {percent(fpr)} % of the {about.unused} finds at "
            f"most {_share(best.upper)} of {about.rest}.",
        )
    report("advantage")
    gain = known.advantage
    add(
        "advantage",
        {},
        gain,
        f"At any rate of false suspicions, the share of {about.used} that an attack finds is at most "
        f"{_share(gain.upper, 'percentage points')} above it.",
    )
    for prior in priors:
        report(f"guesses at a prior of {typed(prior)}")
        right = known.bayes_success(prior)
        add(
            "bayes_success",
            {"prior": prior},
            right,
            f"Who takes it for {percent(prior)} % likely beforehand that {about.secret} is right about "
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
            f"Who would guess {about.record} with probability {typed(baseline)} without the release "
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
        f"But for {typed(tail)} in probability it hides {about.hidden} as well as one number with "
        f"Gaussian noise that {about.mover} moves by {up(mu.upper, _DIGITS)} standard deviations (mu).",
    )
    return found


def _share(value: float, unit: str = "%") -> str:
    """In per cent, rounded up."""
    return f"{up(min(100.0, product_up(100.0, value)), _DIGITS)} {unit}"
