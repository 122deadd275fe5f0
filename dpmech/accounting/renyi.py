"""Renyi accounting through dp-accounting: an upper bound on both directions, never a lower one.

For the Poisson-subsampled Gaussian the REMOVE divergence is the larger one at every order (Mironov,
Talwar and Zhang 2019, Theorem 5), and it is the one that dp-accounting computes. The neighbouring
relation is settled by our sensitivity, so that its add-or-remove reading is the right one here.
"""

import contextlib
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from dpmech.accounting.accountant import Accountant, Progress, Solution
from dpmech.accounting.gaussian import gaussian_sigma
from dpmech.accounting.sigma_search import smallest_sigma
from dpmech.exceptions import NumericalError
from dpmech.numerics import BOUND, Bounds, Provenance, quotient_down, spend

if TYPE_CHECKING:
    from dp_accounting.rdp import RdpAccountant

__all__ = ["RenyiAccountant"]

# The largest is no integer: dp-accounting adds up as many terms as an integer order says, and a few dozen for
# one beside it.
_ORDERS = np.concatenate(
    [np.linspace(1.05, 2.0, 20), np.geomspace(2.05, 64.0, 80), np.geomspace(66.0, 1e6, 60)[:-1], [999_999.5]]
)


class RenyiAccountant(Accountant):
    """RDP of `steps` Gaussian releases, each Poisson-sampled with `sampling_prob` (1: not sampled)."""

    def __init__(self, sensitivity: Bounds, sampling_prob: float = 1.0, steps: int = 1) -> None:
        self.sensitivity = sensitivity
        self.sampling_prob = sampling_prob
        self.steps = steps
        self.by = Provenance("rdp.releases", {"q": sampling_prob, "releases": steps})
        self.guarantee = BOUND

    def delta(self, sigma: float, eps: float, *, tolerance: float) -> Bounds:
        """An upper bound on delta; the lower end is 0."""
        with _fail_closed(self.method):
            value = float(self._composed(sigma).get_delta(eps))
        return Bounds(0.0, self._checked(value, sigma), self.guarantee, self.by)

    def epsilon(self, sigma: float, delta: float, *, tolerance: float) -> Bounds:
        """An upper bound on eps; the lower end is 0."""
        with _fail_closed(self.method):
            value = float(self._composed(sigma).get_epsilon(delta))
        return Bounds(0.0, self._checked(value, sigma), self.guarantee, self.by)

    def calibrate(self, eps: float, delta: float, *, rtol: float, progress: Progress) -> Solution:
        """The smallest sigma that RDP certifies, within rtol."""
        start = gaussian_sigma(eps, delta) * self.sensitivity.upper
        return smallest_sigma(self, eps, delta, rtol=rtol, start=start, step=0.1, progress=progress)

    def _composed(self, sigma: float) -> "RdpAccountant":
        spend(2.0 if self.sampling_prob < 1.0 else 0.1, 1e8, what="Renyi divergences at all orders")
        # The package takes half a second to import, and few need it.
        from dp_accounting import dp_event
        from dp_accounting.privacy_accountant import NeighboringRelation
        from dp_accounting.rdp import RdpAccountant

        accountant = RdpAccountant(_ORDERS, NeighboringRelation.ADD_OR_REMOVE_ONE)
        event: dp_event.DpEvent = dp_event.GaussianDpEvent(quotient_down(sigma, self.sensitivity.upper))
        if self.sampling_prob < 1.0:
            event = dp_event.PoissonSampledDpEvent(self.sampling_prob, event)
        accountant.compose(event, self.steps)
        return accountant

    def _checked(self, value: float, sigma: float) -> float:
        if not np.isfinite(value) or value < 0.0:
            raise NumericalError(f"{self.method} returned {value!r} at sigma={sigma!r}")
        return value


@contextlib.contextmanager
def _fail_closed(method: str) -> Iterator[None]:
    """Turn dp-accounting's logged warnings into errors, but for orders that it leaves out.

    It logs, and goes on with an eps of 0, where a Renyi divergence came out negative. An order that did not
    converge is left out of a minimum, which only loosens the bound.
    """
    from absl import logging as absl_logging  # comes with dp-accounting, which takes a second to import

    troubles: list[str] = []

    def keep(record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if "Excluding this order" not in message:
            troubles.append(message)
        return False

    logger = absl_logging.get_absl_logger()
    logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)
    if troubles:
        raise NumericalError(f"{method}: {troubles[0]}")
