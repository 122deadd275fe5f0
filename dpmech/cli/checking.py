"""`dpmech verify`: are these certificates, run records and ledgers true?"""

import json
import sys

import click

from dpmech.certificates import LARGEST_FILE
from dpmech.cli.printing import progress_bar, refuse
from dpmech.cli.workers import chosen_executor, worker_options
from dpmech.exceptions import DpmechError
from dpmech.verifying import MAX_MEMORY, MAX_SECONDS, Verification
from dpmech.verifying import verify as verify_certificate

__all__ = ["verify"]


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path())
@click.option(
    "--rigorous",
    is_flag=True,
    help="Refuse estimates, sampling errors outside delta, and runs that the caller seeded.",
)
@click.option("--seed", type=int, help="Seed of sampled routes [operating system entropy].")
@click.option(
    "--max-seconds",
    type=float,
    default=MAX_SECONDS,
    show_default=True,
    help="Budget of work of each file, in seconds of one core, estimated on the high side.",
)
@click.option(
    "--max-memory",
    type=float,
    default=MAX_MEMORY / 1e9,
    show_default=True,
    help="The same, in GB at the peak.",
)
@click.option(
    "--max-file-size",
    type=float,
    default=LARGEST_FILE / 1e6,
    show_default=True,
    help="Larger files, in MB, are not read.",
)
@worker_options
@click.option("--details", is_flag=True, help="Print every check, not only the verdict.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def verify(
    files: tuple[str, ...],
    *,
    rigorous: bool,
    seed: int | None,
    max_seconds: float,
    max_memory: float,
    max_file_size: float,
    workers: int | None,
    dask: str | None,
    details: bool,
    as_json: bool,
) -> None:
    """Recompute certificates, and check run records and ledgers against the certificates inside them.

    Exit code 0 if every file holds, 1 if one does not (one line for every failure), 2 if a file
    is missing, may not be read, is too large, or would cost more work than the budget allows.
    """
    found: list[Verification] = []
    try:
        with (
            chosen_executor(workers, dask) as executor,
            progress_bar("verifying", total=len(files)) as report,
        ):
            for file in files:
                found.append(
                    verify_certificate(
                        file,
                        rigorous=rigorous,
                        rng=seed,
                        progress=report,
                        max_seconds=max_seconds,
                        max_memory=1e9 * max_memory,
                        max_file_size=round(1e6 * max_file_size),
                        executor=executor,
                    )
                )
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
