"""How a ledger is checked: every certificate in it, every price, and the limits that the budget stands for.

Prices and limits are computed again by other routes than those which charged them: from the sensitivity that
the certificate states (and that is recomputed with it), by integrals, by searches in place of closed forms.
"""

import dataclasses
import json
import math
from collections.abc import Callable, Iterator
from fractions import Fraction

import numpy as np
import scipy

from dpmech.certificates import Certificate
from dpmech.composition import ClaimCurrency, GdpCurrency, Ledger, Mode, Release, RenyiCurrency, parsed
from dpmech.exceptions import CertificateError, DpmechError, NumericalError, WorkLimitError
from dpmech.verifying.counts_sums import counts_checks, spend_on_counts
from dpmech.verifying.integrals import gaussian_integral
from dpmech.verifying.limits import spend_on_claim
from dpmech.verifying.report import Check, Verification
from dpmech.verifying.rigour import rigour_problem
from dpmech.verifying.tunings import tuning_checks

__all__ = ["renyi_integral", "verify_ledger"]

# What the other routes leave open, relative: integrals and searches, which are no bounds. It is a comparison,
# and no number that is handed out rests on it.
_AGREEMENT = 1e-6
_NODES = 20_001
_REACH = 40.0


def verify_ledger(
    text: str, source: str, verify_one: Callable[[Certificate], Verification], *, rigorous: bool = False
) -> Verification:
    """Check the text of a ledger file.

    Args:
        text: of the file.
        source: its name.
        verify_one: verifies one certificate.
        rigorous: whether what all entries together leave to chance must be as little as one may.
    """
    try:
        document = parsed(text)
        for entry in document["releases"]:
            # Nothing of the size of a claim is formed before it is known to fit.
            spend_on_claim(Certificate.read(json.dumps(entry["certificate"]))[0])
        for entry in document.get("counts", ()):
            spend_on_counts(Fraction(entry["sigma"]), entry["sensitivity"], entry["releases"])
        ledger = Ledger.from_json(text)
    except CertificateError as error:
        return Verification(source, None, (Check("file", ok=False, detail=str(error)),))
    checks = [Check("file", ok=True, detail="schema, seal and derived entries hold")]
    done: list[Certificate] = []
    for release in ledger.releases:
        if release.certificate not in done:
            done.append(release.certificate)
            checks += [_named(release, check) for check in verify_one(release.certificate).checks]
    try:
        checks += _total_checks(ledger)
        checks += tuning_checks(ledger)
        checks += counts_checks(ledger)
        if rigorous:
            checks += _rigour_checks(ledger)
    except WorkLimitError:
        raise
    except (DpmechError, ArithmeticError, ValueError) as error:
        checks.append(Check("total", ok=False, detail=f"could not be recomputed: {error}"))
    return Verification(source, None, tuple(checks), ledger=ledger)


def renyi_integral(sampling_prob: float, multiplier: float, order: int) -> float:
    """Renyi divergence of one Poisson-sampled Gaussian release (REMOVE), by integration of its definition."""
    q, s = sampling_prob, multiplier
    # Beyond these ends the integrand is below e^-800 of its largest value.
    x = np.linspace(-_REACH * s, order + _REACH * s, _NODES)
    loss = np.logaddexp(math.log1p(-q), math.log(q) + (x - 0.5) / s**2)
    log_density = -0.5 * (x / s) ** 2 - math.log(s * math.sqrt(2.0 * math.pi))
    step = float(x[1] - x[0])
    if step > 0.5 * s:
        raise NumericalError(f"the integral at order {order} needs finer steps at multiplier {s!r}")
    if order * float(np.max(np.abs(loss[np.abs(x) < _REACH]))) < 1.0:
        # Close to 1 the moment is summed as what it is above 1.
        excess = np.exp(log_density) * (np.expm1(order * loss) - order * np.expm1(loss))
        return math.log1p(step * float(np.sum(excess))) / (order - 1)
    exponent = log_density + order * loss
    return (float(scipy.special.logsumexp(exponent)) + math.log(step)) / (order - 1)


def _named(release: Release, check: Check) -> Check:
    return dataclasses.replace(check, detail=f"{release.name!r}: {check.detail}")


def _total_checks(ledger: Ledger) -> Iterator[Check]:
    if ledger.mode is Mode.ANNOUNCED:
        state = "closed" if ledger.closed else "still open: it holds if no result came before its last entry"
        entries = len(ledger.releases) + len(ledger.counts)
        yield Check("mode", ok=True, detail=f"announced list of {entries}, {state}")
        return
    yield Check("mode", ok=True, detail=f"chosen on the way within {ledger.budget!r} in {ledger.currency!r}")
    for release in ledger.releases:
        found = _price(ledger, release)
        if found is None:
            continue
        value = found[1]
        ok = abs(value - release.price[0]) <= _AGREEMENT * value
        detail = f"{release.name!r} was charged {release.price[0]!r}, recomputed {value!r}"
        if not ok:
            yield Check("price", ok=False, detail=detail)
            return
    yield Check("price", ok=True, detail=f"{len(ledger.releases)} prices, and their sums within the limits")
    yield _limit_check(ledger)


def _rigour_checks(ledger: Ledger) -> Iterator[Check]:
    """The total is held to what one certificate is held to."""
    problem = rigour_problem(ledger.guarantee)
    if problem:
        yield Check("rigour", ok=False, detail=f"the total of {len(ledger.releases)} releases: {problem}")


def _price(ledger: Ledger, release: Release) -> tuple[str, float] | None:
    """The first component of a price by another route; None where there is no other."""
    own, currency = release.certificate, ledger.currency
    if isinstance(currency, ClaimCurrency):
        return "the claim", own.budget.eps if currency.slack == 0.0 else 0.5 * own.budget.eps**2
    order = currency.order if isinstance(currency, RenyiCurrency) else None
    ratio = own.sensitivity.upper / own.sigma
    certain, q = own.participation.certain, own.participation.release_prob
    if not certain and q is None:
        return None
    # Where nothing is sampled the sensitivity is that of all releases together.
    steps = 1 if certain else own.participation.releases(own.strategy.n)
    if not certain and q is not None and order is not None:
        return "integral of the moment", steps * renyi_integral(q, 1.0 / ratio, order)
    squared = steps * ratio**2
    return "sensitivity of the certificate", squared if order is None else 0.5 * order * squared


def _limit_check(ledger: Ledger) -> Check:
    """Do the limits stand for no more than the budget?"""
    if ledger.filter is None:
        raise NumericalError("a ledger without a budget has no limits")
    budget, currency, limits = ledger.filter.budget, ledger.filter.currency, ledger.filter.limits
    allowed = budget.delta
    if isinstance(currency, GdpCurrency):
        delta = gaussian_integral(1.0 / math.sqrt(limits[0]), budget.eps)
    elif isinstance(currency, RenyiCurrency) and currency.order is not None:
        delta = math.exp(_log_delta(float(currency.order), limits[0], budget.eps))
    elif isinstance(currency, ClaimCurrency) and currency.slack > 0.0:
        allowed = budget.delta - limits[1]

        def log_delta(log_excess: float) -> float:
            order = 1.0 + math.exp(log_excess)
            return _log_delta(order, order * limits[0], budget.eps)

        grid = min(np.linspace(-4.0, 11.0, 301), key=log_delta)
        best = scipy.optimize.minimize_scalar(log_delta, bounds=(grid - 0.05, grid + 0.05), method="bounded")
        delta = math.exp(float(best.fun))
    else:
        delta = limits[1] if limits[0] <= budget.eps else 1.0
    ok = delta <= allowed * (1.0 + _AGREEMENT)
    detail = f"limits {limits} give delta {delta!r} at eps {budget.eps!r}, of the {allowed!r} there"
    return Check("limit", ok=ok, detail=detail)


def _log_delta(order: float, divergence: float, eps: float) -> float:
    """(a - 1) D + log sup_r (r - e^eps) r^-a, the supremum by a search over log r - eps."""

    def loss(gap: float) -> float:
        return -(math.log(-math.expm1(-gap)) + (1.0 - order) * (eps + gap))

    found = scipy.optimize.minimize_scalar(
        lambda log_gap: loss(math.exp(log_gap)),
        bounds=(-20.0, 8.0),
        method="bounded",
        options={"xatol": 1e-9},
    )
    return (order - 1.0) * divergence - float(found.fun)
