"""Saved certificates, one for every scheme and method, for tests that need a claim and not the search for it.

`python -m tests.support.saved` writes all of them anew. A slow test verifies each by `dm.verify` and finds
its sigma again; a quick one reads them all by the present schema.
"""

import dataclasses
import functools
import pathlib
import sys

import numpy as np

import dpmech as dm
from dpmech.certificates.claim import with_checksum
from dpmech.schemes import accountant_for

FOLDER = pathlib.Path(__file__).parents[1] / "certificates"


def _sized(strategy, participation, method=None, *, eps=2.0, delta=1e-5, rng=None, **others):
    return functools.partial(
        dm.calibrate_sigma,
        strategy,
        eps,
        delta,
        participation=participation,
        method=method,
        rng=rng,
        **others,
    )


# Small ones: most tests verify what they make of them, which takes longer than the search.
RECIPES = {
    "every step": _sized(dm.Diagonal([float(12 - step) for step in range(12)]), dm.EveryStep()),
    "single": _sized(dm.Identity(12), dm.SingleParticipation()),
    "min-sep": _sized(dm.LambdaCGD(12, 0.8), dm.MinSep(4)),
    "min-sep normalized": _sized(dm.ColumnNormalized(dm.LambdaCGD(12, 0.8)), dm.MinSep(4)),
    "min-sep eps 8": _sized(dm.LambdaCGD(12, 0.5), dm.MinSep(4), eps=8.0),
    "min-sep of users": _sized(dm.LambdaCGD(12, 0.8), dm.MinSep(4, max_examples_per_user=3)),
    "epochs": _sized(dm.LambdaCGD(12, 0.8), dm.FixedEpochs(3)),
    "poisson": _sized(dm.Identity(12), dm.Poisson(0.2)),
    "poisson prv": _sized(dm.Identity(12), dm.Poisson(0.2), dm.methods.Prv()),
    "poisson 30": _sized(dm.Identity(30), dm.Poisson(0.1), eps=1.0, delta=1e-6),
    "poisson 40": _sized(dm.Identity(40), dm.Poisson(0.1)),
    "users": _sized(dm.Identity(12), dm.Poisson(0.2, max_examples_per_user=3)),
    "truncated batches": _sized(
        dm.Identity(1),
        dm.Poisson(0.2, truncated_batch_size=8, dataset_size=30),
        adjacency=dm.Adjacency.ZERO_OUT,
    ),
    "fixed batches": _sized(
        dm.Identity(12), dm.FixedSizeBatches(30, 5), adjacency=dm.Adjacency.REPLACE_ONE
    ),
    "users in groups": _sized(dm.SquareRoot(12, 2), dm.CyclicPoisson(0.3, 4, max_examples_per_user=2)),
    "b-min-sep": _sized(
        dm.SquareRoot(12, 4), dm.BMinSep(4, 0.1), dm.methods.Importance(), delta=1e-3, rng=5
    ),
    "b-min-sep inside": _sized(dm.SquareRoot(12, 4), dm.BMinSep(4, 0.1), delta=1e-3),
    "users in bins": _sized(
        dm.LambdaCGD(12, 0.5), dm.BallsInBins(4, max_examples_per_user=2), dm.methods.Importance(),
        delta=1e-3, rng=5
    ),
    "users in bins inside": _sized(
        dm.LambdaCGD(12, 0.5), dm.BallsInBins(4, max_examples_per_user=2), delta=1e-3
    ),
    "users in bins moments": _sized(
        dm.LambdaCGD(12, 0.5), dm.BallsInBins(4, max_examples_per_user=2), dm.methods.Rdp()
    ),
    "cyclic": _sized(dm.SquareRoot(12, 2), dm.CyclicPoisson(0.3, 4)),
    "cyclic 20": _sized(dm.SquareRoot(20, 3), dm.CyclicPoisson(0.2, 5)),
    "bins": _sized(dm.LambdaCGD(12, 0.5), dm.BallsInBins(4), dm.methods.Importance(), rng=5),
    "bins 8": _sized(dm.LambdaCGD(8, 0.5), dm.BallsInBins(4), dm.methods.Importance(), delta=1e-3, rng=1),
    "bins 24": _sized(dm.LambdaCGD(24, 0.5), dm.BallsInBins(8), dm.methods.Importance(), rng=5),
    "bins inside": _sized(dm.LambdaCGD(12, 0.5), dm.BallsInBins(4)),
    "bins moments": _sized(dm.LambdaCGD(12, 0.5), dm.BallsInBins(4), dm.methods.Rdp()),
    "bins moments 6": _sized(dm.LambdaCGD(6, 0.5), dm.BallsInBins(3), dm.methods.Rdp(), eps=1.0, delta=1e-6),
    "bins moments 24": _sized(dm.LambdaCGD(24, 0.5), dm.BallsInBins(8), dm.methods.Rdp()),
    "bins program": _sized(dm.LambdaCGD(12, 0.5), dm.BallsInBins(4), dm.methods.Deterministic(0.3)),
    "bins program 24": _sized(dm.LambdaCGD(24, 0.5), dm.BallsInBins(8), dm.methods.Deterministic(0.3)),
    "bins certified": _sized(dm.LambdaCGD(12, 0.5), dm.BallsInBins(4), dm.methods.Certified(1e-3), rng=5),
    "bins certified 6": _sized(
        dm.LambdaCGD(6, 0.5), dm.BallsInBins(2), dm.methods.Certified(1e-5), delta=1e-3, rng=1
    ),
    "bins exact": _sized(dm.Identity(12), dm.BallsInBins(4), dm.methods.Exact()),
    "bins fresh": _sized(dm.Identity(4), dm.BallsInBins(2, fresh=True)),
    "allocation": _sized(dm.Identity(6), dm.RandomAllocation(2), dm.methods.Pld()),
}  # fmt: skip


class Named(np.random.Generator):
    """A generator that gives the random numbers which a certificate names, once, and no others."""

    def __init__(self, name):
        super().__init__(np.random.PCG64())
        self.words = [[int(name[place : place + 8], 16) for place in range(0, 32, 8)]]

    def integers(self, *_, **__):
        return np.array(self.words.pop(), dtype=np.uint64)


def found_again(name):
    """Sigma by the recipe; where that draws random numbers of its own, by those that the file names."""
    own = certificate(name)
    if not own.guarantee.inside_delta:
        return RECIPES[name]().sigma
    accountant = accountant_for(own.mechanism, own.evidence.accountant, Named(own.evidence.randomness))
    goal = own.guarantee.mechanism_delta(own.budget.delta)
    return accountant.calibrate(
        own.budget.eps, goal, rtol=own.evidence.rtol, progress=lambda line: None
    ).sigma


def path_of(name):
    return FOLDER / f"{name.replace(' ', '_')}.json"


@functools.cache
def certificate(name):
    """The saved one, with clip norm and batch size left open."""
    return dm.Certificate.load(path_of(name))


@functools.cache
def calibration(name):
    """What `calibrate_sigma` returned when the certificate was made."""
    fields = [field.name for field in dataclasses.fields(dm.Calibration) if field.name != "checksum"]
    return with_checksum(dm.Calibration(**{field: getattr(certificate(name), field) for field in fields}))


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.json"):
        old.unlink()
    for name, recipe in RECIPES.items():
        recipe().certificate().save(path_of(name))
        sys.stdout.write(f"{path_of(name).name}\n")
