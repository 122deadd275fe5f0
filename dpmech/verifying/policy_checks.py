"""One check for every rule of a policy."""

import dataclasses
import datetime
import math
from collections.abc import Callable, Iterator
from decimal import Decimal

from dpmech.certificates import Certificate, Policy
from dpmech.exceptions import DpmechError, WorkLimitError
from dpmech.mechanism import Adjacency, Unit
from dpmech.numerics import BOUND, Guarantee, counted, short, typed, up
from dpmech.schemes import scheme_of
from dpmech.verifying.report import Check, Verification

# Relative error of a size that is a product or quotient of floats; most plausible number of examples.
_SPELLED, _MOST = 1e-9, 1e15
# How far the signer's clock may be ahead.
_AHEAD = datetime.timedelta(hours=1)
_DAY = datetime.timedelta(days=1)


def policy_checks(
    policy: Policy,
    found: Verification,
    *,
    decide_total: Callable[..., Check] | None = None,
    now: datetime.datetime | None = None,
) -> Iterator[Check]:
    """One check for every rule of the policy, for a file that could be read.

    Args:
        policy: the rules.
        found: the verification, with its signature.
        decide_total: called with the name of a check, eps and delta; checks with the checker whether a ledger
            meets them.
        now: a timezone-aware time; None for the current time.
    """
    try:
        subject = _subject(found, policy)
    except WorkLimitError:
        raise
    except (DpmechError, ArithmeticError, ValueError) as error:
        ledger, most = found.ledger, policy.max_delta
        stated = 0.0 if ledger is None else sum(one.certificate.budget.delta for one in ledger.releases)
        if most is not None and stated > most:
            detail = f"the deltas of the releases add up to {up(stated)}, at most {typed(most)} is allowed"
            yield _check("max_delta", f"{detail}, and there is no total eps at this delta", ok=False)
            return
        yield Check("policy", ok=False, detail=f"the total of the ledger could not be computed: {error}")
        return
    if subject is None:
        return
    non_adaptive = found.ledger is not None and found.ledger.budget is None
    if (
        non_adaptive
        and decide_total is not None
        and policy.max_eps is not None
        and subject.eps <= policy.max_eps
    ):
        # The total computed here is not a verdict of the checker.
        yield decide_total("policy max_eps", eps=policy.max_eps, delta=subject.delta)
        policy = dataclasses.replace(policy, max_eps=None)
    for rule in (_eps, _delta, _delta_of_size, _guarantee, _adjacency, _units):
        check = rule(policy, subject)
        if check is not None:
            yield check
    if policy.require_cryptographic_generator:
        yield _generators(found)
    if policy.require_decided:
        left = "; ".join(found.stated_open)
        yield _check("require_decided", left or "no stated bound was NOT CHECKED", ok=not left)
    if policy.max_age_days is not None:
        time = datetime.datetime.now(datetime.UTC) if now is None else now
        yield _age(policy.max_age_days, found, time)


@dataclasses.dataclass(frozen=True)
class _Subject:
    """What the rules apply to; `basis` states what the eps was computed from, where that is not all."""

    eps: float
    delta: float
    guarantee: Guarantee
    adjacency: Adjacency
    certificates: tuple[Certificate, ...]
    units: set[Unit]
    basis: str = ""


def _subject(found: Verification, policy: Policy) -> _Subject | None:
    """The claim of a certificate or the total of a ledger; None if nothing could be read."""
    ledger, own, basis = found.ledger, found.certificate, ""
    if ledger is not None:
        inside = tuple(release.certificate for release in ledger.releases)
        sure = ledger.guarantee
        if ledger.budget is not None:
            eps, delta = ledger.budget.eps, ledger.budget.delta
        else:
            delta = ledger.usual_delta if policy.max_delta is None else policy.max_delta
            # No sampling: profiles that would take work could only lower it.
            total = ledger.epsilon(delta, profiles=False)
            eps, sure = total.upper, total.guarantee
            if ledger.entries > 1 and ledger.waiting:
                releases = counted(len(ledger.waiting), "release")
                basis = f" ({releases} by their claims: no profile is stored for them)"
        units = {one.unit for one in inside} | {one.counts.unit for one in ledger.counts}
        units |= {one.mechanism.unit for one in ledger.mechanisms}
        return _Subject(eps, delta, sure, ledger.adjacency, inside, units, basis)
    if own is None:
        return None
    # Of a loose claim nothing is exact, whatever its file says.
    sure = own.guarantee & BOUND if found.loose else own.guarantee
    return _Subject(own.budget.eps, own.budget.delta, sure, own.adjacency, (own,), {own.unit})


def _check(name: str, detail: str, *, ok: bool) -> Check:
    return Check(f"policy {name}", ok=ok, detail=detail)


def _eps(policy: Policy, subject: _Subject) -> Check | None:
    most = policy.max_eps
    if most is None:
        return None
    detail = f"eps {short(subject.eps)}{subject.basis}, at most {typed(most)} is allowed"
    return _check("max_eps", detail, ok=subject.eps <= most)


def _delta(policy: Policy, subject: _Subject) -> Check | None:
    most = policy.max_delta
    if most is None:
        return None
    detail = f"delta {typed(subject.delta)}, at most {typed(most)} is allowed"
    return _check("max_delta", detail, ok=subject.delta <= most)


def _delta_of_size(policy: Policy, subject: _Subject) -> Check | None:
    most, name = policy.max_delta_times_dataset_size, "max_delta_times_dataset_size"
    if most is None:
        return None
    sizes, known = [], policy.dataset_size is not None
    for own in subject.certificates:
        size, problem = implied_size(own)
        # A given size replaces one that is unknown, not one that is impossible.
        if problem and (size is None or not (known or own.dataset_size is not None)):
            return _check(name, problem, ok=False)
        sizes += [float(one) for one in (size, own.dataset_size) if one is not None]
    if policy.dataset_size is not None:
        sizes.append(float(policy.dataset_size))
    if not sizes:
        detail = "the number of examples is not known: the policy has to say dataset_size"
        return _check(name, detail, ok=False)
    size = max(sizes)
    # Decimal, as typed: the float of 1e-5 is slightly larger.
    product = Decimal(repr(subject.delta)) * Decimal(repr(size))
    detail = (
        f"delta times {typed(size)} examples is {short(float(product))}, at most {typed(most)} is allowed"
    )
    return _check(name, detail, ok=product <= Decimal(repr(most)))


def implied_size(own: Certificate) -> tuple[float | None, str]:
    """The number of examples implied by the expected batch size, and what is wrong with it.

    If there is neither a number nor a problem, nothing implies the number of examples.
    """
    size, participation = own.expected_batch_size, own.participation
    scheme = scheme_of(participation)
    stated = scheme.batch_rule(participation, own.strategy.n).dataset_size
    if stated is not None:
        return float(stated), ""
    found = None if size is None else scheme.dataset_size_of(participation, size)
    if size is None or found is None:
        return None, ""
    implied, integer = found
    says = f"expected batch size {typed(size)} under {participation!r} stands for {typed(implied)} examples"
    if not 1.0 - _SPELLED <= implied <= _MOST:
        return None, says
    whole = float(math.ceil(implied * (1.0 - _SPELLED)))
    if integer and whole > implied * (1.0 + _SPELLED):
        return whole, f"{says}, which is no integer: the policy has to say dataset_size"
    return whole, ""


def _guarantee(policy: Policy, subject: _Subject) -> Check | None:
    forbidden = policy.forbidden_guarantees
    if not forbidden:
        return None
    names = ", ".join(kind.name.lower() for kind in forbidden)
    detail = f"the guarantee is {subject.guarantee}, forbidden is {names}"
    return _check("forbidden_guarantees", detail, ok=subject.guarantee.kind not in forbidden)


def _adjacency(policy: Policy, subject: _Subject) -> Check | None:
    allowed = policy.allowed_adjacencies
    if allowed is None:
        return None
    names = ", ".join(one.value for one in allowed) or "none"
    detail = f"adjacency {subject.adjacency.value}, allowed is {names}"
    return _check("allowed_adjacencies", detail, ok=subject.adjacency in allowed)


def _units(policy: Policy, subject: _Subject) -> Check | None:
    allowed = policy.allowed_units
    if allowed is None:
        return None
    names = ", ".join(one.value for one in allowed) or "none"
    units = ", ".join(sorted(one.value for one in subject.units)) or "none"
    return _check("allowed_units", f"hides one {units}, allowed is {names}", ok=subject.units <= set(allowed))


def _generators(found: Verification) -> Check:
    name, run = "require_cryptographic_generator", found.run
    if run is None:
        return _check(name, "applies to run records only", ok=True)
    # If participation is not random, batches provide no privacy.
    used = {"noise": run.noise} | ({"batches": run.sampler} if run.certificate.participation.random else {})
    detail = ", ".join(f"{what} from {one.generator_words}" for what, one in used.items())
    return _check(name, detail, ok=all(one.cryptographic for one in used.values()))


def _age(most: float, found: Verification, now: datetime.datetime) -> Check:
    if not found.signed:
        return _check("max_age_days", "not signed by a trusted key, so that it has no date", ok=False)
    newest = max(one.issued_on for one in found.signed)
    age = now - newest
    detail = f"issued on {newest:%Y-%m-%d}, {typed(most)} days ago at most are allowed"
    return _check("max_age_days", detail, ok=age >= -_AHEAD and age / _DAY <= most)
