"""`dpmech ledger` and `dpmech show`: the ledger and the documents of the library, told in plain language."""

import functools

import pytest

import dpmech as dm
from tests.support import saved
from tests.support.command_line import done, run, told


@functools.cache
def poisson():
    return dm.calibrate_sigma(dm.Identity(36), 2.0, 1e-5, participation=dm.Poisson(1 / 12))


PLAIN = dm.calibrate_sigma(dm.LambdaCGD(36, 0.5), 2.0, 1e-5, participation=dm.MinSep(12, 3))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    poisson().certificate().save("sampled.json")
    PLAIN.certificate(1.0, 10.0).save("plain.json")
    return tmp_path


@pytest.mark.slow
def test_an_non_adaptive_list_is_that_of_the_library(folder):
    done("ledger", "add", "ledger.json", "sampled.json", "--name", "run 1", "--batch", "run 1", "--new")
    text = done("ledger", "add", "ledger.json", "plain.json", "--name", "run 2", "--close").stdout
    assert text.startswith("ledger.json: run 2 entered\n")
    expected = dm.Ledger()
    expected.add("run 1", dm.Certificate.load("sampled.json"), batch="run 1")
    expected.add("run 2", dm.Certificate.load("plain.json"))
    expected.close()
    assert dm.Ledger.load("ledger.json").to_dict() == expected.to_dict()
    total = told("ledger", "show", "ledger.json", "--delta", "3e-5")["ledger"]["total"]
    bounds = expected.epsilon(3e-5)
    assert (total["eps_lower"], total["eps_upper"]) == (bounds.lower, bounds.upper)
    refused = run("ledger", "add", "ledger.json", "plain.json", "--name", "run 3")
    assert refused.exit_code == 2
    assert "closed" in refused.stderr


@pytest.mark.parametrize(
    ("options", "accounting"),
    [
        ((), dm.ledgers.GdpAccounting()),
        (("--accounting", "renyi", "--order", "8"), dm.ledgers.RenyiAccounting(8)),
        (("--accounting", "claims"), dm.ledgers.ClaimAccounting()),
        (("--accounting", "claims", "--slack", "1e-6"), dm.ledgers.ClaimAccounting(1e-6)),
    ],
)
def test_a_budget_is_kept_in_every_accounting(folder, options, accounting):
    budget = ("--eps", "20", "--delta", "3e-5", *options)
    done("ledger", "add", "ledger.json", "plain.json", "--name", "run 1", "--new", *budget)
    book = dm.Ledger.load("ledger.json")
    assert (book.budget, book.accounting) == (dm.PrivacyBudget(20.0, 3e-5), accounting)
    left = told("ledger", "remaining", "ledger.json", "--delta", "1e-6")
    assert left["mu"] == book.remaining.mu
    assert left["eps"] == book.remaining.epsilon(1e-6)
    assert left["fits"] is None
    fits = not book.would_exceed(PLAIN)
    assert told("ledger", "remaining", "ledger.json", "plain.json", code=0 if fits else 1)["fits"] is fits


def test_what_exceeds_the_budget_is_not_entered(folder):
    budget = ("--eps", "2", "--delta", "1e-5")
    done("ledger", "add", "ledger.json", "plain.json", "--name", "run 1", "--new", *budget)
    before = (folder / "ledger.json").read_bytes()
    again = run("ledger", "add", "ledger.json", "plain.json", "--name", "run 2")
    assert again.exit_code == 1
    assert again.stderr.startswith(
        "dpmech ledger add: run 2 was not entered, because it would exceed the budget; left"
    )
    assert (folder / "ledger.json").read_bytes() == before
    asked = run("ledger", "remaining", "ledger.json", "plain.json")
    assert asked.exit_code == 1
    assert asked.stdout.endswith("plain.json: would exceed the budget\n")


def test_estimates_are_let_in_on_demand_only(folder):
    estimate = saved.path_of("bins")
    call = ("ledger", "add", "ledger.json", estimate, "--name", "a", "--batch", "a", "--new")
    refused = run(*call)
    assert refused.exit_code == 2
    assert "--allow-estimates" in refused.stderr
    assert not (folder / "ledger.json").exists()
    done(*call, "--allow-estimates")
    assert told("ledger", "show", "ledger.json")["ledger"]["guarantee"] == "estimate"


def test_a_list_whose_claims_use_up_delta_says_so(folder):
    done(
        *("ledger", "add", "ledger.json", saved.path_of("bins moments")),
        *("--name", "a", "--batch", "a", "--new"),
    )
    delta = dm.Ledger.load("ledger.json").releases[0].certificate.budget.delta
    text = done("ledger", "show", "ledger.json", "--delta", repr(delta / 2)).stdout
    assert ": none: " in text
    assert told("ledger", "show", "ledger.json", "--delta", repr(delta / 2))["ledger"]["total"]["reason"]


def test_show_says_what_python_prints(folder):
    result = done("show", "plain.json", "sampled.json")
    own = dm.Certificate.load("plain.json")
    first, second = result.stdout.split("\n\n")
    assert first.startswith("plain.json: certificate\nexact\neps 2, delta 1e-05, add_remove, unit example\n")
    assert "an attack finds at most 7.4 % of the examples, from (eps, delta) only; `dpmech risk` " in first
    assert " usually proves fewer\nsigma " in first
    assert "lambda-cgd (n=36, lam=0.5)\nmin-sep (min_sep=12, max_participations=3)\n" in first
    assert first.splitlines()[7:] == str(own).splitlines()[6:]
    assert second.startswith("sampled.json: certificate\ndeterministic upper bound\n")
    assert "not verified" in result.stderr
    assert done("show", "plain.json", "--quiet").stderr == ""
    claim = told("show", "plain.json")["files"][0]["certificate"]
    assert (claim["sigma"], claim["fingerprint"]) == (own.sigma, own.fingerprint())


def test_show_tells_a_run_record(folder):
    record = dm.RunRecord(
        PLAIN.certificate(1.0, 10.0),
        36,
        PLAIN.achieved,
        dm.certificates.Randomness("a test", "0" * 64, seeded=True),
        dm.certificates.Randomness("a test", "1" * 64, seeded=True),
        smallest_separation=12,
        most_participations=3,
    )
    record.save("run.json")
    text = done("show", "run.json").stdout
    assert text.startswith("run.json: run record\nexact; 36 of 36 steps executed")
    assert "under this certificate:" in text
    (found,) = told("show", "run.json")["files"]
    assert found["run"]["steps"] == 36


def test_a_total_is_at_the_sum_of_the_deltas_where_none_is_said(folder):
    done("ledger", "add", "ledger.json", "plain.json", "--name", "first", "--new")
    done("ledger", "add", "ledger.json", "plain.json", "--name", "second")
    total = told("ledger", "show", "ledger.json")["ledger"]["total"]
    assert total["delta"] >= 2e-5
    assert total["eps_upper"] == dm.Ledger.load("ledger.json").epsilon(total["delta"]).upper


def test_show_tells_a_ledger(folder):
    added = done("ledger", "add", "ledger.json", "plain.json", "--name", "first", "--new")
    assert added.stderr == "dpmech: note: entered, not verified: dpmech verify plain.json\n"
    text = done("show", "ledger.json").stdout
    assert text.startswith("ledger.json: ledger\nexact; 1 release, non-adaptive")
    assert "│ first" in text
    assert "total: eps in [" in text


def test_show_tells_what_it_can_read(folder):
    (folder / "edited.json").write_text((folder / "plain.json").read_text().replace(": 12", ": 13"))
    result = run("show", "missing.json", "plain.json", "edited.json")
    assert result.exit_code == 2
    assert result.stdout.startswith("plain.json: certificate\nexact\n")
    note, first, second = result.stderr.splitlines()
    assert note == "dpmech: note: read, not verified: dpmech verify plain.json"
    assert first.startswith("dpmech show: missing.json must be a readable file")
    assert second.startswith("dpmech show: edited.json: ")
    assert run("show", "plain.json", "edited.json").exit_code == 1
    assert len(told("show", "plain.json", "edited.json", code=1)["files"]) == 1


def test_what_a_file_says_does_not_steer_the_terminal(folder):
    book = dm.Ledger()
    book.add("run\x1b[2J [bold]1[/bold]", dm.Certificate.load("plain.json"))
    book.save("ledger.json")
    for call in (("show", "ledger.json"), ("ledger", "show", "ledger.json")):
        text = done(*call).stdout
        assert "\x1b" not in text
        assert "run\\x1b[2J [bold]1[/bold]" in text
    refused = run("ledger", "add", "ledger.json", "plain.json", "--name", "run\x1b[2J [bold]1[/bold]")
    assert refused.exit_code == 2
    assert "\x1b" not in refused.stderr


def test_a_broken_checksum_is_a_failed_check_and_names_the_file(folder):
    text = (folder / "plain.json").read_text()
    (folder / "edited.json").write_text(text.replace('"min_sep": 12', '"min_sep": 13'))
    for call in (("show", "edited.json"), ("ledger", "add", "l.json", "edited.json", "--name", "a", "--new")):
        result = run(*call)
        assert (result.exit_code, result.stdout) == (1, "")
        assert "edited.json: the checksum is broken" in result.stderr
    assert not (folder / "l.json").exists()


# ---- counts


def test_counts_are_entered_shown_and_verified(folder):
    name = "classes\x1b[2J [bold]1[/bold]"
    counted = ("ledger", "add-counts", "ledger.json", "--name")
    done(*counted, name, "--sigma", "81/2", "--sensitivity", "3", "--new", "--close")
    text = done("ledger", "show", "ledger.json", "--delta", "1e-6").stdout
    assert "\x1b" not in text
    said = "1 integer that one example changes by up to 3, noise of sigma 40.5"
    assert said in " ".join(text.split())
    total = told("ledger", "show", "ledger.json", "--delta", "1e-6")["ledger"]["total"]
    assert total["eps_upper"] == dm.DiscreteGaussian(40.5, 3).epsilon(1e-6).upper
    assert "VERIFIED" in done("verify", "ledger.json").stdout
    late = run(*counted, "later", "--sigma", "9")
    assert (late.exit_code, "was closed before 'later'" in late.stderr) == (2, True)


def test_counts_join_a_ledger_of_certificates(folder):
    done("ledger", "add", "ledger.json", "plain.json", "--name", "first", "--new")
    before = told("ledger", "show", "ledger.json", "--delta", "1e-4")["ledger"]["total"]
    done("ledger", "add-counts", "ledger.json", "--name", "counts", "--sigma", "20")
    after = told("ledger", "show", "ledger.json", "--delta", "1e-4")["ledger"]["total"]
    assert before["eps_upper"] < after["eps_upper"] < before["eps_upper"] + 0.2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--name", "a"), "sigma"),
        (("--sigma", "2"), "name"),
        (("--name", "a", "--sigma", "two", "--new"), "a number or a fraction such as 81/2"),
        (("--name", "a", "--sigma", "1/0", "--new"), "a number or a fraction such as 81/2"),
        (("--name", "a", "--sigma", "0.1", "--new"), "in [0.2, 100000]"),
        (("--name", "a", "--sigma", "2"), "a ledger that exists, or --new"),
        (("--name", "a", "--sigma", "2", "--adjacency", "zero_out"), "left out without --new"),
    ],
)
def test_wrong_counts_are_refused_and_nothing_is_written(folder, options, words):
    result = run("ledger", "add-counts", "counts.json", *options)
    assert result.exit_code == 2
    assert words in " ".join(result.stderr.split())
    assert not (folder / "counts.json").exists()


# ---- other mechanisms


KINDS = {
    "laplace": ("--scale", "2", "--sensitivity", "1"),
    "discrete_laplace": ("--scale", "2", "--sensitivity", "3"),
    "randomized_response": ("--truth-prob", "0.6", "--categories", "3"),
    "gaussian": ("--sigma", "2", "--sensitivity", "1"),
    "pure_dp": ("--eps", "0.5"),
    "approximate_dp": ("--eps", "0.5", "--delta", "1e-7"),
    "zcdp": ("--rho", "0.1"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_mechanisms_are_entered_and_shown(folder, kind):
    own = ("ledger", "add-mechanism", "mechanisms.json", "--kind", kind, *KINDS[kind])
    done(*own, "--name", "one", "--new", "--count", "2")
    text = done(*own, "--name", "two", "--close").stdout
    assert "mechanism one: 2 releases of " in text
    assert "mechanism two: 1 release of " in text
    book = dm.Ledger.load("mechanisms.json")
    assert [(one.mechanism.kind, one.count) for one in book.mechanisms] == [(kind, 2), (kind, 1)]
    replaced = kind == "randomized_response"
    assert (book.adjacency is dm.Adjacency.REPLACE_ONE) == replaced
    known = book.epsilon(book.usual_delta).lower > 0.0  # of claims, only an upper bound is
    assert known == (kind not in {"approximate_dp", "pure_dp", "zcdp"})
    assert f"total: eps {'in [' if known else 'at most '}" in done("ledger", "show", "mechanisms.json").stdout
    assert "claim PROVED" in done("verify", "mechanisms.json").stdout


def test_a_mechanism_beyond_the_budget_is_not_entered(folder):
    budget = ("--new", "--eps", "4", "--delta", "1e-5", "--accounting", "claims")
    done("ledger", "add", "budget.json", "plain.json", "--name", "run", *budget)
    before = (folder / "budget.json").read_text()
    own = ("ledger", "add-mechanism", "budget.json", "--kind", "pure_dp")
    result = run(*own, "--name", "one", "--eps", "3.9")
    assert result.exit_code == 1
    assert "would exceed the budget" in result.stdout + result.stderr
    assert (folder / "budget.json").read_text() == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "missing: --name, --kind"),
        (("--name", "a"), "missing: --kind"),
        (("--kind", "zcdp", "--rho", "1"), "missing: --name"),
        (("--name", "a", "--kind", "laplace", "--scale", "1"), "missing: --sensitivity"),
        (("--name", "a", "--kind", "zcdp", "--rho", "1", "--eps", "1"), "left out with --kind zcdp"),
        (
            ("--name", "a", "--kind", "discrete_laplace", "--scale", "1", "--sensitivity", "1.5"),
            "an integer with --kind discrete_laplace",
        ),
        (("--name", "a", "--kind", "zcdp", "--rho", "501"), "501"),
    ],
)
def test_wrong_mechanisms_are_refused_and_nothing_is_written(folder, options, words):
    result = run("ledger", "add-mechanism", "mechanisms.json", "--new", *options)
    assert result.exit_code == 2
    assert words in " ".join(result.stderr.split())
    assert not (folder / "mechanisms.json").exists()
