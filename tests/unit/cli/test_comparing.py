import json

import pytest
from click.testing import CliRunner

import dpmech as dm
from dpmech import cli
from dpmech.numerics.printed import up

SMALL = ["--dataset-size", "120", "--batch-size", "10", "--epochs", "3"]
BUDGET = ["--eps", "2", "--delta", "1e-5"]


def run(*arguments):
    return CliRunner().invoke(cli.main, list(arguments))


def refused(*arguments):
    """Run a command that must end with exit code 2, a message and nothing on standard output."""
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.output
    return result.stderr


def test_a_strategy_without_a_theorem_has_an_empty_row():
    plan = [*SMALL, *BUDGET, "--sampling", "cyclic-poisson", "--cycle", "3"]
    for strategies in ("bsr:bands=2,lambda-cgd:lam=0.9", "lambda-cgd:lam=0.9,bsr:bands=2"):
        found = run("compare", "--strategies", strategies, *plan)
        assert found.exit_code == 0, found.output
        assert "no number for lambda-cgd lam=0.9 under cyclic-poisson: " in found.stdout
        rows = json.loads(run("compare", "--strategies", strategies, *plan, "--json").stdout)["strategies"]
        assert {row["label"]: "unavailable" in row for row in rows} == {
            "bsr bands=2": False,
            "lambda-cgd lam=0.9": True,
        }
    assert "at most cycle=3 bands" in refused(
        "compare", "--strategies", "lambda-cgd:lam=0.9,bsr:bands=9", *plan
    )


def test_methods_are_named_as_they_are_typed():
    plan = [*SMALL, *BUDGET, "--sampling", "random-allocation"]
    said = refused("compare", "--strategies", "lambda-cgd:lam=0.9", *plan)
    assert "the default method takes independent noise" in said
    assert "supported: --method certified or --method importance for strategies with few bands" in said


COMPARED = "identity,lambda-cgd:lam=0.9,bsr:bands=4,blt:decays=0.9:scales=0.2"


def test_compare_table_and_json():
    arguments = ["compare", "--strategies", COMPARED, *SMALL, "--sampling", "min-sep", *BUDGET]
    table = run(*arguments)
    assert table.exit_code == 0, table.output
    document = json.loads(run(*arguments, "--json").stdout)
    assert [row["label"] for row in document["strategies"]] == [
        "identity",
        "lambda-cgd lam=0.9",
        "bsr bands=4",
        "blt decays=[0.9], scales=[0.2]",
    ]
    for row in document["strategies"]:
        assert row["label"] in table.stdout
        assert up(row["rmse"]) in table.stdout
        assert up(row["sigma"]) in table.stdout
        assert row["eps_upper"] <= 2.0
    assert document["plan"]["n"] == 36


PLAN = """
[plan]
dataset_size = 50000
batch_size = 128
epochs = 10
sampling = "min-sep"
eps = 8
delta = 1e-5

[[strategy]]
name = "identity"
published = 83.85

[[strategy]]
name = "lambda-cgd"
lam = 0.9
published = 19.72
"""


def test_compare_plan_shows_computed_beside_published(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(PLAN)
    document = json.loads(run("compare", "--plan", str(path), "--json").stdout)
    assert [round(row["rmse"], 2) for row in document["strategies"]] == [83.83, 19.71]
    assert [row["published_rmse"] for row in document["strategies"]] == [83.85, 19.72]


def test_a_table_has_differences_from_print_and_options_override_the_plan(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(PLAN.replace("50000", "1280"))
    document = json.loads(run("compare", "--plan", str(path), "--json").stdout)
    table = run("compare", "--plan", str(path))
    assert table.exit_code == 0, table.output
    assert "published rmse" in table.stdout
    for row in document["strategies"]:
        assert f"{100.0 * (row['rmse'] / row['published_rmse'] - 1.0):+.2f} %" in table.stdout
    overridden = json.loads(run("compare", "--plan", str(path), "--eps", "4", "--json").stdout)
    assert overridden["plan"]["eps"] == 4.0
    assert overridden["strategies"][0]["sigma"] > document["strategies"][0]["sigma"]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("eps = 8", "eps = 8\nepsilon = 8", ["plan entry epsilon", "one of adjacency, batch_size"]),
        ("lam = 0.9", "lam = 0.9\nlamda = 0.9", ["strategy lambda-cgd must be given with lam", "lamda"]),
        ("lam = 0.9", "lam = 'high'", ["lam must be a finite number in [0, 1)", "high"]),
        ("eps = 8", "eps = '8'", ["plan.toml: eps must be a finite number in (0, inf)", "8"]),
        ("eps = 8", "eps = nan", ["eps must be a finite number", "nan"]),
        ("epochs = 10", "epochs = 10.0", ["epochs must be an integer >= 1", "10.0"]),
        ("epochs = 10", "epochs = true", ["epochs must be an integer >= 1", "True"]),
        ('"min-sep"', '"uniform"', ["sampling must be one of b-min-sep", "uniform"]),
        ("eps = 8", "eps = 8\nadjacency = 'both'", ["adjacency must be one of add_remove", "both"]),
        ("eps = 8", "eps = 8\nrtol = 2", ["rtol must be a finite number in [1e-06, 0.5]", "2"]),
        ("delta = 1e-5", "", ["missing: --delta"]),
        ('name = "identity"', 'name = "idenity"', ["strategy must be one of identity", "idenity"]),
        ('name = "identity"', "", ["strategy must be one of identity"]),
        ("[plan]", "[plan", ["plan must be a readable TOML file"]),
    ],
)
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_bad_plans(tmp_path, old, new, words, form):
    path = tmp_path / "plan.toml"
    assert old in PLAN
    path.write_text(PLAN.replace(old, new, 1))
    message = refused("compare", "--plan", str(path), *form)
    for word in words:
        assert word in message
    assert [item.name for item in tmp_path.iterdir()] == ["plan.toml"]


FLAT = """
dataset_size = 120
batch_size = 10
epochs = 3
sampling = "fixed-epochs,poisson"
eps = 2
delta = 1e-5
"""


def test_a_plan_file_without_strategies_and_a_sampling_by_the_name_of_its_class(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(FLAT)
    words = "a [plan] table and [[strategy]] tables only"
    assert words in refused("compare", "--plan", str(path), "--strategies", COMPARED)
    assert "dataset_size, batch_size" in refused("compare", "--plan", str(path), "--strategies", COMPARED)
    path.write_text(f"[plan]{FLAT}")
    assert "missing: --strategies" in refused("compare", "--plan", str(path))
    call = ["compare", "--plan", str(path), "--strategies", "identity", "--json"]
    named = json.loads(run(*call, "--sampling", "fixed-epochs").stdout)
    assert named["plan"]["sampling"] == "epochs"
    assert named["plan"]["participation"] == {"type": "FixedEpochs", "epochs": 3}
    both = json.loads(run(*call).stdout)
    assert [row["sampling"] for row in both["strategies"]] == ["epochs", "poisson"]
    assert "different names" in refused(*call, "--sampling", "fixed-epochs,epochs")


def test_the_figure_of_a_comparison(tmp_path):
    path = tmp_path / "errors.svg"
    call = ["compare", "--strategies", "identity", *SMALL, "--sampling", "min-sep,poisson", *BUDGET]
    result = run(*call, "--figure", str(path))
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == f"figure: {path}"
    assert path.read_text().count("identity, ") == 2
    assert json.loads(run(*call, "--figure", str(path), "--json").stdout)["figure"] == str(path)
    assert "--figure must be" in refused(*call, "--figure", str(tmp_path / "errors.txt"))


FITTED = "identity,lambda-cgd,blt:buffers=1,bisr,bandmf:bands=2:column-normalized"


@pytest.mark.slow
def test_families_are_fitted_under_every_sampling():
    arguments = [
        "compare",
        "--strategies",
        FITTED,
        *SMALL,
        *BUDGET,
        "--sampling",
        "min-sep,every-step,poisson",
    ]
    rows = json.loads(run(*arguments, "--json").stdout)["strategies"]
    own = {(row["label"], row["sampling"]): row for row in rows}
    assert len(own) == 15
    for sampling, participation in (
        ("min-sep", dm.MinSep(12, 3)),
        ("every-step", dm.EveryStep()),
        ("poisson", dm.Poisson(10 / 120)),
    ):
        fit = dm.optimize(dm.BLT, participation, n=36, buffers=1, eps=2.0, delta=1e-5)
        row = own["blt buffers=1", sampling]
        assert row["fitted"] is True
        assert dm.Strategy.from_dict(row["strategy"]) == fit.strategy
        assert (row["sigma"], row["rmse"]) == (fit.calibration.sigma, pytest.approx(fit.error, rel=1e-12))
        assert row["rmse"] <= own["identity", sampling]["rmse"] * (1 + 1e-9)
        assert "fitted" not in own["identity", sampling]
    assert own["lambda-cgd", "min-sep"]["strategy"] != own["lambda-cgd", "every-step"]["strategy"]
    text = " ".join(run(*arguments).stdout.split())
    assert "fitted of lambda-cgd under min-sep: lambda-cgd (n=36, lam=" in text


def test_a_sampling_without_fits_has_a_row_that_says_so():
    arguments = ["compare", "--strategies", "blt:buffers=1,bandmf:bands=9", *SMALL, *BUDGET, "--cycle", "4"]
    rows = json.loads(run(*arguments, "--sampling", "min-sep,cyclic-poisson,fixed-size", "--json").stdout)
    reasons = {(row["label"], row["sampling"]): row.get("unavailable") for row in rows["strategies"]}
    assert reasons["bandmf bands=9", "min-sep"] is None
    assert "bands=9 under a cycle of 4" in reasons["bandmf bands=9", "cyclic-poisson"]
    for label in ("blt buffers=1", "bandmf bands=9"):
        assert "nothing is fitted under" in reasons[label, "fixed-size"]
    refused("compare", "--strategies", "blt", *SMALL, *BUDGET, "--sampling", "fixed-size")


def test_a_plan_file_has_families(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(PLAN.replace("50000", "1280").replace("lam = 0.9\n", "").replace("published = 19.72", ""))
    document = json.loads(run("compare", "--plan", str(path), "--json").stdout)
    fit = dm.optimize(dm.LambdaCGD, dm.MinSep(10, 10), n=100, eps=8.0, delta=1e-5)
    assert dm.Strategy.from_dict(document["strategies"][1]["strategy"]) == fit.strategy


def test_optimize_takes_given_strategies_and_compares_them():
    plan = [*SMALL, *BUDGET, "--sampling", "min-sep", "--json"]
    given = "bsr:bands=4,lambda-cgd:lam=0.5"
    fits = json.loads(run("optimize", "--families", f"{given},lambda-cgd", *plan).stdout)["fits"][0][
        "families"
    ]
    compared = json.loads(run("compare", "--strategies", given, *plan).stdout)["strategies"]
    assert [row["family"] for row in fits] == ["identity", "bsr bands=4", "lambda-cgd lam=0.5", "lambda-cgd"]
    assert [row["sigma"] for row in fits[1:3]] == [row["sigma"] for row in compared]
    alone = json.loads(run("optimize", "--families", f"identity,{given}", *plan).stdout)
    assert [row["family"] for row in alone["fits"][0]["families"]] == [
        "identity",
        "bsr bands=4",
        "lambda-cgd lam=0.5",
    ]
    assert alone["best"] == "bsr bands=4"
