"""The interface of all accountants."""

import abc
import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from dpmech.exceptions import NumericalError
from dpmech.mechanism import Adjacency
from dpmech.methods import Method
from dpmech.numerics import BOUND, Bounds, Guarantee, Provenance, quotient_down, register_words

if TYPE_CHECKING:
    import dp_accounting

    from dpmech.engines.profiles import Curve, PrivacyProfile

register_words({"profile.nodes": "a privacy profile from bounds at {nodes} nodes"})


Progress: TypeAlias = Callable[[str], None]

# How far apart the lower and upper bounds may be at a node of a curve, as a relative change of sigma.
_TOLERANCE = 1e-3


@dataclasses.dataclass(frozen=True)
class Solution:
    """A calibrated noise scale.

    Args:
        sigma: meets the budget; rounded up.
        achieved: bounds on eps at this sigma and the budget's delta.
        samples: number of samples used, both directions together; None if no samples were drawn.
        randomness: identifies the random numbers that were used: 128 bits, in hexadecimal; None if no samples
            were drawn or their source is unknown.
        method: the method that produced it, with all its settings; None if it is the requested one.
        excess: approximate targeted excess over the smallest sigma, in log; 0 if `rtol` determines it.
    """

    sigma: float
    achieved: Bounds
    samples: int | None = None
    randomness: str | None = None
    method: Method | None = None
    excess: float = 0.0


def too_wide(name: str, sigma: float, lower: float, upper: float, method: str) -> NumericalError:
    """The error for bounds on delta or eps that are farther apart than the tolerance."""
    return NumericalError(
        f"{name} at sigma={sigma!r} is only known to lie in [{lower!r}, {upper!r}] ({method}), "
        "wider than the tolerance"
    )


class Accountant(abc.ABC):
    """Privacy of one mechanism as a function of sigma.

    Everything specific to an accountant goes through this interface; callers never test its class.

    Attributes:
        by: the accountant, as data; `method` is its description in words.
        guarantee: the guarantee of its bounds.
        sensitivity: the largest L2 norm of the change of C G that one unit can cause.
        curve_counts: multiplicity of each curve of `profile` in the composition.
        amplified: whether participation is random; otherwise it is one Gaussian release of this sensitivity.
        immediate: whether `profile` takes no work because the curve is known in closed form.
        evaluates: whether `calibrate` evaluates eps at its sigma, which may be below the budget's eps;
            otherwise it sizes sigma for the budget's eps and reports that as the upper end.
    """

    by: Provenance
    guarantee: Guarantee
    sensitivity: Bounds
    curve_counts: tuple[int, ...] = (1,)
    amplified: ClassVar[bool] = True
    immediate: ClassVar[bool] = False
    evaluates: ClassVar[bool] = True

    @property
    def method(self) -> str:
        """Description of the accountant in words."""
        return str(self.by)

    @property
    def joined(self) -> Bounds:
        """Sensitivity of all releases together if a unit joins all of them; by default `sensitivity`."""
        return self.sensitivity

    @abc.abstractmethod
    def delta(self, sigma: float, eps: float, *, tolerance: float) -> Bounds:
        """Bounds on the smallest delta at eps >= 0.

        Args:
            sigma: > 0.
            eps: >= 0.
            tolerance: largest allowed distance between the bounds, as a relative change of sigma.

        Raises:
            NumericalError: where the tolerance cannot be met.
        """

    def upper_delta(self, sigma: float, eps: float, *, tolerance: float) -> float:
        """The upper bound of `delta`, for searches that may probe where the lower bound is far away."""
        return self.delta(sigma, eps, tolerance=tolerance).upper

    def bounded_delta(self, sigma: float, eps: float, *, tolerance: float) -> Bounds:
        """Bounds on the quantity that the upper end of `delta` bounds: all that this accountant certifies.

        That is the mechanism's delta, or a dominating law's if the mechanism's lower bound may be far off.
        """
        return self.delta(sigma, eps, tolerance=tolerance)

    @abc.abstractmethod
    def epsilon(self, sigma: float, delta: float, *, tolerance: float) -> Bounds:
        """Bounds on the smallest eps >= 0 at delta; arguments and errors as for `delta`."""

    @abc.abstractmethod
    def calibrate(self, eps: float, delta: float, *, rtol: float, progress: Progress) -> Solution:
        """The smallest sigma that meets (eps, delta), within a factor 1 + rtol."""

    def rough_sigma(self, eps: float, delta: float) -> float | None:
        """An approximate sigma for a budget, in seconds. It enters no guarantee.

        Returns:
            None, the default, if an approximation takes as long as `calibrate`.
        """
        del eps, delta
        return None

    def start_for_mu(self, mu: float) -> float | None:
        """Quick approximate sigma at which the mechanism resembles one Gaussian release with this mu.

        Args:
            mu: > 0.

        Returns:
            None, the default, if this requires samples.
        """
        del mu
        return None

    def renyi(self, sigma: float, order: int) -> float | None:
        """An upper bound on the Renyi divergence, the larger of both directions, for a ledger's filters.

        Args:
            sigma: > 0.
            order: >= 2.

        Returns:
            None, the default, if no filter accepts this accountant.

        Raises:
            NumericalError: if it leaves the range of float64.
        """
        del sigma, order
        return None

    def dp_event(self, sigma: float) -> "dp_accounting.DpEvent | None":
        """The mechanism as an event of dp_accounting.

        Args:
            sigma: > 0.

        Returns:
            None, the default, if no event describes it.
        """
        del sigma
        return None

    def profile(self, sigma: float, adjacency: Adjacency, *, rel_error: float) -> "PrivacyProfile":
        """The whole curve in both directions; by default composed from `curve`.

        Args:
            sigma: > 0.
            adjacency: the neighbouring relation.
            rel_error: largest relative excess of the hull of nodes over the curve.

        Returns:
            The profile with unit EXAMPLE; the caller sets the actual unit and mechanism.

        Raises:
            NumericalError: if there are no bounds on the curve.
        """
        from dpmech.engines.profiles import Composition, PrivacyProfile

        curve = self.curve(sigma, rel_error=rel_error)
        guarantee, by = self.nodes_label(len(curve.remove.eps))
        return PrivacyProfile(Composition(curves=((curve, 1),)), guarantee, by, adjacency)

    def curve(self, sigma: float, *, rel_error: float) -> "Curve":
        """Nodes of both directions; by default placed where the upper bound of `delta` requires them.

        Args:
            sigma: > 0.
            rel_error: as for `profile`.

        Raises:
            NumericalError: if there are no bounds on the curve.
        """
        from dpmech.engines.gaussian import gaussian_delta
        from dpmech.engines.profiles import curve_of_bounds

        multiplier = quotient_down(sigma, self.joined.upper)
        return curve_of_bounds(
            lambda eps: self.delta(sigma, eps, tolerance=_TOLERANCE),
            rel_error,
            lambda eps: gaussian_delta(multiplier, eps)[1],
        )

    def nodes_label(self, nodes: int) -> tuple[Guarantee, Provenance]:
        """Guarantee and provenance of the nodes of one curve.

        Args:
            nodes: number of nodes in direction REMOVE.

        Returns:
            By default a bound at most: lines between nodes are bounds even if the nodes are exact.
        """
        guarantee = BOUND if self.guarantee.rigorous else self.guarantee
        return guarantee, Provenance("profile.nodes", {"nodes": nodes}, (self.by,))
