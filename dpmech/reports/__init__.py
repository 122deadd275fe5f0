"""Reports on a certificate, its run and its ledger, verified and explained."""

from dpmech.reports.answer_files import answers_template, read_answers
from dpmech.reports.answers import Answers
from dpmech.reports.attacks import Finding, attacks_of, findings, power_bounds
from dpmech.reports.checklists import checklists
from dpmech.reports.planner import planner_page
from dpmech.reports.previews import (
    DEFAULT_SECONDS,
    FAST_SAMPLINGS,
    PAGE_FAMILIES,
    PAGE_SAMPLINGS,
    check_plans,
    default_samplings,
    preview_of,
    row_kinds,
    seconds_of,
)
from dpmech.reports.registry import as_registry_json, as_registry_yaml, missing, registry_record
from dpmech.reports.rendering import as_html, as_json, as_markdown, total_of, total_words
from dpmech.reports.review import Review, Subject, kind_of

__all__ = [
    "DEFAULT_SECONDS",
    "FAST_SAMPLINGS",
    "PAGE_FAMILIES",
    "PAGE_SAMPLINGS",
    "Answers",
    "Finding",
    "Review",
    "Subject",
    "answers_template",
    "as_html",
    "as_json",
    "as_markdown",
    "as_registry_json",
    "as_registry_yaml",
    "attacks_of",
    "check_plans",
    "checklists",
    "default_samplings",
    "findings",
    "kind_of",
    "missing",
    "planner_page",
    "power_bounds",
    "preview_of",
    "read_answers",
    "registry_record",
    "row_kinds",
    "seconds_of",
    "total_of",
    "total_words",
]
