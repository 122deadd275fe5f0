"""Plans whose sigma a fault may lower: every scheme and method, small, and the same each time they run.

Each is close to the smallest true sigma, so that half a per cent less is a false claim; those by loose
methods (`Rdp`, `Deterministic`) are here because other code issues them.
"""

import dataclasses
import json
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

import dpmech as dm
from dpmech.checker.documents import decode
from dpmech.methods import Method

__all__ = ["PLANS", "Plan"]


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is calibrated.

    Attributes:
        mechanism: makes it anew, so that nothing computed by another plan is left in it.
        eps: > 0.
        delta: in (0, 1).
        method: None for the default one.
        rtol: sigma may be above the smallest one by so much, relative.
    """

    mechanism: Callable[[], dm.Mechanism]
    eps: float = 2.0
    delta: float = 1e-5
    method: Method | None = None
    rtol: float = 1e-3

    def calibrate(self) -> dm.Calibration:
        """Its sigma; random numbers come from a seed, so that it is the same each time."""
        return dm.calibrate_sigma(
            self.mechanism(), self.eps, self.delta, method=self.method, rtol=self.rtol, rng=5
        )

    def is_of(self, certificate: str) -> bool:
        """Whether a certificate is about this plan, whatever its sigma."""
        claim = decode(json.loads(certificate))["claim"]
        mechanism = self.mechanism()
        asked = {
            "eps": self.eps,
            "delta": self.delta,
            "adjacency": mechanism.adjacency.value,
            "strategy": mechanism.strategy.to_dict(),
            "participation": mechanism.participation.to_dict(),
        }
        return asked == {name: claim[name] for name in asked}

    def delta_at(self, sigma: float) -> dm.Bounds:
        """Delta at a sigma by the default method, which is not looser than another."""
        return dm.delta(self.mechanism(), sigma, self.eps, rng=5)


def _of(
    strategy: Callable[[], dm.Strategy],
    participation: Callable[[], dm.Participation],
    method: Method | None = None,
    *,
    eps: float = 2.0,
    delta: float = 1e-5,
    rtol: float = 1e-3,
    adjacency: dm.Adjacency = dm.Adjacency.ADD_REMOVE,
) -> Plan:
    return Plan(
        lambda: dm.Mechanism(strategy(), participation(), adjacency), eps, delta, method=method, rtol=rtol
    )


def _bins(bins: int, lam: float, method: Method | None = None, *, n: int = 12, delta: float = 1e-5) -> Plan:
    return _of(lambda: dm.LambdaCGD(n, lam), lambda: dm.BallsInBins(bins), method, delta=delta)


def _row(*values: float) -> npt.NDArray[np.float64]:
    return np.array(values)


def _wavy() -> dm.Dense:
    """Neither Toeplitz nor of one sign, three bands; no two columns have the same norm."""
    rows = np.arange(9.0)[:, None]
    columns = np.arange(9.0)[None, :]
    matrix = np.cos(1.0 + 2.0 * rows + columns**2) * (rows >= columns) * (rows < columns + 3.0)
    return dm.Dense(matrix + np.diag(2.0 + 0.1 * np.arange(9.0)))


# A name says the participation first.
PLANS: dict[str, Plan] = {
    "every step, diagonal": _of(
        lambda: dm.Diagonal(np.arange(12.0, 0.0, -1.0)), dm.EveryStep
    ),
    "every step, BLT": _of(lambda: dm.BLT(40, _row(0.9, 0.5), _row(0.3, 0.2)), dm.EveryStep),
    "every step, zero out": _of(
        lambda: dm.SquareRoot(20, 5), dm.EveryStep, adjacency=dm.Adjacency.ZERO_OUT
    ),
    "single, identity": _of(lambda: dm.Identity(12), dm.SingleParticipation),
    "single, inverse square root": _of(
        lambda: dm.InverseSquareRoot(30, 4), dm.SingleParticipation, eps=0.5, delta=1e-7
    ),
    "single, banded inverse": _of(lambda: dm.BandedInverse(16, _row(1.0, -0.4, 0.2)), dm.SingleParticipation),
    "min-sep, lambda": _of(lambda: dm.LambdaCGD(12, 0.8), lambda: dm.MinSep(4)),
    "min-sep, eps 8": _of(lambda: dm.LambdaCGD(390, 0.9), lambda: dm.MinSep(39, 10), eps=8.0),
    "min-sep, normalized": _of(
        lambda: dm.ColumnNormalized(dm.LambdaCGD(12, 0.8)), lambda: dm.MinSep(4)
    ),
    "min-sep, normalized root": _of(
        lambda: dm.ColumnNormalized(dm.SquareRoot(24)), lambda: dm.MinSep(6, 3)
    ),
    "min-sep, replace one": _of(
        lambda: dm.SquareRoot(30), lambda: dm.MinSep(7, 4), adjacency=dm.Adjacency.REPLACE_ONE
    ),
    "min-sep, BLT": _of(lambda: dm.BLT(60, _row(0.95, 0.5), _row(0.2, 0.3)), lambda: dm.MinSep(12, 5)),
    "min-sep, banded": _of(
        lambda: dm.BandedToeplitz(30, _row(1.0, -0.3, 0.7, 0.1)), lambda: dm.MinSep(4, 5)
    ),
    "min-sep, apart": _of(lambda: dm.BandedToeplitz(30, _row(1.0, 0.6, 0.3)), lambda: dm.MinSep(5, 4)),
    "min-sep, uneven": _of(lambda: dm.SquareRoot(22), lambda: dm.MinSep(4)),
    "min-sep, dense": _of(_wavy, lambda: dm.MinSep(3)),
    "min-sep, dense of few": _of(_wavy, lambda: dm.MinSep(2, 3)),
    "min-sep, by moments": _of(lambda: dm.LambdaCGD(12, 0.8), lambda: dm.MinSep(4), dm.methods.Rdp()),
    "users, min-sep": _of(
        lambda: dm.LambdaCGD(12, 0.8), lambda: dm.MinSep(4, max_examples_per_user=3)
    ),
    "epochs, lambda": _of(lambda: dm.LambdaCGD(12, 0.8), lambda: dm.FixedEpochs(3)),
    "epochs, inverse": _of(lambda: dm.BandedInverse(24, _row(1.0, -0.9, 0.1)), lambda: dm.FixedEpochs(4)),
    "epochs, dense": _of(_wavy, lambda: dm.FixedEpochs(3)),
    "poisson": _of(lambda: dm.Identity(12), lambda: dm.Poisson(0.2)),
    "poisson, zero out": _of(
        lambda: dm.Identity(12), lambda: dm.Poisson(0.2), eps=0.7, adjacency=dm.Adjacency.ZERO_OUT
    ),
    "poisson, often": _of(lambda: dm.Identity(60), lambda: dm.Poisson(0.05), eps=1.0, delta=1e-6),
    "poisson, by moments": _of(lambda: dm.Identity(40), lambda: dm.Poisson(0.1), dm.methods.Rdp()),
    "poisson, PRV": _of(lambda: dm.Identity(12), lambda: dm.Poisson(0.2), dm.methods.Prv()),
    "poisson, once": _of(lambda: dm.Identity(1), lambda: dm.Poisson(0.2)),
    "poisson, all": _of(lambda: dm.Identity(12), lambda: dm.Poisson(1.0)),
    "users, poisson": _of(
        lambda: dm.Identity(12), lambda: dm.Poisson(0.2, max_examples_per_user=3)
    ),
    "truncated batches": _of(
        lambda: dm.Identity(1),
        lambda: dm.Poisson(0.2, truncated_batch_size=8, dataset_size=30),
        adjacency=dm.Adjacency.ZERO_OUT,
    ),
    "truncated batches, rarely": _of(
        lambda: dm.Identity(4),
        lambda: dm.Poisson(0.1, truncated_batch_size=24, dataset_size=60),
        adjacency=dm.Adjacency.ZERO_OUT,
    ),
    "fixed batches": _of(
        lambda: dm.Identity(12), lambda: dm.FixedSizeBatches(30, 5), adjacency=dm.Adjacency.REPLACE_ONE
    ),
    "cyclic": _of(lambda: dm.SquareRoot(12, 2), lambda: dm.CyclicPoisson(0.3, 4)),
    "cyclic, 5 groups": _of(lambda: dm.SquareRoot(20, 3), lambda: dm.CyclicPoisson(0.2, 5), eps=1.0),
    "cyclic, uneven": _of(lambda: dm.SquareRoot(10, 2), lambda: dm.CyclicPoisson(0.3, 4)),
    "users, cyclic": _of(
        lambda: dm.SquareRoot(12, 2), lambda: dm.CyclicPoisson(0.3, 4, max_examples_per_user=2)
    ),
    "bins": _bins(4, 0.5),
    "bins, 8": _bins(8, 0.5, n=24),
    "bins, certified": _bins(3, 0.5, dm.methods.Certified(1e-5), n=6, delta=1e-3),
    "bins, estimated": _bins(4, 0.5, dm.methods.Importance()),
    "bins, program": _bins(4, 0.5, dm.methods.Deterministic(0.3)),
    "bins, closer program": _bins(2, 0.3, dm.methods.Deterministic(0.02), n=4),
    "bins, by moments": _bins(4, 0.5, dm.methods.Rdp()),
    "bins, independent": _of(lambda: dm.Identity(12), lambda: dm.BallsInBins(4), dm.methods.Exact()),
    "bins, independent, drawn": _of(lambda: dm.Identity(12), lambda: dm.BallsInBins(4),
    dm.methods.Certified(1e-9)), "bins, square root": _of(lambda: dm.SquareRoot(12), lambda:
    dm.BallsInBins(3), delta=1e-4), "bins, dense": _of(
        lambda: dm.Dense(np.tril(1.0 / (1.0 + np.arange(8.0)[:, None] + np.arange(8.0)))),
        lambda: dm.BallsInBins(4),
    ),
    "bins anew": _of(lambda: dm.Identity(4), lambda: dm.BallsInBins(2, fresh=True), eps=1.0, delta=1e-3),
    "users, bins": _of(
        lambda: dm.LambdaCGD(12, 0.5), lambda: dm.BallsInBins(4, max_examples_per_user=2), delta=1e-3
    ),
    "users, bins, estimated": _of(
        lambda: dm.LambdaCGD(12, 0.5),
        lambda: dm.BallsInBins(4, max_examples_per_user=2),
        dm.methods.Importance(),
        delta=1e-3,
    ),
    "users, bins, by moments": _of(
        lambda: dm.LambdaCGD(12, 0.5), lambda: dm.BallsInBins(4, max_examples_per_user=2), dm.methods.Rdp()
    ),
    "b-min-sep": _of(lambda: dm.SquareRoot(12, 4), lambda: dm.BMinSep(4, 0.1), delta=1e-3),
    "b-min-sep, estimated": _of(
        lambda: dm.SquareRoot(12, 4), lambda: dm.BMinSep(4, 0.1), dm.methods.Importance(), delta=1e-3
    ),
}  # fmt: skip
