"""Grids of eps and noise, conservative between their points, for pages that compute nothing themselves."""

import bisect
import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence

from dpmech.calibration import calibrate_sigma, epsilon
from dpmech.exceptions import DpmechError
from dpmech.mechanism import Identity, Mechanism
from dpmech.numerics import product_up, quotient_up, up
from dpmech.schemes.fixed_order import SingleParticipation

# Ratio of consecutive noise scales, and a margin on each: a calibration may end 0.1 % above the least noise,
# and a preview must not be lower.
RATIO, MARGIN = 1.024, 1.002
_DIGITS = 6
_MOST_PAIRS = 2000


@dataclasses.dataclass(frozen=True)
class Grid:
    """Pairs of eps and noise, close together, for a page that computes nothing itself.

    Between two pairs the page uses the noise of the smaller eps. It is always sufficient, since less noise is
    never more private, and never far too large, since neighbouring noise scales have a fixed ratio. A chord
    would be closer, but requires convexity, which is not proven under sampling.

    **Guarantee:** at `sigma[i]` the mechanism meets (`eps[i]`, delta), with the guarantee of its accountant.

    Attributes:
        eps: increasing values.
        sigma: decreasing values.
    """

    eps: tuple[float, ...]
    sigma: tuple[float, ...]

    def at(self, eps: float) -> float | None:
        """A noise scale that meets eps: that of the next smaller eps; None outside the grid.

        Args:
            eps: the requested eps.
        """
        place = bisect.bisect_right(self.eps, eps)
        return self.sigma[place - 1] if place and eps <= self.eps[-1] else None

    @property
    def step(self) -> float:
        """The largest ratio of neighbouring noise scales, rounded up."""
        return max((quotient_up(more, less) for more, less in itertools.pairwise(self.sigma)), default=1.0)


def gaussian_grid(delta: float, low: float, high: float) -> Grid:
    """Sigma / sensitivity of unsampled mechanisms.

    Args:
        delta: in (0, 1).
        low: smallest requested eps, > 0.
        high: largest requested eps, above `low`.
    """
    return grid_of(Mechanism(Identity(1), SingleParticipation()), delta, low, high)


def grid_of(
    mechanism: Mechanism,
    delta: float,
    low: float,
    high: float,
    *,
    progress: Callable[[str], None] = lambda line: None,
) -> Grid:
    """The grid of a mechanism whose eps at a given noise scale is fast to compute.

    It ends early where its accountant has no bound at such small noise.

    Args:
        mechanism: the mechanism.
        delta: in (0, 1).
        low: smallest requested eps, > 0.
        high: largest requested eps, above `low`.
        progress: called with the progress.

    Raises:
        UnsupportedCombinationError: if no theorem covers it.
    """
    sigma = calibrate_sigma(mechanism, low, delta).sigma
    eps = 0.0
    found: list[tuple[float, float]] = []
    while len(found) < _MOST_PAIRS and eps < high:
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
        progress(f"eps {up(eps, 3)}")
        sigma /= RATIO
    # The first pair holds at `low`, which rounding may have exceeded.
    found[0] = (min(low, found[0][0]), found[0][1])
    # Of equal eps, the last pair has the least noise.
    eps_of, sigma_of = zip(*sorted(dict(found).items()), strict=True)
    return Grid(tuple(eps_of), tuple(sigma_of))


# Where a number takes seconds: the largest ratio, beyond which a step is divided; the tolerance of the
# calibrations; and a margin for theirs and for the random numbers of others.
COARSE, COARSE_RTOL, COARSE_MARGIN = 1.1, 5e-3, 1.005
_SLACK = 0.1


def calibrated_grid(
    mechanism: Mechanism,
    delta: float,
    low: float,
    high: float,
    *,
    marks: Sequence[float] = (),
    known: Mapping[float, float] | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> Grid:
    """The grid of a mechanism whose noise takes seconds to compute: as few calibrations as will do.

    It has a point at both ends and at the marks; a step over which the noise falls by more than about
    `COARSE` is divided. Points that cannot be calibrated are left out, so that a step may be longer.

    Args:
        mechanism: the mechanism.
        delta: in (0, 1).
        low: smallest requested eps, > 0.
        high: largest requested eps, at least `low`.
        marks: values of eps that will be asked for; those outside the range are ignored.
        known: noise scales that are calibrated already, by eps.
        progress: called with the progress.

    Raises:
        DpmechError: the error at the smallest eps, if nothing can be calibrated.
    """
    sigmas = dict(known or {})
    failed: dict[float, DpmechError] = {}
    due = sorted({low, high, *(one for one in marks if low < one < high)})
    while due:
        for eps in due:
            if eps in sigmas or eps in failed:
                continue
            try:
                sigmas[eps] = calibrate_sigma(mechanism, eps, delta, rtol=COARSE_RTOL).sigma
            except DpmechError as error:
                failed[eps] = error
            progress(f"eps {up(eps, 3)}")
        due = [] if len(sigmas) > _MOST_PAIRS else [eps for eps in _between(sigmas) if eps not in failed]
    if not sigmas:
        raise failed[low]
    pairs: list[tuple[float, float]] = []
    for eps, sigma in sorted(sigmas.items()):
        shown = float(up(product_up(COARSE_MARGIN, sigma), _DIGITS))
        # Noise that meets a smaller eps serves here too.
        if not pairs or shown < pairs[-1][1]:
            pairs.append((eps, shown))
    if pairs[-1][0] < max(sigmas):
        pairs.append((max(sigmas), pairs[-1][1]))
    eps_of, sigma_of = zip(*pairs, strict=True)
    return Grid(tuple(eps_of), tuple(sigma_of))


def _between(sigmas: Mapping[float, float]) -> list[float]:
    """Values of eps that divide the steps over which the noise falls too much, in equal ratios."""
    found: list[float] = []
    for (left, more), (right, less) in itertools.pairwise(sorted(sigmas.items())):
        parts = math.ceil(math.log(more / less) / math.log(COARSE) - _SLACK) if more > less else 1
        found += [left * (right / left) ** (place / parts) for place in range(1, parts)]
    return found
