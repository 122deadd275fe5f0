"""Checks that the labels of certificates and run records follow from their numbers and accountants."""

import dataclasses
from collections.abc import Iterator, Mapping

from dpmech.certificates import Certificate, CheckpointMatch, ProfileNodes, RunRecord, Uniqueness
from dpmech.engines import Accountant, Certified, Deterministic, Exact, Method, Rdp
from dpmech.exceptions import DpmechError, InvalidParameterError, WorkLimitError
from dpmech.mechanism import PrivacyBudget
from dpmech.numerics import Bounds, Fact, Guarantee, Provenance, between, counted
from dpmech.schemes import accountant_for, effective_method
from dpmech.verifying.report import Check


def rigour_problem(guarantee: Guarantee) -> str:
    """Why a claim is not rigorous; empty if it is.

    A rigorous claim has no sampling error outside its delta: an error inside delta is part of a theorem about
    the whole procedure. An error outside delta states how often the claim is wrong, and only if nobody
    selected the random numbers.

    Args:
        guarantee: the guarantee of the claim.
    """
    if not guarantee.rigorous:
        return "the claim is based on an estimate, a rigorous one was asked for"
    if guarantee.outside_error == 0.0:
        return ""
    return (
        f"the claim holds with probability 1 - beta only, beta = {guarantee.error!r}, outside delta; where "
        "rigour is asked for, nothing is sampled, or beta is inside delta: calibrate again, without rng"
    )


def rigour_checks(certificate: Certificate) -> tuple[Check, ...]:
    """One failed check if the certificate is not rigorous, otherwise none."""
    problem = rigour_problem(certificate.guarantee)
    return (Check("rigour", ok=False, detail=problem),) if problem else ()


# The range that calibrations accept.
_RTOL = (1e-6, 0.5)
# Largest eps for which sampled accountants draw no samples, and the basis they then state.
_NOTHING, _UNAMPLIFIED = 1e-4, Provenance("bins.unamplified")
# Routes of estimates, which state what contributed to them.
_FAMILIES = ("bins", "chains", "allocation", "users")
_ESTIMATES = tuple(f"{family}.importance" for family in _FAMILIES)
_SAMPLED = tuple(f"{family}.certified" for family in _FAMILIES)
# The route of `Exact` for independent bins in older versions, before it had the law of their sum.
_FORMERLY = {"bins.independent": "bins.program"}
# Methods that compute the nodes of a profile; sampling is not listed, since it has a beta.
_FOUND_BY: dict[str, Method] = {
    "bins.program": Deterministic(),
    "bins.moments": Rdp(),
    "bins.independent": Exact(),
    "bins.fresh": Exact(),
}
_UNFIT = (DpmechError, ArithmeticError, MemoryError, ValueError)
# Relative tolerance for stated numbers: platforms round differently.
_ROUNDING = 1e-9
# Rounding of a run's statements about itself, which no guarantee depends on.
_SHARES = 1e-9


def label_checks(certificate: Certificate) -> Iterator[Check]:
    """One failed check for every invalid label."""
    try:
        if problem := _of_accountant(certificate):
            yield Check("evidence", ok=False, detail=problem)
            return
        accountant = accountant_for(certificate.mechanism, certificate.evidence.accountant)
        problems = (
            _of_sensitivity(certificate),
            _of_guarantee(certificate, accountant),
            _of_randomness(certificate),
            _of_routes(certificate, accountant),
            _of_tolerance(certificate),
            _of_achieved(certificate, accountant),
            _of_nodes(certificate),
        )
        for detail in filter(None, problems):
            yield Check("evidence", ok=False, detail=detail)
    except WorkLimitError:
        raise
    except _UNFIT as error:
        yield Check("evidence", ok=False, detail=f"its labels could not be compared: {error}")


def sensitivity_check(certificate: Certificate) -> Check:
    """Compare the stated bounds, which no guarantee depends on, with those derived from the mechanism."""
    stated = certificate.sensitivity
    try:
        due = accountant_for(certificate.mechanism, certificate.evidence.accountant).sensitivity
    except WorkLimitError:
        raise
    except _UNFIT as error:
        return Check("sensitivity", ok=False, detail=f"it could not be formed: {error}")
    ok = all(
        abs(one - other) <= _ROUNDING * abs(other)
        for one, other in ((stated.lower, due.lower), (stated.upper, due.upper))
    )
    detail = f"stated {between(stated.lower, stated.upper, 10)}, it is {between(due.lower, due.upper, 10)}"
    return Check("sensitivity", ok=ok, detail=detail)


def nodes_method(nodes: ProfileNodes) -> Method:
    """The method that nodes are stated to come from.

    Raises:
        InvalidParameterError: if they are stated to come from something else.
    """
    for source in (nodes.by, *nodes.by.rests_on):
        if source.route in _SAMPLED:
            beta = source.facts.get("beta")
            return Certified(float(beta) if isinstance(beta, int | float) else None)
        if source.route in _FOUND_BY:
            return _FOUND_BY[source.route]
    raise InvalidParameterError("by", str(nodes.by), "what finds nodes")


def _of_accountant(own: Certificate) -> str:
    used, samples = own.evidence.accountant, own.evidence.samples
    if effective_method(own.participation, used) != used:
        return f"{used!r} does not apply to {own.participation!r}"
    return "" if samples is None or used.error > 0.0 else f"{used!r} draws no samples, not {samples}"


def _of_sensitivity(own: Certificate) -> str:
    stated = own.sensitivity
    due = Bounds.bracket(stated.lower, stated.upper, stated.by).guarantee
    return "" if stated.guarantee == due else f"the sensitivity is {due!r}, not {stated.guarantee!r}"


def _of_guarantee(own: Certificate, accountant: Accountant) -> str:
    used = own.evidence.accountant
    if own.participation.random:
        # Whether beta is inside delta is checked separately.
        given = used.guarantee(inside=own.guarantee.inside_delta) or accountant.guarantee
    else:
        given = used.of_one_release(own.sensitivity.guarantee)
    # In float64, an exact formula may give only an interval.
    due = Bounds.derived(own.achieved.lower, own.achieved.upper, given, own.achieved.by).guarantee
    return "" if own.guarantee == due else f"{used!r} gives {due!r}, not {own.guarantee!r}"


def _of_randomness(own: Certificate) -> str:
    """Random numbers can be part of the mechanism only if nobody chose them and they are identified."""
    if own.evidence.randomness is not None and not own.evidence.accountant.keeps_randomness:
        return f"{own.evidence.accountant!r} keeps no random numbers"
    if not own.guarantee.inside_delta:
        return ""
    if own.evidence.rng_supplied:
        return "beta cannot be inside delta, as the caller supplied the random numbers"
    if own.evidence.randomness is None:
        return "beta cannot be inside delta, as the random numbers have no name"
    if own.guarantee.error >= own.budget.delta:
        return f"beta {own.guarantee.error!r} cannot be inside delta {own.budget.delta!r}"
    return ""


def _of_routes(own: Certificate, accountant: Accountant) -> str:
    """The stated provenance of the numbers is that of this accountant and this sensitivity."""
    due, stated = own.mechanism.sensitivity.by, own.sensitivity.by
    if stated != due:
        return f"the sensitivity is that of {due}, not of {stated}"
    due, stated = accountant.by, own.achieved.by
    facts = {name: fact for name, fact in stated.facts.items() if name in due.facts}
    more = {name: fact for name, fact in stated.facts.items() if name not in due.facts}
    # For a negligible privacy loss no samples are drawn.
    unsampled = due.route in _ESTIMATES and own.achieved.upper <= _NOTHING
    bases = [due.rests_on, (_UNAMPLIFIED,)] if unsampled else [due.rests_on]
    routes = (due.route, _FORMERLY.get(due.route, due.route))
    same = stated.route in routes and facts == due.facts and stated.rests_on in bases
    return "" if same and _of_a_run(stated.route, more) else f"achieved eps is that of {due}, not of {stated}"


def _of_a_run(route: str, facts: Mapping[str, Fact]) -> bool:
    """Whether a run may have recorded this fact about itself; another run may record another one.

    Sampling states the direction that decides, and how much each part of its mixture contributed; the program
    states decay and excess of its cyclic dominating pair (circulant Gram matrix). Stating nothing is always
    valid.
    """
    if not facts:
        return True
    if route in _ESTIMATES:
        shares = [fact for name, fact in facts.items() if name != "direction"]
        return (
            facts.get("direction") in ("REMOVE", "ADD")
            and all(isinstance(share, int | float) and share >= 0.0 for share in shares)
            and sum(map(float, shares)) <= 1.0 + _SHARES
        )
    if route == "bins.program":
        return (
            facts.keys() == {"decay", "excess"}
            and all(isinstance(fact, int | float) for fact in facts.values())
            and 0.0 <= float(facts["decay"]) < 1.0
            and float(facts["excess"]) > -_SHARES
        )
    return False


def _of_tolerance(own: Certificate) -> str:
    rtol = own.evidence.rtol
    return "" if _RTOL[0] <= rtol <= _RTOL[1] else f"rtol {rtol!r} is outside of {_RTOL}"


def _of_achieved(own: Certificate, accountant: Accountant) -> str:
    upper, eps = own.achieved.upper, own.budget.eps
    fits = upper <= eps if accountant.evaluates else upper == eps
    return "" if fits else f"achieved eps {upper!r}, budget eps {eps!r}"


def _of_nodes(own: Certificate) -> str:
    """Nodes have the guarantee of the accountant that they are stated to come from, which must apply here."""
    if own.nodes is None:
        return ""
    stated, by = own.nodes.guarantee, own.nodes.by
    times = [count for _, count in own.nodes.curves]
    epochs = list(accountant_for(own.mechanism, None).curve_counts)
    if times != epochs:
        return f"the nodes of the profile are of {epochs} epochs, not of {times}"
    count = len(own.nodes.curves[0][0].remove.eps)
    try:
        due, source = accountant_for(own.mechanism, nodes_method(own.nodes)).nodes_label(count)
    except DpmechError as error:
        return f"nodes of the profile are said to come from {by}: {error}"
    if by != source:
        return f"nodes of the profile come from {source}, not from {by}"
    return "" if stated == due else f"nodes of the profile are {due!r}, not {stated!r}"


def run_checks(record: RunRecord, *, rigorous: bool) -> Iterator[Check]:
    """Steps and participations (without which there is no record), and what the run states about itself."""
    own = record.certificate
    seen = "kept secret"
    if record.most_participations is not None:
        seen = f"at most {record.most_participations} of one example"
        if record.smallest_separation is not None:
            seen += f", {counted(record.smallest_separation, 'step')} apart or more"
    detail = f"{record.steps} of {own.strategy.n} certified steps; participations: {seen}"
    yield Check("run", ok=True, detail=f"{detail}; certified: {own.participation!r}")
    seeded = [name for name, used in (("batches", record.sampler), ("noise", record.noise)) if used.seeded]
    if seeded:
        detail = f"the caller seeded the {' and the '.join(seeded)}: they are as secret as that seed"
    else:
        detail = "keys from the operating system"
    made = f"batches from {record.sampler.generator_words}, noise from {record.noise.generator_words}"
    yield Check("randomness", ok=not (rigorous and seeded), detail=f"{detail}; {made}")
    checked = {
        Uniqueness.FLATTENED: "each under one index of tensors, arrays or plain sequences",
        Uniqueness.EXAMPLE_IDS: "each once, by the ids that the dataset gives them",
        Uniqueness.NOT_CHECKED: "the dataset was not checked for duplicates",
    }
    yield Check("examples", ok=True, detail=checked[record.uniqueness])
    if record.noise_check is not None:
        yield Check("noise", ok=not record.noise_check.findings, detail=str(record.noise_check))
    if record.checkpoint_history is None:
        yield Check("checkpoints", ok=True, detail="none saved or loaded")
        return
    accepted = record.checkpoint_history.of_kind(CheckpointMatch.ACCEPTED)
    found = [f"the same {name}" for name in record.checkpoint_history.of_kind(CheckpointMatch.SAME)]
    found += [
        f"no whole fingerprint of the {name}"
        for name in record.checkpoint_history.of_kind(CheckpointMatch.UNKNOWN)
    ]
    found += [f"another {name}, for which the caller took the responsibility" for name in accepted]
    if record.checkpoint_history.settings == CheckpointMatch.UNKNOWN:
        found.append("settings of later steps not compared")
    if not record.checkpoint_history.same_rounding:
        found.append("repeated steps may have been rounded differently")
    if record.checkpoint_history.loads:
        found.append(f"{counted(record.checkpoint_history.loads, 'load')} of a saved state")
    yield Check("checkpoints", ok=not (rigorous and accepted), detail=", ".join(found))


def stopped_certificate(record: RunRecord) -> Certificate | None:
    """The claim about the executed steps if it is stronger than the certificate's, otherwise None."""
    own = record.certificate
    if record.steps == 0 or record.executed == own.achieved:
        return None
    executed = own.mechanism.prefix(record.steps)
    accountant = accountant_for(executed, own.evidence.accountant)
    return dataclasses.replace(
        own,
        mechanism=executed,
        budget=PrivacyBudget(record.executed.upper, own.budget.delta),
        sensitivity=accountant.sensitivity,
        achieved=_of_the_mechanism(record.executed),
    )


def _of_the_mechanism(executed: Bounds) -> Bounds:
    """The bounds with the provenance of their accountant, without the requirement on top of it."""
    by = executed.by
    if by.route == "release.executed" and len(by.rests_on) == 1:
        return dataclasses.replace(executed, by=by.rests_on[0])
    return executed
