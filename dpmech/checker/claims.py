"""What a certificate claims, and which mechanism that is: `claim` to a `Claim`, with every entry checked."""

import dataclasses
import math
from typing import Any

from flint import arb

from .documents import BadDocument, shown
from .losses import rounded_up
from .strategies import NotChecked, Strategy, reciprocal, strategy_of

__all__ = ["COEFFICIENTS", "Claim", "claim_of"]

_ENTRIES = {
    "eps", "delta", "adjacency", "sigma", "unit", "n", "strategy", "strategy_hash", "participation",
    "clip_norm", "expected_batch_size", "coefficients",
}  # fmt: skip
_OPTIONAL = {"dataset_size"}
_DOCUMENT = {"guarantee", "schema_version", "claim", "evidence", "trainer", "fingerprint", "seal"}
_ADAPTIVE = {
    "type", "initial", "quantile", "rate", "count_share", "gradient_sigma", "count_stddev", "count_of_zero",
}  # fmt: skip
_LARGEST = 2**53
COEFFICIENTS = ("C", "C^-1")
_MOST_COEFFICIENTS = 100_000
_LARGEST_EPS, _LEAST_DELTA = 1e5, 1e-300


@dataclasses.dataclass(frozen=True)
class Claim:
    """(eps, delta) for a strategy, a participation and an adjacency at noise `sigma`, clip norm 1.

    Attributes:
        sigma: a ball; with an adaptive clip norm the noise that its two noise scales leave together.
        participation: the entries of `claim.participation`.
        kind: the type of the strategy.
    """

    eps: float
    delta: float
    sigma: arb
    adjacency: str
    unit: str
    strategy: Strategy
    participation: dict[str, Any]
    kind: str

    def __str__(self) -> str:
        sigma = repr(float(self.sigma)) if self.sigma.is_exact() else rounded_up(self.sigma)
        own = ", ".join(f"{shown(name)[1:-1]} {shown(value)}" for name, value in self.participation.items())
        return (
            f"eps {self.eps!r}, delta {self.delta!r}, {self.adjacency}, unit {self.unit}; {self.kind}, "
            f"n {self.strategy.n}, {own[:300]}, sigma {sigma}"
        )

    def integer(self, name: str, least: int, most: int = _LARGEST) -> int:
        """An entry of the participation that is an integer in [least, most]."""
        value = self.participation.get(name)
        if type(value) is not int or not least <= value <= most:
            raise BadDocument(
                f"{name} of the participation is {shown(value)}, not an integer in [{least}, {most}]"
            )
        return value

    def probability(self, name: str) -> float:
        """An entry of the participation that is a float in (0, 1]."""
        value = self.participation.get(name)
        if type(value) is not float or not 0.0 < value <= 1.0:
            raise BadDocument(f"{name} of the participation is {shown(value)}, not a float in (0, 1]")
        return value

    def only(self, *names: str) -> None:
        """Refuse a participation with other entries than its type and these."""
        if set(self.participation) != {"type", *names}:
            raise BadDocument(f"the participation has the entries {shown(sorted(self.participation))}")


def claim_of(document: dict[str, Any]) -> Claim:
    """The claim of a decoded certificate."""
    if (
        set(document) != _DOCUMENT
        or type(document["schema_version"]) is not int
        or document["schema_version"] != 1
    ):
        raise BadDocument("it is not a certificate of schema version 1")
    claim = document["claim"]
    if not isinstance(claim, dict) or set(claim) - _OPTIONAL != _ENTRIES:
        raise BadDocument("its claim has other entries than that of a certificate of schema version 1")
    eps, delta, sigma = (_number(claim, name) for name in ("eps", "delta", "sigma"))
    if eps < 0.0 or not 0.0 < delta < 1.0 or sigma <= 0.0:
        raise BadDocument(
            f"eps {eps!r}, delta {delta!r} and sigma {sigma!r} have to be >= 0, in (0, 1) and > 0"
        )
    if eps > _LARGEST_EPS or delta < _LEAST_DELTA:
        raise NotChecked(f"eps above {_LARGEST_EPS:g} or delta below {_LEAST_DELTA:g}")
    if claim["adjacency"] not in ("add_remove", "zero_out", "replace_one") or claim["unit"] not in (
        "example",
        "user",
    ):
        raise BadDocument(f"adjacency {shown(claim['adjacency'])} or unit {shown(claim['unit'])} is unknown")
    strategy = strategy_of(claim["strategy"])
    if type(claim["n"]) is not int or claim["n"] != strategy.n:
        raise BadDocument(f"claim.n is {shown(claim['n'])}, but the strategy has {strategy.n} steps")
    participation = claim["participation"]
    if not isinstance(participation, dict) or not isinstance(participation.get("type"), str):
        raise BadDocument(f"claim.participation is {shown(participation)}")
    size = claim.get("dataset_size")
    if size is not None and (type(size) is not int or not 1 <= size <= _LARGEST):
        raise BadDocument(f"dataset_size is {shown(size)}, not an integer in [1, {_LARGEST}]")
    if size is not None and participation.get("dataset_size", size) != size:
        raise BadDocument("dataset_size of the claim is not that of its participation")
    _check_coefficients(claim["coefficients"], strategy)
    noise = _noise(claim["clip_norm"], sigma)
    return Claim(
        eps,
        delta,
        noise,
        claim["adjacency"],
        claim["unit"],
        strategy,
        participation,
        str(claim["strategy"]["type"]),
    )


def _check_coefficients(stated: Any, strategy: Strategy) -> None:  # noqa: ANN401 - what the file holds
    """The first coefficients of C or C^-1, which readers without dpmech go by, may not say otherwise."""
    if not isinstance(stated, dict) or stated.get("of") not in COEFFICIENTS:
        return
    leading = stated.get("leading")
    if (
        strategy.coefs is None
        or not isinstance(leading, list)
        or not (0 < len(leading) <= min(strategy.n, _MOST_COEFFICIENTS))
    ):
        raise BadDocument(f"the coefficients are {shown(leading)}")
    if stated.get("columns_scaled") is not (strategy.scale is not None):
        raise BadDocument("the coefficients say otherwise whether columns are scaled")
    total = stated.get("total")
    if type(total) is not int or not len(leading) <= total <= strategy.n:
        raise BadDocument(f"the number of coefficients is {shown(total)}")
    own = strategy.coefs[:_MOST_COEFFICIENTS]
    if stated["of"] == "C^-1":
        own = reciprocal(own, len(own))
    largest = max(float(c.abs_upper()) for c in own[: len(leading)])
    if any(c.abs_lower() > 1e-9 * largest for c in own[total:]):
        raise BadDocument(f"{stated['of']} has more than the {total} coefficients that are stated")
    for t, (value, c) in enumerate(zip(leading, own, strict=False)):
        if type(value) is not float or not abs(value - float(c)) <= 1e-9 * largest:
            raise BadDocument(
                f"coefficient {t} of {stated['of']} is stated as {shown(value)}, not {float(c)!r}"
            )


def _number(record: dict[str, Any], name: str) -> float:
    value = record[name]
    if type(value) is not float or not math.isfinite(value):
        raise BadDocument(f"{name} is {shown(value)}, not a float")
    return value


def _noise(clip: Any, sigma: float) -> arb:  # noqa: ANN401 - what the file holds
    """sigma, or what an adaptive clip norm leaves of it.

    The gradients of a step over its clip norm get noise of standard deviation g, the count of +1/2 and -1/2
    gets c: one example adds a vector of norm at most (g^-2 + (2 c)^-2)^(1/2) in noise scales. Where its
    gradient is zero it must add the zero vector, or under zero_out the count would move by 1.
    """
    if clip is None or (type(clip) is float and 0.0 < clip < math.inf):
        return arb(sigma)
    if not isinstance(clip, dict) or set(clip) != _ADAPTIVE or clip["type"] != "AdaptiveClip":
        raise BadDocument(f"clip_norm is {shown(clip)}, not null, a number > 0 or an AdaptiveClip")
    if _number(clip, "count_of_zero") != 0.0:
        raise BadDocument("an AdaptiveClip has to count a gradient of zero as 0")
    gradient, count = _number(clip, "gradient_sigma"), _number(clip, "count_stddev")
    if gradient <= 0.0 or count <= 0.0:
        raise BadDocument("the noise scales of an AdaptiveClip have to be > 0")
    together = (arb(gradient) ** -2 + (2 * arb(count)) ** -2).rsqrt()
    return arb(sigma).min(together)
