"""What a claim leaves to an attacker, from the whole privacy profile or from its (eps, delta) alone."""

import concurrent.futures
import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from dpmech.certificates import Certificate
from dpmech.engines import Composition, Curve, PrivacyProfile, Progress
from dpmech.evaluation import profile
from dpmech.exceptions import DpmechError
from dpmech.numerics import BOUND, Guarantee, Provenance
from dpmech.reports.risk_words import Finding, findings

__all__ = ["RATES", "Attacks", "attacks_of", "power_bounds"]

# False-positive rates of which a report speaks, and how likely it is beforehand that an example was used.
RATES, _PRIOR = (0.01, 0.001), 0.5
# Of the curve that is drawn: points of the profile, down to this delta.
_NODES, _LEAST_DELTA = 40, 1e-7
_REL_ERROR = 0.01


@dataclasses.dataclass(frozen=True)
class Attacks:
    """Numbers about attacks, and what they rest on.

    Attributes:
        basis: "profile", or "claim" where they follow from (eps, delta) alone.
        reason: why there is no profile; empty where there is one.
        guarantee: how sure they are.
        by: how they were found, in words.
        findings: a sentence each.
        points: pairs (eps, delta) that the mechanism meets, for the curve that is drawn.
    """

    basis: str
    reason: str
    guarantee: Guarantee
    by: str
    findings: tuple[Finding, ...]
    points: tuple[tuple[float, float], ...]

    def upper(self, fpr: float) -> float:
        """The largest true-positive rate at one of `RATES`."""
        (found,) = (one.bounds.upper for one in self.findings if one.given == {"fpr": fpr})
        return found


def attacks_of(
    certificate: Certificate,
    *,
    claim_only: bool = False,
    rng: int | None = None,
    executor: concurrent.futures.Executor | None = None,
    progress: Progress,
) -> Attacks:
    """Read the numbers off the mechanism's profile; where that is refused, off its (eps, delta).

    **Guarantee:** upper bounds as sure as `guarantee` says.

    Args:
        certificate: whose mechanism and noise scale.
        claim_only: whether to leave the profile aside, which under Balls-in-Bins takes a minute or more
            where the certificate does not bring it.
        rng: of randomised profiles.
        executor: that draws samples.
        progress: told what is computed.
    """
    reason = "it was not asked for"
    if not claim_only:
        try:
            progress("privacy profile")
            known = certificate.curve or profile(
                certificate.mechanism, certificate.sigma, rel_error=_REL_ERROR, rng=rng, executor=executor
            )
            return _read(known, certificate, progress)
        except (DpmechError, ArithmeticError, MemoryError) as error:
            reason = f"it could not be bounded: {error}"
    eps, delta = certificate.budget.eps, certificate.budget.delta
    alone = PrivacyProfile(
        Composition(curves=((Curve.of_claim(eps, delta), 1),)),
        certificate.guarantee & BOUND,
        Provenance("profile.claim"),
        certificate.adjacency,
        certificate.unit,
    )
    found = findings(alone, rates=RATES, priors=(_PRIOR,), baselines=(), tail=None, report=_silent)
    return Attacks("claim", reason, alone.guarantee, str(alone.by), tuple(found), ((eps, delta),))


def _read(known: PrivacyProfile, certificate: Certificate, progress: Progress) -> Attacks:
    found = findings(known, rates=RATES, priors=(_PRIOR,), baselines=(), tail=None, report=progress)
    progress("trade-off curve")
    last = known.epsilon(min(_LEAST_DELTA, certificate.budget.delta)).upper
    # Closer together near 0, where the curve bends.
    nodes = [last * (index / _NODES) ** 1.5 for index in range(_NODES + 1)]
    points = tuple((eps, known.delta(eps).upper) for eps in nodes)
    return Attacks("profile", "", known.guarantee, str(known.by), tuple(found), points)


def power_bounds(points: Sequence[tuple[float, float]], rates: Sequence[float]) -> list[float]:
    """The largest true-positive rate at each false-positive rate that pairs (eps, delta) allow, to draw it.

    Each pair, which holds in both directions, allows e^eps fpr + delta, and 1 - e^-eps (1 - delta - fpr).
    It is of rounding to nearest: a picture shows no more. Numbers that are printed are those of `findings`.

    References:
        Kairouz, Oh and Viswanath 2015.
    """
    at = np.asarray(rates, dtype=np.float64)
    best = np.ones(at.size)
    for eps, delta in points:
        # Beyond this e^eps leaves float64, and the first line says nothing.
        grown = math.exp(min(eps, 700.0)) * at + delta
        best = np.minimum(best, np.minimum(grown, 1.0 - math.exp(-eps) * (1.0 - delta - at)))
    return [float(one) for one in np.clip(np.maximum(best, at), 0.0, 1.0)]


def _silent(line: str) -> None:
    del line
