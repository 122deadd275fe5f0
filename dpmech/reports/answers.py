"""Answers: what people say in a report about things that no file states, each with who said it."""

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Said:
    """One answer of a person.

    Attributes:
        text: the answer, on one line.
        by: who said it, and when if that is known.
    """

    text: str
    by: str


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One measured number of the model.

    Attributes:
        kind: "utility", or "fairness".
        name: what was measured, such as "accuracy".
        value: the result, as it was written.
        data: the data it was measured on.
        cost: how these data are protected: outside the claim, public, or by which release of the ledger.
        group: the group of people that it is about; empty for all.
        by: who said it.
    """

    kind: str
    name: str
    value: str
    data: str
    cost: str
    group: str
    by: str

    @property
    def words(self) -> str:
        """The measurement in one sentence."""
        group = f" of {self.group}" if self.group else ""
        return f"{self.name}{group}: {self.value}, on {self.data}; privacy of these data: {self.cost}"


@dataclasses.dataclass(frozen=True)
class Answers:
    """What the file of a report's answers says. Nothing in it is verified.

    Attributes:
        items: answers to items of the checklists, by their keys.
        deployment: fields of a registry of deployments that no item is about, by their names.
        base_model: what the training started from, by the names of its entries.
        measurements: measured numbers.
    """

    items: Mapping[str, Said] = dataclasses.field(default_factory=dict)
    deployment: Mapping[str, Said] = dataclasses.field(default_factory=dict)
    base_model: Mapping[str, Said] = dataclasses.field(default_factory=dict)
    measurements: tuple[Measurement, ...] = ()

    def about(self, key: str) -> Said | None:
        """The answer to an item; base model and measurements answer items that have none of their own."""
        own = self.items.get(key)
        if own is not None:
            return own
        if key == "nist.pretraining" and self.base_model:
            text = "; ".join(f"{name.replace('_', ' ')}: {one.text}" for name, one in self.base_model.items())
            return Said(text, next(iter(self.base_model.values())).by)
        kind = {"nist.utility": "utility", "nist.bias": "fairness"}.get(key)
        found = [one for one in self.measurements if one.kind == kind]
        if not found:
            return None
        return Said("; ".join(one.words for one in found), found[0].by)
