"""`dpmech verify`: are these certificates, run records and ledgers true?"""

import json
import sys

import click

from dpmech.cli.printing import progress_bar, refuse
from dpmech.exceptions import DpmechError
from dpmech.verifying import Verification
from dpmech.verifying import verify as verify_certificate

__all__ = ["verify"]


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path())
@click.option("--rigorous", is_flag=True, help="Refuse estimates, and runs with seeds of the caller.")
@click.option("--seed", type=int, help="Seed of sampled routes [operating system entropy].")
@click.option("--details", is_flag=True, help="Print every check, not only the verdict.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def verify(files: tuple[str, ...], rigorous: bool, seed: int | None, details: bool, as_json: bool) -> None:  # noqa: FBT001 - click passes options by name
    """Recompute certificates, and check run records and ledgers against the certificates inside them.

    Exit code 0 if every file holds, 1 if one does not (one line for every failure), 2 if a file
    cannot be read.
    """
    found: list[Verification] = []
    try:
        with progress_bar("verifying", total=len(files)) as report:
            for file in files:
                found.append(verify_certificate(file, rigorous=rigorous, rng=seed, progress=report))
                report("")
    except DpmechError as error:
        refuse(error)
    if as_json:
        click.echo(json.dumps([verification.to_dict() for verification in found], indent=2))
    else:
        for verification in found:
            click.echo(str(verification))
            if details:
                for check in verification.checks:
                    click.echo(f"  {'ok  ' if check.ok else 'FAIL'} {check}")
    sys.exit(0 if all(found) else 1)
