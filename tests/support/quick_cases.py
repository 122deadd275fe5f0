"""Which cases of a parametrised test belong to the quick tests."""

import pytest

__all__ = ["slow_but"]


def slow_but(cases, *quick):
    """The cases of a test, marked slow but for those at the places `quick`.

    A test with many cases that take a second each keeps a few of every kind in the quick half; the slow half
    runs the others.

    Args:
        cases: values, or tuples of values where a test takes several.
        quick: places in `cases`.
    """
    cases = list(cases)
    if not quick or not all(0 <= place < len(cases) for place in quick):
        raise ValueError(f"quick must be places in {len(cases)} cases, got {quick}")
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=[] if place in quick else [pytest.mark.slow],
        )
        for place, case in enumerate(cases)
    ]
