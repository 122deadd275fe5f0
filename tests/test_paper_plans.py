"""The plans of the papers' runs (docs/examples/papers): `dpmech compare --plan` computes them."""

from pathlib import Path

import pytest

import dpmech as dm
from dpmech.plans import read_plan
from verification.harness.headlines import headlines

FOLDER = Path(__file__).parents[1] / "docs/examples/papers"
# Steps as the papers print or imply them, and the sampling probability.
STEPS = {
    "lambda_cgd_table_3": (3900, 1 / 390),
    "muon_e2e": (410, 1024 / 42_043),
    "noise_share_e2e": (150, 512 / 42_061),
    "sde_imdb": (15_600, 64 / 10_000),
    "sde_stackoverflow": (192_250, 64 / 246_092),
    "spectral_sst2": (400, 2000 / 67_349),
}


def test_every_plan_has_its_steps():
    assert {path.stem for path in FOLDER.glob("*.toml")} == set(STEPS)


@pytest.mark.parametrize("name", STEPS)
def test_a_plan_is_read(name):
    settings, entries = read_plan(FOLDER / f"{name}.toml")
    assert entries
    steps, share = STEPS[name]
    sizes = settings["dataset_size"], settings["batch_size"]
    if "steps" in settings:
        training = dm.TrainingPlan.of_steps(*sizes, settings["steps"])
    else:
        training = dm.TrainingPlan(*sizes, settings["epochs"])
    assert training.steps == steps
    if settings["sampling"] == "poisson":
        assert training.sampling_prob == pytest.approx(share, rel=1e-12)


def test_the_plan_of_dp_muon_gives_the_sigma_of_the_page():
    settings, _ = read_plan(FOLDER / "muon_e2e.toml")
    steps, share = STEPS["muon_e2e"]
    cal = dm.calibrate_sigma(
        dm.Identity(steps), settings["eps"], settings["delta"], participation=dm.Poisson(share)
    )
    (printed,) = (one.here for one in headlines() if one.cell == "E2E sigma of each of 49 blocks for eps 8")
    assert 7.0 * cal.sigma == pytest.approx(float(printed), rel=2e-4)
