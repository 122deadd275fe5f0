"""The names by which people call strategies, samplings and methods."""

from collections.abc import Callable
from typing import Any

import numpy as np

from dpmech.accounting import (
    Certified,
    Deterministic,
    Exact,
    Importance,
    Method,
    Pld,
    Prv,
    Rdp,
    unsampled_method,
)
from dpmech.exceptions import InvalidParameterError
from dpmech.mechanism import (
    BLT,
    BandedInverse,
    BandedToeplitz,
    Dense,
    Identity,
    InverseSquareRoot,
    LambdaCGD,
    Participation,
    SquareRoot,
    Strategy,
    kinds,
)

__all__ = ["FAMILIES", "METHODS", "STRATEGIES", "chosen_method", "owners", "sampling_kind", "samplings"]

_Builder = Callable[[int, dict[str, Any]], Strategy]

# Name on the command line -> (options it takes, how it is built).
STRATEGIES: dict[str, tuple[tuple[str, ...], _Builder]] = {
    "identity": ((), lambda n, _: Identity(n)),
    "lambda-cgd": (("lam",), lambda n, o: LambdaCGD(n, o["lam"])),
    "bsr": (("bands",), lambda n, o: SquareRoot(n, o.get("bands"))),
    "bisr": (("bands",), lambda n, o: InverseSquareRoot(n, o["bands"])),
    "bandmf": (("coefs",), lambda n, o: BandedToeplitz(n, o["coefs"])),
    "bandinv": (("coefs",), lambda n, o: BandedInverse(n, o["coefs"])),
    "blt": (("decays", "scales"), lambda n, o: BLT(n, o["decays"], o["scales"])),
    "dense": (("matrix",), lambda n, o: _dense(n, o["matrix"])),
}

_OPTIONAL = {("bsr", "bands")}


def samplings() -> dict[str, type[Participation]]:
    """Every registered participation by its name in plans, those that were registered late included."""
    return {kind.plan_name: kind for kind in kinds()}


def sampling_kind(name: object) -> type[Participation]:
    """The participation that a plan calls so.

    Raises:
        InvalidParameterError: if it is no name of a registered one.
    """
    known = samplings()
    if not isinstance(name, str) or name not in known:
        raise InvalidParameterError("sampling", name, "one of " + ", ".join(known))
    return known[name]


def owners() -> dict[str, str]:
    """Which sampling takes a setting that one alone takes: `cycle` -> `cyclic-poisson`, and so on."""
    return {setting: kind.plan_name for kind in kinds() for setting in kind.plan_settings}


METHODS: dict[str, Method] = {
    "pld": Pld(),
    "prv": Prv(),
    "rdp": Rdp(),
    "exact": Exact(),
    "importance": Importance(),
    "certified": Certified(),
    "deterministic": Deterministic(),
}


def chosen_method(
    name: str | None, participation: Participation, *, rigorous: bool, seeded: bool
) -> Method | None:
    """The method of this name; with `rigorous` one that leaves nothing to chance outside delta.

    Args:
        name: a key of METHODS, or None for the default.
        participation: who takes part when.
        rigorous: whether `dpmech verify --rigorous` is to accept what it gives.
        seeded: whether the caller supplies the random numbers, so that beta stays outside delta.

    Raises:
        InvalidParameterError: on an unknown name, or a method that is not rigorous where one is asked for.
    """
    if name is not None and name not in METHODS:
        raise InvalidParameterError("method", name, "one of " + ", ".join(METHODS))
    if name == "importance" and rigorous:
        raise InvalidParameterError("method", name, "certified or deterministic with --rigorous")
    if name == "certified" and rigorous and seeded:
        raise InvalidParameterError("method", name, "left out, or without a seed, with --rigorous")
    if name is None:
        return unsampled_method(participation) if rigorous and seeded else None
    return METHODS[name]


FAMILIES: dict[str, type[Strategy]] = {
    "lambda-cgd": LambdaCGD,
    "bandmf": BandedToeplitz,
    "bandinv": BandedInverse,
    "blt": BLT,
    "dense": Dense,
}


def _dense(n: int, path: str) -> Strategy:
    try:
        matrix = (
            np.load(path, allow_pickle=False)
            if str(path).endswith(".npy")
            else np.loadtxt(path, delimiter=",", ndmin=2)
        )
    except (OSError, ValueError) as error:
        raise InvalidParameterError("matrix", str(path), f"a readable .npy or CSV file ({error})") from error
    strategy = Dense(matrix)
    if strategy.n != n:
        raise InvalidParameterError("matrix", f"{strategy.n} x {strategy.n}", f"{n} x {n}, one row a step")
    return strategy
