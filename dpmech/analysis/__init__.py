"""The formulas of the papers as pure functions of numpy arrays: for a researcher to use and to check.

Nothing here enters a privacy guarantee. Every function says whether it is exact, a bound or an estimate,
and names the statement it computes; `python -m verification` holds each statement against an oracle.
A folder a paper.
"""

from dpmech.analysis import muon, noise_share, sde, spectral

__all__ = ["muon", "noise_share", "sde", "spectral"]
