r"""A rigorous finite-sample upper bound on delta(eps) of Balls-in-Bins, by sampling.

Both directions are means of independent weights with proved bounds: REMOVE by the star of `proposals.tuples`
(together with the nominal and scaled parts, `RemoveProposal.log_weight_bound`), ADD by
`design_points.add_point`. A bet on bounded variables (`confidence.betting_upper_bound`) turns them into an
upper bound with no asymptotics. A pilot with its own random numbers chooses probabilities, bets and sample
sizes before the samples that count are drawn.
"""

import concurrent.futures
import dataclasses
import math

import numpy as np

from dpmech.accounting.balls_in_bins.gram import BinGram
from dpmech.accounting.balls_in_bins.proposals import AddProposal, RemoveProposal
from dpmech.accounting.balls_in_bins.sampling.blocks import draw_entropy, weight_sample
from dpmech.accounting.balls_in_bins.sampling.confidence import betting_growth, betting_upper_bound, summarise
from dpmech.accounting.balls_in_bins.sampling.estimate import STAGES, adapt
from dpmech.guards import check_integer, check_real
from dpmech.numerics import FloatArray

__all__ = ["CertifiedBound", "CertifiedDirection", "certify_delta"]


PILOT_SAMPLES = 16384
STAR_FLOOR = 0.5
ADD_FLOOR = 0.15
BET_LOSS = math.log(8.0)
SAFETY = 1.3


@dataclasses.dataclass(frozen=True)
class CertifiedDirection:
    """One direction of a certified bound.

    Attributes:
        upper: the bound.
        estimate: the mean weight of the same sample (an estimate).
        weight_bound: the proved bound on every weight.
        bet: the centre of the bets, chosen by the pilot.
        samples: independent weights that count.
    """

    upper: float
    estimate: float
    weight_bound: float
    bet: float
    samples: int


@dataclasses.dataclass(frozen=True)
class CertifiedBound:
    """delta(eps) <= upper with probability at least 1 - beta.

    Attributes:
        eps: the privacy loss level.
        upper: the bound.
        beta: the probability, over the samples, that delta exceeds it.
        remove: H_eps(P||Q), at error beta / 2.
        add: H_eps(Q||P), at error beta / 2.
    """

    eps: float
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
    rel_gap: float = 0.1,
    rng: np.random.Generator | None = None,
    executor: concurrent.futures.Executor | None = None,
    max_samples: int = 20_000_000,
) -> CertifiedBound:
    r"""An upper bound on delta(eps), true with probability at least 1 - beta, in both directions.

    **Guarantee:** with probability 1 - beta over the samples (for normal draws that have the Gram matrix
    `gram`), at any sample size; the bet bounds its own rounding, and that of the weights is covered by a
    hundred times what was measured (`confidence.WEIGHT_ROUNDING`). Each direction spends beta / 2. One call
    spends beta: a search that calls again and again must divide it. It must not be repeated until it passes.

    The cost grows with the ratio of the weight bound to delta, which is at most that of a moment (RDP)
    bound on delta: 7 to 200 over most of the range. It grows large where delta is tiny and b large with
    nearly independent bins; then the bound is merely wide at `max_samples`, never wrong.

    Args:
        gram: the Gram matrix K.
        eps: in [1e-4, 1e4].
        threshold: where the bound will be compared; it sizes the run and never changes what is proved. None
            sizes for `rel_gap`.
        beta: error probability, in (0, 1).
        rel_gap: the relative gap between bound and delta aimed at, in [0.005, 10].
        rng: seeds the blocks; None takes operating system entropy.
        executor: where to run blocks; None runs them here.
        max_samples: most draws in one direction.

    Returns:
        The bound, with its parts.

    Raises:
        InvalidParameterError: if an argument is out of range.
        NumericalError: if a weight exceeds its proved bound (a fault, never chance).

    References:
        The balls-in-bins paper, Lemma 3.2; Waudby-Smith and Ramdas 2024, arXiv:2010.09686v7.

    Examples:
        >>> import numpy as np
        >>> from dpmech.accounting.balls_in_bins.gram.dense import DenseGram
        >>> bound = certify_delta(DenseGram([[1.0]]), 1.0, rng=np.random.default_rng(1))
        >>> 0.126937 < bound.upper < 0.126937 * 1.2
        True
    """
    eps = check_real("eps", eps, minimum=1e-4, maximum=1e4)
    beta = check_real("beta", beta, minimum=0.0, maximum=1.0, open_minimum=True, open_maximum=True)
    rel_gap = check_real("rel_gap", rel_gap, minimum=0.005, maximum=10.0)
    max_samples = check_integer("max_samples", max_samples, minimum=1000)
    if threshold is not None:
        threshold = check_real("threshold", threshold, minimum=0.0, maximum=1.0, open_minimum=True)
    entropy = draw_entropy(rng)
    floors = {"nominal": 0.1, "star": STAR_FLOOR}
    remove, add = RemoveProposal.at(gram, eps), AddProposal.at(gram, eps)
    bounded = dict.fromkeys(add.names[: add.tilts.size], ADD_FLOOR)
    proposals = {
        "remove": adapt(remove, entropy, STAGES["remove"], executor, floors),
        "add": adapt(add, entropy, STAGES["add"], executor, bounded),
    }
    pilots = {
        name: weight_sample(proposal, entropy, STAGES[name].sizing, PILOT_SAMPLES, executor).log_weights
        for name, proposal in proposals.items()
    }
    summaries = {name: summarise(pilot) for name, pilot in pilots.items()}
    log_goal = max(
        item.log_mean + math.log1p(2.0 * min(item.relative_error, 1.0)) for item in summaries.values()
    )
    log_goal += math.log1p(rel_gap)
    if threshold is not None:
        log_goal = max(log_goal, math.log(threshold))
    results = {}
    for name, proposal in proposals.items():
        bet, samples = _size(
            pilots[name] - proposal.log_weight_bound, log_goal - proposal.log_weight_bound, beta, max_samples
        )
        sample = weight_sample(proposal, entropy, STAGES[name].main, samples, executor)
        upper = betting_upper_bound(sample.log_weights, proposal.log_weight_bound, 0.5 * beta, bet)
        results[name] = CertifiedDirection(
            upper=upper,
            estimate=math.exp(summarise(sample.log_weights).log_mean),
            weight_bound=math.exp(proposal.log_weight_bound),
            bet=bet,
            samples=sample.log_weights.size,
        )
    upper = max(results["remove"].upper, results["add"].upper)
    return CertifiedBound(eps, upper, beta, results["remove"], results["add"])


def _size(log_ratios: FloatArray, log_goal: float, beta: float, max_samples: int) -> tuple[float, int]:
    """The bet and the sample size with which the pilot expects to prove `log_goal`, relative to the bound."""
    if log_goal >= 0.0:
        return 0.5, 1
    bet, growth = betting_growth(log_ratios, math.exp(log_goal))
    needed = SAFETY * (math.log(2.0) - math.log(beta) + BET_LOSS) / max(growth, 1e-300)
    return bet, int(min(max(needed, 1.0), max_samples))
