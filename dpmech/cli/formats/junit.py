"""JUnit XML: a suite for every file, a test for every check."""

import re
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Sequence

from dpmech.cli.formats.verdicts import UNREAD, Verdicts, name_of, shown
from dpmech.verifying import Check

__all__ = ["junit"]


def junit(verdicts: Verdicts) -> str:
    """The XML that CI servers read: elements and attributes that all of them take, and no others.

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
    # The same text, in which the runner of a CI server finds no command such as ##[error].
    text = re.sub("#(?=#)", "&#35;", ET.tostring(root, encoding="unicode"))
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}'


def _suite(source: str, checks: Sequence[Check]) -> ET.Element:
    errors = sum(check.undecided for check in checks)
    failures = sum(not check.ok for check in checks) - errors
    suite = _empty(source, tests=len(checks), failures=failures, errors=errors)
    seen: Counter[str] = Counter()
    for check in checks:
        name = shown(name_of(check))
        # Servers tell tests apart by suite and name alone.
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
