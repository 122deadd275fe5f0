"""Privacy profiles as loss distributions of the package dp_accounting, and back; upper bounds only."""

import dataclasses
from typing import TYPE_CHECKING, Self

import numpy as np

from dpmech.engines.losses import LatticeLoss, Loss, upper_lattice
from dpmech.engines.profiles.composition import Composition
from dpmech.engines.profiles.curves import Curve, Nodes
from dpmech.exceptions import InvalidParameterError, UnsupportedCombinationError
from dpmech.guards import check_real
from dpmech.mechanism import Adjacency, Unit
from dpmech.numerics import BOUND, FloatArray, Guarantee, Provenance, quotient_down, register_words, root_up

if TYPE_CHECKING:  # the package takes half a second to import, and few need it
    from dp_accounting.pld.pld_pmf import PLDPmf
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

register_words({"profile.dp_accounting": "a pessimistic privacy loss distribution of dp-accounting"})


# Outputs of a sampled release that are this many standard deviations off count as tails, of mass 1e-32.
_REACH = 12.0
# Where the curve of a distribution is read, and down to which delta.
_NODES, _LEAST_DELTA = 2000, 1e-15
# What a sum of many floats may lack, of itself.
_RELATIVE = 1e-9


def distribution_of(parts: Composition, step: float) -> "PrivacyLossDistribution":
    """All parts on lattices of dp_accounting, each from above, composed by it.

    Args:
        parts: of a profile.
        step: of the lattices, > 0.

    Raises:
        NumericalError: if a curve takes more lattice points than can be afforded.
    """
    from dp_accounting.pld import privacy_loss_distribution as pld

    whole = pld.identity(value_discretization_interval=step)
    if parts.gaussian[1] > 0.0:
        multiplier = quotient_down(1.0, root_up(parts.gaussian[1]))
        whole = whole.compose(pld.from_gaussian_mechanism(multiplier, value_discretization_interval=step))
    for part in parts.sampled:
        # The multiplier is rounded down already.
        losses = (
            Loss(part.sampling_prob, part.sigma_over_sensitivity, remove=remove, reach=_REACH)
            for remove in (True, False)
        )
        one = pld.PrivacyLossDistribution(*(_pmf(upper_lattice(loss, step)) for loss in losses))
        whole = whole.compose(one.self_compose(part.steps))
    for curve, times in parts.curves:
        atoms = (curve.atoms(add=add) for add in (False, True))
        one = pld.PrivacyLossDistribution(*(_pmf(side.lattice(step)) for side in atoms))
        whole = whole.compose(one.self_compose(times) if times > 1 else one)
    return whole


def _pmf(loss: LatticeLoss) -> "PLDPmf":
    from dp_accounting.pld import pld_pmf

    return pld_pmf.DensePLDPmf(loss.step, loss.first, loss.masses, loss.infinite_mass, True)  # noqa: FBT003


def curve_of_distribution(distribution: object, slack: float) -> Curve:
    """Upper bounds on both directions at nodes, as a pessimistic distribution has them.

    Args:
        distribution: a PrivacyLossDistribution of dp_accounting.
        slack: what its arithmetic may hide in delta; added everywhere.

    Raises:
        InvalidParameterError: if it is none.
        UnsupportedCombinationError: if it is an optimistic one, whose deltas are no upper bounds.
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
    """The part of a profile that speaks to dp_accounting; `PrivacyProfile` is the whole.

    Args:
        parts: what is composed.
        guarantee: how sure the parts are.
        by: how they were found.
        adjacency: between which datasets.
        unit: whose presence it hides.
    """

    parts: Composition
    guarantee: Guarantee
    by: Provenance
    adjacency: Adjacency = Adjacency.ADD_REMOVE
    unit: Unit = Unit.EXAMPLE

    def to_dp_accounting(self, *, step: float = 1e-4) -> "PrivacyLossDistribution":
        """A pessimistic PrivacyLossDistribution of the package dp_accounting, composed by it.

        Args:
            step: of its lattices, > 0; its arithmetic is not rounded outward.
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
        """The profile that a pessimistic PrivacyLossDistribution bounds from above; as right as that is.

        Args:
            distribution: of the package dp_accounting.
            adjacency: the neighboring relation for which the distribution was built. A distribution does not
                record it, and neither relation implies the other, so that a wrong value here makes every
                number of the composed profile wrong: ADD_REMOVE for dp_accounting's
                `NeighboringRelation.ADD_OR_REMOVE_ONE`, ZERO_OUT for `REPLACE_SPECIAL`, REPLACE_ONE for
                `REPLACE_ONE`.
            unit: whose presence the distribution hides, which it does not record either: `Unit.USER` where
                its neighbors differ in all examples of one user.
            slack: in (0, 1), added to every delta: what its arithmetic may hide.

        Raises:
            InvalidParameterError: if `distribution` is no such distribution, `adjacency` no Adjacency, or
                `unit` no Unit.
            UnsupportedCombinationError: if it is an optimistic one.
        """
        relation, hidden = Adjacency.check(adjacency), Unit.check(unit)
        off = check_real("slack", slack, minimum=0.0, maximum=1.0, open_minimum=True, open_maximum=True)
        curve = curve_of_distribution(distribution, off)
        by = Provenance("profile.dp_accounting")
        return cls(Composition(curves=((curve, 1),)), BOUND, by, adjacency=relation, unit=hidden)
