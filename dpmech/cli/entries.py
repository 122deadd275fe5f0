"""Entries of `compare` and `optimize`: given strategies, and families that are fitted to a plan."""

import concurrent.futures
from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

from dpmech.cli.options import ResolvedPlan
from dpmech.cli.printing import Report
from dpmech.cli.running import silent
from dpmech.fitting import Choice, FamilySizes, Search, Trial, check_family, tried
from dpmech.mechanism import Strategy
from dpmech.numerics import typed
from dpmech.plans import FAMILIES, STRATEGIES, Entry, build_strategy

# How entries are written, for the help of options.
WRITTEN = (
    "Names separated by commas, with options after colons and the numbers of a list separated by slashes: "
    f"{', '.join(one.written(name) for name, one in STRATEGIES.items())}. "
    f"A family without coefficients is fitted: {', '.join(FAMILIES)}, also with :bands=4 or :buffers=3. "
    "Add :column-normalized for unit columns."
)

# An entry and its strategy or family.
Prepared: TypeAlias = tuple[Entry, Choice]


def prepared(entries: Iterable[Entry], n: int) -> list[Prepared]:
    """Build the strategies of all entries, and check the sizes of families, before anything is computed.

    Raises:
        InvalidParameterError: if an entry is wrong.
    """
    return [
        (entry, _family(entry, n) if entry.fitted else build_strategy(entry, n, fits=True))
        for entry in entries
    ]


def _family(entry: Entry, n: int) -> FamilySizes:
    family = FamilySizes(FAMILIES[entry.name], column_normalized=entry.column_normalized, **entry.options)
    check_family(family.family, n=n, bands=family.bands, buffers=family.buffers)
    return family


def named(choice: Choice) -> Entry:
    """The entry of a family, or of independent noise."""
    if isinstance(choice, Strategy):
        return Entry("identity", {})
    name = next(name for name, family in FAMILIES.items() if family is choice.family)
    sizes = {"bands": choice.bands, "buffers": choice.buffers}
    own = {key: value for key, value in sizes.items() if value is not None}
    return Entry(name, own, choice.column_normalized)


def calibrated(
    entry: Entry,
    choice: Choice,
    plan: ResolvedPlan,
    calls: int,  # number of calls, for the correction for picking one
    objective: str = "rmse",
    cache: Path | None = None,
    compare: bool = True,  # noqa: FBT001, FBT002 - calls of other processes are tuples
    *,
    executor: concurrent.futures.Executor | None = None,
    report: Report = silent,
) -> Trial:
    """Calibrate an entry for a plan."""
    eps, delta = plan.budget
    search = Search(
        adjacency=plan.adjacency,
        method=plan.method,
        rtol=plan.rtol,
        rng=plan.seed,
        objective=objective,
        workload=plan.workload,
        compare=compare,
        cache=cache,
        progress=lambda line: report(f"{entry.label} at eps {typed(eps)}: {line}"),
        executor=executor,
    )
    return tried(choice, plan.participation, plan.training.steps, eps, delta, search, calls=calls)
