"""What a certificate claims, and for which mechanism: converts `claim` to a checked `Claim`."""

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any

from flint import arb

from .documents import BadDocument, entries, shown
from .losses import rounded_up
from .strategies import NotChecked, Strategy, reciprocal, strategy_of

_REST = dict.fromkeys(("guarantee", "evidence", "trainer", "fingerprint", "checksum"), Any)
_CLAIM: dict[str, Any] = {
    "eps": float, "delta": float, "adjacency": str, "sigma": float, "unit": str, "n": int, "strategy": Any,
    "strategy_hash": Any, "participation": dict, "clip_norm": float | dict | None, "expected_batch_size": Any,
    "coefficients": Any, "dataset_size": int | None,
}  # fmt: skip
_ADAPTIVE: dict[str, Any] = {
    "type": str, "initial": Any, "quantile": Any, "rate": Any, "count_share": Any, "gradient_sigma": float,
    "count_stddev": float, "count_of_zero": float,
}  # fmt: skip
COEFFICIENTS = ("C", "C^-1")
_LARGEST, _MOST_COEFFICIENTS = 2**53, 100_000
_LARGEST_EPS, _LEAST_DELTA = 1e9, 1e-300
_MOST_STEPS = 10_000_000  # over all certificates in a file, to limit the memory for C


@dataclasses.dataclass(frozen=True)
class Claim:
    """(eps, delta) for a strategy, a participation and an adjacency at noise `sigma` and clip norm 1."""

    eps: float
    delta: float
    sigma: arb  # a ball; with an adaptive clip norm, the effective noise of its two noise scales
    adjacency: str
    unit: str
    strategy: Strategy
    participation: dict[str, Any]  # the entries of `claim.participation`
    kind: str  # type of the strategy

    def __str__(self) -> str:
        sigma = repr(float(self.sigma)) if self.sigma.is_exact() else rounded_up(self.sigma)
        own = [f"{shown(key)[1:-1]} {shown(x)}" for key, x in self.participation.items() if x is not None]
        return (
            f"eps {self.eps!r}, delta {self.delta!r}, {self.adjacency}, unit {self.unit}; {self.kind}, "
            f"n {self.strategy.n}, {', '.join(own)[:300].removeprefix('type ')}, sigma {sigma}"
        )

    def _entry(self, name: str, fits: Callable[[Any], bool], words: str) -> Any:  # noqa: ANN401 - as in the file
        value = self.participation.get(name)
        if not fits(value):
            raise BadDocument(f"{name} of the participation is {shown(value)}, not {words}")
        return value

    def integer(self, name: str, least: int, most: int = _LARGEST) -> int:
        """Return an entry of the participation that is an integer in [least, most]."""
        words = f"an integer in [{least}, {most}]"
        return int(self._entry(name, lambda x: type(x) is int and least <= x <= most, words))

    def probability(self, name: str) -> float:
        """Return an entry of the participation that is a float in (0, 1]."""
        return float(self._entry(name, lambda x: type(x) is float and 0.0 < x <= 1.0, "a float in (0, 1]"))

    def probabilities(self, name: str, count: int) -> list[float]:
        """Return an entry that is one probability for all of `count` steps, or a list of theirs."""
        if not isinstance(self.participation.get(name), list):
            return [self.probability(name)] * count
        fit = lambda x: len(x) == count and all(type(q) is float and 0.0 < q < 1.0 for q in x)  # noqa: E731
        return list(self._entry(name, fit, f"a list of {count} floats in (0, 1)"))

    def optional(self, name: str, least: int, most: int = _LARGEST) -> int | None:
        """Return an entry of the participation that is null, or an integer in [least, most]."""
        return None if self.participation.get(name) is None else self.integer(name, least, most)

    def flag(self, name: str) -> bool:
        """Return an entry of the participation that is true or false."""
        return bool(self._entry(name, lambda x: type(x) is bool, "true or false"))

    def examples(self) -> int | None:
        """Number of examples of a user that take part; None if the participation is not about users."""
        return self.optional("max_examples_per_user", 1, 1000)

    def only(self, *names: str) -> None:
        """Refuse a participation with entries other than its type and these."""
        if set(self.participation) != {"type", *names}:
            raise BadDocument(f"the participation has the entries {shown(sorted(self.participation))}")


def claim_of(document: dict[str, Any], steps: int = 0) -> Claim:
    """Return the claim of a decoded certificate; the certificates of its file up to it have `steps` steps."""
    what = "a certificate of schema version 1"
    version = entries(document, what, schema_version=int, claim=dict, **_REST)["schema_version"]
    if version != 1:
        raise BadDocument(f"it has schema version {version}, and is not {what}")
    claim = entries(document["claim"], "the claim", ("dataset_size",), **_CLAIM)
    eps, delta, sigma, size = claim["eps"], claim["delta"], claim["sigma"], claim.get("dataset_size")
    if eps < 0.0 or not 0.0 < delta < 1.0 or sigma <= 0.0:
        raise BadDocument(f"eps {eps!r}, delta {delta!r}, sigma {sigma!r} are not >= 0, in (0, 1) and > 0")
    if eps > _LARGEST_EPS or delta < _LEAST_DELTA:
        raise NotChecked(f"eps above {_LARGEST_EPS:g} or delta below {_LEAST_DELTA:g}")
    if steps > _MOST_STEPS:
        raise NotChecked(f"certificates of more than {_MOST_STEPS} steps in one file")
    adjacency, unit, participation = claim["adjacency"], claim["unit"], claim["participation"]
    if adjacency not in {"add_remove", "zero_out", "replace_one"} or unit not in {"example", "user"}:
        raise BadDocument(f"adjacency {shown(adjacency)} or unit {shown(unit)} is unknown")
    strategy = strategy_of(claim["strategy"])
    if claim["n"] != strategy.n:
        raise BadDocument(f"claim.n is {claim['n']}, but the strategy has {strategy.n} steps")
    if not isinstance(participation.get("type"), str):
        raise BadDocument(f"claim.participation is {shown(participation)}, which has no type")
    if size is not None and not 1 <= size <= _LARGEST:
        raise BadDocument(f"dataset_size is {size}, not an integer in [1, {_LARGEST}]")
    if size is not None and participation.get("dataset_size") not in (None, size):
        raise BadDocument(f"dataset_size of the claim is {size}, not that of its participation")
    _check_coefficients(claim["coefficients"], strategy)
    noise, kind = _noise(claim["clip_norm"], sigma), claim["strategy"]["type"]
    return Claim(eps, delta, noise, adjacency, unit, strategy, participation, kind)


def _check_coefficients(stated: Any, strategy: Strategy) -> None:  # noqa: ANN401 - what the file holds
    """Check that the stated first coefficients of C or C^-1, for readers without dpmech, fit the strategy."""
    if not isinstance(stated, dict) or stated.get("of") not in COEFFICIENTS:
        return
    of, leading, total = stated["of"], stated.get("leading"), stated.get("total")
    most = min(_MOST_COEFFICIENTS, total if type(total) is int and total <= strategy.n else 0)
    if strategy.coefs is None or not isinstance(leading, list) or not 0 < len(leading) <= most:
        raise BadDocument(f"the coefficients are {shown(leading)}, of {shown(total)}")
    if stated.get("columns_scaled") is not (strategy.scale is not None):
        raise BadDocument("the coefficients say otherwise whether columns are scaled")
    own = strategy.coefs[:_MOST_COEFFICIENTS]
    if of == "C^-1":
        own = reciprocal(own, len(own))
    sizes = list(itertools.accumulate((float(c.abs_upper()) for c in own[: len(leading)]), max))
    if any(c.abs_lower() > 1e-9 * sizes[-1] for c in own[total:]):
        raise BadDocument(f"{of} has more than the {total} coefficients that are stated")
    for t, (value, c, size) in enumerate(zip(leading, own, sizes, strict=False)):
        if type(value) is not float or not abs(value - float(c)) <= 1e-9 * size < math.inf:
            raise BadDocument(f"coefficient {t} of {of} is stated as {shown(value)}, not {float(c)!r}")


def _noise(clip: float | dict[str, Any] | None, sigma: float) -> arb:
    """Return sigma, or the effective noise of an adaptive clip norm: docs/checker.md, section 1."""
    if not isinstance(clip, dict):
        if clip is not None and not clip > 0.0:
            raise BadDocument(f"clip_norm is {clip!r}, not null, a float > 0 or an AdaptiveClip")
        return arb(sigma)
    entries(clip, "clip_norm", **_ADAPTIVE)
    gradient, count, zero = clip["gradient_sigma"], clip["count_stddev"], clip["count_of_zero"]
    if clip["type"] != "AdaptiveClip" or gradient <= 0.0 or count <= 0.0:
        raise BadDocument(f"clip_norm is {shown(clip)}, not an AdaptiveClip with noise scales > 0")
    if zero != 0.0:
        raise BadDocument(f"an AdaptiveClip has to count a gradient of zero as 0, not {zero!r}")
    together = (arb(gradient) ** -2 + (2 * arb(count)) ** -2).rsqrt()
    return arb(sigma).min(together)
