"""The faults as data: what is altered where, which sigma falls, and what the checker said of it."""

import ast
import dataclasses
import functools
import itertools
import json
import tomllib
from collections.abc import Iterable
from pathlib import Path

from verification.faults._factors import scaled
from verification.mutation._modules import PACKAGE, ROOT, all_mutants, source_of
from verification.mutation._mutants import Key, Mutant

__all__ = [
    "CORPUS",
    "LEAST_FALL",
    "STILL_TRUE",
    "Change",
    "Fault",
    "NotThereError",
    "alterations",
    "by_hand",
    "load",
    "modules",
    "of_packages",
    "save",
]

CORPUS = Path(__file__).parent / "corpus.json"
STILL_TRUE = Path(__file__).parent / "still_true.json"
BY_HAND = Path(__file__).parent / "by_hand.toml"
FOLDERS = ("engines", "mechanism", "numerics", "schemes")
LEAST_FALL = 0.005


class NotThereError(LookupError):
    """What a fault alters does not stand in the library as it is."""


@dataclasses.dataclass(frozen=True, order=True)
class Change:
    """An alteration of one module that issues claims.

    Attributes:
        module: its name below dpmech, dotted.
        function: the function it stands in, dotted; "" for the body of the module.
        before: the expression, as `ast.unparse` writes it, or the statement that gets a factor; of a change
            by hand the text of the source.
        after: what stands there instead.
        count: how many equal alterations stand before it in the same function; 0 for one by hand.
        by_hand: what it is, in a few words; "" for one that `alterations` makes.
    """

    module: str
    function: str
    before: str
    after: str
    count: int = 0
    by_hand: str = ""

    def tree(self) -> ast.Module:
        """The altered module.

        Raises:
            NotThereError: if the module has no such expression, or not once the text of one by hand.
        """
        if self.by_hand:
            source, start = self._text()
            return ast.parse(source[:start] + self.after + source[start + len(self.before) :])
        return self._mutant().tree

    def lines(self) -> range:
        """The lines whose execution runs it; none if the import does.

        Raises:
            NotThereError: as for `tree`.
        """
        if self.by_hand:
            source, start = self._text()
            first = source.count("\n", 0, start) + 1
            return range(first, first + self.before.count("\n") + 1)
        return self._mutant().lines

    def _mutant(self) -> Mutant:
        key = (self.module, self.function, self.before, self.after, self.count)
        found = _mutants(self.module).get(key)
        if found is None:
            raise NotThereError(f"no {self.before!r} to alter into {self.after!r}")
        return found

    def _text(self) -> tuple[str, int]:
        path = source_of(self.module)
        source = path.read_text(encoding="utf-8") if path.exists() else ""
        # The same lines may stand in several classes: that of the function is meant.
        first, last = _span(source, self.function.partition(".")[0])
        times = source.count(self.before, first, last)
        if times != 1:
            raise NotThereError(f"{self.before!r} occurs {times} times, not once")
        return source, source.index(self.before, first, last)

    def __str__(self) -> str:
        place = f"{self.module}.{self.function}".rstrip(".")
        return f"{place}: {self.by_hand or f'{self.before} -> {self.after} [{self.count}]'}"


@dataclasses.dataclass(frozen=True, order=True)
class Fault:
    """A change that lowers the sigma of a plan by LEAST_FALL or more.

    Attributes:
        change: what is altered.
        plan: the name of the plan.
        sigma: of the library as it is.
        lowered: of the altered one.
        verdict: of the checker, on the file that the altered library wrote: PROVED, REFUTED, NOT CHECKED, or
            NO DOCUMENT where it refused to read it.
        library: what the library as it is says of the claim: "false" if its lower bound on delta at the
            lowered sigma is above the claimed delta, "true" if its upper bound is not, "open" otherwise.
    """

    change: Change
    plan: str
    sigma: float
    lowered: float
    verdict: str
    library: str

    @property
    def fall(self) -> float:
        """By how much sigma fell, relative."""
        return 1.0 - self.lowered / self.sigma

    def __str__(self) -> str:
        return (
            f"{self.verdict} (by the library {self.library}): {self.plan}, sigma {self.sigma:.6g} to "
            f"{self.lowered:.6g}: {self.change}"
        )


@functools.cache
def _mutants(module: str) -> dict[Key, Mutant]:
    if not source_of(module).exists():
        return {}
    return {one.key: one for several in alterations(module) for one in several}


def alterations(module: str) -> tuple[list[Mutant], list[Mutant]]:
    """All alterations of a module that are made: factors, and those of `verification.mutation`."""
    return list(scaled(module, source_of(module).read_text(encoding="utf-8"))), all_mutants(module)


def modules() -> list[str]:
    """All modules that issue claims, dotted, below dpmech."""
    paths = [path for folder in FOLDERS for path in (ROOT / PACKAGE / folder).rglob("*.py")]
    return sorted(".".join(path.relative_to(ROOT / PACKAGE).with_suffix("").parts) for path in paths)


def of_packages(faults: Iterable[Fault]) -> list[tuple[str, list[Fault]]]:
    """Faults by the folder of their module, sorted."""
    found: dict[str, list[Fault]] = {}
    for fault in sorted(faults):
        found.setdefault(fault.change.module.rpartition(".")[0], []).append(fault)
    return sorted(found.items())


def by_hand() -> list[Change]:
    """The changes that were thought of."""
    return [Change(**entry) for entry in tomllib.loads(BY_HAND.read_text(encoding="utf-8"))["fault"]]


def load(path: Path = CORPUS) -> list[Fault]:
    """The faults of a file; none if there is no such file."""
    if not path.exists():
        return []
    faults = []
    for entry in json.loads(path.read_text(encoding="utf-8")):
        change = Change(**{field.name: entry.pop(field.name) for field in dataclasses.fields(Change)})
        faults.append(Fault(change, **entry))
    return faults


def save(faults: Iterable[Fault], path: Path = CORPUS) -> None:
    """Write faults to a file, one a line, in the order of their places."""
    entries = []
    for fault in sorted(faults):
        entry = dataclasses.asdict(fault)
        entries.append(json.dumps(entry.pop("change") | entry))
    path.write_text("[\n" + ",\n".join(entries) + "\n]\n", encoding="utf-8")


def _span(source: str, name: str) -> tuple[int, int]:
    """Where a class begins and ends; all of the module for any other name."""
    starts = [0, *itertools.accumulate(len(line) for line in source.splitlines(keepends=True))]
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return starts[node.lineno - 1], starts[node.end_lineno or node.lineno]
    return 0, len(source)
