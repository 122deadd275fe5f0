"""Which accountant answers for b-min-sep sampling: certified draws, or an estimate where it is asked for."""

from dpmech.engines import (
    CertifiedAccountant,
    Progress,
    Solution,
)
from dpmech.exceptions import NumericalError
from dpmech.numerics import Bounds


class ChainCertifiedAccountant(CertifiedAccountant):
    """Bounds that hold with probability 1 - beta; where draws cannot prove one, what else there is."""

    def epsilon(self, sigma: float, delta: float, *, tolerance: float) -> Bounds:
        """Bounds on eps, which share beta."""
        try:
            return super().epsilon(sigma, delta, tolerance=tolerance)
        except NumericalError as error:
            raise _refusal(error) from error

    def calibrate(self, eps: float, delta: float, *, rtol: float, progress: Progress) -> Solution:
        """Size on independent samples, then certify a little above."""
        try:
            return super().calibrate(eps, delta, rtol=rtol, progress=progress)
        except NumericalError as error:
            raise _refusal(error) from error


def _refusal(error: NumericalError) -> NumericalError:
    return NumericalError(
        f"{error}; method=Importance() gives an estimate here, and MinSep (not sampled), CyclicPoisson and "
        "BallsInBins have bounds"
    )
