"""Verdicts in formats for CI servers: JUnit, SARIF, and commands of GitHub workflows."""

import dataclasses
import hashlib
import json
import os
import re
import urllib.parse
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from dpmech.cli.commands import plain
from dpmech.cli.printing import in_a_log
from dpmech.files import printable
from dpmech.verifying import Check, Question, Verification

# Name of the problem when a file could not be verified.
UNREAD = "not verified"


@dataclasses.dataclass(frozen=True)
class Verdicts:
    """The results of `dpmech verify`.

    Attributes:
        found: one verification per file.
        unread: by file, why the others were not verified.
    """

    found: Sequence[Verification]
    unread: Mapping[str, str]

    def failures(self, of: Verification) -> list[Check]:
        """The failed checks of a file."""
        return [check for check in of.checks if not check.ok]


def exit_code(found: Sequence[Verification]) -> int:
    """0 if all pass, 1 if one is refused, 3 if nothing was found wrong, but a claim was not checked."""
    failed = [one for one in found if not one.ok]
    return 0 if not failed else 3 if all(one.undecided for one in failed) else 1


def name_of(check: Check) -> str:
    """The name of a check, the question that it answers, and whether it was left open."""
    about = check.question
    of_two = about in (Question.CLAIM, Question.RUN) and check.name != about.value
    name = f"{about.value}: {check.name}" if of_two else check.name
    return f"{name} not checked" if check.undecided else name


def shown(text: str) -> str:
    """Text from a file, or its name, on one line and without characters that a format cannot represent."""
    return printable(plain(text)).replace("\n", "\\n")


def github(verdicts: Verdicts) -> str:
    """One line for every failed check and unread file, and a notice for every file that passes.

    Every line is a command, so that text from a file cannot start one.

    References:
        GitHub documentation, "Workflow commands for GitHub Actions".
    """
    lines: list[str] = []
    for one in verdicts.found:
        if one.ok:
            lines.append(_annotation("notice", one.source, "dpmech verify", _verified(one)))
        lines += [
            _annotation("error", one.source, f"dpmech verify: {name_of(check)}", str(check))
            for check in verdicts.failures(one)
        ]
    lines += [
        _annotation("error", source, f"dpmech verify: {UNREAD}", reason)
        for source, reason in verdicts.unread.items()
    ]
    return "\n".join(lines)


def _verified(one: Verification) -> str:
    return str(one).removeprefix(f"{one.source}: ")


def _annotation(kind: str, file: str, title: str, message: str) -> str:
    properties = f"file={_escaped_property(printable(file))},line=1,title={_escaped_property(shown(title))}"
    return f"::{kind} {properties}::{_escaped_text(shown(message))}"


def _escaped_text(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escaped_property(text: str) -> str:
    return _escaped_text(text).replace(":", "%3A").replace(",", "%2C")


def junit(verdicts: Verdicts) -> str:
    """JUnit XML, restricted to elements and attributes that all CI servers accept.

    A failed check is a failure; a claim that was not checked, and a file that could not be read, is an error.
    """
    suites = [_suite(one.source, one.checks) for one in verdicts.found]
    suites += [_unread(source, reason) for source, reason in verdicts.unread.items()]
    totals = {
        name: str(sum(int(suite.attrib[name]) for suite in suites))
        for name in ("tests", "failures", "errors")
    }
    root = ET.Element("testsuites", {"name": "dpmech verify", **totals})
    root.extend(suites)
    ET.indent(root)
    # Equivalent XML in which the runner of a CI server finds no command such as ##[error].
    text = re.sub("#(?=#)", "&#35;", ET.tostring(root, encoding="unicode"))
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}'


def _suite(source: str, checks: Sequence[Check]) -> ET.Element:
    errors = sum(check.undecided for check in checks)
    failures = sum(not check.ok for check in checks) - errors
    suite = _empty(source, tests=len(checks), failures=failures, errors=errors)
    seen: Counter[str] = Counter()
    for check in checks:
        name = shown(name_of(check))
        # Servers distinguish tests by suite and name only.
        seen[name] += 1
        repeated = f" ({seen[name]})" if seen[name] > 1 else ""
        case = _case(suite, source, name + repeated)
        if not check.ok:
            kind = "error" if check.undecided else "failure"
            failure = ET.SubElement(case, kind, type=shown(check.name), message=shown(check.detail))
            failure.text = shown(str(check))
    return suite


def _unread(source: str, reason: str) -> ET.Element:
    suite = _empty(source, tests=1, failures=0, errors=1)
    error = ET.SubElement(_case(suite, source, "file"), "error", type=UNREAD, message=shown(reason))
    error.text = shown(reason)
    return suite


def _empty(source: str, **counts: int) -> ET.Element:
    numbers = {name: str(count) for name, count in counts.items()}
    return ET.Element("testsuite", {"name": shown(source), **numbers, "skipped": "0"})


def _case(suite: ET.Element, source: str, name: str) -> ET.Element:
    return ET.SubElement(suite, "testcase", name=name, classname=shown(source))


_SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_OF_POLICY = "policy "


def sarif(verdicts: Verdicts) -> str:
    """A SARIF log with one run.

    Files that could not be verified are results too, and notifications of an unsuccessful run: some readers
    show results only. Passed checks are left out, as some readers take any result for a fault.

    References:
        OASIS, Static Analysis Results Interchange Format 2.1.0.
    """
    faults = [
        (one.source, name_of(check), check.detail)
        for one in verdicts.found
        for check in verdicts.failures(one)
    ]
    faults += [(source, UNREAD, reason) for source, reason in verdicts.unread.items()]
    names = list(dict.fromkeys(name for _, name, _ in faults))
    notifications = [
        {
            "level": "error",
            "message": {"text": shown(reason)},
            "locations": [_location(source)],
        }
        for source, reason in verdicts.unread.items()
    ]
    run = {
        "tool": {
            "driver": {
                "name": "dpmech",
                "semanticVersion": metadata.version("dpmech"),
                "rules": [_rule(name) for name in names],
            }
        },
        "invocations": [
            {"executionSuccessful": not verdicts.unread, "toolExecutionNotifications": notifications}
        ],
        "columnKind": "unicodeCodePoints",
        "results": _results(faults, names),
    }
    return in_a_log(json.dumps({"$schema": _SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2))


def _rule(name: str) -> dict[str, Any]:
    text = f"The check '{shown(name)}' of dpmech verify does not hold."
    if name == UNREAD:
        text = "A file is missing, may not be read, or would cost more work than the budget allows."
    elif name.endswith(" not checked"):
        text = "The independent checker showed nothing about it, neither that it holds nor the opposite."
    elif name.startswith(_OF_POLICY):
        text = f"The rule {shown(name.removeprefix(_OF_POLICY))} of the policy is broken."
    return {
        "id": _id(name),
        "shortDescription": {"text": text},
        "defaultConfiguration": {"level": "error"},
    }


def _id(name: str) -> str:
    return "dpmech/" + shown(name).replace(": ", "/").replace(" ", "-")


def _results(faults: Sequence[tuple[str, str, str]], names: Sequence[str]) -> list[dict[str, Any]]:
    seen: Counter[tuple[str, str]] = Counter()
    results = []
    for source, name, detail in faults:
        seen[source, name] += 1
        results.append(_result(source, name, detail, names.index(name), seen[source, name]))
    return results


def _result(source: str, name: str, detail: str, index: int, number: int) -> dict[str, Any]:
    """One result; its fingerprint is stable when numbers in its text change between runs."""
    identity = hashlib.sha256(f"{number}\n{name}\n{source}".encode("utf-8", "backslashreplace")).hexdigest()
    return {
        "ruleId": _id(name),
        "ruleIndex": index,
        "level": "error",
        "message": {"text": shown(detail)},
        "locations": [_location(source)],
        "partialFingerprints": {"fileAndCheck/v1": identity},
    }


def _location(source: str) -> dict[str, Any]:
    return {"physicalLocation": {"artifactLocation": {"uri": _uri(source)}, "region": {"startLine": 1}}}


def _uri(source: str) -> str:
    """A file as a URI; a relative path stays relative, and bytes not allowed in a path are escaped."""
    path = Path(source)
    return path.as_uri() if path.is_absolute() else urllib.parse.quote(os.fsencode(path.as_posix()))
