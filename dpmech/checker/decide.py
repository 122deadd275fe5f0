"""From a claim to a verdict: which theorem covers it, and what the numbers say.

PROVED: delta at the claimed eps is at most the claimed one, between every pair of neighbours.
REFUTED: there are neighbours and gradients for which it is larger.
NOT CHECKED: neither was shown; the reason is given.
"""

import dataclasses
import enum
import functools
import math
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from flint import arb, ctx

from . import components, mixtures
from .claims import COEFFICIENTS, Claim, claim_of
from .documents import BadDocument, decode, parse, read_bytes, shown
from .gaussian import gaussian_delta, rounded_down, rounded_up
from .losses import Curve, TimeIsUp, compose, lattice_range, law_above, law_below, reverse, until
from .pairs import Truncation, bin_laws, fixed_size_curve, sampled_curve, truncated_curve, user_curve
from .sensitivity import Pattern, largest_of, sensitivity
from .strategies import PRECISION, NotChecked

__all__ = ["FAILURE", "Kind", "Verdict", "check_file", "check_text"]

FAILURE = 1e-9
SECONDS = 60.0  # CPU time of one direction
_MOST_NODES = 60_000
_MOST_EXAMPLES = 1000
_CELLS = (500, 1000, 2000, 4000)
_ROUNDING = 1e-9  # of the ratios of as many rounds as a strategy has, and more


class Kind(enum.Enum):
    """What a verdict says."""

    PROVED = "PROVED"
    REFUTED = "REFUTED"
    NOT_CHECKED = "NOT CHECKED"


@dataclasses.dataclass(frozen=True)
class Verdict:
    """A verdict on one claim.

    Attributes:
        kind: what was shown.
        claim: the claim in the checker's words.
        reason: the numbers that were found, by which theorem, or why nothing was shown.
        failure: probability, over draws of the checker's own, that what it says is wrong.
        unchecked: parts of the file that the verdict says nothing about.
    """

    kind: Kind
    claim: str
    reason: str
    failure: float = 0.0
    unchecked: tuple[str, ...] = ()

    def __str__(self) -> str:
        words = self.kind.value
        if self.failure and self.kind is not Kind.NOT_CHECKED:
            words += f" except with probability {self.failure:g}"
        lines = [f"{words}: {self.claim}", f"  {self.reason}"]
        return "\n".join([*lines, *(f"  not checked: {part}" for part in self.unchecked)])


def check_file(
    path: str | os.PathLike[str], *, seconds: float = SECONDS, rng: np.random.Generator | None = None
) -> Verdict:
    """The verdict on the certificate in a file; the same as `check_text` of its content."""
    return check_text(read_bytes(path), seconds=seconds, rng=rng)


def check_text(
    text: str | bytes, *, seconds: float = SECONDS, rng: np.random.Generator | None = None
) -> Verdict:
    """The verdict on a certificate.

    Args:
        text: the content of its file, of any size: whoever has it in memory has bounded it.
        seconds: CPU time that draws may take, in each direction.
        rng: where draws come from; None is the operating system's entropy, and only then does `failure` hold.

    Raises:
        BadDocument: if it is no certificate that can be read.
    """
    content = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    document = decode(parse(content))
    if "claim" not in document:
        kinds = [
            kind for kind, entry in (("a run record", "run"), ("a ledger", "releases")) if entry in document
        ]
        if kinds:
            return Verdict(Kind.NOT_CHECKED, kinds[0], "only certificates are checked")
        raise BadDocument("it is not a certificate: it has no claim")
    generator = np.random.default_rng() if rng is None else rng
    try:
        with ctx.workprec(PRECISION):
            claim = claim_of(document)
    except (NotChecked, ArithmeticError, MemoryError) as error:
        return Verdict(Kind.NOT_CHECKED, "a claim beyond the limits", str(error) or type(error).__name__)
    try:
        precision = max(PRECISION, 128 + 2 * math.ceil(-math.log2(claim.delta)))
        with ctx.workprec(precision), np.errstate(all="ignore"):  # NaN and infinities prove nothing
            verdict = _check(claim, seconds, generator)
    except (NotChecked, ArithmeticError, MemoryError, ValueError) as error:
        verdict = Verdict(Kind.NOT_CHECKED, str(claim), str(error) or type(error).__name__)
    return dataclasses.replace(verdict, unchecked=_unchecked(document))


def _unchecked(document: dict[str, Any]) -> tuple[str, ...]:
    stated = document["claim"]["coefficients"]
    known = isinstance(stated, dict) and stated.get("of") in COEFFICIENTS
    parts = [
        *([] if known else ["coefficients"]),
        "hashes, and the expected batch size",
        "lower ends, errors and everything else under evidence",
        "the sentences for the trainer, versions and dates",
    ]
    evidence = document["evidence"]
    if isinstance(evidence, dict) and "profile" in evidence:
        parts.insert(0, "the nodes of the privacy profile")
    return tuple(parts)


def _check(claim: Claim, seconds: float, rng: np.random.Generator) -> Verdict:
    kind = str(claim.participation["type"])
    if kind not in _ROUTES:
        return Verdict(Kind.NOT_CHECKED, str(claim), f"the participation {shown(kind)} is unknown")
    if kind.startswith("User") and claim.unit != "user":
        raise BadDocument(f"{kind} is about users, but the unit is {claim.unit}")
    return _ROUTES[kind](claim, seconds, rng)


def _not_covered(claim: Claim, why: str) -> Verdict:
    return Verdict(Kind.NOT_CHECKED, str(claim), f"no theorem here covers it: {why}")


# ---- Without sampling: one Gaussian mechanism.


def _pattern(claim: Claim) -> tuple[Pattern, int]:
    """The pattern of one example, and how many examples the unit has."""
    n, kind = claim.strategy.n, claim.participation["type"]
    if kind == "EveryStep":
        claim.only()
        return Pattern(1, n, evenly=True), 1
    if kind == "SingleParticipation":
        claim.only()
        return Pattern(n, 1), 1
    if kind == "FixedEpochs":
        claim.only("epochs")
        epochs = claim.integer("epochs", 1, n)
        if n % epochs:
            raise BadDocument(f"{epochs} epochs do not divide n = {n}")
        return Pattern(n // epochs, epochs, evenly=True), 1
    names = ("min_sep", "max_participations")
    examples = 1
    if kind == "UserMinSep":
        claim.only(*names, "max_examples_per_user")
        examples = claim.integer("max_examples_per_user", 1, _MOST_EXAMPLES)
    else:
        claim.only(*names)
    most = n if claim.participation["max_participations"] is None else claim.integer("max_participations", 1)
    return Pattern(claim.integer("min_sep", 1, n), most), examples


def _unsampled(claim: Claim, seconds: float, rng: np.random.Generator) -> Verdict:
    del seconds, rng
    pattern, examples = _pattern(claim)
    return _gaussian(claim, pattern, examples)


def _gaussian(claim: Claim, pattern: Pattern, examples: int) -> Verdict:
    """One release of C G + sigma Z; examples of a user that are in the same steps move it together."""
    found = sensitivity(claim.strategy, pattern)
    factor = examples * (2 if claim.adjacency == "replace_one" else 1)
    ratio = arb(claim.eps).exp()
    upper = gaussian_delta(factor * found.upper / claim.sigma, ratio)
    if upper <= arb(claim.delta):
        return Verdict(
            Kind.PROVED, str(claim), f"delta is at most {rounded_up(upper)} ({found.theorem}; Gaussian)"
        )
    lower = gaussian_delta(factor * found.lower / claim.sigma, ratio)
    if lower > arb(claim.delta):
        reason = f"delta is at least {rounded_down(lower)} ({found.theorem}; Gaussian)"
        return Verdict(Kind.REFUTED, str(claim), reason)
    reason = f"delta is between {rounded_down(lower)} and {rounded_up(upper)} ({found.theorem}; Gaussian)"
    return Verdict(Kind.NOT_CHECKED, str(claim), reason)


# ---- Sampling release by release: compositions of one-dimensional losses.


@dataclasses.dataclass(frozen=True)
class _Direction:
    """Delta is at most what `above` has, composed so many times, and at least what `below` has."""

    name: str
    above: Curve
    times: int
    below: Curve
    below_times: int


def _both(above: Curve, times: int, below: Curve, below_times: int) -> list[_Direction]:
    return [
        _Direction("REMOVE", above, times, below, below_times),
        _Direction("ADD", reverse(above), times, reverse(below), below_times),
    ]


def _releases(claim: Claim, cycle: int) -> tuple[arb, int, arb, int]:
    """(largest norm over the noise, releases of one example; the same for some example's largest releases).

    Groups take turns, `cycle` of them. C has at most that many bands, so that the releases of one example
    have no noise in common.
    """
    if claim.strategy.bands() > cycle:
        raise NotChecked(
            f"no theorem here covers sampling with {claim.strategy.bands()} bands and {cycle} groups"
        )
    norms = claim.strategy.squared_norms()
    upper = largest_of(norms)
    level = arb(norms[0].lower())
    equal = sum(1 for norm in norms[::cycle] if norm >= level)
    return upper.sqrt() / claim.sigma, -(-claim.strategy.n // cycle), level.sqrt() / claim.sigma, equal


def _poisson(claim: Claim, seconds: float, rng: np.random.Generator) -> Verdict:
    """Poisson, CyclicPoisson, and users whose examples are sampled one by one."""
    del rng
    cyclic, users = "Cyclic" in claim.participation["type"], claim.participation["type"].startswith("User")
    names = ["sampling_prob"] + ["cycle"] * cyclic + ["max_examples_per_user"] * users
    claim.only(*names)
    q, n = claim.probability("sampling_prob"), claim.strategy.n
    cycle = claim.integer("cycle", 1) if cyclic else 1
    examples = claim.integer("max_examples_per_user", 1, _MOST_EXAMPLES) if users else 1
    if q == 1.0:
        return _gaussian(claim, Pattern(min(cycle, n), n, evenly=True), examples)
    if claim.adjacency == "replace_one":
        return _not_covered(claim, "replace_one under Poisson sampling")
    mu, times, low_mu, low_times = _releases(claim, cycle)
    if not users:
        return _composed(
            claim, _both(sampled_curve(arb(q), mu), times, sampled_curve(arb(q), low_mu), low_times), seconds
        )
    spare = claim.delta * 1e-5 / times
    above = user_curve(arb(q), mu, examples, spare)[0]
    below = user_curve(arb(q), low_mu, examples, spare)[1]
    return _composed(claim, _both(above, times, below, low_times), seconds)


def _truncated(claim: Claim, seconds: float, rng: np.random.Generator) -> Verdict:
    del rng
    claim.only("sampling_prob", "max_lot_size", "dataset_size")
    q, size = arb(claim.probability("sampling_prob")), claim.integer("dataset_size", 2)
    most = claim.integer("max_lot_size", 1, size - 1)
    if claim.adjacency != "zero_out":
        return _not_covered(claim, f"{claim.adjacency} where batches are truncated")
    mu, times, low_mu, low_times = _releases(claim, 1)
    cut = Truncation(q, most, size)
    above, below = truncated_curve(q, mu, cut), sampled_curve(cut.joined, low_mu)
    return _composed(claim, _both(above, times, below, low_times), seconds)


def _fixed_size(claim: Claim, seconds: float, rng: np.random.Generator) -> Verdict:
    del rng
    claim.only("dataset_size", "lot_size")
    size = claim.integer("dataset_size", 1)
    batch = claim.integer("lot_size", 1, size)
    if claim.adjacency != "replace_one":
        return _not_covered(claim, f"{claim.adjacency} under batches of one size")
    if batch == size:
        return _gaussian(claim, Pattern(1, claim.strategy.n, evenly=True), 1)
    mu, times, low_mu, low_times = _releases(claim, 1)
    q = arb(batch) / size
    above, below = fixed_size_curve(q, mu), sampled_curve(q, 2 * low_mu)
    directions = [
        _Direction("either way", above, times, below, low_times),
        _Direction("the other way", above, times, reverse(below), low_times),
    ]
    return _composed(claim, directions, seconds)


def _composed(claim: Claim, directions: list[_Direction], seconds: float) -> Verdict:
    found = []
    for direction in directions:
        proved, number = _one_direction(direction, claim.eps, claim.delta, seconds)
        if proved is False:
            return Verdict(Kind.REFUTED, str(claim), f"delta is at least {number} ({direction.name})")
        found.append((proved, f"{number} ({direction.name})"))
    reason = "delta is at most " + ", ".join(number for _, number in found) + " by joined dots"
    return Verdict(Kind.PROVED if all(ok for ok, _ in found) else Kind.NOT_CHECKED, str(claim), reason)


def _one_direction(
    direction: _Direction, eps: float, delta: float, seconds: float
) -> tuple[bool | None, str]:
    """Ever finer lattices until one of them decides, or the work is too much; the number that was found.

    The last one is left unfinished when it takes as long as all were given.
    """
    ratio, allowance, start = arb(eps).exp(), delta * 1e-5, time.process_time()
    end = start + 2.0 * seconds
    best, before = "1", (math.inf, math.inf)
    try:
        losses = lattice_range(until(end, direction.above), allowance / direction.times)
        spacing = 2.0 ** math.floor(math.log2((losses[1] - losses[0]) / 500))
        while (losses[1] - losses[0]) / spacing < _MOST_NODES and time.process_time() - start < seconds:
            law = law_above(until(end, direction.above), spacing, losses)
            upper = compose(law, direction.times, allowance, end).delta(ratio)
            best = rounded_up(upper)
            if upper <= arb(delta):
                return True, best
            lowest = law_below(until(end, direction.below), spacing, losses)
            if lowest is not None:
                lower = compose(lowest, direction.below_times, allowance, end).delta(ratio)
                if lower > arb(delta):
                    return False, rounded_down(lower)
            ends = (float(upper), float(lower) if lowest is not None else 0.0)
            if all(abs(now - then) <= 1e-3 * delta for now, then in zip(ends, before, strict=True)):
                break  # finer lattices will not tell more
            spacing, before = spacing / 2.0, ends
    except TimeIsUp:
        pass
    return None, best


# ---- Chance decides in which noise the gradients end up: mixtures of Gaussians.


def _independent(claim: Claim, bins: int, seconds: float) -> Verdict:
    """Bins whose columns are orthogonal, chosen once or anew in every round: section 5.5."""
    norms, rounds = claim.strategy.squared_norms(), claim.strategy.n // bins
    if claim.participation["type"] == "BallsInBins":
        norms, rounds = [sum(norms[i::bins], arb(0)) for i in range(bins)], 1
    if claim.delta > 0.5:  # infinite parts are raised by enough where they are at most this
        raise NotChecked("delta above 0.5 for orthogonal bins")
    spare, start, ratio = 1e-6 * claim.delta / rounds, time.process_time(), arb(claim.eps).exp()
    best = dict.fromkeys(("REMOVE", "ADD"), "1")
    for cells in _CELLS:
        proved = []
        for above in (True, False):
            norm = largest_of(norms) if above else functools.reduce(arb.min, norms)
            laws = bin_laws(bins, norm / claim.sigma**2, cells, spare, rounds, above=above)
            for name, law in zip(best, laws, strict=True):
                moved = 1 + arb(_ROUNDING if above else -_ROUNDING)
                found = compose(law, rounds, 1e-5 * claim.delta).delta(ratio / moved) * moved
                if above:
                    proved.append(found <= arb(claim.delta))
                    best[name] = rounded_up(found)
                elif found > arb(claim.delta):
                    reason = f"delta is at least {rounded_down(found)} ({name})"
                    return Verdict(Kind.REFUTED, str(claim), reason)
            if above and all(proved):
                break
        if all(proved) or time.process_time() - start > seconds:
            break
    reason = ", ".join(f"{number} ({name})" for name, number in best.items())
    kind = Kind.PROVED if all(proved) else Kind.NOT_CHECKED
    return Verdict(kind, str(claim), f"delta is at most {reason} by sums on a grid")


def _mixed(claim: Claim, seconds: float, rng: np.random.Generator) -> Verdict:
    if claim.adjacency == "replace_one":
        return _not_covered(claim, "replace_one under a random allocation")
    if not claim.strategy.nonnegative():
        return _not_covered(claim, "a random allocation with negative entries in C")
    pair = components.pair_of(claim)
    if pair is None:  # chance leaves no choice
        n = claim.strategy.n
        examples = claim.participation.get("max_examples_per_user", 1)
        return _gaussian(claim, Pattern(1, n, evenly=True), examples)
    if isinstance(pair, int):
        return _independent(claim, pair, seconds)
    above, below = pair
    answers = []
    for name, check in (("REMOVE", mixtures.check_remove), ("ADD", mixtures.check_add)):
        answer = check(mixtures.Question(above, below, claim.eps, claim.delta, FAILURE / 2, seconds, rng))
        if answer.verdict is False:
            return Verdict(Kind.REFUTED, str(claim), f"delta is {answer.number} ({name})", FAILURE)
        answers.append((name, answer))
    reason = "; ".join(f"{name}: delta is {answer.number}" for name, answer in answers)
    proved = all(answer.verdict for _, answer in answers)
    if not proved:
        return Verdict(Kind.NOT_CHECKED, str(claim), reason)
    return Verdict(Kind.PROVED, str(claim), reason, sum(answer.failure for _, answer in answers))


_ROUTES: dict[str, Callable[[Claim, float, np.random.Generator], Verdict]] = {
    "EveryStep": _unsampled,
    "SingleParticipation": _unsampled,
    "MinSep": _unsampled,
    "UserMinSep": _unsampled,
    "FixedEpochs": _unsampled,
    "Poisson": _poisson,
    "CyclicPoisson": _poisson,
    "UserPoisson": _poisson,
    "UserCyclicPoisson": _poisson,
    "TruncatedPoisson": _truncated,
    "FixedSizeLots": _fixed_size,
    "BallsInBins": _mixed,
    "FreshBallsInBins": _mixed,
    "UserBallsInBins": _mixed,
    "MinSepSampling": _mixed,
}
