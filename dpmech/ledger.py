"""Ledger: what several certified releases about the same people add up to over a project's life."""

import dataclasses
import json
import math
import os
from collections import Counter
from pathlib import Path
from typing import Any

from dpmech.accounting.accountant import DETERMINISTIC, EXACT
from dpmech.accounting.dispatch import accountant_for
from dpmech.accounting.lots import Join, Lot, check_name
from dpmech.accounting.methods import Method, Pld, Rdp, check_method
from dpmech.accounting.mixed_composition import MixedComposition, SampledPart
from dpmech.accounting.poisson import PoissonAccountant
from dpmech.bounds import Bounds, union_error
from dpmech.budget import Adjacency, check_delta, check_eps
from dpmech.calibration import Calibration
from dpmech.certificates import Certificate
from dpmech.claims import check_unedited
from dpmech.exceptions import (
    CertificateError,
    DpmechError,
    InvalidParameterError,
    UnsupportedCombinationError,
)
from dpmech.participation import BallsInBins

__all__ = ["Ledger", "Release"]

_SCHEMA = "dpmech.ledger"
_VERSION = 1
_GUARANTEES = (EXACT, DETERMINISTIC, "with probability 1 - beta", "estimate")


@dataclasses.dataclass(frozen=True)
class Release:
    """One entry of a ledger.

    Attributes:
        name: of the release.
        certificate: what was certified.
        lot: which sampled lots it read; None for an unsampled release.
        blocks: sigma of every mechanism on that lot, by name; empty where the release is the only one.
    """

    name: str
    certificate: Certificate
    lot: str | None
    blocks: tuple[tuple[str, float], ...] = ()


class Ledger:
    """Certified releases about the same people, and their total privacy loss.

    Entries may be chosen adaptively, one after the other, in any order. A sampled release must name the
    lots that it read, and a lot enters once: two releases from one lot are one mechanism, to be joined on a
    `Lot` before sampling. Balls-in-Bins releases enter by their (eps, delta) claim, as no privacy loss
    distribution of them is known; their allocation is their lot.

    Args:
        adjacency: between which datasets; releases with another one are refused, also where the numbers
            would be the same.
        allow_estimates: whether releases may enter whose guarantee is only an estimate; the total is then
            an estimate too.

    Raises:
        InvalidParameterError: on a bad argument.

    Examples:
        >>> import dpmech as dm
        >>> ledger = dm.Ledger()
        >>> training = dm.calibrate_sigma(dm.Identity(200), 2.0, 1e-6, participation=dm.Poisson(0.02))
        >>> ledger.add("run 1", training, lot="run 1")
        >>> ledger.add("run 2", training, lot="run 2")
        >>> test = dm.calibrate_sigma(dm.Identity(1), 0.5, 1e-6, participation=dm.SingleParticipation())
        >>> ledger.add("accuracy", test)
        >>> round(ledger.epsilon(3e-6).upper, 2), ledger.guarantee
        (2.53, 'deterministic upper bound')
        >>> ledger.add("run 3", training, lot="run 1")
        Traceback (most recent call last):
        ...
        dpmech.exceptions.UnsupportedCombinationError: lot 'run 1' is in the ledger already, ...
    """

    def __init__(self, adjacency: Adjacency = Adjacency.ADD_REMOVE, *, allow_estimates: bool = False) -> None:
        self.adjacency = Adjacency.check(adjacency)
        if not isinstance(allow_estimates, bool):
            raise InvalidParameterError("allow_estimates", allow_estimates, "True or False")
        self.allow_estimates = allow_estimates
        self._releases: list[Release] = []

    @property
    def releases(self) -> tuple[Release, ...]:
        """The entries, in the order in which they came."""
        return tuple(self._releases)

    @property
    def guarantee(self) -> str:
        """How sure the total is: as sure as its least sure entry, and exact for unsampled ones only."""
        named = [release.certificate.guarantee for release in self._releases]
        if any(release.certificate.participation.random for release in self._releases):
            named.append(DETERMINISTIC)
        return max(named, key=_GUARANTEES.index, default=EXACT)

    def add(self, name: str, release: Calibration | Certificate, *, lot: Lot | str | None = None) -> None:
        """Enter a release.

        Args:
            name: of the release, new in this ledger.
            release: a calibration, or a certificate.
            lot: where batches are sampled, the lots that it reads: a name that is new in this ledger, or a
                `Lot` whose mechanisms have jointly at least the certified sigma. It is closed. None
                without sampling.

        Raises:
            InvalidParameterError: on a bad argument, a name that is taken, or a sampled release without a
                lot.
            CertificateError: if the release was edited after it was computed.
            UnsupportedCombinationError: if the lot is in the ledger already, the adjacency is another one,
                the lot is not the one that was certified or has too little noise, or the release is an
                estimate and estimates are not allowed.
        """
        check_name("name", name)
        if any(name == known.name for known in self._releases):
            raise InvalidParameterError("name", name, "new in this ledger, which has it already")
        if not isinstance(release, Calibration | Certificate):
            raise InvalidParameterError("release", release, "a Calibration or a Certificate")
        check_unedited(release)
        certificate = release if isinstance(release, Certificate) else release.certificate()
        blocks: tuple[tuple[str, float], ...] = ()
        if isinstance(lot, Lot):
            self._check_lot(lot, certificate)
            blocks = tuple(lot.blocks.items())
        elif lot is not None:
            check_name("lot", lot)
        entry = Release(name, certificate, lot.name if isinstance(lot, Lot) else lot, blocks)
        self._check(entry)
        if isinstance(lot, Lot):
            lot.close()
        self._releases.append(entry)

    def epsilon(self, delta: float, *, method: Method | None = None) -> Bounds:
        """Bounds on the total eps at `delta`.

        Args:
            delta: in (0, 1), above the sum of the deltas of the Balls-in-Bins claims.
            method: None or Pld() for privacy loss distributions, Rdp() for moments (and basic composition
                of claims).

        Returns:
            Bounds, as sure as `guarantee` says; the lower end is 0 unless all releases are unsampled, or
            all are Poisson-sampled alike. Where entries hold with a probability or are estimates,
            `error` is the probability that one of them fails, at most.

        Raises:
            InvalidParameterError: on a bad argument.
            UnsupportedCombinationError: on another method.
            UnattainableBudgetError: if the claims use up delta.
            NumericalError: if delta is below the resolution of privacy loss distributions.
        """
        checked, renyi = check_delta(delta), self._renyi(method)
        if not self._releases:
            return Bounds(0.0, 0.0, "nothing was released")
        return self._labelled(self._composition().epsilon(checked, renyi=renyi))

    def delta(self, eps: float, *, method: Method | None = None) -> Bounds:
        """Bounds on the total delta at `eps` >= 0; arguments and errors as for `epsilon`."""
        checked, renyi = check_eps(eps, zero_allowed=True), self._renyi(method)
        if not self._releases:
            return Bounds(0.0, 0.0, "nothing was released")
        return self._labelled(self._composition().delta(checked, renyi=renyi))

    def to_dict(self) -> dict[str, Any]:
        """The ledger as plain data, certificates included; what `save` writes."""
        return {
            "schema": _SCHEMA,
            "schema_version": _VERSION,
            "adjacency": self.adjacency.value,
            "allow_estimates": self.allow_estimates,
            "releases": [
                {
                    "name": release.name,
                    "lot": release.lot,
                    "blocks": dict(release.blocks),
                    "certificate": release.certificate.to_dict(),
                }
                for release in self._releases
            ],
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the ledger to a JSON file.

        Raises:
            InvalidParameterError: if the file cannot be written.
        """
        text = json.dumps(self.to_dict(), indent=1) + "\n"
        try:
            Path(path).write_text(text, encoding="utf-8")
        except OSError as error:
            raise InvalidParameterError("path", str(path), f"a file that can be written ({error})") from error

    @staticmethod
    def load(path: str | os.PathLike[str]) -> "Ledger":
        """Read a ledger back; every entry passes the checks of `add` and of `Certificate.load` again.

        Whether the claims in it are true is the work of `verify`, one `release.certificate` at a time.

        Raises:
            InvalidParameterError: if the file cannot be read.
            CertificateError: if it is no ledger of a known version, or does not hold together.
        """
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise InvalidParameterError("ledger", str(path), f"a readable file ({error.strerror})") from error
        except (RecursionError, ValueError) as error:
            raise CertificateError(f"{path} is no JSON: {error}") from error
        return Ledger.from_dict(data)

    @staticmethod
    def from_dict(data: object) -> "Ledger":
        """Rebuild a ledger from `to_dict`; errors as for `load`."""
        fields = {"schema", "schema_version", "adjacency", "allow_estimates", "releases"}
        record = _record("a ledger", data, fields)
        if (record["schema"], record["schema_version"]) != (_SCHEMA, _VERSION):
            raise CertificateError(
                f"not a {_SCHEMA} of version {_VERSION}: {record['schema']!r}, {record['schema_version']!r}"
            )
        if not isinstance(record["releases"], list):
            raise CertificateError("the releases of a ledger are a list")
        try:
            ledger = Ledger(Adjacency(record["adjacency"]), allow_estimates=record["allow_estimates"])
            for item in record["releases"]:
                entry = _record("a release", item, {"name", "lot", "blocks", "certificate"})
                ledger._restore(entry)
        except CertificateError:
            raise
        except (DpmechError, TypeError, ValueError, AttributeError) as error:
            raise CertificateError(f"the ledger does not hold together: {error}") from error
        return ledger

    def __repr__(self) -> str:
        return f"Ledger({self.adjacency.name}, {len(self._releases)} releases, {self.guarantee})"

    def _restore(self, entry: dict[str, Any]) -> None:
        certificate = Certificate.from_json(json.dumps(entry["certificate"]))
        lot: Lot | str | None = entry["lot"]
        if entry["blocks"]:
            lot = Lot(
                entry["lot"],
                certificate.strategy,
                certificate.participation,
                adjacency=certificate.adjacency,
            )
            for name, sigma in entry["blocks"].items():
                lot.register(name, sigma)
        self.add(entry["name"], certificate, lot=lot)

    def _check_lot(self, lot: Lot, certificate: Certificate) -> None:
        given = (lot.strategy, lot.participation, lot.adjacency)
        if given != (certificate.strategy, certificate.participation, certificate.adjacency):
            raise UnsupportedCombinationError(
                f"{lot!r} is not what was certified: {certificate.strategy!r}, "
                f"{certificate.participation!r}, {certificate.adjacency.name}",
                supported="a lot with the strategy, participation and adjacency of the release",
            )
        joint = Join(tuple(lot.blocks.values())).sigma if lot.blocks else 0.0
        if joint < certificate.sigma:
            raise UnsupportedCombinationError(
                f"the mechanisms on lot {lot.name!r} have jointly sigma={joint:.6g}, less than the certified "
                f"{certificate.sigma:.6g}",
                supported="BlockClipping.from_joint, which shares a certified sigma among blocks",
            )

    def _check(self, entry: Release) -> None:
        certificate = entry.certificate
        if certificate.adjacency is not self.adjacency:
            raise UnsupportedCombinationError(
                f"{entry.name!r} is for {certificate.adjacency.name}, the ledger for {self.adjacency.name}",
                supported="one adjacency in a ledger",
            )
        if certificate.guarantee == "estimate" and not self.allow_estimates:
            raise UnsupportedCombinationError(
                f"the guarantee of {entry.name!r} is an estimate",
                supported="bounds (calibrate with Deterministic() or Certified()), or "
                "Ledger(allow_estimates=True), whose total is an estimate",
            )
        if certificate.participation.random and entry.lot is None:
            raise InvalidParameterError(
                "lot", None, f"given for {entry.name!r}, whose batches are sampled: the name of its lots"
            )
        if entry.lot is not None and any(entry.lot == known.lot for known in self._releases):
            raise UnsupportedCombinationError(
                f"lot {entry.lot!r} is in the ledger already, and two releases from one lot do not compose "
                "like two lots",
                supported="dm.join(sigmas) or dm.Lot, which join them into one mechanism before sampling",
            )

    def _composition(self) -> MixedComposition:
        lower, upper = [], []
        sampled: Counter[tuple[float, float, bool]] = Counter()
        claims = []
        for release in self._releases:
            certificate = release.certificate
            strategy, participation = certificate.strategy, certificate.participation
            if isinstance(participation, BallsInBins) and participation.bins > 1:
                claims.append((certificate.budget.eps, certificate.budget.delta))
                continue
            accountant = accountant_for(strategy, participation, self.adjacency, None)
            if isinstance(accountant, PoissonAccountant):
                part = accountant.release
                multiplier = certificate.sigma / part.sensitivity.upper
                sampled[part.sampling_prob, multiplier, part.tight] += part.steps
            else:
                lower.append((accountant.sensitivity.lower / certificate.sigma) ** 2)
                upper.append((accountant.sensitivity.upper / certificate.sigma) ** 2)
        parts = tuple(
            SampledPart(q, multiplier, steps, tight) for (q, multiplier, tight), steps in sampled.items()
        )
        ends = (math.fsum(lower) * (1.0 - 1e-15), math.fsum(upper) * (1.0 + 1e-15))
        return MixedComposition(ends, parts, tuple(claims))

    def _labelled(self, bounds: Bounds) -> Bounds:
        """Union bound over the entries that hold with a probability only."""
        error = union_error(release.certificate.achieved.error for release in self._releases)
        return dataclasses.replace(bounds, lower=0.0, error=error) if error > 0.0 else bounds

    def _renyi(self, method: Method | None) -> bool:
        if check_method(method) is not None and not isinstance(method, Pld | Rdp):
            raise UnsupportedCombinationError(
                f"{method!r} does not compose releases of different kinds", supported="None, Pld() or Rdp()"
            )
        return isinstance(method, Rdp)


def _record(what: str, data: object, fields: set[str]) -> dict[str, Any]:
    if not isinstance(data, dict) or set(data) != fields:
        found = sorted(map(str, data)) if isinstance(data, dict) else type(data).__name__
        raise CertificateError(f"{what} has exactly the fields {sorted(fields)}, found {found}")
    return data
