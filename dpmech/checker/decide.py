"""From a claim to a verdict: which theorem covers it, and what the numbers say.

PROVED: delta at the claimed eps is at most the claimed one, between every pair of neighbours.
REFUTED: there are neighbours and gradients for which it is larger.
NOT CHECKED: neither was shown; the reason is given.
"""

import contextlib
import dataclasses
import enum
import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from flint import arb, ctx

from . import components, mixtures
from .claims import Claim
from .documents import BadDocument, shown
from .gaussian import gaussian_delta, rounded_down, rounded_up
from .losses import (
    Curve,
    Law,
    TimeIsUp,
    compose,
    joined,
    lattice_range,
    law_above,
    law_below,
    reverse,
    until,
)
from .pairs import Truncation, bin_laws, fixed_size_curve, sampled_curve, truncated_curve, user_curve
from .sensitivity import Pattern, largest_of, sensitivity
from .strategies import PRECISION, NotChecked

__all__ = [
    "DIRECTIONS", "FAILURE", "SECONDS", "UNDECIDED", "Direction", "Gaussian", "Independent", "Kind", "Mixed",
    "Part",
    "Sampled", "Shape", "Verdict", "composed", "decide", "lattices", "mechanism_of", "precise", "unsampled",
]  # fmt: skip

FAILURE = 1e-9
SECONDS = 60.0  # CPU time of one direction
_MOST_NODES = 150_000
_MOST_EXAMPLES = 1000
_CELLS = (500, 1000, 2000, 4000)
_ROUNDING = 1e-9, 1e-10  # of ratios, more than all rounding on a grid; besides, in every round
DIRECTIONS = ("REMOVE", "ADD")
UNDECIDED = (NotChecked, TimeIsUp, ArithmeticError, MemoryError, ValueError)


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
        parts: verdicts on what the file holds, of which this one is made.
    """

    kind: Kind
    claim: str
    reason: str
    failure: float = 0.0
    unchecked: tuple[str, ...] = ()
    parts: tuple["Verdict", ...] = ()

    def __str__(self) -> str:
        words = self.kind.value
        if self.failure and self.kind is not Kind.NOT_CHECKED:
            words += f" except with probability {self.failure:g}"
        lines = [f"{words}: {self.claim}", f"  {self.reason}"]
        lines += ["  " + line for part in self.parts for line in str(part).splitlines()]
        return "\n".join([*lines, *(f"  not checked: {part}" for part in self.unchecked)])


def decide(claim: Claim, seconds: float, rng: np.random.Generator) -> "tuple[Verdict, Shape | None]":
    """The verdict on a claim, and what its mechanism is compared with, None if no theorem here covers it.

    Args:
        claim: of a certificate.
        seconds: CPU time that each direction may take.
        rng: where draws come from.
    """
    shape = None
    try:
        with precise(claim.delta):
            shape = mechanism_of(claim)
            if isinstance(shape, Gaussian):
                return unsampled(str(claim), shape, claim.eps, claim.delta), shape
            if isinstance(shape, Mixed | Independent):
                return _mixed(claim, shape, seconds, rng), shape
            return composed(str(claim), shape.directions, claim.eps, claim.delta, seconds), shape
    except UNDECIDED as error:
        return Verdict(Kind.NOT_CHECKED, str(claim), str(error) or type(error).__name__), shape


@contextlib.contextmanager
def precise(delta: float) -> Iterator[None]:
    """Bits enough for so small a delta; NaN and infinities prove nothing, and are no warning."""
    bits = max(PRECISION, 128 + 2 * math.ceil(-math.log2(delta)))
    with ctx.workprec(bits), np.errstate(all="ignore"):
        yield


# ---- What a claim's mechanism is compared with.


@dataclasses.dataclass(frozen=True)
class Gaussian:
    """One release of C G + sigma Z without sampling.

    Attributes:
        lower: sensitivity over noise that is attained.
        upper: at least the sensitivity over noise.
        theorem: that gave it.
    """

    lower: arb
    upper: arb
    theorem: str


@dataclasses.dataclass(frozen=True)
class Part:
    """A curve, how often it is composed, and the losses between which it is looked at; None: to be found."""

    curve: Curve
    times: int
    losses: tuple[float, float] | None = None


@dataclasses.dataclass(frozen=True)
class Direction:
    """Delta is at most that of the product of what is `above`, and at least that of what is `below`.

    Attributes:
        name: which of the two laws comes first.
        above: what is composed.
        below: the same, of the first ones of them, from below; none where nothing is known.
    """

    name: str
    above: tuple[Part, ...]
    below: tuple[Part, ...]


@dataclasses.dataclass(frozen=True)
class Sampled:
    """Releases that are sampled one by one: both directions, and norms over noise, attained and largest."""

    directions: tuple[Direction, Direction]
    mu: tuple[arb, arb]


@dataclasses.dataclass(frozen=True)
class Mixed:
    """A random allocation: the mixture with K nowhere smaller, and nowhere larger where that is known."""

    above: mixtures.Pair
    below: mixtures.Pair | None

    @property
    def largest(self) -> arb:
        """At least the length of the longest mean: no mixture is worse than its worst component alone."""
        return arb(self.above.largest * (1.0 + 1e-9)).sqrt()

    def answer(
        self, name: str, eps: float, delta: float, failure: float, seconds: float, rng: np.random.Generator
    ) -> mixtures.Answer:
        """Whether delta is at most the given one at eps in a direction."""
        check = mixtures.check_remove if name == "REMOVE" else mixtures.check_add
        return check(mixtures.Question(self.above, self.below, eps, delta, failure, seconds, rng))


@dataclasses.dataclass(frozen=True, eq=False)
class Independent:
    """Bins that share no noise: section 5.5.

    Attributes:
        bins: how many.
        rounds: how often one is chosen.
        squares: squared length of a mean over the noise, the least and the largest.
        claim: of which draws decide what grids are too coarse for, where a bin is chosen once.
    """

    bins: int
    rounds: int
    squares: tuple[arb, arb]
    claim: Claim
    _known: dict[tuple[int, float, bool], tuple[Law, Law]] = dataclasses.field(default_factory=dict)

    @property
    def largest(self) -> arb:
        """At least the length of the longest mean: no mixture is worse than its worst component alone."""
        return (self.rounds * self.squares[1]).sqrt()

    def answer(
        self, name: str, eps: float, delta: float, failure: float, seconds: float, rng: np.random.Generator
    ) -> mixtures.Answer:
        """Whether delta is at most the given one at eps in a direction, on grids or by draws."""
        # Infinite parts are raised by enough where they are at most 0.5.
        found = mixtures.Answer(verdict=None, number="above 0.5 for orthogonal bins: not decided")
        if delta <= 0.5:
            found = self._on_grids(name, eps, delta, seconds)
        pair = None
        if found.verdict is None and self.claim.participation["type"] == "BallsInBins":
            pair = components.pair_of(self.claim, grids=False)
        if not isinstance(pair, tuple):
            return found
        return Mixed(*pair).answer(name, eps, delta, failure, seconds, rng)

    def _on_grids(self, name: str, eps: float, delta: float, seconds: float) -> mixtures.Answer:
        start, ratio, best = time.process_time(), arb(eps).exp(), "1"
        for cells in _CELLS:
            for above in (True, False):
                moved = 1 + arb((_ROUNDING[0] + _ROUNDING[1] * self.rounds) * (1 if above else -1))
                law = self._laws(cells, delta, start + 2.0 * seconds, above=above)[DIRECTIONS.index(name)]
                found = law.delta(ratio / moved) * moved
                if above and found <= arb(delta):
                    return mixtures.Answer(
                        verdict=True, number=f"at most {rounded_up(found)} by sums on a grid"
                    )
                if not above and found > arb(delta):
                    return mixtures.Answer(
                        verdict=False, number=f"at least {rounded_down(found)} by sums on a grid"
                    )
                best = rounded_up(found) if above else best
            if time.process_time() - start > seconds:
                break
        return mixtures.Answer(verdict=None, number=f"at most {best} by sums on a grid")

    def _laws(self, cells: int, delta: float, end: float, *, above: bool) -> tuple[Law, Law]:
        """Of all rounds, with errors that are small beside a delta; one for deltas of like size."""
        scale = 1000.0 ** math.floor(math.log(delta, 1000.0))
        if (cells, scale, above) not in self._known:
            spare = 1e-6 * scale / self.rounds
            one = bin_laws(self.bins, self.squares[above], cells, spare, self.rounds, above=above)
            remove, add = (compose(law, self.rounds, 1e-5 * scale, end) for law in one)
            self._known[cells, scale, above] = remove, add
        return self._known[cells, scale, above]


Shape = Gaussian | Sampled | Mixed | Independent


def mechanism_of(claim: Claim) -> Shape:
    """What the mechanism of a claim is compared with.

    Raises:
        NotChecked: if no theorem here covers it.
        BadDocument: if the participation is not what its type has.
    """
    kind = str(claim.participation["type"])
    if kind not in _SHAPES:
        raise NotChecked(f"the participation {shown(kind)} is unknown")
    if kind.startswith("User") and claim.unit != "user":
        raise BadDocument(f"{kind} is about users, but the unit is {claim.unit}")
    return _SHAPES[kind](claim)


def _not_covered(why: str) -> NotChecked:
    return NotChecked(f"no theorem here covers it: {why}")


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


def _certain(claim: Claim) -> Gaussian:
    return _one_release(claim, *_pattern(claim))


def _one_release(claim: Claim, pattern: Pattern, examples: int) -> Gaussian:
    """One release of C G + sigma Z; examples of a user that are in the same steps move it together."""
    found = sensitivity(claim.strategy, pattern)
    factor = examples * (2 if claim.adjacency == "replace_one" else 1)
    return Gaussian(factor * found.lower / claim.sigma, factor * found.upper / claim.sigma, found.theorem)


def unsampled(words: str, found: Gaussian, eps: float, delta: float) -> Verdict:
    """The verdict on (eps, delta), said as `words`, in closed form."""
    ratio, how = arb(eps).exp(), f"({found.theorem}; Gaussian)"
    upper, lower = gaussian_delta(found.upper, ratio), gaussian_delta(found.lower, ratio)
    if upper <= arb(delta):
        return Verdict(Kind.PROVED, words, f"delta is at most {rounded_up(upper)} {how}")
    if lower > arb(delta):
        return Verdict(Kind.REFUTED, words, f"delta is at least {rounded_down(lower)} {how}")
    ends = f"delta is between {rounded_down(lower)} and {rounded_up(upper)} {how}"
    return Verdict(Kind.NOT_CHECKED, words, ends)


# ---- Sampling release by release: compositions of one-dimensional losses.


def _both(above: Part, below: Part, mu: tuple[arb, arb]) -> Sampled:
    back = [dataclasses.replace(part, curve=reverse(part.curve)) for part in (above, below)]
    return Sampled((Direction("REMOVE", (above,), (below,)), Direction("ADD", (back[0],), (back[1],))), mu)


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


def _poisson(claim: Claim) -> Shape:
    """Poisson, CyclicPoisson, and users whose examples are sampled one by one."""
    cyclic, users = "Cyclic" in claim.participation["type"], claim.participation["type"].startswith("User")
    names = ["sampling_prob"] + ["cycle"] * cyclic + ["max_examples_per_user"] * users
    claim.only(*names)
    q, n = claim.probability("sampling_prob"), claim.strategy.n
    cycle = claim.integer("cycle", 1) if cyclic else 1
    examples = claim.integer("max_examples_per_user", 1, _MOST_EXAMPLES) if users else 1
    if q == 1.0:
        return _one_release(claim, Pattern(min(cycle, n), n, evenly=True), examples)
    if claim.adjacency == "replace_one":
        raise _not_covered("replace_one under Poisson sampling")
    mu, times, low_mu, low_times = _releases(claim, cycle)
    if not users:
        above, below = sampled_curve(arb(q), mu), sampled_curve(arb(q), low_mu)
        return _both(Part(above, times), Part(below, low_times), (low_mu, mu))
    spare = claim.delta * 1e-5 / times
    above = user_curve(arb(q), mu, examples, spare)[0]
    below = user_curve(arb(q), low_mu, examples, spare)[1]
    return _both(Part(above, times), Part(below, low_times), (low_mu, mu))


def _truncated(claim: Claim) -> Sampled:
    claim.only("sampling_prob", "max_lot_size", "dataset_size")
    q, size = arb(claim.probability("sampling_prob")), claim.integer("dataset_size", 2)
    most = claim.integer("max_lot_size", 1, size - 1)
    if claim.adjacency != "zero_out":
        raise _not_covered(f"{claim.adjacency} where batches are truncated")
    mu, times, low_mu, low_times = _releases(claim, 1)
    cut = Truncation(q, most, size)
    above, below = truncated_curve(q, mu, cut), sampled_curve(cut.joined, low_mu)
    return _both(Part(above, times), Part(below, low_times), (low_mu, mu))


def _fixed_size(claim: Claim) -> Shape:
    claim.only("dataset_size", "lot_size")
    size = claim.integer("dataset_size", 1)
    batch = claim.integer("lot_size", 1, size)
    if claim.adjacency != "replace_one":
        raise _not_covered(f"{claim.adjacency} under batches of one size")
    if batch == size:
        return _one_release(claim, Pattern(1, claim.strategy.n, evenly=True), 1)
    mu, times, low_mu, low_times = _releases(claim, 1)
    q = arb(batch) / size
    above, below = fixed_size_curve(q, mu), sampled_curve(q, 2 * low_mu)
    return Sampled(
        (
            Direction("either way", (Part(above, times),), (Part(below, low_times),)),
            Direction("the other way", (Part(above, times),), (Part(reverse(below), low_times),)),
        ),
        (low_mu, mu),
    )


def composed(
    words: str, directions: Sequence[Direction], eps: float, delta: float, seconds: float
) -> Verdict:
    """The verdict on (eps, delta), said as `words`, for compositions of one-dimensional losses."""
    found = []
    for direction in directions:
        proved, number = _one_direction(direction, eps, delta, seconds)
        if proved is False:
            return Verdict(Kind.REFUTED, words, f"delta is at least {number} ({direction.name})")
        found.append((proved, f"{number} ({direction.name})"))
    reason = "delta is at most " + ", ".join(number for _, number in found) + " by joined dots"
    return Verdict(Kind.PROVED if all(ok for ok, _ in found) else Kind.NOT_CHECKED, words, reason)


@dataclasses.dataclass(frozen=True)
class Lattice:
    """A spacing, the losses where each curve is looked at, mass that may be moved, and when time is up."""

    spacing: float
    ranges: list[tuple[float, float]]
    allowance: float
    end: float

    def above(self, parts: Sequence[Part]) -> Law:
        """The law of the composition of curves, from above."""
        laws = [
            compose(
                law_above(until(self.end, part.curve), self.spacing, losses),
                part.times,
                self.allowance,
                self.end,
            )
            for part, losses in zip(parts, self.ranges, strict=True)
        ]
        return joined(laws, self.allowance)

    def below(self, parts: Sequence[Part]) -> Law | None:
        """The same from below, of the first curves; None where that fails, or there are none."""
        laws = []
        for part, losses in zip(parts, self.ranges, strict=False):
            law = law_below(until(self.end, part.curve), self.spacing, losses)
            if law is None:
                return None
            laws.append(compose(law, part.times, self.allowance, self.end))
        return joined(laws, self.allowance) if laws else None


def lattices(above: Sequence[Part], delta: float, seconds: float) -> Iterator[Lattice]:
    """Ever finer lattices for a composition, until the work is too much; the last may end in TimeIsUp."""
    start, times, allowance = time.process_time(), sum(part.times for part in above), delta * 1e-5
    end = start + 2.0 * seconds
    ranges = [part.losses or lattice_range(until(end, part.curve), allowance / times) for part in above]
    width = max(high - low for low, high in ranges)
    spacing = 2.0 ** math.floor(math.log2(width / 500))
    while width / spacing < _MOST_NODES and time.process_time() - start < seconds:
        yield Lattice(spacing, ranges, allowance, end)
        spacing /= 2.0


def _one_direction(direction: Direction, eps: float, delta: float, seconds: float) -> tuple[bool | None, str]:
    """Ever finer lattices until one of them decides, or the work is too much; the number that was found."""
    ratio, best, ends, open_ends = arb(eps).exp(), "1", [math.inf, -math.inf], [True, True]
    with contextlib.suppress(TimeIsUp):
        for lattice in lattices(direction.above, delta, seconds):
            if open_ends[0]:
                upper = lattice.above(direction.above).delta(ratio)
                best = rounded_up(upper)
                if upper <= arb(delta):
                    return True, best
                open_ends[0] = _may_cross(float(upper), ends[0], delta)
                ends[0] = float(upper)
            if open_ends[1]:
                law = lattice.below(direction.below)
                lower = arb(0) if law is None else law.delta(ratio)
                if lower > arb(delta):
                    return False, rounded_down(lower)
                open_ends[1] = _may_cross(-float(lower), -ends[1], -delta)
                ends[1] = float(lower)
            if not any(open_ends):
                break
    return None, best


def _may_cross(now: float, before: float, level: float) -> bool:
    """Whether finer lattices may bring a falling number to the level.

    Once it moves little, half the spacing leaves at most half the error: what it fell by is left at most.
    """
    moves = not (abs(now - before) <= 0.1 * abs(now) and now < 0.5)
    return moves or 2.0 * now - before < level + 1e-6 * abs(level)


# ---- Chance decides in which noise the gradients end up: mixtures of Gaussians.


def _allocated(claim: Claim) -> Shape:
    if claim.adjacency == "replace_one":
        raise _not_covered("replace_one under a random allocation")
    if not claim.strategy.nonnegative():
        raise _not_covered("a random allocation with negative entries in C")
    pair = components.pair_of(claim)
    if pair is None:  # chance leaves no choice
        examples = claim.participation.get("max_examples_per_user", 1)
        return _one_release(claim, Pattern(1, claim.strategy.n, evenly=True), examples)
    if isinstance(pair, int):
        return _orthogonal(claim, pair)
    return Mixed(*pair)


def _orthogonal(claim: Claim, bins: int) -> Independent:
    """Bins whose columns are orthogonal, chosen once or anew in every round: section 5.5."""
    norms, rounds = claim.strategy.squared_norms(), claim.strategy.n // bins
    if claim.participation["type"] == "BallsInBins":
        norms, rounds = [sum(norms[i::bins], arb(0)) for i in range(bins)], 1
    ends = functools.reduce(arb.min, norms), largest_of(norms)
    return Independent(bins, rounds, (ends[0] / claim.sigma**2, ends[1] / claim.sigma**2), claim)


def _mixed(claim: Claim, pair: Mixed | Independent, seconds: float, rng: np.random.Generator) -> Verdict:
    answers = []
    for name in DIRECTIONS:
        answer = pair.answer(name, claim.eps, claim.delta, FAILURE / 2, seconds, rng)
        if answer.verdict is False:
            failure = FAILURE if answer.failure else 0.0
            return Verdict(Kind.REFUTED, str(claim), f"delta is {answer.number} ({name})", failure)
        answers.append((name, answer))
    reason = "; ".join(f"{name}: delta is {answer.number}" for name, answer in answers)
    proved = all(answer.verdict for _, answer in answers)
    if not proved:
        return Verdict(Kind.NOT_CHECKED, str(claim), reason)
    return Verdict(Kind.PROVED, str(claim), reason, sum(answer.failure for _, answer in answers))


_SHAPES: dict[str, Callable[[Claim], Shape]] = {
    "EveryStep": _certain,
    "SingleParticipation": _certain,
    "MinSep": _certain,
    "UserMinSep": _certain,
    "FixedEpochs": _certain,
    "Poisson": _poisson,
    "CyclicPoisson": _poisson,
    "UserPoisson": _poisson,
    "UserCyclicPoisson": _poisson,
    "TruncatedPoisson": _truncated,
    "FixedSizeLots": _fixed_size,
    "BallsInBins": _allocated,
    "FreshBallsInBins": _allocated,
    "UserBallsInBins": _allocated,
    "MinSepSampling": _allocated,
}
