import json

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
    shares = {(one["method"], one["eps"]): one["noise_shares"][0] for one in results}
    assert shares["DP-SGD", 2] > shares["DP-SGD", 8]
    # A second call finds everything done: it neither trains nor changes a number.
    cals = dict.fromkeys((eps, kind) for eps in (2.0, 8.0) for kind in (False, True))
    monkeypatch.setattr(digits_comparison, "calibrations", lambda *_: cals)
    assert digits_comparison.main(arguments) == 0
    assert capsys.readouterr().out == printed
