r"""What is left of privacy where lots were made by shuffling: bounds on eps, the lower one by an event.

Lots of a fixed size are cut from a random order of the examples, anew in every epoch or once. No theorem of
dpmech amplifies that; what is proved here is how large eps is *at least*. Let the gradient of every other
example be -1 and that of the one in question +1, in one direction, whatever the model. A noisy sum, less its
public mean, then has mean 2 if the example is in the lot, 1 if a gap is in its place (0 if an example of
gradient -1 is), and 0 otherwise. How high the largest sum of every epoch is tells the worlds apart. The page
"Shuffled lots" of the documentation has the proof.

The upper end takes the order as known: then it is the Gaussian mechanism with one participation an epoch.
"""

import dataclasses
from typing import Any

from dpmech.auditing.largest_sums import Epoch, epsilon_below
from dpmech.engines import gaussian_epsilon
from dpmech.evaluation import epsilon
from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_delta, check_integer, check_sigma
from dpmech.mechanism import Adjacency, EveryStep, Identity
from dpmech.numerics import BOUND, Bounds, Provenance, quotient_up, root_down, root_up

__all__ = ["Shuffled", "shuffled_epsilon"]


@dataclasses.dataclass(frozen=True)
class Shuffled:
    """Lots cut one after the other from a random order of the dataset, as most loaders make them.

    It is no participation: nothing can be calibrated for it. It says how a run was trained that is audited.

    Args:
        dataset_size: number of examples, >= 1.
        batch_size: of a lot, in [1, dataset_size].
        drop_last: whether what is left at the end of an epoch is left out; else it is a smaller lot.
        once: whether one order serves all epochs; else every epoch has a new one.

    Raises:
        InvalidParameterError: on a bad argument.

    Examples:
        >>> from dpmech.auditing import Shuffled
        >>> Shuffled(50_000, 128).lots_per_epoch, Shuffled(50_000, 128, drop_last=False).lots_per_epoch
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
        return f"lots of {self.batch_size} of {self.dataset_size} examples, {order}"

    @property
    def lots_per_epoch(self) -> int:
        """Steps of an epoch."""
        whole, rest = divmod(self.dataset_size, self.batch_size)
        return whole + bool(rest and not self.drop_last)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, with its type."""
        return {"type": type(self).__name__} | dataclasses.asdict(self)


def shuffled_epsilon(
    n: int, sigma: float, delta: float, lots: Shuffled, *, adjacency: Adjacency = Adjacency.ADD_REMOVE
) -> Bounds:
    """Bounds on the eps of a run with independent noise, of which all noisy sums are released.

    **Guarantee:** both ends are proved. Some data and some loss reach the lower one; no accountant that
    covers all data may give less. The upper one takes no amplification.

    Datasets have one size, as lots have: adding or removing an example fills a gap or leaves one.

    Args:
        n: number of steps, >= 1. What is left after whole epochs enters the upper end alone.
        sigma: noise of a sum over the clip norm, > 0.
        delta: in (0, 1).
        lots: how they were made.
        adjacency: between which datasets.

    Raises:
        InvalidParameterError: on a bad argument.

    References:
        Chua, Ghazi, Kamath, Kumar, Manurangsi, Sinha and Zhang 2024, arXiv:2403.17673.

    Examples:
        >>> import dpmech as dm
        >>> from dpmech.auditing import Shuffled, shuffled_epsilon
        >>> accounted = dm.epsilon(dm.Identity(300), 0.7, 1e-5, participation=dm.Poisson(0.01))
        >>> found = shuffled_epsilon(300, 0.7, 1e-5, Shuffled(50_000, 500))
        >>> round(accounted.upper, 2), round(found.lower, 2), round(found.upper, 2)
        (3.08, 12.46, 13.04)
    """
    n = check_integer("n", n, minimum=1)
    sigma, delta = check_sigma(sigma), check_delta(delta)
    if not isinstance(lots, Shuffled):
        raise InvalidParameterError("lots", lots, "a Shuffled")
    if not isinstance(adjacency, Adjacency):
        raise InvalidParameterError("adjacency", adjacency, "an Adjacency")
    most = -(-n // lots.lots_per_epoch)
    upper = epsilon(Identity(most), sigma, delta, participation=EveryStep(), adjacency=adjacency).upper
    lower = min(_below(n, sigma, delta, lots, adjacency), upper)
    facts = {"lots": lots.lots_per_epoch, "epochs": most, "order": "one" if lots.once else "a new"}
    return Bounds(lower, upper, BOUND, Provenance("audit.shuffled", facts))


def _below(n: int, sigma: float, delta: float, lots: Shuffled, adjacency: Adjacency) -> float:
    """The larger of two lower bounds: from the largest sum of every epoch, and from the total of all."""
    count = min(n, lots.lots_per_epoch)
    epochs = max(1, n // lots.lots_per_epoch)
    taken = min(count * lots.batch_size, lots.dataset_size)
    left_out = (lots.dataset_size - taken) / lots.dataset_size
    absent = 0.0 if adjacency is Adjacency.REPLACE_ONE else 1.0
    # One order: the lot of the example is the same in every epoch, and its sums may be averaged.
    noise = quotient_up(sigma, root_down(epochs)) if lots.once else sigma
    found = epsilon_below(Epoch(count, noise, 2.0, absent, left_out), 1 if lots.once else epochs, delta)
    if left_out:
        return found
    # In every epoch one sum is raised, so that the total of all is Gaussian.
    apart = quotient_up(quotient_up(sigma * (1.0 + 1e-15), root_down(epochs)), 2.0 - absent)
    return max(found, gaussian_epsilon(apart * root_up(count) * (1.0 + 1e-15), delta, safe=False))
