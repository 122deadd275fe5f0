"""Auditing: published claims compared with certified numbers, and lower bounds on eps from runs."""

from dpmech.audits.gaussian import GaussianAudit, gaussian_audit
from dpmech.audits.many_runs import empirical_epsilon
from dpmech.audits.noise import NoiseAudit, noise_audit
from dpmech.audits.one_run import CurveAudit, audit_profile, canary_scores, one_run_epsilon
from dpmech.audits.published import Finding, PublishedClaim, audit
from dpmech.audits.shuffled import Shuffled, shuffled_epsilon

__all__ = [
    "CurveAudit",
    "Finding",
    "GaussianAudit",
    "NoiseAudit",
    "PublishedClaim",
    "Shuffled",
    "audit",
    "audit_profile",
    "canary_scores",
    "empirical_epsilon",
    "gaussian_audit",
    "noise_audit",
    "one_run_epsilon",
    "shuffled_epsilon",
]
