"""`python -m dpmech` runs the command `dpmech`."""

from dpmech.cli import main

main(prog_name="dpmech")
