"""python -m verification: run the checks, print a table."""

import argparse
import dataclasses
import json
import sys

from rich.console import Console
from rich.progress import track
from rich.table import Table

from verification import lambda_cgd, lambda_cgd_amplified, noise_share
from verification._verdict import CHECKS, Check, Verdict

MODULES = (lambda_cgd, lambda_cgd_amplified, noise_share)


def main() -> int:
    """Run what was asked for; 1 if a verdict differs from the expected one."""
    parser = argparse.ArgumentParser(
        prog="python -m verification", description="Check the papers' statements."
    )
    parser.add_argument("--paper", help="one paper's statements, e.g. lambda_cgd")
    parser.add_argument("--id", help="one statement, e.g. cgd.thm1")
    parser.add_argument("--full", action="store_true", help="the long checks too")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    chosen = [
        check
        for check in CHECKS.values()
        if (options.paper in {None, check.paper})
        and (options.id in {None, check.id})
        and (options.full or not check.full or options.id == check.id)
    ]
    if not chosen:
        parser.error("no statement matches; known: " + ", ".join(sorted(CHECKS)))
    console = Console(stderr=True)
    results = [(check, check.run()) for check in track(chosen, "checking", console=console, transient=True)]
    if options.json:
        sys.stdout.write(json.dumps([_record(check, verdict) for check, verdict in results], indent=2) + "\n")
    else:
        Console(width=150).print(_table(results))
    return int(any(verdict.status != check.expected for check, verdict in results))


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
