"""Every plan stands beside DP-SGD as it is run: independent noise under Poisson sampling."""

import functools
import json
import pathlib
import re
from fractions import Fraction

import pytest
from click.testing import CliRunner

import dpmech as dm
from dpmech import cli
from dpmech.cli.results import BASELINE, error_of
from dpmech.mechanism.noise_cost import noise_cost
from dpmech.numerics.printed import times, up
from tests.support import pages

ROOT = pathlib.Path(__file__).parents[3]
PLAN = ["--dataset-size", "120", "--batch-size", "10", "--epochs", "3", "--eps", "2", "--delta", "1e-5"]


@functools.cache
def sgd():
    return dm.calibrate_sigma(dm.Identity(36), 2.0, 1e-5, participation=dm.Poisson(10 / 120))


def run(*arguments):
    result = CliRunner().invoke(cli.main, list(arguments))
    assert result.exit_code == 0, result.output
    return result


def compared(*arguments):
    return json.loads(run("compare", *arguments, "--json").stdout)


def test_the_baseline_is_poisson_sampled_whatever_the_plan_samples():
    document = compared("--strategies", "identity,lambda-cgd:lam=0.5", *PLAN, "--sampling", "min-sep")
    baseline = document["baseline"]
    assert baseline["label"] == BASELINE == "DP-SGD (Poisson), baseline"
    assert baseline["sampling"] == "poisson"
    assert baseline["participation"] == dm.Poisson(10 / 120).to_dict()
    assert (baseline["sigma"], baseline["rmse"]) == (sgd().sigma, sgd().rmse())
    assert baseline["guarantee"] == "deterministic upper bound"
    assert (baseline["buffers"], baseline["regenerated"]) == (0, 0)
    # Independent noise without amplification is not DP-SGD, and does worse.
    identity, correlated = document["strategies"]
    assert identity["label"] == "identity"
    assert identity["rmse"] > baseline["rmse"]
    assert (correlated["buffers"], correlated["regenerated"]) == (0, 1)
    for row in document["strategies"]:
        gain = Fraction(baseline["rmse"]) / Fraction(row["rmse"])
        assert gain * Fraction(99, 100) < Fraction(str(row["times_less_rmse"])) <= gain


def test_the_table_shows_it_first_and_marks_it():
    text = run("compare", "--strategies", "identity", *PLAN, "--sampling", "min-sep").stdout
    rows = [line for line in text.splitlines() if line.startswith("│")]
    assert BASELINE in rows[0]
    assert up(sgd().rmse()) in rows[0]
    assert up(sgd().sigma) in rows[0]
    assert "identity" in rows[1]
    plain = dm.calibrate_sigma(dm.Identity(36), 2.0, 1e-5, participation=dm.MinSep(12, 3))
    assert times(sgd().rmse(), plain.rmse(), 3) in rows[1]
    for column in ("gain", "buffers", "regenerated", "sampling"):
        assert column in text


@pytest.mark.slow
def test_several_samplings_stand_in_one_table():
    document = compared(
        *("--strategies", "identity,bandmf:coefs=1/0.5"),
        *("--sampling", "epochs, cyclic-poisson,poisson", "--cycle", "4"),
        *PLAN,
    )
    rows = {(row["label"], row["sampling"]): row for row in document["strategies"]}
    assert len(rows) == 6
    schemas = {"epochs": dm.FixedEpochs(3), "cyclic-poisson": dm.CyclicPoisson(40 / 120, 4)}
    for sampling, schema in schemas.items():
        for label, strategy in (
            ("identity", dm.Identity(36)),
            ("bandmf coefs=[1.0, 0.5]", dm.BandedToeplitz(36, [1.0, 0.5])),
        ):
            expected = dm.calibrate_sigma(strategy, 2.0, 1e-5, participation=schema)
            row = rows[label, sampling]
            assert row["sigma"] == pytest.approx(expected.sigma, rel=1e-12)
            assert row["participation"] == expected.participation.to_dict()
            assert (row["buffers"], row["regenerated"]) == (
                noise_cost(strategy).buffers,
                noise_cost(strategy).regenerated,
            )
    assert rows["identity", "poisson"]["times_less_rmse"] == 1.0
    # What no theorem covers has a row that says so, and no number.
    refused = rows["bandmf coefs=[1.0, 0.5]", "poisson"]
    assert "needs independent, equal noise" in refused["unavailable"]
    assert "sigma" not in refused
    assert document["plan"]["sampling"] == ["epochs", "cyclic-poisson", "poisson"]
    assert document["plan"]["amplified"] == [False, True, True]


def test_a_plan_file_lists_samplings(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(
        "[plan]\ndataset_size = 120\nbatch_size = 10\nepochs = 3\neps = 2\ndelta = 1e-5\n"
        'sampling = ["min-sep", "epochs"]\nmin_sep = 6\n\n[[strategy]]\nname = "identity"\n'
    )
    document = compared("--plan", str(path))
    assert [row["participation"] for row in document["strategies"]] == [
        dm.MinSep(6).to_dict(),
        dm.FixedEpochs(3).to_dict(),
    ]
    table = run("compare", "--plan", str(path)).stdout
    assert "sampling min-sep, epochs" in table


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--sampling", "min-sep,uniform"], "--sampling must be one of b-min-sep"),
        (["--sampling", "min-sep,min-sep"], "--sampling must be different names"),
        (["--sampling", ""], "--sampling must be one of b-min-sep"),
        (
            ["--sampling", "epochs,poisson", "--cycle", "3"],
            "--cycle must be left out without sampling cyclic-poisson",
        ),
        (
            ["--sampling", "b-min-sep,balls-in-bins", "--separation", "2", "--adjacency", "replace_one"],
            "replace_one",
        ),
    ],
)
def test_bad_samplings(options, words):
    result = CliRunner().invoke(cli.main, ["compare", "--strategies", "identity", *PLAN, *options])
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr


def test_a_strategy_that_no_sampling_covers_is_refused():
    arguments = [
        "compare",
        "--strategies",
        "lambda-cgd:lam=0.5",
        *PLAN,
        "--sampling",
        "poisson,cyclic-poisson",
    ]
    result = CliRunner().invoke(cli.main, [*arguments, "--cycle", "4"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "needs a strategy with at most cycle=4 bands" in result.stderr


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--delta", "0.97"], "every sigma > 0 meets it"),
    ],
)
def test_where_the_baseline_has_no_number_its_row_says_why(options, reason):
    arguments = ["compare", "--strategies", "identity", *PLAN, "--sampling", "min-sep", *options]
    document = json.loads(run(*arguments, "--json").stdout)
    assert reason in document["baseline"]["unavailable"]
    assert "sigma" not in document["baseline"]
    assert document["strategies"][0]["times_less_rmse"] is None
    table = " ".join(re.sub("[│\\s]+", " ", run(*arguments).stdout).split())
    assert f"no number for {BASELINE}" in table
    assert BASELINE in table


OPTIMIZED = ["optimize", *PLAN, "--sampling", "min-sep", "--families", "lambda-cgd"]


@pytest.mark.parametrize("objective", ["rmse", "max_se", "last"])
def test_optimize_has_the_baseline(objective):
    document = json.loads(run(*OPTIMIZED, "--objective", objective, "--json").stdout)
    (fits,) = document["fits"]
    baseline = fits["baseline"]
    assert baseline["family"] == BASELINE
    assert baseline["sigma"] == sgd().sigma
    assert baseline[objective] == error_of(sgd(), objective)
    assert dm.Strategy.from_dict(baseline["strategy"]) == dm.Identity(36)
    # The error of the last prefix sum, and the worst one, of independent noise: sqrt(n) sigma.
    if objective != "rmse":
        assert baseline[objective] == pytest.approx(6.0 * sgd().sigma, rel=1e-12)


def test_the_table_of_optimize_compares_with_it():
    text = run(*OPTIMIZED).stdout
    rows = [line for line in text.splitlines() if line.startswith("│")]
    assert BASELINE in rows[0]
    assert up(sgd().rmse()) in rows[0]
    assert "gain" in text
    assert f"no number for {BASELINE}" not in run(*OPTIMIZED, "--adjacency", "replace_one").stdout
    refused = run(*OPTIMIZED, "--delta", "0.97").stdout
    assert f"no number for {BASELINE}: " in " ".join(refused.split())


@pytest.mark.slow
def test_the_figure_of_optimize_has_a_line_for_it(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib", reason="the extra `plots` is optional")
    from dpmech import plots

    drawn = {}
    real = plots.error_by_eps

    def spy(errors, **labels):
        drawn.update(errors)
        return real(errors, **labels)

    monkeypatch.setattr(plots, "error_by_eps", spy)
    run(*OPTIMIZED, "--figure", str(tmp_path / "errors.png"), "--eps-grid", "1")
    assert drawn[BASELINE][2.0] == sgd().rmse()
    assert set(drawn[BASELINE]) == {1.0, 2.0}
    run(*OPTIMIZED, "--figure", str(tmp_path / "none.png"), "--adjacency", "replace_one")
    assert (tmp_path / "none.png").stat().st_size > 5000


# ---- the words: DP-SGD without qualification is Poisson-sampled

PAGES = [
    *pages.PAGES,
    *sorted((ROOT / "docs" / "examples").glob("*")),
    *sorted((ROOT / "dpmech").rglob("*.py")),
    ROOT / "verification" / "__init__.py",
]
# What marks a page whose statements are quoted from papers.
QUOTED = (
    "whatever the sampling",
    "independent noise, for any sampling",
    "independent noise under any sampling",
)
# Pages that name it where sampling is beside the point: history, and tables of the paper's optimizers.
BESIDE = {"docs/changelog.md": "names of features"}


def unqualified(text, *, sections):
    """Sections, or whole texts, that speak of DP-SGD and never of Poisson sampling, without the mark."""
    if any(words in " ".join(text.split()) for words in QUOTED):
        return []
    parts = re.split(r"^(?=#+ )", text, flags=re.MULTILINE) if sections else [text]
    return [part for part in parts if re.search(r"\bDP-SGD\b", part) and "Poisson" not in part]


def test_dp_sgd_means_poisson_sampling():
    found = {
        str(path.relative_to(ROOT)): unqualified(
            path.read_text(encoding="utf-8"), sections=path.suffix == ".md"
        )
        for path in PAGES
        if path.is_file()
    }
    assert {name: parts for name, parts in found.items() if parts and name not in BESIDE} == {}


def test_the_words_are_found():
    page = "# One\n\nThe error is 14, against 83 for DP-SGD.\n\n# Two\n\nPoisson sampling is elsewhere.\n"
    assert len(unqualified(page, sections=True)) == 1
    assert not unqualified(page, sections=False)
    assert not unqualified("# One\n\nDP-SGD is a name.\n\nIt has Poisson batches.\n", sections=True)
    assert not unqualified("DP-SGD here is the paper's: whatever the\nsampling.", sections=True)
