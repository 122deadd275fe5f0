r"""Bounds on eps for batches made by shuffling; the lower one comes from the probability of an event.

Batches of a fixed size are taken one after another from a random order of the examples. The order is drawn
for every epoch or once. No theorem of dpmech covers amplification by such an order. This module proves how
large eps is *at least*. Let the gradient of every other example be -1 and that of the target +1, in one
direction, for any model. Subtract the public mean from each noisy sum. A sum then has mean 2 if the target is
in the batch, 1 if a gap is in its place (0 if an example of gradient -1 is), and 0 otherwise. The largest sum
of every epoch distinguishes the two datasets. docs/guarantees.md#shuffled-batches contains the proof.

**The event.** In an epoch of b noisy sums with noise sigma, M is the largest of

    "with":    one of the sums, at random, has mean `present`; the others have mean 0,
    "without": one of them has mean `absent` < `present`; the others have mean 0,

and with probability w neither is raised. With tails Q(x) = P(N(0, 1) > x), for a threshold c,

    P(M > c) = beta + (1 - beta) (1 - (1 - Q(c / sigma))^(b - 1)),
    beta = (1 - w) Q((c - mean) / sigma) + w Q(c / sigma).

Every epoch gets an integer score that is nondecreasing in M, and the scores of k independent epochs add up to
S. For every m

    e^eps P_without(S >= m) + delta >= P_with(S >= m)

holds for an (eps, delta)-private mechanism, so eps >= ln((P_with(S >= m) - delta) / P_without(S >= m)).

**Guarantee:** lower bound, including rounding. Before masses are formed, tails under "with" are rounded down,
and tails under "without" are rounded up: sums of scores that are nondecreasing in M are monotone in every
tail.

The upper bound treats the order as public: this is the Gaussian mechanism with one participation per epoch.

References:
    Chua, Ghazi, Kamath, Kumar, Manurangsi, Sinha and Zhang 2024, arXiv:2403.17673 (one epoch, one threshold).
"""

import dataclasses
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy

from dpmech.calibration import epsilon
from dpmech.engines import gaussian_epsilon
from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_delta, check_integer, check_sigma
from dpmech.mechanism import Adjacency, EveryStep, Identity
from dpmech.numerics import BOUND, UNIT, Bounds, FloatArray, Provenance, quotient_up, root_down, root_up

_THRESHOLDS = 2048
# Thresholds reach this many sigma beyond the raised mean; the mass beyond is below 2e-33.
_REACH = 12.0
# Relative. Tails of scipy have errors below 1e-13, and their arguments of 2 u, which moves a tail at x by
# about 2 u x^2 < 1e-12 where it is not 0 (x < 39); the operations after that add a few u.
_SLACK = 1e-11
# Absolute: far more than any underflow in a tail or product here, and far less than a delta.
_UNDERFLOW = 1e-290
# Scores of an epoch, and of all epochs together: more cost time and change the fourth digit.
_SCORES, _ALL_SCORES, _LEAST_SCORES = 256, 1 << 15, 4
_MOST_SIGMA = 1e15


@dataclasses.dataclass(frozen=True)
class Epoch:
    """One epoch under the two datasets.

    Args:
        batches: number of noisy sums, b >= 1.
        sigma: noise of the sums, > 0.
        present: mean of the raised sum with the example, > absent.
        absent: mean of that sum without it, >= 0.
        left_out: probability w in [0, 1) that no sum is raised.
    """

    batches: int
    sigma: float
    present: float
    absent: float
    left_out: float = 0.0

    def tails(self, thresholds: FloatArray, mean: float) -> FloatArray:
        """P(M > c) for thresholds c >= 0, to a relative 1e-11 and an absolute 1e-290.

        A product of 1 - a_i is convex and 1 where all a_i are 0, so a relative error of all a_i moves 1 minus
        the product by no more.
        """
        with np.errstate(over="ignore"):  # a tail at infinity is 0
            quiet = scipy.special.ndtr(-thresholds / self.sigma)
            raised = scipy.special.ndtr(-(thresholds - mean) / self.sigma)
        one = np.minimum(1.0, (1.0 - self.left_out) * raised + self.left_out * quiet)
        others = -np.expm1((self.batches - 1) * np.log1p(-quiet))
        return np.asarray(one + (1.0 - one) * others)


def epsilon_below(epoch: Epoch, epochs: int, delta: float) -> float:
    """Return a lower bound on eps at delta of `epochs` independent epochs.

    Args:
        epoch: the distribution of each epoch.
        epochs: k >= 1; epochs beyond 8192 are ignored.
        delta: in (0, 1).

    Returns:
        A number >= 0, at most about 600.
    """
    if epoch.sigma > _MOST_SIGMA:
        return 0.0
    count = min(epochs, _ALL_SCORES // _LEAST_SCORES)
    thresholds = np.linspace(0.0, epoch.present + _REACH * epoch.sigma, _THRESHOLDS)
    found = epoch.tails(thresholds, epoch.present) * (1.0 - _SLACK) - _UNDERFLOW
    # Running extremes: both stay valid bounds on nonincreasing tails.
    tail_with = np.minimum.accumulate(np.maximum(found, 0.0))
    found = epoch.tails(thresholds, epoch.absent) * (1.0 + _SLACK) + _UNDERFLOW
    tail_without = np.minimum(1.0, np.maximum.accumulate(found[::-1])[::-1])
    mass_with = -np.diff(tail_with, prepend=1.0, append=0.0)
    mass_without = -np.diff(tail_without, prepend=1.0, append=0.0)
    scores = _scores(mass_with, mass_without, tail_with, delta, min(_SCORES, _ALL_SCORES // count))
    tops = []
    for masses in (mass_with, mass_without):
        sums, error = _added(np.asarray(np.bincount(scores, masses), dtype=np.float64), count)
        tops.append((np.cumsum(sums[::-1]), error + _of_terms(sums.size)))
    (seen, low), (feigned, high) = tops
    seen = np.maximum(seen * (1.0 - low) - _UNDERFLOW - delta, 0.0)
    feigned = feigned * (1.0 + high) + _UNDERFLOW
    ratio = float(np.max(seen / feigned)) * (1.0 - 8.0 * UNIT)
    return max(0.0, math.log(ratio) * (1.0 - 8.0 * UNIT)) if ratio > 1.0 else 0.0


def _scores(
    mass_with: FloatArray, mass_without: FloatArray, tail_with: FloatArray, delta: float, most: int
) -> npt.NDArray[np.int64]:
    """A nondecreasing score for each cell between thresholds, in [0, most): roughly the log-ratio.

    Any such scores give a bound. Their range covers the cells that matter: not those above which the mass is
    a small part of delta, nor those below which it is negligible.
    """
    tiny = np.finfo(float).tiny
    logs = np.log(np.maximum(mass_with, tiny)) - np.log(np.maximum(mass_without, tiny))
    begin = int(np.count_nonzero(tail_with >= 1.0 - 1e-9))
    end = max(begin, int(np.count_nonzero(tail_with >= 0.1 * delta)))
    logs[:begin] = logs[begin]
    rising = np.maximum.accumulate(logs)
    rising = np.minimum(rising, rising[end])
    span = float(rising[-1] - rising[0])
    if span <= 0.0:
        return np.zeros(rising.size, dtype=np.int64)
    return np.asarray(np.rint((rising - rising[0]) * ((most - 1) / span)), dtype=np.int64)


def _added(masses: FloatArray, count: int) -> tuple[FloatArray, float]:
    """The masses of the sum of `count` independent scores, and a bound on their relative error."""
    total, error = np.ones(1), 0.0
    power, power_error = masses, 2.0 * UNIT + _of_terms(_THRESHOLDS + 1)
    while True:
        if count % 2:
            error += power_error + _of_terms(min(total.size, power.size) + 1)
            total = np.convolve(total, power)
        count //= 2
        if not count:
            return total, error * (1.0 + 1e-6)
        power_error = 2.0 * power_error + _of_terms(power.size + 1)
        power = np.convolve(power, power)


def _of_terms(count: int) -> float:
    """Relative rounding error of a sum of `count` nonnegative products and of a few more operations."""
    return 1.01 * (count + 8) * UNIT


@dataclasses.dataclass(frozen=True)
class Shuffled:
    """Batches taken one after another from a random order of the dataset, as in most data loaders.

    This is not a participation, so nothing can be calibrated for it. It describes the training of an audited
    run.

    Args:
        dataset_size: number of examples, >= 1.
        batch_size: size of a batch, in [1, dataset_size].
        drop_last: whether the remainder at the end of an epoch is dropped; otherwise it is a smaller batch.
        once: whether all epochs use the same order; otherwise every epoch has a new order.

    Raises:
        InvalidParameterError: if an argument is invalid.

    Examples:
        >>> from dpmech.audits import Shuffled
        >>> Shuffled(50_000, 128).batches_per_epoch, Shuffled(50_000, 128, drop_last=False).batches_per_epoch
        (390, 391)
    """

    dataset_size: int
    batch_size: int
    drop_last: bool = True
    once: bool = False

    def __post_init__(self) -> None:
        size = check_integer("dataset_size", self.dataset_size, minimum=1)
        batch = check_integer("batch_size", self.batch_size, minimum=1, maximum=size)
        object.__setattr__(self, "dataset_size", size)
        object.__setattr__(self, "batch_size", batch)
        for name in ("drop_last", "once"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidParameterError(name, getattr(self, name), "True or False")

    def __str__(self) -> str:
        order = "one random order for all epochs" if self.once else "shuffled every epoch"
        return f"batches of {self.batch_size} of {self.dataset_size} examples, {order}"

    @property
    def batches_per_epoch(self) -> int:
        """Number of steps per epoch."""
        whole, rest = divmod(self.dataset_size, self.batch_size)
        return whole + bool(rest and not self.drop_last)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, with its type."""
        return {"type": type(self).__name__} | dataclasses.asdict(self)


def shuffled_epsilon(
    n: int, sigma: float, delta: float, batches: Shuffled, *, adjacency: Adjacency = Adjacency.ADD_REMOVE
) -> Bounds:
    """Bounds on the eps of a run with independent noise whose noisy sums are all released.

    **Guarantee:** both bounds are proven. Some data and loss attain the lower bound, so no accountant that
    covers all data may return less. The upper bound uses no amplification.

    Datasets have a fixed size, because batches have a fixed size: adding an example fills a gap, and removing
    an example leaves a gap.

    Args:
        n: number of steps, >= 1. Steps after the last full epoch affect only the upper bound.
        sigma: noise of a sum divided by the clip norm, > 0.
        delta: in (0, 1).
        batches: how the batches were formed.
        adjacency: the neighbouring relation.

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        Chua, Ghazi, Kamath, Kumar, Manurangsi, Sinha and Zhang 2024, arXiv:2403.17673.

    Examples:
        >>> import dpmech as dm
        >>> from dpmech.audits import Shuffled, shuffled_epsilon
        >>> accounted = dm.epsilon(dm.Identity(300), 0.7, 1e-5, participation=dm.Poisson(0.01))
        >>> found = shuffled_epsilon(300, 0.7, 1e-5, Shuffled(50_000, 500))
        >>> round(accounted.upper, 2), round(found.lower, 2), round(found.upper, 2)
        (3.08, 12.46, 13.04)
    """
    n = check_integer("n", n, minimum=1)
    sigma, delta = check_sigma(sigma), check_delta(delta)
    if not isinstance(batches, Shuffled):
        raise InvalidParameterError("batches", batches, "a Shuffled")
    if not isinstance(adjacency, Adjacency):
        raise InvalidParameterError("adjacency", adjacency, "an Adjacency")
    most = -(-n // batches.batches_per_epoch)
    upper = epsilon(Identity(most), sigma, delta, participation=EveryStep(), adjacency=adjacency).upper
    lower = min(_below(n, sigma, delta, batches, adjacency), upper)
    facts = {
        "batches": batches.batches_per_epoch,
        "epochs": most,
        "order": "one" if batches.once else "a new",
    }
    return Bounds(lower, upper, BOUND, Provenance("audit.shuffled", facts))


def _below(n: int, sigma: float, delta: float, batches: Shuffled, adjacency: Adjacency) -> float:
    """The larger of two lower bounds: from the largest sum of every epoch, and from the total of all sums."""
    count = min(n, batches.batches_per_epoch)
    epochs = max(1, n // batches.batches_per_epoch)
    taken = min(count * batches.batch_size, batches.dataset_size)
    left_out = (batches.dataset_size - taken) / batches.dataset_size
    absent = 0.0 if adjacency is Adjacency.REPLACE_ONE else 1.0
    # With one order, the batch of the example is the same in every epoch, so its sums can be averaged.
    noise = quotient_up(sigma, root_down(epochs)) if batches.once else sigma
    found = epsilon_below(Epoch(count, noise, 2.0, absent, left_out), 1 if batches.once else epochs, delta)
    if left_out:
        return found
    # In every epoch one sum is raised, so the total of all is Gaussian.
    apart = quotient_up(quotient_up(sigma * (1.0 + 1e-15), root_down(epochs)), 2.0 - absent)
    return max(found, gaussian_epsilon(apart * root_up(count) * (1.0 + 1e-15), delta, safe=False))
