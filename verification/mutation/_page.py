"""The page of a run over all modules."""

import dataclasses
import re
from pathlib import Path

HEAD = """# Mutations of the analysis

`python -m verification.mutation` alters the formulas of `dpmech.analysis` one place at a time and runs the
quick tests of that module on each alteration. A sign is changed (`a + b` to `a - b`, `-a` to `a`, a whole
formula to its negative), a factor (`a * b` to `a / b`, a number to its double, a whole formula to its
double), an exponent (`a ** b` to `a * b` and to `a ** (b + 1)`, `sqrt(a)` to `a`), a number is raised by one,
a comparison is turned round, `min` and `max` are exchanged. A run writes this page only if each alteration
makes a test fail or stands below with the reason why it changes no result.

General mutation tools (mutmut, cosmic-ray) know neither factors nor exponents of whole formulas, and mutmut
makes 5938 mutants here, most of them of messages and arguments; so the alterations are our own.
"""


@dataclasses.dataclass(frozen=True)
class Tally:
    """The outcome for one module.

    Args:
        module: its name.
        total: mutants tried.
        killed: how many made a test fail, time out, or run out of memory.
        explained: survivors with a reason.
        late: how many of the killed did not end in time.
        seconds: wall-clock time.
    """

    module: str
    total: int
    killed: int
    explained: int
    late: int
    seconds: float

    def summary(self) -> str:
        """One line."""
        return (
            f"{self.module}: {self.killed} of {self.total} killed, {self.explained} equivalent, "
            f"{self.total - self.killed - self.explained} unexplained, {self.late} did not end "
            f"({self.seconds:.0f} s)"
        )


NOT_RUN = ["not run yet", "", ""]
ROW = re.compile(r"^\| `(\w+)` \| (\d+) \| (\d+) \| (\d+) \|$", re.MULTILINE)


def write_page(
    path: Path, tallies: list[Tally], reasons: dict[tuple[str, str, str, str, int], str], known: list[str]
) -> None:
    """Write the counts and the reasons as Markdown; modules that were not run keep their row.

    Args:
        path: the page.
        tallies: what was run.
        reasons: why each survivor survives.
        known: all modules, in the order of the page.
    """
    rows: dict[str, list[int]] = {}
    if path.exists():
        rows |= {
            name: [int(x) for x in counts] for name, *counts in ROW.findall(path.read_text(encoding="utf-8"))
        }
    rows |= {tally.module: [tally.total, tally.killed, tally.explained] for tally in tallies}
    sums = [sum(column) for column in zip(*(rows[name] for name in known if name in rows), strict=True)]
    lines = [HEAD, "| module | mutants | found out | without effect |", "|---|---|---|---|"]
    lines += [f"| `{name}` | " + " | ".join(map(str, rows.get(name, NOT_RUN))) + " |" for name in known]
    lines += ["| all | " + " | ".join(map(str, sums)) + " |", "", "## Without effect", ""]
    grouped: dict[tuple[str, str, str], list[str]] = {}
    for (module, function, before, after, _), why in reasons.items():
        grouped.setdefault((module, function, why), []).append(f"`{before}` to `{after}`")
    for (module, function, why), changes in grouped.items():
        place = f"{module}.{function}".rstrip(".")
        lines.append(f"- `{place}`: {'; '.join(dict.fromkeys(changes))}. {why}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
