"""The registry of statements (verification/registry/*.toml), and the modules that check them.

The format is described in verification/registry/README.md.
"""

import dataclasses
import importlib
import pkgutil
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from verification.harness.verdict import STATUSES, Verdict

FOLDER = Path(__file__).parents[1] / "registry"
# A folder of statements for each paper.
PAPERS = ("lambda_cgd", "muon", "noise_share", "sde", "spectral")
KINDS = ("theorem", "lemma", "proof line", "definition", "prose", "table", "figure")


@dataclasses.dataclass(frozen=True)
class Paper:
    """Where statements come from.

    Args:
        name: the short name, that of the file.
        title: as printed.
        authors: as printed; "Anonymous" where the text names none.
        year: of the version that was read.
        source: which version that was.
        symbols: what the symbols of the statements mean.
    """

    name: str
    title: str
    authors: tuple[str, ...]
    year: int
    source: str
    symbols: str


@dataclasses.dataclass(frozen=True)
class Statement:
    """One registry entry.

    Args:
        id: for example "ov.thm1".
        paper: the paper's short name.
        verdict: one of the ten words of `verification.harness.verdict`.
        statement: what it says, in our words.
        location: section, theorem, equation, table: where a reader finds it.
        kind: one of KINDS.
        line: line of the paper's text near which it stands.
        find: numbers, symbols or terms of at most five words that stand near that line.
        printed: the printed formula or number; a paraphrase of prose.
        hypotheses: what the paper assumes there, as printed; "none" where it assumes nothing.
        garbled: whether the text that we have is damaged there, so that the formula had to be inferred.
        changes_number: for a misprint, whether who uses the printed form gets another number.
        remark: what is right, the condition, what was tried; empty only where there is nothing to say.
        with_note: whether the page gives the note of the run in addition to the remark. Without a remark, it
            always gives the note.
        loose: for the rule that a claim moved by 1 % turns the verdict: where it does not, and why. Keys are
            "up" and "down" (every claim), "NAME up" and "NAME down" (one of the claims), or "no number".
    """

    id: str
    paper: str
    verdict: str
    statement: str
    location: str
    kind: str
    line: int
    find: tuple[str, ...]
    printed: str
    hypotheses: str
    garbled: bool = False
    changes_number: bool = False
    remark: str = ""
    with_note: bool = False
    loose: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self._require("verdict", f"one of {STATUSES}", holds=self.verdict in STATUSES)
        self._require("statement", "a sentence in our words", holds=bool(self.statement))
        self._require("location", "where it stands", holds=bool(self.location))
        self._require("kind", f"one of {KINDS}", holds=self.kind in KINDS)
        self._require("line", "a line of the paper's text, from 1", holds=self.line >= 1)
        short = all(term and len(re.findall(r"(?<!\\)\b[A-Za-z]{2,}\b", term)) <= 5 for term in self.find)
        self._require("find", "terms of at most 5 words", holds=bool(self.find) and short)
        self._require("printed", "the printed formula or number", holds=bool(self.printed))
        self._require("hypotheses", 'the printed hypotheses, or "none"', holds=bool(self.hypotheses))
        needed = self.verdict not in {"CONFIRMED", "BEYOND THE PAPER"}
        self._require("remark", "what is right, or what was tried", holds=bool(self.remark) or not needed)
        self._require(
            "garbled",
            "false for a COUNTEREXAMPLE: a damaged text refutes nothing",
            holds=not (self.garbled and self.verdict == "COUNTEREXAMPLE"),
        )
        self._require(
            "changes_number",
            "for a MISPRINT only",
            holds=not self.changes_number or self.verdict == "MISPRINT",
        )
        self._require(
            "loose", 'keys "[NAME] up", "[NAME] down", "no number"', holds=all(map(_is_direction, self.loose))
        )
        self._require("loose", "a reason for every direction", holds=all(self.loose.values()))

    def _require(self, name: str, accepted: str, *, holds: bool) -> None:
        if not holds:
            raise ValueError(f"{self.id}: {name} must be {accepted}, got {getattr(self, name)!r}")


def _is_direction(key: str) -> bool:
    return key == "no number" or key.endswith(("up", "down"))


def registry(folder: Path = FOLDER) -> dict[str, Statement]:
    """Every entry by id, in the order of the files.

    Raises:
        ValueError: on an id that stands twice, a field that is missing or wrong, or an entry in another
            paper's file.
    """
    found: dict[str, Statement] = {}
    for path in sorted(folder.glob("*.toml")):
        for entry in _read(path)["statement"]:
            try:
                item = Statement(**entry | {"find": tuple(entry["find"])})
            except (KeyError, TypeError) as error:
                raise ValueError(
                    f"{path.name}: {entry.get('id')} lacks a field or has another one"
                ) from error
            if item.id in found:
                raise ValueError(f"{item.id} stands twice in the registry")
            if item.paper != path.stem:
                raise ValueError(f"{item.id} of {item.paper} stands in {path.name}")
            found[item.id] = item
    return found


def papers(folder: Path = FOLDER) -> dict[str, Paper]:
    """Where the statements come from, by short name.

    Raises:
        ValueError: if a field is missing or has another type.
    """
    found = {}
    for path in sorted(folder.glob("*.toml")):
        try:
            entry = _read(path)["paper"]
            found[path.stem] = Paper(path.stem, **entry | {"authors": tuple(entry["authors"])})
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"{path.name}: [paper] takes title, authors, year, source and symbols"
            ) from error
    return found


def _read(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def load() -> dict[str, Callable[[], Verdict]]:
    """Import every module of checks; returns their FLIPS.

    A flip is a call of a check with a deliberately altered claim or oracle: its status must differ from the
    expected one.

    Raises:
        ValueError: if two modules flip the same id.
    """
    return _gathered("FLIPS")


def nudges() -> dict[str, dict[str, Callable[[float], Verdict]]]:
    """The NUDGES of every module: for an id, its numeric claims by name.

    Each claim is a function of a factor: the check with that one number multiplied by it. At 1.01 and at 0.99
    the verdict must turn, or the check must be inconclusive, except where the entry's `loose` says why not.
    Where the printed number is wrong by more than that, the claim is the number put right.
    """
    return _gathered("NUDGES")


def witnesses() -> dict[str, Callable[[], Mapping[str, bool]]]:
    """The WITNESSES of every module: printed hypotheses, and whether they hold; a COUNTEREXAMPLE has some."""
    return _gathered("WITNESSES")


def _gathered(name: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for module in _modules():
        for identifier, one in getattr(module, name, {}).items():
            if identifier in found:
                raise ValueError(f"{identifier} stands twice in {name}")
            found[identifier] = one
    return found


def _modules() -> list[ModuleType]:
    names = [
        info.name
        for paper in PAPERS
        for info in pkgutil.iter_modules(
            importlib.import_module(f"verification.{paper}").__path__, f"verification.{paper}."
        )
    ]
    return [importlib.import_module(name) for name in names]
