"""Names of strategies, samplings and methods, with suggestions for unknown names."""

import dataclasses
import difflib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from dpmech.engines import Certified, Deterministic, Exact, Importance, Method, Pld, Prv, Rdp
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
from dpmech.plans.number_files import read_numbers
from dpmech.schemes import effective_method, unsampled_method

# Shortest prefix that is taken for a name.
_SHORTEST = 3


def meant(given: object, known: Iterable[str]) -> str:
    """`; did you mean ...?` if a known name is close to the given one, otherwise an empty string."""
    text, names = str(given).lower(), list(known)
    near = difflib.get_close_matches(text, names, n=1)
    if not near and len(text) >= _SHORTEST:
        near = [name for name in names if name.startswith(text)]
    return f"; did you mean {near[0]}?" if near else ""


def check_known(
    name: str, value: object, known: Collection[str], reasons: Mapping[str, str] | None = None
) -> str:
    """Return a known name.

    Args:
        name: name of the argument.
        value: the given value.
        known: all known names.
        reasons: why some names that users may look for are missing.

    Raises:
        InvalidParameterError: with the reason, or with the closest known name.
    """
    if isinstance(value, str) and value in known:
        return value
    reason = (reasons or {}).get(value) if isinstance(value, str) else None
    hint = meant(value, known) if reason is None else f": {reason}"
    raise InvalidParameterError(name, value, f"one of {', '.join(known)}", hint)


_Builder = Callable[[int, dict[str, Any]], Strategy]


@dataclasses.dataclass(frozen=True)
class StrategyName:
    """The name of a strategy.

    Attributes:
        title: the name spelled out, with its abbreviation.
        kind: its class.
        options: its options, and how they are written in a comparison.
        build: builds the strategy from the number of steps and the options.
        optional: options that may be omitted.
    """

    title: str
    kind: type[Strategy]
    options: dict[str, str]
    build: _Builder
    optional: frozenset[str] = frozenset()

    @property
    def due(self) -> tuple[str, ...]:
        """The required options."""
        return tuple(name for name in self.options if name not in self.optional)

    def written(self, name: str) -> str:
        """Its notation in a comparison: bandmf:coefs=1/0.5/0.2."""
        return ":".join([name, *(f"{key}={self.options[key]}" for key in self.due)])


_LISTED = "1/0.5/0.2"

STRATEGIES: dict[str, StrategyName] = {
    "identity": StrategyName("independent noise", Identity, {}, lambda n, _: Identity(n)),
    "lambda-cgd": StrategyName(
        "lambda-CGD: each step subtracts lambda times the previous noise",
        LambdaCGD,
        {"lam": "0.9"},
        lambda n, o: LambdaCGD(n, o["lam"]),
    ),
    "bsr": StrategyName(
        "banded square root (BSR)",
        SquareRoot,
        {"bands": "16"},
        lambda n, o: SquareRoot(n, o.get("bands")),
        frozenset({"bands"}),
    ),
    "bisr": StrategyName(
        "banded inverse square root (BISR)",
        InverseSquareRoot,
        {"bands": "16"},
        lambda n, o: InverseSquareRoot(n, o["bands"]),
    ),
    "bandmf": StrategyName(
        "banded matrix factorization (BandMF)",
        BandedToeplitz,
        {"coefs": _LISTED},
        lambda n, o: BandedToeplitz(n, o["coefs"]),
    ),
    "bandinv": StrategyName(
        "banded inverse matrix factorization (BandInvMF)",
        BandedInverse,
        {"coefs": "1/-0.5/-0.1"},
        lambda n, o: BandedInverse(n, o["coefs"]),
    ),
    "blt": StrategyName(
        "buffered linear Toeplitz (BLT)",
        BLT,
        {"decays": "0.9/0.5", "scales": "0.2/0.1"},
        lambda n, o: BLT(n, o["decays"], o["scales"]),
    ),
    "dense": StrategyName(
        "any lower-triangular matrix, from a file",
        Dense,
        {"matrix": "FILE"},
        lambda n, o: Dense(read_numbers("matrix", o["matrix"], (n, n))),
    ),
}

# Why samplings that users may look for are missing.
_WITHOUT_THEOREM = (
    "no theorem in dpmech covers amplification by shuffling: an example may end one epoch and begin the "
    "next; use balls-in-bins for amplification, min-sep or epochs for a fixed order, every-step for any order"
)
NO_SAMPLINGS = {"shuffle": _WITHOUT_THEOREM, "shuffled": _WITHOUT_THEOREM, "shuffling": _WITHOUT_THEOREM}


def samplings() -> dict[str, type[Participation]]:
    """Every registered participation by its name in plans, including those registered late."""
    return {kind.plan_name: kind for kind in kinds()}


# Names of classes, in the spelling of plans.
_ALIASES = {"fixed-epochs": "epochs", "fixed-size-batches": "fixed-size", "single-participation": "single"}


def sampling_name(name: str) -> str:
    """The name in plans of a sampling, which may be given by its class: `fixed-epochs` is `epochs`."""
    plain, colon, flags = name.partition(":")
    return _ALIASES.get(plain, plain) + colon + flags


def sampling_kind(name: object) -> type[Participation]:
    """The participation with this name in plans, or with that of `sampling_name`.

    Raises:
        InvalidParameterError: if no registered participation has this name.
    """
    known, plain = samplings(), sampling_name(name) if isinstance(name, str) else name
    return known[check_known("sampling", plain, known, NO_SAMPLINGS)]


def owners() -> dict[str, str]:
    """The samplings that have a setting: `truncated_batch_size` -> `poisson`, and so on."""
    found: dict[str, list[str]] = {}
    for kind in kinds():
        for setting in kind.plan_settings:
            found.setdefault(setting, []).append(kind.plan_name)
    return {setting: ", ".join(names) for setting, names in found.items()}


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
    """The method of this name; with `rigorous` one without a sampling error outside delta.

    Args:
        name: a key of METHODS, or None for the default.
        participation: which examples take part when.
        rigorous: whether `dpmech verify --rigorous` must accept the result.
        seeded: whether the caller supplies the random numbers, so that beta stays outside delta.

    Raises:
        InvalidParameterError: if the name is unknown, or a rigorous method is required and this is not.
    """
    if name is not None:
        check_known("method", name, METHODS)
    if name == "importance" and rigorous:
        raise InvalidParameterError(
            "method", name, "left out, or a method that proves a bound, with --rigorous"
        )
    if name == "certified" and rigorous and seeded:
        raise InvalidParameterError("method", name, "left out, or without a seed, with --rigorous")
    if name is None and rigorous and seeded:
        unsampled = unsampled_method(participation)
        if unsampled is None and effective_method(participation, None).error > 0.0:
            raise InvalidParameterError("seed", "given", f"left out with --rigorous under {participation!r}")
        return unsampled
    if name is None:
        return None
    return METHODS[name]


# Strategies whose coefficients, or number of bands, can be fitted.
FAMILIES: dict[str, type[Strategy]] = {
    "lambda-cgd": LambdaCGD,
    "bisr": InverseSquareRoot,
    "bandmf": BandedToeplitz,
    "bandinv": BandedInverse,
    "blt": BLT,
    "dense": Dense,
}
