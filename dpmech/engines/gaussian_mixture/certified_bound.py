r"""Rigorous finite-sample bounds on delta(eps) of Balls-in-Bins, by sampling.

Both directions are means of independent weights. For the upper end the weights have proved bounds: REMOVE by
the star of `tuples` (together with the nominal and scaled parts), ADD by `points.add_point`. The lower end
needs none. Sequential tests (`sequential_tests`) turn weights into bounds that are not asymptotic, and stop
once the goal is proved. A pilot with separate random numbers chooses probabilities, parts and first stakes
before the main samples are drawn.
"""

import concurrent.futures
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
    tested,
)
from dpmech.guards import check_integer, check_real

# Limit on draws, as a multiple of the number that the pilot expects: without a threshold, and with one.
PATIENCE = 1.5
STUBBORN = 3.0


@dataclasses.dataclass(frozen=True)
class CertifiedDirection:
    """One direction of a certified bound.

    Attributes:
        upper: an upper bound.
        samples: number of independent weights in the main sample; 0 if the weight bound is enough.
    """

    upper: float
    samples: int


@dataclasses.dataclass(frozen=True)
class CertifiedBound:
    """An upper bound on delta(eps) that holds with probability 1 - beta.

    Attributes:
        remove: H_eps(P||Q).
        add: H_eps(Q||P).
    """

    remove: CertifiedDirection
    add: CertifiedDirection

    @property
    def upper(self) -> float:
        """The larger of both directions."""
        return max(self.remove.upper, self.add.upper)

    @property
    def samples(self) -> int:
        """Number of draws in the main samples of both directions."""
        return self.remove.samples + self.add.samples

    def meets(self, threshold: float) -> bool:
        """Whether delta <= threshold is proved."""
        return self.upper <= threshold


def certify_delta(
    gram: BinGram,
    eps: float,
    threshold: float | None = None,
    *,
    beta: float = 1e-9,
    rel_gap: float = 0.05,
    rng: np.random.Generator | None = None,
    executor: concurrent.futures.Executor | None = None,
    max_samples: int = 20_000_000,
    pilots: Pilots | None = None,
) -> CertifiedBound:
    r"""An upper bound on delta(eps), true with probability at least 1 - beta, for both directions.

    **Guarantee:** with probability 1 - beta over the samples (for normal draws that have the Gram matrix
    `gram`), at any sample size; the tests include their own rounding, and the rounding of weights has a
    proved bound (`proposal`). Directions that need samples share beta. Each call spends beta: a search with
    repeated calls must divide it, or test in an order fixed in advance and stop at the first failure. Do not
    repeat a call until it passes.

    The cost grows with the ratio of the weight bound to delta, which is at most that of a moment (RDP)
    bound on delta: 7 to 200 over most of the range. It grows large where delta is tiny and b is large with
    nearly independent bins; the bound is then wide at `max_samples`, but valid.

    Args:
        gram: the Gram matrix K.
        eps: in [1e-4, 1e4].
        threshold: upper bound to be proved; sampling stops when it is. None aims at `rel_gap`.
        beta: error probability, in (0, 1).
        rel_gap: target relative gap between the bound and delta without a threshold, in [0.005, 10].
        rng: seeds the blocks; None uses operating system entropy.
        executor: where to run blocks; None runs them in this process.
        max_samples: largest number of draws in one direction.
        pilots: pilots of this point, drawn with other random numbers than `rng` gives; None draws them.

    Returns:
        The bound, with its parts.

    Raises:
        InvalidParameterError: if an argument is out of range.
        NumericalError: if a weight exceeds its proved bound (a bug, never chance).

    References:
        The balls-in-bins paper, Lemma 3.2; Waudby-Smith and Ramdas 2024, arXiv:2010.09686v7.

    Examples:
        >>> import numpy as np
        >>> from dpmech.engines.gaussian_mixture.dense_gram import DenseGram
        >>> bound = certify_delta(DenseGram([[1.0]]), 1.0, rng=np.random.default_rng(1))
        >>> 0.126937 < bound.upper < 0.126937 * 1.1
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
        pilots = Pilots.at(gram, eps, entropy, executor, threshold=threshold)
    directions: dict[str, CertifiedDirection] = {}
    share = share_of(beta, len(pilots.weights))
    for name, proposal in pilots.proposals.items():
        if name not in pilots.weights:
            bound = rounded_bound(proposal.log_weight_bound, proposal.weight_rounding)
            settled = min(bound, pilots.settled.get(name, bound))
            directions[name] = CertifiedDirection(settled, 0)
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
        samples = _drawn(proposal, name, upper, entropy, executor, patience=patience, max_samples=max_samples)
        directions[name] = CertifiedDirection(upper.bound, samples)
    return CertifiedBound(directions["remove"], directions["add"])


def certified_floor(
    pilots: Pilots, threshold: float, beta: float, *, rng: np.random.Generator, max_samples: int
) -> float:
    """A lower bound on delta(eps), true with probability at least 1 - beta; stops at the threshold.

    Args:
        pilots: pilots of the point.
        threshold: lower bound to be proved, > 0.
        beta: error probability, in (0, 1).
        rng: seeds the blocks.
        max_samples: largest number of draws.
    """
    name = pilots.decider
    log_unit = pilots.summary(name).log_mean if pilots.weights else -math.inf
    if not log_unit > math.log(NOTHING):
        return 0.0
    proposal = pilots.proposals[name].rounded_to(below=True)
    test = LowerTest(log_unit, beta, threshold, pilots.weights[name], rounding=proposal.weight_rounding)
    entropy = draw_entropy(rng)
    _drawn(proposal, name, test, entropy, pilots.executor, patience=STUBBORN, max_samples=max_samples)
    return test.bound


def _drawn(
    proposal: Proposal,
    name: str,
    test: SequentialTest,
    entropy: tuple[int, ...],
    executor: concurrent.futures.Executor | None,
    *,
    patience: float,
    max_samples: int,
) -> int:
    """Run a test on the main sample of a direction up to its goal or limit; return the number of weights."""
    expected = test.expected_samples()
    limit = int(min(patience * max(expected, PILOT_SAMPLES), max_samples))
    stream = weight_stream(proposal, entropy, STAGES[name].main, int(min(expected, limit)), executor)
    return tested([test], stream, limit)
