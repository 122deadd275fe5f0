"""A list of releases as one mechanism: eps and delta by profiles, or by moments and claims."""

import dataclasses
import math

from dpmech.engines import Divergence, PrivacyProfile, RenyiAccountant, RenyiComposition, SampledPart
from dpmech.exceptions import UnattainableBudgetError
from dpmech.numerics import BOUND, UNIT, Bounds, Guarantee, Provenance, next_up, sum_up, up

__all__ = ["Whole"]

_BASIC = Provenance("claims.basic")
_MOMENTS = Provenance("rdp.composed")
# Sixteen roundings: the formulas below have at most 12, a logarithm or an exponential counting as 4.
_UP = 1.0 + 16.0 * UNIT


@dataclasses.dataclass(frozen=True)
class Whole:
    """A list as one mechanism, and what its numbers rest on.

    Attributes:
        profile: of all of it.
        claims: (eps, delta) of what entered by its claim.
        betas: the sampling errors that these were relieved of, each draw's once: without it they hold.
        draws: how many.
        sure: how sure the certificates are that something was taken from.
    """

    profile: PrivacyProfile
    claims: tuple[tuple[float, float], ...]
    betas: float
    draws: int
    sure: Guarantee

    def epsilon(self, delta: float, *, renyi: bool) -> Bounds:
        """Bounds on eps at delta; errors as for `Ledger.epsilon`."""
        spent = self._spent
        if spent > delta:
            raise UnattainableBudgetError(
                math.inf, delta, f"the (eps, delta) claims alone fail with probability {up(spent)}"
            )
        basic = sum_up(eps for eps, _ in self.claims)
        if self._only_claims and (renyi or len(self.claims) == 1):
            return Bounds(0.0, basic, BOUND, _BASIC)
        if spent == delta and not self._only_claims:
            raise UnattainableBudgetError(math.inf, delta, "the (eps, delta) claims use up all of delta")
        if renyi:
            left = (delta - spent) / (1.0 - spent) / _UP if self.claims else delta
            return Bounds(0.0, next_up(self._moments.epsilon(left) + basic), BOUND, _MOMENTS)
        if not self._only_claims:
            return self.profile.epsilon(delta)
        try:
            found = self.profile.epsilon(delta)
        except UnattainableBudgetError:
            # A lattice moves what every claim just allows beyond delta.
            return Bounds(0.0, basic, BOUND, _BASIC)
        return found if found.upper < basic else Bounds(0.0, basic, BOUND, _BASIC)

    def delta(self, eps: float, *, renyi: bool) -> Bounds:
        """Bounds on delta at eps >= 0."""
        basic = sum_up(claim for claim, _ in self.claims)
        spent = self._spent
        if self._only_claims and eps >= basic:
            return Bounds(0.0, spent, BOUND, _BASIC)
        if renyi:
            rest = 1.0 if eps < basic or self._only_claims else self._moments.delta(eps - basic)
            return Bounds(0.0, min(1.0, (spent + (1.0 - spent) * rest) * _UP), BOUND, _MOMENTS)
        found = self.profile.delta(eps)
        if self._only_claims:
            # No loss is above their sum: just below it that says more than a lattice.
            near = (spent - (1.0 - spent) * math.expm1(eps - basic)) * _UP
            found = dataclasses.replace(found, upper=min(found.upper, near))
        return found

    def labelled(self, bounds: Bounds) -> Bounds:
        """With what it rests on; what certificates leave to chance has no lower end."""
        by = bounds.by
        if self.betas > 0.0:
            draws = Provenance("ledger.draws", {"draws": self.draws, "beta": self.betas})
            by = dataclasses.replace(by, rests_on=(*by.rests_on, draws))
        lower = 0.0 if self.sure.error > 0.0 else min(bounds.lower, bounds.upper)
        return dataclasses.replace(bounds, lower=lower, guarantee=bounds.guarantee & self.sure, by=by)

    @property
    def _only_claims(self) -> bool:
        parts = self.profile.parts
        alone = sum(times for _, times in parts.curves) == len(self.claims)
        return alone and not parts.sampled and parts.gaussian[1] == 0.0

    @property
    def _spent(self) -> float:
        """The probability that some claim fails: 1 - prod (1 - delta), rounded up."""
        if not self.claims:
            return 0.0
        if len(self.claims) == 1:
            return self.claims[0][1]
        return -math.expm1(math.fsum(math.log1p(-delta) for _, delta in self.claims)) * _UP

    @property
    def _moments(self) -> RenyiComposition:
        """Of everything but the claims."""
        square, sampled = self.profile.parts.gaussian[1], self.profile.parts.sampled
        divergences = [_divergence(part) for part in sampled]
        if square > 0.0:
            divergences.append(lambda order: next_up(next_up(0.5 * order * square)))
        return RenyiComposition(divergences)


def _divergence(part: SampledPart) -> Divergence:
    release = part.release
    return RenyiAccountant(release.sensitivity, release.sampling_prob, release.steps).divergence(1.0)
