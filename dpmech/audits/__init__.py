"""Auditing: published claims compared with certified numbers, and lower bounds on eps from runs."""

from dpmech.audits.many_runs import empirical_epsilon
from dpmech.audits.one_run import CurveAudit, audit_profile, canary_scores, one_run_epsilon
from dpmech.audits.published import Finding, PublishedClaim, audit
from dpmech.audits.shuffled import Shuffled, shuffled_epsilon

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
