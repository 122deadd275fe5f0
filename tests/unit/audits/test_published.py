import json
import math
import pathlib
import tomllib

import pytest
from click.testing import CliRunner

import dpmech as dm
import dpmech.plans
from dpmech import cli
from dpmech.audits.published import Finding, PublishedClaim, audit
from dpmech.plans.files import published_claims, read_claims
from verification.claims import procedures

CLAIMS = pathlib.Path(dpmech.plans.__file__).parent / "published"
BASE = {"name": "a", "sampling": "poisson", "sampling_prob": 0.1, "steps": 5, "sigma": 1.0, "delta": 1e-5}


def claim(**changes):
    fields = {
        "name": "a",
        "strategy": dm.Identity(1),
        "participation": dm.SingleParticipation(),
        "sigma": 1.0,
        "delta": 1e-5,
        "claimed_eps": 5.0,
    }
    return PublishedClaim(**(fields | changes))


def as_toml(table):
    lines = []
    for key, value in table.items():
        if value is not None:
            lines.append(f"{key} = {json.dumps(value)}")
    return "\n".join(lines)


def read(tmp_path, **changes):
    path = tmp_path / "claims.toml"
    path.write_text("[[claim]]\n" + as_toml(BASE | {"claimed_eps": 2.0} | changes), encoding="utf-8")
    return read_claims(path)


def run(*arguments):
    return CliRunner().invoke(cli.main, ["audit", *map(str, arguments)])


# ---- verdicts


def test_verdicts_follow_the_certified_bounds():
    # eps of sigma = 1 at delta = 1e-5 is 4.3772.
    holds, under, rounded = audit(
        [claim(claimed_eps=4.378), claim(claimed_eps=4.37), claim(claimed_eps=4.37, rounding=0.01)]
    )
    assert (holds.verdict, under.verdict, rounded.verdict) == ("holds", "under-stated", "holds")
    assert holds.passed
    assert not under.passed
    assert under.ratio == pytest.approx(4.37718 / 4.37, rel=1e-5)


def test_a_bound_that_is_not_tight_decides_nothing():
    (found,) = audit([claim(claimed_eps=4.378)], method=dm.methods.Rdp())
    assert found.verdict == "undecided"
    assert not found.passed


def test_what_no_theorem_covers_is_refused_with_the_reason():
    signed = claim(strategy=dm.BandedToeplitz(4, [1.0, -0.5]), participation=dm.BallsInBins(2))
    (found,) = audit([signed])
    assert found.verdict == "refused"
    assert ">= 0" in found.reason or "negative" in found.reason
    assert math.isnan(found.ratio)
    assert not found.passed
    assert not Finding(claim(recorded_eps=3.0), None, "none").on_record


def test_blocks_of_a_batch_are_joined_before_sampling():
    one = claim(
        strategy=dm.Identity(1000), participation=dm.Poisson(0.01), delta=1e-6, blocks=2, claimed_eps=2.955
    )
    (found,) = audit([one])
    assert one.joint_sigma == dm.ledgers.joint_release([1.0, 1.0]).sigma
    assert found.certified.upper == pytest.approx(5.287, rel=5e-3)
    assert found.verdict == "under-stated"


def test_a_record_is_compared():
    right, wrong, coarse = audit(
        [
            claim(recorded_eps=4.38),
            claim(recorded_eps=4.45),
            claim(recorded_eps=4.45, rounding=0.05),
        ]
    )
    assert right.passed
    assert not wrong.on_record
    assert not wrong.passed
    assert coarse.on_record


def test_equal_claims_are_accounted_once_and_progress_is_reported():
    seen = []
    first, second = audit([claim(), claim(name="b", claimed_eps=3.0)], progress=seen.append)
    assert first.certified is second.certified
    assert [one.name for one in seen] == ["a", "b"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": ""}, "name"),
        ({"sigma": 0.0}, "sigma"),
        ({"delta": 1.0}, "delta"),
        ({"claimed_eps": 0.0}, "eps"),
        ({"rounding": -1.0}, "rounding"),
        ({"blocks": 0}, "blocks"),
        ({"recorded_eps": -1.0}, "eps"),
    ],
)
def test_bad_claims_are_refused(changes, message):
    with pytest.raises(dm.InvalidParameterError, match=message):
        claim(**changes)


# ---- files


@pytest.mark.parametrize(
    ("entries", "participation", "n"),
    [
        ({}, dm.Poisson(0.1), 5),
        ({"sampling_prob": None, "dataset_size": 100, "batch_size": 5}, dm.Poisson(0.05), 5),
        ({"max_examples_per_user": 3}, dm.Poisson(0.1, 3), 5),
        (
            {"sampling_prob": None, "dataset_size": 100, "batch_size": 5, "max_examples_per_user": 3},
            dm.Poisson(0.05, 3),
            5,
        ),
        (
            {
                "sampling_prob": None,
                "dataset_size": 100,
                "batch_size": 5,
                "truncated_batch_size": 8,
                "adjacency": "zero_out",
            },
            dm.Poisson(0.05, truncated_batch_size=8, dataset_size=100),
            5,
        ),
        (
            {"dataset_size": 100, "truncated_batch_size": 8, "adjacency": "zero_out"},
            dm.Poisson(0.1, truncated_batch_size=8, dataset_size=100),
            5,
        ),
        (
            {"sampling_prob": None, "steps": None, "dataset_size": 100, "batch_size": 30, "epochs": 2},
            dm.Poisson(0.3),
            6,
        ),
        ({"sampling": "every-step", "sampling_prob": None}, dm.EveryStep(), 5),
        ({"sampling": "single", "sampling_prob": None}, dm.SingleParticipation(), 5),
        ({"sampling": "min-sep", "sampling_prob": None, "min_sep": 2}, dm.MinSep(2), 5),
        (
            {"sampling": "min-sep", "sampling_prob": None, "min_sep": 2, "max_participations": 2},
            dm.MinSep(2, 2),
            5,
        ),
        ({"sampling": "epochs", "sampling_prob": None, "epochs": 5}, dm.FixedEpochs(5), 5),
        ({"sampling": "cyclic-poisson", "cycle": 2}, dm.CyclicPoisson(0.1, 2), 5),
        ({"sampling": "balls-in-bins", "sampling_prob": None, "bins": 5}, dm.BallsInBins(5), 5),
        (
            {"sampling": "balls-in-bins", "sampling_prob": None, "bins": 5, "fresh": True},
            dm.BallsInBins(5, fresh=True),
            5,
        ),
        (
            {
                "sampling": "cyclic-poisson",
                "sampling_prob": None,
                "steps": None,
                "cycle": 2,
                "dataset_size": 100,
                "batch_size": 10,
                "epochs": 1,
            },
            dm.CyclicPoisson(0.2, 2),
            10,
        ),
    ],
)
def test_every_sampling_is_read(tmp_path, entries, participation, n):
    (found,) = read(tmp_path, **entries)
    assert found.participation == participation
    assert found.strategy == dm.Identity(n)
    assert found.sigma == 1.0


def test_strategies_series_and_defaults_are_read(tmp_path):
    path = tmp_path / "claims.toml"
    path.write_text(
        '[defaults]\nsampling = "epochs"\nepochs = 2\nsteps = 8\ndelta = 1e-5\nadjacency = "zero_out"\n'
        '[[claim]]\nname = "series"\nsigma = [1, 2.0]\nclaimed_eps = [5.0, 2]\n'
        'recorded_eps = [4.377, 1.9]\nstrategy = "lambda-cgd"\nlam = 0.5\ncolumn_normalized = true\n'
        'note = "why"\nrounding = 0.1\nblocks = 3\n',
        encoding="utf-8",
    )
    first, second = read_claims(path)
    strategy = dm.ColumnNormalized(dm.LambdaCGD(8, 0.5))
    assert first.strategy == second.strategy == strategy
    assert (first.sigma, second.sigma) == (1.0, 2.0)
    assert (first.recorded_eps, second.claimed_eps) == (4.377, 2.0)
    assert (first.adjacency, first.note, first.blocks, first.rounding) == (
        dm.Adjacency.ZERO_OUT,
        "why",
        3,
        0.1,
    )


def test_a_noise_multiplier_is_that_of_opacus(tmp_path):
    """Sigma of independent noise, whatever the sensitivity; of correlated noise there is none."""
    epochs = {"sampling": "epochs", "sampling_prob": None, "epochs": 2, "steps": 8}
    (found,) = read(tmp_path, sigma=None, noise_multiplier=1.5, **epochs)
    assert found.sigma == 1.5
    assert dm.sensitivity(found.strategy, found.participation).upper > 1.4
    with pytest.raises(dm.InvalidParameterError, match=r"noise_multiplier must be left out.*give sigma"):
        read(tmp_path, sigma=None, noise_multiplier=1.5, strategy="lambda-cgd", lam=0.5, **epochs)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": None}, "name must be given"),
        ({"claimed_eps": None}, "claimed_eps must be given"),
        ({"sampling": "shuffled"}, "sampling"),
        ({"sampling_prob": None}, "batch_size and dataset_size"),
        ({"dataset_size": 100}, "truncated_batch_size must be given"),
        ({"sampling": "min-sep", "sampling_prob": None}, "min_sep must be given"),
        ({"steps": None}, "steps must be given"),
        ({"sigma": None}, "noise_multiplier"),
        ({"noise_multiplier": 1.0}, "not both"),
        ({"sigma": None, "noise_multiplier": 0}, "noise_multiplier"),
        ({"sigma": [1.0, 2.0], "claimed_eps": [1.0]}, "equally long"),
        ({"sigma": []}, "equally long"),
        ({"surprise": 1}, "surprise"),
        ({"lam": 0.5}, "lam"),
        ({"bins": 5}, "bins"),
        ({"strategy": "lambda-cgd"}, "lambda-cgd"),
        ({"strategy": "other"}, "strategy"),
        ({"adjacency": "other"}, "adjacency"),
        ({"column_normalized": 1}, "column_normalized"),
        ({"note": 3}, "note"),
        ({"steps": 2.5}, "steps"),
    ],
)
def test_a_bad_table_is_refused(tmp_path, changes, message):
    with pytest.raises(dm.InvalidParameterError, match=message):
        read(tmp_path, **changes)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[[claim]",
        "[claim]\nname = 1",
        "x = 1\n[[claim]]",
        "claim = []",
        "claim = [1]",
        "defaults = 1\n[[claim]]\n",
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path, text):
    path = tmp_path / "claims.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(dm.InvalidParameterError, match="claim"):
        read_claims(path)
    with pytest.raises(dm.InvalidParameterError, match="readable"):
        read_claims(tmp_path / "none.toml")


# ---- the command


def test_the_command_flags_what_is_under_stated():
    result = run(CLAIMS / "dp_muon.toml")
    assert result.exit_code == 1
    assert result.stdout.count("under-stated") == 2
    assert "61.98" in result.stdout
    assert "49 x 410" in result.stdout


def test_the_command_prints_json_and_exits_0_where_all_hold():
    result = run(CLAIMS / "noise_share.toml", "--json")
    assert result.exit_code == 0
    record = json.loads(result.stdout)
    assert record["failed"] == 0
    first, second = record["claims"]
    assert first["eps_upper"] == pytest.approx(7.43546, abs=2e-3)
    assert second["eps_upper"] == pytest.approx(6.3930, abs=2e-3)
    assert {first["verdict"], second["verdict"]} == {"holds"}
    assert "PRV" in first["note"]


def test_the_command_takes_a_method_and_a_seed_and_shows_records_and_refusals(tmp_path):
    path = tmp_path / "claims.toml"
    tables = [
        {"sampling": "single", "sampling_prob": None, "claimed_eps": 5.0, "recorded_eps": 9.0},
        {
            "sampling": "balls-in-bins",
            "sampling_prob": None,
            "bins": 5,
            "strategy": "bandmf",
            "coefs": [1.0, -0.5],
        },
        {"sampling": "single", "sampling_prob": None, "claimed_eps": 4.5, "note": "[bold]not markup"},
    ]
    path.write_text(
        "\n".join("[[claim]]\n" + as_toml(BASE | {"claimed_eps": 1.0} | table) for table in tables),
        encoding="utf-8",
    )
    result = run(path, "--method", "rdp", "--seed", "1")
    assert result.exit_code == 1
    assert "on record: 9" in result.stdout
    assert "refused" in result.stdout
    assert "undecided" in result.stdout
    assert "[bold]not markup" in result.stdout
    record = json.loads(run(path, "--json").stdout)
    assert record["failed"] == 2
    assert record["claims"][1]["eps_upper"] is None
    assert record["claims"][1]["ratio"] is None


def test_bad_input_exits_2(tmp_path):
    assert run().exit_code == 2
    assert run(tmp_path / "none.toml").exit_code == 2
    assert run(CLAIMS / "noise_share.toml", "--method", "other").exit_code == 2
    assert run(CLAIMS / "noise_share.toml", "--seed", "-1").exit_code == 2


# ---- published claims


def test_published_claims_come_with_the_package():
    assert set(published_claims()) >= {"dp_muon", "noise_share", "sde_imdb"}
    by_name = CliRunner().invoke(cli.main, ["audit", "--published", "noise_share", "--json", "-q"])
    by_path = CliRunner().invoke(cli.main, ["audit", str(CLAIMS / "noise_share.toml"), "--json", "-q"])
    assert (by_name.exit_code, by_name.stdout) == (0, by_path.stdout)
    twice = ["audit", str(CLAIMS / "noise_share.toml"), "--published", "noise_share", "--json", "-q"]
    assert len(json.loads(CliRunner().invoke(cli.main, twice).stdout)["claims"]) == 4
    unknown = CliRunner().invoke(cli.main, ["audit", "--published", "dp_moun"])
    assert unknown.exit_code == 2
    assert "did you mean dp_muon?" in unknown.stderr
    nothing = CliRunner().invoke(cli.main, ["audit"])
    assert nothing.exit_code == 2
    assert "missing: FILE... or --published, one of dp_muon," in nothing.stderr


@pytest.mark.parametrize("path", sorted(CLAIMS.glob("*.toml")), ids=lambda path: path.stem)
def test_every_claims_file_is_read(path):
    claims = read_claims(path)
    assert claims
    assert len(claims) >= len(tomllib.loads(path.read_text(encoding="utf-8"))["claim"])


def test_all_eps_of_the_sde_paper_are_its_formula():
    """With the multipliers as printed, to the rounding of the printed digits."""
    count = 0
    for path in CLAIMS.glob("sde_*.toml"):
        for one in read_claims(path):
            if "n=25000" in one.name:
                continue
            value = procedures.formula_epsilon(
                one.participation.sampling_prob, one.sigma, one.strategy.n, one.delta
            )
            digits = 0.004 if "protocol" in one.name or "(C.1)" in one.name else 0.0
            # The printed multipliers of C.1 are those of a fifth of the printed eps.
            claimed = one.claimed_eps / 5.0 if "(C.1)" in one.name else one.claimed_eps
            assert abs(value - claimed) <= max(1.01 * one.rounding, digits * value), one
            count += 1
    assert count == 168


@pytest.mark.parametrize(
    ("name", "sigma", "certified", "verdict"),
    [("IMDB B=64 (C.2)", 1.0, 4.744, "under-stated"), ("IMDB B=64 (C.2)", 12.0, 0.220, "holds")],
)
def test_the_formula_is_no_certificate(name, sigma, certified, verdict):
    claims = [one for one in read_claims(CLAIMS / "sde_imdb.toml") if one.name == name and one.sigma == sigma]
    (found,) = audit(claims)
    assert found.verdict == verdict
    assert found.certified.upper == pytest.approx(certified, rel=5e-3)


@pytest.mark.slow
def test_recorded_values_of_the_imdb_lists_are_found_again():
    claims = [one for one in read_claims(CLAIMS / "sde_imdb.toml") if one.recorded_eps is not None]
    findings = audit(claims)
    assert len(findings) == 36
    assert all(found.on_record for found in findings)
    assert {found.verdict for found in findings} == {"holds", "under-stated"}


MUON = {
    "E2E": (42043, 410, 8e-6, 2.3395, 7.98505, 61.98, 4.778),
    "DART": (60591, 885, 1e-5, 2.3614, 7.97976, 67.62, 4.731),
}


@pytest.mark.parametrize("name", sorted(MUON))
def test_dp_muon_table_3_both_ways(name):
    size, steps, delta, sigma, printed, joint, needed = MUON[name]
    q = 1024 / size
    assert procedures.independent_blocks_epsilon(q, sigma, steps, 49, delta) == pytest.approx(
        printed, abs=2e-3
    )
    assert procedures.joint_epsilon(q, sigma, steps, 49, delta) == pytest.approx(joint, abs=0.05)
    ours = dm.epsilon(
        dm.Identity(steps), dm.ledgers.joint_release([sigma] * 49).sigma, delta, participation=dm.Poisson(q)
    )
    assert ours.upper == pytest.approx(joint, abs=0.05)
    cal = dm.calibrate_sigma(dm.Identity(steps), 8.0, delta, participation=dm.Poisson(q))
    blocks = dm.ledgers.BlockClipping.from_joint([0.1] * 49, cal.sigma)
    assert blocks.sigmas[0] == pytest.approx(needed, rel=1e-3)
    # What the printed sigma was sized for: one release of a batch of its own.
    assert procedures.joint_epsilon(q, blocks.sigmas[0], steps, 49, delta) == pytest.approx(8.0, rel=2e-3)


@pytest.mark.slow
def test_the_two_eps_of_noise_share_come_from_rdp_sizing_and_a_prv_upper_end():
    for q, steps, sigma, printed in ((1.0, 1, 0.6378173828, 7.446), (256 / 42061, 120, 0.4672241211, 6.404)):
        found = procedures.opacus_sigma(q, steps, 8.0, 1e-5)
        assert found == pytest.approx(sigma, abs=1e-9)
        assert procedures.prv_upper_epsilon(q, found, steps, 1e-5) == pytest.approx(printed, abs=2e-3)
    tight = dm.calibrate_sigma(dm.Identity(120), 8.0, 1e-5, participation=dm.Poisson(256 / 42061))
    assert tight.sigma == pytest.approx(0.4326, rel=2e-3)


def test_the_joint_sigma_solver_of_the_claims_ends_on_the_safe_side():
    sigma = procedures.joint_sigma_for(2.0, 0.1, 10, 4, 1e-5, grid=1e-2)
    assert procedures.joint_epsilon(0.1, sigma, 10, 4, 1e-5, grid=1e-2) <= 2.0
    assert procedures.joint_epsilon(0.1, 0.999 * sigma, 10, 4, 1e-5, grid=1e-2) > 2.0
