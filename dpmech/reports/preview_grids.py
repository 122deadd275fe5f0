"""Noise scales over a range of eps, for a page that computes nothing itself: pairs that hold, close together.

Between two pairs the page takes the noise of the smaller eps. That is always enough, since less noise is
never more private; and as neighbouring noise scales differ by a fixed ratio, it is never much too much. A
chord would be closer and needs a proof of convexity that is not known under sampling.
"""

import bisect
import dataclasses
from collections.abc import Callable

from dpmech.calibration import calibrate_sigma
from dpmech.evaluation import epsilon
from dpmech.exceptions import DpmechError
from dpmech.mechanism import Identity, Mechanism
from dpmech.numerics import product_up, up
from dpmech.schemes.fixed_order import SingleParticipation

__all__ = ["MARGIN", "RATIO", "Grid", "gaussian_grid", "grid_of"]

# From one noise scale to the next, and what is added to each: a calibration may end a tenth of a per cent
# above the least noise, and a preview should not promise less than it.
RATIO, MARGIN = 1.024, 1.002
_DIGITS = 6
_MOST = 2000


@dataclasses.dataclass(frozen=True)
class Grid:
    """Pairs of eps and noise.

    **Guarantee:** at `sigma[i]` the mechanism meets (`eps[i]`, delta), as sure as its accountant says.

    Attributes:
        eps: increasing.
        sigma: decreasing.
    """

    eps: tuple[float, ...]
    sigma: tuple[float, ...]

    def at(self, eps: float) -> float | None:
        """A noise scale that meets eps: that of the next smaller eps; None outside of the grid.

        Args:
            eps: asked for.
        """
        place = bisect.bisect_right(self.eps, eps)
        return self.sigma[place - 1] if place and eps <= self.eps[-1] else None


def gaussian_grid(delta: float, low: float, high: float) -> Grid:
    """Sigma / sensitivity of anything that is not sampled.

    Args:
        delta: in (0, 1).
        low: smallest eps that is asked for, > 0.
        high: largest, above `low`.
    """
    return grid_of(Mechanism(Identity(1), SingleParticipation()), delta, low, high)


def grid_of(
    mechanism: Mechanism,
    delta: float,
    low: float,
    high: float,
    *,
    progress: Callable[[str], None] | None = None,
) -> Grid:
    """The grid of a mechanism whose eps at a given noise is quickly computed.

    It ends early where its accountant has no bound at so little noise.

    Args:
        mechanism: what runs.
        delta: in (0, 1).
        low: smallest eps that is asked for, > 0.
        high: largest, above `low`.
        progress: told how far it is.

    Raises:
        UnsupportedCombinationError: if no theorem covers it.
    """
    sigma = calibrate_sigma(mechanism, low, delta).sigma
    eps = 0.0
    found: list[tuple[float, float]] = []
    while len(found) < _MOST and eps < high:
        try:
            eps = max(eps, epsilon(mechanism, sigma, delta).upper)
        except (DpmechError, ArithmeticError):
            if not found:
                raise
            break
        if not found and eps > low:
            # The search and the evaluation stop at different tolerances.
            sigma, eps = RATIO * sigma, 0.0
            continue
        found.append((float(up(eps, _DIGITS)), float(up(product_up(MARGIN, sigma), _DIGITS))))
        if progress is not None:
            progress(f"eps {up(eps, 3)}")
        sigma /= RATIO
    # The first one holds at `low`, which rounding may have passed.
    found[0] = (min(low, found[0][0]), found[0][1])
    pairs = list(zip(*_increasing(found), strict=True))
    return Grid(tuple(pairs[0]), tuple(pairs[1]))


def _increasing(found: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Of pairs with one eps, that with the least noise."""
    last = {eps: sigma for eps, sigma in found}
    return sorted(last.items())
