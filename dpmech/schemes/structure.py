"""Structure: what a search over strategies or over risks has to know of a participation."""

import dataclasses

from dpmech.exceptions import UnsupportedCombinationError


@dataclasses.dataclass(frozen=True)
class Structure:
    """How the releases hang together that one unit may join.

    With neither bins nor cycle it is the sensitivity over the pattern that decides about noise.

    Args:
        bins: the mixture of Gaussians over that many bins decides; None where it does not.
        cycle: the releases a unit may join are so many steps apart, and compose, if the strategy has at most
            as many bands; 1 where noise has to be independent. None where
            releases are not sampled one by one.
        not_fitted: why no strategy is fitted under it, and what to do instead; None where one is.
        judged: whether a strategy can be judged by a number that needs no samples.
    """

    bins: int | None = None
    cycle: int | None = None
    not_fitted: UnsupportedCombinationError | None = None
    judged: bool = True


def independent_noise_only(participation: object) -> UnsupportedCombinationError:
    """Nothing is fitted where noise has to be independent and of one size."""
    return UnsupportedCombinationError(
        f"nothing is fitted under {participation!r}, which takes independent noise of one size",
        supported="Identity there; other participations here",
    )


def as_of_one_example(participation: object, alike: str) -> UnsupportedCombinationError:
    """Nothing is fitted for users with several examples where a fit for one example is best for them too."""
    return UnsupportedCombinationError(
        f"nothing is fitted under {participation!r}",
        supported=f"a fit under {alike} with the same numbers: sigma is a multiple of that of one "
        "example, so that coefficients which are best there are best here",
    )


def not_built(participation: object) -> UnsupportedCombinationError:
    """No fit is built."""
    return UnsupportedCombinationError(
        f"nothing is fitted under {participation!r}", supported="MinSep, CyclicPoisson and BallsInBins"
    )
