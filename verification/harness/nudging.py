"""A claim moved by 1 % must turn its verdict: calls of a check with one number multiplied by a factor."""

from collections.abc import Callable
from typing import Any

import numpy as np

from verification.harness.verdict import Verdict

Numbers = float | np.ndarray | tuple["Numbers", ...] | dict[object, "Numbers"]


def nudge(
    check: Callable[..., Verdict],
    argument: str = "claim",
    index: Any = None,  # noqa: ANN401 - a key, a place, or an index of an array
) -> Callable[[float], Verdict]:
    """The check as a function of a factor on one of its claims.

    Args:
        check: takes the claim as a keyword argument with a default: a number, several of them (tuple, dict or
            array), or a function that returns either.
        argument: the name of that argument.
        index: which of several numbers is moved; None moves all.

    Returns:
        A function from the factor to the verdict of the check.
    """
    default = (check.__kwdefaults__ or {})[argument]

    def moved(factor: float) -> Verdict:
        if callable(default):
            return check(**{argument: lambda *a, **k: _times(default(*a, **k), factor, index)})
        return check(**{argument: _times(default, factor, index)})

    return moved


def _times(value: Numbers, factor: float, index: Any) -> Numbers:  # noqa: ANN401 - as above
    if isinstance(value, dict):
        return {key: _times(one, factor, None) if index in {None, key} else one for key, one in value.items()}
    if isinstance(value, tuple):
        places = enumerate(value)
        return tuple(_times(one, factor, None) if index in {None, place} else one for place, one in places)
    if index is not None:
        value = np.array(value, dtype=float)
        value[index] *= factor
        return value
    return value * factor
