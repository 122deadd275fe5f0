"""Figures: what is drawn, and what is refused. How they look is for the eye."""

import sys

import numpy as np
import pytest

import dpmech as dm
from dpmech.exceptions import InvalidParameterError, MissingDependencyError

pytest.importorskip("matplotlib", reason="the extra `plots` is optional")

import matplotlib.style

from dpmech import plots

ERRORS = {"a": {8.0: 3.0, 1.0: 9.0, 0.25: 40.0}, "b": {8.0: 4.0, 1.0: 8.0, 0.25: 50.0}}


def drawn(figure, tmp_path):
    path = tmp_path / "figure.png"
    figure.savefig(path)
    assert path.stat().st_size > 5000
    return figure.axes


def test_compared_errors_are_bars_in_order_with_their_numbers(tmp_path):
    (axes,) = drawn(plots.compared_errors({"first": 2.0, "second": 0.123456}, title="of"), tmp_path)
    assert [bar.get_width() for bar in axes.patches] == [2.0, 0.123456]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["first", "second"]
    assert axes.yaxis_inverted()
    assert [text.get_text() for text in axes.texts] == ["2", "0.1235"]
    assert "clip norms" in axes.get_xlabel()
    assert axes.get_title() == "of"


def test_error_by_eps_draws_every_value_and_the_winners(tmp_path):
    axes, strip = drawn(plots.error_by_eps(ERRORS), tmp_path)
    for line, (name, values) in zip(axes.lines, ERRORS.items(), strict=True):
        assert line.get_label() == name
        assert dict(zip(*line.get_data(), strict=True)) == values
    colours = [line.get_color() for line in axes.lines]
    assert len(set(colours)) == 2
    winners = [patch.get_facecolor()[:3] for patch in strip.patches]
    assert winners[0] == winners[2] != winners[1]
    assert axes.get_xlabel() == ""
    assert strip.get_xlabel() == "eps"
    assert "clip norms" in axes.get_ylabel()
    ticks = [label.get_text() for label in axes.get_yticklabels(which="both") if label.get_text()]
    assert len(ticks) >= 2
    assert all(float(text) > 0 for text in ticks)  # numbers, not powers of ten
    # The legend stands beside the data.
    assert axes.get_legend().get_bbox_to_anchor().x0 >= axes.bbox.x1


def test_per_step_errors(tmp_path):
    strategies = {"identity": dm.Identity(20), "cgd": dm.LambdaCGD(20, 0.9)}
    (axes,) = drawn(plots.per_step_errors(strategies, scales={"identity": 2.0, "cgd": 1.0}), tmp_path)
    np.testing.assert_allclose(axes.lines[0].get_ydata(), 2.0 * np.sqrt(np.arange(1, 21)))
    np.testing.assert_allclose(axes.lines[1].get_ydata(), dm.per_step_error(strategies["cgd"]))
    assert axes.lines[0].get_xdata()[0] == 0
    assert "from 0" in axes.get_xlabel()


def test_more_than_seven_lines_are_told_apart(tmp_path):
    many = {f"lambda {number}": dm.LambdaCGD(9, number / 20) for number in range(20)}
    (axes,) = drawn(plots.per_step_errors(many), tmp_path)
    looks = {(line.get_color(), line.get_marker(), line.get_linestyle()) for line in axes.lines}
    assert len(looks) == 20
    # Without colours the first seven differ, too.
    assert len({line.get_marker() for line in axes.lines[:7]}) == 7


def test_the_style_is_nobody_elses():
    before = dict(matplotlib.rcParams)
    plots.matrices(dm.Identity(3))
    assert dict(matplotlib.rcParams) == before
    with matplotlib.style.context("dpmech.figures"):
        assert len(matplotlib.rcParams["axes.prop_cycle"]) == 21


def test_privacy_profile(tmp_path):
    grid = [0.5, 1.0, 2.0]
    bounds = [dm.delta(dm.Identity(4), 3.0, eps, participation=dm.Poisson(0.5)) for eps in grid]
    (axes,) = drawn(plots.privacy_profile(grid, {"PLD": bounds}), tmp_path)
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [one.upper for one in bounds])
    assert len(axes.collections) == 1


def test_trade_off(tmp_path):
    rates, powers = [0.01, 0.1, 1.0], [0.2, 0.5, 1.0]
    (axes,) = drawn(plots.trade_off(rates, {"a run": powers}, title="of"), tmp_path)
    np.testing.assert_allclose(axes.lines[0].get_ydata(), powers)
    np.testing.assert_allclose(axes.lines[1].get_ydata(), rates)


def test_matrices(tmp_path):
    figure = plots.matrices(dm.LambdaCGD(12, 0.8))
    drawn(figure, tmp_path)
    images = [axes.images[0] for axes in figure.axes if axes.images]
    np.testing.assert_allclose(images[0].get_array(), dm.LambdaCGD(12, 0.8).to_dense())
    assert images[0].norm.vmin == -images[0].norm.vmax


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: plots.compared_errors({}), "errors"),
        (lambda: plots.compared_errors({"a": 0.0}), "error"),
        (lambda: plots.error_by_eps({}), "errors"),
        (lambda: plots.error_by_eps({"a": {}}), "errors"),
        (lambda: plots.error_by_eps({"a": {0.0: 1.0}}), "eps"),
        (lambda: plots.error_by_eps({"a": {1.0: -1.0}}), "error"),
        (lambda: plots.per_step_errors({}), "strategies"),
        (lambda: plots.per_step_errors({"a": dm.Identity(3)}, scales={}), "scales"),
        (lambda: plots.privacy_profile([1.0, 1.0], {}), "eps"),
        (lambda: plots.privacy_profile([1.0], {"a": []}), "deltas"),
        (lambda: plots.trade_off([0.0, 1.0], {}), "rates"),
        (lambda: plots.trade_off([0.5], {"a": []}), "powers"),
        (lambda: plots.matrices(dm.Identity(500)), "n"),
    ],
)
def test_bad_arguments_are_named(call, match):
    with pytest.raises(InvalidParameterError, match=match):
        call()


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingDependencyError, match=r"pip install '\.\[plots\]'"):
        plots.matrices(dm.Identity(3))


@pytest.mark.slow
def test_a_profile_draws_itself(tmp_path):
    """Both directions where they differ; down to the delta that was asked for, or to what never falls."""
    once = dm.profile(dm.Identity(1), 1.0, participation=dm.SingleParticipation())
    (axes,) = drawn(once.plot(), tmp_path)
    (line,) = axes.lines
    eps, deltas = line.get_data()
    assert line.get_label() == "both directions"
    assert eps[0] == 0.0
    assert deltas[-1] == pytest.approx(1e-10, rel=1e-6)
    assert deltas[0] == once.delta(0.0).upper
    own = dm.calibrate_sigma(
        dm.Identity(6), 2.0, 1e-5, participation=dm.BallsInBins(3), method=dm.methods.Rdp()
    )
    bins = dm.profile(own.mechanism, own.sigma, rel_error=0.5)
    (axes,) = drawn(bins.plot(1e-4), tmp_path)
    remove, add = axes.lines
    assert [line.get_label() for line in axes.lines] == ["REMOVE", "ADD"]
    assert remove.get_xdata()[-1] == bins.epsilon(1e-4).upper
    np.testing.assert_allclose(add.get_ydata()[0], bins.hockey_stick(0.0, add=True).upper)
    flat = dm.PrivacyProfile.from_dp_accounting(
        bins.to_dp_accounting(step=1e-2), adjacency=dm.Adjacency.ADD_REMOVE, slack=1e-3
    )
    drawn(flat.plot(), tmp_path)
    for wrong in (0.0, 1.0, "1e-3"):
        with pytest.raises(InvalidParameterError, match="least_delta"):
            once.plot(wrong)
