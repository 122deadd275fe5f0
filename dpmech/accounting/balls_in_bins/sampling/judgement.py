r"""Is delta(eps) at most what somebody claims? Answered by draws of one's own, which come until it is known.

Whoever is handed a noise scale cannot see whether the random numbers that sized it were picked. A judge draws
others, and in each direction bets on the mean weight mu, which is that direction's delta, twice:

- *For the claim*: mu is at most t = (1 + m) delta. Weights lie in [0, W], x_i = w_i / W, tau = t / W, and
  `E_n = (1/J) sum_j prod_{i <= n} (1 + lam_j (tau - x_i))`, stakes lam_j in (0, 1) from a pilot of its own.
- *Against it*: mu is above delta. `F_n = (1/J) sum_j prod_{i <= n} (1 + kap_j (w_i / delta - 1))`, kap_j in
  (0, 1); no bound on the weights is needed.

**Theorem.** (1) If mu >= t in a direction, then E_n ever reaches 1 / beta with probability at most beta. So a
claim with delta(eps) > (1 + m) delta passes with probability at most beta: in the worse direction it must.
(2) If mu <= delta, F_n ever reaches 1 / a with probability at most a. (3) If mu <= delta, E_n has reached
1 / beta by n = N with probability at least 1 - a, where for any stake lam of the J and any s > 0

    N >= (log 1/a + s log(J / beta)) / -log phi,  phi = (1-p) (1 + lam tau)^-s + p (1 + lam (tau-1))^-s,

p = delta / W. A judge that passes a claim when E wins in both directions, refuses it when F wins in one, and
at n = N, therefore refuses a true claim, delta(eps) <= delta, with probability at most 4 a.

*Proof.* (1), (2): each product is a supermartingale from 1, as its factors are independent of the past with
mean at most 1, and positive; so is their mean, and Ville's inequality says the rest. (3): f(x) =
(1 + lam (tau - x))^-s is convex and increasing on [0, 1], hence below (1 - x) f(0) + x f(1), whose mean is at
most phi. E_N < 1 / beta needs prod < J / beta at that stake, that is prod^-s > (J / beta)^-s, and by Markov's
inequality the probability is at most (J / beta)^s phi^N <= a. QED

One stake is the best one for (3), where nothing but W is known of the weights; the others, for their variance
in the pilot, end sooner nearly always. No asymptotics are involved.

References:
    Ville 1939; Waudby-Smith and Ramdas 2024, arXiv:2010.09686v7.
"""

import concurrent.futures
import dataclasses
import math
from collections.abc import Iterator

import numpy as np
import scipy

from dpmech.accounting.balls_in_bins.gram import BinGram
from dpmech.accounting.balls_in_bins.proposals import add_mixture, remove_mixture
from dpmech.accounting.balls_in_bins.sampling.adaptation import STAGES, adapt
from dpmech.accounting.balls_in_bins.sampling.blocks import draw_entropy, weight_sample
from dpmech.exceptions import NumericalError
from dpmech.guards import check_delta, check_real
from dpmech.numerics import ELEMENTARY, UNIT, FloatArray, sum_rounding, total

__all__ = ["Judgement", "judge_delta", "most_draws"]

# m: what sampling may leave open. A noise scale that is 3 % too small exceeds it by far at eps 8 (delta is
# 2.3 times too large on the plan of docs/balls_in_bins.md).
SLACK = 0.1
# How often a true claim is refused, by all four bets.
REFUSALS = 1e-6
PILOT_SAMPLES = 4096
STAR_FLOOR, ADD_FLOOR = 0.5, 0.15
# Stakes around the pilot's, and the one of the worst case; those against a claim.
AROUND = 2.0 ** np.linspace(-2.0, 2.0, 7)
AGAINST = np.geomspace(0.002, 0.8, 8)
LARGEST_STAKE = 0.9
# What rounding may do to weights, relative: far less than the slack.
LARGEST_ROUNDING = 0.01
# Rounds of draws, as parts of what the pilot expects, and of what was drawn.
FIRST_ROUND, FURTHER_ROUND, GROWTH = 0.7, 0.3, 0.1


@dataclasses.dataclass(frozen=True)
class Judgement:
    """What draws of one's own say about the claim delta(eps) <= delta.

    Attributes:
        eps: of the claim.
        delta: of the claim.
        slack: m: a claim that passes has delta(eps) <= (1 + m) delta.
        beta: the probability at most with which one that has not passes.
        holds: whether it passes.
        samples: draws in both directions, pilots apart.
        estimate: the larger mean weight: an estimate of delta(eps); NaN where nothing had to be drawn.
    """

    eps: float
    delta: float
    slack: float
    beta: float
    holds: bool
    samples: int
    estimate: float


def judge_delta(
    gram: BinGram,
    eps: float,
    delta: float,
    *,
    beta: float,
    slack: float = SLACK,
    rng: np.random.Generator | None = None,
    executor: concurrent.futures.Executor | None = None,
) -> Judgement:
    """Whether draws made here prove delta(eps) <= (1 + slack) delta.

    **Guarantee:** see the theorem of this module. It is one of the draws made here: with an `rng` that the
    author of the claim knows it says nothing.

    Args:
        gram: the Gram matrix K at the sigma in question.
        eps: in [1e-4, 1e4].
        delta: in (0, 1).
        beta: in (0, 1).
        slack: m, in [0.001, 10].
        rng: seeds the blocks; None takes operating system entropy.
        executor: where to run blocks; None runs them here.

    Raises:
        InvalidParameterError: if an argument is out of range.
        NumericalError: if a weight exceeds its proved bound (a fault, never chance).
    """
    eps = check_real("eps", eps, minimum=1e-4, maximum=1e4)
    delta = check_delta(delta)
    beta = check_real("beta", beta, minimum=0.0, maximum=1.0, open_minimum=True, open_maximum=True)
    slack = check_real("slack", slack, minimum=1e-3, maximum=10.0)
    source = np.random.default_rng(draw_entropy(rng))
    entropy = draw_entropy(source)
    proposals = {"remove": remove_mixture(gram, eps), "add": add_mixture(gram, eps)}
    floors = {
        "remove": {"nominal": 0.1, "star": STAR_FLOOR},
        "add": dict.fromkeys(proposals["add"].bounding, ADD_FLOOR),
    }
    holds, samples, estimate = True, 0, math.nan
    for name, proposal in proposals.items():
        log_ratio = math.log(delta) - proposal.log_weight_bound
        if log_ratio + math.log1p(slack) - 2.0 * proposal.weight_rounding - 8.0 * UNIT >= 0.0:
            continue  # no weight is above what is to be proved
        fitted = adapt(proposal, entropy, STAGES[name], executor, floors[name])
        log_ratio = math.log(delta) - fitted.log_weight_bound
        pilot = weight_sample(fitted, entropy, STAGES[name].sizing, PILOT_SAMPLES, executor).log_weights
        rounding = 1.01 * fitted.weight_rounding + 8.0 * ELEMENTARY * (1.0 + abs(log_ratio))
        if rounding > LARGEST_ROUNDING:
            raise NumericalError(
                f"rounding may change weights of draws from {gram.words} by {rounding:.1e} of themselves, "
                f"more than {LARGEST_ROUNDING}"
            )
        bets = _Bets(math.exp(log_ratio), slack, beta, pilot - fitted.log_weight_bound, rounding)
        for size in bets.rounds():
            # Every round has random numbers of its own: they are a stream that is read until it is known.
            drawn = weight_sample(fitted, draw_entropy(source), STAGES[name].main, size, executor)
            bets.add(drawn.log_weights - fitted.log_weight_bound)
            if bets.won or bets.lost:
                break
        holds &= bets.won and not bets.lost
        samples += bets.samples
        estimate = float(np.fmax(estimate, bets.mean * math.exp(fitted.log_weight_bound)))
        if not holds:
            break
    return Judgement(eps, delta, slack, beta, holds, samples, estimate)


def most_draws(
    ratio: float, slack: float, beta: float, refusals: float, stakes: int, rounding: float = 0.0
) -> tuple[int, float]:
    """N of the theorem, (3), for the stake that makes it least, and that stake.

    Args:
        ratio: p = delta / W, below 1 / (1 + slack).
        slack: m.
        beta: how often a false claim may pass.
        refusals: a, how often a true one may not have passed by then.
        stakes: J.
        rounding: relative, of the weights.
    """
    goal = (1.0 + slack) * ratio * (1.0 - rounding)
    stake, power = np.meshgrid(
        np.geomspace(0.05, 0.999, 60) * min(1.0, slack), np.geomspace(0.01, 30.0, 60), indexing="ij"
    )
    # phi is hardly below 1 where p is small: its distance is found by itself.
    short = (1.0 - ratio) * np.expm1(-power * np.log1p(stake * goal))
    short += ratio * np.expm1(-power * np.log1p(stake * (goal - 1.0)))
    needed = -math.log(refusals) + power * (math.log(stakes) - math.log(beta))
    draws = np.where(short < 0.0, needed / np.maximum(-np.log1p(np.minimum(short, 0.0)), 1e-300), np.inf)
    best = np.unravel_index(int(np.argmin(draws)), draws.shape)
    return math.ceil(float(draws[best])), float(stake[best])


class _Bets:
    """Both bets on the mean weight of one direction.

    Args:
        ratio: p = delta / W.
        slack: m.
        beta: how often a false claim may pass.
        pilot: logs of weights over W of a sample of its own.
        rounding: relative, of weights over W.
    """

    def __init__(
        self, ratio: float, slack: float, beta: float, pilot: FloatArray, rounding: float = 0.0
    ) -> None:
        self.ratio, self._rounding = ratio, rounding
        # Lowered by more than rounding may have made of it, of W and of the weights.
        self.goal = (1.0 + slack) * ratio * (1.0 - rounding)
        self._level = -math.log(beta) * (1.0 + 4.0 * ELEMENTARY)
        self._refusal = math.log(4.0) - math.log(REFUSALS)
        self.limit, surest = most_draws(ratio, slack, beta, REFUSALS / 4.0, AROUND.size + 1, rounding)
        gaps = self.goal - np.exp(pilot)
        # The pilot's mean may be on the wrong side by chance: a claim that holds has at least that gap.
        gap = max(float(gaps.mean()), 0.5 * (self.goal - ratio))
        centre = min(gap / float(np.mean(gaps**2)), LARGEST_STAKE)
        self.stakes = np.append(np.minimum(centre * AROUND, LARGEST_STAKE), surest)
        growth = max(float(np.mean(np.log1p(centre * gaps))), 0.0)
        growth = max(growth, 0.25 * centre * gap)
        expected = (self._level + math.log(self.stakes.size)) / growth
        excess = np.exp(pilot) / ratio - 1.0
        against = max(float(np.mean(np.log1p(stake * excess))) for stake in AGAINST.tolist())
        if against > 0.0:
            expected = min(expected, (self._refusal + math.log(AGAINST.size)) / against)
        self.expected = expected
        self._gains, self._against = np.zeros(self.stakes.size), np.zeros(AGAINST.size)
        self._sum = 0.0
        self.samples = 0

    def rounds(self) -> Iterator[int]:
        """How many weights to draw, one round after the other, until the limit is reached."""
        size = FIRST_ROUND * self.expected
        while self.samples < self.limit:
            yield max(1, math.ceil(min(size, self.limit - self.samples)))
            size = max(FURTHER_ROUND * self.expected, GROWTH * self.samples)

    @property
    def won(self) -> bool:
        """Whether the mean is proved to be at most (1 + m) delta."""
        found = float(scipy.special.logsumexp(self._gains)) - math.log(self.stakes.size)
        return found * (1.0 - 4.0 * ELEMENTARY) - 64.0 * UNIT >= self._level

    @property
    def lost(self) -> bool:
        """Whether the mean is shown to be above delta."""
        found = float(scipy.special.logsumexp(self._against)) - math.log(AGAINST.size)
        return found >= self._refusal

    @property
    def mean(self) -> float:
        """The mean of the weights over W."""
        return self._sum / self.samples if self.samples else math.nan

    def add(self, log_ratios: FloatArray) -> None:
        """Bet on more weights over W, logs, shape (n,), -inf for zero; gains are rounded down."""
        top = float(np.max(log_ratios, initial=-np.inf))
        if math.isnan(top) or top > self._rounding + 8.0 * UNIT:
            raise NumericalError(f"a weight is e^{top:.12g} times its proved bound: one of them is wrong")
        ratios = np.exp(np.minimum(log_ratios[log_ratios > -np.inf], 0.0))
        zeros = log_ratios.size - ratios.size
        for index, stake in enumerate(self.stakes.tolist()):
            terms = np.log1p(stake * (self.goal - ratios))
            none = zeros * math.log1p(stake * self.goal)
            relative = 2.0 * UNIT / (1.0 - stake) + 2.0 * ELEMENTARY + sum_rounding(terms.size) + 8.0 * UNIT
            error = 1.01 * relative * (none + total(np.abs(terms)) + abs(self._gains[index]))
            self._gains[index] += none + total(terms) - error
        for index, stake in enumerate(AGAINST.tolist()):
            self._against[index] += zeros * math.log1p(-stake) + total(
                np.log1p(stake * (ratios / self.ratio - 1.0))
            )
        self._sum += total(ratios)
        self.samples += log_ratios.size
