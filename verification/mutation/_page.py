"""The page: what was altered, what found it out, and why the rest changes no result."""

from pathlib import Path

from verification.mutation._modules import GROUPS, group_of
from verification.mutation._mutants import Key
from verification.mutation._results import Tally

HEAD = """# Mutations

`python -m verification.mutation`, in a checkout, alters the formulas of a module one place at a time and
runs the quick tests and the examples of the docstrings on each alteration. A sign is changed (`a + b` to `a
- b`, `-a` to `a`, a whole formula to its negative), a factor (`a * b` to `a / b`, a number to its double, a
whole formula to its double), an exponent (`a ** b` to `a * b` and to `a ** (b + 1)`, `sqrt(a)` to `a`), a
number is raised by one, a comparison is reversed, `min` and `max` are exchanged. Each test is run once
under coverage, and an alteration meets the tests that execute its statement, the fastest first, up to two
or three seconds of their recorded time (`--seconds`), of the test files named after its module and its
neighbours (`--tests`): more tests can only find out more. One that makes a test fail, use more than five
times its time and five seconds ("not ended", which "found out" holds too), or run out of memory is found
out. In the analysis, which was run before the others, an alteration met all tests that call its function,
and those that did not end in time were not counted apart. A survivor that changes no result, or only
loosens a bound by less than anyone looks at, stands below with the reason; one that nobody has explained or
found a test for is open, and listed first. Slow tests, and tests that start processes of their own, are
left out. So are the estimates of seconds and bytes in calls of `spend`: they steer what is started, on the
high side and by measurements, and no result rests on them; and what is added to a text.

Where trying all takes too long, mutants are drawn at random over all modules of a group; the table says how
many, and the seed. The draw goes by a hash of the seed, of the mutant's own statement and of what is altered
in it, so that a change of the library leaves the rest of a sample where it is; rows marked "by place" come
from earlier draws, by the place in the list of all mutants. So `python -m verification.mutation poisson
--sample 200 --seed 14` tries 200 of a group, those of a smaller sample of the same seed among them, and names
such as `engines.losses.prv` one module's part. What a row says holds for the commit it names; "changed"
says whether the module's code has been changed since, as of the day on which this page was written: some of
the alterations may be gone then, and the reasons with them. Functions that numba compiles are altered as they
are written, with compilation switched off.

A run records the tests first, which takes minutes (`--tests PART` leaves files out), and then writes
`docs/mutation.md` and `verification/mutation/results.json` anew; `--page` and `--results` put them elsewhere.
A sample is one of the whole group, so that a single module of it may get few mutants, or none.

General mutation tools (mutmut, cosmic-ray) know neither factors nor exponents of whole formulas, and most
of their mutants alter messages and arguments; so the alterations are our own.
"""
COLUMNS = (
    "module",
    "mutants",
    "tried",
    "found out",
    "not ended",
    "explained",
    "open",
    "draw",
    "commit",
    "changed",
)


def write_page(path: Path, results: dict[str, Tally], reasons: dict[Key, str]) -> None:
    """Write the counts and the reasons as Markdown.

    Args:
        path: the page.
        results: the tallies that are kept.
        reasons: why each survivor survives.
    """
    lines = [HEAD, f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS)]
    others = sorted({group_of(module) for module in results} - GROUPS.keys())
    for members in (GROUPS | {name: [name] for name in others}).values():
        run = [results[module] for module in members if module in results]
        lines += [_row(one, "yes" if one.changed else "no") for one in run]
        missing = [f"`{module}`" for module in members if module not in results]
        lines += [f"| {name} | not run |" + " |" * (len(COLUMNS) - 2) for name in missing]
    lines.append("")
    still = {one.module: one.open for one in results.values() if one.open}
    if still:
        lines += ["## Open", ""]
    for module, several in still.items():
        for function in dict.fromkeys(name for name, *_ in several):
            changes = [f"`{before}` to `{after}`" for name, before, after, _ in several if name == function]
            lines.append(f"- `{f'{module}.{function}'.rstrip('.')}`: {'; '.join(dict.fromkeys(changes))}.")
    lines += [""] * bool(still) + ["## Explained", ""]
    grouped: dict[tuple[str, str, str], list[str]] = {}
    for (module, function, before, after, _), why in reasons.items():
        grouped.setdefault((module, function, why), []).append(f"`{before}` to `{after}`")
    for (module, function, why), changes in grouped.items():
        place = f"{module}.{function}".rstrip(".")
        lines.append(f"- `{place}`: {'; '.join(dict.fromkeys(changes))}. {why}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _row(tally: Tally, changed: str) -> str:
    counts = [
        "" if count is None else count
        for count in (tally.mutants, tally.tried, tally.found, tally.late, tally.explained, len(tally.open))
    ]
    cells = [f"`{tally.module}`", *map(str, counts), _draw(tally), tally.commit, changed]
    return f"| {' | '.join(cells)} |"


def _draw(tally: Tally) -> str:
    if tally.sample is None:
        return "all"
    return f"{tally.sample} in the group, seed {tally.seed}{', by place' * tally.by_place}"
