import json

import pytest
from click.testing import CliRunner

import dpmech as dm
from dpmech import cli
from dpmech.numerics.printed import up

SMALL = ["--dataset-size", "120", "--batch-size", "10", "--epochs", "3"]
BUDGET = ["--eps", "2", "--delta", "1e-5"]
LAMBDA = ["--strategy", "lambda-cgd", "--lam", "0.9"]


def run(*arguments):
    return CliRunner().invoke(cli.main, list(arguments))


def refused(*arguments):
    """Run a command that must end with exit code 2, a message and nothing on standard output."""
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.output
    return result.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["calibrate", "--help"], ["compare", "--help"]])
def test_help(arguments):
    result = run(*arguments)
    assert result.exit_code == 0
    assert "Usage: " in result.stdout


def test_help_lists_commands_and_samplings():
    assert {"calibrate", "compare"} <= set(run("--help").stdout.split())
    text = run("calibrate", "--help").stdout
    for option in ("--dataset-size", "--batch-size", "--epochs", "--sampling", "--eps", "--delta", "--json"):
        assert option in text


def test_version():
    assert dm.__version__ in run("--version").stdout


def test_calibrate_table():
    result = run("calibrate", *LAMBDA, *SMALL, "--sampling", "min-sep", *BUDGET)
    assert result.exit_code == 0, result.output
    expected = dm.calibrate_sigma(dm.LambdaCGD(36, 0.9), 2.0, 1e-5, participation=dm.MinSep(12, 3))
    assert "lambda-cgd lam=0.9" in result.stdout
    assert up(expected.sigma) in result.stdout
    assert up(expected.rmse()) in result.stdout
    for word in ("steps_per_epoch", "12", "exact", "MinSep(min_sep=12, max_participations=3)"):
        assert word in result.stdout


@pytest.mark.parametrize(
    ("sampling", "schema"),
    [
        (["every-step"], dm.EveryStep()),
        (["single"], dm.SingleParticipation()),
        (["min-sep", "--min-sep", "5", "--max-participations", "2"], dm.MinSep(5, 2)),
        (["epochs"], dm.FixedEpochs(3)),
    ],
)
def test_calibrate_json_is_the_library(sampling, schema):
    result = run("calibrate", *LAMBDA, *SMALL, "--sampling", *sampling, *BUDGET, "--json")
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    expected = dm.calibrate_sigma(dm.LambdaCGD(36, 0.9), 2.0, 1e-5, participation=schema)
    assert record["sigma"] == expected.sigma
    assert record["sensitivity"] == expected.sensitivity.upper
    assert record["noise_multiplier"] == expected.noise_multiplier
    assert record["rmse"] == expected.rmse()
    assert record["max_se"] == expected.max_se()
    assert record["eps_upper"] <= 2.0
    assert record["guarantee"] == str(expected.guarantee)
    assert record["plan"]["n"] == 36
    assert record["plan"]["participation"] == repr(schema)


def test_calibrate_sampled():
    result = run("calibrate", "--strategy", "identity", *SMALL, "--sampling", "poisson", *BUDGET, "--json")
    record = json.loads(result.stdout)
    expected = dm.calibrate_sigma(dm.Identity(36), 2.0, 1e-5, participation=dm.Poisson(10 / 120))
    assert record["sigma"] == expected.sigma


def test_cyclic_poisson_and_replace_one_options():
    result = run(
        "calibrate",
        "--strategy",
        "bandmf",
        "--coefs",
        "1,0.5",
        *SMALL,
        "--sampling",
        "cyclic-poisson",
        "--cycle",
        "4",
        *BUDGET,
        "--json",
    )
    assert json.loads(result.stdout)["plan"]["participation"] == repr(dm.CyclicPoisson(10 / 120 * 4, 4))
    single = run("calibrate", *LAMBDA, *SMALL, "--sampling", "epochs", *BUDGET, "--json")
    double = run(
        "calibrate", *LAMBDA, *SMALL, "--sampling", "epochs", *BUDGET, "--json", "--adjacency", "replace_one"
    )
    ratio = json.loads(double.stdout)["sigma"] / json.loads(single.stdout)["sigma"]
    assert ratio == pytest.approx(2.0, rel=1e-9)


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
        ("lam = 0.9", "lam = 0.9\nlamda = 0.9", ["strategy lambda-cgd", "['lam']", "lamda"]),
        ("lam = 0.9", "lam = 'high'", ["lam must be a finite number in [0, 1)", "'high'"]),
        ("eps = 8", "eps = '8'", ["eps must be a finite number in (0, inf)", "'8'"]),
        ("eps = 8", "eps = nan", ["eps must be a finite number", "nan"]),
        ("epochs = 10", "epochs = 10.0", ["epochs must be an integer >= 1", "10.0"]),
        ("epochs = 10", "epochs = true", ["epochs must be an integer >= 1", "True"]),
        ('"min-sep"', '"uniform"', ["sampling must be one of every-step", "'uniform'"]),
        ("eps = 8", "eps = 8\nadjacency = 'both'", ["adjacency must be one of add_remove", "'both'"]),
        ("eps = 8", "eps = 8\nrtol = 2", ["rtol must be a finite number in [1e-06, 0.5]", "2"]),
        ("delta = 1e-5", "", ["delta must be given (--delta)"]),
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


BASE = {"--dataset-size": "120", "--batch-size": "10", "--epochs": "3", "--sampling": "min-sep", "--eps": "2",
        "--delta": "1e-5"}  # fmt: skip


def changed(**options):
    arguments = BASE | {f"--{key.replace('_', '-')}": value for key, value in options.items()}
    return [part for key, value in arguments.items() if value is not None for part in (key, value)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"eps": "0"}, ["eps must be", "(0, inf)", "0.0"]),
        ({"eps": "nan"}, ["eps must be", "nan"]),
        ({"eps": "inf"}, ["eps must be", "inf"]),
        ({"eps": "eight"}, ["--eps", "eight"]),
        ({"delta": "1"}, ["delta must be", "(0, 1)", "1.0"]),
        ({"delta": None}, ["delta must be given (--delta)"]),
        ({"dataset_size": None}, ["dataset_size must be given (--dataset-size)"]),
        ({"dataset_size": "0"}, ["dataset_size must be an integer >= 1", "0"]),
        ({"batch_size": "121"}, ["batch_size must be an integer in [1, 120]", "121"]),
        ({"epochs": "2.5"}, ["--epochs", "2.5"]),
        ({"sampling": "uniform"}, ["--sampling", "uniform", "min-sep"]),
        ({"sampling": None}, ["sampling must be given (--sampling)"]),
        ({"min_sep": "37"}, ["min_sep must be an integer in [1, n=36]", "37"]),
        ({"cycle": "3"}, ["cycle must be left out with sampling min-sep"]),
        ({"lam": "1"}, ["lam must be a finite number in [0, 1)", "1.0"]),
        ({"lam": None}, ["strategy lambda-cgd must be given exactly the options ['lam']"]),
        ({"bands": "3"}, ["strategy lambda-cgd must be given exactly the options ['lam']"]),
        ({"adjacency": "both"}, ["--adjacency", "both"]),
        ({"rtol": "0"}, ["rtol must be", "0.0"]),
        ({"strategy": "idenity"}, ["--strategy", "idenity"]),
        ({"sampling": "poisson"}, ["needs independent, equal noise", "supported: Identity"]),
        ({"unknown": "1"}, ["--unknown"]),
    ],
)
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_bad_input_of_calibrate(options, words, form):
    message = refused("calibrate", *changed(**({"strategy": "lambda-cgd", "lam": "0.9"} | options)), *form)
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, ["strategies must be given, here or in --plan"]),
        ({"strategies": "identity,unknown"}, ["strategy must be one of", "unknown"]),
        ({"strategies": "lambda-cgd:lam"}, ["name:option=value", "lambda-cgd:lam"]),
        ({"strategies": "bandmf:coefs=1/x"}, ["coefs must be", "1/x"]),
        ({"plan": "does-not-exist.toml"}, ["plan must be a readable TOML file", "does-not-exist.toml"]),
        # The second strategy fails: no half of a table comes out.
        (
            {"strategies": "identity,lambda-cgd:lam=0.9", "sampling": "poisson"},
            ["needs independent, equal noise"],
        ),
    ],
)
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_bad_input_of_compare(options, words, form):
    message = refused("compare", *changed(**options), *form)
    for word in words:
        assert word in message


def test_bad_number_lists():
    message = refused("calibrate", *changed(strategy="bandmf", coefs="1,x"))
    assert "coefs must be numbers joined by commas, got '1,x'" in message


def test_balls_in_bins_refuses_or_calibrates_but_never_crashes():
    result = run("calibrate", *changed(strategy="lambda-cgd", lam="0.5", sampling="balls-in-bins"), "--json")
    assert result.exit_code in {0, 2}
    assert ("sigma" in result.stdout) == (result.exit_code == 0)
