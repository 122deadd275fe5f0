r"""delta(eps) of Balls-in-Bins by importance sampling: an estimate whose cost does not depend on delta.

`delta = max(H_eps(P||Q), H_eps(Q||P))` for the dominating pair of the balls-in-bins paper (Lemma 3.2), both
terms from its b x b Gram matrix. A pilot with separate random numbers sets the probabilities of the mixture
and the sample size; the interval comes from a main run of that fixed size, so that the pilot causes no bias.
"""

import concurrent.futures
import dataclasses
import math

import numpy as np

from dpmech.engines.gaussian_mixture.gram import BinGram
from dpmech.engines.gaussian_mixture.mixtures import add_mixture, remove_mixture
from dpmech.engines.gaussian_mixture.pilots import FLOORS, LEAST_PROBABILITY, STAGES, adapt, pilot_size
from dpmech.engines.gaussian_mixture.proposal import Proposal
from dpmech.engines.gaussian_mixture.samples import (
    WeightSummary,
    draw_entropy,
    likelihood_interval,
    summarise,
    weight_sample,
)
from dpmech.exceptions import InvalidParameterError, NumericalError
from dpmech.guards import check_confidence, check_integer, check_real
from dpmech.numerics import Ladder

CARRIERS = 3
LEAST_SHOWN = 0.01


@dataclasses.dataclass(frozen=True)
class SamplingPlan:
    """The outcome of a pilot, which can be reused at nearby sigma with the same random numbers.

    Attributes:
        entropy: seeds of every block.
        remove_parts: names of the REMOVE parts.
        remove_weights: their probabilities.
        add_parts: names of the ADD parts.
        add_weights: their probabilities.
        remove_samples: size of the REMOVE run.
        add_samples: size of the ADD run.
        enlarged: whether the sizes were increased because a first sample did not show its tail; the main runs
            then use other random numbers.
    """

    entropy: tuple[int, ...]
    remove_parts: tuple[str, ...]
    remove_weights: tuple[float, ...]
    add_parts: tuple[str, ...]
    add_weights: tuple[float, ...]
    remove_samples: int
    add_samples: int
    enlarged: bool = False


@dataclasses.dataclass(frozen=True)
class DirectionEstimate:
    """One direction of delta (an estimate).

    Attributes:
        delta: the mean weight.
        lower: the lower end of its interval.
        upper: the upper end.
        relative_error: relative standard error.
        effective_samples: (sum w)^2 / sum w^2, w the weights.
        largest_share: the largest weight over the sum.
        tail_shape: Pareto shape of the largest weights (NaN where too few are positive).
        weight_bound: a proved bound on every weight; infinite if there is none.
        samples: number of draws.
        carried: share of the estimate that comes from each part of the proposal.
    """

    delta: float
    lower: float
    upper: float
    relative_error: float
    effective_samples: float
    largest_share: float
    tail_shape: float
    weight_bound: float
    samples: int
    carried: dict[str, float]


@dataclasses.dataclass(frozen=True)
class Estimate:
    """delta(eps) with a two-sided confidence interval (an estimate, not a bound).

    Attributes:
        eps: the privacy loss level.
        delta: the larger of the two directions.
        lower: the lower end.
        upper: the upper end.
        confidence: nominal level of the interval.
        remove: H_eps(P||Q).
        add: H_eps(Q||P).
        plan: reuse it at other sigma for common random numbers.
    """

    eps: float
    delta: float
    lower: float
    upper: float
    confidence: float
    remove: DirectionEstimate
    add: DirectionEstimate
    plan: SamplingPlan

    @property
    def samples(self) -> int:
        """Number of draws in the main runs of both directions."""
        return self.remove.samples + self.add.samples

    @property
    def deciding(self) -> DirectionEstimate:
        """The direction with the larger delta."""
        return self.remove if self.remove.delta >= self.add.delta else self.add

    @property
    def relative_error(self) -> float:
        """Relative standard error of the direction with the larger delta."""
        return self.deciding.relative_error

    @property
    def carriers(self) -> dict[str, float | str]:
        """The direction with the larger delta, and the shares of the parts of its proposal, largest first."""
        shares = sorted(self.deciding.carried.items(), key=lambda item: -item[1])
        shown = {name: float(share) for name, share in shares[:CARRIERS] if share >= LEAST_SHOWN}
        return {"direction": "REMOVE" if self.deciding is self.remove else "ADD"} | shown


# Relative errors that samples are sized for: a request between two of them uses the smaller.
_DIGITS = ("5", "3", "2", "1.5", "1", "0.7")
REL_ERRORS = Ladder(tuple(float(f"{digits}e-{power}") for power in range(1, 5) for digits in _DIGITS)[:-1])
LARGEST_SHARE = 0.01
LARGEST_SHAPE = 0.5
DOUBTFUL_SHAPE = 0.3
SAFE_SHARE = 0.002
NEGLIGIBLE = 1e-3
EXEMPT = 0.05
# Shares of the error for the first sample and for the enlarged one, which is rare: each may miss.
ERROR_SHARES = (0.9, 0.1)


def estimate_delta(
    gram: BinGram,
    eps: float,
    *,
    rel_error: float = 0.02,
    confidence: float = 0.9999,
    rng: np.random.Generator | None = None,
    executor: concurrent.futures.Executor | None = None,
    max_samples: int = 4_000_000,
    plan: SamplingPlan | None = None,
) -> Estimate:
    r"""delta(eps) of the dominating pair with Gram matrix `gram`, both directions, by importance sampling.

    **Guarantee:** estimate. The interval is an empirical likelihood interval of level `confidence` (each
    direction at half the error, so that both hold together); it is asymptotic. It is refused if the sample
    does not show the tail: if one weight exceeds 1 % of the sum; and, unless the proved weight bound alone
    keeps every possible weight below 1 % of the sum, if the Pareto shape of the largest weights is 0.5 or
    more (no finite variance). A direction whose proved weight bound, or whose upper end, is below 1/20 of the
    other direction is exempt: it would have to be 20 times the value that its sample shows. Before refusing,
    one larger sample is drawn: at least four times the size, with other random numbers, so that the first one
    does not bias the second. Each sample has its share of the error (9/10 and 1/10), so that the level holds
    over both.

    The result depends only on `rng` (or the plan), not on the executor.

    Args:
        gram: the Gram matrix K.
        eps: in [1e-4, 1e4].
        rel_error: target relative standard error, in [1e-4, 0.5]; the sample is sized for the largest of
            0.5, 0.3, 0.2, 0.15, 0.1, 0.07, 0.05, ... that is at most this.
        confidence: level of the interval, in (0, 1).
        rng: seeds the blocks; None uses operating system entropy. Ignored if a plan is given.
        executor: where to run blocks; None runs them in this process.
        max_samples: largest number of draws in a main run.
        plan: an earlier plan: the same random numbers, probabilities and sizes; design points are computed
            again.

    Returns:
        The estimate.

    Raises:
        InvalidParameterError: if an argument is out of range, or the plan does not fit.
        NumericalError: if the weights are too uneven, or all 0.

    References:
        The balls-in-bins paper, Lemma 3.2 (the dominating pair); `tuples`, `points`.

    Examples:
        >>> import numpy as np
        >>> from dpmech.engines.gaussian_mixture.dense_gram import DenseGram
        >>> result = estimate_delta(DenseGram([[1.0]]), 1.0, rng=np.random.default_rng(1))
        >>> result.lower < 0.126937 < result.upper
        True
    """
    eps = check_real("eps", eps, minimum=1e-4, maximum=1e4)
    rel_error = check_real("rel_error", rel_error, minimum=1e-4, maximum=0.5)
    confidence = check_confidence(confidence)
    max_samples = check_integer("max_samples", max_samples, minimum=1000)
    remove = remove_mixture(gram, eps)
    add = add_mixture(gram, eps)
    if plan is None:
        plan = _plan(remove, add, draw_entropy(rng), REL_ERRORS.within(rel_error), max_samples, executor)
    remove = _planned(remove, plan, plan.remove_parts, plan.remove_weights)
    add = _planned(add, plan, plan.add_parts, plan.add_weights)
    while True:
        level = 1.0 - 0.5 * (1.0 - confidence) * ERROR_SHARES[plan.enlarged]
        removed = _direction(remove, plan, "remove", level, executor)
        added = _direction(add, plan, "add", level, executor)
        doubts = (_doubt("REMOVE", removed, added), _doubt("ADD", added, removed))
        if not any(doubts):
            break
        sizes = _larger(removed, max_samples), _larger(added, max_samples)
        if plan.enlarged or (plan.remove_samples, plan.add_samples) == sizes:
            raise NumericalError(doubts[0] or doubts[1])
        plan = dataclasses.replace(plan, remove_samples=sizes[0], add_samples=sizes[1], enlarged=True)
    return Estimate(
        eps=eps,
        delta=max(removed.delta, added.delta),
        lower=max(removed.lower, added.lower),
        upper=max(removed.upper, added.upper),
        confidence=confidence,
        remove=removed,
        add=added,
        plan=plan,
    )


def _planned(
    proposal: Proposal, plan: SamplingPlan, names: tuple[str, ...], weights: tuple[float, ...]
) -> Proposal:
    """The proposal with the plan's probabilities; parts that the plan lacks get a small one."""
    if len(names) != len(weights) or not set(names) & set(proposal.names):
        raise InvalidParameterError("plan", plan, f"a plan with the parts {proposal.names}")
    known = dict(zip(names, weights, strict=True))
    found = np.array([known.get(name, LEAST_PROBABILITY) for name in proposal.names])
    return proposal.reweighted(found / found.sum())


def _plan(
    remove: Proposal,
    add: Proposal,
    entropy: tuple[int, ...],
    rel_error: float,
    max_samples: int,
    executor: concurrent.futures.Executor | None,
) -> SamplingPlan:
    remove = adapt(remove, entropy, STAGES["remove"], executor, FLOORS)
    size = pilot_size(remove.gram.bins)

    def seen(name: str, proposal: Proposal, count: int) -> WeightSummary:
        sample = weight_sample(proposal, entropy, STAGES[name].sizing, count, executor)
        return summarise(sample.log_weights)

    removed = seen("remove", remove, 2 * size)
    pilots = {"remove": (remove, removed)}
    if add.log_weight_bound > removed.log_mean + math.log(NEGLIGIBLE):
        add = adapt(add, entropy, STAGES["add"], executor, {})
        pilots["add"] = (add, seen("add", add, 2 * size))
    top = max(pilot.log_mean for _, pilot in pilots.values())
    sizes = {"add": size}
    for name, (proposal, pilot) in pilots.items():
        sizes[name] = 2 * size
        if pilot.log_mean == -math.inf:
            continue
        importance = math.exp(max(pilot.log_mean - top, -40.0))
        needed = pilot.samples * (pilot.relative_error * importance / rel_error) ** 2
        if importance > NEGLIGIBLE:
            needed = max(needed, pilot.samples * pilot.largest_share / SAFE_SHARE, 2.0 * size)
            if pilot.tail_shape > DOUBTFUL_SHAPE:
                safe = math.exp(min(proposal.log_weight_bound - pilot.log_mean, 60.0)) * 1.2 / LARGEST_SHARE
                needed = safe if safe < 3.0 * needed else needed
        sizes[name] = int(min(max(needed, sizes[name]), max_samples))
    return SamplingPlan(
        entropy,
        remove.names,
        tuple(remove.weights.tolist()),
        add.names,
        tuple(add.weights.tolist()),
        sizes["remove"],
        sizes["add"],
    )


def _larger(one: DirectionEstimate, max_samples: int) -> int:
    """Four times the size, or up to sixteen times if the proved bound then keeps every weight small."""
    enough = 1.2 * one.weight_bound / (LARGEST_SHARE * max(one.lower, 1e-300))
    factor = min(max(4.0, enough / one.samples), 16.0)
    return int(min(factor * one.samples, max_samples))


def _direction(
    proposal: Proposal,
    plan: SamplingPlan,
    name: str,
    level: float,
    executor: concurrent.futures.Executor | None,
) -> DirectionEstimate:
    samples = plan.remove_samples if name == "remove" else plan.add_samples
    stage = STAGES[name].enlarged if plan.enlarged else STAGES[name].main
    sample = weight_sample(proposal, plan.entropy, stage, samples, executor)
    if np.any(np.isnan(sample.log_weights)):
        raise NumericalError(f"a weight of the {name} direction is not a number")
    summary: WeightSummary = summarise(sample.log_weights)
    bound = (
        math.exp(min(proposal.log_weight_bound, 700.0)) if proposal.log_weight_bound < math.inf else math.inf
    )
    if np.ptp(np.exp(np.maximum(sample.log_weights, -745.0))) == 0.0 or summary.log_mean == -math.inf:
        lower, upper = 0.0, bound
    else:
        lower, upper = likelihood_interval(sample.log_weights, level)
    return DirectionEstimate(
        delta=math.exp(summary.log_mean),
        lower=lower,
        upper=min(upper, bound),
        relative_error=summary.relative_error,
        effective_samples=summary.effective_samples,
        largest_share=summary.largest_share,
        tail_shape=summary.tail_shape,
        weight_bound=bound,
        samples=summary.samples,
        carried=dict(zip(proposal.names, sample.shares.tolist(), strict=True)),
    )


def _doubt(name: str, one: DirectionEstimate, other: DirectionEstimate) -> str:
    """Why the interval of a direction that could decide cannot be trusted; empty if it can."""
    if min(one.upper, one.weight_bound) <= EXEMPT * other.lower:
        return ""
    facts = (
        f"{name} weights: mean {one.delta:.4g}, largest {one.largest_share:.3%} of the sum of {one.samples}, "
        f"effective samples {one.effective_samples:.0f}, Pareto shape {one.tail_shape:.2f}, "
        f"proved bound {one.weight_bound:.4g}"
    )
    if one.delta <= 0.0:
        return f"no sample had a positive weight; {facts}"
    if one.largest_share > LARGEST_SHARE:
        return f"one weight exceeds {LARGEST_SHARE:.0%} of the sum; {facts}"
    bounded = one.weight_bound <= LARGEST_SHARE * one.samples * one.lower
    if not bounded and one.tail_shape >= LARGEST_SHAPE:
        return f"the tail of the weights is too heavy for an interval; {facts}"
    return ""
