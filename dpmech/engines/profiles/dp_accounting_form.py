"""Conversion of privacy profiles to and from dp_accounting's loss distributions; upper bounds only."""

import dataclasses
from typing import TYPE_CHECKING, Self

import numpy as np

from dpmech.engines.losses import LatticeLoss, upper_lattice
from dpmech.engines.profiles.composition import Composition
from dpmech.engines.profiles.curves import Curve, Nodes
from dpmech.exceptions import InvalidParameterError, UnsupportedCombinationError
from dpmech.guards import check_real
from dpmech.mechanism import Adjacency, Unit
from dpmech.numerics import BOUND, FloatArray, Guarantee, Provenance, quotient_down, register_words, root_up

if TYPE_CHECKING:  # the package takes half a second to import and is rarely needed
    from dp_accounting.pld.pld_pmf import PLDPmf
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

register_words({"profile.dp_accounting": "a pessimistic privacy loss distribution of dp-accounting"})


# Outputs of a sampled release beyond this many standard deviations, mass 1e-32, count as tails.
_REACH = 12.0
# Number of nodes at which the curve of a distribution is read, and the smallest delta.
_NODES, _LEAST_DELTA = 2000, 1e-15
# Bound on the relative rounding error of a sum of many floats.
_RELATIVE = 1e-9


def distribution_of(parts: Composition, step: float) -> "PrivacyLossDistribution":
    """Upper bounds of all parts on lattices of dp_accounting, composed by that package.

    Args:
        parts: of a profile.
        step: lattice step, > 0.

    Raises:
        NumericalError: if a curve needs more lattice points than is affordable.
    """
    from dp_accounting.pld import privacy_loss_distribution as pld

    whole = pld.identity(value_discretization_interval=step)
    if parts.gaussian[1] > 0.0:
        multiplier = quotient_down(1.0, root_up(parts.gaussian[1]))
        whole = whole.compose(pld.from_gaussian_mechanism(multiplier, value_discretization_interval=step))
    for part in parts.sampled:
        # The multiplier is already rounded down.
        losses = (
            part.loss(part.sigma_over_sensitivity, remove=remove).within(_REACH) for remove in (True, False)
        )
        one = pld.PrivacyLossDistribution(*(_pmf(upper_lattice(loss, step)) for loss in losses))
        whole = whole.compose(one.self_compose(part.steps))
    for curve, times in parts.known:
        atoms = (curve.atoms(add=add) for add in (False, True))
        one = pld.PrivacyLossDistribution(*(_pmf(side.lattice(step)) for side in atoms))
        whole = whole.compose(one.self_compose(times) if times > 1 else one)
    return whole


def _pmf(loss: LatticeLoss) -> "PLDPmf":
    from dp_accounting.pld import pld_pmf

    return pld_pmf.DensePLDPmf(loss.step, loss.first, loss.masses, loss.infinite_mass, True)  # noqa: FBT003


def curve_of_distribution(distribution: object, slack: float) -> Curve:
    """Upper bounds on both directions at nodes, from a pessimistic distribution.

    Args:
        distribution: a PrivacyLossDistribution of dp_accounting.
        slack: allowance for its rounding errors; added to every delta.

    Raises:
        InvalidParameterError: if `distribution` is not a PrivacyLossDistribution.
        UnsupportedCombinationError: if it is optimistic: its deltas are not upper bounds.
    """
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    if not isinstance(distribution, PrivacyLossDistribution):
        raise InvalidParameterError(
            "distribution", distribution, "a PrivacyLossDistribution of dp_accounting"
        )
    sides: list[Nodes] = []
    for pmf in (distribution._pmf_remove, distribution._pmf_add):
        if not isinstance(pmf, pld_pmf.PLDPmf):
            raise InvalidParameterError("distribution", distribution, "made of probability mass functions")
        if pmf._pessimistic_estimate is not True:
            raise UnsupportedCombinationError(
                "an optimistic privacy loss distribution bounds delta from below",
                supported="one with pessimistic_estimate=True",
            )
        last = max(0.0, float(pmf.get_epsilon_for_delta(pmf._infinity_mass + _LEAST_DELTA)))
        if not np.isfinite(last):
            last = 0.0
        eps: FloatArray = np.unique(np.linspace(0.0, last, _NODES))
        deltas = np.array([float(pmf.get_delta_for_epsilon(float(one))) for one in eps])
        if not np.all(np.isfinite(deltas)):
            raise InvalidParameterError("distribution", distribution, "one whose deltas are finite")
        upper = np.minimum(deltas * (1.0 + _RELATIVE) + slack, 1.0)
        sides.append(Nodes.of(eps, np.zeros(eps.size), upper))
    return Curve(*sides)


@dataclasses.dataclass(frozen=True, eq=False)
class Exchanged:
    """Conversions between a profile and dp_accounting; `PrivacyProfile` is the complete class.

    Args:
        parts: the components of the profile.
        guarantee: the guarantee of the parts.
        by: the provenance of the parts.
        adjacency: the neighbouring relation.
        unit: the unit of privacy.
    """

    parts: Composition
    guarantee: Guarantee
    by: Provenance
    adjacency: Adjacency = Adjacency.ADD_REMOVE
    unit: Unit = Unit.EXAMPLE

    def to_dp_accounting(self, *, step: float = 1e-4) -> "PrivacyLossDistribution":
        """A pessimistic PrivacyLossDistribution of the package dp_accounting, composed by it.

        Args:
            step: lattice step, > 0. The package's arithmetic does not round outward.
        """
        return distribution_of(self.parts, check_real("step", step, minimum=0.0, open_minimum=True))

    @classmethod
    def from_dp_accounting(
        cls,
        distribution: object,
        *,
        adjacency: Adjacency,
        unit: Unit = Unit.EXAMPLE,
        slack: float = 1e-12,
    ) -> Self:
        """The profile bounded above by a pessimistic PrivacyLossDistribution; valid if that distribution is.

        Args:
            distribution: of the package dp_accounting.
            adjacency: the neighbouring relation for which the distribution was built. A distribution does not
                record it, and neither relation implies the other, so a wrong value here makes every number of
                the composed profile wrong: ADD_REMOVE for dp_accounting's
                `NeighboringRelation.ADD_OR_REMOVE_ONE`, ZERO_OUT for `REPLACE_SPECIAL`, REPLACE_ONE for
                `REPLACE_ONE`.
            unit: the unit of privacy, which the distribution does not record either: `Unit.USER` if its
                neighbours differ in all examples of one user.
            slack: in (0, 1), added to every delta as an allowance for rounding errors.

        Raises:
            InvalidParameterError: if `distribution` is not a PrivacyLossDistribution, `adjacency` not an
                Adjacency, or `unit` not a Unit.
            UnsupportedCombinationError: if it is optimistic.
        """
        relation, hidden = Adjacency.check(adjacency), Unit.check(unit)
        off = check_real("slack", slack, minimum=0.0, maximum=1.0, open_minimum=True, open_maximum=True)
        curve = curve_of_distribution(distribution, off)
        by = Provenance("profile.dp_accounting")
        return cls(Composition(curves=((curve, 1),)), BOUND, by, adjacency=relation, unit=hidden)
