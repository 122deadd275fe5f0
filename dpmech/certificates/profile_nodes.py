"""The nodes of a privacy profile as evidence in a certificate: computed once, read again, and checked."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

from dpmech.engines import Composition, Curve, Nodes, PrivacyProfile
from dpmech.exceptions import InvalidParameterError, UnsupportedCombinationError
from dpmech.guards import check_integer
from dpmech.mechanism import Mechanism, Unit
from dpmech.numerics import Guarantee, Provenance
from dpmech.schemes import scheme_of

__all__ = ["ProfileNodes"]


@dataclasses.dataclass(frozen=True)
class ProfileNodes:
    """Bounds on both directions of a mechanism's curve, at nodes.

    Attributes:
        curves: what is composed, with how often: one curve, or one for each kind of epoch.
        guarantee: how sure all nodes are together; an error of draws is outside delta.
        by: how they were found.

    Raises:
        InvalidParameterError: without a curve, or where they are an estimate.
    """

    curves: tuple[tuple[Curve, int], ...]
    guarantee: Guarantee
    by: Provenance

    def __post_init__(self) -> None:
        if not self.curves:
            raise InvalidParameterError("curves", self.curves, "at least one")
        for _, times in self.curves:
            check_integer("times", times, minimum=1)
        if not self.guarantee.rigorous or self.guarantee.inside_delta:
            raise InvalidParameterError(
                "guarantee", self.guarantee, "a bound, or one that holds with probability 1 - beta"
            )

    @classmethod
    def of(cls, profile: PrivacyProfile, mechanism: Mechanism, sigma: float) -> Self | None:
        """The nodes of a profile of this mechanism at this noise scale; None where there are none.

        A profile without nodes follows from mechanism and noise scale at once, and nothing needs to be kept.

        Raises:
            InvalidParameterError: if it is no profile, one of something else, or an estimate.
            UnsupportedCombinationError: if it has nodes where the mechanism has a curve in closed form.
        """
        if not isinstance(profile, PrivacyProfile):
            raise InvalidParameterError("profile", profile, "a PrivacyProfile, such as cal.profile() gives")
        if profile.of != (mechanism, sigma):
            raise InvalidParameterError(
                "profile",
                profile,
                f"that of {mechanism!r} at sigma={sigma!r}, as cal.profile() or dm.profile gives it; a "
                "composed one belongs to a dm.Ledger",
            )
        if not profile.parts.curves:
            return None
        if reason := cls.refusal(mechanism):
            raise UnsupportedCombinationError(
                f"nodes of {mechanism!r}, {reason}",
                supported="a profile with method=None, which takes no room in a certificate",
            )
        return cls(profile.parts.curves, profile.guarantee, profile.by)

    @staticmethod
    def refusal(mechanism: Mechanism) -> str:
        """Why no certificate keeps nodes of this mechanism; empty where it does."""
        return scheme_of(mechanism.participation).nodes_refusal(mechanism.participation)

    def profile(self, mechanism: Mechanism, sigma: float, unit: Unit) -> PrivacyProfile:
        """The profile that they are of."""
        return PrivacyProfile(
            Composition(curves=self.curves),
            self.guarantee,
            self.by,
            mechanism.adjacency,
            unit,
            (mechanism, sigma),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "guarantee": self.guarantee.to_dict(),
            "by": self.by.to_dict(),
            "curves": [
                {"times": times}
                | {
                    name: {"eps": list(side.eps), "lower": list(side.lower), "upper": list(side.upper)}
                    for name, side in (("remove", curve.remove), ("add", curve.add), ("larger", curve.larger))
                    if side is not None
                }
                for curve, times in self.curves
            ],
        }

    @classmethod
    def of_evidence(cls, evidence: Mapping[str, Any], mechanism: Mechanism) -> Self | None:
        """Rebuild from `to_dict`, from the entry `profile` of a certificate's evidence; None without one.

        Raises:
            InvalidParameterError: if it is not made of such data.
            UnsupportedCombinationError: if `of` keeps no nodes for this mechanism.
        """
        if "profile" not in evidence:
            return None
        data = evidence["profile"]
        if reason := cls.refusal(mechanism):
            raise UnsupportedCombinationError(
                f"evidence.profile has nodes of {mechanism!r}, {reason}",
                supported="evidence.profile under BallsInBins only",
            )
        return cls(
            tuple((_curve(one), one["times"]) for one in data["curves"]),
            Guarantee.from_dict(data["guarantee"]),
            Provenance.from_dict(data["by"]),
        )


def _curve(data: Mapping[str, Any]) -> Curve:
    sides = {name: _nodes(data[name]) for name in ("remove", "add", "larger") if name in data}
    return Curve(sides["remove"], sides["add"], sides.get("larger"))


def _nodes(data: Mapping[str, Any]) -> Nodes:
    return Nodes(tuple(data["eps"]), tuple(data["lower"]), tuple(data["upper"]))
