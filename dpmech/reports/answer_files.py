"""Files of answers: reading one, and writing a template with a question for everything that is open."""

import datetime
import os
import re
from collections.abc import Collection
from typing import Any

from dpmech.exceptions import InvalidParameterError
from dpmech.files import printable, read_toml
from dpmech.plans import check_known
from dpmech.reports.answers import Answers, Measurement, Said
from dpmech.reports.checklists import NOT_STATED, checklists, questions
from dpmech.reports.registry import DEPLOYMENT
from dpmech.reports.review import Review

_BASE_MODEL = {
    "name": "Name and revision of the model that training started from",
    "trained_on": "The data it was trained on, and whether they are public",
    "overlap": "Do these data contain people of the private dataset?",
    "trained_part": "Which part was trained, such as a LoRA adapter of rank 8",
}
_KINDS = ("utility", "fairness")
_MEASURED = ("kind", "name", "value", "data", "cost", "group")
# A table of answers of one person: `said_by` in place of that of the file.
_OTHER = ("text", "said_by")


def read_answers(path: str | os.PathLike[str]) -> Answers:
    """Read a file of answers: TOML, as `answers_template` writes it.

    Empty texts are questions that are still open. An answer is a text, or a table of `text` and `said_by`
    where another person gives it.

    Raises:
        InvalidParameterError: if the file cannot be read, an entry is unknown or no text, or there are
            answers and nobody is named who gives them.
    """
    table = read_toml("answers", path)
    try:
        return _answers(table)
    except InvalidParameterError as error:
        name = f"{os.fspath(path)}: {error.name}"
        raise InvalidParameterError(name, error.value, error.accepted, error.hint) from error


def _answers(table: dict[str, Any]) -> Answers:
    keys = questions()
    sections = dict.fromkeys(key.split(".")[0] for key in keys)
    known = ("said_by", "said_on", *sections, "deployment", "base_model", "measurements")
    for name in table:
        check_known("entry", name, known)
    by = _by(table)
    items: dict[str, Said] = {}
    for section in sections:
        names = [key.split(".")[1] for key in keys if key.startswith(f"{section}.")]
        items |= {f"{section}.{name}": said for name, said in _named(table, section, names, by).items()}
    deployment = _named(table, "deployment", DEPLOYMENT, by)
    if "privacy_units" in deployment and not re.fullmatch(r"[1-9]\d*", deployment["privacy_units"].text):
        raise InvalidParameterError(
            "deployment.privacy_units", deployment["privacy_units"].text, "an integer >= 1"
        )
    base_model = _named(table, "base_model", _BASE_MODEL, by)
    return Answers(items, deployment, base_model, _measurements(table.get("measurements", []), by))


def _named(table: dict[str, Any], section: str, known: Collection[str], by: str) -> dict[str, Said]:
    """The answers of a section, without those that are still open."""
    given = table.get(section, {})
    if not isinstance(given, dict):
        raise InvalidParameterError(section, given, f"a table: answers below [{section}]")
    for name in given:
        check_known(f"entry of [{section}]", name, tuple(known))
    found = {name: _said(f"{section}.{name}", one, by) for name, one in given.items()}
    return {name: said for name, said in found.items() if said is not None}


def _by(table: dict[str, Any]) -> str:
    by, on = table.get("said_by", ""), table.get("said_on", "")
    if not isinstance(by, str):
        raise InvalidParameterError("said_by", by, "text: who gives these answers")
    try:
        on = datetime.date.fromisoformat(str(on)) if str(on).strip() else ""
    except ValueError:
        raise InvalidParameterError("said_on", on, "a date, such as 2026-11-29") from None
    by, on = _line(by), _line(str(on))
    return f"{by}, {on}" if by and on else by


def _said(key: str, value: object, by: str) -> Said | None:
    """The answer of an item; None if it is still open."""
    if isinstance(value, dict):
        for name in value:
            check_known(f"entry of {key}", name, _OTHER)
        own = value.get("said_by", by)
        by = _line(own) if isinstance(own, str) else ""
        value = value.get("text", "")
    if isinstance(value, bool) or not isinstance(value, str | int | float | datetime.date):
        raise InvalidParameterError(key, value, "text, or a table of text and said_by")
    text = _line(str(value))
    if not text:
        return None
    if text.lower() == NOT_STATED:
        raise InvalidParameterError(key, value, "an answer, or left out where there is none")
    if not by or "dpmech" in by.lower():
        raise InvalidParameterError(
            "said_by", by, f"the name of the person who answers {key}, not a program's"
        )
    return Said(text, by)


def _measurements(value: object, by: str) -> tuple[Measurement, ...]:
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise InvalidParameterError("measurements", value, "tables: each below [[measurements]]")
    found = []
    for number, table in enumerate(value, start=1):
        where = f"measurement {number}"
        for name in table:
            check_known(f"entry of {where}", name, _MEASURED)
        if all(value == "" for name, value in table.items() if name != "kind"):
            continue  # of the template, not filled in
        said = {name: _said(f"{where}: {name}", table.get(name, ""), by) for name in _MEASURED}
        texts = {name: "" if one is None else one.text for name, one in said.items()}
        check_known(f"{where}: kind", texts["kind"], _KINDS)
        for name in ("name", "value", "data", "cost"):
            if not texts[name]:
                raise InvalidParameterError(f"{where}: {name}", texts[name], _ASKED[name])
        found.append(Measurement(**texts, by=by))
    return tuple(found)


_ASKED = {
    "name": "text: what was measured, such as accuracy",
    "value": "the result",
    "data": "text: the data it was measured on",
    "cost": "text: how these data are protected, such as public, or as the release of the ledger",
}


def answers_template(review: Review) -> str:
    """A file of answers with every question that the review leaves open, and those of a registry."""
    lines = [
        "# Answers to what the files of a report do not state. Leave open what nobody can answer.",
        "# dpmech report ... --answers THIS_FILE says next to each answer who gave it.",
        "",
        'said_by = ""  # name and role',
        f'said_on = ""  # {datetime.date(2026, 1, 31).isoformat()}',
    ]
    for one in checklists(review):
        still_open = [answer for answer in one.answers if not answer.stated]
        if still_open:
            lines += ["", f"[{one.key}]  # {one.title}"]
        for answer in still_open:
            lines += [f"# {answer.question}", f'{answer.key.split(".")[1]} = ""']
    lines += ["", "[deployment]  # other fields of a registry of deployments: --format registry"]
    for name, (question, values) in DEPLOYMENT.items():
        lines += [f"# {question}{': ' + ', '.join(values) if values else ''}", f'{name} = ""']
    lines += ["", "[base_model]  # where training started from a pretrained model"]
    for name, question in _BASE_MODEL.items():
        lines += [f"# {question}", f'{name} = ""']
    lines += [
        "",
        "# As many of these as there are numbers, each outside the claim unless its cost says otherwise.",
        "[[measurements]]",
        'kind = "utility"  # or "fairness"',
        'name = ""  # accuracy',
        'value = ""',
        'data = ""  # on which data',
        'cost = ""  # how these data are protected: public, not part of training, a release of the ledger',
        'group = ""  # of which people; empty for all',
    ]
    return "\n".join(lines) + "\n"


def _line(text: str) -> str:
    return " ".join(printable(text).split())
