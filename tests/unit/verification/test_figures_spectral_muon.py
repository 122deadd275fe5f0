import importlib
import pkgutil

import numpy as np
import pytest

import verification.figures
from verification.figures import drawing, muon_bias, spectral_gains, spectral_transition


def test_every_figure_is_in_the_style_of_dpmech():
    matplotlib = pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    seen = []

    @drawing.in_style
    def draw():
        axes = Figure().subplots()
        drawing.line(axes, 1, np.arange(3), np.arange(3), "line")
        drawing.dots(axes, 1, np.arange(3), np.arange(3))
        seen.extend((one.get_color(), one.get_marker(), one.get_linestyle()) for one in axes.lines)

    draw()
    assert seen == [("#D55E00", "", "-"), ("#D55E00", "s", "None")]
    assert matplotlib.rcParams["axes.prop_cycle"].by_key()["color"][1] != "#D55E00"
    names = {one.name for one in pkgutil.iter_modules(verification.figures.__path__)} - {"drawing"}
    assert len(names) >= 7
    for name in names:
        draw = importlib.import_module(f"verification.figures.{name}").draw
        assert draw.__wrapped__.__module__ == f"verification.figures.{name}"


def test_the_transition_agrees_where_the_signal_is_clear():
    curve = spectral_transition.simulate(100, 200, np.array([0.5, 2.0, 3.0]), 15)
    value, cosine = curve.deviations()
    assert value < 0.015
    assert cosine < 0.02
    assert curve.simulated[1, 0] < 0.05
    wrong = spectral_transition.Transition(curve.multiples, curve.simulated, 1.1 * curve.predicted)
    assert wrong.deviations()[0] > 0.05
    assert wrong.deviations()[1] > 0.05


def test_gains_agree_where_the_signal_is_clear():
    curve = spectral_gains.simulate(100, 200, np.array([0.5, 2.0, 4.0]), 15)
    assert curve.deviation() < 0.02
    assert curve.predicted[0] == 0.0
    assert curve.predicted[1] > 0.3
    wrong = spectral_gains.Gains(curve.multiples, curve.simulated, 0.9 * curve.predicted)
    assert wrong.deviation() > 0.03


def test_biases_have_their_orders():
    exact = muon_bias.exact_biases(np.array([0.02, 0.04, 0.08]), nodes=8)
    assert exact.slopes() == pytest.approx((2.0, 4.0), abs=0.03)
    assert exact.agreement() < 0.01
    wrong = muon_bias.Biases(exact.scales, exact.plain, exact.corrected, 2.0 * exact.leading)
    assert wrong.agreement() > 0.4


def test_the_correction_helps_a_low_rank_momentum():
    errors = muon_bias.sampled_errors(0.1, np.array([0.56, 1.2]), 40)
    assert np.all(errors[1] < 0.5 * errors[0])


@pytest.mark.parametrize("name", ["spectral_transition", "spectral_gains", "muon_bias"])
def test_figures_are_drawn_and_state_their_agreement(name, tmp_path, capsys, monkeypatch):
    pytest.importorskip("matplotlib")
    module = {"spectral_transition": spectral_transition, "spectral_gains": spectral_gains}.get(
        name, muon_bias
    )
    if module is muon_bias:
        monkeypatch.setattr(muon_bias, "SCALES", np.geomspace(0.02, 0.08, 3))
        monkeypatch.setattr(muon_bias, "RATIOS", np.array([0.1, 0.2, 0.28, 0.4, 0.56]))
    else:
        monkeypatch.setattr(module, "SHAPES", ((20, 40), (150, 300)))
        monkeypatch.setattr(module, "MULTIPLES", np.array([0.5, 2.0, 4.0]))
    path = tmp_path / "figure.png"
    assert module.main([str(path), "--draws", "12"]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")
    assert "150 x 300" in capsys.readouterr().out or module is muon_bias
