"""Accountants of T sampled releases, for examples that are removed or replaced, and for users."""

import abc
import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar

import scipy

from dpmech.engines.accountant import Progress, Solution, too_wide
from dpmech.engines.gaussian import gaussian_delta, gaussian_epsilon, gaussian_sigma
from dpmech.engines.losses.contour import Sketch
from dpmech.engines.losses.convolution import LossMoments
from dpmech.engines.losses.direction import Direction
from dpmech.engines.losses.lattice import Loss
from dpmech.engines.losses.lattice_route import LatticeRoute
from dpmech.engines.losses.release import (
    FixedRelease,
    PoissonRelease,
    ReplacedRelease,
    TruncatedRelease,
    UserRelease,
)
from dpmech.engines.losses.revealed import ComposedAccountant, Revealed, RevealedReplacement
from dpmech.engines.sigma_search import gaussian_scale, secant_root, smallest_sigma
from dpmech.exceptions import NumericalError, UnattainableBudgetError
from dpmech.guards import check_integer
from dpmech.mechanism import Adjacency
from dpmech.numerics import (
    BOUND,
    UNIT,
    Bounds,
    Provenance,
    bisect_boundary,
    next_down,
    next_up,
    outward,
    product_up,
    quotient_down,
    quotient_up,
    register_words,
    rounded_up,
)

# Precision of a Renyi divergence.
_BITS = 128

# Below this delta, subnormal numbers lose accuracy.
_NOTHING = 1e-300
# A delta below this is not resolved: nothing depends on how small it is.
_NEGLIGIBLE = 1e-100
# Smallest start of a search for eps.
_SMALLEST_EPS = 1e-9


def one_step_delta(q: float, multipliers: tuple[float, float], eps: float) -> tuple[float, float]:
    """Lower and upper delta of a single step, from the plain Gaussian mechanism: exact up to rounding.

    REMOVE is q H_a(N(1) || N(0)) with e^a = 1 + (e^eps - 1) / q, and ADD is c H_a(N(0) || N(1)) with
    c = 1 - e^eps (1 - q) and e^a = q e^eps / c, or 0 where c <= 0.

    Args:
        q: the sampling probability, in (0, 1).
        multipliers: sigma / sensitivity, rounded up for the lower bound and down for the upper one.
        eps: >= 0.
    """
    growth = math.expm1(min(eps, 700.0)) / q
    small = eps < 700.0 and growth < math.inf
    a = math.log1p(growth) if small else eps - math.log(q)
    # Elementary functions of the C library have error 4 u (2 units in the last place), all else u; log1p does
    # not increase relative errors: 9 u of a. If not `small`, the remaining terms are below e^-700.
    off = 12.0 * UNIT * (a if small else a + abs(math.log(q)))
    # c = q - (e^eps - 1) (1 - q) cancels where the two are close: 7 u of the product, and u of c.
    possible = eps < 1.0 - math.log1p(-q)
    share = q - math.expm1(eps) * (1.0 - q) if possible else 0.0
    share_off = 8.0 * UNIT * (q + math.expm1(eps)) if possible else 0.0
    found = []
    for end, multiplier in enumerate(multipliers):
        side = -1.0 if end == 0 else 1.0
        value = q * gaussian_delta(multiplier, max(0.0, a - side * off))[end]
        # ADD increases with c at fixed q e^eps.
        part = share + side * share_off
        if part > 0.0:
            exponent = math.log(q) + eps - math.log(part)
            slack = 8.0 * UNIT * (abs(math.log(q)) + eps + abs(math.log(part)))
            value = max(value, part * gaussian_delta(multiplier, max(0.0, exponent - side * slack))[end])
        found.append(outward(value, value, 2.0 * UNIT)[end])
    return (found[0] if found[0] > _NOTHING else 0.0), min(1.0, max(found[1], _NOTHING))


def one_step_epsilon(q: float, multipliers: tuple[float, float], delta: float) -> tuple[float, float]:
    """Lower and upper eps >= 0 of a single step at delta; arguments as for `one_step_delta`.

    Raises:
        NumericalError: if delta is too small for every eps in float64.
    """

    def ends(eps: float) -> tuple[float, float]:
        return one_step_delta(q, multipliers, eps)

    if ends(0.0)[1] <= delta:
        return 0.0, 0.0
    # Sampling can only lower eps, up to rounding.
    high = max(gaussian_epsilon(multipliers[1], delta, safe=True), _SMALLEST_EPS)
    while ends(high)[1] > delta:
        high *= 2.0
        if math.isinf(high):
            raise NumericalError(f"delta={delta!r} is below the resolution of one step")
    lower = bisect_boundary(lambda eps: ends(eps)[0] > delta, 0.0, high, safe=False)
    upper = bisect_boundary(lambda eps: ends(eps)[1] > delta, 0.0, high, safe=True)
    return min(lower, upper), upper


def sampled_divergence(sampling_prob: float, sigma_over_sensitivity: float, order: int) -> float:
    r"""Renyi divergence of one Poisson-sampled Gaussian release, the larger of both directions, rounded up.

    log(1 + sum_{k >= 2} C(a, k) q^k (1-q)^(a-k) (e^(k(k-1) / (2 s^2)) - 1)) / (a - 1): no terms cancel, so
    the error stays relative even if the divergence is tiny.

    Args:
        sampling_prob: q in (0, 1).
        sigma_over_sensitivity: s > 0.
        order: a, an integer >= 2.

    Raises:
        InvalidParameterError: on a bad order.
        NumericalError: if it leaves the range of float64.

    References:
        Mironov, Talwar and Zhang 2019 (arXiv:1908.10530v1), Section 3.3; Theorem 5 for the direction.
    """
    from flint import arb, ctx

    order = check_integer("order", order, minimum=2)  # a Python int: coefficients are unbounded
    with ctx.workprec(_BITS):
        q = arb(sampling_prob)
        odds, halved = q / (1 - q), 1 / (2 * arb(sigma_over_sensitivity) ** 2)
        term, total = order * odds, arb(0)
        for k in range(2, order + 1):
            term *= odds * (order - k + 1) / k
            total += term * (k * (k - 1) * halved).expm1()
        divergence = (total * (1 - q) ** order).log1p() / (order - 1)
        value = next_up(float(divergence.upper()))
    if not (math.isfinite(value) and value > 0.0):
        raise NumericalError(
            f"the Renyi divergence of order {order} leaves float64 at q={sampling_prob!r}, "
            f"sigma / sensitivity {sigma_over_sensitivity!r}"
        )
    return value


if TYPE_CHECKING:
    import dp_accounting

    from dpmech.engines.profiles import PrivacyProfile

register_words({"pld.poisson": "PLD, Poisson q={q}, {steps} steps, both directions"})


# Bounds wider than this (relative in eps, as a change of sigma in delta) raise an error.
_WIDEST = 0.01
# Width of brackets around the first guess, in units of sqrt(rtol), and the maximum number of corrections.
_COARSE, _MOST_CORRECTIONS = 0.15, 8


def saddle_point_sigma(release: PoissonRelease, eps: float, delta: float) -> float:
    """A first guess at sigma: saddle-point delta at the target, searched from the central limit theorem."""
    taken_part = -math.expm1(release.steps * math.log1p(-release.sampling_prob))
    if delta >= taken_part:
        raise UnattainableBudgetError(
            eps,
            delta,
            f"every sigma > 0 meets it, as an example takes part with probability {taken_part:g} only",
        )
    sides = [True]
    if eps < -release.steps * math.log1p(-release.sampling_prob):  # the largest loss in direction ADD
        sides.append(False)

    def excess(log_sigma: float) -> float:
        multiplier = quotient_down(math.exp(log_sigma), release.sensitivity.upper)
        sketches = (Sketch(Loss(release.sampling_prob, multiplier, side), release.steps) for side in sides)
        return max(sketch.line(eps).log_delta for sketch in sketches) - math.log(delta)

    return _near_root(excess, _as_in_the_limit(release, release.sensitivity, eps, delta), 0.05)


def _as_in_the_limit(
    release: PoissonRelease | ReplacedRelease | UserRelease, sensitivity: Bounds, eps: float, delta: float
) -> float:
    """Log of the sigma given by the central limit theorem."""
    mu = 1.0 / gaussian_sigma(eps, delta)
    exponent = math.log1p((mu / release.sampling_prob) ** 2 / release.steps)
    return math.log(sensitivity.upper / math.sqrt(exponent))


def _near_root(excess: Callable[[float], float], guess: float, step: float) -> float:
    """The root, as a sigma, of a decreasing function of log sigma, to about 1e-3."""
    low = high = guess
    while excess(low) < 0.0:
        high, low, step = low, low - step, 2.0 * step
    while excess(high) > 0.0:
        low, high, step = high, high + step, 2.0 * step
    return math.exp(float(scipy.optimize.brentq(excess, low, high, xtol=1e-3)) if low < high else low)


class PoissonAccountant(ComposedAccountant):
    """Both directions by the transform of the privacy loss distribution, along a line in the complex plane.

    Upper and lower bound are rigorous, rounding included. The smoothing that makes the integral finite is
    narrowed until they are as close as requested.
    """

    immediate: ClassVar[bool] = True

    def __init__(self, release: PoissonRelease) -> None:
        self.release = release
        self.sensitivity = release.sensitivity
        self.by = Provenance("pld.poisson", {"q": release.sampling_prob, "steps": release.steps})
        self.guarantee = BOUND
        both = release.sampling_prob, release.sampling_prob
        self.revealed = Revealed(release.steps, both, release.sensitivity, tight=release.tight)
        # Cache of the last bracket: a search ends at its last probe, and its result is checked there.
        self._asked = (math.nan, math.nan, math.nan), (0.0, 1.0, 1.0)

    def resolved_delta(self, sigma: float, eps: float, *, tolerance: float) -> Bounds:
        """Bounds on delta; see the base class."""
        lower, upper, slope = self._bracket(sigma, eps, tolerance)
        allowed = max(tolerance, _WIDEST) * slope
        if upper > _NEGLIGIBLE and not (lower > 0.0 and math.log(upper / lower) <= allowed):
            raise too_wide("delta", sigma, lower, upper, self.method)
        return Bounds(lower if self.release.tight else 0.0, upper, self.guarantee, self.by)

    def start_for_mu(self, mu: float) -> float:
        """The sigma given by the central limit theorem."""
        spread = self.release.sampling_prob * math.sqrt(self.release.steps) / mu
        return self.sensitivity.upper / math.sqrt(math.log1p(spread**-2))

    def renyi(self, sigma: float, order: int) -> float:
        """The divergence of one release times the number of releases."""
        multiplier = quotient_down(sigma, self.sensitivity.upper)
        one = sampled_divergence(self.release.sampling_prob, multiplier, order)
        return rounded_up(Fraction(one) * self.release.steps)

    def dp_event(self, sigma: float) -> "dp_accounting.DpEvent":
        """A composition of sampled releases, with their noise rounded down."""
        import dp_accounting

        noise = dp_accounting.GaussianDpEvent(quotient_down(sigma, self.sensitivity.upper))
        sampled = dp_accounting.PoissonSampledDpEvent(self.release.sampling_prob, noise)
        return dp_accounting.SelfComposedDpEvent(sampled, self.release.steps)

    def profile(self, sigma: float, adjacency: Adjacency, *, rel_error: float) -> "PrivacyProfile":
        """Known without evaluation, independent of rel_error."""
        del rel_error
        return _sampled_profile(self, sigma, adjacency)

    def upper_delta(self, sigma: float, eps: float, *, tolerance: float) -> float:
        """The upper bound, without requirements on the lower one."""
        return self._bracket(sigma, eps, tolerance)[1]

    def _bracket(self, sigma: float, eps: float, tolerance: float) -> tuple[float, float, float]:
        """Lower and upper delta, and a lower bound on how fast log delta changes with log sigma."""
        asked = sigma, eps, tolerance
        if asked != self._asked[0]:
            self._asked = asked, self._found(*asked)
        return self._asked[1]

    def _found(self, sigma: float, eps: float, tolerance: float) -> tuple[float, float, float]:
        if self.release.steps == 1:
            return *one_step_delta(self.release.sampling_prob, self._multipliers(sigma), eps), math.inf
        ranked = sorted(
            ((side.log_ceiling(eps), side) for side in self._directions(sigma)), key=lambda pair: -pair[0]
        )
        (most_of_all, first), (ceiling, second) = ranked
        if math.exp(most_of_all) <= _NEGLIGIBLE:
            return 0.0, max(math.exp(most_of_all), _NOTHING), 1.0
        lower, upper, slope = first.delta(eps, tolerance)
        if math.exp(ceiling) > lower:
            least, most, other = second.delta(eps, tolerance)
            slope = min(slope, other) if most > lower else slope
            lower, upper = max(lower, least), max(upper, most)
        return lower, max(lower, min(upper, math.exp(most_of_all))), slope

    def _multipliers(self, sigma: float) -> tuple[float, float]:
        """Sigma over the sensitivity: rounded up for lower bounds, rounded down for upper ones."""
        return quotient_up(sigma, self.sensitivity.lower), quotient_down(sigma, self.sensitivity.upper)

    def resolved_epsilon(self, sigma: float, delta: float, *, tolerance: float) -> Bounds:
        """Bounds on eps; see the base class."""
        if self.release.steps == 1:
            ends = one_step_epsilon(self.release.sampling_prob, self._multipliers(sigma), delta)
            return Bounds(*ends, self.guarantee, self.by)
        remove, add = self._directions(sigma)
        lower, upper = remove.epsilon(delta, tolerance)
        # If ADD has at most delta at the lower bound, its own eps is not above that bound.
        if add.log_ceiling(lower) > math.log(delta) and add.delta(lower, tolerance)[1] > delta:
            other = add.epsilon(delta, tolerance)
            lower, upper = max(lower, other[0]), max(upper, other[1])
        # Both bounds are valid: this only decides whether they are close enough to be useful.
        if upper - lower > max(tolerance, _WIDEST) * upper + _SMALLEST_EPS:
            raise too_wide("eps", sigma, lower, upper, self.method)
        return Bounds(lower if self.release.tight else 0.0, upper, self.guarantee, self.by)

    def resolved_sigma(self, eps: float, delta: float, *, rtol: float, progress: Progress) -> Solution:
        """Safeguarded secant on the upper bound; see the base class."""
        start = saddle_point_sigma(self.release, eps, delta)
        step = 0.01
        if self.release.steps > 1:
            # Start where the upper bound is safe, with a step to where it is not.
            start, step = self._closer(start, eps, delta, rtol) * (1.0 + 0.25 * rtol), 0.35 * rtol
        return smallest_sigma(self, eps, delta, rtol=rtol, start=start, step=step, progress=progress)

    def _closer(self, start: float, eps: float, delta: float, rtol: float) -> float:
        """A sigma close to where delta is met, from the middle of coarse brackets.

        The error of the middle is quadratic in that of the ends, so that brackets of width sqrt(rtol)
        suffice.
        """
        target, tolerance = gaussian_scale(eps, delta), _COARSE * math.sqrt(rtol)

        def short(log_sigma: float) -> float:
            lower, upper, _ = self._bracket(math.exp(log_sigma), eps, tolerance)
            return gaussian_scale(eps, 0.5 * (lower + upper)) - target

        return math.exp(
            secant_root(short, math.log(start), widest=1.0, last=0.1 * rtol, most=_MOST_CORRECTIONS)
        )

    def _directions(self, sigma: float) -> tuple[Direction, Direction]:
        return Direction(self.release, sigma, remove=True), Direction(self.release, sigma, remove=False)


class _LatticeAccountant(ComposedAccountant):
    """Upper and lower bounds by the losses of `LatticeRoute`, unless a better bound is known.

    Args:
        release: the releases to account for.
        sensitivity: of one release.
    """

    # Expected error of the first guess, in log sigma.
    step: ClassVar[float] = 0.01

    def __init__(
        self, release: ReplacedRelease | UserRelease | TruncatedRelease | FixedRelease, sensitivity: Bounds
    ) -> None:
        self.sensitivity = sensitivity
        self.steps = release.steps
        self.route = LatticeRoute(release)
        self.by = self.route.by
        self.guarantee = BOUND

    @property
    def joined(self) -> Bounds:
        """The sensitivity of one release: all releases together have at least this sensitivity."""
        return self.sensitivity.times_root(self.steps)

    def resolved_sigma(self, eps: float, delta: float, *, rtol: float, progress: Progress) -> Solution:
        """Safeguarded secant on the upper bound; see the base class."""
        start = self.guess(eps, delta)
        return smallest_sigma(self, eps, delta, rtol=rtol, start=start, step=self.step, progress=progress)

    @abc.abstractmethod
    def guess(self, eps: float, delta: float) -> float:
        """A first guess at sigma: saddle-point delta at the target."""

    def upper_delta(self, sigma: float, eps: float, *, tolerance: float) -> float:
        """The upper bound, without requirements on the lower one."""
        return self.route.bracket(sigma, eps, tolerance)[1]


class _TwoSidedAccountant(_LatticeAccountant):
    """Both bounds by losses on lattices, for releases that every example joins by itself."""

    release: ReplacedRelease | UserRelease

    @property
    @abc.abstractmethod
    def never(self) -> float:
        """Log of the probability that the unit takes part in no release."""

    def resolved_delta(self, sigma: float, eps: float, *, tolerance: float) -> Bounds:
        """Bounds on delta; see the base class."""
        return self.route.delta(sigma, eps, tolerance=tolerance)

    def resolved_epsilon(self, sigma: float, delta: float, *, tolerance: float) -> Bounds:
        """Bounds on eps; see the base class.

        Runs without any participation have one law under both datasets, so that delta at eps 0 is at most the
        probability of a participation. The logarithms and products in it have error below 16 u.
        """
        if delta >= -math.expm1(self.never) * (1.0 + 16.0 * UNIT):
            return Bounds(0.0, 0.0, self.guarantee, self.by)
        lower, upper = self.route.epsilon(sigma, delta, tolerance)
        return Bounds(lower if self.release.tight else 0.0, upper, self.guarantee, self.by)

    def _guess(self, eps: float, delta: float, who: str, sides: Sequence[bool]) -> float:
        """A first guess at sigma, for the unit called `who`."""
        own, taken_part = self.release, -math.expm1(self.never)
        if delta >= taken_part:
            raise UnattainableBudgetError(
                eps,
                delta,
                f"every sigma > 0 meets it: {who} takes part with probability {taken_part:g} only",
            )

        def excess(log_sigma: float) -> float:
            multiplier = quotient_down(math.exp(log_sigma), own.sensitivity.upper)
            losses = (own.loss(multiplier, remove=side) for side in sides)
            found = (LossMoments(*loss.sampled(), own.steps).saddle_log_delta(eps) for loss in losses)
            return max(found) - math.log(delta)

        return _near_root(excess, _as_in_the_limit(own, self.sensitivity, eps, delta), 0.1)


class ReplacedAccountant(_TwoSidedAccountant):
    """Releases in which one example is replaced by another one; both directions are the same.

    Args:
        release: the releases to account for.
        sensitivity: of one release to the replacement, twice that to one example.
    """

    immediate: ClassVar[bool] = True

    def __init__(self, release: ReplacedRelease, sensitivity: Bounds) -> None:
        super().__init__(release, sensitivity)
        self.release = release
        joined = release.sampling_prob, release.sampling_prob
        self.revealed = RevealedReplacement(release.steps, joined, release.sensitivity, tight=release.tight)

    @property
    def never(self) -> float:
        """T log(1 - q)."""
        return self.release.steps * math.log1p(-self.release.sampling_prob)

    def guess(self, eps: float, delta: float) -> float:
        """Two gradients of norm 1 cost less than one of norm 2: the search goes down from there."""
        return self._guess(eps, delta, "an example", (True,))

    def profile(self, sigma: float, adjacency: Adjacency, *, rel_error: float) -> "PrivacyProfile":
        """Known without evaluation, independent of rel_error."""
        del rel_error
        return _sampled_profile(self, sigma, adjacency)


def _sampled_profile(
    accountant: PoissonAccountant | ReplacedAccountant, sigma: float, adjacency: Adjacency
) -> "PrivacyProfile":
    from dpmech.engines.profiles import Composition, PrivacyProfile, SampledPart

    own = accountant.release
    part = SampledPart(
        own.sampling_prob,
        quotient_down(sigma, own.sensitivity.upper),
        own.steps,
        own.tight,
        own.sensitivity.relative_gap,
        replaced=isinstance(own, ReplacedRelease),
    )
    return PrivacyProfile(Composition(sampled=(part,)), accountant.guarantee, accountant.by, adjacency)


class UserAccountant(_TwoSidedAccountant):
    """Both directions by privacy loss distributions on lattices, with upper and lower bounds.

    Args:
        release: the releases to account for.
        sensitivity: of one release to a user, m times that to one example.
    """

    release: UserRelease

    def __init__(self, release: UserRelease, sensitivity: Bounds) -> None:
        super().__init__(release, sensitivity)
        self.release = release
        joined = release.sampling_prob, release.sampling_prob
        one, tight = release.sensitivity, release.tight
        self.revealed = Revealed(release.steps, joined, one, release.examples, tight=tight)

    @property
    def never(self) -> float:
        """M T log(1 - q)."""
        own = self.release
        return own.examples * own.steps * math.log1p(-own.sampling_prob)

    def guess(self, eps: float, delta: float) -> float:
        """Examples that join together, all m or none, cost more: the search goes down from there."""
        # The largest loss in direction ADD is -never.
        return self._guess(eps, delta, "a user", (True, False) if eps < -self.never else (True,))


# If the probability of any truncation in the run is below this part of delta, it counts as a failure.
_RARE = 1e-4


@contextlib.contextmanager
def _advised() -> Iterator[None]:
    """Add advice to errors of lattices."""
    try:
        yield
    except NumericalError as error:
        raise NumericalError(
            f"{error}; a full batch loses far more than others do. Try a larger truncated_batch_size (six "
            "standard deviations above the mean size cost nothing) or a smaller sampling_prob"
        ) from error


class TruncatedAccountant(_LatticeAccountant):
    """Upper bounds in both directions by a dominating law; lower bounds by one admissible run.

    Upper bounds treat every step whose batch may be truncated by its largest loss, on lattices. If the
    probability of any truncation in the run is below a ten-thousandth of delta, it is added to the delta of
    Poisson sampling instead. For lower bounds, all other gradients are zero: that is Poisson sampling with
    the probability of being in the batch.

    Args:
        release: the releases to account for.
    """

    def __init__(self, release: TruncatedRelease) -> None:
        super().__init__(release, release.sensitivity)
        self.release = release
        odds, steps = release.truncation, release.steps
        one, tight = release.sensitivity, release.tight
        self.revealed = Revealed(steps, odds.joined, one, tight=tight, poisson=False)
        # Upper bound on the probability that any batch of the run is truncated, at least T tau.
        self._ever = product_up(odds.truncated[1], steps)
        self._alone = PoissonAccountant(
            PoissonRelease(odds.joined[0], steps, release.sensitivity, release.tight)
        )
        self._whole = (
            PoissonAccountant(PoissonRelease(odds.sampling_prob, steps, release.sensitivity))
            if odds.sampling_prob < 1.0 and self._ever <= _RARE
            else None
        )

    def resolved_delta(self, sigma: float, eps: float, *, tolerance: float) -> Bounds:
        """Bounds on delta; see the base class."""
        upper = self.bounded_delta(sigma, eps, tolerance=tolerance).upper
        lower = self._alone.delta(sigma, eps, tolerance=tolerance).lower
        return Bounds(min(lower, upper), upper, self.guarantee, self.by)

    def bounded_delta(self, sigma: float, eps: float, *, tolerance: float) -> Bounds:
        """Bounds for the dominating law; if truncation is rare, the lower one is that of Poisson sampling."""
        upper = self._rarely_truncated(sigma, eps, tolerance)
        if upper is None or self._whole is None:
            with _advised():
                return self.route.delta(sigma, eps, tolerance=tolerance)
        plain = self._whole.delta(sigma, eps, tolerance=tolerance)
        return Bounds(plain.lower, upper, self.guarantee, self.by)

    def upper_delta(self, sigma: float, eps: float, *, tolerance: float) -> float:
        """The upper bound, without requirements on the lower one."""
        upper = self._rarely_truncated(sigma, eps, tolerance)
        if upper is not None:
            return upper
        with _advised():
            return super().upper_delta(sigma, eps, tolerance=tolerance)

    def _rarely_truncated(self, sigma: float, eps: float, tolerance: float) -> float | None:
        """Upper bound on delta if truncation is a rare failure; otherwise None."""
        if self._whole is None:
            return None
        upper = self._whole.upper_delta(sigma, eps, tolerance=tolerance)
        return min(1.0, next_up(upper + self._ever)) if self._ever <= _RARE * upper else None

    def resolved_epsilon(self, sigma: float, delta: float, *, tolerance: float) -> Bounds:
        """Bounds on eps; see the base class."""
        lower = self._alone.epsilon(sigma, delta, tolerance=tolerance).lower
        if self._whole is not None and self._ever <= _RARE * delta:
            upper = self._whole.epsilon(sigma, next_down(delta - self._ever), tolerance=tolerance).upper
            return Bounds(min(lower, upper), upper, self.guarantee, self.by)
        with _advised():
            upper = self.route.epsilon(sigma, delta, tolerance)[1]
        return Bounds(min(lower, upper), upper, self.guarantee, self.by)

    def guess(self, eps: float, delta: float) -> float:
        """The guess for the run of the lower bound."""
        return saddle_point_sigma(self._alone.release, eps, delta)


class FixedAccountant(_LatticeAccountant):
    """Upper bounds by a law that dominates every step, on lattices; lower bounds by one admissible run.

    For lower bounds, the gradients of all other examples and of the replaced one are opposite to that of the
    replacement: that is Poisson sampling with q = B / n of an example of twice the norm. A single step has
    the curve of that pair, so that both bounds agree.

    Args:
        release: the releases to account for.
    """

    step = 0.05

    def __init__(self, release: FixedRelease) -> None:
        super().__init__(release, release.sensitivity)
        self.release = release
        one, tight = release.sensitivity, release.tight
        self.revealed = Revealed(release.steps, release.draw.joined, one, tight=tight, poisson=False)
        least, most = (
            PoissonAccountant(PoissonRelease(q, release.steps, release.sensitivity, release.tight))
            for q in release.draw.joined
        )
        self._attained = least
        self._one_step = most if release.steps == 1 else None

    def resolved_delta(self, sigma: float, eps: float, *, tolerance: float) -> Bounds:
        """Bounds on delta; see the base class."""
        upper = self.upper_delta(sigma, eps, tolerance=tolerance)
        lower = self._attained.delta(sigma, eps, tolerance=tolerance).lower
        return Bounds(min(lower, upper), upper, self.guarantee, self.by)

    def upper_delta(self, sigma: float, eps: float, *, tolerance: float) -> float:
        """The upper bound, without requirements on the lower one."""
        if self._one_step is not None:
            return self._one_step.upper_delta(sigma, eps, tolerance=tolerance)
        return super().upper_delta(sigma, eps, tolerance=tolerance)

    def bounded_delta(self, sigma: float, eps: float, *, tolerance: float) -> Bounds:
        """Bounds for the dominating law."""
        if self._one_step is not None:
            return self.resolved_delta(sigma, eps, tolerance=tolerance)
        return self.route.delta(sigma, eps, tolerance=tolerance)

    def resolved_epsilon(self, sigma: float, delta: float, *, tolerance: float) -> Bounds:
        """Bounds on eps; see the base class."""
        lower = self._attained.epsilon(sigma, delta, tolerance=tolerance).lower
        if self._one_step is not None:
            upper = self._one_step.epsilon(sigma, delta, tolerance=tolerance).upper
        else:
            upper = self.route.epsilon(sigma, delta, tolerance)[1]
        return Bounds(min(lower, upper), upper, self.guarantee, self.by)

    def guess(self, eps: float, delta: float) -> float:
        """The guess for the run of the lower bound."""
        return saddle_point_sigma(self._attained.release, eps, delta)
