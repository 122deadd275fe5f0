"""Errors of the library in the words of the command line."""

import click
import pytest

import dpmech as dm
from dpmech.cli.commands import MissingOptionsError, option_of, plain, remember, told
from dpmech.exceptions import InvalidParameterError, UnsupportedCombinationError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "supported: method=None, Exact() or Rdp()",
            "supported: no --method, --method exact or --method rdp",
        ),
        ("Certified(beta=None, calls=1) fails", "--method certified fails"),
        ("LambdaCGD(n=3, lam=0.9) has 3", "lambda-cgd (n=3, lam=0.9) has 3"),
        ("which BandedToeplitz(n=3, coefs=<2: 1, 0.5>) has", "which bandmf (n=3, coefs=<2: 1, 0.5>) has"),
        ("ColumnNormalized(strategy=x)", "column-normalized (strategy=x)"),
        ("Poisson sampling, Poisson", "Poisson sampling, Poisson"),
        (
            "under Poisson(sampling_prob=0.5), CyclicPoisson",
            "under poisson (sampling_prob=0.5), cyclic-poisson",
        ),
        ("Balls-in-Bins, dm.BallsInBins(bins=4)", "Balls-in-Bins, balls-in-bins (bins=4)"),
        ("REPLACE_ONE and Adjacency", "replace_one and Adjacency"),
        ("a file ([Errno 2] No such file or directory: 'x')", "a file (No such file or directory)"),
        ("runs/Dense/Identity.json, my-Pld.toml", "runs/Dense/Identity.json, my-Pld.toml"),
        ("under BallsInBins(4). Use Dense.", "under balls-in-bins (4). Use dense."),
        ("banded, identity and Identical", "banded, identity and Identical"),
    ],
)
def test_names_of_python_become_names_that_people_type(text, expected):
    assert plain(text) == expected


@pytest.fixture
def ctx():
    @click.command()
    @click.argument("path")
    @click.option("--delta", type=float)
    @click.option("--seed", type=int)
    @click.option("--plan", "plan_file")
    def command():
        """Do nothing."""

    found = click.Context(command, info_name="dpmech")
    found.params = {"plan_file": None, "delta": 0.0}
    return found


def test_an_argument_becomes_its_option(ctx):
    assert option_of(ctx, "rng").opts == ["--seed"]
    assert option_of(ctx, "path").opts == ["path"]
    assert option_of(ctx, "sigma") is None
    error = InvalidParameterError("delta", 0.0, "a finite number in (0, 1)", "; so")
    assert told(error, ctx) == "--delta must be a finite number in (0, 1), got 0.0; so"
    remember(ctx, "delta", "1e-400")
    assert told(error, ctx) == "--delta must be a finite number in (0, 1), got 1e-400; so"
    assert told(InvalidParameterError("rng", None, "given"), ctx) == "--seed must be given"
    assert told(InvalidParameterError("path", "x.json", "new"), ctx) == "x.json must be new"
    assert told(InvalidParameterError("coefs[0]", -1.0, "finite"), ctx) == "coefs[0] must be finite, got -1.0"
    long = told(InvalidParameterError("sigma", "9" * 200, "short"), ctx)
    assert len(long) < 120
    assert long.endswith("...")


def test_what_stands_in_a_plan_file_is_told_of_that_file(ctx):
    ctx.params |= {"plan_file": "plan.toml", "delta": None}
    error = InvalidParameterError("delta", 2.0, "a finite number in (0, 1)")
    assert told(error, ctx) == "plan.toml: delta must be a finite number in (0, 1), got 2.0"


def test_other_errors_keep_their_words(ctx):
    error = UnsupportedCombinationError("Prv() does not apply", supported="Pld()")
    assert told(error, ctx) == "--method prv does not apply; supported: --method pld"
    assert told(MissingOptionsError(["batch_size", "--sigma (or --x)"]), ctx) == (
        "missing: --batch-size, --sigma (or --x)"
    )
    assert isinstance(MissingOptionsError(["eps"]), dm.DpmechError)
