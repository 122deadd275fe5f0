"""Method objects: which accountant to use, and with which settings."""

import dataclasses

from dpmech.exceptions import InvalidParameterError

__all__ = ["Exact", "Method", "Pld", "Prv", "Rdp"]


@dataclasses.dataclass(frozen=True)
class Method:
    """Base of all method objects; None in place of one means the best valid default."""


@dataclasses.dataclass(frozen=True)
class Pld(Method):
    """Privacy loss distributions on a lattice, composed by FFT: a rigorous bracket at any delta."""


@dataclasses.dataclass(frozen=True)
class Prv(Method):
    """The PRV accountant of the prv-accountant package, in both directions, with its error bounds."""


@dataclasses.dataclass(frozen=True)
class Rdp(Method):
    """Renyi differential privacy: an upper bound only, loose at small eps."""


@dataclasses.dataclass(frozen=True)
class Exact(Method):
    """An exact formula, refused where there is none."""


def check_method(value: object) -> Method | None:
    """Return a method object or None, else raise InvalidParameterError."""
    if value is not None and not isinstance(value, Method):
        raise InvalidParameterError("method", value, "None or a method object such as dm.Pld()")
    return value
