r"""How a private selection in a ledger is checked: its price by one shift of the claim, in closed form.

One run is (eps, delta)-private, so that its curve is at most h(a) = delta + (1 - delta) (e^eps - a)_+ / (1 +
e^eps) for a >= 1. With g = (1 - gamma) / gamma and the c >= 1 where g h(c) = c - 1, the best of a truncated
negative binomial number of runs is (eps + (1 + shape) log c, E K delta)-private; of a Poisson number, (eps +
mu h(1), mu delta)-private. The first route has the same theorem without these steps, by hulls, and may not be
above it but for what these leave open; nor can it be below what one run costs.
"""

import math
from collections.abc import Callable, Iterator

from dpmech.accounting import Composition, Curve, NegativeBinomialRuns, PoissonRuns, PrivacyProfile, RunCount
from dpmech.composition import Ledger
from dpmech.numerics import BOUND, Provenance, up
from dpmech.verifying.report import Check

__all__ = ["one_shift", "tuning_checks"]

# What the hulls of the first route leave open beside a curve with a kink: factors of delta and of eps.
_DELTA, _EPS = 1.05, 1.1
_HALVINGS = 200


def tuning_checks(ledger: Ledger) -> Iterator[Check]:
    """One check for every private selection in a ledger."""
    for release in ledger.releases:
        if release.runs is None:
            continue
        budget, guarantee = release.certificate.budget, release.certificate.guarantee
        claim = guarantee.mechanism_delta(budget.delta)
        eps, delta = one_shift(budget.eps, claim, release.runs)
        parts = Composition(curves=((Curve.of_claim(budget.eps, claim), 1),))
        alone = PrivacyProfile(parts, BOUND, Provenance("claims.basic"))
        stated = f"{release.name!r}, the best of {release.runs!r}, by the claim of one run alone"
        if delta * _DELTA >= 1.0:
            yield Check("tuning", ok=False, detail=f"{stated}: nothing is private")
            continue
        found = alone.private_selection(release.runs).epsilon(delta * _DELTA).upper
        ok = min(eps, budget.eps) * (1.0 - 1e-6) <= found <= eps * _EPS + 1e-3
        detail = f"{stated}: eps {up(eps)} at delta {up(delta)}; the first route has {up(found)}"
        yield Check("tuning", ok=ok, detail=detail)


def one_shift(eps: float, delta: float, runs: RunCount) -> tuple[float, float]:
    """The (eps, delta) of the best of a number of runs that are (eps, delta)-private each, in closed form."""

    def h(a: float) -> float:
        return delta + (1.0 - delta) * max(0.0, math.exp(eps) - a) / (1.0 + math.exp(eps))

    if isinstance(runs, PoissonRuns):
        return eps + runs.mean_runs * h(1.0), min(1.0, runs.mean_runs * delta)
    if not isinstance(runs, NegativeBinomialRuns):
        raise TypeError(f"no closed form for {runs!r}")
    gain = (1.0 - runs.gamma) / runs.gamma
    ratio = _crossing(lambda a: gain * h(a) - (a - 1.0), 1.0 + gain)
    return eps + (1.0 + runs.shape) * math.log(ratio), min(1.0, runs.mean * delta)


def _crossing(falls: Callable[[float], float], high: float) -> float:
    """Where a function that falls on [1, high] passes 0, from above."""
    low = 1.0
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if falls(middle) > 0.0 else (low, middle)
    return high
