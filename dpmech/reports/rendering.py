"""A review as a page, as a section of a model card, and as data; templates escape everything they show."""

import dataclasses
import datetime
import json
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dpmech.certificates import AdaptiveClip, training_requirements
from dpmech.exceptions import DpmechError
from dpmech.files import in_markdown, printable
from dpmech.ledgers import Ledger
from dpmech.numerics import between, counted, short, typed, up
from dpmech.reports.attacks import picture_of
from dpmech.reports.checklists import checklists
from dpmech.reports.review import Review
from dpmech.reports.summary import summary_rows
from dpmech.reports.words import (
    LIMITS,
    adjacency_words,
    claim_words,
    clip_words,
    evidence_words,
    not_covered,
    participation_words,
    run_words,
    strategy_words,
    sure_words,
    unit_words,
)


def total_of(ledger: Ledger, delta: float | None, *, profiles: bool = False) -> dict[str, Any]:
    """Total eps as data, or why there is none; and how many releases entered by their claims only.

    Args:
        ledger: the ledger.
        delta: delta of the total; None for `Ledger.usual_delta`.
        profiles: whether privacy profiles that take work are computed for it.
    """
    at = ledger.usual_delta if delta is None else delta
    several = ledger.budget is None and ledger.entries > 1
    by_claims = len(ledger.waiting) if several and not profiles else 0
    try:
        found = ledger.epsilon(at, profiles=False if ledger.budget is None and not profiles else None)
    except DpmechError as error:
        return {"delta": at, "by_claims": by_claims, "reason": str(error)}
    return {
        "delta": at,
        "by_claims": by_claims,
        "eps_lower": found.lower,
        "eps_upper": found.upper,
        "guarantee": str(found.guarantee),
    }


def total_words(total: Mapping[str, Any]) -> str:
    """The total eps of `total_of` in words; of claims, only the upper bound is known."""
    lower, upper = total["eps_lower"], total["eps_upper"]
    eps = f"in {between(lower, upper)}" if lower > 0.0 else f"at most {up(upper)}"
    return f"eps {eps} at delta {short(total['delta'])}: {total['guarantee']}"


if TYPE_CHECKING:
    import jinja2


# Version of the `as_json` document. Removing a field or changing its meaning increases it.
REPORT_VERSION = 1


def as_html(review: Review, *, made: datetime.date) -> str:
    """A page that needs no network and no script.

    Args:
        review: the review.
        made: date of the page.
    """
    return environment(escape=True).get_template("review.html").render(_known(review), made=made.isoformat())


def as_markdown(review: Review) -> str:
    """A section for a model card, after the tags that belong in the card's metadata."""
    card = environment(escape=False).get_template("model_card.md").render(_known(review))
    return card.rstrip("\n") + "\n"


def as_json(review: Review) -> str:
    """The filled-in checklists with the numbers; `dpmech/schemas/report-1.json` is the schema."""
    head = {"schema": {"name": "dpmech review", "version": REPORT_VERSION}}
    lists = {
        "summary": dict(summary_rows(review, _total(review))),
        "measurements": [dataclasses.asdict(one) for one in review.said.measurements],
        "checklists": [one.to_dict() for one in checklists(review)],
    }
    ledger = review.subject.ledger
    other = {"ledger": None if ledger is None else {"releases": ledger.entries, "total": _total(review)}}
    return json.dumps(head | review.summary() | other | lists, indent=2, allow_nan=False) + "\n"


def _known(review: Review) -> dict[str, Any]:
    """Variables of the templates."""
    own, subject, attacks = review.certificate, review.subject, review.attacks
    return {
        "review": review,
        "own": own,
        "run": subject.run,
        "ledger": subject.ledger,
        "total": _total(review),
        "summary": summary_rows(review, _total(review)),
        "eps": review.cost,
        "delta": typed(own.budget.delta),
        "claim": claim_words(own, review.eps),
        "picture": None if attacks is None else picture_of(attacks, (own.budget.eps, own.budget.delta)),
        "attacks": attacks,
        "strength": sure_words(own),
        "unit": unit_words(own),
        "many": f"{own.unit.value}s",
        "adjacency": adjacency_words(own),
        "participation": participation_words(own),
        "strategy": strategy_words(own),
        "requirements": training_requirements(own),
        "evidence": [
            *evidence_words(own, proved=not review.verifications[0].achieved_open),
            *(("stated by the run record alone", text) for text in subject.fixed),
            *((f"signature on {source}", text) for source, text in review.issuers),
        ],
        "ran": []
        if subject.run is None
        else run_words(subject.run, proved=not review.verifications[0].executed_open),
        "not_covered": not_covered(own),
        "limits": LIMITS,
        "checklists": checklists(review),
        "fingerprints": review.fingerprints(),
        "command_files": shlex.join(subject.names.values()),  # a file name may contain shell syntax
        "versions": dict(own.versions) | {"machine": own.evidence.machine},
    }


def _total(review: Review) -> str:
    """The total of the ledger's releases, from what was proved; none if a claim in the ledger was not."""
    ledger = review.subject.ledger
    if ledger is None:
        return ""
    found = review.verifications[-1]
    if not found.ok:
        return "No total is stated: the ledger was not verified."
    if found.profile_open and ledger.budget is None:
        (*_, decided) = (check.verdict for check in found.checks if check.name == "total" and check.verdict)
        return f"{decided.reason}, by the checker, without the privacy profiles that it left open"
    total = total_of(ledger, None)
    if "reason" in total:
        return f"No total at delta {short(total['delta'])}: {total['reason']}"
    if not total["by_claims"]:
        return total_words(total)
    releases = counted(total["by_claims"], "release")
    return f"{total_words(total)} ({releases} by their claims; dpmech ledger show composes profiles)"


def environment(*, escape: bool) -> "jinja2.Environment":
    """The environment of the templates: HTML is escaped automatically, Markdown by a filter here."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("dpmech.reports"),
        autoescape=escape,
        finalize=_shown if escape else _shown_in_markdown,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "up": up,
        "typed": typed,
        "clipped": _clipped,
    }
    return environment


def _clipped(value: float | AdaptiveClip) -> str:
    return clip_words(value).removeprefix("a clip norm that ").removeprefix("clip norm ")


def _shown(value: object) -> object:
    """The display form of a value in HTML, before escaping; markup made by a template is unchanged."""
    if hasattr(value, "__html__") or not isinstance(value, str):
        return value
    # Keep a number and its unit on one line.
    return printable(value).replace(" %", "\u00a0%")


def _shown_in_markdown(value: object) -> object:
    return in_markdown(value) if isinstance(value, str) else value
