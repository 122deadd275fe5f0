"""Histories of sampled Gaussian steps, as trainers store them, and their privacy profiles."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dpmech.calibration import profile
from dpmech.engines import PrivacyProfile
from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_integer, check_real
from dpmech.mechanism import Identity
from dpmech.numerics import EXACT, Bounds, Provenance
from dpmech.schemes.poisson import Poisson

# The cost of no release.
NOTHING = Bounds(0.0, 0.0, EXACT, Provenance("history.empty"))


@dataclasses.dataclass(frozen=True)
class Steps:
    """A group of equal steps: each a sum of clipped gradients of a Poisson sample, with Gaussian noise.

    Attributes:
        noise_multiplier: standard deviation of the noise over the clip norm, > 0.
        sampling_prob: probability with which every example joins a step, independently, in (0, 1].
        count: number of steps, >= 1.
    """

    noise_multiplier: float
    sampling_prob: float
    count: int

    def __post_init__(self) -> None:
        checked = {
            "noise_multiplier": check_real(
                "noise_multiplier", self.noise_multiplier, minimum=0.0, open_minimum=True
            ),
            "sampling_prob": check_real(
                "sampling_prob", self.sampling_prob, minimum=0.0, maximum=1.0, open_minimum=True
            ),
            "count": check_integer("count", self.count, minimum=1),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)


def steps_of(history: Iterable[Sequence[Any]]) -> tuple[Steps, ...]:
    """The steps of a history of (noise_multiplier, sample_rate, steps), with equal steps merged.

    Raises:
        InvalidParameterError: if an entry is not such a triple.
    """
    counts: dict[tuple[float, float], int] = {}
    for number, entry in enumerate(history):
        name = f"history[{number}]"
        if not isinstance(entry, Sequence) or isinstance(entry, str) or len(entry) != 3:
            raise InvalidParameterError(name, entry, "(noise_multiplier, sample_rate, steps)")
        noise, rate, count = entry
        try:
            one = Steps(noise, rate, count)
        except InvalidParameterError as error:
            raise InvalidParameterError(f"{name}: {error.name}", error.value, error.accepted) from None
        key = one.noise_multiplier, one.sampling_prob
        counts[key] = counts.get(key, 0) + one.count
    return tuple(Steps(noise, rate, count) for (noise, rate), count in counts.items())


def history_profile(steps: Sequence[Steps]) -> PrivacyProfile:
    """The profile of all steps together.

    Args:
        steps: one or more.

    Raises:
        InvalidParameterError: if there are none.
    """
    if not steps:
        raise InvalidParameterError("history", list(steps), "a history with one step at least")
    first, *others = (
        profile(Identity(one.count), one.noise_multiplier, participation=Poisson(one.sampling_prob))
        for one in steps
    )
    return first.compose(*others)


def from_opacus_history(accountant: object) -> PrivacyProfile:
    """The privacy profile of the history of an Opacus accountant: bounds instead of an estimate.

    Every entry of the history is (noise multiplier, sample rate, steps). It means that many steps, each on a
    Poisson sample with that rate, and with Gaussian noise of standard deviation noise multiplier times
    `max_grad_norm`. The adjacency is that of adding or removing one example. The default loaders of Opacus
    sample in this way.

    **What a history cannot show**, and the caller must ensure: that the loader used Poisson sampling. With
    `poisson_sampling=False`, Opacus shuffles and writes the same history, although no theorem in dpmech
    covers shuffling. The same applies if gradients of several batches, each of which may contain the same
    example, are accumulated before a step. The history does not show that the clip norm was fixed, either.
    With `clipping="adaptive"` (AdaClipDPOptimizer), the history is the same but the run costs more: an
    example changes the count of unclipped examples by 1, whereas the noise is scaled for a change of 1/2, and
    the size of every batch enters the next clip norm without noise. Finally, the history does not show
    whether others can predict the generator of the noise, or whether hooks change gradients after clipping.

    An Opacus loader takes k = len(loader) = ceil(N / B) steps per epoch, each with q = 1 / k, as stated in
    the history. To compute the noise beforehand, use `dm.calibrate_sigma(dm.Identity(epochs * k), eps, delta,
    participation=dm.Poisson(1 / k))`, whose sigma is the noise multiplier.

    Args:
        accountant: an accountant of Opacus (any: they store the same history), its `state_dict()`, or the
            history itself.

    Returns:
        A PrivacyProfile: `.epsilon(delta)` and `.delta(eps)` return bounds, and `.compose` adds other
        releases.

    Raises:
        InvalidParameterError: if there is no such history, an entry is out of range (a rate above 1, no
            noise), or there is no step.

    Examples:
        >>> import dpmech as dm
        >>> run = dm.interchange.from_opacus_history([(1.1, 256 / 60000, 3510)])
        >>> run.epsilon(1e-5)
        Bounds(lower=1.1328..., upper=1.1329..., ...)
    """
    history = accountant.get("history") if isinstance(accountant, Mapping) else accountant
    history = getattr(history, "history", history)
    if isinstance(history, str | bytes | Mapping) or not isinstance(history, Sequence):
        raise InvalidParameterError(
            "accountant", accountant, "an accountant of Opacus, its state_dict(), or its history"
        )
    return history_profile(steps_of(history))
