"""The controls on a small language model: what must hold whatever the numbers are."""

import dataclasses

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("peft")
pytest.importorskip("transformers")
pytest.importorskip("opacus")

import noise_share_controls as controls  # noqa: E402 - after the checks for what it needs

import dpmech as dm  # noqa: E402

pytestmark = [
    pytest.mark.slow,  # transformers takes seconds to import
    pytest.mark.filterwarnings("ignore:Full backward hook is firing"),
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
]
SMALL = dataclasses.replace(
    controls.settings_of(controls.SETTINGS), examples=60, batch_size=20, steps=10, floors=(1e6,), rates=(1.0,)
)


@pytest.fixture(scope="module")
def calibration():
    return dm.calibrate_sigma(dm.Identity(10), 8.0, 1e-3, participation=dm.Poisson(20 / 60))


def test_with_everything_at_the_floor_subtraction_changes_nothing(calibration):
    """Control 2 of the paper, as a theorem: both steps are m_hat / sqrt(floor)."""
    by_name = {rule.name: rule for rule in controls.rules(SMALL)}
    first, second = (
        controls.train(by_name[name], SMALL, calibration, seed=3)
        for name in ("DP-AdamBC, floor 1e+06 Phi", "floor only, 1e+06 Phi")
    )
    assert (first.clamped, second.clamped) == (1.0, 1.0)
    assert first.losses == pytest.approx(second.losses, rel=1e-6)
    other = controls.train(by_name["DP-Adam, rate 1x"], SMALL, calibration, seed=3)
    assert other.losses != pytest.approx(first.losses, rel=1e-3)
    assert (other.clamped, other.cosines) == (0.0, None)
    assert 0.5 < other.share < 1.5


def test_muon_is_probed_with_clean_gradients(calibration):
    by_name = {rule.name: rule for rule in controls.rules(SMALL)}
    run = controls.train(by_name["DP-MuonBC"], SMALL, calibration, seed=3)
    assert all(-1.0 <= one <= 1.0 for one in run.cosines)
    assert run.share is None


def test_the_files_say_what_came_out(calibration, tmp_path):
    plain = controls.Run((3.0, 2.0), 0.5, 0.9, 0.0)
    found = {
        "DP-Adam, rate 1x": [plain, dataclasses.replace(plain, losses=(3.2, 2.2))],
        "DP-Adam, denoised": [controls.Run((2.1, 1.5), 0.6, 0.9, 0.0)],
        "DP-Muon": [controls.Run((3.0, 2.5), 0.4, cosines=(0.25, 0.125))],
    }
    cal = dm.calibrate_sigma(dm.Identity(20), 8.0, 1e-3, participation=dm.Poisson(20 / 60))
    text = controls.written(found, cal, tmp_path)
    assert "| DP-Adam, rate 1x | 2.100 | 0.141 | 50.0 | 0.900 | 0.000 |" in text
    assert "0.250 for the momentum and 0.125 for its polar factor." in text
    saved = dm.ledgers.epsilon_saved(cal, 10)
    assert f"reached after 10 of 20 steps, which saves eps {saved:.2f}" in text
    assert (tmp_path / "noise_share_controls.txt").read_text() == text
    found["DP-Adam, denoised"] = [controls.Run((3.0, 2.9), 0.6, 0.9, 0.0)]
    assert "20 steps do not reach the final loss" in controls.written(found, cal, tmp_path)
