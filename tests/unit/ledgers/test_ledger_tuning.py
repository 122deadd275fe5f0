"""Private selections in a ledger: their price beside other entries, their file, and the check of it."""

import json

import pytest

import dpmech as dm
from dpmech.certificates.document import checksum_of_document
from tests.support.command_line import done, told

LAW = dm.ledgers.NegativeBinomialRuns.of_mean(6.0)
RUN = dm.calibrate_sigma(dm.Identity(1), 0.5, 1e-6, participation=dm.SingleParticipation())
BINS = dm.calibrate_sigma(dm.Identity(6), 1.0, 1e-5, participation=dm.BallsInBins(3), method=dm.methods.Rdp())


def tuned(law=LAW):
    ledger = dm.Ledger()
    ledger.add_tuning("tuning", RUN, law)
    return ledger


def test_the_price_is_that_of_the_profile_and_composes():
    ledger = tuned()
    own = RUN.profile().private_selection(LAW)
    assert ledger.epsilon(1e-5).upper == own.epsilon(1e-5).upper
    assert ledger.delta(0.5).upper == own.delta(0.5).upper
    ledger.add("test", RUN)
    both = ledger.epsilon(1e-5).upper
    assert both == pytest.approx(own.compose(RUN.profile()).epsilon(1e-5).upper, rel=1e-6)
    assert both > own.epsilon(1e-5).upper


def test_a_selection_of_exact_runs_is_called_a_bound():
    """Its law is exact and its price is not; the file says the same."""
    ledger = tuned()
    assert ledger.guarantee == ledger.epsilon(1e-5).guarantee == dm.Guarantee(dm.Kind.BOUND)
    assert ledger.to_dict()["guarantee"].startswith("deterministic upper bound;")


def test_a_run_that_is_known_by_its_claim_alone():
    ledger = dm.Ledger()
    ledger.add_tuning("tuning", BINS, LAW, batch="all runs")
    by_claim = ledger.epsilon(1e-4, profiles=False).upper
    assert ledger.waiting == ("tuning",)
    by_profile = ledger.epsilon(1e-4, profiles=True).upper
    assert 0.5 < by_profile < by_claim
    assert ledger.waiting == ()
    with pytest.raises(dm.UnsupportedCombinationError, match="no moments"):
        ledger.epsilon(1e-4, method=dm.methods.Rdp())


def test_a_file_holds_the_law_and_nothing_else_of_the_number(tmp_path):
    path = tmp_path / "ledger.json"
    for law in (LAW, dm.ledgers.PoissonRuns(3.0)):
        ledger = tuned(law)
        text = ledger.to_json()
        entry = json.loads(text)["releases"][0]
        names = {"law", *({"mean_runs"} if isinstance(law, dm.ledgers.PoissonRuns) else {"shape", "gamma"})}
        assert set(entry["runs"]) == names
        again = dm.Ledger.from_json(text)
        assert again.releases[0].runs == law
        assert again.delta(0.5).upper == ledger.delta(0.5).upper
    tuned().save(path)
    found = dm.verify(path)
    assert found.ok
    assert [check.name for check in found.checks if check.name == "total"] == ["total"] * 2
    # An entry for a single run is written as before.
    plain = dm.Ledger()
    plain.add("run", RUN)
    assert "runs" not in plain.to_dict()["releases"][0]


def test_a_changed_law_is_found(tmp_path):
    path = tmp_path / "ledger.json"
    document = tuned().to_dict()
    document["releases"][0]["runs"] = {"law": "poisson"}
    content = {key: value for key, value in document.items() if key != "checksum"}
    path.write_text(json.dumps(content | {"checksum": checksum_of_document(content)}))
    assert not dm.verify(path).ok


def test_what_reads_a_ledger_says_that_it_is_a_selection(tmp_path):
    ledger = tuned()
    with pytest.raises(dm.UnsupportedCombinationError, match="private selection"):
        dm.interchange.to_dp_event(ledger)
    assert ledger.releases[0].own_delta == pytest.approx(6e-6)
    path = tmp_path / "ledger.json"
    ledger.save(path)
    assert "best of NegativeBinomialRuns" in " ".join(done("ledger", "show", str(path)).stdout.split())
    found = told("ledger", "show", str(path))["ledger"]
    assert found["releases"][0]["runs"]["law"] == "truncated negative binomial"
    assert found["total"]["eps_upper"] > RUN.profile().epsilon(6e-6).upper


def test_what_is_refused():
    ledger = dm.Ledger(budget=dm.PrivacyBudget(2.0, 1e-5))
    with pytest.raises(dm.UnsupportedCombinationError, match="no price"):
        ledger.add_tuning("tuning", RUN, LAW)
    with pytest.raises(dm.InvalidParameterError, match="runs"):
        dm.Ledger().add_tuning("tuning", RUN, 6)
    with pytest.raises(dm.InvalidParameterError, match="batch"):
        dm.Ledger().add_tuning("tuning", BINS, LAW)
    closed = tuned()
    closed.close()
    with pytest.raises(dm.UnsupportedCombinationError, match="closed"):
        closed.add_tuning("more", RUN, LAW)
