"""Ledger: certified releases about the same people over the lifetime of a project, and their total."""

import concurrent.futures
import dataclasses
import json
import os
from typing import Any, Self

import numpy as np

from dpmech.calibration import Calibration
from dpmech.certificates import Certificate, Document, differences
from dpmech.engines import (
    BasicMechanism,
    DiscreteGaussian,
    Method,
    PrivacyProfile,
    Progress,
    RunCount,
    check_method,
    run_count_from,
)
from dpmech.exceptions import (
    CertificateError,
    DpmechError,
    InvalidParameterError,
    UnsupportedCombinationError,
    WorkLimitError,
)
from dpmech.guards import check_delta, check_eps, check_identifier, check_name
from dpmech.ledgers.ledger_entries import (
    CountsRelease,
    MechanismRelease,
    Mode,
    Release,
    certificate_of,
    check_entry,
    check_shared_batch,
    in_all,
    sure_together,
)
from dpmech.ledgers.ledger_file import (
    check_continues,
    decoded,
    document_of,
    locked,
    outline_of,
    outlined,
    parsed,
)
from dpmech.ledgers.ledger_totals import FilteredTotal, NonAdaptiveTotal, Total
from dpmech.ledgers.privacy_filters import (
    AccountingMethod,
    GdpAccounting,
    PrivacyFilter,
    Remaining,
    accounting_from,
    check_accounting,
)
from dpmech.ledgers.shared_batch import SharedBatch
from dpmech.mechanism import Adjacency, PrivacyBudget, Unit
from dpmech.numerics import BOUND, EXACT, Bounds, Guarantee, Provenance, sum_up, typed

_SOME_DELTA, _WITH_COUNTS = 1e-5, 1.1


class Answers(Document):
    """The read-only part of a ledger; `Ledger` adds the methods that write."""

    _total: Total
    _closed: bool
    _releases: list[Release]
    _counts: list[CountsRelease]
    _mechanisms: list[MechanismRelease]

    @property
    def releases(self) -> tuple[Release, ...]:
        """The certified releases, in order of entry."""
        return tuple(self._releases)

    @property
    def counts(self) -> tuple[CountsRelease, ...]:
        """The releases of counts, in order of entry."""
        return tuple(self._counts)

    @property
    def mechanisms(self) -> tuple[MechanismRelease, ...]:
        """The other mechanisms, in order of entry."""
        return tuple(self._mechanisms)

    @property
    def entries(self) -> int:
        """The number of releases, counts and other mechanisms."""
        return len(self._releases) + len(self._counts) + len(self._mechanisms)

    @property
    def mode(self) -> Mode:
        """Non-adaptive or adaptive."""
        return self._total.mode

    @property
    def filter(self) -> PrivacyFilter | None:
        """The filter that enforces the budget: its resolved accounting method and its limits."""
        return self._total.filter if isinstance(self._total, FilteredTotal) else None

    @property
    def budget(self) -> PrivacyBudget | None:
        """The total budget; None for a non-adaptive list."""
        return None if self.filter is None else self.filter.budget

    @property
    def accounting(self) -> AccountingMethod | None:
        """The accounting method of the budget; None for a non-adaptive list."""
        return None if self.filter is None else self.filter.accounting

    @property
    def closed(self) -> bool:
        """Whether nothing more may be added."""
        return self._closed

    @property
    def usual_delta(self) -> float:
        """The default delta of totals: that of the budget, or the sum of those of the releases.

        Counts and mechanisms have no delta of their own, except for claims that state one. They increase the
        sum of the other deltas by a tenth, because claims may use up their own deltas. Without other
        releases, the default is 1e-5.
        """
        if self.budget is not None:
            return self.budget.delta
        claims = [one.own_delta for one in self._mechanisms]
        stated = sum_up([*(one.own_delta for one in self._releases), *claims])
        without = self._counts or 0.0 in claims
        return min(stated * (_WITH_COUNTS if without else 1.0), 0.5) or _SOME_DELTA

    @property
    def headline(self) -> str:
        """Mode, number of releases, guarantee, and the budget if there is one, in one line."""
        state = "closed" if self._closed else "open"
        how = "non-adaptive: listed before the first result and composed as a whole"
        if self.budget is not None:
            how = (
                f"adaptive within eps {typed(self.budget.eps)} at delta {typed(self.budget.delta)} "
                f"by {self.accounting!r}"
            )
        counts = f" and {len(self._counts)} of counts" if self._counts else ""
        if self._mechanisms:
            others = "mechanism" if len(self._mechanisms) == 1 else "mechanisms"
            counts += f" and {len(self._mechanisms)} other {others}"
        noun = "release" if len(self._releases) == 1 else "releases"
        return f"{in_all(self.guarantee)}; {len(self._releases)} {noun}{counts}, {how}; {state}"

    @property
    def guarantee(self) -> Guarantee:
        """The weakest certified guarantee of the entries; exact for non-adaptive, unsampled single runs.

        Totals computed from privacy profiles instead of claims state their own guarantee.
        """
        sure = sure_together(one.certificate for one in self._releases if self._total.by_certificates)
        bounded = any(
            release.certificate.participation.random or release.runs is not None for release in self._releases
        )
        bounded |= any(one.mechanism.squared_mu is None for one in self._mechanisms)
        if bounded or self._counts or (self.mode is Mode.ADAPTIVE and self.entries):
            sure &= BOUND
        return sure

    @property
    def waiting(self) -> tuple[str, ...]:
        """Names of the non-adaptive releases whose privacy profile is costly and has not been computed."""
        return self._total.waiting if isinstance(self._total, NonAdaptiveTotal) else ()

    def epsilon(self, delta: float, *, method: Method | None = None, profiles: bool | None = None) -> Bounds:
        """Bounds on the total eps at `delta`: of the full list, or of everything that the budget allows.

        With a budget, the result does not depend on how much has been spent. The eps spent so far is not a
        guarantee if the decision to continue or stop may depend on results.

        Args:
            delta: in (0, 1); if claims are composed, above the sum of their deltas.
            method: None or Pld() for privacy profiles, Rdp() for moments (and basic composition of claims);
                None with a budget.
            profiles: for a non-adaptive list, whether to compute the profiles of Balls-in-Bins releases. This
                happens once per ledger, and takes 40 to 200 CPU seconds per mechanism and noise scale. False
                composes their claims instead, which is immediate. None computes the profiles if there is more
                than one release. In that case, a profile stored in a certificate
                (`cal.certificate(profile=...)`) is used directly.

        Returns:
            Bounds with their guarantee. The failure probabilities of profiles add up, outside delta; those of
            claims are in `guarantee`. The lower end for claims is 0.

        Raises:
            InvalidParameterError: if an argument is invalid.
            UnsupportedCombinationError: if the method is not one of these.
            UnattainableBudgetError: if claims use up delta, or if no bound is known at such a small delta.
            NumericalError: if no lattice of affordable size gives a bound.
        """
        checked, how, computed = check_delta(delta), check_method(method), _check_switch(profiles)
        if not self.entries:
            return Bounds(0.0, 0.0, EXACT, Provenance("release.none"))
        return self._stated(self._total.epsilon(checked, how, profiles=computed))

    def delta(self, eps: float, *, method: Method | None = None, profiles: bool | None = None) -> Bounds:
        """Bounds on the total delta at `eps` >= 0; arguments and errors as in `epsilon`."""
        checked, how = check_eps(eps, zero_allowed=True), check_method(method)
        computed = _check_switch(profiles)
        if not self.entries:
            return Bounds(0.0, 0.0, EXACT, Provenance("release.none"))
        return self._stated(self._total.delta(checked, how, profiles=computed))

    def meets(self, budget: PrivacyBudget) -> bool:
        """Whether the total meets a budget that was fixed before any sampling for it.

        The failure probability of profiles is subtracted from its delta. Therefore, the procedure "sample,
        call this method, and release nothing if it returns False" is (eps, delta)-differentially private
        without a confidence level.

        Raises:
            InvalidParameterError: if the argument is not a PrivacyBudget.
            UnsupportedCombinationError: if the total depends on an estimate.
        """
        if not isinstance(budget, PrivacyBudget):
            raise InvalidParameterError("budget", budget, "a dm.PrivacyBudget(eps, delta)")
        found = self.delta(budget.eps)
        if not found.guarantee.rigorous:
            raise UnsupportedCombinationError("the total is based on an estimate", supported="bounds")
        return sum_up([found.upper, found.guarantee.outside_error]) <= budget.delta

    def profile(
        self,
        *,
        rng: np.random.Generator | int | None = None,
        executor: concurrent.futures.Executor | None = None,
        progress: Progress | None = None,
    ) -> PrivacyProfile:
        """The privacy profile of a non-adaptive list; `epsilon` and `delta` use it from then on.

        Args:
            rng: for random samples; None uses entropy from the operating system.
            executor: where samples are drawn.
            progress: called with a line of text before each costly profile; each is computed once.

        Raises:
            UnsupportedCombinationError: with a budget, or if a release has no profile.
        """
        if not isinstance(self._total, NonAdaptiveTotal):
            raise UnsupportedCombinationError(
                "adaptive releases have no privacy profile: a filter enforces their budget",
                supported="a ledger without a budget, whose list is non-adaptive",
            )
        return self._total.profile(rng=rng, executor=executor, progress=progress)

    @property
    def _unit(self) -> Unit | None:
        """The privacy unit of all entries; None if there are none."""
        units = [
            *(one.certificate.unit for one in self._releases),
            *(one.counts.unit for one in self._counts),
            *(one.mechanism.unit for one in self._mechanisms),
        ]
        return units[0] if units else None

    def _stated(self, bounds: Bounds) -> Bounds:
        """Add the state of a list; a budget has the guarantee of the ledger."""
        if self.mode is Mode.ADAPTIVE:
            return dataclasses.replace(bounds, guarantee=bounds.guarantee & self.guarantee)
        state = Provenance("ledger.closed" if self._closed else "ledger.open")
        by = dataclasses.replace(bounds.by, rests_on=(*bounds.by.rests_on, state))
        return dataclasses.replace(bounds, by=by)


def _check_switch(profiles: object) -> bool | None:
    if profiles is not None and not isinstance(profiles, bool):
        raise InvalidParameterError("profiles", profiles, "None, True or False")
    return profiles


class Ledger(Answers):
    """Certified releases about the same people, and their total privacy loss.

    A ledger has one of two modes. **Non-adaptive** (without a budget): mechanisms and noise scales are listed
    before anyone looks at the first result of any of them, and the full list is composed by privacy profiles.
    The queries and their order may depend on results, and the work may stop early, but the cost is always
    that of the full list. Adding to the list after a result has been seen violates the theorem, and no total
    of the ledger then holds. `close` ends the list.

    **Adaptive** (with a budget): whether a release is added, and which one, may depend on all results so far.
    A privacy filter, with an accounting method that is fixed beforehand, refuses every release that would
    exceed the budget. The guarantee is the budget, even if less was spent.

    A release is added before its first step, and remains even if the run fails or stops early. A sampled
    release names the batches that it reads, and a batch enters only once. Two releases from one batch are one
    mechanism, and must be joined on a `SharedBatch`. The privacy profiles of non-adaptive releases are
    composed. Those under Balls-in-Bins are costly, and the (eps, delta) claims may replace them. A beta
    inside the delta of a claim is subtracted, and is added once per calibration, not once per run.

    **Guarantee:** `guarantee` is the certified guarantee of the entries; every total states its own.

    Args:
        adjacency: the neighbouring relation; releases with another one are refused, even if the numbers would
            be equal.
        budget: the total budget; None for a non-adaptive list.
        accounting: the accounting method of a budget: `GdpAccounting()` (the default; unsampled releases),
            `RenyiAccounting(order)` or `ClaimAccounting(slack)`.
        allow_estimates: whether a release is accepted if the total uses an estimate of it; the total is then
            also an estimate.

    Raises:
        InvalidParameterError: if an argument is invalid, if there is an accounting method without a budget,
            or if the accounting method cannot meet the budget.

    Examples:
        >>> import dpmech as dm
        >>> ledger = dm.Ledger()
        >>> training = dm.calibrate_sigma(dm.Identity(200), 2.0, 1e-6, participation=dm.Poisson(0.02))
        >>> ledger.add("run 1", training, batch="run 1")
        >>> ledger.add("run 2", training, batch="run 2")
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
        accounting: AccountingMethod | None = None,
        allow_estimates: bool = False,
    ) -> None:
        self.adjacency = Adjacency.check(adjacency)
        if not isinstance(allow_estimates, bool):
            raise InvalidParameterError("allow_estimates", allow_estimates, "True or False")
        if budget is not None and not isinstance(budget, PrivacyBudget):
            raise InvalidParameterError("budget", budget, "None or a dm.PrivacyBudget(eps, delta)")
        if accounting is not None:
            check_accounting(accounting)
        if budget is None and accounting is not None:
            raise InvalidParameterError("accounting", accounting, "None in a ledger without a budget")
        self.allow_estimates = allow_estimates
        self._total: Total = (
            NonAdaptiveTotal(self.adjacency)
            if budget is None
            else FilteredTotal(budget, accounting or GdpAccounting())
        )
        self._closed = False
        self._releases: list[Release] = []
        self._counts: list[CountsRelease] = []
        self._mechanisms: list[MechanismRelease] = []

    def close(self) -> None:
        """Close the ledger: nothing more may be added, now or after loading.

        Close a non-adaptive list before you look at its first result.
        """
        self._closed = True

    @property
    def remaining(self) -> Remaining:
        """What `add` would still accept: the largest further mu, and the eps at a given delta.

        Raises:
            UnsupportedCombinationError: without a budget.
        """
        return self._budgeted("remaining").remaining

    def would_exceed(self, claim: Calibration | Certificate | BasicMechanism, *, count: int = 1) -> bool:
        """Whether `add` or `add_mechanism` would refuse this because it exceeds the budget.

        Args:
            claim: a calibration, a certificate or a mechanism.
            count: how often a mechanism is released, in [1, 1000000]; 1 for a calibration or certificate.

        Raises:
            InvalidParameterError: if an argument is invalid.
            UnsupportedCombinationError: without a budget, or if the accounting method has no cost for the
                claim.
        """
        total = self._budgeted("would_exceed")
        if isinstance(claim, BasicMechanism):
            entry = MechanismRelease("claim", claim, count)
            entry.check(self.adjacency, self._unit)
            return total.would_exceed(entry)
        if count != 1:
            raise InvalidParameterError(
                "count", count, "1 for a calibration or certificate, which is added once"
            )
        return total.would_exceed(Release("claim", certificate_of("claim", claim), None))

    def add(
        self, name: str, release: Calibration | Certificate, *, batch: SharedBatch | str | None = None
    ) -> None:
        """Add a release, before its first step; a refused release leaves the ledger unchanged.

        Args:
            name: name of the release, new in this ledger.
            release: a calibration or a certificate.
            batch: for a sampled release, the batches that it reads: a name that is new in this ledger, or a
                `SharedBatch` whose mechanisms jointly have at least the certified sigma. The `SharedBatch` is
                then closed. None without sampling.

        Raises:
            InvalidParameterError: if an argument is invalid, the name is taken, a sampled release has no
                batch, or the release would exceed the budget.
            CertificateError: if the release was edited after it was computed.
            UnsupportedCombinationError: if the ledger is closed or already contains the batch; if the
                adjacency differs; if the batch is not the certified batch or has too little noise; if the
                accounting method of the ledger defines no cost for the release; or if the total would depend
                on an estimate although estimates are not allowed.
        """
        self._enter(name, release, batch, None)

    def add_tuning(
        self, name: str, run: Calibration | Certificate, runs: RunCount, *, batch: str | None = None
    ) -> None:
        """Add a private selection, before its first run: the best of a secret number of such runs.

        `dm.ledgers.PrivateSelection` performs the selection. The ledger stores the distribution of the number
        of runs, but not the number. If all results are visible, add each run as a separate entry with `add`.

        Args:
            name: name of the selection, new in this ledger.
            run: the calibration or certificate of each run. It must cover the score that selects the best
                run, unless the score comes from public data.
            runs: the distribution of the number of runs.
            batch: for sampled runs, a name for the batches of all runs, new in this ledger; each run samples
                its own batches.

        Raises:
            InvalidParameterError: as in `add`, or if `runs` is not such a distribution.
            CertificateError: as in `add`.
            UnsupportedCombinationError: as in `add`, and with a budget, because no filter defines a cost for
                a selection.
        """
        if not isinstance(runs, RunCount):
            raise InvalidParameterError(
                "runs", runs, "a dm.ledgers.PoissonRuns or a dm.ledgers.NegativeBinomialRuns"
            )
        if self.budget is not None:
            raise UnsupportedCombinationError(
                "a private selection has no price in the accounting method of a budget",
                supported="a non-adaptive list, a dm.Ledger without a budget",
            )
        if batch is not None:
            check_identifier("batch", batch)
        self._enter(name, run, batch, runs)

    def add_counts(self, name: str, counts: DiscreteGaussian) -> None:
        """Add counts released with discrete Gaussian noise, before the first of them is released.

        Args:
            name: name of the release, new in this ledger.
            counts: noise, sensitivity and number of the counts, with the adjacency and unit of this ledger.

        Raises:
            InvalidParameterError: if an argument is invalid, or the name is taken.
            UnsupportedCombinationError: if the ledger is closed, if adjacency or unit differ, or with a
                budget, because no filter defines a cost for counts.
            NumericalError: if no bounds on the delta of the counts, together with earlier equal counts, could
                be computed. No total that contains them would then have bounds.
        """
        if not isinstance(counts, DiscreteGaussian):
            raise InvalidParameterError("counts", counts, "a dm.DiscreteGaussian")
        entry = CountsRelease(name, counts)
        self._checked_total(entry).try_counts(entry)
        self._enter_counts(entry)

    def add_mechanism(self, name: str, mechanism: BasicMechanism, *, count: int = 1) -> None:
        """Add a mechanism that is defined by its distribution or by a claim, before it runs.

        Args:
            name: name of the entry, new in this ledger.
            mechanism: `dm.ledgers.Laplace`, `DiscreteLaplace`, `RandomizedResponse`, `Gaussian`, or a claim:
                `PureDP`, `ApproximateDP`, `ZCDP`; with the adjacency and unit of this ledger. It reads all
                data, not a sampled batch.
            count: how often it is released, in [1, 1000000], each time with independent noise.

        Raises:
            InvalidParameterError: if an argument is invalid, the name is taken, or the releases would exceed
                the budget.
            UnsupportedCombinationError: if the ledger is closed, adjacency or unit differ, or the mechanism
                has no cost in the ledger's accounting method: `GdpAccounting` has one for Gaussian noise,
                `RenyiAccounting` for everything but claims with a delta, `ClaimAccounting` for everything
                with a bounded loss or a claim of (eps, delta).

        Examples:
            >>> import dpmech as dm
            >>> ledger = dm.Ledger()
            >>> ledger.add_mechanism("incomes", dm.ledgers.Laplace(scale=20.0, sensitivity=1.0), count=100)
            >>> ledger.add_mechanism("a tool", dm.ledgers.ApproximateDP(0.5, 1e-7))
            >>> total = ledger.epsilon(1e-6)
            >>> round(total.lower, 3), round(total.upper, 3)
            (2.193, 2.657)
        """
        if not isinstance(mechanism, BasicMechanism):
            raise InvalidParameterError(
                "mechanism", mechanism, "a dm.ledgers.Laplace, PureDP or other mechanism of dm.ledgers"
            )
        self._check_name(name)
        entry = MechanismRelease(name, mechanism, count)
        entry.check(self.adjacency, self._unit)
        self._mechanisms.append(self._total.enter(entry))

    def _enter_counts(self, entry: CountsRelease) -> None:
        self._checked_total(entry).enter_counts(entry)
        self._counts.append(entry)

    def _checked_total(self, entry: CountsRelease) -> NonAdaptiveTotal:
        self._check_name(entry.name)
        if not isinstance(self._total, NonAdaptiveTotal):
            raise UnsupportedCombinationError(
                "counts have no price in the accounting method of a budget",
                supported="a non-adaptive list, a dm.Ledger without a budget",
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
        taken += [one.name for one in self._mechanisms]
        if name in taken:
            raise InvalidParameterError("name", name, "new in this ledger")

    def _enter(
        self,
        name: str,
        release: Calibration | Certificate,
        batch: SharedBatch | str | None,
        runs: RunCount | None,
    ) -> None:
        self._check_name(name)
        certificate = certificate_of("release", release)
        blocks: tuple[tuple[str, float], ...] = ()
        if isinstance(batch, SharedBatch):
            check_shared_batch(batch, certificate)
            blocks = tuple(batch.blocks.items())
        elif batch is not None:
            check_identifier("batch", batch)
        read = batch.name if isinstance(batch, SharedBatch) else batch
        entry = Release(name, certificate, read, blocks, self.mode, runs=runs)
        no_estimates = self._total.by_certificates and not self.allow_estimates
        check_entry(entry, self._releases, self.adjacency, self._unit, no_estimates=no_estimates)
        self._releases.append(self._total.enter(entry))
        if isinstance(batch, SharedBatch):
            batch.close()

    def to_dict(self) -> dict[str, Any]:
        """Plain data, including certificates and checksum; what `save` writes."""
        return document_of(self._outline(), self._releases)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the ledger to a file, atomically; only a continuation replaces an existing ledger.

        Raises:
            InvalidParameterError: if the file cannot be written, or contains entries that this ledger lacks.
        """
        with locked(path):
            check_continues(path, self._outline())
            super().save(path)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Like `load`, from the text of a file; every entry passes the checks of `add` again."""
        document = parsed(text)
        outline = decoded(outlined(document))
        settings = outline["ledger"]
        try:
            ledger = cls(
                Adjacency(settings["adjacency"]),
                budget=None if settings["budget"] is None else PrivacyBudget(**settings["budget"]),
                accounting=None
                if settings["accounting"] is None
                else accounting_from(settings["accounting"]),
                allow_estimates=settings["allow_estimates"],
            )
            for entry, written in zip(outline["releases"], document["releases"], strict=True):
                ledger._restore(entry, json.dumps(written["certificate"]))
            for entry in outline.get("counts", ()):
                ledger._enter_counts(CountsRelease.of(entry, ledger.adjacency))
            for entry in outline.get("mechanisms", ()):
                other = MechanismRelease.of(entry, ledger.adjacency)
                ledger.add_mechanism(other.name, other.mechanism, count=other.count)
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
            "accounting": None if self.filter is None else self.filter.settings(),
        }
        entries = self._releases, self._counts, self._mechanisms
        return outline_of(self.headline, settings, *entries, self._total.summary())

    def _restore(self, entry: dict[str, Any], text: str) -> None:
        own = Certificate.from_json(text)
        batch: SharedBatch | str | None = entry["batch"]
        if entry["blocks"]:
            batch = SharedBatch(entry["batch"], own.mechanism)
            for name, sigma in entry["blocks"].items():
                batch.register(name, sigma)
        runs = None if entry.get("runs") is None else run_count_from(entry["runs"])
        self._enter(entry["name"], own, batch, runs)

    def _budgeted(self, what: str) -> FilteredTotal:
        if not isinstance(self._total, FilteredTotal):
            raise UnsupportedCombinationError(
                f"`{what}` speaks of a budget, and this ledger is a non-adaptive list without one",
                supported="Ledger(budget=dm.PrivacyBudget(eps, delta))",
            )
        return self._total
