"""Which slow cases are left to `make check`.

Tests that take over ten seconds, and show at another size what shorter ones show, carry the mark
`exhaustive`. So do most cases of long tables (every model and mode, every stored value, every statement of
the papers), which fail together; the gate runs some, spread over it. `make exhaustive` runs what is marked.
"""

import collections

import pytest

# Slow cases of one test that the gate runs.
MOST = 16
# Where a case may show a leak that no other case shows: what is applied against what is certified, and the
# claims of every scheme against enumeration. These tables are run whole.
WHOLE = ("tests/property/", "tests/unit/optim/", "tests/statistical/", "tests/conformance/test_scheme.py")


def kept(count, most=MOST):
    """Places in `count` cases that the gate runs: all, or `most`, evenly spaced from first to last."""
    if count <= most:
        return set(range(count))
    return {round(place * (count - 1) / (most - 1)) for place in range(most)}


def mark(items):
    """Mark the slow cases that the gate leaves out; whatever is marked by itself is slow."""
    cases = collections.defaultdict(list)
    for item in items:
        if item.get_closest_marker("exhaustive") is not None:
            item.add_marker(pytest.mark.slow)
        elif item.get_closest_marker("slow") is not None and not item.nodeid.startswith(WHOLE):
            cases[item.nodeid.split("[")[0]].append(item)
    for same in cases.values():
        chosen = kept(len(same))
        for place, item in enumerate(same):
            if place not in chosen:
                item.add_marker(pytest.mark.exhaustive)
