"""Reports on a certificate, its run and its ledger, verified and explained."""

from dpmech.reports.attacks import Finding, attacks_of, findings
from dpmech.reports.checklists import checklists
from dpmech.reports.previews import planner_page, preview_of
from dpmech.reports.rendering import as_html, as_json, as_markdown, total_of
from dpmech.reports.review import Review, Subject

__all__ = [
    "Finding",
    "Review",
    "Subject",
    "as_html",
    "as_json",
    "as_markdown",
    "attacks_of",
    "checklists",
    "findings",
    "planner_page",
    "preview_of",
    "total_of",
]
