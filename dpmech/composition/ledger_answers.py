"""What a ledger says of its whole: eps, delta, the privacy profile, and whether a budget is met."""

import concurrent.futures
import dataclasses

import numpy as np

from dpmech.certificates import Document
from dpmech.composition.announced_total import AnnouncedTotal
from dpmech.composition.ledger_counts import CountsRelease
from dpmech.composition.ledger_entries import Mode, Release, in_all, sure_together
from dpmech.composition.ledger_totals import FilteredTotal, Total
from dpmech.composition.privacy_filters import Currency, PrivacyFilter
from dpmech.engines import Method, PrivacyProfile, Progress, check_method
from dpmech.exceptions import InvalidParameterError, UnsupportedCombinationError
from dpmech.guards import check_delta, check_eps
from dpmech.mechanism import PrivacyBudget, Unit
from dpmech.numerics import BOUND, EXACT, Bounds, Guarantee, Provenance, sum_up, typed

__all__ = ["Answers"]

_SOME_DELTA, _WITH_COUNTS = 1e-5, 1.1


class Answers(Document):
    """The part of a ledger that answers; `Ledger` is the part that is written to."""

    _total: Total
    _closed: bool
    _releases: list[Release]
    _counts: list[CountsRelease]

    @property
    def releases(self) -> tuple[Release, ...]:
        """The certified entries, in the order in which they came."""
        return tuple(self._releases)

    @property
    def counts(self) -> tuple[CountsRelease, ...]:
        """The releases of counts, in the order in which they came."""
        return tuple(self._counts)

    @property
    def mode(self) -> Mode:
        """Announced or chosen on the way."""
        return self._total.mode

    @property
    def filter(self) -> PrivacyFilter | None:
        """What holds the budget: its currency, with all settings resolved, and its limits."""
        return self._total.filter if isinstance(self._total, FilteredTotal) else None

    @property
    def budget(self) -> PrivacyBudget | None:
        """What the whole may cost; None of an announced list."""
        return None if self.filter is None else self.filter.budget

    @property
    def currency(self) -> Currency | None:
        """In what the budget is paid; None of an announced list."""
        return None if self.filter is None else self.filter.currency

    @property
    def closed(self) -> bool:
        """Whether nothing more may be added."""
        return self._closed

    @property
    def usual_delta(self) -> float:
        """Where eps is asked for when nobody says: delta of the budget, or those of the releases together.

        Counts state no delta. Beside releases they get a tenth more, since claims may use up their own; with
        nothing beside them 1e-5.
        """
        if self.budget is not None:
            return self.budget.delta
        stated = sum_up([one.own_delta for one in self._releases])
        return min(stated * (_WITH_COUNTS if self._counts else 1.0), 0.5) or _SOME_DELTA

    @property
    def headline(self) -> str:
        """Mode, number of releases, guarantee, and the budget where there is one, in one line."""
        state = "closed" if self._closed else "open"
        how = "announced before the first result and composed whole"
        if self.budget is not None:
            how = (
                f"chosen on the way within eps {typed(self.budget.eps)} at delta {typed(self.budget.delta)} "
                f"by {self.currency!r}"
            )
        counts = f" and {len(self._counts)} of counts" if self._counts else ""
        return f"{in_all(self.guarantee)}; {len(self._releases)} releases{counts}, {how}; {state}"

    @property
    def guarantee(self) -> Guarantee:
        """As sure as the least sure entry, as certified; exact for announced, unsampled single runs.

        Totals that rest on privacy profiles in place of claims say how sure they are themselves.
        """
        sure = sure_together(one.certificate for one in self._releases if self._total.by_certificates)
        bounded = any(
            release.certificate.participation.random or release.runs is not None for release in self._releases
        )
        if bounded or self._counts or (self.mode is Mode.CHOSEN and self._releases):
            sure &= BOUND
        return sure

    @property
    def waiting(self) -> tuple[str, ...]:
        """Names of the announced releases whose privacy profile takes work, and was not computed yet."""
        return self._total.waiting if isinstance(self._total, AnnouncedTotal) else ()

    def epsilon(self, delta: float, *, method: Method | None = None, profiles: bool | None = None) -> Bounds:
        """Bounds on the total eps at `delta`: of the whole list, or of all that the budget allows.

        With a budget it does not depend on how much was spent: an eps read off on the way is no guarantee for
        whoever may go on or stop because of what came out.

        Args:
            delta: in (0, 1); where claims are composed, above the sum of theirs.
            method: None or Pld() for privacy profiles, Rdp() for moments (and basic composition of claims);
                None with a budget.
            profiles: of an announced list, whether to compute the profiles of Balls-in-Bins releases, 40 to
                200 CPU seconds for each mechanism and noise scale, once a ledger; False computes none and
                composes their claims, at once. None computes them where there is more than one release.
                Where there is, a profile that a certificate brings (`cal.certificate(profile=...)`) is taken
                as it is.

        Returns:
            Bounds, which say how sure they are. Errors of profiles add up, outside delta; what claims leave
            to chance is that of `guarantee`, and their lower end is 0.

        Raises:
            InvalidParameterError: on a bad argument.
            UnsupportedCombinationError: on another method.
            UnattainableBudgetError: if claims use up delta, or nothing is known at so small a delta.
            NumericalError: where no lattice that can be afforded bounds it.
        """
        checked, how, computed = check_delta(delta), check_method(method), _check_switch(profiles)
        if not self._releases and not self._counts:
            return Bounds(0.0, 0.0, EXACT, Provenance("release.none"))
        return self._stated(self._total.epsilon(checked, how, profiles=computed))

    def delta(self, eps: float, *, method: Method | None = None, profiles: bool | None = None) -> Bounds:
        """Bounds on the total delta at `eps` >= 0; arguments and errors as for `epsilon`."""
        checked, how = check_eps(eps, zero_allowed=True), check_method(method)
        computed = _check_switch(profiles)
        if not self._releases and not self._counts:
            return Bounds(0.0, 0.0, EXACT, Provenance("release.none"))
        return self._stated(self._total.delta(checked, how, profiles=computed))

    def meets(self, budget: PrivacyBudget) -> bool:
        """Whether the whole stays within a budget that was fixed before anything was drawn for it.

        What profiles leave to chance is taken out of its delta, so that "draw, ask this, release nothing
        where it says no" is (eps, delta)-differentially private with no "with probability" left.

        Raises:
            InvalidParameterError: if it is no PrivacyBudget.
            UnsupportedCombinationError: where the total rests on an estimate.
        """
        if not isinstance(budget, PrivacyBudget):
            raise InvalidParameterError("budget", budget, "a dm.PrivacyBudget(eps, delta)")
        found = self.delta(budget.eps)
        if not found.guarantee.rigorous:
            raise UnsupportedCombinationError("the total rests on an estimate", supported="bounds")
        return sum_up([found.upper, found.guarantee.outside_error]) <= budget.delta

    def profile(
        self,
        *,
        rng: np.random.Generator | int | None = None,
        executor: concurrent.futures.Executor | None = None,
        progress: Progress | None = None,
    ) -> PrivacyProfile:
        """The privacy profile of an announced list; what `epsilon` and `delta` then rest on.

        Args:
            rng: for what is drawn; None for fresh entropy.
            executor: where samples are drawn.
            progress: called with a line before each profile that takes work; each is computed once a ledger.

        Raises:
            UnsupportedCombinationError: with a budget, or where a release has no profile.
        """
        if not isinstance(self._total, AnnouncedTotal):
            raise UnsupportedCombinationError(
                "releases chosen on the way have no privacy profile: a filter holds their budget",
                supported="a ledger without a budget, whose list is announced",
            )
        return self._total.profile(rng=rng, executor=executor, progress=progress)

    @property
    def _unit(self) -> Unit | None:
        """Whose presence all entries hide; None where there are none."""
        units = [
            *(one.certificate.unit for one in self._releases),
            *(one.counts.unit for one in self._counts),
        ]
        return units[0] if units else None

    def _stated(self, bounds: Bounds) -> Bounds:
        """With the state of a list; a budget is as sure as the ledger."""
        if self.mode is Mode.CHOSEN:
            return dataclasses.replace(bounds, guarantee=bounds.guarantee & self.guarantee)
        state = Provenance("ledger.closed" if self._closed else "ledger.open")
        by = dataclasses.replace(bounds.by, rests_on=(*bounds.by.rests_on, state))
        return dataclasses.replace(bounds, by=by)


def _check_switch(profiles: object) -> bool | None:
    if profiles is not None and not isinstance(profiles, bool):
        raise InvalidParameterError("profiles", profiles, "None, True or False")
    return profiles
