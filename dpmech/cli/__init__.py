"""The dpmech command. Exit codes: 0 done, 1 a check failed, 2 bad input."""

import click

from dpmech.cli.auditing import audit
from dpmech.cli.checking import verify
from dpmech.cli.optimizing import optimize
from dpmech.cli.risk import risk
from dpmech.cli.sizing import calibrate, compare

__all__ = ["main"]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="dpmech", prog_name="dpmech")
def main() -> None:
    """How much noise private training needs, with the proof."""


main.add_command(calibrate)
main.add_command(compare)
main.add_command(optimize)
main.add_command(verify)
main.add_command(risk)
main.add_command(audit)
