"""Participation without sampling as a scheme: the whole run is one Gaussian release over the pattern."""

from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from dpmech.drawing import Sampler
from dpmech.engines import Accountant, Canary, Exact, Method, of_pattern, unsampled
from dpmech.exceptions import InvalidParameterError
from dpmech.mechanism import EveryStep, Mechanism, Participation
from dpmech.schemes.fixed_order.participation import FixedEpochs, MinSep, SingleParticipation
from dpmech.schemes.fixed_order.sampler import SequentialSampler
from dpmech.schemes.scheme import Scheme, Structure, as_of_one_example

_DECLARED = (
    "a public number of examples that you write down: under ADD_REMOVE the real one is private, and which "
    "batches there are must not follow from it"
)


class FixedOrderScheme(Scheme[Participation]):
    """Nothing is sampled; a sequential sampler realises every pattern that is not random.

    Args:
        kinds: participations without randomness.
    """

    offers = {  # noqa: RUF012 - a constant
        "canary": "participation without sampling",
        "event": "mechanisms without sampling",
        "fit": "MinSep",
        "risk": "participation without sampling",
    }

    def __init__(self, kinds: Sequence[type[Participation]]) -> None:
        self.samplers: Mapping[type[Participation], Callable[..., Sampler]] = dict.fromkeys(
            kinds, SequentialSampler
        )

    def default(self, participation: Participation) -> Method:
        """The exact formula of the Gaussian mechanism."""
        del participation
        return Exact()

    def accountant(
        self,
        participation: Participation,
        mechanism: Mechanism,
        method: Method | None,
        rng: np.random.Generator | None,
    ) -> Accountant:
        """The Gaussian mechanism."""
        del participation, rng
        return unsampled(mechanism.sensitivity, method)

    def sampler(
        self,
        participation: Participation,
        dataset_size: int,
        n: int,
        *,
        batch_size: int | None = None,
        drop_last: bool = False,
        declared_size: int | None = None,
        hides_size: bool = False,
        user_ids: Sequence[Hashable] | npt.NDArray[np.generic] | None = None,
        rng: object = None,
    ) -> Sampler:
        """Sequential batches; `rng` and `user_ids` are not used."""
        del user_ids, rng
        if hides_size and declared_size is None and (drop_last or batch_size is not None):
            raise InvalidParameterError("declared_size", None, _DECLARED)
        return SequentialSampler(
            dataset_size,
            participation,
            n,
            batch_size=batch_size,
            drop_last=drop_last,
            declared_size=declared_size,
        )

    def canary(self, participation: Participation, mechanism: Mechanism) -> Canary:
        """A canary at the start of the pattern with the largest sum."""
        del participation
        return of_pattern(mechanism, all_starts=False)

    def structure(self, participation: Participation) -> Structure:
        """The pattern; a strategy that is optimal for one example is also optimal for users."""
        if participation.unit is None:
            return Structure()
        return Structure(not_fitted=as_of_one_example(participation, "MinSep"))


SCHEME = FixedOrderScheme([EveryStep, SingleParticipation, MinSep, FixedEpochs])
