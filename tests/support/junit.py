"""JUnit XML as CI servers read it: which elements and attributes they know, where, and how often.

Jenkins' schema of it (`junit-10.xsd` of its xUnit plugin) is the strictest; GitLab, CircleCI and Azure read
`testsuite`, `testcase`, `failure`, `error`, `skipped` and the same attributes.
"""

import xml.etree.ElementTree as ET

NUMBERS = {"tests", "failures", "errors", "skipped"}
ATTRIBUTES = {
    "testsuites": (set(), {"name", "time", "tests", "failures", "errors"}),
    "testsuite": ({"name", "tests", "failures", "errors"}, {"skipped", "time", "timestamp", "file"}),
    "testcase": ({"name"}, {"classname", "time"}),
    "failure": (set(), {"type", "message"}),
    "error": (set(), {"type", "message"}),
}
CHILDREN = {
    "testsuites": {"testsuite"},
    "testsuite": {"testcase"},
    "testcase": {"failure", "error"},
    "failure": set(),
    "error": set(),
}


def read(text):
    """What a server makes of it: (suite, test) to None, or to (kind, message).

    Raises:
        AssertionError: where one of them would stumble.
    """
    root = ET.fromstring(text)
    assert root.tag == "testsuites"
    check(root)
    found = {}
    for suite in root:
        counts = {"tests": len(suite), "failures": 0, "errors": 0, "skipped": 0}
        for case in suite:
            assert len(case) <= 1
            key = (case.attrib["classname"], case.attrib["name"])
            assert key not in found, f"two tests are called {key}"
            found[key] = None if len(case) == 0 else (case[0].tag, case[0].attrib["message"])
            if len(case):
                counts[f"{case[0].tag}s"] += 1
        assert counts == {name: int(suite.attrib[name]) for name in counts}
    for name in ("tests", "failures", "errors"):
        assert int(root.attrib[name]) == sum(int(suite.attrib[name]) for suite in root)
    return found


def check(element):
    due, known = ATTRIBUTES[element.tag]
    assert due <= set(element.attrib) <= due | known
    assert all(element.attrib[name].isdecimal() for name in NUMBERS & set(element.attrib))
    for child in element:
        assert child.tag in CHILDREN[element.tag]
        check(child)
