"""A strategy that dpmech does not have, written outside of it as docs/architecture.md says.

A program, not a test: defining a class registers it for files, so test_new_strategy.py runs it in a process
of its own.
"""

import dataclasses
import pathlib
import sys

import numpy as np

import dpmech as dm
from dpmech.certificates import Randomness
from dpmech.checker import Kind, check_text
from dpmech.mechanism.strategies.factored import FactoredStrategy
from dpmech.mechanism.strategies.scaled_toeplitz import ScaledToeplitz
from dpmech.numerics import UNIT, bounded_inverse


def strategy_class():
    # In a function: collecting tests imports this file.
    @dataclasses.dataclass(frozen=True, eq=False, repr=False)
    class Harmonic(FactoredStrategy):
        """C[i, j] = 1 / (i - j + 1)^2."""

        n: int

        def prefix(self, steps):
            return Harmonic(steps)

        def _factors(self):
            coefs = 1.0 / np.arange(1.0, self.n + 1.0) ** 2
            inverse, bound = bounded_inverse(coefs, self.n)
            return ScaledToeplitz(coefs, inverse, bands=None, inverse_bands=None, error=2.0 * UNIT + bound)

    return Harmonic


def main(folder):
    Harmonic = strategy_class()
    own, dense = (
        Harmonic(12),
        dm.Dense([[(i >= j) / (abs(i - j) + 1) ** 2 for j in range(12)] for i in range(12)]),
    )
    z = np.random.default_rng(0).standard_normal((12, 3))
    assert np.allclose(own.to_dense() @ own.solve(z), z, atol=1e-12)
    for participation in (dm.MinSep(3, 4), dm.BallsInBins(4), dm.CyclicPoisson(0.2, 4), dm.FixedEpochs(3)):
        mechanism = dm.Mechanism(own, participation)
        other = dm.Mechanism(dense, participation)
        assert np.isclose(dm.sensitivity(mechanism).upper, dm.sensitivity(other).upper, rtol=1e-12)
    participation = dm.MinSep(3, 4)
    cal = dm.calibrate_sigma(own, 2.0, 1e-5, participation=participation)
    assert np.isclose(
        cal.sigma, dm.calibrate_sigma(dense, 2.0, 1e-5, participation=participation).sigma, rtol=1e-9
    )
    assert np.isclose(
        cal.rmse(), dm.calibrate_sigma(dense, 2.0, 1e-5, participation=participation).rmse(), rtol=1e-9
    )
    bins = dm.calibrate_sigma(
        own, 2.0, 1e-5, participation=dm.BallsInBins(4), method=dm.methods.Deterministic()
    )
    assert bins.sigma < cal.sigma
    path = pathlib.Path(folder) / "own.json"
    cal.certificate(clip_norm=1.0).save(path)
    assert dm.Certificate.load(path).strategy == own
    found = dm.verify(path)
    # The checker has no theorem for it, and does not take its word.
    assert found.undecided
    assert "the strategy 'Harmonic' is unknown" in found.failures[0]
    record = dm.RunRecord(
        cal.certificate(1.0, 4.0),
        12,
        cal.achieved,
        **{name: Randomness(name, "0" * 64, seeded=False) for name in ("sampler", "noise")},
        smallest_separation=3,
        most_participations=4,
    )
    ledger = dm.Ledger()
    ledger.add("own", cal, batch="once")
    for document in (record, ledger):
        assert check_text(document.to_json()).kind is Kind.NOT_CHECKED
    assert "a ledger of 1 release and 0 counts" in check_text(ledger.to_json()).claim
    print("taken")


if __name__ == "__main__":
    main(sys.argv[1])
