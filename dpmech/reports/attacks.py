"""What a claim allows an attacker, from its privacy profile or from (eps, delta) only."""

import concurrent.futures
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dpmech.calibration import profile
from dpmech.certificates import Certificate
from dpmech.engines import Composition, Curve, PrivacyProfile, Progress
from dpmech.exceptions import DpmechError
from dpmech.mechanism import Adjacency, Unit
from dpmech.numerics import BOUND, Bounds, Guarantee, Provenance, percent, percent_up, typed, up

_SHOWN_DIGITS = 3


@dataclasses.dataclass(frozen=True)
class _Subject:
    """Words for the people, or their data, that sentences are about.

    Attributes:
        unused: those that an attack would find by mistake.
        rest: the others.
        used: the same, used alone.
        secret: what is guessed about one of them.
        hidden: what noise hides.
        mover: what makes the difference that it hides.
        record: what would be reconstructed of one.
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
# Neighbours have the same number of examples: one example replaces another.
_EXCHANGED = {
    Unit.EXAMPLE: dataclasses.replace(
        _PRESENT[Unit.EXAMPLE],
        unused="examples in whose place another one was used",
        rest="those that were used",
        secret="one example was used and not a certain other one in its place",
        hidden="which of two examples was used",
        mover="their exchange",
    ),
    Unit.USER: dataclasses.replace(
        _PRESENT[Unit.USER],
        unused="users in whose place another one's data were used",
        rest="those whose data were used",
        secret="one user's data were used and not a certain other one's in their place",
        hidden="whose data were used, of two users,",
        mover="their exchange",
    ),
}


@dataclasses.dataclass(frozen=True)
class Finding:
    """A number about attacks.

    Attributes:
        name: name of the quantity.
        given: the parameter it was computed for.
        bounds: its value.
        words: one sentence, with conservatively rounded numbers.
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
    """All requested numbers; `report` is called with a line before each and "" after it.

    Args:
        known: the privacy profile.
        rates: false-positive rates.
        priors: prior probabilities that an example, or a user's data, was used.
        baselines: probabilities of guessing a record without the release.
        tail: delta that mu leaves out; None for no mu.
        report: see above.

    Raises:
        InvalidParameterError: if a rate, prior, baseline or tail is out of range.
        NumericalError: if a number could not be bounded.
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
            f"At a false-positive rate of {percent(fpr)} % among {about.unused}, an attack finds at "
            f"most {_share(best.upper)} of {about.rest}.",
        )
    report("advantage")
    gain = known.advantage
    add(
        "advantage",
        {},
        gain,
        f"At any false-positive rate, the share of {about.used} that an attack finds exceeds this rate by at "
        f"most {_share(gain.upper, 'percentage points')}.",
    )
    for prior in priors:
        report(f"guesses at a prior of {typed(prior)}")
        right = known.bayes_success(prior)
        add(
            "bayes_success",
            {"prior": prior},
            right,
            f"With a prior of {percent(prior)} % that {about.secret}, a guess about it is right at most "
            f"{_share(right.upper)} of the time, and {_share(max(prior, 1.0 - prior))} without the release.",
        )
    for baseline in baselines:
        report(f"reconstruction at a baseline of {typed(baseline)}")
        rebuilt = known.reconstruction(baseline)
        add(
            "reconstruction",
            {"baseline": baseline},
            rebuilt,
            f"Anyone who would guess {about.record} with probability {typed(baseline)} without the release "
            f"reconstructs it with probability at most {up(rebuilt.upper, _SHOWN_DIGITS)}.",
        )
    if tail is None:
        return found
    report("Gaussian mu")
    mu = known.gaussian_mu(tail)
    add(
        "gaussian_mu",
        {"tail": tail},
        mu,
        f"Up to a tail of {typed(tail)} in delta, it hides {about.hidden} as well as one number "
        f"with Gaussian noise that {about.mover} changes by {up(mu.upper, _SHOWN_DIGITS)} standard "
        "deviations (mu).",
    )
    return found


def _share(value: float, unit: str = "%") -> str:
    """A fraction in per cent, rounded up."""
    return f"{percent_up(value)} {unit}"


# False-positive rates of reports, and the prior probability that an example was used.
RATES, _PRIOR = (0.01, 0.001), 0.5
# For the plotted curve: number of profile points, and the least delta.
_NODES, _LEAST_DELTA = 40, 1e-7
_REL_ERROR = 0.01


@dataclasses.dataclass(frozen=True)
class Attacks:
    """Numbers about attacks, and their basis.

    Attributes:
        basis: "profile", or "claim" if they follow from (eps, delta) only.
        reason: why there is no profile; empty if there is one.
        guarantee: guarantee of the numbers.
        by: how they were computed, in words.
        findings: one number with its sentence each.
        points: pairs (eps, delta) that the mechanism meets, for the plotted curve.
    """

    basis: str
    reason: str
    guarantee: Guarantee
    by: str
    findings: tuple[Finding, ...]
    points: tuple[tuple[float, float], ...]

    def upper(self, fpr: float) -> float:
        """The largest true-positive rate at one of `RATES`."""
        (found,) = (one.bounds.upper for one in self.findings if one.given == {"fpr": fpr})
        return found


def attacks_of(
    certificate: Certificate,
    *,
    claim_only: bool = False,
    stored: bool = True,
    rng: int | None = None,
    executor: concurrent.futures.Executor | None = None,
    progress: Progress,
) -> Attacks:
    """Compute the numbers from the mechanism's profile; if that is refused, from its (eps, delta).

    **Guarantee:** upper bounds, with the guarantee stated in `guarantee`.

    Args:
        certificate: states mechanism and noise scale.
        claim_only: whether to skip the profile, which takes a minute or more under Balls-in-Bins if the
            certificate does not contain it.
        stored: whether a profile in the certificate may be used: not if the checker left parts of it open.
        rng: random numbers for randomised profiles.
        executor: where samples are drawn.
        progress: called with what is computed.
    """
    reason = "it was not requested"
    if not claim_only:
        try:
            progress("privacy profile")
            known = (certificate.curve if stored else None) or profile(
                certificate.mechanism, certificate.sigma, rel_error=_REL_ERROR, rng=rng, executor=executor
            )
            return _read(known, certificate, progress)
        except (DpmechError, ArithmeticError, MemoryError) as error:
            reason = f"it could not be bounded: {error}"
    eps, delta = certificate.budget.eps, certificate.budget.delta
    alone = PrivacyProfile(
        Composition(curves=((Curve.of_claim(eps, delta), 1),)),
        certificate.guarantee & BOUND,
        Provenance("profile.claim"),
        certificate.adjacency,
        certificate.unit,
    )
    found = findings(alone, rates=RATES, priors=(_PRIOR,), baselines=(), tail=None, report=_silent)
    return Attacks("claim", reason, alone.guarantee, str(alone.by), tuple(found), ((eps, delta),))


def _read(known: PrivacyProfile, certificate: Certificate, progress: Progress) -> Attacks:
    found = findings(known, rates=RATES, priors=(_PRIOR,), baselines=(), tail=None, report=progress)
    progress("trade-off curve")
    last = known.epsilon(min(_LEAST_DELTA, certificate.budget.delta)).upper
    # Denser near 0, where the curve bends.
    nodes = [last * (index / _NODES) ** 1.5 for index in range(_NODES + 1)]
    points = tuple((eps, known.delta(eps).upper) for eps in nodes)
    return Attacks("profile", "", known.guarantee, str(known.by), tuple(found), points)


def power_bounds(points: Sequence[tuple[float, float]], rates: Sequence[float]) -> list[float]:
    """The largest true-positive rates at false-positive rates that pairs (eps, delta) allow, for plotting.

    Each pair, valid in both directions, allows e^eps fpr + delta, and 1 - e^-eps (1 - delta - fpr). Rounding
    is to nearest, which is enough for a figure. Printed numbers are those of `findings`.

    References:
        Kairouz, Oh and Viswanath 2015.
    """
    at = np.asarray(rates, dtype=np.float64)
    best = np.ones(at.size)
    for eps, delta in points:
        # Above this, e^eps overflows float64, and the first bound is trivial.
        grown = math.exp(min(eps, 700.0)) * at + delta
        best = np.minimum(best, np.minimum(grown, 1.0 - math.exp(-eps) * (1.0 - delta - at)))
    return [float(one) for one in np.clip(np.maximum(best, at), 0.0, 1.0)]


def _silent(line: str) -> None:
    del line


_WIDTH, _HEIGHT = 640.0, 390.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 84.0, 16.0, 40.0, 66.0
# First decade of the false-positive rate, and points per decade.
_FIRST_DECADE = -4
_PER_DECADE = 40
_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclasses.dataclass(frozen=True)
class Mark:
    """A labelled point of the picture; x and y in its units."""

    x: float
    y: float
    label: str


@dataclasses.dataclass(frozen=True)
class Picture:
    """What a template draws, in units of the picture.

    Attributes:
        width: total width.
        height: total height.
        frame: left, top, right and bottom of the axes.
        curve: points of the bound.
        beyond: corners of the region that no attack reaches: the curve, closed along the top.
        claim: points of the bound from (eps, delta) only; empty if that is the curve.
        guess: points of guessing at random.
        across: ticks of the horizontal axis.
        upward: ticks of the vertical axis.
        marks: points that the report mentions.
    """

    width: float
    height: float
    frame: tuple[float, float, float, float]
    curve: str
    beyond: str
    claim: str
    guess: str
    across: tuple[Mark, ...]
    upward: tuple[Mark, ...]
    marks: tuple[Mark, ...]


def picture_of(attacks: Attacks, claim: tuple[float, float]) -> Picture:
    """The picture of attack numbers.

    Args:
        attacks: the numbers.
        claim: (eps, delta).
    """
    count = -_FIRST_DECADE * _PER_DECADE
    rates = [10.0 ** (_FIRST_DECADE + index / _PER_DECADE) for index in range(count)] + [1.0]
    curve = _points(rates, power_bounds(attacks.points, rates))
    left, top, right, bottom = _LEFT, _TOP, _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    return Picture(
        _WIDTH,
        _HEIGHT,
        (left, top, right, bottom),
        curve,
        f"{left:.2f},{top:.2f} {curve} {right:.2f},{top:.2f}",
        "" if attacks.basis == "claim" else _points(rates, power_bounds([claim], rates)),
        _points(rates, rates),
        tuple(
            Mark(_across(10.0**power), bottom, f"{10.0 ** (power + 2):.10g} %")
            for power in range(_FIRST_DECADE, 1)
        ),
        tuple(Mark(left, _upward(share), f"{100.0 * share:.0f} %") for share in _SHARES),
        tuple(
            Mark(_across(rate), _upward(found), f"{percent_up(found)} %")
            for rate, found in ((rate, attacks.upper(rate)) for rate in RATES)
        ),
    )


def _points(rates: Sequence[float], shares: Sequence[float]) -> str:
    pairs = zip(rates, shares, strict=True)
    return " ".join(f"{_across(rate):.2f},{_upward(share):.2f}" for rate, share in pairs)


def _across(rate: float) -> float:
    return _LEFT + (_WIDTH - _RIGHT - _LEFT) * (math.log10(rate) - _FIRST_DECADE) / -_FIRST_DECADE


def _upward(share: float) -> float:
    return _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * share
