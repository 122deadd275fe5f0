"""From a claim to a verdict, by the theorem that covers it; docs/checker.md states what verdicts mean."""

import collections
import contextlib
import dataclasses
import enum
import functools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
from flint import arb, ctx

from . import losses, pairs
from .claims import Claim
from .components import bins_of, pair_of, pair_of_sets
from .confidence import DIRECTIONS, Answer, Work
from .documents import BadDocument, shown
from .losses import Curve, Law, Part, gaussian_delta, rounded_down, rounded_up
from .mixtures import Mixed
from .sensitivity import Pattern, largest_of, sensitivity
from .strategies import PRECISION, NotChecked

FAILURE = 1e-9
SECONDS = 60.0  # CPU time per direction
_CELLS, _MOST_KINDS = (500, 1000, 2000, 4000), 64  # of grids, and of releases in one run
_LITTLE_NOISE, _MOST_KNOWN = 10, 20_000  # mu above which participations may be revealed, and how many
_UNSAMPLED_EPS = 1e4  # above, no mixture of an allocation is sampled
_COARSE = 4  # this many lattices are evaluated from both sides; later, from below if above is inconclusive
_ROUNDING = 1e-9, 1e-10  # relative, above all rounding on a grid: a constant, and more for each round
UNDECIDED = (NotChecked, TimeoutError, ArithmeticError, MemoryError, ValueError)


class Kind(enum.Enum):
    """What a verdict states."""

    PROVED = "PROVED"
    REFUTED = "REFUTED"
    NOT_CHECKED = "NOT CHECKED"


@dataclasses.dataclass(frozen=True)
class Verdict:
    """A verdict on one claim."""

    kind: Kind  # what was shown
    claim: str  # the claim in the checker's words
    reason: str  # the numbers found and the theorem used, or why nothing was shown
    failure: float = 0.0  # probability, over the checker's own samples, that the verdict is wrong
    unchecked: tuple[str, ...] = ()  # parts of the file that the verdict does not cover
    parts: tuple["Verdict", ...] = ()  # verdicts on the items of the file, from which this verdict is derived
    open_nodes: tuple[int, int] = (0, 0)  # upper ends of a certificate's profile: undecided, and all

    def __str__(self) -> str:
        words = self.kind.value
        if self.failure and self.kind is not Kind.NOT_CHECKED:
            words += " except with probability " + min(repr(x := self.failure), f"{x * 1.00001:g}", key=len)
        lines = [f"{words}: {self.claim}", f"  {self.reason}"]
        lines += ["  " + line for part in self.parts for line in str(part).splitlines()]
        return "\n".join([*lines, *(f"  not checked: {part}" for part in self.unchecked)])


class Shape(Protocol):
    """What a mechanism is compared with: a pair of distributions in each direction."""

    @property
    def names(self) -> Iterable[str]:
        """Names of the directions."""

    def answer(self, name: str, eps: float, delta: float, work: Work) -> Answer:
        """Decide whether delta at eps is at most `delta` in one direction."""


def decide(claim: Claim, seconds: float, rng: np.random.Generator) -> tuple[Verdict, Shape | None]:
    """Return the verdict on a claim, and what its mechanism is compared with (None if no theorem covers it).

    `seconds` is the CPU time per direction. Raises BadDocument if entries of the participation do not fit it.
    """
    shape = None
    try:
        with precise(claim.delta):
            shape = _shape(claim)
            return verdict_on(str(claim), shape, claim.eps, claim.delta, seconds, rng), shape
    except UNDECIDED as error:
        return Verdict(Kind.NOT_CHECKED, str(claim), str(error) or type(error).__name__), shape


def verdict_on(
    words: str, shape: Shape, eps: float, delta: float, seconds: float, rng: np.random.Generator
) -> Verdict:
    """The verdict on (eps, delta), described as `words`: REFUTED if a direction is, PROVED if all are."""
    answers = {}
    for name in shape.names:
        try:
            answer = shape.answer(name, eps, delta, Work(FAILURE / 2, seconds, rng))
        except UNDECIDED as error:  # the other direction may still be refuted
            answer = Answer(verdict=None, number=f"not known: {error}")
        answers[name] = answer
        if answer.verdict is False:
            failure = FAILURE if answer.failure else 0.0
            return Verdict(Kind.REFUTED, words, f"delta is {answer.number} ({name})", failure)
    reason = "; ".join(f"{name}: delta is {answer.number}" for name, answer in answers.items())
    if not all(answer.verdict for answer in answers.values()):
        return Verdict(Kind.NOT_CHECKED, words, reason)
    return Verdict(Kind.PROVED, words, reason, sum(answer.failure for answer in answers.values()))


@contextlib.contextmanager
def precise(delta: float) -> Iterator[None]:
    """Set enough bits for a delta this small; NaN and infinities prove nothing and raise no warning."""
    with ctx.workprec(max(PRECISION, 128 + 2 * math.ceil(-math.log2(delta)))), np.errstate(all="ignore"):
        yield


# ---- Without sampling: one Gaussian mechanism.


@dataclasses.dataclass(frozen=True)
class Gaussian:
    """One release of C G + sigma Z, without sampling."""

    lower: arb  # a ratio of sensitivity to noise that is attained
    upper: arb  # upper bound on the ratio of sensitivity to noise
    theorem: str  # name of the theorem that gave it
    names = ("either direction",)

    def answer(self, name: str, eps: float, delta: float, work: Work) -> Answer:
        """Decide in closed form."""
        del name, work
        ratio, how = arb(eps).exp(), f"({self.theorem}; Gaussian)"
        upper, lower = gaussian_delta(self.upper, ratio), gaussian_delta(self.lower, ratio)
        if upper <= arb(delta):
            return Answer(verdict=True, number=f"at most {rounded_up(upper)} {how}")
        if lower > arb(delta):
            return Answer(verdict=False, number=f"at least {rounded_down(lower)} {how}")
        return Answer(verdict=None, number=f"between {rounded_down(lower)} and {rounded_up(upper)} {how}")


def _one_release(claim: Claim, pattern: Pattern, examples: int = 1) -> Gaussian:
    """One release of C G + sigma Z; examples of a user that join the same steps add up."""
    found = sensitivity(claim.strategy, pattern)
    factor = examples * (2 if claim.adjacency == "replace_one" else 1)
    return Gaussian(factor * found.lower / claim.sigma, factor * found.upper / claim.sigma, found.theorem)


def _unrestricted(claim: Claim) -> Gaussian:
    claim.only()
    n, every = claim.strategy.n, claim.participation["type"] == "EveryStep"
    return _one_release(claim, Pattern(1, n, evenly=True) if every else Pattern(n, 1))


def _fixed_epochs(claim: Claim) -> Gaussian:
    claim.only("epochs")
    n, epochs = claim.strategy.n, claim.integer("epochs", 1, claim.strategy.n)
    if n % epochs:
        raise BadDocument(f"{epochs} epochs do not divide n = {n}")
    return _one_release(claim, Pattern(n // epochs, epochs, evenly=True))


def _min_sep(claim: Claim) -> Gaussian:
    claim.only("min_sep", "max_participations", "max_examples_per_user")
    n, most = claim.strategy.n, claim.optional("max_participations", 1)
    return _one_release(claim, Pattern(claim.integer("min_sep", 1, n), most or n), claim.examples() or 1)


# ---- Sampling release by release: compositions of one-dimensional losses.


@dataclasses.dataclass(frozen=True)
class Direction:
    """Delta is at most that of the product of `above`; `below` are lower bounds on first parts, if any."""

    above: tuple[Part, ...]
    below: tuple[Part, ...]


Kinds = Sequence[tuple[arb, arb, int]]  # q, norm over noise, and how often
Make = Callable[[arb, arb, int], Curve]
Known = tuple[list[arb], int, str]


@dataclasses.dataclass(frozen=True)
class Sampled:
    """Releases whose batches are sampled independently."""

    names: Mapping[str, Direction]  # both directions, by name
    kinds: Sequence[Kinds] = ()  # from above and from below, if examples join by coins of their own
    revealed: Callable[[float], arb] | None = None  # bound if participations were known, of little noise

    def answer(self, name: str, eps: float, delta: float, work: Work) -> Answer:
        """Refine lattices until one decides; fine lattices from below come last because they are slow."""
        direction, ratio, best = self.names[name], arb(eps).exp(), "at most 1 by joined dots"
        if alone := next((low for part in direction.below if (low := part.curve(ratio)) > arb(delta)), None):
            return Answer(verdict=False, number=f"at least {rounded_down(alone)} by one release alone")
        if len(top := direction.above) == top[0].times == 1 and (only := top[0].curve(ratio)) <= arb(delta):
            return Answer(verdict=True, number=f"at most {rounded_up(only)} by its only release")
        if self.revealed and (most := self.revealed(eps)) <= arb(delta):
            return Answer(verdict=True, number=f"at most {rounded_up(most)} with all participations known")
        ends, sides = {True: math.inf, False: math.inf}, [True, False] if direction.below else [True]
        with contextlib.suppress(TimeoutError):
            for count, lattice in enumerate(losses.lattices(direction.above, delta, work.seconds)):
                for above in tuple(sides):
                    if not above and count >= _COARSE and True in sides and ends[True] < 0.5:
                        continue
                    parts, sign = (direction.above, 1.0) if above else (direction.below, -1.0)
                    found = lattice.law(parts, above=above).delta(ratio)
                    number = f"at most {rounded_up(found)} by joined dots" if above else rounded_down(found)
                    best = number if above else best
                    if found <= arb(delta) if above else found > arb(delta):
                        return Answer(verdict=above, number=number if above else f"at least {number}")
                    if not _may_cross(sign * float(found), ends[above], sign * delta):
                        sides.remove(above)
                    ends[above] = sign * float(found)
                if not sides:
                    break
        return Answer(verdict=None, number=best)


def _may_cross(now: float, before: float, level: float) -> bool:
    """Whether finer lattices may bring a number down to the level, halving the error at least each time."""
    moves = not (abs(now - before) < 0.1 * abs(now) and now < 0.5)
    return moves or 2.0 * now - before < level + 1e-6 * abs(level)


def _composed(
    claim: Claim, cycle: int, probs: Sequence[float], known: Known, above: Make, below: Make
) -> Sampled:
    """A composition of releases; groups take turns, `cycle` of them, and `probs` has a q for every turn.

    From above every turn has the largest norm of its steps, from below those of the first group. The rest
    makes a curve from q, mu and number; `known` has arguments of `revealed_delta`, a factor and the kind.
    """
    if (bands := claim.strategy.bands()) > cycle:
        raise NotChecked(f"no theorem here covers sampling with {bands} bands and {cycle} groups")
    norms, revealed, kinds, sides = claim.strategy.squared_norms(), None, [], []
    largest = [largest_of(norms[start : start + cycle]) for start in range(0, len(norms), cycle)]
    for turns, make in ((largest, above), (norms[::cycle], below)):
        often, equal = collections.Counter(zip(probs, map(float, turns), strict=True)), dict[float, arb]()
        for norm in turns:
            equal[float(norm)] = norm.union(equal.get(float(norm), norm))
        if len(often) > _MOST_KINDS:
            raise NotChecked(f"{len(often)} pairs of noise and probability: round to {_MOST_KINDS} at most")
        kinds.append([(arb(q), equal[x].sqrt() / claim.sigma, times) for (q, x), times in often.items()])
        sides.append(tuple(Part(make(*kind), kind[2]) for kind in kinds[-1]))
    (_, mu, times), (weights, factor, how) = kinds[0][0], known
    if len(kinds[0]) == 1 and mu > _LITTLE_NOISE and times * (len(weights) - 1) ** 2 < _MOST_KNOWN:
        revealed = functools.partial(losses.revealed_delta, weights, times, factor * mu, kind=how)
    back = [tuple(Part(losses.reverse(part.curve), part.times) for part in side) for side in sides]
    stated = kinds if how != "any" and len(weights) == 2 else ()
    return Sampled({"REMOVE": Direction(*sides), "ADD": Direction(*back)}, stated, revealed)


def _poisson(claim: Claim) -> Shape:
    claim.only("sampling_prob", "max_examples_per_user", "truncated_batch_size", "dataset_size")
    if claim.participation["truncated_batch_size"] is None and claim.participation["dataset_size"] is None:
        return _coins(claim, 1, claim.probabilities("sampling_prob", claim.strategy.n))
    prob, size = claim.probability("sampling_prob"), claim.integer("dataset_size", 2)
    most = claim.integer("truncated_batch_size", 1, size - 1)
    if claim.adjacency != "zero_out" or claim.examples() is not None:
        raise NotChecked(f"no theorem here covers {claim.adjacency}, or users, where batches are truncated")
    cut = pairs.Truncation(arb(prob), most, size)
    own, known = cut.joined, (pairs.coins_law(cut.joined, 1), 1, "any")
    ends = (lambda q, m, _: pairs.truncated_curve(q, m, cut)), (lambda _, m, __: pairs.sampled_curve(own, m))
    return _composed(claim, 1, [prob] * claim.strategy.n, known, *ends)


def _cyclic(claim: Claim) -> Shape:
    claim.only("sampling_prob", "cycle", "max_examples_per_user")
    cycle = claim.integer("cycle", 1)
    return _coins(claim, cycle, [claim.probability("sampling_prob")] * -(-claim.strategy.n // cycle))


def _coins(claim: Claim, cycle: int, probs: Sequence[float]) -> Shape:
    """Poisson sampling of examples, or of those of users; groups take turns, `cycle` of them."""
    n, examples, replaced = claim.strategy.n, claim.examples(), claim.adjacency == "replace_one"
    if probs[0] == 1.0:  # then all are
        return _one_release(claim, Pattern(min(cycle, n), n, evenly=True), examples or 1)
    known = pairs.coins_law(arb(probs[0]), examples or 1), 1, "replaced" if replaced else "coins"
    if examples is None:
        one = pairs.replaced_curve if replaced else pairs.sampled_curve
        return _composed(claim, cycle, probs, known, *[lambda q, mu, _: one(q, mu)] * 2)
    if replaced or len(set(probs)) > 1:
        raise NotChecked("no theorem here covers replace_one, or a schedule, for several examples of a user")
    spare = claim.delta * 1e-5
    ends = [lambda q, mu, times, k=k: pairs.user_curve(q, mu, examples, spare / times)[k] for k in (0, 1)]
    return _composed(claim, cycle, probs, known, *ends)


def _fixed_size(claim: Claim) -> Shape:
    """Batches of fixed size: either neighbour may come first, so both directions equal the worse one."""
    claim.only("dataset_size", "batch_size")
    size = claim.integer("dataset_size", 1)
    batch = claim.integer("batch_size", 1, size)
    if claim.adjacency != "replace_one":
        raise NotChecked(f"no theorem here covers {claim.adjacency} under batches of one size")
    if batch == size:
        return _one_release(claim, Pattern(1, claim.strategy.n, evenly=True))
    q = arb(batch) / size
    ends = (lambda _, m, __: pairs.fixed_size_curve(q, m)), (lambda _, m, __: pairs.sampled_curve(q, 2 * m))
    found = _composed(claim, 1, [batch / size] * claim.strategy.n, (pairs.coins_law(q, 1), 2, "any"), *ends)
    return dataclasses.replace(found, names=dict.fromkeys(DIRECTIONS, found.names["REMOVE"]))


# ---- Random allocation: chance decides which noise the gradients receive. Mixtures of Gaussians.


@dataclasses.dataclass(frozen=True, eq=False)
class Independent:
    """Bins that share no noise (section 5.5)."""

    rounds: tuple[tuple[int, int], ...]  # numbers of bins, increasing, and how often one of so many is chosen
    squares: tuple[arb, arb]  # least and largest squared length of a mean over the noise
    draws: Callable[[], object] | None = None  # makes mixtures to sample where grids leave the claim open
    below: arb | None = None  # ratio for a Gaussian release that is attained, if rounds only bound the loss
    _known: dict[tuple[int, float, bool], tuple[Law, Law]] = dataclasses.field(default_factory=dict)
    names = DIRECTIONS

    def answer(self, name: str, eps: float, delta: float, work: Work) -> Answer:
        """Refine grids, then sample."""
        start, ratio, best = time.process_time(), arb(eps).exp(), "at most 1"
        count = sum(times for _, times in self.rounds)
        closed = gaussian_delta((count * self.squares[1]).sqrt(), ratio)
        if closed <= arb(delta):  # a mixture is no worse than its worst component
            return Answer(verdict=True, number=f"at most {rounded_up(closed)} in closed form")
        if self.below is not None and (least := gaussian_delta(self.below, ratio)) > arb(delta):
            return Answer(verdict=False, number=f"at least {rounded_down(least)} by the sum of all steps")
        # The widening by rounding also covers infinite parts, provided that delta is at most 0.5.
        with contextlib.suppress(TimeoutError):
            for cells in _CELLS if delta <= 0.5 else ():
                for above in (True, False) if self.below is None else (True,):
                    moved = 1 + arb((_ROUNDING[0] + _ROUNDING[1] * count) * (1 if above else -1))
                    laws = self._laws(cells, delta, start + 2.0 * work.seconds, above=above)
                    found = laws[DIRECTIONS.index(name)].delta(ratio / moved) * moved
                    number = f"at most {rounded_up(found)}" if above else f"at least {rounded_down(found)}"
                    best = number if above else best
                    if found <= arb(delta) if above else found > arb(delta):
                        return Answer(verdict=above, number=f"{number} by sums on a grid")
                if time.process_time() - start > work.seconds:
                    break
        pair = None if self.draws is None else self.draws()
        if isinstance(pair, tuple):
            return Mixed(*pair).answer(name, eps, delta, work)
        return Answer(verdict=None, number=f"{best} by sums on a grid")

    def one_round(self) -> "Independent":
        """One epoch: from above it has the largest column of any, from below the least."""
        return dataclasses.replace(self, rounds=((self.rounds[0][0], 1),), _known={})

    def _laws(self, cells: int, delta: float, end: float, *, above: bool) -> tuple[Law, Law]:
        """Laws of all rounds, with errors small compared with delta; cached for deltas of similar size."""
        scale = 1000.0 ** math.floor(math.log(delta, 1000.0))
        if (cells, scale, above) not in self._known:
            found, count = [], sum(times for _, times in self.rounds)
            for bins, times in self.rounds:
                grid = cells, 1e-6 * scale / count, count
                one = pairs.bin_laws(bins, self.squares[above], *grid, above=above, fewest=self.rounds[0][0])
                found.append([losses.compose(law, times, 1e-5 * scale, end) for law in one])
            remove, add = (losses.joined(laws, 1e-5 * scale, end) for laws in zip(*found, strict=True))
            self._known[cells, scale, above] = remove, add
        return self._known[cells, scale, above]


def _allocated(claim: Claim) -> Shape:
    if claim.adjacency == "replace_one" or not claim.strategy.nonnegative():
        raise NotChecked("no theorem here covers replace_one, or entries < 0 in C, for a random allocation")
    if claim.eps > _UNSAMPLED_EPS and claim.participation["type"] == "BallsInBins":
        pattern = Pattern(bins_of(claim), claim.strategy.n, evenly=True)
        if not claim.flag("fresh"):  # no mixture is worse than its worst component, which is not attained
            worst = _one_release(claim, pattern, claim.examples() or 1)
            return dataclasses.replace(worst, lower=arb(1e-300))
    pair = pair_of(claim)
    if pair is None:  # there is nothing random
        return _one_release(claim, Pattern(1, claim.strategy.n, evenly=True), claim.examples() or 1)
    if not isinstance(pair, int):
        return Mixed(*pair)
    # Bins with orthogonal columns, chosen once or again in every round: section 5.5.
    norms, rounds, draws = claim.strategy.squared_norms(), claim.strategy.n // pair, None
    if not claim.flag("fresh"):
        norms, rounds = [sum(norms[i::pair], arb(0)) for i in range(pair)], 1
        draws = functools.partial(pair_of, claim, grids=False)
    return Independent(((pair, rounds),), _over_noise(claim, norms), draws)


def _set_of_steps(claim: Claim) -> Shape:
    """A random set of k steps is at most one random step of each of k blocks (section 5.6), or a chain."""
    claim.only("participations", "cycle")
    cycle, bands = claim.integer("cycle", 1, claim.strategy.n), claim.strategy.bands()
    n, left = divmod(claim.strategy.n, cycle)  # groups have n steps each
    count = claim.integer("participations", 1, 0 if left else n)
    if count == n:
        return _one_release(claim, Pattern(cycle, n, evenly=True))
    if claim.adjacency == "replace_one" or (bands > cycle if cycle > 1 else not claim.strategy.nonnegative()):
        raise NotChecked("replace_one, entries < 0, or bands > groups: no theorem for a random set of steps")
    norms = claim.strategy.squared_norms()
    squares = _over_noise(claim, norms[::cycle])[0], _over_noise(claim, norms)[1]
    draws = functools.partial(pair_of_sets, claim, count, squares if cycle > 1 else None)
    if bands > cycle:
        return Mixed(*draws())
    blocks = (n // count, count - n % count), (n // count + 1, n % count)
    below = None if count == 1 else count * (squares[0] / n).sqrt()
    return Independent(tuple(block for block in blocks if block[1]), squares, draws, below)


def _over_noise(claim: Claim, norms: list[arb]) -> tuple[arb, arb]:
    return functools.reduce(arb.min, norms) / claim.sigma**2, largest_of(norms) / claim.sigma**2


def _shape(claim: Claim) -> Shape:
    """Return what the mechanism of a claim is compared with."""
    kind = str(claim.participation["type"])
    if kind not in _SHAPES:
        raise NotChecked(f"the participation {shown(kind)} is unknown")
    if claim.examples() is not None and claim.unit != "user":
        raise BadDocument(f"the participation is about users, but the unit is {claim.unit}")
    return _SHAPES[kind](claim)


_SHAPES: dict[str, Callable[[Claim], Shape]] = {
    **dict.fromkeys(("EveryStep", "SingleParticipation"), _unrestricted), "MinSep": _min_sep,
    **dict.fromkeys(("BallsInBins", "BMinSep"), _allocated), "RandomAllocation": _set_of_steps,
    "FixedEpochs": _fixed_epochs, "Poisson": _poisson, "CyclicPoisson": _cyclic,
    "FixedSizeBatches": _fixed_size,
}  # fmt: skip
PARTICIPATIONS = frozenset(_SHAPES)
