"""Provenance: which theorem or accountant a number comes from, as data; words are made from it."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from dpmech.exceptions import InvalidParameterError
from dpmech.numerics.printed import percent, typed, up

__all__ = ["Fact", "Provenance"]

Fact: TypeAlias = float | int | str


@dataclasses.dataclass(frozen=True)
class Provenance:
    """Which theorem or accountant, with the figures that it was used with.

    Args:
        route: a name with dots that stays the same over versions: "gaussian.analytic", "cgd.thm1".
        facts: the figures by name.
        rests_on: where the numbers that it took came from.

    Examples:
        >>> import dpmech as dm
        >>> by = dm.sensitivity(dm.LambdaCGD(8, 0.9), dm.SingleParticipation()).by
        >>> by.route, str(by)
        ('sensitivity.largest_column', 'largest column norm')
    """

    route: str
    facts: Mapping[str, Fact] = dataclasses.field(default_factory=dict, hash=False)
    rests_on: tuple["Provenance", ...] = ()

    def __str__(self) -> str:
        return "; ".join([self._words(), *(f"{_UNDER.get(self.route, '')}{one}" for one in self.rests_on)])

    def _words(self) -> str:
        words = _WORDS.get(self.route)
        try:
            if callable(words):
                return words(self.facts)
            if words is not None:
                return words.format_map({name: _value(value) for name, value in self.facts.items()})
        except (ArithmeticError, LookupError, TypeError, ValueError):
            # Files are read before they are believed: these are not the facts of that route.
            pass
        return ", ".join([self.route, *(f"{name} {value!r}" for name, value in self.facts.items())])

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "route": self.route,
            "facts": dict(self.facts),
            "rests_on": [one.to_dict() for one in self.rests_on],
        }

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> "Provenance":
        """Rebuild from `to_dict`.

        Raises:
            InvalidParameterError: if it is not made of such data.
        """
        plain = set(data) == {"route", "facts", "rests_on"} and isinstance(data["route"], str)
        if not (plain and isinstance(data["facts"], Mapping) and isinstance(data["rests_on"], list)):
            raise InvalidParameterError("by", dict(data), "a route, its facts, and what it rests on")
        if not all(isinstance(value, float | int | str) for value in data["facts"].values()):
            raise InvalidParameterError("by", dict(data), "facts that are numbers or words")
        return Provenance(
            data["route"],
            dict(data["facts"]),
            tuple(Provenance.from_dict(one) for one in data["rests_on"]),
        )


def _value(value: Fact) -> str:
    return typed(value) if isinstance(value, float) else str(value)


def _one_run(facts: Mapping[str, Fact]) -> str:
    text = "one run, {canaries} canaries, {right} of {high} + {low} guesses right".format_map(facts)
    if facts["ways"] != 1:
        text += f", the best of {facts['ways']} ways to guess with a union bound"
    return text


def _chains(facts: Mapping[str, Fact]) -> str:
    return f"b-min-sep importance sampling, {facts['steps']} steps, b {facts['min_sep']}"


def _importance(facts: Mapping[str, Fact]) -> str:
    of = f"Balls-in-Bins importance sampling, {facts['bins']} bins" if "bins" in facts else _chains(facts)
    if "examples" in facts:
        of += f", {facts['examples']} examples of a user"
    text = of
    text += f", two-sided {percent(float(facts['confidence']))} % interval"
    if "direction" in facts:
        parts = [(name, share) for name, share in facts.items() if isinstance(share, float)]
        shown = [f"{name} {share:.0%}" for name, share in parts if name != "confidence"]
        text += f", {facts['direction']} carried by " + "; ".join(shown)
    return text


def _programme(facts: Mapping[str, Fact]) -> str:
    text = f"Balls-in-Bins convex-order programme, {facts['bins']} bins"
    if "decay" in facts:
        excess = up(100.0 * float(facts["excess"]), 2)
        text += f", dominating ring of decay {float(facts['decay']):.4g} "
        text += f"(entries over-stated by {excess} % in the mean)"
    return text


def _best_of_runs(facts: Mapping[str, Fact]) -> str:
    text = "the best of a secret number of runs, {law}".format_map(facts)
    return ", ".join([text, *(f"{name} {_value(value)}" for name, value in facts.items() if name != "law")])


# What a route is called by people; one without an entry is told by its name and its facts.
_WORDS: dict[str, str | Callable[[Mapping[str, Fact]], str]] = {
    "sensitivity.largest_column": "largest column norm",
    "sensitivity.all_columns": "all columns, C >= 0",
    "sensitivity.orthogonal_columns": "at most min_sep bands: squared column norms add",
    "cgd.lem8": "leftmost columns, column-normalised lambda-CGD (Lemma 8)",
    "cgd.thm1": "leftmost columns of the monotone envelope (Theorem 1)",
    "sensitivity.scaled_envelope": "monotone envelope times the largest scale",
    "sensitivity.evenly_spaced": "evenly spaced sets, absolute inner products",
    "sensitivity.best_rows": "row-wise best separated sets of |C^T C|",
    "sensitivity.of_multiplier": "1 / (sigma / sensitivity)",
    "gaussian.analytic": "analytic Gaussian",
    "rdp.releases": "RDP, q={q}, {releases} releases",
    "rdp.fixed": "RDP, lots of {lot} out of {size} without replacement, {releases} releases",
    "pld.poisson": "PLD, Poisson q={q}, {steps} steps, both directions",
    "lattice.poisson": "PLD on a lattice, Poisson q={q}, {steps} steps, both directions",
    "lattice.users": "PLD on a lattice, Poisson q={q}, {examples} examples a user, {steps} steps, both ways",
    "lattice.truncated": "PLD, Poisson q={q}, at most {most} of {size} kept, {steps} steps, both directions",
    "lattice.fixed": "PLD, lots of {lot} out of {size} without replacement, {steps} steps",
    "lattice.counts": "discrete Gaussian noise on {releases} integers, on the lattice of its loss",
    "prv.poisson": "PRV, Poisson q={q}, {steps} steps, both directions",
    "bins.moments": "Balls-in-Bins moments, {bins} bins, both directions",
    "bins.independent": "Balls-in-Bins, {bins} independent bins: the law of their sum on lattices",
    "bins.fresh": "Balls-in-Bins, {bins} independent bins, allocated anew in each of {epochs} epochs",
    "bins.programme": _programme,
    "bins.certified": "Balls-in-Bins certified sampling, {bins} bins, beta {beta}",
    "bins.importance": _importance,
    "chains.certified": "b-min-sep certified sampling, {steps} steps, b {min_sep}, beta {beta}",
    "chains.importance": _importance,
    "users.moments": "Balls-in-Bins moments, {bins} bins, {examples} examples of a user, both directions",
    "users.certified": (
        "Balls-in-Bins certified sampling, {bins} bins, {examples} examples of a user, beta {beta}"
    ),
    "users.importance": _importance,
    "bins.unamplified": "bounded without sampling",
    "claims.basic": "basic composition of (eps, delta) claims",
    "claims.composed": "(eps, delta) claims, composed optimally",
    "rdp.composed": "RDP composition, claims by basic composition",
    "history.empty": "nothing was released",
    "profile.composed": "privacy profiles of {releases} releases, composed",
    "profile.best_of_runs": _best_of_runs,
    "profile.claim": "what (eps, delta) alone says",
    "profile.dp_accounting": "a pessimistic privacy loss distribution of dp-accounting",
    "profile.nodes": "a privacy profile from bounds at {nodes} nodes",
    "filter.budget": "the whole budget, held by a privacy filter",
    "ledger.draws": "sampling error {beta} of {draws} calibrations, once each",
    "ledger.closed": "a closed list, announced whole",
    "ledger.open": "a list that is still open, announced whole",
    "release.none": "nothing was released",
    "release.executed": "holds only if the number of steps was decided without looking at results",
    "audit.one_run": _one_run,
    "audit.shuffled": "{lots} shuffled lots an epoch, {epochs} epochs, {order} order",
    "audit.many_runs": "likelihood-ratio test, {runs} runs in each world, {direction}, Clopper-Pearson",
}
# What stands before the words of what a route rests on.
_UNDER = {"gaussian.analytic": "sensitivity: "}
