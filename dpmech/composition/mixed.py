r"""Releases of different kinds in one composition: Gaussian, Poisson-sampled, and (eps, delta) claims.

Gaussian releases alone are one Gaussian release, exactly. Sampled ones go through dp-accounting's privacy
loss distributions (connect the dots: an upper bound at any lattice step). A release of which only (eps,
delta) is known is dominated by one that fails with probability delta and is randomised response at eps
otherwise (Kairouz, Oh and Viswanath 2015), so failures add up apart, and pure parts join the distribution.
"""

import dataclasses
import math
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from dpmech.accounting import (
    Loss,
    LossMoments,
    PoissonAccountant,
    PoissonRelease,
    gaussian_delta,
    gaussian_epsilon,
)
from dpmech.exceptions import NumericalError, UnattainableBudgetError
from dpmech.numerics import (
    BOUND,
    UNIT,
    Bounds,
    Guarantee,
    Ladder,
    Provenance,
    next_down,
    next_up,
    product_down,
    quotient_down,
    quotient_up,
    root_down,
    root_up,
    rounded_down,
    rounded_up,
    sum_up,
    up,
)

if TYPE_CHECKING:  # the package takes half a second to import, and few need it
    from dp_accounting.pld import privacy_loss_distribution as pld
    from dp_accounting.rdp import RdpAccountant

__all__ = ["MixedComposition", "SampledPart"]

# Fractional orders matter where eps is large, and are sums that may not converge: dp-accounting leaves such
# an order out, which is safe. Integer ones take time in proportion to the order.
_ORDERS = [*np.linspace(1.1, 1.9, 9), *range(2, 65), *(int(order) for order in np.geomspace(70, 1024, 20))]
# What dp-accounting's transforms, which are not tilted, may hide in delta. It states no bound; measured
# against dpmech's own lattices it is 3e-14 over 1000 steps and a few 1e-12 over 100,000: this is about 30
# times that.
_NOISE_PER_STEP = 1e-15
_NOISE_SHARE = 1e-2
_CONVERGED = 1e-3
# Lattice steps as shares of the eps to be resolved.
_SHARES = Ladder((1e-3, 2e-4, 4e-5, 1e-5))
_TOLERANCE = 4e-4
# Sixteen roundings: formulas below have at most 12, a logarithm or an exponential of the C library counting
# as 4 (2 units in the last place), a sum by `fsum` as 1.
_UP = 1.0 + 16.0 * UNIT
_BASIC = Provenance("claims.basic")
_MOMENTS = Provenance("rdp.composed")
_DISTRIBUTIONS = Provenance("pld.composed")


@dataclasses.dataclass(frozen=True)
class SampledPart:
    """Poisson-sampled Gaussian releases of one kind.

    Args:
        sampling_prob: q in (0, 1).
        noise_multiplier: > 0.
        steps: how many, >= 1.
        tight: whether every one of them reaches this multiplier.
        gap: by how much, relative, the multiplier may be smaller than that of some of them.
    """

    sampling_prob: float
    noise_multiplier: float
    steps: int
    tight: bool
    gap: float = 0.0

    def and_more(self, other: "SampledPart") -> "SampledPart":
        """The steps of two parts that agree in all else."""
        return dataclasses.replace(self, steps=self.steps + other.steps, gap=max(self.gap, other.gap))


@dataclasses.dataclass(frozen=True)
class MixedComposition:
    """What several independent mechanisms on the same people add up to.

    Args:
        gaussian: (sensitivity / sigma)^2 summed over the unsampled releases, lower and upper value.
        sampled: the Poisson-sampled ones, no two of the same kind.
        claims: (eps, delta) of the others.
        betas: the probability that some draw of a calibration went wrong, added once: without it, all claims
            hold for the noise scales at hand, and compose as what they say.
    """

    gaussian: tuple[float, float] = (0.0, 0.0)
    sampled: tuple[SampledPart, ...] = ()
    claims: tuple[tuple[float, float], ...] = ()
    betas: float = 0.0

    def epsilon(self, delta: float, *, renyi: bool = False) -> Bounds:
        """Bounds on eps at delta; two-sided only for releases of a single kind.

        Args:
            delta: in (0, 1).
            renyi: whether to compose moments in place of distributions.

        Raises:
            UnattainableBudgetError: if the claims fail with a larger probability than delta.
            NumericalError: if delta is below the resolution of float64 distributions.
        """
        if self.betas > 0.0:
            rest = rounded_down(Fraction(delta) - Fraction(self.betas))
            if rest <= 0.0:
                raise UnattainableBudgetError(
                    math.inf, delta, f"the calibrations alone may go wrong with probability {up(self.betas)}"
                )
            return dataclasses.replace(self, betas=0.0).epsilon(rest, renyi=renyi)
        left = self._left(delta)
        basic = sum_up(eps for eps, _ in self.claims)
        if self._only_claims and (renyi or len(self.claims) == 1 or not self._resolved(left)):
            return Bounds(0.0, basic, BOUND, _BASIC)
        if left == 0.0:
            raise UnattainableBudgetError(math.inf, delta, "the (eps, delta) claims use up all of delta")
        if renyi:
            eps = next_up(float(self._moments().get_epsilon(left)) + basic)
            return Bounds(0.0, _finite(eps, _MOMENTS), BOUND, _MOMENTS)
        if not self.claims:
            own = self._single_kind()
            if own is not None:
                return own.epsilon(1.0, delta, tolerance=_TOLERANCE)
            if not self.sampled:
                lower, upper = self._multipliers
                ends = gaussian_epsilon(lower, delta, safe=False), gaussian_epsilon(upper, delta, safe=True)
                return Bounds.derived(*ends, self._gaussian_guarantee, Provenance("gaussian.composed"))
        noise = self._noise(left)
        scale = basic + self._pure_scale(left)
        best = _SHARES.settle(
            lambda share: float(self._distribution(share * scale).get_epsilon_for_delta(left - noise)),
            goal=math.log1p(_CONVERGED),
        ).upper
        if self._only_claims:
            best = min(best, basic)
        return Bounds(0.0, _finite(best, _DISTRIBUTIONS), BOUND, _DISTRIBUTIONS)

    def delta(self, eps: float, *, renyi: bool = False) -> Bounds:
        """Bounds on delta at eps >= 0; arguments and errors as for `epsilon`."""
        if self.betas > 0.0:
            found = dataclasses.replace(self, betas=0.0).delta(eps, renyi=renyi)
            upper = min(1.0, rounded_up(Fraction(found.upper) + Fraction(self.betas)))
            return dataclasses.replace(found, upper=upper)
        basic = sum_up(claim for claim, _ in self.claims)
        spent = self._spent()
        if self._only_claims and eps >= basic:
            return Bounds(0.0, spent, BOUND, _BASIC)
        if renyi:
            rest = 1.0 if eps < basic else float(self._moments().get_delta(eps - basic))
            return self._with_claims(rest, _MOMENTS)
        if not self.claims:
            own = self._single_kind()
            if own is not None:
                return own.delta(1.0, eps, tolerance=_TOLERANCE)
            if not self.sampled:
                lower, upper = self._multipliers
                ends = gaussian_delta(lower, eps)[0], gaussian_delta(upper, eps)[1]
                return Bounds.derived(*ends, self._gaussian_guarantee, Provenance("gaussian.composed"))
        scale = max(eps, 0.1)
        best = _SHARES.settle(
            lambda share: float(self._distribution(share * scale).get_delta_for_epsilon(eps)),
            goal=math.log1p(_CONVERGED),
        ).upper
        noise = self._noise(max(best, self._spent()))
        return self._with_claims(best + noise, _DISTRIBUTIONS)

    @property
    def _multipliers(self) -> tuple[float, float]:
        """Of the unsampled releases as one: rounded up for lower ends, and down for upper ones."""
        least, most = (root(value) for root, value in zip((root_down, root_up), self.gaussian, strict=True))
        return quotient_up(1.0, least) if least > 0.0 else math.inf, quotient_down(1.0, most)

    @property
    def _gaussian_guarantee(self) -> Guarantee:
        return Bounds.bracket(*self.gaussian, Provenance("gaussian.composed")).guarantee

    @property
    def _only_claims(self) -> bool:
        return not self.sampled and self.gaussian[1] == 0.0

    def _single_kind(self) -> PoissonAccountant | None:
        """Where all releases are sampled alike they are more steps of one run, which dpmech brackets."""
        if self.gaussian[1] > 0.0 or len(self.sampled) != 1:
            return None
        part = self.sampled[0]
        by = Provenance("sensitivity.of_multiplier")
        # The multiplier is rounded down: what it is rounded from is at most the float above.
        bounds = Bounds.bracket(
            product_down(quotient_down(1.0, next_up(part.noise_multiplier)), next_down(1.0 - part.gap)),
            quotient_up(1.0, part.noise_multiplier),
            by,
        )
        return PoissonAccountant(PoissonRelease(part.sampling_prob, part.steps, bounds, tight=part.tight))

    def _spent(self) -> float:
        """The probability that some claim fails: 1 - prod (1 - delta), rounded up."""
        if not self.claims:
            return 0.0
        if len(self.claims) == 1:
            return self.claims[0][1]
        return -math.expm1(math.fsum(math.log1p(-delta) for _, delta in self.claims)) * _UP

    def _left(self, delta: float) -> float:
        """The delta that is left to the pure parts, rounded down."""
        spent = self._spent()
        if spent > delta:
            raise UnattainableBudgetError(
                math.inf, delta, f"the (eps, delta) claims alone fail with probability {up(spent)}"
            )
        return (delta - spent) / (1.0 - spent) / _UP if self.claims else delta

    def _with_claims(self, rest: float, by: Provenance) -> Bounds:
        spent = self._spent()
        value = min(1.0, (spent + (1.0 - spent) * min(1.0, rest)) * _UP)
        return Bounds(0.0, _finite(value, by), BOUND, by)

    @property
    def _rounding(self) -> float:
        """What rounding may hide in delta."""
        return _NOISE_PER_STEP * (sum(part.steps for part in self.sampled) + len(self.claims) + 1)

    def _resolved(self, delta: float) -> bool:
        return self._rounding <= _NOISE_SHARE * delta

    def _noise(self, delta: float) -> float:
        """The rounding, where it is small beside delta."""
        if not self._resolved(delta):
            raise NumericalError(
                f"delta={delta!r} is below the resolution of a PLD composition of so many steps; use dm.Rdp()"
            )
        return self._rounding

    def _pure_scale(self, delta: float) -> float:
        """An eps of the right size for the releases that are no claims, to choose a lattice by."""
        share = delta / (len(self.sampled) + 1)
        total = 0.0
        if self.gaussian[1] > 0.0:
            total += gaussian_epsilon(self._multipliers[1], share, safe=True)
        for part in self.sampled:
            loss = Loss(part.sampling_prob, part.noise_multiplier, remove=True)
            total += LossMoments(*loss.sampled(), part.steps).chernoff_eps(math.log(share))
        return total

    def _moments(self) -> "RdpAccountant":
        from dp_accounting import dp_event
        from dp_accounting.privacy_accountant import NeighboringRelation
        from dp_accounting.rdp import RdpAccountant

        accountant = RdpAccountant(_ORDERS, NeighboringRelation.ADD_OR_REMOVE_ONE)
        if self.gaussian[1] > 0.0:
            accountant.compose(dp_event.GaussianDpEvent(self._multipliers[1]))
        for part in self.sampled:
            release = dp_event.GaussianDpEvent(part.noise_multiplier)
            accountant.compose(dp_event.PoissonSampledDpEvent(part.sampling_prob, release), part.steps)
        return accountant

    def _distribution(self, step: float) -> "pld.PrivacyLossDistribution":
        from dp_accounting.pld import common as pld_common
        from dp_accounting.pld import privacy_loss_distribution as pld

        composed = pld.identity(value_discretization_interval=step)
        if self.gaussian[1] > 0.0:
            composed = composed.compose(
                pld.from_gaussian_mechanism(self._multipliers[1], value_discretization_interval=step)
            )
        for part in self.sampled:
            one = pld.from_gaussian_mechanism(
                part.noise_multiplier,
                value_discretization_interval=step,
                sampling_prob=part.sampling_prob,
            )
            composed = composed.compose(one.self_compose(part.steps))
        for eps, _ in self.claims:
            pure = pld_common.DifferentialPrivacyParameters(eps, 0.0)
            composed = composed.compose(pld.from_privacy_parameters(pure, value_discretization_interval=step))
        return composed


def _finite(value: float, by: Provenance) -> float:
    if not math.isfinite(value) or value < 0.0:
        raise NumericalError(f"{by} returned {value!r}")
    return value
