"""verify: is what a certificate claims true? It recomputes; it never calibrates."""

import functools
import math
import os
from collections.abc import Iterator

import numpy as np

from dpmech.accounting.accountant import DETERMINISTIC, EXACT, Progress
from dpmech.accounting.dispatch import accountant_for
from dpmech.accounting.methods import Certified, Deterministic, Exact, Importance, Rdp
from dpmech.accounting.search import gaussian_scale
from dpmech.bounds import Bounds
from dpmech.certificate_format import Document, read_text
from dpmech.certificates import Certificate
from dpmech.exceptions import CertificateError, DpmechError, InvalidParameterError, check_rng
from dpmech.ledger import Ledger
from dpmech.ledger_file import is_ledger
from dpmech.participation import BallsInBins
from dpmech.run_record import RunRecord
from dpmech.sensitivities import sensitivity
from dpmech.verifying.ledgers import verify_ledger
from dpmech.verifying.privacy_routes import (
    Route,
    certified_sensitivity,
    repeated_routes,
    sampled,
    second_routes,
)
from dpmech.verifying.report import Check, Verification
from dpmech.verifying.runs import is_run_record, run_checks, stopped_certificate
from dpmech.verifying.sensitivity_routes import second_bracket

__all__ = ["verify"]

# Floating-point arithmetic differs between platforms by less than this, relative.
_ROUNDING = 1e-9
# What the integrals leave open, relative in delta.
_RESOLUTION = 1e-6
# Above this delta a change of sigma hardly changes it, and nothing can be said about tightness.
_TELLING_DELTA = 0.9
# What a calibration takes.
_RTOL = (1e-6, 0.5)
_SOURCES = {Certificate: "certificate", RunRecord: "run record", Ledger: "ledger"}
_UNFIT = (DpmechError, ArithmeticError, ValueError)


def verify(
    certificate: str | os.PathLike[str] | Certificate | RunRecord | Ledger,
    *,
    rigorous: bool = False,
    rng: np.random.Generator | int | None = None,
    progress: Progress | None = None,
) -> Verification:
    """Recompute the claim of a certificate, a run record or a ledger by routes other than the issuing one.

    The file: schema, seal, and every entry that follows from others. The sensitivity: explicit columns, all
    sets or another dynamic programme. The privacy: an integral for the Gaussian mechanism; a contour
    integral and another package under Poisson sampling; an independent sample under Balls-in-Bins. Unless the
    certificate rests on an estimate, its guarantee is also given anew (for the convex-order programme on
    finer grids). The evidence: achieved eps, tightness and label must be those of this claim. Of a run record
    also the run: steps and participations against the certificate inside it and, where it was stopped early
    by plan, the eps of the steps executed. Of a ledger every certificate and, where it has a budget, the
    prices and the limits that stand for the budget.

    **Guarantee:** a claim that fails by more than the resolution of the routes (1e-6 in delta where nothing
    is random, 1e-5 under Poisson sampling; under Balls-in-Bins the interval of the sample) is refused. A
    seal is no signature: a re-sealed file whose every statement is true of another run is a true certificate
    of that run.

    Args:
        certificate: a file, a Certificate, a RunRecord or a Ledger.
        rigorous: refuse a certificate that rests on an estimate, and a run whose random numbers were seeded
            by the caller.
        rng: for sampled routes; None takes entropy from the operating system.
        progress: called with one line of text before every step.

    Returns:
        A Verification: its `ok`, `failures`, `margin`, `routes` and checks.

    Raises:
        InvalidParameterError: if the file cannot be read, or on a bad argument.

    Examples:
        >>> import dpmech as dm
        >>> cal = dm.calibrate_sigma(dm.LambdaCGD(12, 0.9), 8.0, 1e-5, participation=dm.MinSep(4))
        >>> dm.verify(cal.certificate()).ok
        True
    """
    if not isinstance(certificate, str | os.PathLike | Certificate | RunRecord | Ledger):
        raise InvalidParameterError(
            "certificate", certificate, "a path, a Certificate, a RunRecord or a Ledger"
        )
    generator = check_rng(rng)
    report = progress if progress is not None else _silent
    source = _SOURCES[type(certificate)] if isinstance(certificate, Document) else os.fspath(certificate)
    report(f"{source}: reading")
    run: RunRecord | None = None
    try:
        text = certificate.to_json() if isinstance(certificate, Document) else read_text(certificate)
        if is_ledger(text):
            one = functools.partial(verify, rigorous=rigorous, rng=generator, progress=progress)
            return verify_ledger(text, source, one)
        if is_run_record(text):
            run = RunRecord.from_json(text)
        read = Certificate.from_json(text) if run is None else run.certificate
    except CertificateError as error:
        return Verification(source, None, (Check("file", ok=False, detail=str(error)),), None)
    checks = [Check("file", ok=True, detail="schema, seal and derived entries hold")]
    recomputation = _Recomputation(read, generator, report, source)
    # Forged numbers may overflow; what comes of that is refused as it is, not as a warning.
    with np.errstate(over="ignore", invalid="ignore", divide="ignore", under="ignore"):
        checks += recomputation.run()
        if run is not None:
            checks += run_checks(run, rigorous=rigorous)
            if all(check.ok for check in checks):
                checks += _stopped_early(run, generator, report, source)
    if rigorous and read.guarantee == "estimate":
        checks.append(
            Check("rigour", ok=False, detail="the claim rests on an estimate, a rigorous one was asked for")
        )
    return Verification(source, read, tuple(checks), recomputation.margin, run)


class _Recomputation:
    """One certificate's checks, in the order in which they are worth making."""

    def __init__(
        self,
        certificate: Certificate,
        rng: np.random.Generator | None,
        progress: Progress,
        source: str,
        *,
        sized: bool = True,  # whether sigma was searched for this budget, and must be tight
    ) -> None:
        self.certificate = certificate
        self.rng = rng
        self.progress = progress
        self.source = source
        self.sized = sized
        self.margin: float | None = None
        self.eps, self.delta = certificate.budget.eps, certificate.budget.delta

    def run(self) -> Iterator[Check]:
        """Every check; the dear ones are left out once a cheap one has failed."""
        try:
            self.progress(f"{self.source}: sensitivity")
            check, bracket = self._sensitivity()
            yield check
            if not check.ok:
                return
            failed = False
            for check in self._label():
                failed |= not check.ok
                yield check
            if failed:
                return
            yield from self._privacy(bracket)
        except (MemoryError, *_UNFIT) as error:
            yield Check("privacy", ok=False, detail=f"could not be recomputed: {error}")

    def _sensitivity(self) -> tuple[Check, Bounds]:
        claimed = self.certificate.sensitivity
        strategy, schema = self.certificate.strategy, self.certificate.participation
        found = certified_sensitivity(
            second_bracket(strategy, schema, self.certificate.adjacency), schema, strategy.n
        )
        loose = found.upper > claimed.upper * (1.0 + _ROUNDING)
        if (loose or found.lower < claimed.lower * (1.0 - _ROUNDING)) and _overlap(found, claimed):
            # At this size no second route is tight: the first one again, inside the second's bracket.
            again = certified_sensitivity(
                sensitivity(strategy, schema, adjacency=self.certificate.adjacency), schema, strategy.n
            )
            upper = min(found.upper, again.upper)
            method = f"{again.method}, again; {found.method} agrees"
            found = Bounds(min(max(found.lower, again.lower), upper), upper, method)
        held = (
            _overlap(found, claimed)
            and found.upper <= claimed.upper * (1.0 + _ROUNDING)
            and found.lower >= claimed.lower * (1.0 - _ROUNDING)
        )
        detail = (
            f"claimed [{claimed.lower:.10g}, {claimed.upper:.10g}], "
            f"recomputed [{found.lower:.10g}, {found.upper:.10g}]"
        )
        return Check("sensitivity", ok=held, detail=detail, route=found.method), found

    def _label(self) -> Iterator[Check]:
        """Does the guarantee follow from the accountant, and is the achieved eps within the budget?"""
        own = self.certificate
        used = own.evidence.accountant
        if own.participation.random:
            accountant = accountant_for(own.strategy, own.participation, own.adjacency, used)
            guarantee = accountant.guarantee
        else:
            guarantee = EXACT if isinstance(used, Exact) and own.sensitivity.exact else DETERMINISTIC
        if own.guarantee != guarantee:
            yield Check("evidence", ok=False, detail=f"{used!r} gives {guarantee!r}, not {own.guarantee!r}")
        if not _RTOL[0] <= own.evidence.rtol <= _RTOL[1]:
            yield Check("evidence", ok=False, detail=f"rtol {own.evidence.rtol!r} is outside of {_RTOL}")
        confidence = used.confidence if isinstance(used, Importance) else None
        confidence = 1.0 - used.beta if isinstance(used, Certified) else confidence
        if own.achieved.confidence != confidence:
            yield Check(
                "evidence",
                ok=False,
                detail=f"{used!r} has confidence {confidence!r}, not {own.achieved.confidence!r}",
            )
        # Under Balls-in-Bins all but the moments size sigma for eps and look no further.
        sized = isinstance(own.participation, BallsInBins) and own.participation.bins > 1
        sized &= not isinstance(used, Rdp)
        if own.achieved.upper > self.eps or (sized and own.achieved.upper != self.eps):
            yield Check(
                "evidence", ok=False, detail=f"achieved eps {own.achieved.upper!r}, budget eps {self.eps!r}"
            )

    def _privacy(self, bracket: Bounds) -> Iterator[Check]:
        own = self.certificate
        working: list[Route] = []
        for route in second_routes(own, bracket, self.rng):
            self.progress(f"{self.source}: {route.name}")
            try:
                bounds = route.delta(own.sigma, self.eps)
            except _UNFIT as error:
                yield Check("privacy", ok=True, detail=f"route not taken: {error}", route=route.name)
                continue
            if not working:
                self.margin = self._margin(route, bounds)
            working.append(route)
            yield self._line(route, bounds, ok=not self._missed(route, bounds))
            if self._missed(route, bounds):
                return
        repeated = repeated_routes(own, self.rng)
        held = False
        for route in repeated:
            self.progress(f"{self.source}: {route.name}")
            bounds = route.delta(own.sigma, self.eps)
            held = bounds.upper <= self.delta * (1.0 + _ROUNDING)
            if held or route is repeated[-1]:
                yield self._line(route, bounds, ok=held)
            if held:
                if self.sized:
                    yield from self._tightness(route)
                break
        sampled_only = isinstance(own.participation, BallsInBins) and own.participation.bins > 1
        if not working and not (held and sampled_only):
            yield Check("privacy", ok=False, detail="no second route confirms the claim")
        if working:
            yield from self._achieved(working[0])

    def _margin(self, route: Route, bounds: Bounds) -> float:
        # The middle of a confidence interval says more about the margin than its end.
        likely = bounds.upper if route.decides else math.sqrt(bounds.lower * bounds.upper)
        return math.expm1(gaussian_scale(self.eps, likely) - gaussian_scale(self.eps, self.delta))

    def _missed(self, route: Route, bounds: Bounds) -> bool:
        """Whether the route contradicts the claimed delta or, where it decides, does not reach it."""
        if bounds.lower > self.delta * (1.0 + _ROUNDING):
            return True
        if not route.decides or bounds.upper <= self.delta * (1.0 + _RESOLUTION):
            return False
        short = gaussian_scale(self.eps, self.delta) - gaussian_scale(self.eps, bounds.upper)
        return short > route.slack

    def _line(self, route: Route, bounds: Bounds, *, ok: bool) -> Check:
        sign = "meets" if ok else "exceeds"
        detail = (
            f"delta at eps {self.eps:.10g} and sigma {self.certificate.sigma:.10g} in "
            f"[{bounds.lower:.6g}, {bounds.upper:.6g}] {sign} the claimed {self.delta:.6g}"
        )
        return Check("privacy", ok=ok, detail=detail, route=route.name)

    def _tightness(self, route: Route) -> Iterator[Check]:
        """Where the search proves it: just below sigma the accountant refuses the budget."""
        own = self.certificate
        unproved = isinstance(own.evidence.accountant, Certified | Deterministic) or (
            isinstance(own.evidence.accountant, Exact) and sampled(own.participation)
        )
        if unproved or self.delta > _TELLING_DELTA:
            return
        below = own.sigma / (1.0 + own.evidence.rtol) / (1.0 + 1e-6)
        upper = route.delta(below, self.eps).upper
        if upper <= self.delta:
            yield Check(
                "evidence",
                ok=False,
                detail=(
                    f"sigma is not within rtol {own.evidence.rtol:g} of the smallest one: {below:.10g} also "
                    f"meets the budget (delta <= {upper:.6g})"
                ),
                route=route.name,
            )

    def _achieved(self, route: Route) -> Iterator[Check]:
        """The stated bounds on eps: not below the truth at their upper end, nor above it at their lower."""
        own = self.certificate
        ends = [(own.achieved.upper, "above")] if own.achieved.upper < self.eps else []
        if own.achieved.lower > 0.0:
            ends.append((own.achieved.lower, "below"))
        for eps, side in ends:
            self.progress(f"{self.source}: achieved eps {eps:.6g}")
            bounds = route.delta(own.sigma, eps)
            off = (
                self._missed(route, bounds)
                if side == "above"
                else bounds.upper < self.delta * (1.0 - _RESOLUTION)
            )
            detail = (
                f"stated {side} by {eps:.10g}; delta there in [{bounds.lower:.6g}, {bounds.upper:.6g}], "
                f"claimed {self.delta:.6g}"
            )
            yield Check("evidence", ok=not off, detail=f"achieved eps {detail}", route=route.name)


def _stopped_early(
    run: RunRecord, rng: np.random.Generator | None, progress: Progress, source: str
) -> Iterator[Check]:
    """The claim about the steps executed, where there is one beside the certificate's."""
    try:
        stopped = stopped_certificate(run)
    except (MemoryError, *_UNFIT) as error:
        yield Check("run", ok=False, detail=f"eps of the steps executed could not be recomputed: {error}")
        return
    if stopped is not None:
        yield from _Recomputation(stopped, rng, progress, source, sized=False).run()


def _overlap(one: Bounds, other: Bounds) -> bool:
    return one.lower <= other.upper * (1.0 + _ROUNDING) and other.lower <= one.upper * (1.0 + _ROUNDING)


def _silent(line: str) -> None:
    del line
