"""The dpmech command. Exit codes: 0 done, 1 a check failed, 2 bad input."""

import click

from dpmech.cli.auditing import audit
from dpmech.cli.calibrating import calibrate
from dpmech.cli.checking import verify
from dpmech.cli.commands import Group
from dpmech.cli.comparing import compare
from dpmech.cli.diagnosing import doctor, version
from dpmech.cli.given_sigma import delta_command, epsilon_command
from dpmech.cli.ledgers import add_counts, add_mechanism, ledger
from dpmech.cli.optimizing import optimize
from dpmech.cli.planning import plan
from dpmech.cli.recommending import recommend
from dpmech.cli.reporting import report
from dpmech.cli.risk import risk
from dpmech.cli.showing import show
from dpmech.cli.signing import sign

__all__ = ["main"]


@click.group(
    name="dpmech",
    cls=Group,
    context_settings={"help_option_names": ["-h", "--help"]},
    examples=[
        "dpmech calibrate --strategy identity --dataset-size 60000 --batch-size 256 --epochs 15 "
        "--sampling poisson --eps 8 --delta 1e-5",
        "dpmech epsilon --help",
    ],
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=version,
    help="Show the version and the commit, and exit.",
)
def main() -> None:
    """Compute how much noise differentially private training needs, and prove it."""


ledger.add_command(add_counts)
ledger.add_command(add_mechanism)
for command in (
    calibrate,
    epsilon_command,
    delta_command,
    compare,
    optimize,
    recommend,
    verify,
    show,
    sign,
    ledger,
    risk,
    report,
    plan,
    audit,
    doctor,
):
    main.add_command(command)
