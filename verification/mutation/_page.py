"""The page: the alterations, how many the tests detected, and why the others change no result."""

from collections import Counter
from pathlib import Path

from verification.mutation._modules import GROUPS, group_of
from verification.mutation._mutants import Key
from verification.mutation._results import Tally

HEAD = """# Mutations

This page shows whether the tests detect small mistakes in the formulas. In a checkout, `python -m
verification.mutation` alters the formulas of a module, one place at a time, and runs the quick tests and the
docstring examples on each alteration (*mutant*):

- signs: `a + b` to `a - b`, `-a` to `a`, a whole formula to its negative;
- factors: `a * b` to `a / b`, a number to its double, a whole formula to its double;
- exponents: `a ** b` to `a * b` and to `a ** (b + 1)`, `sqrt(a)` to `a`;
- others: a number is increased by one, a comparison is reversed, `min` and `max` are exchanged.

A mutant is run against the tests that execute its statement, beginning with the fastest, until their total
recorded time reaches a limit (`--seconds`, by default three). `--tests` selects the test files; the rows
below are from runs with the test files of the module and of its neighbours. Slow tests and tests that start
processes are left out. A mutant is *detected* if it makes a test fail, runs out of memory, or takes longer
than five times the time of the tests plus five seconds ("timed out", which is included in "detected"; it was
not counted separately in the package `analysis`).

A mutant that survives is *explained* if it changes no result, or only loosens a bound by a negligible amount.
The reasons are listed after the table. Any other survivor is *open*. Messages, and the estimates of seconds
and bytes in calls of `spend`, are not altered.

If a group has too many mutants, a random sample is drawn over all of its modules; the column "sample" states
its size and seed. A hash of the seed, of the mutant's statement and of the altered expression selects the
sample, so a change elsewhere leaves the rest of the sample unchanged. (In rows marked "by place", the
position in the list of all mutants selected it.) For example, `python -m verification.mutation poisson
--sample 200 --seed 14` tries 200 mutants of the group `poisson`; the name of a module, such as
`engines.losses.prv`, selects its part of the sample.

Each row describes the commit in the column "commit". If the column "changed" contains "yes", the code of the
module has changed since then, so some of the alterations and reasons may no longer apply. A run rewrites
`docs/mutation.md` and `verification/mutation/results.json` (`--page` and `--results` select other files).
"""
NO_RESULTS = (
    "No results are on file for the following modules. Reasons below that name them are from earlier runs."
)
EXPLAINED = (
    "Each reason is followed by the places to which it applies, with the number of alterations. "
    "`verification/mutation/survivors.toml` contains the alterations themselves."
)
COLUMNS = (
    "module",
    "mutants",
    "tried",
    "detected",
    "timed out",
    "explained",
    "open",
    "sample",
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
    missing: list[str] = []
    others = sorted({group_of(module) for module in results} - GROUPS.keys())
    for members in (GROUPS | {name: [name] for name in others}).values():
        run = [results[module] for module in members if module in results]
        lines += [_row(one, "yes" if one.changed else "no") for one in run]
        missing += [module for module in members if module not in results]
    lines += ["", NO_RESULTS, ""] if missing else []
    packages: dict[str, list[str]] = {}
    for module in missing:
        package, _, name = module.rpartition(".")
        packages.setdefault(package, []).append(f"`{name}`")
    lines += [f"- `{package or 'dpmech'}`: {', '.join(names)}" for package, names in packages.items()]
    lines.append("")
    still = {one.module: one.open for one in results.values() if one.open}
    if still:
        lines += ["## Open", ""]
    for module, several in still.items():
        for function in dict.fromkeys(name for name, *_ in several):
            changes = [f"`{before}` to `{after}`" for name, before, after, _ in several if name == function]
            lines.append(f"- `{f'{module}.{function}'.rstrip('.')}`: {'; '.join(dict.fromkeys(changes))}.")
    lines += [""] * bool(still) + ["## Explained", "", EXPLAINED, ""]
    grouped: dict[str, Counter[str]] = {}
    for (module, function, *_), why in reasons.items():
        grouped.setdefault(why, Counter())[f"{module}.{function}".rstrip(".")] += 1
    for why, places in grouped.items():
        lines.append(f"- {why} " + ", ".join(f"`{place}` ({count})" for place, count in places.items()) + ".")
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
