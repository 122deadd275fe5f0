"""Auditing: published claims beside certified numbers, and lower bounds on eps from runs."""

from dpmech.auditing.many_runs import empirical_epsilon
from dpmech.auditing.one_run import CurveAudit, audit_profile, canary_scores, one_run_epsilon
from dpmech.auditing.published import Finding, PublishedClaim, audit
from dpmech.auditing.shuffled import Shuffled, shuffled_epsilon

__all__ = [
    "CurveAudit",
    "Finding",
    "PublishedClaim",
    "Shuffled",
    "audit",
    "audit_profile",
    "canary_scores",
    "empirical_epsilon",
    "one_run_epsilon",
    "shuffled_epsilon",
]
