"""Totals of a ledger: composed profiles, or costs under a privacy filter.

The total of a non-adaptive list is the composition of the privacy profiles of its releases. Unsampled and
Poisson-sampled releases have a profile at once. Under Balls-in-Bins a profile takes work; the certified (eps,
delta) is weaker: it is dominated by a release that fails with probability delta and is randomised response
otherwise (Kairouz, Oh and Viswanath 2015). Either enters the same composition.

A profile is computed for the noise scale in the certificate, however that was found. Its own samples are
drawn later, and their error stays outside delta. Where a claim is used, the error of the samples behind it,
which its delta includes, is subtracted, and added once per sample.
"""

import abc
import concurrent.futures
import contextlib
import dataclasses
import functools
import math
from collections.abc import Hashable, Iterable
from fractions import Fraction
from typing import Any, ClassVar, TypeVar

import numpy as np

from dpmech.calibration import profile
from dpmech.certificates import Certificate
from dpmech.engines import (
    Composition,
    Curve,
    Divergence,
    Method,
    PrivacyProfile,
    Progress,
    RenyiAccountant,
    RenyiComposition,
    RunCount,
    SampledPart,
)
from dpmech.exceptions import (
    InvalidParameterError,
    NumericalError,
    UnattainableBudgetError,
    UnsupportedCombinationError,
)
from dpmech.ledgers.ledger_entries import (
    CountsPart,
    CountsRelease,
    MechanismRelease,
    MechanismsPart,
    Mode,
    Release,
    draw_of,
    sure_together,
)
from dpmech.ledgers.privacy_filters import AccountingMethod, Price, PrivacyFilter, Remaining, Spent
from dpmech.mechanism import Adjacency, PrivacyBudget, Unit
from dpmech.numerics import (
    BOUND,
    EXACT,
    UNIT,
    Bounds,
    Guarantee,
    Provenance,
    next_up,
    rounded_down,
    rounded_up,
    sum_up,
    up,
)
from dpmech.schemes import accountant_for


def known_profile(certificate: Certificate) -> PrivacyProfile | None:
    """The profile for the sigma of a certificate if it takes no work, otherwise None.

    Raises:
        UnsupportedCombinationError: if no theorem covers it.
    """
    if accountant_for(certificate.mechanism, None).immediate:
        return profile(certificate.mechanism, certificate.sigma)
    return None


@functools.cache
def claimed(eps: float, delta: float, adjacency: Adjacency, unit: Unit = Unit.EXAMPLE) -> PrivacyProfile:
    """The profile implied by (eps, delta); cached, so that equal claims are composed as one curve."""
    parts = Composition(curves=((Curve.of_claim(eps, delta), 1),))
    return PrivacyProfile(parts, BOUND, Provenance("claims.composed"), adjacency, unit)


def what_runs(certificate: Certificate) -> Hashable:
    """Key of mechanism and noise: releases with equal keys share a profile, whatever their budgets."""
    return (
        certificate.strategy.fingerprint(),
        repr(sorted(certificate.participation.to_dict().items())),
        certificate.adjacency,
        certificate.unit,
        certificate.sigma,
    )


class ProfileCache:
    """Profiles that take work, each computed once or read from a certificate that stores it."""

    def __init__(self) -> None:
        self._found: dict[Hashable, PrivacyProfile | None] = {}
        self._brought: dict[Hashable, PrivacyProfile] = {}

    def __contains__(self, certificate: Certificate) -> bool:
        return what_runs(certificate) in self._found

    def enter(self, certificate: Certificate) -> None:
        """Store the profile of a certificate, unless an equal release already has one."""
        if certificate.curve is not None:
            kept = self._brought.setdefault(what_runs(certificate), certificate.curve)
            self._found.setdefault(what_runs(certificate), kept)

    def brought(self, certificate: Certificate) -> PrivacyProfile | None:
        """The profile stored with this or an equal release; one object for equal releases."""
        return self._brought.get(what_runs(certificate))

    def of(
        self,
        certificate: Certificate,
        *,
        rng: np.random.Generator | int | None = None,
        executor: concurrent.futures.Executor | None = None,
        progress: Progress | None = None,
    ) -> PrivacyProfile | None:
        """The cached or computed profile; None if the accountant has no bounds on the curve."""
        key = what_runs(certificate)
        if key not in self._found:
            if progress is not None:
                progress(f"the privacy profile of {certificate.strategy!r} at sigma {up(certificate.sigma)}")
            try:
                found = profile(certificate.mechanism, certificate.sigma, rng=rng, executor=executor)
            except (NumericalError, UnsupportedCombinationError):
                # The claim is used instead, which is also valid.
                self._found[key] = None
            else:
                self._found[key] = found
        return self._found[key]


_BASIC = Provenance("claims.basic")
_MOMENTS = Provenance("rdp.composed")
# Sixteen roundings: the formulas below have at most 12, counting 4 per logarithm or exponential.
_UP = 1.0 + 16.0 * UNIT


@dataclasses.dataclass(frozen=True)
class Whole:
    """A list as one mechanism, with the basis of its bounds.

    Attributes:
        profile: profile of the full list.
        claims: (eps, delta) of releases that entered by their claims, and their multiplicities.
        betas: the sampling errors subtracted from these claims, each sample's once.
        draws: the number of samples.
        joint: joint guarantee of the certificates whose claims are used.
        pure: eps of mechanisms whose loss is bounded, and their multiplicities.
        divergences: Renyi divergences of mechanisms without a certificate; Gaussian ones are in the profile.
        concentrated: whether there are zCDP claims, whose curve may be farther off than moments.
        certified: whether the claims are those of certificates: one alone keeps its eps at every delta.
    """

    profile: PrivacyProfile
    claims: tuple[tuple[float, float, int], ...]
    betas: float
    draws: int
    joint: Guarantee
    pure: tuple[tuple[float, int], ...] = ()
    divergences: tuple[Divergence, ...] = ()
    concentrated: bool = False
    certified: bool = True

    def epsilon(self, delta: float, *, renyi: bool) -> Bounds:
        """Bounds on eps at delta; errors as in `Ledger.epsilon`."""
        spent = self._spent
        if spent > delta:
            raise UnattainableBudgetError(
                math.inf, delta, f"the (eps, delta) claims alone fail with probability {up(spent)}"
            )
        basic = Bounds(0.0, self._basic, BOUND, _BASIC)
        if self._only_claims and not self.pure and (renyi or (self.certified and self._several == 1)):
            return basic
        if spent == delta and not self._only_claims:
            raise UnattainableBudgetError(math.inf, delta, "the (eps, delta) claims use up all of delta")
        others = [basic] if self._only_claims else []
        if spent < delta and (renyi or self.concentrated):
            left = (delta - spent) / (1.0 - spent) / _UP if self.claims else delta
            with contextlib.suppress(*(() if renyi else (NumericalError,))):
                eps = next_up(self._moments.epsilon(left) + _summed((eps, n) for eps, _, n in self.claims))
                others.append(Bounds(0.0, eps, BOUND, _MOMENTS))
        other = min(others, key=lambda one: one.upper, default=None)
        if renyi and other is not None:
            return other
        try:
            found = self.profile.epsilon(delta)
        except (UnattainableBudgetError, NumericalError):
            # The rounding of a lattice can exceed a delta that claims only just meet.
            if other is None:
                raise
            return other
        if other is None or found.upper < other.upper:
            return found
        return dataclasses.replace(other, lower=min(found.lower, other.upper))

    def delta(self, eps: float, *, renyi: bool) -> Bounds:
        """Bounds on delta at eps >= 0."""
        basic, spent = self._basic, self._spent
        if self._only_claims and eps >= basic:
            return Bounds(0.0, spent, BOUND, _BASIC)
        if renyi:
            return Bounds(0.0, self._by_moments(eps), BOUND, _MOMENTS)
        found = self.profile.delta(eps)
        if self.concentrated and (upper := self._by_moments(eps)) < found.upper:
            found = Bounds(min(found.lower, upper), upper, BOUND, _MOMENTS)
        if self._only_claims:
            # No loss exceeds the sum of the eps; just below it this bound is tighter than that of a lattice.
            near = (spent - (1.0 - spent) * math.expm1(eps - basic)) * _UP
            found = dataclasses.replace(found, upper=min(found.upper, near))
        return found

    def labelled(self, bounds: Bounds) -> Bounds:
        """Add guarantee and provenance; with sampling errors in certificates there is no lower bound."""
        by = bounds.by
        if self.betas > 0.0:
            draws = Provenance("ledger.draws", {"draws": self.draws, "beta": self.betas})
            by = dataclasses.replace(by, rests_on=(*by.rests_on, draws))
        lower = 0.0 if self.joint.error > 0.0 else min(bounds.lower, bounds.upper)
        return dataclasses.replace(bounds, lower=lower, guarantee=bounds.guarantee & self.joint, by=by)

    def _by_moments(self, eps: float) -> float:
        claimed, spent = _summed((one, n) for one, _, n in self.claims), self._spent
        alone = self._only_claims and not self.pure
        rest = 1.0 if eps < claimed or alone else self._moments.delta(eps - claimed)
        return min(1.0, (spent + (1.0 - spent) * rest) * _UP)

    @property
    def _basic(self) -> float:
        """The sum of all eps, by basic composition."""
        return _summed([*((eps, n) for eps, _, n in self.claims), *self.pure])

    @property
    def _several(self) -> int:
        """The number of claims, with and without a delta."""
        return sum(n for *_, n in self.claims) + sum(n for _, n in self.pure)

    @property
    def _only_claims(self) -> bool:
        parts = self.profile.parts
        alone = sum(times for _, times in parts.known) == self._several
        return alone and not parts.sampled and parts.gaussian[1] == 0.0

    @property
    def _spent(self) -> float:
        """The probability that some claim fails: 1 - prod (1 - delta), rounded up."""
        if not self.claims:
            return 0.0
        if len(self.claims) == 1 and self.claims[0][2] == 1:
            return self.claims[0][1]
        return -math.expm1(math.fsum(n * math.log1p(-delta) for _, delta, n in self.claims)) * _UP

    @property
    def _moments(self) -> RenyiComposition:
        """Moments of everything but the claims."""
        square, sampled = self.profile.parts.gaussian[1], self.profile.parts.sampled
        divergences = [*(_divergence(part) for part in sampled), *self.divergences]
        if square > 0.0:
            divergences.append(lambda order: next_up(next_up(0.5 * order * square)))
        return RenyiComposition(divergences)


def _summed(terms: Iterable[tuple[float, int]]) -> float:
    """The sum of multiples, rounded up."""
    return rounded_up(sum((Fraction(value) * times for value, times in terms), Fraction(0)))


def _without_moments(profile: PrivacyProfile) -> bool:
    return bool(profile.parts.known) or any(part.replaced for part in profile.parts.sampled)


def _divergence(part: SampledPart) -> Divergence:
    release = part.release
    if part.replaced:
        raise UnsupportedCombinationError(
            "no moments of a replaced example under Poisson sampling are known here", supported="method=None"
        )
    return RenyiAccountant(release.sensitivity, release.sampling_prob, release.steps).divergence(1.0)


# Entries that have a cost under a budget; counts have none.
Priced = TypeVar("Priced", Release, MechanismRelease)


class Total(abc.ABC):
    """One mode of a ledger.

    Attributes:
        mode: the mode.
        by_certificates: whether it uses more of certificates than sigma and sensitivity, so that its
            guarantee is theirs.
    """

    mode: ClassVar[Mode]
    by_certificates: bool

    @abc.abstractmethod
    def enter(self, entry: Priced) -> Priced:
        """Add an entry and return it with its cost, or refuse it and change nothing."""

    @abc.abstractmethod
    def epsilon(self, delta: float, method: Method | None, *, profiles: bool | None = None) -> Bounds:
        """Bounds on eps with their guarantee; see `Ledger.epsilon`."""

    @abc.abstractmethod
    def delta(self, eps: float, method: Method | None, *, profiles: bool | None = None) -> Bounds:
        """Bounds on delta with their guarantee; see `Ledger.delta`."""

    @abc.abstractmethod
    def summary(self) -> dict[str, Any]:
        """What a file states about the total, and what is recomputed when the file is read."""


class FilteredTotal(Total):
    """Adaptive releases, each within what the earlier ones left of a budget.

    Args:
        budget: budget of the total.
        accounting: its accounting method.
    """

    mode = Mode.ADAPTIVE

    def __init__(self, budget: PrivacyBudget, accounting: AccountingMethod) -> None:
        self.filter: PrivacyFilter = accounting.filter(budget)
        self.by_certificates = self.filter.by_claims
        self._spent: Spent = self.filter.paid(())
        self._draws: set[Hashable] = set()

    @property
    def remaining(self) -> Remaining:
        """What would still be accepted."""
        return self.filter.remaining(self._spent)

    def would_exceed(self, entry: Release | MechanismRelease) -> bool:
        """Whether the cost of an entry exceeds the remaining budget."""
        return not self.filter.fits(self._with(self._price(entry)))

    def enter(self, entry: Priced) -> Priced:
        """Charge the cost of an entry, if it fits."""
        price = self._price(entry)
        if not self.filter.fits(self._with(price)):
            left = self.remaining
            # Decimal numbers that add up to the budget may exceed it in binary: ten times 0.1 is above 1.
            rest = zip(self.filter.left(self._with(price)), self.filter.limits, strict=True)
            close = all(-one <= 1e-12 * Fraction(limit) for one, limit in rest)
            raise InvalidParameterError(
                "release",
                entry.name,
                f"within what is left of {self.filter.budget!r}: it costs {price} and {left.left} is left in "
                f"{self.filter.accounting!r}, an unsampled release of mu <= {left.mu!r}"
                + ("; only rounding is in the way: a budget that is larger by a 1e-12th accepts it" * close),
            )
        self._spent = self._with(price)
        if isinstance(entry, Release):
            self._draws.add(draw_of(entry.certificate))
        return dataclasses.replace(entry, price=price)

    def epsilon(self, delta: float, method: Method | None, *, profiles: bool | None = None) -> Bounds:
        """Bounds on everything that the filter allows, whatever was spent."""
        self._refuse(method, profiles=profiles)
        return Bounds(0.0, self.filter.epsilon(delta), BOUND, Provenance("filter.budget"))

    def delta(self, eps: float, method: Method | None, *, profiles: bool | None = None) -> Bounds:
        """Bounds on everything that the filter allows, whatever was spent."""
        self._refuse(method, profiles=profiles)
        return Bounds(0.0, self.filter.delta(eps), BOUND, Provenance("filter.budget"))

    def summary(self) -> dict[str, Any]:
        """The limits of the filter and the amounts spent, rounded up."""
        return {"limits": list(self.filter.limits), "spent": [rounded_up(one) for one in self._spent]}

    def _price(self, entry: Release | MechanismRelease) -> Price:
        """The cost of an entry; every sample is charged once, with the first release that depends on it."""
        if isinstance(entry, MechanismRelease):
            return self.filter.mechanism_price(entry.name, entry.mechanism, entry.count)
        known = draw_of(entry.certificate) in self._draws
        return (self.filter.price_again if known else self.filter.price)(entry.name, entry.certificate)

    def _with(self, price: Price) -> Spent:
        return tuple(spent + Fraction(one) for spent, one in zip(self._spent, price, strict=True))

    @staticmethod
    def _refuse(method: Method | None, *, profiles: bool | None) -> None:
        if method is not None or profiles is not None:
            asked = f"profiles={profiles!r}" if method is None else repr(method)
            raise UnsupportedCombinationError(
                f"{asked} is no privacy filter, and adaptive releases need one",
                supported="method=None: the accounting method of the ledger decides",
            )


@dataclasses.dataclass(frozen=True)
class _Entry:
    """One release: its name and certificate, and its profile if that takes no work."""

    name: str
    certificate: Certificate
    known: PrivacyProfile | None
    runs: RunCount | None = None

    @property
    def waits(self) -> bool:
        """Whether its profile takes work."""
        return self.known is None

    @property
    def claim(self) -> tuple[float, float]:
        """Eps, and delta without the sampling error inside it."""
        own = self.certificate
        return own.budget.eps, own.guarantee.mechanism_delta(own.budget.delta)


class NonAdaptiveTotal(Total):
    """Releases that were listed beforehand, composed together.

    Args:
        adjacency: adjacency of all releases.
    """

    mode = Mode.NON_ADAPTIVE
    by_certificates = True

    def __init__(self, adjacency: Adjacency) -> None:
        self._adjacency = adjacency
        self._entries: list[_Entry] = []
        self._counts = CountsPart()
        self._mechanisms = MechanismsPart()
        self._profiles = ProfileCache()
        self._selected: dict[tuple[int, RunCount], tuple[PrivacyProfile, PrivacyProfile]] = {}

    def enter(self, entry: Priced) -> Priced:
        """Add an entry to the composition; errors as in `MechanismsPart.enter`."""
        if isinstance(entry, MechanismRelease):
            self._mechanisms.enter(entry)
            return entry
        own = _Entry(entry.name, entry.certificate, known_profile(entry.certificate), entry.runs)
        if own.known is None:
            own.claim  # noqa: B018 - refused here, not when the total is computed
            self._profiles.enter(entry.certificate)
        self._entries.append(own)
        return entry

    def try_counts(self, entry: CountsRelease) -> None:
        """Raise NumericalError if the sum with equal counts would have no bounds; change nothing."""
        self._counts.sum_with(entry.counts).delta(1.0)

    def enter_counts(self, entry: CountsRelease) -> None:
        """Add counts; errors as in `CountsPart.enter`."""
        self._counts.enter(entry.counts)

    def epsilon(self, delta: float, method: Method | None, *, profiles: bool | None = None) -> Bounds:
        """Bounds for the list, by profiles or moments."""
        self._check_moments(method)
        if self._one_sum:
            return self._counts.sums[0].epsilon(delta)
        whole, renyi = self._whole(method, profiles=profiles), _by_moments(method)
        left = delta
        if whole.betas > 0.0:
            left = rounded_down(Fraction(delta) - Fraction(whole.betas))
            if left <= 0.0:
                raise UnattainableBudgetError(
                    math.inf, delta, f"the calibrations alone may go wrong with probability {up(whole.betas)}"
                )
        return whole.labelled(whole.epsilon(left, renyi=renyi))

    def delta(self, eps: float, method: Method | None, *, profiles: bool | None = None) -> Bounds:
        """Bounds for the list, by profiles or moments."""
        self._check_moments(method)
        if self._one_sum:
            return self._counts.sums[0].delta(eps)
        whole = self._whole(method, profiles=profiles)
        found = whole.delta(eps, renyi=_by_moments(method))
        if whole.betas > 0.0:
            upper = min(1.0, rounded_up(Fraction(found.upper) + Fraction(whole.betas)))
            found = dataclasses.replace(found, upper=upper)
        return whole.labelled(found)

    def profile(
        self,
        *,
        rng: np.random.Generator | int | None = None,
        executor: concurrent.futures.Executor | None = None,
        progress: Progress | None = None,
    ) -> PrivacyProfile:
        """The composed profile; see `Ledger.profile`."""
        for entry in self._open:
            if self._profiles.of(entry.certificate, rng=rng, executor=executor, progress=progress) is None:
                raise UnsupportedCombinationError(
                    f"{entry.certificate.mechanism!r} has no privacy profile at this noise scale",
                    supported="Ledger.epsilon and Ledger.delta, which take its claim",
                )
        return self._whole(None, profiles=True).profile

    @property
    def _one_sum(self) -> bool:
        """Whether there is nothing but counts of one noise."""
        return not self._entries and not len(self._mechanisms) and len(self._counts) == 1

    @property
    def waiting(self) -> tuple[str, ...]:
        """Names of releases whose profile takes work and is not computed yet."""
        return tuple(one.name for one in self._open if one.certificate not in self._profiles)

    def summary(self) -> dict[str, Any]:
        """What is composed; rows of `sampled` are q, multiplier, steps, and 1 if all are tight.

        Claims exclude the sampling error inside their delta; `betas` has that of every sample, once.
        """
        once = [one for one in self._entries if one.runs is None]
        known = self._composed([one.known for one in once if one.known is not None])
        betas = self._betas(self._open)
        return ({"betas": list(betas.values())} if betas else {}) | {
            "gaussian": list(known.parts.gaussian),
            "sampled": [
                [part.sampling_prob, part.sigma_over_sensitivity, float(part.steps), float(part.tight)]
                for part in known.parts.sampled
            ],
            "claims": [list(one.claim) for one in once if one.waits],
            **self._counts.summary(),
        }

    @property
    def _open(self) -> list[_Entry]:
        """Entries whose profile takes work."""
        return [one for one in self._entries if one.waits]

    def _whole(self, method: Method | None, *, profiles: bool | None) -> "Whole":
        """All releases; those whose profile takes work enter as profiles or as claims.

        Args:
            method: method of the total; moments use no profiles.
            profiles: whether to compute profiles that take work; None if there is more than one release. With
                more than one, profiles stored in certificates are always used.
        """
        listed = len(self._entries) + len(self._counts) + len(self._mechanisms)
        several = listed > 1 and not _by_moments(method)
        computed = not _by_moments(method) and (several if profiles is None else profiles)
        parts: list[PrivacyProfile] = []
        by_claims: list[_Entry] = []
        selected_claims: list[_Entry] = []
        certified: list[Certificate] = []
        for entry in self._entries:
            own = entry.known
            if own is None and computed:
                own = self._profiles.of(entry.certificate)
            elif own is None and several:
                own = self._profiles.brought(entry.certificate)
            elif own is not None:
                certified.append(entry.certificate)
            if own is None:
                (by_claims if entry.runs is None else selected_claims).append(entry)
                certified.append(entry.certificate)
            if entry.runs is not None:
                if _by_moments(method):
                    raise UnsupportedCombinationError(
                        f"{entry.name!r} is a private selection, of which no moments are known",
                        supported="method=None",
                    )
                parts.append(self._best_of(own or self._claimed(entry), entry.runs))
            elif own is not None:
                parts.append(own)
        betas = self._betas([*by_claims, *selected_claims])
        others, waiting = self._mechanisms, [self._claimed(one) for one in by_claims]
        return Whole(
            self._composed([*parts, *self._counts.profiles, *others.profiles, *waiting]),
            (*((*one.claim, 1) for one in by_claims), *others.claims),
            min(1.0, sum_up(betas.values())),
            len(betas),
            sure_together(certified),
            tuple(others.pure),
            tuple(others.divergences),
            # No moments are known of counts, of selections, of curves at nodes, and of a replaced example.
            bool(others.rho) and not len(self._counts) and not any(map(_without_moments, parts)),
            certified=not others.claims,
        )

    def _best_of(self, run: PrivacyProfile, runs: RunCount) -> PrivacyProfile:
        """The profile of a private selection, computed once; one object for equal selections."""
        known = self._selected.get((id(run), runs))
        if known is None:
            # Keep a reference to the run, so that its id is not reused.
            known = self._selected[id(run), runs] = run, run.private_selection(runs)
        return known[1]

    @property
    def _unit(self) -> Unit:
        """The unit of all entries; entries with another one have been refused before."""
        found = [one.certificate.unit for one in self._entries] + [one.unit for one in self._counts.sums]
        found += self._mechanisms.units
        return found[0] if found else Unit.EXAMPLE

    def _check_moments(self, method: Method | None) -> None:
        if len(self._counts) and _by_moments(method):
            raise UnsupportedCombinationError(
                "moments of counts are not composed here", supported="method=None"
            )

    def _claimed(self, entry: _Entry) -> PrivacyProfile:
        return claimed(*entry.claim, self._adjacency, self._unit)

    def _composed(self, parts: list[PrivacyProfile]) -> PrivacyProfile:
        if not parts:
            return PrivacyProfile(
                Composition(), EXACT, Provenance("release.none"), self._adjacency, self._unit
            )
        return parts[0].compose(*parts[1:])

    @staticmethod
    def _betas(entries: list[_Entry]) -> dict[Hashable, float]:
        """The sampling error inside the delta of claims, one per sample."""
        sure = [one.certificate for one in entries if one.certificate.guarantee.inside_delta]
        return {draw_of(own): own.guarantee.error for own in sure}


def _by_moments(method: Method | None) -> bool:
    if method is not None and not method.composes:
        raise UnsupportedCombinationError(
            f"{method!r} does not compose releases of different kinds", supported="None, Pld() or Rdp()"
        )
    return method is not None and method.by_moments
