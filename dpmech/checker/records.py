"""Certificates with all their entries, and run records.

Whether a run followed its claim cannot be seen from a file; statements that no run can make true are refused.
"""

import contextlib
import dataclasses
import json
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from flint import ctx

from .claims import COEFFICIENTS, Claim, claim_of
from .confidence import DIRECTIONS, Answer, Work
from .decide import FAILURE, PARTICIPATIONS, UNDECIDED, Independent, Kind, Shape, Verdict, decide, precise
from .documents import BadDocument, entries, floats, shown
from .strategies import LARGEST_N, PRECISION, NotChecked

_RUN: dict[str, Any] = {
    "steps": int, "executed": Any, "stopped_by_plan": bool, "smallest_separation": int | None,
    "most_participations": int | None, "processes": int, "sampler": dict, "noise": dict, "uniqueness": str,
    "checkpoint_history": dict | None, "noise_check": dict,
}  # fmt: skip
_SECRET = "Poisson", "CyclicPoisson", "FixedSizeBatches"
_STATEMENTS = (
    "whether the run followed the claim: its steps, participations, random numbers, processes and "
    "checkpoints are statements of the trainer"
)


@dataclasses.dataclass(frozen=True)
class Certified:
    """A certificate with its verdict."""

    claim: Claim | None  # the claim that was decided; None if it is beyond the limits
    shape: Shape | None  # what its mechanism is compared with; None if no theorem here covers it
    verdict: Verdict  # verdict on the claim and on the nodes of its profile
    profile: dict[str, list[tuple[float, float]]]  # (eps, upper end of delta) of its nodes, by direction


class Certifier:
    """Decides certificates, each claim once, within `seconds` a direction, and for the nodes of a profile."""

    def __init__(self, seconds: float, rng: np.random.Generator) -> None:
        self.seconds, self.rng = seconds, rng
        self._known: dict[str, Certified] = {}
        self._steps = 0

    def of(self, document: dict[str, Any], delta: float = 1.0) -> Certified:
        """Return the verdict on a decoded certificate, at `delta` where that is less than it claims."""
        n = document["claim"].get("n") if isinstance(document.get("claim"), dict) else None
        self._steps += max(0, min(n, LARGEST_N)) if type(n) is int else 0
        try:
            with ctx.workprec(PRECISION):
                claim = claim_of(document, self._steps)
        except (NotChecked, ArithmeticError, MemoryError) as error:
            reason = str(error) or type(error).__name__
            return Certified(None, None, Verdict(Kind.NOT_CHECKED, "a claim beyond the limits", reason), {})
        if 0.0 < delta < claim.delta:
            claim = dataclasses.replace(claim, delta=delta)
        key = json.dumps([document["claim"], document["evidence"], claim.delta], sort_keys=True)
        if key not in self._known:
            evidence = document["evidence"]
            nodes: dict[str, list[tuple[float, float]]] = {}
            if isinstance(evidence, dict) and "profile" in evidence:
                nodes = _nodes_of(evidence["profile"], claim)
            verdict, shape = decide(claim, self.seconds, self.rng)
            verdict = dataclasses.replace(verdict, unchecked=_unchecked(document))
            found = Certified(claim, shape, verdict, nodes)
            self._known[key] = self._with_profile(found) if nodes else found
        return self._known[key]

    def _with_profile(self, found: Certified) -> Certified:
        """Add the verdict on the upper ends of the nodes."""
        verdict, proved, failure = found.verdict, 0, found.verdict.failure
        most = sum(map(len, found.profile.values()))
        for name, (eps, upper), answer in self.nodes(found, found.profile, FAILURE / max(most, 1)):
            if answer.verdict is False:
                words = f"the profile has {name} at eps {eps!r} at most {upper!r}: it is {answer.number}"
                failure = verdict.failure + (FAILURE if answer.failure else 0.0)
                verdict = dataclasses.replace(verdict, kind=Kind.REFUTED, reason=words, failure=failure)
                return dataclasses.replace(found, verdict=verdict)
            proved += answer.verdict is True
            failure += answer.failure  # of every attempt, because which of them succeed is random, too
        left = [f"{most - proved} of {most} upper ends of the privacy profile"] if proved < most else []
        reason = f"{verdict.reason}; {proved} of {most} upper ends of the profile hold"
        own: dict[str, Any] = {"reason": reason, "failure": failure, "open_nodes": (most - proved, most)}
        own["unchecked"] = (*left, "lower ends of the privacy profile", *verdict.unchecked)
        return dataclasses.replace(found, verdict=dataclasses.replace(verdict, **own))

    def nodes(
        self, found: Certified, sides: dict[str, list[tuple[float, float]]], failure: float
    ) -> Iterator[tuple[str, tuple[float, float], Answer]]:
        """Whether delta is at most the value of each node, while time lasts; nothing without a theorem."""
        claim, shape, start = found.claim, found.shape, time.process_time()
        if claim is not None and fresh(claim):
            shape = shape.one_round() if isinstance(shape, Independent) else None
        if claim is None or shape is None:
            return
        answers: dict[tuple[str, float], Answer] = {}
        jobs = sorted((node, name) for name, nodes in sides.items() for node in nodes)  # by eps: H decreases
        work = Work(failure, self.seconds / max(1, min(100, len(jobs))), self.rng)
        with precise(claim.delta):
            for node, name in jobs:
                eps, upper = node
                if time.process_time() - start > self.seconds:
                    return
                answer = answers.get((name, upper), Answer(verdict=upper >= 1.0 or None))
                if upper > 0.0 and not answer.verdict:
                    with contextlib.suppress(*UNDECIDED):
                        answer = shape.answer(name, eps, upper, work)
                answers[name, upper] = answer
                yield name, node, answer


def _unchecked(document: dict[str, Any]) -> tuple[str, ...]:
    stated = document["claim"]["coefficients"]
    known = isinstance(stated, dict) and stated.get("of") in COEFFICIENTS
    own = "hashes, and the expected batch size", "lower ends, errors and everything else under evidence"
    return (*([] if known else ["coefficients"]), *own, "the training requirements, versions and dates")


def _nodes_of(profile: Any, claim: Claim) -> dict[str, list[tuple[float, float]]]:  # noqa: ANN401 - JSON data
    """(eps, upper end of delta) of every node, by direction; of one epoch if bins are chosen in every one."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in DIRECTIONS}
    ends: dict[str, Any] = dict.fromkeys(("eps", "lower", "upper"), list)
    own = entries(profile, "the profile", guarantee=dict, by=dict, curves=list)
    for curve in own["curves"]:
        entries(curve, "a curve of the profile", ("larger",), times=int, remove=Any, add=Any, larger=Any)
        for name in DIRECTIONS:
            side = entries(curve[name.lower()], "a direction of the profile", **ends)
            eps, upper = (floats(side[end], "a direction of the profile") for end in ("eps", "upper"))
            if len(eps) != len(upper) or eps != sorted(eps):
                raise BadDocument(f"the nodes of {name} are not in order, or not as many as their ends")
            found[name] += zip(eps, upper, strict=True)
    times, n = [curve["times"] for curve in own["curves"]], claim.strategy.n
    several = sum(times) != n // claim.integer("bins", 1, n) if fresh(claim) else times != [1]
    if several and claim.participation["type"] in PARTICIPATIONS:
        raise BadDocument(f"a profile of curves that are composed {shown(times)} times is not of this claim")
    return found


def fresh(claim: Claim) -> bool:
    """Whether bins are chosen again in every epoch: the nodes are then those of one epoch with several."""
    return claim.participation["type"] == "BallsInBins" and claim.flag("fresh")


# ---- Run records.


def check_record(document: dict[str, Any], certifier: Certifier) -> Verdict:
    """The verdict on a run record; REFUTED also if the executed steps cost more."""
    kinds: dict[str, Any] = {"guarantee": str, "schema_version": int, "run": Any, "certificate": dict}
    entries(document, "the run record", checksum=str, **kinds)
    if document["schema_version"] != 1:
        raise BadDocument("it is not a run record of schema version 1")
    certificate, run = document["certificate"], entries(document["run"], "the run", ("noise_check",), **_RUN)
    found = certifier.of(certificate)
    claim, verdict = found.claim, found.verdict
    unchecked = (_STATEMENTS, *verdict.unchecked)
    if claim is None or claim.participation["type"] not in PARTICIPATIONS:
        return dataclasses.replace(verdict, unchecked=unchecked)
    steps, spent = _run(run, claim), _executed(run, claim, certificate["evidence"])
    words = f"{steps} of {claim.strategy.n} steps, eps {spent!r} at delta {claim.delta!r}"
    parts, failure = [dataclasses.replace(verdict, unchecked=())], verdict.failure
    if spent >= claim.eps:
        parts.append(dataclasses.replace(parts[0], claim=words, reason="the claim says as much or more"))
    elif steps == 0 and spent == 0.0:
        parts.append(Verdict(Kind.PROVED, words, "nothing was released"))
    else:
        cheaper = run["executed"] != certificate["evidence"]["achieved"]
        own = _stopped(claim, steps if cheaper else claim.strategy.n, spent)
        parts.append(dataclasses.replace(decide(own, certifier.seconds, certifier.rng)[0], claim=words))
        failure += parts[1].failure
    kind = Kind.REFUTED if parts[1].kind is Kind.REFUTED else verdict.kind
    if parts[1].kind is Kind.NOT_CHECKED:
        unchecked = (f"the eps of the executed steps, {spent!r}", *unchecked)
    reason = "the certificate, and what the executed steps cost:"
    return Verdict(kind, f"a run under {verdict.claim}", reason, failure, unchecked, tuple(parts))


def _run(run: dict[str, Any], claim: Claim) -> int:
    """Return the number of executed steps; raises BadDocument if the statements on the run are impossible."""
    steps: int = run["steps"]
    most, apart = run["most_participations"], run["smallest_separation"]
    if not 0 <= steps <= claim.strategy.n or run["processes"] < 1:
        raise BadDocument(f"{steps} steps on {run['processes']} processes; {claim.strategy.n} were certified")
    if claim.participation["type"] in _SECRET:
        if most is not None or apart is not None:
            raise BadDocument("participations are recorded, though they have to stay secret")
        return steps
    limit, least, evenly = _limits(claim)
    between = least if apart is None else apart
    if most is None or not 0 <= most <= limit or (apart is None) != (most < 2):
        raise BadDocument(f"one example took part {most} times; {limit} were certified")
    if between < least or (evenly and between != least) or (most and (most - 1) * between >= steps):
        raise BadDocument(f"{most} participations {between} steps apart in {steps}; {least} was certified")
    return steps


def _limits(claim: Claim) -> tuple[int, int, bool]:
    """Largest number of participations, least separation in steps, and whether the separation is exact."""
    n, own = claim.strategy.n, claim.participation
    if own["type"] == "EveryStep":
        return n, 1, True
    if own["type"] == "SingleParticipation":
        return 1, n, False
    if own["type"] == "FixedEpochs":
        return claim.integer("epochs", 1, n), n // claim.integer("epochs", 1, n), True
    if own["type"] == "BallsInBins":
        bins, again = claim.integer("bins", 1, n), fresh(claim)
        return -(-n // bins), 1 if again else bins, not again
    if own["type"] == "RandomAllocation":
        return claim.integer("participations", 1, n), claim.integer("cycle", 1), False
    apart = claim.integer("min_sep", 1, n)
    return claim.optional("max_participations", 1) or -(-n // apart), apart, False


def _executed(run: dict[str, Any], claim: Claim, evidence: Any) -> float:  # noqa: ANN401 - JSON data
    """Return the stated upper end of eps of the run."""
    kinds: dict[str, Any] = {"lower": float, "upper": float, "guarantee": dict, "by": dict}
    stated, achieved = run["executed"], evidence.get("achieved") if isinstance(evidence, dict) else None
    lower, upper = (float(entries(stated, "executed", **kinds)[end]) for end in ("lower", "upper"))
    if not 0.0 <= lower <= upper <= entries(achieved, "achieved", **kinds)["upper"]:
        raise BadDocument(f"eps of the run is in [{lower!r}, {upper!r}], not within what was certified")
    cheaper = run["steps"] == 0 or (run["stopped_by_plan"] and run["steps"] < claim.strategy.n)
    if stated != achieved and not (cheaper and (run["steps"] or upper == 0.0)):
        raise BadDocument("eps of the run is not the certified one, though it was not stopped early by plan")
    return upper


def _stopped(claim: Claim, steps: int, eps: float) -> Claim:
    """The claim for the first steps only, by a leading block of C; a started epoch counts in full."""
    own = dict(claim.participation)
    period = claim.strategy.n if "participations" in own else own.get("bins", 1)
    if own["type"] == "FixedEpochs":
        period = claim.strategy.n // own["epochs"]
        own["epochs"] = -(-steps // period)
    covered = min(-(-steps // period) * period, claim.strategy.n)
    if own["type"] == "BMinSep":
        covered = max(covered, own["min_sep"])
    elif "min_sep" in own:
        own["min_sep"] = min(own["min_sep"], covered)
    elif isinstance(own.get("sampling_prob"), list):
        own["sampling_prob"] = own["sampling_prob"][:covered]
    return dataclasses.replace(claim, eps=eps, strategy=claim.strategy.leading(covered), participation=own)
