"""The registry of statements (verification/registry/*.toml), and the modules that check them."""

import dataclasses
import importlib
import pkgutil
import tomllib
from collections.abc import Callable
from pathlib import Path

from verification.harness.verdict import Verdict

FOLDER = Path(__file__).parents[1] / "registry"
# A folder of statements for each paper.
PAPERS = ("lambda_cgd", "muon", "noise_share", "sde", "spectral")

# What the registry says of a statement, and the status that its check must reach by itself.
STATUS_OF = {
    "OK": "CONFIRMED",
    "LOOSE": "CONFIRMED",
    "OK*": "CONDITIONAL",
    "AMBIG": "CONDITIONAL",
    "ERR": "REFUTED",
    "FALSE": "REFUTED",
    "TYPO": "REFUTED",
    "EMP": "UNVERIFIABLE",
}


@dataclasses.dataclass(frozen=True)
class Statement:
    """One registry entry.

    Args:
        id: for example "ov.thm1".
        paper: the paper's short name.
        source: where it stands in the paper.
        verdict: a key of STATUS_OF.
        statement: what it says, in our words.
        erratum: what is wrong with it and the corrected form; empty where nothing is.
    """

    id: str
    paper: str
    source: str
    verdict: str
    statement: str
    erratum: str = ""

    def __post_init__(self) -> None:
        if self.verdict not in STATUS_OF:
            raise ValueError(f"{self.id}: verdict must be one of {sorted(STATUS_OF)}, got {self.verdict!r}")

    @property
    def expected(self) -> str:
        """The status that the check must reach."""
        return STATUS_OF[self.verdict]


def registry(folder: Path = FOLDER) -> dict[str, Statement]:
    """Every entry by id, in the order of the files.

    Raises:
        ValueError: on an id that stands twice, an unknown verdict, or an entry in another paper's file.
    """
    found: dict[str, Statement] = {}
    for path in sorted(folder.glob("*.toml")):
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["statement"]:
            item = Statement(**entry)
            if item.id in found:
                raise ValueError(f"{item.id} stands twice in the registry")
            if item.paper != path.stem:
                raise ValueError(f"{item.id} of {item.paper} stands in {path.name}")
            found[item.id] = item
    return found


def load() -> dict[str, Callable[[], Verdict]]:
    """Import every module of checks; returns their FLIPS.

    A flip is a call of a check with a deliberately altered claim or oracle: its status must differ from the
    expected one.

    Raises:
        ValueError: if two modules flip the same id.
    """
    flips: dict[str, Callable[[], Verdict]] = {}
    names = [
        info.name
        for paper in PAPERS
        for info in pkgutil.iter_modules(
            importlib.import_module(f"verification.{paper}").__path__, f"verification.{paper}."
        )
    ]
    for name in names:
        module = importlib.import_module(name)
        for identifier, flip in getattr(module, "FLIPS", {}).items():
            if identifier in flips:
                raise ValueError(f"{identifier} is flipped twice")
            flips[identifier] = flip
    return flips
