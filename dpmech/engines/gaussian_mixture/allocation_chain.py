r"""Random allocation as a Markov chain: each example takes part in a random set of exactly k of the n steps.

With r participations left before step t it joins with probability r / (n - t). C >= 0 has few bands; columns
of steps that are nearer than that have rows in common, so that the state holds which of the last bands - 1
steps were joined as well as r. With X(pi) the sum of the products <c_s, c_t> / sigma^2 over the pairs s < t
in pi, and K_tt = |c_t|^2 / sigma^2,

    dP/dQ = E_pi[exp(sum over t in pi of (w_t - K_tt / 2) - X(pi))],

by recursion over steps and states: at step t a state adds the products of c_t with the columns it remembers.

**Copies.** For an integer m, E_Q r^m is the mean over m independent sets pi_1, ..., pi_m of the exponential
of the sum of <C pi_u, C pi_v> / sigma^2 over the pairs u < v, and r^m dQ / E_Q r^m is the mixture of the
Gaussians around C (pi_1 + ... + pi_m) with that weight. If J of the copies join step t, they add
J (J - 1) / 2 times K_tt, and each of them the products of c_t with the columns that the *other* copies
remember. So the states of the m copies together are a Markov chain, too; as copies are alike, only the sorted
states matter. The density against Q is r^m / E_Q r^m, and weights of this part alone are at most
E_Q r^m sup_r (r - e^eps) / r^m.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence

import numpy as np

from dpmech.engines.gaussian_mixture.chains import ChainGram, Copies, Tilt, rounded_columns
from dpmech.engines.gaussian_mixture.gram import register_family
from dpmech.engines.gaussian_mixture.moments import log_tail_factor
from dpmech.engines.gaussian_mixture.proposal import LogError
from dpmech.exceptions import UnsupportedCombinationError
from dpmech.mechanism import Strategy
from dpmech.numerics import ELEMENTARY, UNIT, FloatArray, IntArray, spend

register_family("allocation", "random allocation", "{participations} of {steps} steps")

# Limits on the moves of all states of the copies and steps (as many for so many draws, and copies); on the
# number of copies; and on exponents.
_MOVES, _DRAWN, _COPIES, _GROWTH = 3e7, 200.0, 10, 600.0
# Limit on the states of one example.
_STATES = 4096


@dataclasses.dataclass(frozen=True, eq=False)
class States:
    """The states of one example, ordered by the number of participations left.

    Attributes:
        left: participations left, shape (S,).
        memory: whether the step d + 1 before was joined, shape (S, bands - 1).
        to_join: the state after joining a step, shape (S,); with none left as `to_rest`.
        to_rest: the state after not joining, shape (S,).
    """

    left: IntArray
    memory: FloatArray
    to_join: IntArray
    to_rest: IntArray

    @classmethod
    def of(cls, participations: int, bands: int) -> "States":
        """All that can be reached."""
        bits = bands - 1
        kept = (1 << bits) - 1
        all_states = [
            (left, word)
            for left in range(participations + 1)
            for word in range(kept + 1)
            if word.bit_count() <= participations - left
        ]
        places = {state: place for place, state in enumerate(all_states)}
        rest = [places[left, word << 1 & kept] for left, word in all_states]
        join = [places[max(left - 1, 0), (word << 1 | (left > 0)) & kept] for left, word in all_states]
        memory = np.array([[word >> d & 1 for d in range(bits)] for _, word in all_states], dtype=np.float64)
        left = np.array([left for left, _ in all_states])
        return cls(left, memory.reshape(len(all_states), bits), np.array(join), np.array(rest))


@dataclasses.dataclass(frozen=True, eq=False)
class AllocationTilt(Tilt):
    """The law of random allocation, weighted.

    Attributes:
        chances: probability of joining at each step and state, shape (n, S).
        states: the states.
    """

    chances: FloatArray
    states: States

    def marginals(self) -> FloatArray:
        """The probability of joining each step, shape (n,)."""
        from dpmech.engines.gaussian_mixture.allocation_kernels import state_marginals

        states = self.states
        return state_marginals(self.chances, states.to_join, states.to_rest, states.left.size - 1)

    def patterns(self, rng: np.random.Generator, count: int) -> FloatArray:
        """Draw participations, 1.0 where a step is joined and else 0.0, shape (count, n)."""
        from dpmech.engines.gaussian_mixture.allocation_kernels import draw_states

        states, shape = self.states, (count, len(self.chances))
        out = np.zeros(shape, dtype=np.bool_)
        start = states.left.size - 1
        draw_states(rng.random(shape), self.chances, states.to_join, states.to_rest, start, out)
        return out.astype(np.float64)


@dataclasses.dataclass(frozen=True, eq=False)
class AllocationCopies(Copies):
    """Several copies, by their sorted states.

    Attributes:
        gram: K of the steps.
        states: sorted states of the copies, shape (M, m).
        moves: where the moves of each row begin, which copies join, how many moves are like it, and the row
            after it; as in `allocation_kernels`.
        values: expectations from every step on, each row divided by its largest, shape (n + 1, M).
    """

    gram: "AllocationGram"
    power: int
    states: IntArray
    moves: tuple[IntArray, IntArray, FloatArray, IntArray]
    values: FloatArray
    log_total: float

    @classmethod
    def of(cls, gram: "AllocationGram", power: int) -> "AllocationCopies":
        """The law of so many copies."""
        from dpmech.engines.gaussian_mixture.allocation_kernels import copies_values

        own, count = gram.states, gram.states.left.size
        states = np.array(list(itertools.combinations_with_replacement(range(count), power)))
        moves = _moves(own, states)
        values = np.ones((gram.bins + 1, len(states)))
        values[-1] = (own.left[states] == 0).all(axis=1)
        total = copies_values(states, *moves, gram.chances, gram.near, gram.diagonal, values)
        return cls(gram, power, states, moves, values, total + math.log(values[0, -1]))

    @property
    def error(self) -> float:
        """Rounding of `log_total`: a step sums 2^m products of m + 2 factors, one an exponential."""
        gram, m = self.gram, self.power
        growth = 0.5 * m * (m - 1) * float(gram.diagonal.max()) * (2.0 * gram.banded.shape[1] - 1.0)
        each = (2.0**m + 3.0 * m + 12.0) * UNIT + 3.0 * ELEMENTARY
        each += growth * (gram.entry_rounding + (m + 8.0) * UNIT) + 2.0 * UNIT * abs(self.log_total)
        return float(1.05 * (gram.bins + 1.0) * each)

    def counts(self, rng: np.random.Generator, count: int) -> FloatArray:
        """How many copies join each step, shape (count, n)."""
        from dpmech.engines.gaussian_mixture.allocation_kernels import draw_copies

        gram = self.gram
        out = np.zeros((count, gram.bins))
        draw_copies(
            rng.random(out.shape),
            self.states,
            *self.moves,
            gram.chances,
            gram.near,
            gram.diagonal,
            self.values,
            out,
        )
        return out


def _moves(own: States, states: IntArray) -> tuple[IntArray, IntArray, FloatArray, IntArray]:
    """The moves of the copies: of those in equal states the first ones join, in so many ways."""
    power, count = states.shape[1], own.left.size
    places = count ** np.arange(power)[::-1]
    codes = states @ places
    same = np.diff(states, axis=1, prepend=-1) == 0
    found = []
    for mask in range(2**power):
        joined = np.array([mask >> u & 1 for u in range(power)]) == 1
        after_other = same & np.concatenate([[False], ~joined[:-1]])
        rows = np.flatnonzero(~(joined & (after_other | (own.left[states] == 0))).any(axis=1))
        ways, length, taken = np.ones(rows.size), np.zeros(rows.size), np.zeros(rows.size)
        for u in range(power):
            length, taken = (np.where(same[rows, u], x, 0.0) for x in (length, taken))
            length, taken = length + 1.0, taken + joined[u]
            ways *= 1.0 if joined[u] else length / (length - taken)
        ends = np.where(joined, own.to_join[states[rows]], own.to_rest[states[rows]])
        later = np.searchsorted(codes, np.sort(ends, axis=1) @ places)
        found.append((rows, np.full(rows.size, mask), np.rint(ways), later))
    rows, masks, ways, ends = (np.concatenate(parts) for parts in zip(*found, strict=True))
    order = np.argsort(rows, kind="stable")
    first = np.searchsorted(rows[order], np.arange(len(states) + 1))
    return first, masks[order], ways[order], ends[order]


@dataclasses.dataclass(frozen=True, eq=False)
class AllocationGram(ChainGram):
    """K with the law of random allocation.

    Attributes:
        participations: k, in [1, n - 1].
        states: the states of one example.
    """

    participations: int
    states: States

    @property
    def family(self) -> str:
        """Prefix of the accounting method names for this matrix."""
        return "allocation"

    @property
    def facts(self) -> dict[str, int]:
        """The facts that are reported with those names."""
        return {"participations": self.participations, "steps": self.bins}

    @property
    def rate(self) -> float:
        """The probability of joining a step: k / n."""
        return self.participations / self.bins

    @property
    def odds(self) -> float:
        """Those of joining a step."""
        return self.participations / (self.bins - self.participations)

    @property
    def overlapping(self) -> bool:
        """Whether columns of neighbouring steps have rows in common."""
        return bool(self.banded.shape[1] > 1)

    @functools.cached_property
    def near(self) -> FloatArray:
        """Products of each column with those that a state remembers, shape (n, S)."""
        return np.ascontiguousarray(self.by_distance @ self.states.memory.T)

    @functools.cached_property
    def chances(self) -> FloatArray:
        """Probability of joining at each step and state, shape (n, S)."""
        remaining = np.arange(self.bins, 0, -1)[:, None]
        return np.asarray(np.minimum(self.states.left / remaining, 1.0))

    @functools.cached_property
    def _logs(self) -> tuple[FloatArray, FloatArray, IntArray, IntArray]:
        """Logs of the probabilities of joining and of not joining, and the reachable states of each step."""
        n, k, left = self.bins, self.participations, self.states.left
        remaining = np.arange(n, 0, -1)[:, None]
        with np.errstate(divide="ignore"):
            joins, rests = np.log(self.chances), np.log(np.maximum(remaining - left, 0) / remaining)
        steps = np.arange(n + 1)
        low = np.searchsorted(left, np.maximum(k - steps, 0))
        high = np.searchsorted(left, np.minimum(k, n - steps), side="right")
        return joins, rests, low, high

    def log_sums(self, values: FloatArray, scale: float, offsets: FloatArray, crossing: float) -> FloatArray:
        """See the base class; O(n S) for each row."""
        from dpmech.engines.gaussian_mixture.allocation_kernels import state_sums

        joins, rests, low, high = self._logs
        crossed = crossing * self.near
        out = np.empty(len(values))
        state_sums(
            values,
            scale,
            offsets,
            joins + crossed,
            rests,
            self.states.to_join,
            self.states.to_rest,
            low,
            high,
            float(np.abs(crossed).max()),
            out,
        )
        return out

    def sum_rounding(self, largest: float, each: float, crossing: float) -> LogError:
        """See the base class.

        In numbers, a step takes two products, a sum and two factors that are exponentials of logarithms; a
        joined step adds the errors of its exponent. In logs, a step rounds five numbers of at most the size
        of the result, and takes an exponential and a logarithm. Underflow costs 1e-28 of a sum. k steps are
        joined, and all log probabilities are at most log n in size. A product of columns is at most the
        largest square, and a state remembers bands - 1 columns.
        """
        n, joined, bands = self.bins, float(self.participations), self.banded.shape[1]
        near = crossing * (bands - 1.0) * float(self.diagonal.max())
        logs = math.log(n) + 1.0
        size = joined * (largest + near) + logs
        exponent = each + near * (self.entry_rounding + (bands + 4.0) * UNIT) + 2.0 * UNIT * largest
        steps = joined * (exponent + ELEMENTARY * (2.0 + logs + near) + 8.0 * UNIT)
        steps += n * (8.0 * UNIT + ELEMENTARY * (2.0 + logs))
        sums = n * (5.0 * UNIT * (size + largest + near + logs) + 2.0 * ELEMENTARY)
        return LogError(1.05 * (steps + sums + ELEMENTARY * size + 4.0 * UNIT * size), size)

    def tilt(self, gains: FloatArray, crossing: float) -> AllocationTilt:
        """See the base class."""
        from dpmech.engines.gaussian_mixture.allocation_kernels import state_tails

        joins, rests, low, high = self._logs
        states, crossed = self.states, joins + crossing * self.near
        tails = np.zeros((self.bins + 1, states.left.size))
        state_tails(gains, crossed, rests, states.to_join, states.to_rest, low, high, tails)
        chances = np.exp(np.minimum(crossed + gains[:, None] + tails[1:, states.to_join] - tails[:-1], 0.0))
        return AllocationTilt(gains, float(tails[0, -1]), chances, states)

    def copies(self, eps: float) -> Sequence[AllocationCopies]:
        """See the base class: the law with the smallest weight bound, and those of one copy less and more."""
        found: list[tuple[float, AllocationCopies]] = []
        while (law := self.copies_of(len(found) + 2)) is not None:
            found.append((log_tail_factor(law.power, eps) + law.log_total, law))
            if len(found) > 1 and not found[-1][0] < found[-2][0]:
                break
        best = min(range(len(found)), key=lambda place: found[place][0], default=0)
        return [found[place][1] for place in (best, best - 1, best + 1) if 0 <= place < len(found)]

    def copies_of(self, power: int) -> AllocationCopies | None:
        """The law of so many copies; None if there are too many states, or numbers too large."""
        count = self.states.left.size
        groups = min(power, count - 1)
        moves = (1.0 + power / groups) ** groups
        rows = math.comb(count + power - 1, power)
        longest = self.participations * float(self.diagonal.max()) * (2.0 * self.banded.shape[1] - 1.0)
        if power > _COPIES or max(rows, _DRAWN * power) * moves * self.bins > _MOVES:
            return None
        if 0.5 * power * (power - 1) * longest > _GROWTH:
            return None
        return AllocationCopies.of(self, power)


def allocation_gram(strategy: Strategy, participations: int, *, lower: bool = False) -> AllocationGram:
    """K at sigma 1, with every entry raised by the largest rounding error (lowered for `lower`).

    Args:
        strategy: C >= 0 with few bands.
        participations: k, in [1, n - 1].
        lower: whether K is for lower bounds.

    Raises:
        UnsupportedCombinationError: if C has negative entries, or too many bands.
    """
    bands = strategy.n if strategy.bands is None else strategy.bands
    if not strategy.nonnegative:
        raise UnsupportedCombinationError(
            f"the dominating pair of random allocation is proven for C >= 0, but {strategy!r} has "
            "negative entries",
            supported="strategies with non-negative entries; the others without amplification by sampling",
        )
    if (participations + 1) * 2.0 ** (bands - 1) > _STATES:
        raise UnsupportedCombinationError(
            f"{strategy!r} has {bands} bands: {participations} random steps have more than {_STATES} states",
            supported=f"(participations + 1) * 2^(bands - 1) <= {_STATES}; BallsInBins, and BMinSep for "
            "strategies with few bands",
        )
    states = States.of(participations, bands)
    count = strategy.n * states.left.size
    spend(1e-8 * count, 64.0 * count, what=f"{states.left.size} states at {strategy.n} steps")
    return AllocationGram(rounded_columns(strategy, bands, lower=lower), participations, states)
