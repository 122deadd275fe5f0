r"""Rigorous finite-sample bounds on delta(eps) of Balls-in-Bins, by sampling.

Both directions are means of independent weights. For the upper end the weights have proved bounds: REMOVE by
the star of `tuples` (together with the nominal and scaled parts), ADD by `points.add_point`. The lower end
needs none. Bets (`betting`) turn weights into bounds with no asymptotics, and stop as soon as they have
proved what was asked. A pilot with its own random numbers chooses probabilities, parts and first stakes
before the samples that count are drawn.
"""

import concurrent.futures
import contextlib
import dataclasses
import math

import numpy as np

from dpmech.engines.gaussian_mixture.gram import BinGram
from dpmech.engines.gaussian_mixture.pilots import NOTHING, PILOT_SAMPLES, STAGES, Pilots, share_of
from dpmech.engines.gaussian_mixture.proposal import Proposal
from dpmech.engines.gaussian_mixture.samples import draw_entropy, weight_stream
from dpmech.engines.gaussian_mixture.sequential_tests import (
    LowerTest,
    SequentialTest,
    UpperTest,
    rounded_bound,
)
from dpmech.guards import check_integer, check_real

# Where no threshold is given, this often what the pilot expects is drawn at most; with one, that often.
PATIENCE = 1.5
STUBBORN = 3.0
# Of an error for both ends, the part of the lower one.
LOWER_SHARE = 0.5


@dataclasses.dataclass(frozen=True)
class CertifiedDirection:
    """One direction of a certified bound.

    Attributes:
        lower: a lower bound; 0 where none was asked for.
        upper: an upper bound.
        estimate: the mean weight of the same sample (an estimate).
        weight_bound: the proved bound on every weight.
        samples: independent weights that count; 0 where the bound on every weight is enough.
    """

    lower: float
    upper: float
    estimate: float
    weight_bound: float
    samples: int


@dataclasses.dataclass(frozen=True)
class CertifiedBound:
    """lower <= delta(eps) <= upper with probability at least 1 - beta.

    Attributes:
        eps: the privacy loss level.
        lower: the larger of the lower bounds.
        upper: the larger of the upper bounds.
        beta: the probability, over the samples, that delta is outside.
        remove: H_eps(P||Q).
        add: H_eps(Q||P).
    """

    eps: float
    lower: float
    upper: float
    beta: float
    remove: CertifiedDirection
    add: CertifiedDirection

    @property
    def samples(self) -> int:
        """Draws that count, both directions."""
        return self.remove.samples + self.add.samples

    def meets(self, threshold: float) -> bool:
        """Whether delta <= threshold is proved at level 1 - beta."""
        return self.upper <= threshold


def certify_delta(
    gram: BinGram,
    eps: float,
    threshold: float | None = None,
    *,
    beta: float = 1e-9,
    rel_gap: float = 0.05,
    lower: bool = False,
    rng: np.random.Generator | None = None,
    executor: concurrent.futures.Executor | None = None,
    max_samples: int = 20_000_000,
    pilots: Pilots | None = None,
) -> CertifiedBound:
    r"""Bounds on delta(eps), true with probability at least 1 - beta, both directions.

    **Guarantee:** with probability 1 - beta over the samples (for normal draws that have the Gram matrix
    `gram`), at any sample size; the bets bound their own rounding, and that of the weights has a proved bound
    (`proposal`). Directions that need samples share beta; so do
    both ends where both are asked for. One call spends beta: a search that calls again and again must divide
    it, or test an order fixed in advance and end at the first failure. It must not be repeated until it
    passes.

    The cost grows with the ratio of the weight bound to delta, which is at most that of a moment (RDP)
    bound on delta: 7 to 200 over most of the range. It grows large where delta is tiny and b large with
    nearly independent bins; then the bound is merely wide at `max_samples`, never wrong.

    Args:
        gram: the Gram matrix K.
        eps: in [1e-4, 1e4].
        threshold: what is to be proved an upper bound; drawing ends when it is. None aims at `rel_gap`.
        beta: error probability, in (0, 1).
        rel_gap: the relative gap between a bound and delta aimed at, in [0.005, 10]; for the upper end, only
            without a threshold.
        lower: whether to bound delta from below as well.
        rng: seeds the blocks; None takes operating system entropy.
        executor: where to run blocks; None runs them here.
        max_samples: most draws in one direction.
        pilots: those of this point, drawn with other random numbers than `rng` gives; None draws them.

    Returns:
        The bounds, with their parts.

    Raises:
        InvalidParameterError: if an argument is out of range.
        NumericalError: if a weight exceeds its proved bound (a fault, never chance).

    References:
        The balls-in-bins paper, Lemma 3.2; Waudby-Smith and Ramdas 2024, arXiv:2010.09686v7.

    Examples:
        >>> import numpy as np
        >>> from dpmech.engines.gaussian_mixture.dense_gram import DenseGram
        >>> bound = certify_delta(DenseGram([[1.0]]), 1.0, rng=np.random.default_rng(1), lower=True)
        >>> 0.126937 / 1.1 < bound.lower < 0.126937 < bound.upper < 0.126937 * 1.1
        True
    """
    eps = check_real("eps", eps, minimum=1e-4, maximum=1e4)
    beta = check_real("beta", beta, minimum=0.0, maximum=1.0, open_minimum=True, open_maximum=True)
    rel_gap = check_real("rel_gap", rel_gap, minimum=0.005, maximum=10.0)
    max_samples = check_integer("max_samples", max_samples, minimum=1000)
    if threshold is not None:
        threshold = check_real("threshold", threshold, minimum=0.0, maximum=1.0, open_minimum=True)
    entropy = draw_entropy(rng)
    if pilots is None:
        pilots = Pilots.at(gram, eps, entropy, executor, threshold=None if lower else threshold)
    decider, directions = pilots.decider, dict[str, CertifiedDirection]()
    below = LOWER_SHARE * beta if lower and pilots.weights else 0.0
    share = share_of(beta - below, len(pilots.weights))
    for name, proposal in pilots.proposals.items():
        if name not in pilots.weights:
            bound = rounded_bound(proposal.log_weight_bound, proposal.weight_rounding)
            settled = min(bound, pilots.settled.get(name, bound))
            directions[name] = CertifiedDirection(0.0, settled, math.nan, bound, 0)
            continue
        summary = pilots.summary(pilots.decider)
        off = min(2.0 * summary.relative_error, 0.5)
        top = math.exp(summary.log_mean + math.log1p(off)) * (1.0 + rel_gap)
        upper = UpperTest(
            proposal.log_weight_bound,
            share,
            top if threshold is None else threshold,
            pilots.weights[name],
            rounding=proposal.weight_rounding,
        )
        patience = PATIENCE if threshold is None else STUBBORN
        found = _drawn(proposal, name, upper, entropy, executor, patience=patience, max_samples=max_samples)
        if below > 0.0 and name == decider and summary.log_mean > math.log(NOTHING):
            # The same draws, their weights rounded the other way.
            goal = math.exp(summary.log_mean) * (1.0 - off) / (1.0 + rel_gap)
            test = LowerTest(
                summary.log_mean, below, goal, pilots.weights[name], rounding=proposal.weight_rounding
            )
            other = proposal.rounded_to(below=True)
            least = _drawn(other, name, test, entropy, executor, patience=patience, max_samples=max_samples)
            found = dataclasses.replace(found, lower=least.lower, samples=max(found.samples, least.samples))
        directions[name] = found
    return CertifiedBound(
        eps,
        max(one.lower for one in directions.values()),
        max(one.upper for one in directions.values()),
        beta,
        directions["remove"],
        directions["add"],
    )


def certified_floor(
    pilots: Pilots, threshold: float, beta: float, *, rng: np.random.Generator, max_samples: int
) -> float:
    """A lower bound on delta(eps), true with probability at least 1 - beta; drawing ends at the threshold.

    Args:
        pilots: of the point.
        threshold: what is to be proved a lower bound, > 0.
        beta: error probability, in (0, 1).
        rng: seeds the blocks.
        max_samples: most draws.
    """
    name = pilots.decider
    log_unit = pilots.summary(name).log_mean if pilots.weights else -math.inf
    if not log_unit > math.log(NOTHING):
        return 0.0
    proposal = pilots.proposals[name].rounded_to(below=True)
    test = LowerTest(log_unit, beta, threshold, pilots.weights[name], rounding=proposal.weight_rounding)
    return _drawn(
        proposal,
        name,
        test,
        draw_entropy(rng),
        pilots.executor,
        patience=STUBBORN,
        max_samples=max_samples,
    ).lower


def _drawn(
    proposal: Proposal,
    name: str,
    test: SequentialTest,
    entropy: tuple[int, ...],
    executor: concurrent.futures.Executor | None,
    *,
    patience: float,
    max_samples: int,
) -> CertifiedDirection:
    """Bets on the main sample of a direction, until the goal is proved or patience ends."""
    expected = test.expected_samples()
    limit = int(min(patience * max(expected, PILOT_SAMPLES), max_samples))
    total, count = 0.0, 0
    expected = int(min(expected, limit))
    with contextlib.closing(
        weight_stream(proposal, entropy, STAGES[name].main, expected, executor)
    ) as stream:
        while count < limit and not test.proved:
            log_weights = next(stream)
            test.add(log_weights)
            total, count = total + float(np.exp(log_weights).sum()), count + log_weights.size
    upper = isinstance(test, UpperTest)
    return CertifiedDirection(
        lower=0.0 if upper else test.bound,
        upper=test.bound if upper else rounded_bound(proposal.log_weight_bound, proposal.weight_rounding),
        estimate=total / count if count else math.nan,
        weight_bound=math.exp(proposal.log_weight_bound),
        samples=count,
    )
