"""What one release adds to a composition: a curve that is known at once, one that takes work, or a claim."""

import concurrent.futures
import functools
from collections.abc import Hashable

import numpy as np

from dpmech.certificates import Certificate
from dpmech.engines import Composition, Curve, PrivacyProfile, Progress
from dpmech.evaluation import profile
from dpmech.exceptions import NumericalError, UnsupportedCombinationError
from dpmech.mechanism import Adjacency, Unit
from dpmech.numerics import BOUND, Provenance, up
from dpmech.schemes import accountant_for

__all__ = ["ProfileCache", "claimed", "known_profile", "what_runs"]


def known_profile(certificate: Certificate) -> PrivacyProfile | None:
    """The profile of what certificate and sigma say, where it costs nothing; else None.

    Raises:
        UnsupportedCombinationError: if no theorem covers it.
    """
    if accountant_for(certificate.mechanism, None).immediate:
        return profile(certificate.mechanism, certificate.sigma)
    return None


@functools.cache
def claimed(eps: float, delta: float, adjacency: Adjacency, unit: Unit = Unit.EXAMPLE) -> PrivacyProfile:
    """What (eps, delta) alone says; one object for equal numbers, so that they are composed as one curve."""
    parts = Composition(curves=((Curve.of_claim(eps, delta), 1),))
    return PrivacyProfile(parts, BOUND, Provenance("claims.composed"), adjacency, unit)


def what_runs(certificate: Certificate) -> Hashable:
    """Equal where mechanism and noise are, so that a profile serves both; the budget does not matter."""
    return (
        certificate.strategy.fingerprint(),
        repr(sorted(certificate.participation.to_dict().items())),
        certificate.adjacency,
        certificate.unit,
        certificate.sigma,
    )


class ProfileCache:
    """Profiles that take work, each computed once, or read from a certificate that brings it."""

    def __init__(self) -> None:
        self._found: dict[Hashable, PrivacyProfile | None] = {}
        self._brought: dict[Hashable, PrivacyProfile] = {}

    def __contains__(self, certificate: Certificate) -> bool:
        return what_runs(certificate) in self._found

    def enter(self, certificate: Certificate) -> None:
        """Keep the profile that a certificate brings, unless an equal release has one."""
        if certificate.curve is not None:
            kept = self._brought.setdefault(what_runs(certificate), certificate.curve)
            self._found.setdefault(what_runs(certificate), kept)

    def brought(self, certificate: Certificate) -> PrivacyProfile | None:
        """The profile that this or an equal release brought; of equal ones one object."""
        return self._brought.get(what_runs(certificate))

    def of(
        self,
        certificate: Certificate,
        *,
        rng: np.random.Generator | int | None = None,
        executor: concurrent.futures.Executor | None = None,
        progress: Progress | None = None,
    ) -> PrivacyProfile | None:
        """The profile, from here or computed; None where the accountant has no bounds on the curve."""
        key = what_runs(certificate)
        if key not in self._found:
            if progress is not None:
                progress(f"the privacy profile of {certificate.strategy!r} at sigma {up(certificate.sigma)}")
            try:
                found = profile(certificate.mechanism, certificate.sigma, rng=rng, executor=executor)
            except (NumericalError, UnsupportedCombinationError):
                # Then the claim stands, which holds as well.
                self._found[key] = None
            else:
                self._found[key] = found
        return self._found[key]
