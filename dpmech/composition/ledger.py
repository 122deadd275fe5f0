"""Ledger: what several certified releases about the same people add up to over a project's life."""

import dataclasses
import json
import os
from typing import Any, Self

from dpmech.calibration import Calibration
from dpmech.certificates import Certificate, differences
from dpmech.composition.announced_total import AnnouncedTotal
from dpmech.composition.currencies import GdpCurrency, check_currency, currency_from
from dpmech.composition.file_lock import locked
from dpmech.composition.ledger_answers import Answers
from dpmech.composition.ledger_counts import CountsRelease
from dpmech.composition.ledger_entries import Release, certificate_of, check_entry, check_lot
from dpmech.composition.ledger_file import check_continues, decoded, document_of, outline_of, outlined, parsed
from dpmech.composition.ledger_totals import FilteredTotal, Total
from dpmech.composition.lot import Lot
from dpmech.composition.privacy_filters import Currency, Remaining
from dpmech.engines import DiscreteGaussian, RunCount, run_count_from
from dpmech.exceptions import (
    CertificateError,
    DpmechError,
    InvalidParameterError,
    UnsupportedCombinationError,
    WorkLimitError,
)
from dpmech.guards import check_name
from dpmech.mechanism import Adjacency, PrivacyBudget

__all__ = ["Ledger"]


class Ledger(Answers):
    """Certified releases about the same people, and their total privacy loss, in one of two modes.

    **Announced** (without a budget): mechanisms and noise scales are listed before the first result of any of
    them is looked at, and the list is composed whole, by their privacy profiles. What the
    mechanisms ask may depend on results, so may their order, and the work may stop early: the price is that
    of the whole list. Whoever adds to it after a result has left this theorem, and nothing that the
    ledger says holds. `close` ends the list.

    **Chosen on the way** (with a budget): what is added next, and whether anything is, may depend on all
    results so far. Every release passes a privacy filter, in a currency that is fixed beforehand; what would
    exceed the budget is refused. What holds is the budget, also where less was spent.

    A release is added before its first step, and stays, also if the run fails or stops early. A sampled
    release names the lots that it reads, and a lot enters once: two releases from one lot are one mechanism,
    to be joined on a `Lot` before sampling. Of announced releases the privacy profiles are composed; those of
    Balls-in-Bins take work, and their (eps, delta) claims may stand in. A sampling error inside the delta of
    a claim is taken out, and added once for every calibration, not for every run under it.

    **Guarantee:** `guarantee` says how sure the entries are, as certified; every total says its own.

    Args:
        adjacency: between which datasets; releases with another one are refused, also where the numbers
            would be the same.
        budget: what the whole may cost; None for an announced list.
        currency: in what a budget is paid: `GdpCurrency()` (the default; unsampled releases),
            `RenyiCurrency(order)` or `ClaimCurrency(slack)`.
        allow_estimates: whether releases may enter of which the total takes an estimate on trust; the total
            is then an estimate too.

    Raises:
        InvalidParameterError: on a bad argument, a currency without a budget, or a currency in which the
            budget leaves no room.

    Examples:
        >>> import dpmech as dm
        >>> ledger = dm.Ledger()
        >>> training = dm.calibrate_sigma(dm.Identity(200), 2.0, 1e-6, participation=dm.Poisson(0.02))
        >>> ledger.add("run 1", training, lot="run 1")
        >>> ledger.add("run 2", training, lot="run 2")
        >>> test = dm.calibrate_sigma(dm.Identity(1), 0.5, 1e-6, participation=dm.SingleParticipation())
        >>> ledger.add("accuracy", test)
        >>> ledger.close()
        >>> round(ledger.epsilon(3e-6).upper, 2), str(ledger.guarantee)
        (2.53, 'deterministic upper bound')
        >>> project = dm.Ledger(budget=dm.PrivacyBudget(1.0, 1e-5))
        >>> project.add("accuracy", test)
        >>> round(project.remaining.mu, 3), round(project.remaining.epsilon(1e-6), 2)
        (0.238, 1.0)
        >>> project.would_exceed(dm.calibrate_sigma(dm.Identity(1), 1.1, 1e-6))
        True
    """

    def __init__(
        self,
        adjacency: Adjacency = Adjacency.ADD_REMOVE,
        *,
        budget: PrivacyBudget | None = None,
        currency: Currency | None = None,
        allow_estimates: bool = False,
    ) -> None:
        self.adjacency = Adjacency.check(adjacency)
        if not isinstance(allow_estimates, bool):
            raise InvalidParameterError("allow_estimates", allow_estimates, "True or False")
        if budget is not None and not isinstance(budget, PrivacyBudget):
            raise InvalidParameterError("budget", budget, "None or a dm.PrivacyBudget(eps, delta)")
        if currency is not None:
            check_currency(currency)
        if budget is None and currency is not None:
            raise InvalidParameterError("currency", currency, "None in a ledger without a budget")
        self.allow_estimates = allow_estimates
        self._total: Total = (
            AnnouncedTotal(self.adjacency)
            if budget is None
            else FilteredTotal(budget, currency or GdpCurrency())
        )
        self._closed = False
        self._releases: list[Release] = []
        self._counts: list[CountsRelease] = []

    def close(self) -> None:
        """End the ledger: nothing more may be added, now or when it is loaded again.

        An announced list is closed before its first result is looked at.
        """
        self._closed = True

    @property
    def remaining(self) -> Remaining:
        """What `add` would still take: the largest further mu, and the eps at a given delta.

        Raises:
            UnsupportedCombinationError: without a budget.
        """
        return self._budgeted("remaining").remaining

    def would_exceed(self, claim: Calibration | Certificate) -> bool:
        """Whether `add` would refuse this claim because the budget does not allow it.

        Raises:
            InvalidParameterError: on a bad argument.
            UnsupportedCombinationError: without a budget, or if the currency has no price for the claim.
        """
        return self._budgeted("would_exceed").would_exceed(certificate_of("claim", claim))

    def add(self, name: str, release: Calibration | Certificate, *, lot: Lot | str | None = None) -> None:
        """Enter a release, before its first step; all of it, or nothing where it is refused.

        Args:
            name: of the release, new in this ledger.
            release: a calibration, or a certificate.
            lot: where batches are sampled, the lots that it reads: a name that is new in this ledger, or a
                `Lot` whose mechanisms have jointly at least the certified sigma. It is closed. None
                without sampling.

        Raises:
            InvalidParameterError: on a bad argument, a name that is taken, a sampled release without a lot,
                or a release that would exceed the budget.
            CertificateError: if the release was edited after it was computed.
            UnsupportedCombinationError: if the ledger is closed, the lot is in it already, the adjacency is
                another one, the lot is not the one that was certified or has too little noise, the release
                has no price in the ledger's currency, or the total would rest on an estimate where none is
                allowed.
        """
        self._enter(name, release, lot, None)

    def add_tuning(
        self, name: str, run: Calibration | Certificate, runs: RunCount, *, lot: str | None = None
    ) -> None:
        """Enter a private selection, before its first run: the best of a secret number of such runs.

        `dm.PrivateSelection` makes it. The ledger holds the law of the number of runs and never the number.
        Where all results are seen, each run is an entry of its own by `add`.

        Args:
            name: of the selection, new in this ledger.
            run: what each run is certified for, the score by which the best is chosen included, unless that
                comes from public data.
            runs: the law of their number.
            lot: where batches are sampled, a name for the lots of all runs, new in this ledger; each run
                draws its own.

        Raises:
            InvalidParameterError: as for `add`, or if `runs` is no law.
            CertificateError: as for `add`.
            UnsupportedCombinationError: as for `add`, and with a budget: no filter here has a price for it.
        """
        if not isinstance(runs, RunCount):
            raise InvalidParameterError("runs", runs, "a dm.PoissonRuns or a dm.NegativeBinomialRuns")
        if self.budget is not None:
            raise UnsupportedCombinationError(
                "a private selection has no price in the currency of a budget",
                supported="an announced list, a dm.Ledger without a budget",
            )
        if lot is not None:
            check_name("lot", lot)
        self._enter(name, run, lot, runs)

    def add_counts(self, name: str, counts: DiscreteGaussian) -> None:
        """Enter counts that are released with discrete Gaussian noise, before the first of them is drawn.

        Args:
            name: of the release, new in this ledger.
            counts: noise, sensitivity and number, of the adjacency and the unit of this ledger.

        Raises:
            InvalidParameterError: on a bad argument, or a name that is taken.
            UnsupportedCombinationError: if the ledger is closed, adjacency or unit are other ones, and with
                a budget: no filter here has a price for them.
            NumericalError: if they, with equal ones before, have no bounds on delta, which is tried once: no
                total with them would have any.
        """
        if not isinstance(counts, DiscreteGaussian):
            raise InvalidParameterError("counts", counts, "a dm.DiscreteGaussian")
        entry = CountsRelease(name, counts)
        self._checked_total(entry).try_counts(entry)
        self._enter_counts(entry)

    def _enter_counts(self, entry: CountsRelease) -> None:
        self._checked_total(entry).enter_counts(entry)
        self._counts.append(entry)

    def _checked_total(self, entry: CountsRelease) -> AnnouncedTotal:
        self._check_name(entry.name)
        if not isinstance(self._total, AnnouncedTotal):
            raise UnsupportedCombinationError(
                "counts have no price in the currency of a budget",
                supported="an announced list, a dm.Ledger without a budget",
            )
        entry.check(self.adjacency, self._unit)
        return self._total

    def _check_name(self, name: str) -> None:
        check_name("name", name)
        if self._closed:
            raise UnsupportedCombinationError(
                f"the ledger was closed before {name!r}",
                supported="for releases chosen after a result, Ledger(budget=dm.PrivacyBudget(eps, delta))",
            )
        taken = [one.name for one in self._releases] + [one.name for one in self._counts]
        if name in taken:
            raise InvalidParameterError("name", name, "new in this ledger, which has it already")

    def _enter(
        self, name: str, release: Calibration | Certificate, lot: Lot | str | None, runs: RunCount | None
    ) -> None:
        self._check_name(name)
        certificate = certificate_of("release", release)
        blocks: tuple[tuple[str, float], ...] = ()
        if isinstance(lot, Lot):
            check_lot(lot, certificate)
            blocks = tuple(lot.blocks.items())
        elif lot is not None:
            check_name("lot", lot)
        read = lot.name if isinstance(lot, Lot) else lot
        entry = Release(name, certificate, read, blocks, self.mode, runs=runs)
        no_estimates = self._total.by_certificates and not self.allow_estimates
        check_entry(entry, self._releases, self.adjacency, self._unit, no_estimates=no_estimates)
        self._releases.append(self._total.enter(entry))
        if isinstance(lot, Lot):
            lot.close()

    def to_dict(self) -> dict[str, Any]:
        """Plain data, certificates and seal included; what `save` writes."""
        return document_of(self._outline(), self._releases)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file, whole or not at all; a ledger there is replaced only by one that continues it.

        Raises:
            InvalidParameterError: if the file cannot be written, or holds what is not in this ledger.
        """
        with locked(path):
            check_continues(path, self._outline())
            super().save(path)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The same as `load` for the text of a file; every entry passes the checks of `add` again."""
        document = parsed(text)
        outline = decoded(outlined(document))
        settings = outline["ledger"]
        try:
            ledger = cls(
                Adjacency(settings["adjacency"]),
                budget=None if settings["budget"] is None else PrivacyBudget(**settings["budget"]),
                currency=None if settings["currency"] is None else currency_from(settings["currency"]),
                allow_estimates=settings["allow_estimates"],
            )
            for entry, written in zip(outline["releases"], document["releases"], strict=True):
                ledger._restore(entry, json.dumps(written["certificate"]))
            for entry in outline.get("counts", ()):
                ledger._enter_counts(CountsRelease.of(entry, ledger.adjacency))
        except (CertificateError, WorkLimitError):
            raise
        except (DpmechError, ArithmeticError, MemoryError, RecursionError, TypeError, ValueError) as error:
            raise CertificateError(f"the ledger does not hold together: {error}") from error
        ledger._closed = settings["closed"]
        found = list(differences(outline, decoded(ledger._outline())))
        if found:
            raise CertificateError("entries contradict each other: " + "; ".join(found[:5]))
        return ledger

    def __str__(self) -> str:
        return self.headline

    def __repr__(self) -> str:
        return f"Ledger({self.adjacency.name}, {self.headline})"

    def _outline(self) -> dict[str, Any]:
        settings = {
            "adjacency": self.adjacency.value,
            "allow_estimates": self.allow_estimates,
            "mode": self.mode.value,
            "closed": self._closed,
            "budget": None if self.budget is None else dataclasses.asdict(self.budget),
            "currency": None if self.filter is None else self.filter.settings(),
        }
        return outline_of(self.headline, settings, self._releases, self._counts, self._total.summary())

    def _restore(self, entry: dict[str, Any], text: str) -> None:
        own = Certificate.from_json(text)
        lot: Lot | str | None = entry["lot"]
        if entry["blocks"]:
            lot = Lot(entry["lot"], own.mechanism)
            for name, sigma in entry["blocks"].items():
                lot.register(name, sigma)
        runs = None if entry.get("runs") is None else run_count_from(entry["runs"])
        self._enter(entry["name"], own, lot, runs)

    def _budgeted(self, what: str) -> FilteredTotal:
        if not isinstance(self._total, FilteredTotal):
            raise UnsupportedCombinationError(
                f"`{what}` speaks of a budget, and this ledger is an announced list without one",
                supported="Ledger(budget=dm.PrivacyBudget(eps, delta))",
            )
        return self._total
