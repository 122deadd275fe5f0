"""Counts in a ledger: releases of integers with discrete Gaussian noise beside the certified releases."""

import dataclasses
from fractions import Fraction
from typing import Any, Self

from dpmech.composition.ledger_entries import check_together
from dpmech.engines import DiscreteGaussian, PrivacyProfile
from dpmech.exceptions import InvalidParameterError
from dpmech.mechanism import Adjacency, Unit

__all__ = ["CountsPart", "CountsRelease"]

# By how much the hull of a curve may be above it: of eps some 1e-4.
_HULL = 1e-3
# Digits of a fraction in a file; a float needs 34.
_LONGEST = 100


@dataclasses.dataclass(frozen=True)
class CountsRelease:
    """One entry of a ledger that is no certificate: counts.

    Attributes:
        name: of the release.
        counts: noise, sensitivity, how many, and whose presence is hidden.
    """

    name: str
    counts: DiscreteGaussian

    def check(self, adjacency: Adjacency, unit: Unit | None) -> None:
        """Refuse what does not go with a ledger.

        Args:
            adjacency: of the ledger.
            unit: of the releases in it; None where there are none.

        Raises:
            InvalidParameterError: if sigma is a fraction of too many digits for a file.
            UnsupportedCombinationError: on another adjacency or unit.
        """
        own = self.counts
        check_together(self.name, (own.adjacency, own.unit), adjacency, unit)
        if len(_written(own)) > _LONGEST:
            raise InvalidParameterError(
                "sigma", f"{len(_written(own))} digits", f"a fraction of at most {_LONGEST}"
            )

    def settings(self, number: int) -> dict[str, Any]:
        """Plain data, sigma as the fraction that it is; what a file says."""
        own = self.counts
        return {
            "number": number,
            "name": self.name,
            "sigma": _written(own),
            "sensitivity": own.sensitivity,
            "releases": own.releases,
            "unit": own.unit.value,
        }

    @classmethod
    def of(cls, settings: dict[str, Any], adjacency: Adjacency) -> Self:
        """The inverse of `settings`; sigma is a Fraction."""
        sigma, unit = Fraction(settings["sigma"]), Unit(settings["unit"])
        counts = DiscreteGaussian(sigma, settings["sensitivity"], settings["releases"], adjacency, unit)
        return cls(settings["name"], counts)


class CountsPart:
    """What the counts of an announced list add to its total.

    Counts of one noise and sensitivity are one sum over all of them, and no curves that are composed.
    """

    def __init__(self) -> None:
        self._sums: dict[tuple[Fraction, int], DiscreteGaussian] = {}
        self._profiles: dict[DiscreteGaussian, PrivacyProfile] = {}

    def __len__(self) -> int:
        return len(self._sums)

    @property
    def sums(self) -> tuple[DiscreteGaussian, ...]:
        """The counts, one for each noise and sensitivity."""
        return tuple(self._sums.values())

    def enter(self, counts: DiscreteGaussian) -> None:
        """Take in counts, or refuse them and change nothing.

        Raises:
            InvalidParameterError: where the sum with equal ones is more than `DiscreteGaussian` takes.
        """
        self._sums[_kind(counts)] = self.sum_with(counts)

    def sum_with(self, counts: DiscreteGaussian) -> DiscreteGaussian:
        """These counts and those of their noise and sensitivity so far; errors as for `enter`."""
        known = self._sums.get(_kind(counts))
        return counts if known is None else counts.with_releases(known.releases + counts.releases)

    @property
    def profiles(self) -> list[PrivacyProfile]:
        """One for each noise and sensitivity; each is computed once."""
        for one in self.sums:
            if one not in self._profiles:
                self._profiles[one] = one.profile(rel_error=_HULL)
        return [self._profiles[one] for one in self.sums]

    def summary(self) -> dict[str, Any]:
        """Rows of rho, rounded up, and the number of integers; nothing where there are none."""
        return {"counts": [[one.rho, float(one.releases)] for one in self.sums]} if self._sums else {}


def _kind(counts: DiscreteGaussian) -> tuple[Fraction, int]:
    return Fraction(counts.sigma), counts.sensitivity


def _written(counts: DiscreteGaussian) -> str:
    return str(Fraction(counts.sigma))
