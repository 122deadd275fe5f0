import json
import math

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")

import digits_comparison

import dpmech as dm

NAMES = [method.name for method in digits_comparison.METHODS]


def test_test_images_never_choose_a_rate():
    choosing, final = digits_comparison.splits()

    def images(tensor):
        return {one.numpy().tobytes() for one in tensor}

    chosen = images(choosing.train.tensors[0]) | images(choosing.test[0])
    assert chosen == images(final.train.tensors[0])
    assert not chosen & images(final.test[0])
    assert not images(choosing.train.tensors[0]) & images(choosing.test[0])
    assert np.bincount(final.test[1]).min() >= 25  # every digit


@pytest.mark.slow
@pytest.mark.parametrize("method", digits_comparison.METHODS, ids=NAMES)
def test_the_cnn_trains(method):
    split = digits_comparison.splits()[1]
    participation = dm.MinSep(5)
    cal = dm.calibrate_sigma(dm.LambdaCGD(20, 0.3), 1e4, 1e-5, participation=participation)
    accuracy, share = digits_comparison.train(method, method.largest_rate / 8, "cnn", split, cal, 0)
    assert accuracy > 0.6
    assert 0.0 < share < 0.5  # hardly any noise
    assert (accuracy, share) == digits_comparison.train(method, method.largest_rate / 8, "cnn", split, cal, 0)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_script_compares_draws_and_goes_on(tmp_path, capsys, monkeypatch):
    arguments = [str(tmp_path), "--quick", "--models", "logistic"]
    assert digits_comparison.main(arguments) == 0
    printed = capsys.readouterr().out
    assert (tmp_path / "digits_comparison.png").read_bytes()[:4] == b"\x89PNG"
    assert (tmp_path / "digits_comparison.txt").read_text(encoding="utf-8") == printed
    results = json.loads((tmp_path / "digits_comparison.json").read_text(encoding="utf-8"))
    assert {(one["method"], one["eps"]) for one in results} == {
        (name, eps) for name in NAMES for eps in (2, 8)
    }
    for one in results:
        assert 0.5 < one["accuracies"][0] <= 1.0
        assert 0.0 < one["noise_shares"][0] < 1.2
        assert (one["lam"] > 0.0) == (one["method"] == "LambdaCGD")
        assert f"{100 * one['accuracies'][0]:.1f} ± 0.0 ({one['rate']:g})" in printed
        # Four scored runs and the published one cost more than one, and less than five by themselves.
        assert 1.2 * one["eps"] < one["total"] < 5.0 * one["eps"]
        assert f"| {math.ceil(100 * one['total']) / 100:.2f} |" in printed
    shares = {(one["method"], one["eps"]): one["noise_shares"][0] for one in results}
    assert shares["DP-SGD", 2] > shares["DP-SGD", 8]
    # A second call finds everything done: it neither trains nor changes a number.
    cals = dict.fromkeys((eps, kind) for eps in (2.0, 8.0) for kind in (False, True))
    monkeypatch.setattr(digits_comparison, "calibrations", lambda *_: cals)
    assert digits_comparison.main(arguments) == 0
    assert capsys.readouterr().out == printed


def test_the_total_is_that_of_the_person_who_pays_most():
    """Two people by hand: all runs by composition of Gaussian releases, all scores and one run likewise."""
    cal = dm.calibrate_sigma(dm.Identity(10), 2.0, 1e-5, participation=dm.EveryStep())
    for rates in (1, 3):
        runs, scores = 2 * rates + 1, 2 * rates
        mu = np.sqrt(10) / cal.sigma
        trained_on = np.sqrt(runs) * mu
        scored = np.hypot(mu, np.sqrt(scores) / digits_comparison.SCORE_NOISE)
        dearer = dm.epsilon(dm.Identity(1), 1.0 / max(trained_on, scored), 1e-5)
        assert digits_comparison.total(cal, rates) == pytest.approx(dearer.upper, rel=1e-6)


def test_scores_have_noise(monkeypatch):
    """Where all rates do as well as each other, noise decides; without it the first one."""
    cal = dm.calibrate_sigma(dm.Identity(10), 2.0, 1e-5, participation=dm.EveryStep())
    monkeypatch.setattr(digits_comparison, "train", lambda *_: (0.5, 0.5))
    method = digits_comparison.METHODS[0]

    def chosen(score_noise):
        return digits_comparison.result(method, "cnn", cal, rates=6, seeds=1, score_noise=score_noise)["rate"]

    assert chosen(0.0) == method.largest_rate
    noise = np.random.default_rng((0, 1, 2000)).standard_normal(12).reshape(6, 2).mean(axis=1)
    assert chosen(10.0) == method.rates(6)[int(np.argmax(noise))] != method.largest_rate
