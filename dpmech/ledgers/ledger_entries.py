"""Entries of a ledger: certified releases, counts, other mechanisms, and their mode."""

import dataclasses
import enum
import functools
from collections.abc import Hashable, Iterable, Sequence
from fractions import Fraction
from typing import Any, Self

from dpmech.certificates import Certificate, Claim, check_unedited
from dpmech.engines import (
    BasicMechanism,
    DiscreteGaussian,
    Divergence,
    PrivacyProfile,
    RunCount,
    basic_mechanism_from,
    concentrated,
)
from dpmech.exceptions import InvalidParameterError, UnsupportedCombinationError
from dpmech.guards import check_integer
from dpmech.ledgers.privacy_filters import Price
from dpmech.ledgers.shared_batch import JointRelease, SharedBatch
from dpmech.mechanism import Adjacency, Unit
from dpmech.numerics import (
    BOUND,
    Guarantee,
    Kind,
    Provenance,
    down,
    joined,
    product_up,
    rounded_up,
    sum_up,
    up,
)


class Mode(enum.Enum):
    """The theorem by which a release is composed.

    `NON_ADAPTIVE`: listed before the first result was seen; the full list is composed. `ADAPTIVE`: added
    based on earlier results, through a privacy filter.
    """

    NON_ADAPTIVE = "non_adaptive"
    ADAPTIVE = "adaptive"


@dataclasses.dataclass(frozen=True)
class Release:
    """One entry of a ledger.

    Attributes:
        name: name of the release.
        certificate: its certificate.
        batch: the sampled batches that it read; None for an unsampled release.
        blocks: sigma of every mechanism on that batch, by name; empty if the release is the only one.
        mode: the theorem by which it is composed.
        price: its cost in the accounting method of the ledger, rounded up; empty if non-adaptive.
        runs: the distribution of a secret number of runs of which the best is released; None for one run.
    """

    name: str
    certificate: Certificate
    batch: str | None
    blocks: tuple[tuple[str, float], ...] = ()
    mode: Mode = Mode.NON_ADAPTIVE
    price: Price = ()
    runs: RunCount | None = None

    @property
    def own_delta(self) -> float:
        """The certified delta times the mean number of runs, at which its eps is of interest."""
        return self.certificate.budget.delta * (1.0 if self.runs is None else max(1.0, self.runs.mean))


def certificate_of(argument: str, claim: object) -> Certificate:
    """The certificate of an unedited Calibration or Certificate.

    Raises:
        InvalidParameterError: if the argument is neither.
        CertificateError: if it was edited after it was computed.
    """
    if not isinstance(claim, Claim):
        raise InvalidParameterError(argument, claim, "a Calibration or a Certificate")
    check_unedited(claim)
    return claim.certificate()


def draw_of(claim: Claim) -> Hashable:
    """Key of the event that the random numbers of a claim were bad; equal keys mean the same event.

    The event is determined by the random numbers and by what was calibrated on them. Without identified
    random numbers, no two events are known to be equal.
    """
    named = claim.evidence.randomness
    return object() if named is None else (named, claim.fingerprint(), claim.guarantee)


def sure_together(certificates: Iterable[Certificate]) -> Guarantee:
    """The joint guarantee of several claims: the errors of their samples add up, each sample's once."""
    draws = {draw_of(own): own.guarantee for own in certificates}
    sure = joined(draws.values())
    if not sure.inside_delta:
        return sure
    return dataclasses.replace(sure, error=min(1.0, sum_up(one.error for one in draws.values())))


def in_all(guarantee: Guarantee) -> str:
    """The guarantee of a total in words, with every digit of its beta."""
    if guarantee.kind is not Kind.PROBABLE:
        return str(guarantee)
    words = f"{dataclasses.replace(guarantee, inside_delta=False)}, beta = {guarantee.error!r} in all"
    return f"{words}, inside delta" if guarantee.inside_delta else words


def check_together(name: str, own: tuple[Adjacency, Unit], adjacency: Adjacency, unit: Unit | None) -> None:
    """Refuse an entry whose adjacency or unit differs from that of the ledger and its entries.

    Raises:
        UnsupportedCombinationError: with what differs.
    """
    if own[0] is not adjacency:
        raise UnsupportedCombinationError(
            f"{name!r} is for {own[0].name}, the ledger for {adjacency.name}",
            supported="one adjacency in a ledger",
        )
    if unit is not None and own[1] is not unit:
        raise UnsupportedCombinationError(
            f"{name!r} hides one {own[1].value}, but the earlier releases hide one {unit.value}",
            supported="one unit of privacy per ledger, with separate ledgers for users and examples",
        )


def check_entry(
    entry: Release, known: Sequence[Release], adjacency: Adjacency, unit: Unit | None, *, no_estimates: bool
) -> None:
    """Refuse an entry that is incompatible with the existing entries of a ledger.

    Raises:
        InvalidParameterError: if a sampled release has no batch.
        UnsupportedCombinationError: for another adjacency or unit, an estimate, or a batch already used.
    """
    certificate = entry.certificate
    check_together(entry.name, (certificate.adjacency, certificate.unit), adjacency, unit)
    if no_estimates and not certificate.guarantee.rigorous:
        raise UnsupportedCombinationError(
            f"the guarantee of {entry.name!r} is an estimate",
            supported="bounds (such as what method=None gives), or "
            "Ledger(allow_estimates=True), whose total is an estimate",
        )
    if certificate.participation.random and entry.batch is None:
        raise InvalidParameterError(
            "batch", None, f"given for {entry.name!r}, whose batches are sampled: the name of its batches"
        )
    if entry.batch is not None and any(entry.batch == one.batch for one in known):
        raise UnsupportedCombinationError(
            f"batch {entry.batch!r} is in the ledger already, and two releases from one batch do not compose "
            "like releases from two batches",
            supported="dm.ledgers.joint_release(sigmas) or dm.ledgers.SharedBatch, which join them into one "
            "mechanism before sampling",
        )


def check_shared_batch(batch: SharedBatch, certificate: Certificate) -> None:
    """Refuse a batch that is not the certified one, or has less noise.

    Raises:
        UnsupportedCombinationError: with what is wrong.
    """
    if batch.mechanism != certificate.mechanism:
        raise UnsupportedCombinationError(
            f"{batch!r} is not what was certified: {certificate.strategy!r}, "
            f"{certificate.participation!r}, {certificate.adjacency.name}",
            supported="a batch with the strategy, participation and adjacency of the release",
        )
    joint = JointRelease(tuple(batch.blocks.values())).sigma if batch.blocks else 0.0
    # Exact: the joint sigma is rounded down, and k blocks of sigma sqrt(k) must not be refused for that.
    spent = sum((1 / Fraction(sigma) ** 2 for sigma in batch.blocks.values()), Fraction(0))
    if not batch.blocks or spent > 1 / Fraction(certificate.sigma) ** 2:
        raise UnsupportedCombinationError(
            f"the mechanisms on batch {batch.name!r} have jointly sigma={down(joint)}, less than the "
            f"certified {up(certificate.sigma)}",
            supported="BlockClipping.from_joint, which shares a certified sigma among blocks",
        )


# Tolerance of the hull of a curve, which may exceed the curve by this; about 1e-4 in eps.
_HULL = 1e-3
_MOST_RELEASES = 10**6
# Most digits of a fraction in a file; a float needs 34.
_LONGEST = 100


@dataclasses.dataclass(frozen=True)
class CountsRelease:
    """An entry of a ledger without a certificate: counts.

    Attributes:
        name: name of the release.
        counts: noise, sensitivity, number of counts, and privacy unit.
    """

    name: str
    counts: DiscreteGaussian

    def check(self, adjacency: Adjacency, unit: Unit | None) -> None:
        """Refuse counts that are incompatible with a ledger.

        Args:
            adjacency: adjacency of the ledger.
            unit: unit of the releases in it; None if there are none.

        Raises:
            InvalidParameterError: if sigma is a fraction with too many digits for a file.
            UnsupportedCombinationError: if adjacency or unit differ.
        """
        own = self.counts
        check_together(self.name, (own.adjacency, own.unit), adjacency, unit)
        if len(_written(own)) > _LONGEST:
            raise InvalidParameterError(
                "sigma", f"{len(_written(own))} digits", f"a fraction of at most {_LONGEST}"
            )

    def settings(self, number: int) -> dict[str, Any]:
        """Plain data for a file, with sigma as an exact fraction."""
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
    """The contribution of counts to the total of a non-adaptive list.

    Counts of equal noise and sensitivity are treated as one sum, not composed as curves.
    """

    def __init__(self) -> None:
        self._sums: dict[tuple[Fraction, int], DiscreteGaussian] = {}
        self._profiles: dict[DiscreteGaussian, PrivacyProfile] = {}

    def __len__(self) -> int:
        return len(self._sums)

    @property
    def sums(self) -> tuple[DiscreteGaussian, ...]:
        """The counts, one sum per noise and sensitivity."""
        return tuple(self._sums.values())

    def enter(self, counts: DiscreteGaussian) -> None:
        """Add counts, or refuse them and change nothing.

        Raises:
            InvalidParameterError: if the sum with equal counts exceeds what `DiscreteGaussian` accepts.
        """
        self._sums[_kind(counts)] = self.sum_with(counts)

    def sum_with(self, counts: DiscreteGaussian) -> DiscreteGaussian:
        """The sum of these and the earlier counts of the same noise and sensitivity; errors as in `enter`."""
        known = self._sums.get(_kind(counts))
        return counts if known is None else counts.with_releases(known.releases + counts.releases)

    @property
    def profiles(self) -> list[PrivacyProfile]:
        """One profile per noise and sensitivity, each computed once."""
        for one in self.sums:
            if one not in self._profiles:
                self._profiles[one] = one.profile(rel_error=_HULL)
        return [self._profiles[one] for one in self.sums]

    def summary(self) -> dict[str, Any]:
        """Rows of rho, rounded up, and the number of integers; empty if there are no counts."""
        return {"counts": [[one.rho, float(one.releases)] for one in self.sums]} if self._sums else {}


@dataclasses.dataclass(frozen=True)
class MechanismRelease:
    """An entry of a ledger without a certificate: a mechanism defined by its distribution or by a claim.

    Attributes:
        name: name of the entry.
        mechanism: noise and sensitivity, or a claim; with adjacency and unit.
        count: number of releases, each of which may depend on earlier results.
        price: the cost of all of them in the accounting method of the ledger, rounded up; empty if
            non-adaptive.
    """

    name: str
    mechanism: BasicMechanism
    count: int = 1
    price: Price = ()

    def check(self, adjacency: Adjacency, unit: Unit | None) -> None:
        """Refuse a mechanism that is incompatible with a ledger; arguments and errors as for counts."""
        check_integer("count", self.count, minimum=1, maximum=_MOST_RELEASES)
        check_together(self.name, (self.mechanism.adjacency, self.mechanism.unit), adjacency, unit)

    @property
    def own_delta(self) -> float:
        """The delta of a claim, for all releases; 0 for other mechanisms."""
        claim = self.mechanism.claim
        return 0.0 if claim is None else min(1.0, self.count * claim[1])

    def settings(self, number: int) -> dict[str, Any]:
        """Data for a file."""
        return {
            "number": number,
            "name": self.name,
            "count": self.count,
            "price": list(self.price),
            "mechanism": self.mechanism.settings(),
        }

    @classmethod
    def of(cls, settings: dict[str, Any], adjacency: Adjacency) -> Self:
        """The inverse of `settings`, without the price, which is computed again."""
        mechanism = basic_mechanism_from(settings["mechanism"], adjacency)
        return cls(settings["name"], mechanism, settings["count"])


class MechanismsPart:
    """The contribution of other mechanisms to the total of a non-adaptive list.

    Equal mechanisms are composed as one with a larger count. The rho of zCDP claims add up before they are
    converted: every other mechanism is a post-processing of its dominating pair, whose output may be drawn
    first, and given that, the claims compose adaptively.
    """

    def __init__(self) -> None:
        self._counts: dict[BasicMechanism, int] = {}

    def __len__(self) -> int:
        return len(self._counts)

    def enter(self, entry: MechanismRelease) -> None:
        """Add a mechanism, or refuse it and change nothing.

        Raises:
            InvalidParameterError: if equal ones have more releases together than one entry may have.
        """
        together = self._counts.get(entry.mechanism, 0) + entry.count
        check_integer("count", together, minimum=1, maximum=_MOST_RELEASES)
        self._counts[entry.mechanism] = together

    @property
    def units(self) -> list[Unit]:
        """The units of the mechanisms."""
        return [one.unit for one in self._counts]

    @property
    def profiles(self) -> list[PrivacyProfile]:
        """One profile per mechanism, and one for all zCDP claims."""
        found = [one.profile(count) for one, count in self._counts.items() if one.claimed_rho is None]
        if self.rho:
            first = next(iter(self._counts))
            by = Provenance("mechanism.zcdp", {"rho": rounded_up(self.rho)})
            found.append(PrivacyProfile(concentrated(self.rho), BOUND, by, first.adjacency, first.unit))
        return found

    @property
    def rho(self) -> Fraction:
        """The sum of the rho of zCDP claims; sums of Renyi divergences may be closer than their curve."""
        pairs = ((one.claimed_rho, count) for one, count in self._counts.items())
        return sum((count * rho for rho, count in pairs if rho is not None), Fraction(0))

    @property
    def claims(self) -> list[tuple[float, float, int]]:
        """The (eps, delta) with a delta above 0, and their multiplicities."""
        return [(*claim, count) for claim, count in self._claimed if claim[1] > 0.0]

    @property
    def pure(self) -> list[tuple[float, int]]:
        """The eps of mechanisms with a bounded loss, and their multiplicities."""
        return [(claim[0], count) for claim, count in self._claimed if claim[1] == 0.0]

    @property
    def divergences(self) -> list[Divergence]:
        """Renyi divergences of what is neither Gaussian, which adds up by itself, nor has a claim's delta."""
        return [
            functools.partial(_times, one.renyi, count)
            for one, count in self._counts.items()
            if one.squared_mu is None and (one.claim is None or one.claim[1] == 0.0)
        ]

    @property
    def _claimed(self) -> list[tuple[tuple[float, float], int]]:
        return [(one.claim, count) for one, count in self._counts.items() if one.claim is not None]


def _times(divergence: Divergence, count: int, order: float) -> float:
    return product_up(divergence(order), float(count))


def _kind(counts: DiscreteGaussian) -> tuple[Fraction, int]:
    return Fraction(counts.sigma), counts.sensitivity


def _written(counts: DiscreteGaussian) -> str:
    return str(Fraction(counts.sigma))
