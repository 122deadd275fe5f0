"""python -m verification: run the checks and print a table; with --write, write the pages."""

import argparse
import dataclasses
import json
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from verification.harness.outcomes import PATH, save_outcomes
from verification.harness.page import write_pages
from verification.harness.registry import load, papers, registry
from verification.harness.verdict import CHECKS, Check, Verdict

DOCS = Path(__file__).parents[1] / "docs"


def main(arguments: list[str] | None = None) -> int:
    """Run what was asked for; 1 if a verdict differs from the expected one."""
    parser = argparse.ArgumentParser(
        prog="python -m verification", description="Check the papers' statements."
    )
    parser.add_argument("--paper", help="one paper's statements, e.g. lambda_cgd")
    parser.add_argument("--id", help="one statement, e.g. cgd.thm1")
    parser.add_argument("--full", action="store_true", help="the long checks too")
    parser.add_argument("--skip", action="append", default=[], metavar="ID", help="leave one out; repeatable")
    parser.add_argument("--json", action="store_true", help="print JSON, no table")
    parser.add_argument("--write", action="store_true", help="write the pages, and what was found")
    parser.add_argument("--docs", type=Path, default=DOCS, help="folder of the pages (%(default)s)")
    parser.add_argument(
        "--outcomes", type=Path, default=PATH, help="what the latest runs found (%(default)s)"
    )
    options = parser.parse_args(arguments)
    load()
    if unknown := set(options.skip) - set(CHECKS):
        parser.error(f"--skip: no statement {', '.join(sorted(unknown))}")
    entries = registry()
    order = {name: place for place, name in enumerate(entries)}
    chosen = [
        check
        for check in sorted(CHECKS.values(), key=lambda check: order.get(check.id, len(order)))
        if (options.paper in {None, check.paper})
        and (options.id in {None, check.id})
        and (options.full or not check.full or options.id == check.id)
        and check.id not in options.skip
    ]
    if not chosen:
        parser.error("no statement matches; known: " + ", ".join(sorted(CHECKS)))
    results = _run(chosen)
    if options.json:
        sys.stdout.write(json.dumps([_record(check, verdict) for check, verdict in results], indent=2) + "\n")
    else:
        Console(width=160).print(_table(results))
    if options.write:
        write_pages(options.docs, entries, papers(), save_outcomes(options.outcomes, set(entries), results))
    return int(any(verdict.status != check.expected for check, verdict in results))


def _run(chosen: list[Check]) -> list[tuple[Check, Verdict]]:
    results = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("checking", total=len(chosen))
        for check in chosen:
            progress.update(task, description=check.id)
            try:
                results.append((check, check.run()))
            except Exception as error:
                error.add_note(f"while checking {check.id}")
                raise
            progress.advance(task)
    return results


def _record(check: Check, verdict: Verdict) -> dict[str, object]:
    return {"id": check.id, "paper": check.paper} | dataclasses.asdict(verdict)


def _table(results: list[tuple[Check, Verdict]]) -> Table:
    table = Table(title=f"{len(results)} statements")
    for column in ("id", "status", "method", "cases", "worst margin", "note"):
        table.add_column(column)
    for check, verdict in results:
        mark = "" if verdict.status == check.expected else f" (expected {check.expected})"
        table.add_row(
            check.id,
            verdict.status + mark,
            verdict.method,
            str(verdict.cases),
            f"{verdict.worst_margin:.2g}",
            verdict.note,
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
