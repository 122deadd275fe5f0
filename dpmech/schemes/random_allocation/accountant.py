r"""The accountants of random allocation: composition over blocks of steps, and samples.

With independent noise of one size the composition below is the default, but for calibrations where samples
need less noise (`BlocksOrSamples`). `Certified()` and `Importance()` sample the pair itself
(`engines.gaussian_mixture.allocation_chain`), also with correlated noise if asked for.

An example takes part in the steps of S, a uniformly random set of k of the t steps, with gradients of norm at
most 1, and every step has noise of standard deviation sigma. The pair P = mean over S of N(1_S, sigma^2 I),
Q = N(0, sigma^2 I) dominates: from a sample y of P or of Q the releases with and without the example are
generated step by step. The gradient g_i that the example has in step i if it takes part follows from the
earlier releases and the batches of the others. With c = |g_i| <= 1, step i releases the sum of the others
plus c y_i + sigma (1 - c^2)^(1/2) Z_i in the direction of g_i, and independent noise across it. Gradients of
norm 1 in one direction attain the pair.

With x_i = exp((y_i - 1/2) / sigma^2) the likelihood ratio of the pair is L = dP / dQ = e_k(x) / C(t, k), e_k
the elementary symmetric polynomial. Under Q the x_i are independent lognormals of mean 1.

**Theorem.** Let m_1 + ... + m_k = t with all m_j >= 1. For every a >= 0 both H_a(P || Q) and H_a(Q || P) are
at most those of the composition of k independent releases, the j-th of which is one epoch of Balls-in-Bins
with m_j bins.

*Proof.* Let B_1, ..., B_k be a uniformly random partition of the steps into blocks of these sizes,
independent of x, and take one uniform step of each block. The set of these k steps is uniform: its law does
not change under permutations of the steps. Hence L = E_B [A_1 ... A_k | x], where A_j is the mean of x_i over
i in B_j. For convex F, Jensen's inequality gives F(L) <= E_B [F(A_1 ... A_k) | x]. For every partition the
A_j are, under Q, means of m_1, ..., m_k lognormals, all of which are independent, so that E_Q F(A_1 ... A_k)
does not depend on the partition, and E_Q F(L) is at most its value. A_j is the likelihood ratio of one epoch
with m_j bins, and the product is that of the composition. Both H_a(P || Q) = E_Q (L - a)_+ and
H_a(Q || P) = E_Q (1 - a L)_+ are means of convex functions of L. []

Of all sizes, those that differ by at most 1 are used: t mod k blocks of ceil(t / k) steps, the others of
floor(t / k). Blocks of one step are plain Gaussian releases. With k = 1 the block is the run, and the bound
is attained.

From below, y_1 + ... + y_t is a post-processing: N(k, t sigma^2) against N(0, t sigma^2) is a Gaussian
release of sensitivity k / sqrt(t). A test of y_1, ..., y_t gives another bound (`ThresholdTest`); the larger
one is taken.

**Groups.** Let C have at most `cycle` bands and let an example be offered the steps of one group,
s, s + cycle, ... Its gradient of step i enters rows i, ..., i + cycle - 1 alone, where no other of its
gradients does, as c_i g_i^T, of norm at most |c_i|. Here g_i follows from the releases before row i, and
what the others add to a row from those before that row. So these rows release a Gaussian of sensitivity
|c_i|, with the example or without it, and the run is the one above, of t = n / cycle steps, with norms |c_i|
in place of 1. For upper bounds all norms count as the largest, of which smaller ones are a post-processing;
for lower bounds as the smallest of one group.

References:
    Feldman and Shenfeld 2025 (arXiv:2502.08202), for random allocation by blocks; Choquette-Choo et al. 2023
    (arXiv:2306.08153), Theorem 4, for the reduction of banded strategies to independent noise.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from dpmech.engines import (
    CLOSE,
    Accountant,
    Canary,
    Certified,
    CertifiedAccountant,
    Composition,
    Curve,
    Deterministic,
    FreshEpochsAccountant,
    GaussianAccountant,
    Importance,
    ImportanceAccountant,
    Method,
    Nodes,
    Pld,
    PrivacyProfile,
    Progress,
    Solution,
    allocation_gram,
    check_nonnegative,
    least_of_a_group,
    unsampled,
)
from dpmech.exceptions import (
    ContradictionError,
    DpmechError,
    UnattainableBudgetError,
    UnsupportedCombinationError,
)
from dpmech.mechanism import Adjacency, Diagonal, Mechanism
from dpmech.numerics import (
    BOUND,
    Bounds,
    FloatArray,
    Guarantee,
    Provenance,
    metered,
    product_down,
    quotient_down,
    register_words,
    root_up,
)
from dpmech.schemes.random_allocation.conditional_moments import ConditionalMoments
from dpmech.schemes.random_allocation.participation import RandomAllocation
from dpmech.schemes.random_allocation.threshold_test import ThresholdTest

register_words(
    {
        "allocation.blocks": "PLD, random allocation of {participations} in {steps} steps by blocks of "
        "at least {block} steps, both directions",
        "allocation.moments": "random allocation of {participations} in {steps} steps: two moments given a "
        "sum of functions of the releases, both directions",
    }
)


# Samples are worth it where the blocks' sigma may be too large, in log, by this and twice the tolerance of a
# search: they add up to 0.7 % or so themselves (docs/random_allocation.md). Limit on their work, as `spend`
# counts it. Step of sigma, and tolerance, of the estimate of that excess.
_WORTH, _SECONDS, _STEP, _TOLERANCE = 0.01, 100.0, 0.01, 1e-3
# Relative resolution of the searches by two moments.
_RESOLUTION = 2e-4


class BlocksAccountant(Accountant):
    """Upper bounds by the composition of blocks; lower bounds by the sum of all releases, and by a test.

    With k = 1 and equal norms both bounds are those of the only block. See the module's documentation for the
    proofs.

    Args:
        participations: k, in [1, n - 1].
        n: number of steps that are offered to an example.
        column: bounds on the norm of a column of C: the smallest, and the largest.
        equal: whether these are the bounds on one norm, so that it is attained in every step.
        sensitivity: total sensitivity of all steps together.
    """

    def __init__(
        self, participations: int, n: int, column: Bounds, sensitivity: Bounds, *, equal: bool = True
    ) -> None:
        self.sensitivity = sensitivity
        self.guarantee = BOUND
        block, longer = divmod(n, participations)
        facts = {"participations": participations, "steps": n, "block": block}
        self.by = Provenance("allocation.blocks", facts)
        sizes = ((block, participations - longer), (block + 1, longer))
        # The composition is evaluated for one norm.
        largest = column if equal else dataclasses.replace(column, lower=column.upper)
        blocks = tuple((size, largest, times) for size, times in sizes if times)
        self._blocks = FreshEpochsAccountant(blocks, sensitivity, self.by)
        self.curve_counts = self._blocks.curve_counts
        self._attained = participations == 1 and equal
        sums = quotient_down(product_down(column.lower, participations), root_up(float(n)))
        self._sums = GaussianAccountant(Bounds.bracket(sums, sensitivity.upper, column.by))
        self._test = ThresholdTest(participations, n, column.lower)

    def delta(self, sigma: float, eps: float, *, tolerance: float) -> Bounds:
        """Bounds on delta; see the base class."""
        found = self._blocks.delta(sigma, eps, tolerance=tolerance)
        if self._attained:
            return found
        by_sum = self._sums.delta(sigma, eps, tolerance=tolerance).lower
        return self._above(found, max(by_sum, self._test.delta(sigma, eps)))

    def upper_add(self, sigma: float, eps: float) -> float:
        """An upper bound on the ADD direction alone."""
        return self._blocks.upper_add(sigma, eps)

    def upper_delta(self, sigma: float, eps: float, *, tolerance: float) -> float:
        """The upper bound, without requirements on the lower one."""
        return self._blocks.upper_delta(sigma, eps, tolerance=tolerance)

    def bounded_delta(self, sigma: float, eps: float, *, tolerance: float) -> Bounds:
        """Bounds for the composition of the blocks."""
        return self._blocks.delta(sigma, eps, tolerance=tolerance)

    def epsilon(self, sigma: float, delta: float, *, tolerance: float) -> Bounds:
        """Bounds on eps; see the base class."""
        found = self._blocks.epsilon(sigma, delta, tolerance=tolerance)
        return self._above(found, self._lower_eps(sigma, delta, tolerance))

    def calibrate(self, eps: float, delta: float, *, rtol: float, progress: Progress) -> Solution:
        """The smallest sigma at which the composition of the blocks meets the budget."""
        found = self._blocks.calibrate(eps, delta, rtol=rtol, progress=progress)
        lower = self._lower_eps(found.sigma, delta, rtol)
        return dataclasses.replace(found, achieved=self._above(found.achieved, lower))

    def rough_sigma(self, eps: float, delta: float) -> float:
        """That of the composition of the blocks; see the base class."""
        return self._blocks.rough_sigma(eps, delta)

    def start_for_mu(self, mu: float) -> float:
        """That of the composition of the blocks; see the base class."""
        return self._blocks.start_for_mu(mu)

    def profile(self, sigma: float, adjacency: Adjacency, *, rel_error: float) -> PrivacyProfile:
        """The composition of the blocks; with k > 1, lower bounds are those of the sum of all releases."""
        found = self._blocks.profile(sigma, adjacency, rel_error=rel_error)
        if self._attained:
            return found
        curves = tuple(
            (Curve(_from_above(one.remove), _from_above(one.add)), times) for one, times in found.parts.curves
        )
        # Only lower bounds use the first number: there, the sum is in place of the blocks.
        mu = quotient_down(self._sums.sensitivity.lower, sigma)
        parts = Composition((product_down(mu, mu), found.parts.gaussian[1]), curves=curves)
        return dataclasses.replace(found, parts=parts)

    def nodes_label(self, nodes: int) -> tuple[Guarantee, Provenance]:
        """Those of the accountant, which computes nodes for all results."""
        return self._blocks.nodes_label(nodes)

    def excess(self, sigma: float, eps: float, delta: float) -> float:
        """By how much sigma falls until the lower end is eps, in log, to first order; no guarantee."""
        near = sigma * (1.0 - _STEP)
        here, there = (self._lower_eps(one, delta, _TOLERANCE) for one in (sigma, near))
        if self._attained or not 0.0 < here < eps or there <= here:
            return 0.0
        return math.log(eps / here) * -math.log1p(-_STEP) / math.log(there / here)

    def _lower_eps(self, sigma: float, delta: float, tolerance: float) -> float:
        if self._attained:
            return 0.0
        by_sum = self._sums.epsilon(sigma, delta, tolerance=tolerance).lower
        return max(by_sum, self._test.epsilon(sigma, delta))

    def _above(self, found: Bounds, lower: float) -> Bounds:
        """Bounds of the composition as bounds of the mechanism, with a lower end of its own."""
        return found if self._attained else dataclasses.replace(found, lower=min(lower, found.upper))


class MomentsAccountant(BlocksAccountant):
    """As the blocks, but bounded from above by `ConditionalMoments` where that is less: `Deterministic()`.

    Args:
        participations: as for the blocks.
        n: as for the blocks.
        column: as for the blocks.
        sensitivity: as for the blocks.
        equal: as for the blocks.
    """

    def __init__(
        self, participations: int, n: int, column: Bounds, sensitivity: Bounds, *, equal: bool
    ) -> None:
        super().__init__(participations, n, column, sensitivity, equal=equal)
        self._moments = ConditionalMoments(participations, n, column.upper) if participations > 1 else None
        if self._moments is not None:
            self.by = Provenance("allocation.moments", {"participations": participations, "steps": n})

    def delta(self, sigma: float, eps: float, *, tolerance: float) -> Bounds:
        """Bounds on delta; see the base class."""
        found = super().delta(sigma, eps, tolerance=tolerance)
        return self._below(found, self._least(sigma, eps, found.upper))

    def upper_delta(self, sigma: float, eps: float, *, tolerance: float) -> float:
        """The upper bound, without requirements on the lower one."""
        return self._least(sigma, eps, super().upper_delta(sigma, eps, tolerance=tolerance))

    def epsilon(self, sigma: float, delta: float, *, tolerance: float) -> Bounds:
        """Bounds on eps; see the base class."""
        found = super().epsilon(sigma, delta, tolerance=tolerance)
        low, high = found.lower, found.upper
        # Only the values at which delta is met enter the result.
        while self._moments is not None and high - low > _RESOLUTION * high:
            near = high - 0.5 * (high - low)
            if self._least(sigma, near, math.inf, enough=delta) <= delta:
                high = near
            else:
                low = near
        return self._below(found, high)

    def calibrate(self, eps: float, delta: float, *, rtol: float, progress: Progress) -> Solution:
        """The smallest sigma at which a bound meets the budget; see the base class."""
        blocks = super().calibrate(eps, delta, rtol=rtol, progress=progress)
        excess = self.excess(blocks.sigma, eps, delta)
        low, high = math.log(blocks.sigma) - excess, math.log(blocks.sigma)
        while self._moments is not None and high - low > _RESOLUTION:
            # The bound is close to the lower end.
            near = low + (0.25 if high == math.log(blocks.sigma) else 0.5) * (high - low)
            found = self._least(math.exp(near), eps, math.inf, enough=delta)
            progress(f"sigma {math.exp(near):.6g}: delta <= {found:.4g}")
            low, high = (low, near) if found <= delta else (near, high)
        if high == math.log(blocks.sigma):
            return dataclasses.replace(blocks, achieved=self._below(blocks.achieved, eps))
        sigma = math.exp(high)
        lower = min(self._lower_eps(sigma, delta, rtol), eps)
        return dataclasses.replace(blocks, sigma=sigma, achieved=Bounds(lower, eps, self.guarantee, self.by))

    def _least(self, sigma: float, eps: float, blocks: float, *, enough: float = 0.0) -> float:
        """The least bound on delta, not above that of the blocks; any bound if it is at most `enough`."""
        if self._moments is None:
            return blocks
        remove = min(blocks, self._moments.delta(sigma, eps, add=False))
        add = min(blocks, self.upper_add(sigma, eps))
        if remove < blocks and add > max(remove, enough):
            add = min(add, self._moments.delta(sigma, eps, add=True))
        return max(remove, add)

    def _below(self, found: Bounds, upper: float) -> Bounds:
        return Bounds(min(found.lower, upper), min(found.upper, upper), self.guarantee, self.by)


class BlocksOrSamples(BlocksAccountant):
    """The default: as the blocks, but calibrates by samples where the plan says that sigma is smaller.

    The excess of the blocks is measured against the lower end, without samples, so that the choice depends on
    the plan, the budget and the tolerance alone, as does whether the samples are foreseen to take too long.

    Args:
        participations: as for the blocks.
        n: as for the blocks.
        column: as for the blocks.
        sensitivity: as for the blocks.
        equal: as for the blocks.
        method: the method by samples.
        sampled: makes its accountant.
    """

    def __init__(
        self,
        participations: int,
        n: int,
        column: Bounds,
        sensitivity: Bounds,
        *,
        equal: bool,
        method: Certified,
        sampled: Callable[[], Accountant],
    ) -> None:
        super().__init__(participations, n, column, sensitivity, equal=equal)
        self._certified, self._sampled = method, sampled

    def calibrate(self, eps: float, delta: float, *, rtol: float, progress: Progress) -> Solution:
        """A sigma that meets the budget; its `method` says whether samples were drawn."""
        found = dataclasses.replace(super().calibrate(eps, delta, rtol=rtol, progress=progress), method=Pld())
        excess = self.excess(found.sigma, eps, delta)
        if excess <= _WORTH + 2.0 * rtol:
            return found
        progress(f"blocks of steps may need {100.0 * excess:.1f} % too much noise: samples are drawn")
        try:
            with metered(_SECONDS, math.inf):
                sampled = self._sampled().calibrate(eps, delta, rtol=rtol, progress=progress)
        except (UnattainableBudgetError, ContradictionError):
            raise
        except (DpmechError, ArithmeticError) as error:
            progress(f"{self._certified!r}: {error}; blocks of steps answer")
            return found
        if sampled.sigma >= found.sigma:
            return found
        return dataclasses.replace(sampled, method=sampled.method or self._certified)


def _from_above(nodes: Nodes) -> Nodes:
    """Nodes without lower bounds."""
    return dataclasses.replace(nodes, lower=(0.0,) * len(nodes.lower))


def of_allocation(
    participation: RandomAllocation,
    mechanism: Mechanism,
    method: Method | None,
    rng: np.random.Generator | None,
) -> Accountant:
    """The accountant of a mechanism under random allocation.

    Raises:
        UnsupportedCombinationError: for a strategy with negative entries or too many bands, or a method that
            does not apply.
    """
    strategy, bounds, count = mechanism.strategy, mechanism.sensitivity, participation.participations
    turns = participation.turns(mechanism.steps)
    if participation.cycle == 1:
        check_nonnegative(strategy)
    column, equal = _column(participation, mechanism)
    independent = participation.cycle > 1 or (strategy.bands == 1 and equal)
    if not (method is None or isinstance(method, Pld | Deterministic | Certified | Importance)):
        raise UnsupportedCombinationError(
            f"{method!r} does not apply to {participation!r}",
            supported="Certified(), Importance(), and with Identity or groups method=None, Pld() or "
            "Deterministic()",
        )
    # A call that is one of several candidates arrives here with the default method and its share of beta.
    shared = isinstance(method, Certified) and method.calls > 1 and method == Certified(calls=method.calls)
    if (
        method is None
        or isinstance(method, Pld | Deterministic)
        or (shared and (independent or count == turns))
    ):
        if count == turns:
            return unsampled(bounds, None)  # every example joins every step that it is offered
        if independent and isinstance(method, Pld):
            return BlocksAccountant(count, turns, column, bounds, equal=equal)
        if independent and isinstance(method, Deterministic):
            return MomentsAccountant(count, turns, column, bounds, equal=equal)
        if independent:
            own = method if isinstance(method, Certified) else Certified()
            sampled = functools.partial(_by_samples, participation, mechanism, own, rng)
            return BlocksOrSamples(count, turns, column, bounds, equal=equal, method=own, sampled=sampled)
        reason = "correlates it" if strategy.bands != 1 else "has steps with more noise than others"
        named = "the default method" if method is None else repr(method)
        raise UnsupportedCombinationError(
            f"{named} takes independent noise of one size under {participation!r}, and {strategy!r} {reason}",
            supported="method=Certified() or Importance() for strategies with few bands; Identity; a cycle "
            "of at least as many groups as bands; BallsInBins, and BMinSep for strategies with few bands",
        )
    if count == turns:
        raise UnsupportedCombinationError(
            f"{method!r} samples, and with {participation!r} every example joins each of the {turns} steps",
            supported="method=None",
        )
    return _by_samples(participation, mechanism, method, rng)


def _by_samples(
    participation: RandomAllocation,
    mechanism: Mechanism,
    method: Certified | Importance,
    rng: np.random.Generator | None,
) -> Accountant:
    """The accountant that samples the pair; with groups that of the steps of one."""
    strategy, bounds, count = mechanism.strategy, mechanism.sensitivity, participation.participations
    column, equal = _column(participation, mechanism)
    turns, above, below = participation.turns(mechanism.steps), strategy, strategy
    if participation.cycle > 1:
        above, below = (Diagonal(np.full(turns, norm)) for norm in (column.upper, column.lower))
    gram = allocation_gram(above, count)
    if isinstance(method, Importance):
        return ImportanceAccountant(gram, bounds, method, rng)
    independent = participation.cycle > 1 or (strategy.bands == 1 and equal)
    blocks = BlocksAccountant(count, turns, column, bounds, equal=equal) if independent else None
    return CertifiedAccountant(
        gram,
        bounds,
        method,
        rng,
        lower=allocation_gram(below, count, lower=True),
        settled_add=None if blocks is None else blocks.upper_add,
        settle_first=blocks is not None,
    )


def _column(participation: RandomAllocation, mechanism: Mechanism) -> tuple[Bounds, bool]:
    """The smallest norm of a column of the steps that one example may be offered, and the largest of all.

    Returns:
        The bounds, and whether the norms are equal but for rounding.

    Raises:
        UnsupportedCombinationError: if steps of one group share noise.
    """
    strategy, norms = mechanism.strategy, mechanism.strategy.column_norms()
    least, most = float(norms.min()), float(norms.max())
    if participation.cycle > 1:
        # An example may be in any group: the one whose smallest norm is largest says most.
        turns = participation.turns(mechanism.steps)
        least = product_down(least_of_a_group(mechanism, participation.cycle, turns), most)
    moved = 1.01 * (strategy.error + strategy.gram_rounding)
    column = Bounds.bracket(least, most, Provenance("sensitivity.largest_column")).widened(moved)
    return column, least >= most * (1.0 - CLOSE)


def group_columns(
    participation: RandomAllocation, mechanism: Mechanism
) -> tuple[npt.NDArray[np.intp], FloatArray]:
    """The steps of the group with the largest sum of squared norms, and their columns of C, shape (t, n).

    Raises:
        UnsupportedCombinationError: if steps of one group share noise.
    """
    least_of_a_group(mechanism, participation.cycle)
    squares = mechanism.strategy.column_norms() ** 2
    group = int(squares.reshape(-1, participation.cycle).sum(axis=0).argmax())
    steps = np.arange(group, mechanism.steps, participation.cycle)
    return steps, mechanism.strategy.matmul(np.eye(mechanism.steps)[:, steps]).T


@dataclasses.dataclass(frozen=True)
class Allocated(Canary):
    """A canary in a uniformly random set of k of the given steps, whose columns of C are orthogonal.

    Args:
        participations: k, in [1, t].
        steps: indices of the steps, shape (t,).
        columns: their columns of C, shape (t, n).
    """

    participations: int
    steps: npt.NDArray[np.intp]
    columns: FloatArray

    def draw(self, runs: int, generator: np.random.Generator, *, present: bool) -> FloatArray:
        """Sample gradients, shape (runs, n)."""
        gradients = np.zeros((runs, self.columns.shape[1]))
        if present:
            ranked = np.argsort(generator.random((runs, self.steps.size)), axis=1)
            np.put_along_axis(gradients, self.steps[ranked[:, : self.participations]], 1.0, axis=1)
        return gradients

    def log_ratio(self, outputs: FloatArray, sigma: float) -> FloatArray:
        """Log-likelihood ratio of outputs = C gradients + sigma Z, shape (m, n).

        The elementary symmetric polynomial of the ratios of the steps over their number of sets, which a
        recursion over the steps gives: E_j(i) = (1 - j / i) E_j(i - 1) + (j / i) x_i E_(j-1)(i - 1).
        """
        losses = (outputs @ self.columns.T - 0.5 * np.sum(self.columns**2, axis=1)) / sigma**2
        count = self.participations
        means = np.full((count + 1, len(outputs)), -np.inf)
        means[0] = 0.0
        with np.errstate(divide="ignore"):
            for i, loss in enumerate(losses.T, start=1):
                top = min(i, count)
                j = np.arange(1, top + 1)[:, None]
                kept, joined = np.log1p(-j / i), np.log(j / i)
                means[1 : top + 1] = np.logaddexp(kept + means[1 : top + 1], joined + loss + means[:top])
        return np.asarray(means[count])
