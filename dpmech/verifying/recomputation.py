"""One certificate's claim, computed anew by second routes."""

import math
from collections.abc import Generator, Iterator

import numpy as np

from dpmech.accounting import (
    Certified,
    Deterministic,
    Exact,
    Progress,
    gaussian_scale,
)
from dpmech.certificates import Certificate
from dpmech.exceptions import DpmechError, WorkLimitError
from dpmech.mechanism import sensitivity
from dpmech.numerics import Bounds, Provenance, between, typed, up
from dpmech.verifying.chain_checks import ratio_check
from dpmech.verifying.clip_checks import clip_checks
from dpmech.verifying.labels import by_allocation, label_checks
from dpmech.verifying.own_draws import own_draw, own_draw_check
from dpmech.verifying.privacy_routes import (
    Route,
    certified_sensitivity,
    repeated_routes,
    second_routes,
)
from dpmech.verifying.profile_checks import profile_checks
from dpmech.verifying.report import Check, OwnDraw
from dpmech.verifying.sensitivity_routes import second_bracket

__all__ = ["Recomputation"]

# What a claim may differ from its recomputation by, relative: platforms round differently. Nothing that is
# handed out rests on it; a stated number that is too small by no more than this is let through.
_ROUNDING = 1e-9
# What the integrals leave open, relative in delta.
_RESOLUTION = 1e-6
# By how much delta may fall short at a stated lower eps, where a law of its own gives it.
_OF_LOWER = 1e-4
# An interval whose ends are further apart than this says nothing about a claim inside it.
_RESOLVED = 0.5
# Above this delta a change of sigma hardly changes it, and nothing can be said about tightness.
_TELLING_DELTA = 0.9
_UNFIT = (DpmechError, ArithmeticError, ValueError)


class Recomputation:
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
        self.draw: OwnDraw | None = None
        self.eps, self.delta = certificate.budget.eps, certificate.budget.delta

    def run(self) -> Iterator[Check]:
        """Every check; the dear ones are left out once a cheap one has failed."""
        try:
            self.progress(f"{self.source}: sensitivity")
            check, bracket = self._sensitivity()
            yield check
            if not check.ok:
                return
            yield from clip_checks(self.certificate)
            problems = list(label_checks(self.certificate))
            yield from problems
            if problems:
                return
            failed = False
            for check in self._privacy(bracket):
                failed |= not check.ok
                yield check
            if not failed:
                yield from self._profile()
        except WorkLimitError:
            raise
        except (MemoryError, *_UNFIT) as error:
            yield Check("privacy", ok=False, detail=f"could not be recomputed: {error}")

    def _sensitivity(self) -> tuple[Check, Bounds]:
        claimed = self.certificate.sensitivity
        mechanism = self.certificate.mechanism
        found = certified_sensitivity(second_bracket(mechanism), mechanism)
        loose = found.upper > claimed.upper * (1.0 + _ROUNDING)
        if (loose or found.lower < claimed.lower * (1.0 - _ROUNDING)) and _overlap(found, claimed):
            # At this size no second route is tight: the first one again, inside the second's bracket.
            again = certified_sensitivity(sensitivity(mechanism), mechanism)
            by = Provenance("second.agreeing", rests_on=(again.by, found.by))
            found = again.meet(found, by)
        held = (
            _overlap(found, claimed)
            and found.upper <= claimed.upper * (1.0 + _ROUNDING)
            and found.lower >= claimed.lower * (1.0 - _ROUNDING)
        )
        detail = (
            f"claimed {between(claimed.lower, claimed.upper, 10)}, "
            f"recomputed {between(found.lower, found.upper, 10)}"
        )
        return Check("sensitivity", ok=held, detail=detail, route=str(found.by)), found

    def _privacy(self, bracket: Bounds) -> Iterator[Check]:
        """Delta by other routes, by the claim's own again, and the stated eps by the best of the others."""
        if isinstance(self.certificate.evidence.accountant, Certified):
            yield from self._own_draw(bracket)
            return
        taken: list[Route] = []
        offered = second_routes(self.certificate, bracket, self.rng)
        for route in offered:
            bounds, check = self._attempt(route, met=any(one.decides for one in taken))
            if bounds is not None:
                if not taken:
                    self.margin = self._margin(route, bounds)
                taken.append(route)
            yield check
            if not check.ok:
                return
        repeated = yield from self._again()
        # Samples, the only second route under an allocation, may be out of reach.
        sampled = bool(offered) and by_allocation(self.certificate.participation)
        if not taken and not (repeated and sampled):
            yield Check("privacy", ok=False, detail="no second route confirms the claim")
        if taken:
            yield from self._achieved(taken[0])
        if repeated and not any(route.decides for route in taken):
            yield from self._unconfirmed(repeated, lower=not taken)

    def _profile(self) -> Iterator[Check]:
        """The nodes that came with the claim, where it holds."""
        if self.certificate.nodes is not None:
            self.progress(f"{self.source}: nodes of the profile")
        yield from profile_checks(self.certificate, self.rng)

    def _own_draw(self, bracket: Bounds) -> Iterator[Check]:
        """Of a certified sample: what new draws prove, whoever chose the ones before."""
        own, name = self.certificate, "draws of its own"
        self.progress(f"{self.source}: {name}")
        self.draw = own_draw(own, self.rng)
        found = self.draw.judgement
        likely = found.delta if math.isnan(found.estimate) else max(found.estimate, 1e-300)
        self.margin = self._relative_margin(likely)
        yield own_draw_check(self.draw)
        if found.holds and own.participation.rest_law is not None:
            # The draws are new ones, by the code that made those of the claim.
            yield ratio_check(own, self.rng)
            for route in second_routes(own, bracket, self.rng):
                yield self._attempt(route, met=False)[1]
        if found.holds and own.achieved.lower > 0.0:
            (again,) = repeated_routes(own, self.rng)
            yield from self._achieved(again)

    def _attempt(self, route: Route, *, met: bool) -> tuple[Bounds | None, Check]:
        """Delta by one route, which may be unable to say anything.

        Args:
            route: which.
            met: whether one that decides has met the claim. An interval that is wide and holds the claim is
                then no objection: it is what the route cannot resolve, as a package near 1e-10.
        """
        self.progress(f"{self.source}: {route.name}")
        try:
            bounds = route.delta(self.certificate.sigma, self.eps)
        except WorkLimitError:
            raise
        except _UNFIT as error:
            return None, Check("privacy", ok=True, detail=f"route not taken: {error}", route=route.name)
        missed = self._missed(route, bounds)
        if missed and met and bounds.lower <= self.delta and bounds.lower < _RESOLVED * bounds.upper:
            detail = f"route too coarse here: delta in {between(bounds.lower, bounds.upper)}"
            return None, Check("privacy", ok=True, detail=detail, route=route.name)
        return bounds, self._line(route, bounds, ok=not missed)

    def _again(self) -> Generator[Check, None, Route | None]:
        """The guarantee anew, until a route meets the claim; returns that one."""
        routes = repeated_routes(self.certificate, self.rng)
        for route in routes:
            self.progress(f"{self.source}: {route.name}")
            bounds = route.delta(self.certificate.sigma, self.eps)
            held = bounds.upper <= self.delta * (1.0 + _ROUNDING)
            if held or route is routes[-1]:
                yield self._line(route, bounds, ok=held)
            if held:
                if self.sized:
                    yield from self._tightness(route)
                return route
        return None

    def _margin(self, route: Route, bounds: Bounds) -> float:
        # The middle of a confidence interval says more about the margin than its end.
        return self._relative_margin(
            bounds.upper if route.decides else math.sqrt(bounds.lower * bounds.upper)
        )

    def _relative_margin(self, likely: float) -> float:
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
            f"delta at eps {typed(self.eps)} and sigma {typed(self.certificate.sigma)} in "
            f"{between(bounds.lower, bounds.upper)} {sign} the claimed {typed(self.delta)}"
        )
        return Check("privacy", ok=ok, detail=detail, route=route.name)

    def _tightness(self, route: Route) -> Iterator[Check]:
        """Where the search proves it: just below sigma the accountant refuses the budget."""
        own = self.certificate
        unproved = isinstance(own.evidence.accountant, Deterministic) or (
            isinstance(own.evidence.accountant, Exact) and not own.participation.certain
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
                    f"sigma is not within rtol {typed(own.evidence.rtol)} of the smallest one: "
                    f"{up(below, 10)} also meets the budget (delta <= {up(upper)})"
                ),
                route=route.name,
            )

    def _unconfirmed(self, route: Route, *, lower: bool) -> Iterator[Check]:
        """What is stated of eps where no other route decides: the guarantee anew has to give it.

        Args:
            route: that gives the guarantee.
            lower: whether no other route says anything about the lower end either.
        """
        own = self.certificate
        if own.achieved.upper < self.eps:
            delta = route.delta(own.sigma, own.achieved.upper).upper
            ok = delta <= self.delta * (1.0 + _RESOLUTION)
            detail = f"achieved eps {typed(own.achieved.upper)}; delta there at most {up(delta)}"
            yield Check("evidence", ok=ok, detail=f"{detail}, claimed {typed(self.delta)}", route=route.name)
        if lower and own.achieved.lower > 0.0:
            detail = f"no other route confirms that eps is at least {typed(own.achieved.lower)}"
            yield Check("evidence", ok=False, detail=detail)

    def _achieved(self, route: Route) -> Iterator[Check]:
        """The stated bounds on eps: not below the truth at their upper end, nor above it at their lower."""
        own = self.certificate
        ends = [(own.achieved.upper, "above")] if own.achieved.upper < self.eps else []
        if own.achieved.lower > 0.0:
            ends.append((own.achieved.lower, "below"))
        for eps, side in ends:
            self.progress(f"{self.source}: achieved eps {typed(eps)}")
            bounds = route.delta(own.sigma, eps)
            if side == "above":
                off = self._missed(route, bounds)
            elif route.apart:
                off = bounds.lower < self.delta * (1.0 - _OF_LOWER)
            else:
                off = bounds.upper < self.delta * (1.0 - _RESOLUTION)
            detail = (
                f"stated {side} by {typed(eps)}; delta there in {between(bounds.lower, bounds.upper)}, "
                f"claimed {typed(self.delta)}"
            )
            yield Check("evidence", ok=not off, detail=f"achieved eps {detail}", route=route.name)


def _overlap(one: Bounds, other: Bounds) -> bool:
    return one.lower <= other.upper * (1.0 + _ROUNDING) and other.lower <= one.upper * (1.0 + _ROUNDING)
