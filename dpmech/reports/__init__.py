"""Reports: what a certificate, its run and its ledger say, verified and put into words."""

from dpmech.reports.attacks import Attacks, attacks_of
from dpmech.reports.checklists import NOT_STATED, Answer, Checklist, checklists
from dpmech.reports.ledger_total import total_of
from dpmech.reports.planner_page import planner_page
from dpmech.reports.previews import Preview, preview_of
from dpmech.reports.rendering import REPORT_VERSION, as_html, as_json, as_markdown
from dpmech.reports.review import Review
from dpmech.reports.risk_words import Finding, findings
from dpmech.reports.subject import Subject

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
