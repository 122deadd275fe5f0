"""python -m verification.claims: reproduce the published numbers by the procedures behind them."""

import sys

from rich.console import Console
from rich.table import Table

from verification.claims import procedures

# Name, N, T, delta, sigma, printed eps of DP-Muon Table 3.
MUON = (
    ("E2E DP-Muon", 42043, 410, 8e-6, 2.3395, 7.9852),
    ("DART DP-Muon", 60591, 885, 1e-5, 2.3614, 7.9800),
)


def main() -> int:
    """Print the table."""
    table = Table(title="published procedures, reproduced")
    for column in ("claim", "procedure", "printed", "reproduced"):
        table.add_column(column)
    for name, size, steps, delta, sigma, printed in MUON:
        q = 1024 / size
        wrong = procedures.independent_blocks_epsilon(q, sigma, steps, 49, delta)
        joint = procedures.joint_epsilon(q, sigma, steps, 49, delta)
        needed = procedures.joint_sigma_for(8.0, q, steps, 49, delta)
        table.add_row(name, "49 T independently sampled releases, RDP", f"{printed:.4f}", f"{wrong:.4f}")
        table.add_row(name, "T joint releases at sigma / 7, PLD", "", f"{joint:.2f}")
        table.add_row(name, "sigma that meets eps = 8 jointly, PLD", "", f"{needed:.3f}")
    for name, q, steps, printed in (("unamplified", 1.0, 1, 7.446), ("amplified", 256 / 42061, 120, 6.404)):
        sigma = procedures.opacus_sigma(q, steps, 8.0, 1e-5)
        value = procedures.prv_upper_epsilon(q, sigma, steps, 1e-5)
        table.add_row(
            name, f"RDP calibration to 8 (sigma = {sigma:.6f}), PRV upper end", f"{printed}", f"{value:.4f}"
        )
    for name, n, batch, epochs, delta, sigma, printed in (
        ("IMDB", 10000, 64, 100, 1e-5, 1.0, 2.712),
        ("StackOverflow", 246092, 64, 50, 1e-6, 1.0, 0.424),
    ):
        value = procedures.formula_epsilon(batch / n, sigma, epochs * (n // batch), delta)
        table.add_row(name, "q sqrt(T log(1/delta)) / sigma", f"{printed}", f"{value:.4f}")
    Console(width=120).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
