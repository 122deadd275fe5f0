"""`python -m dpmech.checker certificate.json ...`; in a standalone copy, `python -m checker ...`."""

import argparse
import sys

from . import Kind, check_file
from .decide import SECONDS
from .documents import BadDocument, shown

_CODES = {Kind.PROVED: 0, Kind.REFUTED: 1, Kind.NOT_CHECKED: 3}


def main(arguments: list[str] | None = None) -> int:
    """Print a verdict for every file and return the exit code, which the help text explains."""
    parser = argparse.ArgumentParser(
        prog="checker",
        description="Decide certificates, run records and ledgers, with numpy and python-flint alone.",
        epilog="Exit code: 0 all PROVED, 1 one REFUTED, 2 one cannot be read, 3 one NOT CHECKED.",
    )
    parser.add_argument("files", nargs="+", metavar="certificate.json")
    times = "CPU time that one direction may take (default %(default)g)"
    parser.add_argument("--seconds", type=float, default=SECONDS, help=times)
    totals = "of all releases of a ledger together (default: its budget, or an eps that is found)"
    parser.add_argument("--total", type=float, nargs=2, metavar=("EPS", "DELTA"), help=totals)
    options = parser.parse_args(arguments)
    if not 0.0 < options.seconds < 1e9:
        parser.error(f"--seconds takes a number in (0, 1e9), not {options.seconds:g}")
    total = options.total and tuple(options.total)
    if total is not None and not (0.0 <= total[0] <= 1e5 and 0.0 < total[1] < 1.0):
        parser.error(f"--total takes eps in [0, 1e5] and delta in (0, 1), not {total[0]:g} and {total[1]:g}")
    codes = set()
    for path in options.files:
        try:
            verdict = check_file(path, seconds=options.seconds, total=total)
        except BadDocument as error:
            print(f"{shown(path)}: not a certificate: {error}", file=sys.stderr)
            codes.add(2)
        except Exception as error:  # noqa: BLE001 - a traceback would exit with the code of REFUTED
            print(f"{shown(path)}: NOT CHECKED: {type(error).__name__} in the checker", file=sys.stderr)
            codes.add(3)
        else:
            print(f"{shown(path)}: {verdict}")
            codes.add(_CODES[verdict.kind])
    return next((code for code in (2, 1, 3) if code in codes), 0)


if __name__ == "__main__":
    sys.exit(main())
