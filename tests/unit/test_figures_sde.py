import dataclasses

import numpy as np
import pytest

from verification.figures import sde_loss_floors, sde_stationary, sde_trajectories


@pytest.mark.parametrize("method", sde_stationary.METHODS)
def test_moments_agree_and_a_wrong_one_does_not(method):
    runs = 1500
    curve = sde_stationary.simulate(method, runs, 1200, points=4)
    mean, variance = curve.deviations(runs)
    assert mean < 6.2
    assert variance < 6.2 * np.sqrt(2.0 / runs)
    wrong = dataclasses.replace(curve, predicted_variances=1.5 * curve.predicted_variances)
    assert wrong.deviations(runs)[1] > 6.2 * np.sqrt(2.0 / runs) > 0.2
    wrong = dataclasses.replace(curve, predicted_means=curve.predicted_means + 3e-3)
    assert wrong.deviations(runs)[0] > 6.2


@pytest.mark.parametrize("method", sde_loss_floors.METHODS)
def test_floors_agree(method):
    simulated = sde_loss_floors.final_loss(method, 0.2, 6000, 64)
    assert simulated == pytest.approx(sde_loss_floors.floor(method, 0.2, 6000, 64), rel=0.4)


def test_powers_and_deviations_are_read_off():
    sigma = sde_loss_floors.MULTIPLIERS
    curve = sde_loss_floors.Floors(3.0 * sigma**2 + 1e-12, 2.0 * sigma**2 + 1e-12)
    assert curve.power() == pytest.approx(2.0)
    assert curve.deviation() == pytest.approx(0.5, rel=1e-3)


@pytest.mark.parametrize("panel", sde_trajectories.PANELS, ids=lambda panel: panel.name)
def test_paths_follow_their_equation(panel):
    paths = sde_trajectories.simulate(panel, 2, 60)
    assert paths.iterates.shape == (61, 2)
    assert max(paths.deviation()) < 0.03
    np.testing.assert_array_equal(paths.iterates[0], paths.equation[0])
    wrong = sde_trajectories.Paths(paths.iterates, paths.equation[::-1])
    assert max(wrong.deviation()) > 0.5


def test_gradients_are_those_of_the_losses():
    x = np.random.default_rng(4).normal(size=(1, 6))
    for landscape in (sde_trajectories.quadratic(6), sde_trajectories.quartic(6)):
        for place in range(6):
            step = np.zeros((1, 6))
            step[0, place] = 1e-5
            slope = (landscape.loss(x + step) - landscape.loss(x - step))[0] / 2e-5
            assert landscape.gradient(x)[0, place] == pytest.approx(slope, rel=1e-6, abs=1e-8)


def test_the_linear_drift_of_the_paper_is_far_off_at_its_own_start():
    assert sde_trajectories.linear_excess() > 100


@pytest.mark.parametrize(
    ("figure", "options"),
    [
        (sde_stationary, ["--runs", "2000", "--steps", "200"]),
        (sde_loss_floors, ["--steps", "300", "--dimension", "16"]),
        (sde_trajectories, ["--runs", "1", "--steps", "20"]),
    ],
    ids=["stationary", "floors", "trajectories"],
)
def test_the_scripts_draw_and_state_a_number(figure, options, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    path = tmp_path / "figure.png"
    status = figure.main([str(path), *options])
    assert status in {0, 1}
    assert path.read_bytes()[:4] == b"\x89PNG"
    assert "off by at most" in capsys.readouterr().out
