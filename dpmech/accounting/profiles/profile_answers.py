"""What a profile answers at one point: a direction, delta at an eps, eps at a delta; and a picture."""

import dataclasses
import functools
from typing import TYPE_CHECKING

from dpmech.accounting.poisson import PoissonAccountant
from dpmech.accounting.profiles.dp_accounting_form import Exchanged
from dpmech.accounting.profiles.risk import larger
from dpmech.accounting.profiles.tradeoff import Stick
from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_delta, check_eps, check_real
from dpmech.numerics import BOUND, Bounds
from dpmech.plots import privacy_profile

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Answers"]

# How far a lattice may move log delta.
_TOLERANCE = 1e-3
# Of a picture: points, the least eps that it reaches to, and how far above what delta never falls below it
# ends.
_POINTS, _SHORTEST, _ABOVE_FLOOR = 40, 1e-6, 1.5


@dataclasses.dataclass(frozen=True, eq=False)
class Answers(Exchanged):
    """The part of a profile that is asked at a point; `PrivacyProfile` is the whole.

    Args:
        parts: what is composed.
        guarantee: how sure the parts are.
        by: how they were found.
        adjacency: between which datasets.
        unit: whose presence it hides.
    """

    def hockey_stick(self, eps: float, *, add: bool) -> Bounds:
        """Bounds on one direction: H at e^eps, at any real eps.

        Args:
            eps: finite; below 0 as well.
            add: H(Q || P), else H(P || Q).

        Raises:
            InvalidParameterError: on a bad argument.
            NumericalError: where no lattice that can be afforded bounds it.
        """
        at = check_real("eps", eps)
        if not isinstance(add, bool):
            raise InvalidParameterError("add", add, "True or False")
        return self._labelled(*self._ends(at, add=add))

    def delta(self, eps: float) -> Bounds:
        """Bounds on delta at eps >= 0; errors as for `hockey_stick`."""
        at = check_eps(eps, zero_allowed=True)
        sampled = self.parts.sampled
        if len(sampled) == 1 and self.parts.releases == sampled[0].steps:
            found = PoissonAccountant(sampled[0].release).delta(1.0, at, tolerance=0.4 * _TOLERANCE)
            return self._labelled(found.lower, found.upper)
        return self._labelled(*larger(self._ends(at, add=add) for add in self._directions))

    def epsilon(self, delta: float) -> Bounds:
        """Bounds on the smallest eps >= 0 at delta in (0, 1).

        Raises:
            InvalidParameterError: on a bad argument.
            UnattainableBudgetError: where delta does not fall so low, however large eps is.
            NumericalError: as for `hockey_stick`.
        """
        at = check_delta(delta)
        sampled = self.parts.sampled
        if len(sampled) == 1 and self.parts.releases == sampled[0].steps:
            found = PoissonAccountant(sampled[0].release).epsilon(1.0, at, tolerance=0.4 * _TOLERANCE)
            return self._labelled(found.lower, found.upper)
        ends = [self.parts.epsilon(at, add=add, tolerance=_TOLERANCE) for add in self._directions]
        return self._labelled(max(lower for lower, _ in ends), max(upper for _, upper in ends))

    def plot(self, least_delta: float = 1e-10) -> "Figure":
        """Delta against eps, one line for each direction, with the interval where there are lower bounds.

        Every point takes a question to the profile: of several releases that is some seconds for all.

        Args:
            least_delta: in (0, 1); the figure ends where delta has fallen to it, or to what it never falls
                below.

        Returns:
            A matplotlib Figure that no window holds; `figure.savefig("profile.png")`.

        Raises:
            InvalidParameterError: on a bad argument.
            MissingDependencyError: without matplotlib.
            NumericalError: as for `hockey_stick`.
        """
        least = check_real(
            "least_delta", least_delta, minimum=0.0, maximum=1.0, open_minimum=True, open_maximum=True
        )
        never = max(self.parts.never(add=add) for add in self._directions)
        last = self.epsilon(min(0.5, max(least, _ABOVE_FLOOR * never))).upper
        # Closer together near 0, where a curve bends.
        grid = [max(last, _SHORTEST) * (index / _POINTS) ** 1.5 for index in range(_POINTS + 1)]
        names = {False: "REMOVE", True: "ADD"} if len(self._directions) > 1 else {False: "both directions"}
        lines = {name: [self.hockey_stick(eps, add=add) for eps in grid] for add, name in names.items()}
        return privacy_profile(grid, lines)

    @functools.cached_property
    def _asked(self) -> dict[tuple[float, bool], tuple[float, float]]:
        return {}

    def _ends(self, eps: float, *, add: bool) -> tuple[float, float]:
        """Lower and upper value of one direction; kept, for several questions ask at the same eps."""
        known = self._asked.get((eps, add))
        if known is None:
            known = self._asked[eps, add] = self.parts.delta(eps, add=add, tolerance=_TOLERANCE)
        return known

    def _stick(self, *, add: bool) -> Stick:
        return functools.partial(self._ends, add=add)

    @property
    def _directions(self) -> tuple[bool, ...]:
        """Which have to be looked at: a Gaussian loss is the same in both."""
        return (False, True) if self.parts.sampled or self.parts.curves else (False,)

    def _labelled(self, lower: float, upper: float) -> Bounds:
        guarantee = self.guarantee
        if self.parts.sampled or self.parts.curves:
            guarantee &= BOUND
        return Bounds.derived(lower, upper, guarantee, self.by)
