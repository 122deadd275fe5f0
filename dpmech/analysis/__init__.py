"""The formulas of the papers as pure functions of numpy arrays, for use and verification in research.

No privacy guarantee depends on this package. The documentation of every function states whether the result is
exact, a bound or an estimate, and names the statement that it computes. `python -m verification` checks each
statement against an oracle. There is one folder or module per paper.
"""

from dpmech.analysis import lambda_cgd, muon, noise_share, sde, spectral

__all__ = ["lambda_cgd", "muon", "noise_share", "sde", "spectral"]
