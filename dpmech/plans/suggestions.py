"""Names that nobody knows: the nearest one that is known, or why there is none."""

import difflib
from collections.abc import Collection, Iterable, Mapping

from dpmech.exceptions import InvalidParameterError

__all__ = ["check_known", "meant"]

# Of a beginning that is taken for a name.
_SHORTEST = 3


def meant(given: object, known: Iterable[str]) -> str:
    """`; did you mean ...?` where some known name is near what was given, else nothing."""
    text, names = str(given).lower(), list(known)
    near = difflib.get_close_matches(text, names, n=1)
    if not near and len(text) >= _SHORTEST:
        near = [name for name in names if name.startswith(text)]
    return f"; did you mean {near[0]}?" if near else ""


def check_known(
    name: str, value: object, known: Collection[str], reasons: Mapping[str, str] | None = None
) -> str:
    """Return a name that is known.

    Args:
        name: of the argument.
        value: what was given.
        known: every name.
        reasons: why some names that people look for are not among them.

    Raises:
        InvalidParameterError: with the reason, or with the nearest name that is known.
    """
    if isinstance(value, str) and value in known:
        return value
    reason = (reasons or {}).get(value) if isinstance(value, str) else None
    hint = meant(value, known) if reason is None else f": {reason}"
    raise InvalidParameterError(name, value, f"one of {', '.join(known)}", hint)
