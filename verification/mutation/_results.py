"""What came of each module: kept beside the reasons, so that parts can be run at different times."""

import dataclasses
import json
import subprocess
import tomllib
from pathlib import Path

from verification.mutation._modules import PACKAGE, ROOT, code_of, source_of
from verification.mutation._mutants import Key

RESULTS = Path(__file__).parent / "results.json"
SURVIVORS = Path(__file__).parent / "survivors.toml"


@dataclasses.dataclass(frozen=True)
class Tally:
    """The outcome for one module.

    Args:
        module: its name below dpmech, dotted.
        mutants: how many it has.
        tried: how many were tried.
        found: how many made a test fail, not end in time, or run out of memory.
        late: how many of those found did not end in time; None where that was not counted.
        explained: survivors with a reason.
        open: survivors without one: function, expression, what stands there instead, and how many equal ones
            stand before it.
        sample: how many were drawn over the module's group; None where all were tried.
        seed: of the draw; None where all were tried.
        commit: of the library and the tests.
        code: digest of the module's code at that commit.
        by_place: whether the draw was by the place in the list of all mutants, as it once was.
    """

    module: str
    mutants: int
    tried: int
    found: int
    late: int | None
    explained: int
    open: list[list[str | int]]
    sample: int | None
    seed: int | None
    commit: str
    code: str
    by_place: bool = False

    @property
    def changed(self) -> bool:
        """Whether the module's code is another now, or gone."""
        return not source_of(self.module).exists() or code_of(self.module) != self.code

    def summary(self) -> str:
        """One line."""
        return (
            f"{self.module}: {self.mutants} mutants, {self.tried} tried, {self.found} detected "
            f"({self.late} timed out), {self.explained} explained, {len(self.open)} open"
        )


def load_results(path: Path = RESULTS) -> dict[str, Tally]:
    """The tallies by module."""
    if not path.exists():
        return {}
    return {
        name: Tally(name, **values) for name, values in json.loads(path.read_text(encoding="utf-8")).items()
    }


def keep(tally: Tally, path: Path = RESULTS) -> None:
    """Put one module's tally in the place of its last one."""
    values = {name: vars(one).copy() for name, one in (load_results(path) | {tally.module: tally}).items()}
    for one in values.values():
        del one["module"]
    lines = [f"  {json.dumps(name)}: {json.dumps(values[name])}" for name in sorted(values)]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def settled(tally: Tally, reasons: dict[Key, str]) -> Tally:
    """The tally with those of the open ones explained that have a reason by now."""
    left = [key for key in tally.open if (tally.module, *key) not in reasons]
    return dataclasses.replace(tally, open=left, explained=tally.explained + len(tally.open) - len(left))


def load_reasons(path: Path = SURVIVORS) -> dict[Key, str]:
    """Why each mutant that no test can find out changes nothing."""
    reasons: dict[Key, str] = {}
    for entry in tomllib.loads(path.read_text(encoding="utf-8")).get("survivor", []):
        for before, after, *count in entry["changes"]:
            key = entry["module"], entry["function"], before, after, (count or [0])[0]
            if key in reasons:
                raise ValueError(f"{key} stands twice in {path.name}")
            reasons[key] = entry["why"]
    return reasons


def commit() -> str | None:
    """The commit of the library and the tests; None if they differ from it."""
    if _git("status", "--porcelain", "--", PACKAGE, "tests"):
        return None
    return _git("rev-parse", "--short=10", "HEAD")


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()
