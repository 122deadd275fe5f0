"""What a ledger contains: certified releases, counts with discrete Gaussian noise, and their mode."""

import dataclasses
import enum
from collections.abc import Hashable, Iterable, Sequence
from fractions import Fraction
from typing import Any, Self

from dpmech.certificates import Certificate, Claim, check_unedited
from dpmech.engines import DiscreteGaussian, PrivacyProfile, RunCount
from dpmech.exceptions import InvalidParameterError, UnsupportedCombinationError
from dpmech.ledgers.privacy_filters import Price
from dpmech.ledgers.shared_batch import JointRelease, SharedBatch
from dpmech.mechanism import Adjacency, Unit
from dpmech.numerics import Guarantee, Kind, down, joined, sum_up, up


class Mode(enum.Enum):
    """Which theorem a release is added up by.

    `NON_ADAPTIVE`: it was listed before the first result of the list; the list is composed whole. `CHOSEN`:
    it was adaptive, and went through a privacy filter.
    """

    NON_ADAPTIVE = "non_adaptive"
    CHOSEN = "adaptive"


@dataclasses.dataclass(frozen=True)
class Release:
    """One entry of a ledger.

    Attributes:
        name: of the release.
        certificate: what was certified.
        batch: which sampled batches it read; None for an unsampled release.
        blocks: sigma of every mechanism on that batch, by name; empty where the release is the only one.
        mode: by which theorem it is added up.
        price: what it was charged in the accounting method of the ledger, rounded up; empty where it was
            non-adaptive.
        runs: the law of a secret number of such runs of which the best is released; None for one run.
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
        """The certified delta, times the mean number of runs: where its eps is worth asking for, about."""
        return self.certificate.budget.delta * (1.0 if self.runs is None else max(1.0, self.runs.mean))


def certificate_of(argument: str, claim: object) -> Certificate:
    """The certificate of a Calibration or a Certificate that nobody edited.

    Raises:
        InvalidParameterError: if it is neither.
        CertificateError: if it was edited after it was computed.
    """
    if not isinstance(claim, Claim):
        raise InvalidParameterError(argument, claim, "a Calibration or a Certificate")
    check_unedited(claim)
    return claim.certificate()


def draw_of(claim: Claim) -> Hashable:
    """What names the event that the random numbers of a claim were bad: equal where it is the same event.

    That event is one of the random numbers and of what was calibrated on them. Where they have no name
    nothing is known to be the same.
    """
    named = claim.evidence.randomness
    return object() if named is None else (named, claim.fingerprint(), claim.guarantee)


def sure_together(certificates: Iterable[Certificate]) -> Guarantee:
    """How sure several claims are together: the errors of draws added up, each draw's once."""
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
    """Refuse an entry of another adjacency than the ledger's, or another unit than that of its entries.

    Raises:
        UnsupportedCombinationError: saying which.
    """
    if own[0] is not adjacency:
        raise UnsupportedCombinationError(
            f"{name!r} is for {own[0].name}, the ledger for {adjacency.name}",
            supported="one adjacency in a ledger",
        )
    if unit is not None and own[1] is not unit:
        raise UnsupportedCombinationError(
            f"{name!r} hides one {own[1].value}, the releases before it one {unit.value}",
            supported="one unit of privacy in a ledger: users and examples in ledgers of their own",
        )


def check_entry(
    entry: Release, known: Sequence[Release], adjacency: Adjacency, unit: Unit | None, *, no_estimates: bool
) -> None:
    """Refuse an entry that does not go with those which a ledger has.

    Raises:
        InvalidParameterError: on a sampled release without a batch.
        UnsupportedCombinationError: on another adjacency or unit, an estimate, or a batch that is taken.
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
            "like two batches",
            supported="dm.ledgers.joint_release(sigmas) or dm.ledgers.SharedBatch, which join them into one "
            "mechanism before sampling",
        )


def check_shared_batch(batch: SharedBatch, certificate: Certificate) -> None:
    """Refuse a batch that is not the one which was certified, or has less noise.

    Raises:
        UnsupportedCombinationError: saying which.
    """
    if batch.mechanism != certificate.mechanism:
        raise UnsupportedCombinationError(
            f"{batch!r} is not what was certified: {certificate.strategy!r}, "
            f"{certificate.participation!r}, {certificate.adjacency.name}",
            supported="a batch with the strategy, participation and adjacency of the release",
        )
    joint = JointRelease(tuple(batch.blocks.values())).sigma if batch.blocks else 0.0
    # Exactly: the joint sigma is rounded down, and k blocks of sigma sqrt(k) need not be refused for that.
    spent = sum((1 / Fraction(sigma) ** 2 for sigma in batch.blocks.values()), Fraction(0))
    if not batch.blocks or spent > 1 / Fraction(certificate.sigma) ** 2:
        raise UnsupportedCombinationError(
            f"the mechanisms on batch {batch.name!r} have jointly sigma={down(joint)}, less than the "
            f"certified {up(certificate.sigma)}",
            supported="BlockClipping.from_joint, which shares a certified sigma among blocks",
        )


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
    """What the counts of a non-adaptive list add to its total.

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
