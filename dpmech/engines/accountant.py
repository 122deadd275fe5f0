"""What every accountant offers, whatever its mathematics."""

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

# As a relative change of sigma, how far apart the ends of an accountant may be at a node.
_TOLERANCE = 1e-3


@dataclasses.dataclass(frozen=True)
class Solution:
    """A calibrated noise scale.

    Args:
        sigma: meets the budget, on the safe side.
        achieved: bounds on eps at the budget's delta, at this sigma.
        samples: how many draws it rests on, both directions; None where nothing was drawn.
        randomness: what names the random numbers that it rests on: 128 bits, in hexadecimal; None where
            nothing was drawn, or nothing is known of them.
        method: the method that carried it, with all its settings; None for the one that was asked for.
        excess: how far above the smallest sigma it was aimed at, about, in log; 0 where `rtol` says that.
    """

    sigma: float
    achieved: Bounds
    samples: int | None = None
    randomness: str | None = None
    method: Method | None = None
    excess: float = 0.0


def too_wide(name: str, sigma: float, lower: float, upper: float, method: str) -> NumericalError:
    """What is raised where bounds on delta or eps are farther apart than the tolerance."""
    return NumericalError(
        f"{name} at sigma={sigma!r} is only known to lie in [{lower!r}, {upper!r}] ({method}), "
        "wider than the tolerance"
    )


class Accountant(abc.ABC):
    """Privacy of one mechanism as a function of sigma alone.

    Whoever needs more than bounds asks the accountant for it, and never which class it is.

    Attributes:
        by: the accountant, as data; `method` is the same in words.
        guarantee: how sure its bounds are.
        sensitivity: the largest L2 norm by which one unit may change C G.
        curve_counts: how often each curve of `profile` counts in the composition.
        amplified: whether chance decides who takes part; else it is one Gaussian release of this sensitivity.
        immediate: whether `profile` takes no work, as the curve is known everywhere.
        evaluates: whether `calibrate` evaluates eps at its sigma, which may be below the budget's; else it
            sizes sigma for the budget's eps, and that is the upper end.
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
        """The accountant in words, for people."""
        return str(self.by)

    @property
    def joined(self) -> Bounds:
        """The sensitivity of all releases together, where everyone joins all of them: `sensitivity`."""
        return self.sensitivity

    @abc.abstractmethod
    def delta(self, sigma: float, eps: float, *, tolerance: float) -> Bounds:
        """Bounds on the smallest delta at eps >= 0.

        Args:
            sigma: > 0.
            eps: >= 0.
            tolerance: how far apart the ends may be, as a relative change of sigma.

        Raises:
            NumericalError: where the tolerance cannot be met.
        """

    def upper_delta(self, sigma: float, eps: float, *, tolerance: float) -> float:
        """The upper end of `delta`, for searches, which may probe where the lower end is far away."""
        return self.delta(sigma, eps, tolerance=tolerance).upper

    def bounded_delta(self, sigma: float, eps: float, *, tolerance: float) -> Bounds:
        """Bounds on what the upper end of `delta` stands for: all that this accountant certifies.

        That is the mechanism's delta, or of a law that dominates it, where its own lower end may be far away.
        """
        return self.delta(sigma, eps, tolerance=tolerance)

    @abc.abstractmethod
    def epsilon(self, sigma: float, delta: float, *, tolerance: float) -> Bounds:
        """Bounds on the smallest eps >= 0 at delta; arguments and errors as for `delta`."""

    @abc.abstractmethod
    def calibrate(self, eps: float, delta: float, *, rtol: float, progress: Progress) -> Solution:
        """The smallest sigma that meets (eps, delta), at most a factor 1 + rtol above it."""

    def rough_sigma(self, eps: float, delta: float) -> float | None:
        """About the sigma that a budget needs, in seconds; no guarantee rests on it.

        Returns:
            None, the default, where that takes as long as `calibrate`.
        """
        del eps, delta
        return None

    def start_for_mu(self, mu: float) -> float | None:
        """About the sigma at which the mechanism is like one Gaussian release of this mu, at once.

        Args:
            mu: > 0.

        Returns:
            None, the default, where samples are needed to say.
        """
        del mu
        return None

    def renyi(self, sigma: float, order: int) -> float | None:
        """An upper bound on the Renyi divergence, the larger of both directions, for filters of a ledger.

        Args:
            sigma: > 0.
            order: >= 2.

        Returns:
            None, the default, where no filter takes it.

        Raises:
            NumericalError: where it leaves the range of float64.
        """
        del sigma, order
        return None

    def dp_event(self, sigma: float) -> "dp_accounting.DpEvent | None":
        """What runs, in the language of dp_accounting.

        Args:
            sigma: > 0.

        Returns:
            None, the default, where no event says it.
        """
        del sigma
        return None

    def profile(self, sigma: float, adjacency: Adjacency, *, rel_error: float) -> "PrivacyProfile":
        """The whole curve in both directions, by default that of `curve`.

        Args:
            sigma: > 0.
            adjacency: what neighbours are.
            rel_error: by how much, relative, the hull of nodes may be above the curve.

        Returns:
            The profile of examples; whose it is in truth, and of which mechanism, the caller knows.

        Raises:
            NumericalError: where there are no bounds on the curve.
        """
        from dpmech.engines.profiles import Composition, PrivacyProfile

        curve = self.curve(sigma, rel_error=rel_error)
        guarantee, by = self.nodes_label(len(curve.remove.eps))
        return PrivacyProfile(Composition(curves=((curve, 1),)), guarantee, by, adjacency)

    def curve(self, sigma: float, *, rel_error: float) -> "Curve":
        """Nodes of both directions, by default where the upper end of `delta` asks for them.

        Args:
            sigma: > 0.
            rel_error: as for `profile`.

        Raises:
            NumericalError: where there are no bounds on the curve.
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
        """How sure the nodes of one curve are, and how they are found.

        Args:
            nodes: how many there are in the direction REMOVE.

        Returns:
            By default a bound at most, as whatever is said of single numbers, lines between them are no more.
        """
        guarantee = BOUND if self.guarantee.rigorous else self.guarantee
        return guarantee, Provenance("profile.nodes", {"nodes": nodes}, (self.by,))
