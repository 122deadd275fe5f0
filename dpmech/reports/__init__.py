"""Reports: what a certificate, its run and its ledger say, verified and put into words."""

from dpmech.reports.attacks import Attacks, Finding, attacks_of, findings
from dpmech.reports.checklists import NOT_STATED, Answer, Checklist, checklists
from dpmech.reports.previews import Preview, planner_page, preview_of
from dpmech.reports.rendering import REPORT_VERSION, as_html, as_json, as_markdown, total_of
from dpmech.reports.review import Review, Subject

__all__ = [
    "NOT_STATED",
    "REPORT_VERSION",
    "Answer",
    "Attacks",
    "Checklist",
    "Finding",
    "Preview",
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
