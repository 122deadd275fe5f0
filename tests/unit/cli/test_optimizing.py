"""`dpmech optimize`: the table, the JSON, the figure, and what is refused."""

import json
import re

import numpy as np
import pytest
from click.testing import CliRunner

import dpmech as dm
from dpmech.cli import main
from dpmech.fitting import recommending
from dpmech.mechanism.noise_cost import noise_cost
from dpmech.plans.training_plans import Entry, parse_entries

PLAN = [
    "--dataset-size",
    "200",
    "--batch-size",
    "10",
    "--epochs",
    "2",
    "--sampling",
    "min-sep",
    "--eps",
    "2",
    "--delta",
    "1e-5",
]
FAMILIES = ["--families", "lambda-cgd,bandmf:bands=4,blt:buffers=1:column-normalized"]


def run(*arguments):
    return CliRunner().invoke(main, ["optimize", *arguments])


def test_json_holds_the_coefficients_and_their_error():
    result = run(*PLAN, *FAMILIES, "--json")
    assert result.exit_code == 0, result.stderr
    record = json.loads(result.stdout)
    (fits,) = record["fits"]
    assert fits["eps"] == 2.0
    rows = {row["family"]: row for row in fits["families"]}
    assert set(rows) == {"identity", "lambda-cgd", "bandmf bands=4", "blt buffers=1, column-normalised"}
    for name, row in rows.items():
        strategy = dm.Strategy.from_dict(row["strategy"])
        cal = dm.calibrate_sigma(strategy, 2.0, 1e-5, participation=dm.MinSep(20, 2))
        assert row["sigma"] == (pytest.approx(cal.sigma, rel=1e-9) if name == "identity" else cal.sigma)
        assert row["rmse"] == pytest.approx(cal.rmse(), rel=1e-9)
        assert row["rmse"] <= rows["identity"]["rmse"]
        assert (row["buffers"], row["regenerated"]) == (
            noise_cost(strategy).buffers,
            noise_cost(strategy).regenerated,
        )
    best = dm.Strategy.from_dict(rows[record["best"]]["strategy"])
    ratio = dm.rmse(best, dm.MinSep(20, 2)) / dm.error_lower_bound(dm.MinSep(20, 2), n=40)
    assert record["gap"] == pytest.approx(ratio - 1.0, rel=1e-5)
    assert dm.Strategy.from_dict(rows["identity"]["strategy"]) == dm.Identity(40)


@pytest.mark.parametrize(
    ("options", "said"),
    [((), True), (("--objective", "last"), False), (("--momentum", "0.5"), False)],
)
def test_the_distance_from_the_best_matrix_is_stated_for_the_error_that_has_a_bound(options, said):
    result = run(*PLAN, "--families", "lambda-cgd", *options)
    assert result.exit_code == 0, result.stderr
    assert ("% of the best possible under min-sep, whatever the matrix" in result.stdout) is said


@pytest.mark.slow
def test_table_and_figure(tmp_path):
    pytest.importorskip("matplotlib", reason="the extra `plots` is optional")
    path = tmp_path / "errors.png"
    files = ["--figure", str(path), "--cache", str(tmp_path / "c"), "--out", str(tmp_path / "best.json")]
    result = run(*PLAN, *FAMILIES, *files, "--eps-grid", "4,1")
    assert result.exit_code == 0, result.stderr
    assert re.search(r"^certificate of .* at eps 2: .*best\.json", result.stdout, re.MULTILINE)
    assert dm.Certificate.load(tmp_path / "best.json").budget.eps == 2.0
    assert path.stat().st_size > 5000
    assert [f"at eps {eps}" in result.stdout for eps in (4, 2, 1)] == [True] * 3
    # Without amplification the best strategy does not depend on eps: fitted once a family.
    assert len(list((tmp_path / "c").iterdir())) == 3
    again = run(*PLAN, *FAMILIES, "--figure", str(tmp_path / "no" / "x.png"))
    assert again.exit_code == 2
    assert "figure" in again.stderr


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--families", "muon"], "strategy must be one of"),
        (["--families", "dp-sgd"], "got dp-sgd: DP-SGD is identity under poisson"),
        (["--families", "lambda-cgd,random"], "strategy must be one of"),
        (["--families", "bandmf:lam=2"], "bandmf"),
        (["--families", "bandmf:bands=2.5"], "bands"),
        (["--eps-grid", "1,2"], "--eps-grid"),
        (["--eps-grid", "a", "--figure", "x.png"], "--eps-grid"),
        (["--objective", "mse"], "objective"),
        (["--plan", "absent.toml"], "plan"),
    ],
)
def test_bad_input_ends_with_2_and_names_it(arguments, named):
    result = run(*PLAN, *arguments)
    assert result.exit_code == 2
    assert named in result.stderr
    assert result.stdout == ""


@pytest.mark.slow
def test_an_unsampled_strategy_is_fitted_once_and_is_the_best_at_every_eps(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib", reason="the extra `plots` is optional")
    fitted = []
    real = recommending.optimize
    monkeypatch.setattr(
        recommending, "optimize", lambda *given, **own: fitted.append(own["eps"]) or real(*given, **own)
    )
    call = [*PLAN, *FAMILIES, "--figure", str(tmp_path / "errors.png"), "--eps-grid", "4,1", "--json"]
    fits = json.loads(run(*call).stdout)["fits"]
    assert fitted == [4.0] * 3
    assert [one["eps"] for one in fits] == [4.0, 2.0, 1.0]
    for one in fits:
        (row,) = (row for row in one["families"] if row["family"] == "bandmf bands=4")
        again = dm.optimize(dm.BandedToeplitz, dm.MinSep(20, 2), n=40, bands=4, eps=one["eps"], delta=1e-5)
        assert row["rmse"] == pytest.approx(again.error, rel=1e-12)
        assert row["sigma"] == pytest.approx(again.calibration.sigma, rel=1e-12)
        assert dm.Strategy.from_dict(row["strategy"]) == again.strategy
        identity = one["families"][0]
        assert identity["rmse"] == pytest.approx(again.identity_error, rel=1e-12)
        assert identity["sigma"] == pytest.approx(again.identity_calibration.sigma, rel=1e-9)


@pytest.mark.slow
def test_the_winner_is_written_and_can_be_used(tmp_path):
    certificate, fit = tmp_path / "certificate.json", tmp_path / "fit.json"
    files = ["--out", str(certificate), "--out-strategy", str(fit), "--clip-norm", "0.5"]
    found = json.loads(run(*PLAN, *FAMILIES, *files, "--json").stdout)
    assert (found["certificate"], found["strategy_file"]) == (str(certificate), str(fit))
    (rows,) = (one["families"] for one in found["fits"])
    best = min(rows[1:], key=lambda row: row["rmse"])
    assert found["best"] == best["family"]
    own = dm.Certificate.load(certificate)
    assert (own.sigma, own.clip_norm, own.expected_batch_size) == (best["sigma"], 0.5, 10.0)
    assert dm.verify(certificate).ok
    strategy = dm.Strategy.from_json(fit.read_text())
    assert strategy == own.strategy == dm.Strategy.from_dict(best["strategy"])
    again = CliRunner().invoke(main, ["calibrate", "--strategy-file", str(fit), *PLAN, "--json"])
    assert json.loads(again.stdout)["sigma"] == best["sigma"]
    unit = CliRunner().invoke(
        main, ["calibrate", "--strategy-file", str(fit), "--column-normalized", *PLAN, "--json"]
    )
    assert dm.Strategy.from_dict(json.loads(unit.stdout)["strategy"]) == dm.ColumnNormalized(strategy)
    text = run(*PLAN, *FAMILIES, *files).stdout
    assert f"certificate of {best['family']}: {certificate} (clip norm 0.5)" in text
    assert f"strategy of {best['family']}: {fit}" in text


def test_families_are_read():
    families = parse_entries("dense,blt:buffers=2:column-normalized")
    assert families == [Entry("dense", {}), Entry("blt", {"buffers": 2}, column_normalized=True)]
    assert all(one.fitted for one in families)
    given = parse_entries("identity,bsr,bisr:bands=2,lambda-cgd:lam=0.5,muon,blt:decays=0.1")
    assert not any(one.fitted for one in given)


@pytest.mark.parametrize(
    ("strategy", "cost"),
    [
        (dm.Identity(9), (0, 0)),
        (dm.LambdaCGD(9, 0.5), (0, 1)),
        (dm.InverseSquareRoot(9, 4), (0, 3)),
        (dm.BandedToeplitz(9, [1.0, 0.5, 0.1]), (2, 0)),
        (dm.BLT(9, [0.9, 0.1], [0.2, 0.3]), (2, 0)),
        (dm.ColumnNormalized(dm.BLT(9, [0.9, 0.1], [0.2, 0.3])), (2, 0)),
        (dm.Dense(np.tril(np.cos(np.arange(81.0).reshape(9, 9))) + 2 * np.eye(9)), (0, 8)),
        (dm.SquareRoot(9), (0, 8)),
    ],
)
def test_noise_cost(strategy, cost):
    found = noise_cost(strategy)
    assert (found.buffers, found.regenerated) == cost
    assert found.bytes_per_parameter == 8 * cost[0]
