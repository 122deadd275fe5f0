"""Delta of compositions by the lattices of `dpmech.checker`: an oracle apart from accounting."""

from flint import arb, ctx

from dpmech.checker.losses import compose, lattice_range, law_above, law_below, reverse
from dpmech.checker.pairs import Truncation, fixed_size_curve, truncated_curve, user_curve
from dpmech.checker.strategies import PRECISION

__all__ = ["fixed_size_delta", "joined_prob", "truncated_delta", "users_delta"]

_ALLOWANCE = 1e-14
_LOSSES = 4000


def _between(above, below, steps, eps, losses):
    """A lower and an upper bound on the larger direction."""
    ends = []
    for upper, lower in ((above, below), (reverse(above), reverse(below))):
        ratio = arb(eps).exp()
        span = lattice_range(upper, _ALLOWANCE / steps)
        spacing = (span[1] - span[0]) / losses
        high = compose(law_above(upper, spacing, span), steps, _ALLOWANCE).delta(ratio)
        low = law_below(lower, spacing, span)
        least = compose(low, steps, _ALLOWANCE).delta(ratio) if low is not None else arb(0)
        ends.append((float(least.lower()), float(high.upper())))
    return max(low for low, _ in ends), max(high for _, high in ends)


def users_delta(q, examples, sigma, steps, eps, losses=_LOSSES):
    """(lower, upper) of users with several examples, each sampled with q."""
    with ctx.workprec(PRECISION):
        above, below = user_curve(arb(q), 1 / arb(sigma), examples, 0.0)
        return _between(above, below, steps, eps, losses)


def truncated_delta(q, most, size, sigma, steps, eps, losses=_LOSSES):
    """(lower, upper) of the pair of batches that are cut down to `most` of `size` examples."""
    with ctx.workprec(PRECISION):
        curve = truncated_curve(arb(q), 1 / arb(sigma), Truncation(arb(q), most, size))
        return _between(curve, curve, steps, eps, losses)


def fixed_size_delta(batch, size, sigma, steps, eps, losses=_LOSSES):
    """(lower, upper) of the pair of batches of one size, at noise `sigma` over twice the clip norm."""
    with ctx.workprec(PRECISION):
        curve = fixed_size_curve(arb(batch) / size, 1 / (2 * arb(sigma)))
        return _between(curve, curve, steps, eps, losses)


def joined_prob(q, most, size):
    """How likely an example is in a batch that is cut."""
    with ctx.workprec(PRECISION):
        return float(Truncation(arb(q), most, size).joined)
