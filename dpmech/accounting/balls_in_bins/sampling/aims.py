"""How far above the right point a proof by bets is tried: what its draws are worth."""

import dataclasses
import math
from collections.abc import Callable

from dpmech.accounting.balls_in_bins.sampling.pilots import Pilots
from dpmech.exceptions import NumericalError

__all__ = ["Aim", "FarAimError", "best_aim"]

# How far above the right sigma, in log, a calibration may aim.
_AIMS = (0.0008, 0.001, 0.0012, 0.0015, 0.002, 0.0025, 0.003, 0.004, 0.006, 0.01, 0.02, 0.04, 0.08)
# And further, where that takes many draws: the bound on the weights is far above delta there, and so far
# above the right sigma fewer show that delta is far below its target.
_FAR_AIMS = (0.12, 0.18, 0.25, 0.35, 0.5)
# The pilot at the root is to know delta this much better than the gap that is aimed at.
PILOT_SHARE = 0.25
# An aim this much higher is as unwelcome as all the draws that a proof may take.
_COMFORT = 0.002


class FarAimError(NumericalError):
    """A proof by sampling would aim too far above the right point; none was tried, and no beta was spent."""


@dataclasses.dataclass(frozen=True, eq=False)
class Aim:
    """Where a proof is tried.

    Attributes:
        above: how far above the point where delta is about its target, in log.
        draws: how many it is expected to take.
        sizing: how many draws find the root well enough for it.
        pilots: those of that point, where it is far from the others; else None.
    """

    above: float
    draws: float
    sizing: float = 0.0
    pilots: Pilots | None = None

    def cost(self, most: float) -> float:
        """How unwelcome it is, where a proof may take so many draws."""
        return ((self.draws + self.sizing) / most) ** 2 + self.above / _COMFORT


def best_aim(
    pilots: Pilots,
    fall: float,
    delta: float,
    beta: float,
    most: float,
    there: Callable[[float], Pilots],
    *,
    reach: float = math.inf,
) -> Aim:
    """The aim whose proof is worth its draws.

    Args:
        pilots: near the point where delta meets its target.
        fall: by how much log delta falls a unit of log sigma (or of log eps).
        delta: the target.
        beta: of the proof.
        most: draws that a proof may take.
        there: pilots of a point so far above those given, with random numbers of their own.
        reach: how far above that may be, in log; with a limit, only the nearer ones are looked at.

    Raises:
        FarAimError: if it is above `reach`.
    """
    near = (
        Aim(
            above,
            pilots.expected_samples(pilots.log_mean + fall * above, beta),
            pilots.samples * (pilots.relative_error / (PILOT_SHARE * fall * above)) ** 2,
        )
        for above in _AIMS
    )
    best = min(near, key=lambda aim: aim.cost(most))
    for above in _FAR_AIMS if math.isinf(reach) else ():
        if best.cost(most) <= Aim(above, 0.0).cost(most):
            break
        # Log delta is no line that far.
        drawn = there(above)
        best = min(
            best,
            Aim(above, drawn.expected_samples(math.log(delta), beta), pilots=drawn),
            key=lambda aim: aim.cost(most),
        )
    if best.above > reach:
        raise FarAimError(f"a proof by sampling would aim {math.expm1(best.above):.0%} too high, or more")
    return best
