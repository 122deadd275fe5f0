"""SARIF 2.1.0: one result for every failed check."""

import hashlib
import json
import os
import urllib.parse
from collections import Counter
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from dpmech.cli.documents import in_a_log
from dpmech.cli.formats.verdicts import UNREAD, Verdicts, name_of, shown

__all__ = ["sarif"]

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_OF_POLICY = "policy "


def sarif(verdicts: Verdicts) -> str:
    """A SARIF log with one run.

    Files that could not be verified are results too, and notifications of a run that did not succeed: some
    readers look at results alone. Checks that hold are left out, as some readers take any result for a fault.

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
    return in_a_log(json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2))


def _rule(name: str) -> dict[str, Any]:
    words = {
        UNREAD: "A file is missing, may not be read, or would cost more work than the budget allows.",
    }
    default = f"The check '{shown(name)}' of dpmech verify does not hold."
    if name.startswith(_OF_POLICY):
        default = f"The rule {shown(name.removeprefix(_OF_POLICY))} of the policy is broken."
    if name.endswith(" not checked"):
        default = "The independent checker showed nothing about it, neither that it holds nor the opposite."
    return {
        "id": _id(name),
        "shortDescription": {"text": words.get(name, default)},
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
    """One result; its fingerprint stays where numbers in its text change from run to run."""
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
    """A file as a URI; a relative one stays relative, and every byte that is no part of a path is escaped."""
    path = Path(source)
    return path.as_uri() if path.is_absolute() else urllib.parse.quote(os.fsencode(path.as_posix()))
