"""The sweep over lambda: its noise is that of LambdaCGD, and its table that of its numbers."""

import json
import pathlib

import numpy as np
import pytest

pytest.importorskip("torch")

import accuracy_study
import lambda_sweep as sweep

import dpmech as dm
from tests.support.tasks import small_task

FIXED, _ = sweep.TABLES["lambda_sweep"]


@pytest.mark.parametrize("lam", [0.0, 0.5, 0.975])
@pytest.mark.parametrize("column", [FIXED, *sweep.TABLES["lambda_sweep_once"]], ids=lambda one: one.words)
def test_noise_is_that_of_lambda_cgd(column, lam):
    noise = sweep.noise_of(column, lam)
    own = dm.LambdaCGD(column.plan.steps, lam)
    np.testing.assert_allclose(noise.strategy.to_dense(), own.to_dense(), atol=1e-12)
    where = dm.MinSep(100, column.epochs)
    cal = dm.calibrate_sigma(own, column.eps, 1e-5, participation=where)
    assert noise.participation == where
    assert noise.sigma == pytest.approx(cal.sigma, rel=1e-6)
    assert noise.rmse == pytest.approx(cal.rmse(), rel=1e-6)


def test_the_script_trains_what_is_missing(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sweep, "TASKS", {"texts": lambda: small_task(train=100, test=40)})
    monkeypatch.setattr(sweep, "BINS", (5,))
    monkeypatch.setattr(sweep, "LAMBDAS", (0.0, 0.5))
    small = sweep.Column("in a fixed order", "min-sep", 2, 50.0)
    once = sweep.Column("one epoch, Adam", "min-sep", 1, 50.0, sweep.ADAM)
    monkeypatch.setattr(sweep, "TABLES", {"lambda_sweep": (small,), "lambda_sweep_once": (once,)})
    assert sweep.main([str(tmp_path), "--seeds", "2"]) == 0
    printed = capsys.readouterr().out
    names = ("lambda_sweep", "lambda_sweep_once")
    assert "".join((tmp_path / f"{name}.txt").read_text(encoding="utf-8") + "\n" for name in names) == printed
    monkeypatch.setattr(sweep, "result", None)  # a second call finds everything done
    assert sweep.main([str(tmp_path), "--seeds", "2"]) == 0
    assert capsys.readouterr().out == printed


def committed():
    folder = pathlib.Path(sweep.__file__).parents[1] / "figures"
    return folder, json.loads((folder / "lambda_sweep.json").read_text(encoding="utf-8"))


def test_the_committed_tables_are_those_of_the_numbers():
    folder, found = committed()
    for name, columns in sweep.TABLES.items():
        assert (folder / f"{name}.txt").read_text(encoding="utf-8") == sweep.table(found, columns)
    for lam in sweep.LAMBDAS:
        again = sweep.noise_of(FIXED, lam)
        assert found[sweep.name_of(FIXED, lam)]["rmse"] == pytest.approx(again.rmse, rel=1e-6)


def test_what_the_page_says_of_a_fixed_order():
    folder, found = committed()
    page = " ".join((folder.parent / "choosing.md").read_text(encoding="utf-8").split())
    study = json.loads((folder / "accuracy_study.json").read_text(encoding="utf-8"))
    part = accuracy_study.Part("texts", "softmax", 4, (4.0,))
    poisson = 100 * accuracy_study.best(study, part, 4.0, "poisson").mean()
    fixed = {lam: 100 * np.mean(found[sweep.name_of(FIXED, lam)]["test"]) for lam in sweep.LAMBDAS}
    best = max(fixed, key=fixed.get)
    assert f"DP-SGD under Poisson sampling has an accuracy of {poisson:.1f} %" in page
    ahead = f"lambda {best:g} is {fixed[best] - poisson:.1f} points more accurate"
    assert f"{ahead} than DP-SGD under Poisson sampling" in page
