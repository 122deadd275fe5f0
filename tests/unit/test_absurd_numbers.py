"""Numbers that nobody means: a named error in a sentence, in commands, in files and in Python."""

import json
import re

import pytest

import dpmech as dm
from tests.support.command_line import done, run

SIZES = ("--strategy", "identity", "--dataset-size", "120", "--batch-size", "10", "--epochs", "3")
SAMPLINGS = [
    ("poisson",),
    ("balls-in-bins",),
    ("cyclic-poisson", "--cycle", "3"),
    ("random-allocation",),
    ("b-min-sep", "--separation", "3"),
    ("poisson", "--truncated-batch-size", "15", "--adjacency", "zero_out"),
    ("poisson", "--max-examples-per-user", "2"),
]


def refused(*call):
    """The line with which a command refuses a call."""
    result = run(*call)
    assert result.exit_code == 2, f"{result.output}{result.exception!r}"
    (line,) = result.stderr.splitlines()
    assert len(line) <= 400
    return line


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=" ".join)
@pytest.mark.parametrize(
    ("sigma", "words"),
    [
        ("1e-300", "so little noise a release protects nobody"),
        ("1e-160", "so little noise a release protects nobody"),
        ("1e160", "so much noise eps or delta leaves the range of float64"),
        ("1e300", "so much noise eps or delta leaves the range of float64"),
    ],
)
def test_a_scale_that_floats_cannot_square_is_named(sampling, sigma, words):
    for command in (("epsilon", "--delta", "1e-5"), ("delta", "--eps", "1")):
        line = refused(*command, *SIZES, "--sampling", *sampling, "--sigma", sigma)
        assert re.search(
            rf"sigma {re.escape(dm.numerics.typed(float(sigma)))} is \S+ times the sensitivity", line
        )
        assert words in line


@pytest.mark.parametrize("sampling", [*SAMPLINGS[:3], *SAMPLINGS[5:]], ids=" ".join)
def test_hardly_any_noise_has_a_bound_and_a_warning(sampling):
    """`epsilon --sigma 1e-9` spoke of a line of 64493347 points."""
    call = ("epsilon", *SIZES, "--sampling", *sampling, "--sigma", "1e-9", "--delta", "1e-5", "--json")
    result = run(*call)
    assert result.exit_code == 0
    assert "is above 20" in result.stderr
    # One participation has 5e17; there are 36 steps and up to two examples that join each of them.
    assert 5e17 < json.loads(result.stdout)["eps_upper"] < 36 * 4 * 5.01e17


def test_without_sampling_the_formula_answers_as_far_as_floats_go():
    bounds = dm.epsilon(dm.Identity(1), 1e-9, 1e-5, participation=dm.SingleParticipation())
    assert bounds.upper == pytest.approx(5e17, rel=1e-6)
    assert dm.epsilon(dm.Identity(1), 1e160, 1e-5, participation=dm.SingleParticipation()).upper < 1e-9
    assert "protects nobody" in refused(
        *("epsilon", *SIZES, "--sampling", "min-sep", "--sigma", "1e-160", "--delta", "1e-5")
    )


@pytest.mark.parametrize("sigma", [1e-160, 1e160])
def test_python_names_it_too(sigma):
    identity, poisson = dm.Identity(12), dm.Poisson(0.1)
    batch = dm.ledgers.SharedBatch("batch", identity, participation=poisson)
    batch.register("block", sigma)
    for call in (
        lambda: dm.epsilon(identity, sigma, 1e-5, participation=poisson),
        lambda: dm.delta(identity, sigma, 1.0, participation=poisson),
        lambda: dm.profile(identity, sigma, participation=poisson),
        lambda: dm.certify_sigma(identity, sigma, delta=1e-5, participation=poisson),
        lambda: batch.epsilon(1e-5),
    ):
        with pytest.raises(dm.NumericalError, match="times the sensitivity"):
            call()


def test_a_claims_file_names_it_too(tmp_path):
    claim = (
        '[[claim]]\nname = "a"\nsampling = "poisson"\ndataset_size = 120\nbatch_size = 10\nepochs = 3\n'
        "delta = 1e-5\nclaimed_eps = 1.0\nsigma = "
    )
    (tmp_path / "claims.toml").write_text(f"{claim}1e-160\n{claim}1e160\n")
    result = done("audit", tmp_path / "claims.toml", code=1)
    assert "times the sensitivity" in result.stdout
    for sigma in ("nan", "inf", "-1", "0", "1" + 400 * "0", '"1"', "[]", "0x" + 5000 * "f"):
        (tmp_path / "claims.toml").write_text(claim + sigma)
        assert "sigma" in refused("audit", tmp_path / "claims.toml") or sigma == "[]"


@pytest.mark.parametrize("sampling", ["min-sep", "poisson", "balls-in-bins"])
@pytest.mark.parametrize(
    "sizes",
    [
        ("1e30", "10", "3", "--dataset-size must be an integer in"),
        ("1e15", "1", "1", "--epochs must be so few that there are at most 1000000000 steps"),
        ("120", "10", "1e30", "--epochs must be so few that there are at most 1000000000 steps"),
        ("1e400", "10", "3", "--dataset-size must be an integer"),
    ],
)
def test_sizes_that_nobody_trains_with(sampling, sizes):
    *numbers, words = sizes
    call = zip(("--dataset-size", "--batch-size", "--epochs"), numbers, strict=True)
    flat = [word for pair in call for word in pair]
    assert words in refused(
        *(
            "calibrate",
            "--strategy",
            "identity",
            *flat,
            "--sampling",
            sampling,
            "--eps",
            "2",
            "--delta",
            "1e-5",
        )
    )


@pytest.mark.parametrize("sampling", ["min-sep", "poisson", "balls-in-bins"])
@pytest.mark.parametrize("eps", ["1e300", "1.7e308"])
def test_budgets_that_nobody_keeps(sampling, eps):
    refused("calibrate", *SIZES, "--sampling", sampling, "--eps", eps, "--delta", "1e-5")


@pytest.mark.parametrize(
    "make",
    [
        lambda: dm.Identity(10**30),
        lambda: dm.LambdaCGD(10**30, 0.5),
        lambda: dm.SquareRoot(10**30),
        lambda: dm.BLT(10**30, [0.5], [0.5]),
        lambda: dm.Strategy.from_json('{"type": "Identity", "n": 1' + 40 * "0" + "}"),
    ],
)
def test_steps_that_no_strategy_has(make):
    with pytest.raises(dm.InvalidParameterError, match=r"n must be an integer in \[1, 1000000000\]"):
        make()


def test_memory_that_is_not_there_is_said_in_a_sentence(monkeypatch):
    from dpmech.cli import calibrating

    def full(*_arguments, **_settings):
        raise MemoryError("Unable to allocate 7.81 EiB")

    monkeypatch.setattr(calibrating, "calibrate_sigma", full)
    call = ("calibrate", *SIZES, "--sampling", "min-sep", "--eps", "2", "--delta", "1e-5")
    assert (
        refused(*call)
        == "dpmech calibrate: this takes more memory than there is (Unable to allocate 7.81 EiB)"
    )


def test_lattices_whose_cells_have_no_width_are_named():
    with pytest.raises(dm.NumericalError, match=r"sigma 0\.05 is 0\.025 times the sensitivity"):
        dm.delta(
            dm.Identity(1),
            0.05,
            1e-300,
            participation=dm.Poisson(1e-300),
            adjacency=dm.Adjacency.REPLACE_ONE,
        )


def test_an_index_that_is_out_of_range_is_a_bug_and_no_absurd_number():
    with pytest.raises(IndexError), dm.numerics.within_float64("eps 1"):
        raise IndexError
