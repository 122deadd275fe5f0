"""What an announced list adds up to: the privacy profiles of its releases, composed.

Unsampled and Poisson-sampled releases have a profile at once. Under Balls-in-Bins one takes work, and the
(eps, delta) that was certified says less: it is dominated by a release that fails with probability delta and
is randomised response otherwise (Kairouz, Oh and Viswanath 2015). Either enters the same composition.

A profile is that of the noise scale which stands in the certificate, whatever led to it. Its own draws come
later than that noise scale, and their error stays outside delta; where a claim is used, the error of the
draws behind it, which its delta holds, is taken out, and added once a draw.
"""

import concurrent.futures
import dataclasses
import math
from collections.abc import Hashable
from fractions import Fraction
from typing import Any

import numpy as np

from dpmech.certificates import Certificate
from dpmech.composition.announced_whole import Whole
from dpmech.composition.ledger_counts import CountsPart, CountsRelease
from dpmech.composition.ledger_entries import Mode, Release, draw_of, sure_together
from dpmech.composition.ledger_totals import Total
from dpmech.composition.release_profiles import ProfileCache, claimed, known_profile
from dpmech.engines import Composition, Method, Pld, PrivacyProfile, Progress, Rdp, RunCount
from dpmech.exceptions import UnattainableBudgetError, UnsupportedCombinationError
from dpmech.mechanism import Adjacency, Unit
from dpmech.numerics import (
    EXACT,
    Bounds,
    Provenance,
    rounded_down,
    rounded_up,
    sum_up,
    up,
)

__all__ = ["AnnouncedTotal"]


@dataclasses.dataclass(frozen=True)
class _Entry:
    """One release: its name and certificate, and its profile where that costs nothing."""

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


class AnnouncedTotal(Total):
    """Releases that were listed beforehand, composed whole.

    Args:
        adjacency: of all of them.
    """

    mode = Mode.ANNOUNCED
    by_certificates = True

    def __init__(self, adjacency: Adjacency) -> None:
        self._adjacency = adjacency
        self._entries: list[_Entry] = []
        self._counts = CountsPart()
        self._profiles = ProfileCache()
        self._selected: dict[tuple[int, RunCount], tuple[PrivacyProfile, PrivacyProfile]] = {}

    def enter(self, entry: Release) -> Release:
        """Keep what it adds to the composition."""
        own = _Entry(entry.name, entry.certificate, known_profile(entry.certificate), entry.runs)
        if own.known is None:
            own.claim  # noqa: B018 - refused here, and not where the total is asked for
            self._profiles.enter(entry.certificate)
        self._entries.append(own)
        return entry

    def try_counts(self, entry: CountsRelease) -> None:
        """Raise NumericalError where the sum with equal counts would have no bounds; change nothing."""
        self._counts.sum_with(entry.counts).delta(1.0)

    def enter_counts(self, entry: CountsRelease) -> None:
        """Keep what counts add; errors as for `CountsPart.enter`."""
        self._counts.enter(entry.counts)

    def epsilon(self, delta: float, method: Method | None, *, profiles: bool | None = None) -> Bounds:
        """Of the list, by profiles or moments."""
        self._check_moments(method)
        if not self._entries and len(self._counts) == 1:
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
        """Of the list, by profiles or moments."""
        self._check_moments(method)
        if not self._entries and len(self._counts) == 1:
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
    def waiting(self) -> tuple[str, ...]:
        """The names of releases whose profile takes work, and was not computed yet."""
        return tuple(one.name for one in self._open if one.certificate not in self._profiles)

    def summary(self) -> dict[str, Any]:
        """What is composed; rows of `sampled` are q, multiplier, steps, and 1 where all are tight.

        Claims are without the sampling error inside their delta; `betas` has that of every draw, once.
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
        """Those whose profile takes work."""
        return [one for one in self._entries if one.waits]

    def _whole(self, method: Method | None, *, profiles: bool | None) -> "Whole":
        """All releases, those of which a profile takes work by that or by their claims.

        Args:
            method: of the total; moments know no curves.
            profiles: whether to compute profiles that take work; None where there is more than one release.
                Those that certificates bring are taken in any case where there is more than one.
        """
        several = len(self._entries) + len(self._counts) > 1 and not _by_moments(method)
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
        return Whole(
            self._composed([*parts, *self._counts.profiles, *(self._claimed(one) for one in by_claims)]),
            tuple(one.claim for one in by_claims),
            min(1.0, sum_up(betas.values())),
            len(betas),
            sure_together(certified),
        )

    def _best_of(self, run: PrivacyProfile, runs: RunCount) -> PrivacyProfile:
        """The profile of a private selection, computed once; of equal ones one object."""
        known = self._selected.get((id(run), runs))
        if known is None:
            # The run is kept with it, so that its id stays its own.
            known = self._selected[id(run), runs] = run, run.private_selection(runs)
        return known[1]

    @property
    def _unit(self) -> Unit:
        """Of all of them: entries of another one are refused before they come here."""
        found = [one.certificate.unit for one in self._entries] + [one.unit for one in self._counts.sums]
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
        """The sampling error inside the delta of claims, one a draw."""
        sure = [one.certificate for one in entries if one.certificate.guarantee.inside_delta]
        return {draw_of(own): own.guarantee.error for own in sure}


def _by_moments(method: Method | None) -> bool:
    if method is not None and not isinstance(method, Pld | Rdp):
        raise UnsupportedCombinationError(
            f"{method!r} does not compose releases of different kinds", supported="None, Pld() or Rdp()"
        )
    return isinstance(method, Rdp)
