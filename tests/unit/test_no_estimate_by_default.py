"""Whoever names no method gets no estimate: every public way to a number, under sampling into bins."""

import json

import pytest
from click.testing import CliRunner

import dpmech as dm
from dpmech.audits import PublishedClaim, audit
from dpmech.cli import main
from dpmech.engines.gaussian_mixture.certified_accountant import CertifiedAccountant
from dpmech.plans import TrainingPlan
from dpmech.schemes.b_min_sep import scheme as b_min_sep
from dpmech.schemes.balls_in_bins import accountant as balls_in_bins
from dpmech.schemes.balls_in_bins.sampler import BallsInBinsSampler

STRATEGY, SCHEME = dm.LambdaCGD(6, 0.5), dm.BallsInBins(2)
BUDGET = (2.0, 1e-3)


@pytest.fixture(autouse=True)
def no_estimates(monkeypatch):
    """No estimate may even be made on the way to a result; rough sizes are no Bounds."""
    for module in (b_min_sep, balls_in_bins):
        monkeypatch.setattr(module, "ImportanceAccountant", lambda *_: pytest.fail("an estimate was made"))


@pytest.fixture(scope="module")
def calibration():
    return dm.calibrate_sigma(STRATEGY, *BUDGET, participation=SCHEME)


def batch():
    shared = dm.ledgers.SharedBatch("batch", STRATEGY, SCHEME)
    shared.register("weights", 3.0)
    return shared


def ledger_of(cal):
    ledger = dm.Ledger()
    ledger.add("run", cal, batch="batch")
    return ledger


SETTINGS = {"participation": SCHEME}
WAYS = {
    "epsilon": lambda cal: dm.epsilon(STRATEGY, 2.0, 1e-3, **SETTINGS),
    "epsilon, seeded": lambda cal: dm.epsilon(STRATEGY, 2.0, 1e-3, rng=1, **SETTINGS),
    "delta": lambda cal: dm.delta(STRATEGY, 2.0, 1.0, **SETTINGS),
    "delta, seeded": lambda cal: dm.delta(STRATEGY, 2.0, 1.0, rng=1, **SETTINGS),
    "mechanism": lambda cal: dm.delta(dm.Mechanism(STRATEGY, SCHEME), 2.0, 1.0),
    "calibration": lambda cal: cal.achieved,
    "calibration, seeded": lambda cal: dm.calibrate_sigma(STRATEGY, *BUDGET, rng=1, **SETTINGS).achieved,
    "certificate": lambda cal: dm.Certificate.from_json(cal.certificate().to_json()).achieved,
    "executed": lambda cal: dm.executed_epsilon(cal, 3),
    "ledger": lambda cal: ledger_of(cal).epsilon(1e-2),
    "ledger, delta": lambda cal: ledger_of(cal).delta(2.0),
    "batch": lambda cal: batch().epsilon(1e-3),
    "batch, delta": lambda cal: batch().delta(1.0),
    "audit": lambda cal: audit([PublishedClaim("one", STRATEGY, SCHEME, 3.0, 1e-3, 2.0)])[0].certified,
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if "seeded" in name else []) for name in WAYS]
)
def test_no_way_leads_to_an_estimate(name, calibration):
    found = WAYS[name](calibration)
    assert found.guarantee.rigorous
    assert found.guarantee.kind in {dm.Kind.BOUND, dm.Kind.PROBABLE}
    inside = name in {"calibration", "certificate", "executed", "ledger", "ledger, delta"}
    assert found.guarantee.inside_delta is inside


@pytest.mark.slow
def test_a_fit_is_none():
    fit = dm.optimize(dm.LambdaCGD, SCHEME, n=6, eps=2.0, delta=1e-3)
    assert fit.calibration.guarantee == dm.Guarantee(dm.Kind.PROBABLE, 1e-9, inside_delta=True)
    assert fit.calibration.evidence.accountant.calls > 1


def test_a_plan_is_none():
    training = TrainingPlan(dataset_size=12, batch_size=6, epochs=3)
    cal = dm.calibrate_sigma(
        dm.Identity(training.steps), *BUDGET, participation=training.participation("balls-in-bins")
    )
    assert cal.guarantee.rigorous
    sampler = BallsInBinsSampler(12, 2, 6)
    assert sampler.participation == cal.participation


@pytest.mark.parametrize(
    ("command", "options", "rows"),
    [
        ("calibrate", ["--strategy", "identity"], lambda found: [found]),
        ("compare", ["--strategies", "identity,lambda-cgd:lam=0.5"], lambda found: found["strategies"]),
        pytest.param(
            "optimize",
            ["--families", "lambda-cgd"],
            lambda found: found["fits"][0]["families"][1:],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_no_command_prints_one(command, options, rows):
    plan = ["--dataset-size", "12", "--batch-size", "6", "--epochs", "3", "--sampling", "balls-in-bins",
            "--eps", "2", "--delta", "1e-3", "--json"]  # fmt: skip
    result = CliRunner().invoke(main, [command, *options, *plan])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    said = [row["guarantee"] for row in rows(found)]
    assert said
    # Independent bins need no sample.
    assert set(said) <= {"with probability 1 - beta, beta 1e-09, inside delta", "deterministic upper bound"}
    assert not any("an estimate" in note for note in found["notes"])


@pytest.mark.slow
def test_rows_that_are_compared_share_what_is_left_to_chance(monkeypatch):
    asked = []
    kind = CertifiedAccountant
    true = kind.calibrate

    def noted(self, *budget, **settings):
        asked.append(self.settings)
        return true(self, *budget, **settings)

    monkeypatch.setattr(kind, "calibrate", noted)
    plan = ["--dataset-size", "12", "--batch-size", "6", "--epochs", "3", "--sampling", "balls-in-bins",
            "--eps", "2", "--delta", "1e-3", "--json"]  # fmt: skip
    names = "identity,lambda-cgd:lam=0.5,bsr:bands=2"
    result = CliRunner().invoke(main, ["compare", "--strategies", names, *plan])
    assert result.exit_code == 0, result.output
    # The independent bins of Identity need no sample.
    assert asked == [dm.methods.Certified(calls=3)] * 2
