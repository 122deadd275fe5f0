import dataclasses
import math
import re

import pytest

import dpmech as dm
from dpmech.certificates import training_requirements, with_checksum
from dpmech.reports import findings, summary, words
from tests.support.reviewed import run_of, small
from tests.support.saved import RECIPES


def changed(own, **settings):
    return with_checksum(dataclasses.replace(own, **settings))


def test_the_claim_says_against_whom_and_by_how_much():
    own = small("poisson")
    first, second = words.claim_words(own)
    assert f"all {own.strategy.n} noisy steps" in first
    assert "not which examples were drawn" in first
    factor = float(re.search(r"at most ([\d,.]+) times", second)[1].replace(",", ""))
    assert math.exp(own.budget.eps) <= factor <= 1.001 * math.exp(own.budget.eps)
    assert "at most 1e-05" in second
    assert "not which examples" not in words.claim_words(small())[0]


@pytest.mark.parametrize(
    ("adjacency", "said"),
    [("ADD_REMOVE", "any one example was used"), ("ZERO_OUT", "by zeros"), ("REPLACE_ONE", "two values")],
)
def test_every_adjacency_has_words_of_its_own(adjacency, said):
    own = small()
    mechanism = dataclasses.replace(own.mechanism, adjacency=dm.Adjacency[adjacency])
    other = changed(own, mechanism=mechanism)
    assert said in words.claim_words(other)[0]
    assert adjacency.lower().replace("_", "-") in words.adjacency_words(other)


@pytest.mark.parametrize(
    ("participation", "drawn"),
    [(dm.MinSep(4), "users"), (dm.Poisson(0.1, max_examples_per_user=2), "examples")],
)
def test_a_claim_about_users_speaks_of_users(participation, drawn):
    mechanism = dm.Mechanism(dm.Identity(12), participation, unit=dm.Unit.USER)
    own = dm.calibrate_sigma(mechanism, 1.0, 1e-5).certificate()
    said = dict(words.participation_words(own))["what the sampler does"]
    assert said == training_requirements(own)["sampler"]
    assert ("The examples of this sentence are users" in said) == (drawn == "users")
    assert "one user" in dict(words.not_covered(own))["People with several names, and groups"]
    assert not any("one example" in text for _, text in words.not_covered(own))
    assert "one example" in dict(words.not_covered(small()))["People with several examples, and groups"]
    if drawn == "users":
        assert dict(words.run_words(run_of(own)))["maximum participations of one user"] == "3"


def test_attacks_on_users_find_users():
    def sentences(unit):
        mechanism = dm.Mechanism(dm.Identity(12), dm.MinSep(4), unit=unit)
        found = findings(
            dm.profile(mechanism, 6.0), rates=[0.01], priors=[0.3], baselines=[0.001], tail=1e-9, report=str
        )
        return {one.name: one.words for one in found}

    of_users, of_examples = sentences(dm.Unit.USER), sentences(dm.Unit.EXAMPLE)
    assert "users whose data were not used" in of_users["tpr"]
    assert "examples that were not used" in of_examples["tpr"]
    assert "example" not in " ".join(of_users.values())
    assert "user" not in " ".join(of_examples.values()).replace("used", "")
    assert all("user" in text for text in of_users.values())
    assert (
        "it hides a user as well as one number with Gaussian noise that the user changes"
        in of_users["gaussian_mu"]
    )


@pytest.mark.parametrize("unit", dm.Unit)
def test_where_one_stands_in_the_place_of_another_attacks_tell_which(unit):
    mechanism = dm.Mechanism(dm.Identity(12), dm.MinSep(4), dm.Adjacency.REPLACE_ONE, unit)
    found = findings(
        dm.profile(mechanism, 6.0), rates=[0.01], priors=[0.3], baselines=[0.001], tail=1e-9, report=str
    )
    said = {one.name: one.words for one in found}
    assert "in whose place another" in said["tpr"]
    assert "and not a certain other one" in said["bayes_success"]
    assert "of two" in said["gaussian_mu"]
    assert "not used finds" not in said["tpr"]


def test_a_large_eps_is_left_as_a_power():
    for eps in (20.0, 1000.0):
        own = changed(small(), budget=dm.PrivacyBudget(eps, 1e-5))
        assert f"at most e^{eps:g} times" in words.claim_words(own)[1]


def test_an_estimate_protects_nobody_for_sure():
    assert "is meant to hide (this is an estimate)" in words.claim_words(small("bins 8"))[0]


@pytest.mark.parametrize("whole", [dm.Poisson(1.0), dm.BallsInBins(1), dm.CyclicPoisson(1.0, 2)])
def test_sampling_with_one_outcome_amplifies_nothing(whole):
    own = dm.calibrate_sigma(dm.Identity(2), 1.0, 1e-5, participation=whole).certificate()
    assert dict(words.participation_words(own))["amplified by sampling"].startswith("no")
    assert "no amplification" in summary._sampling(own)


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_every_scheme_and_guarantee_has_words(name):
    own = small(name)
    said = dict(words.participation_words(own))
    assert said["what the sampler does"] == own.participation.requirement(own.strategy.n)
    assert said["scheme"].startswith(own.participation.plan_name)
    assert said["amplified by sampling"].startswith("no" if own.participation.certain else "yes")
    assert ("misle" in words.sure_words(own)) == (own.guarantee.kind is dm.Kind.PROBABLE)
    assert ("inside delta" in words.sure_words(own)) == own.guarantee.inside_delta
    rows = dict(words.evidence_words(own))
    assert float(rows["noise scale sigma, at clip norm 1"]) >= own.sigma
    assert rows["use of sigma"] == own.sigma_use
    assert "noise multiplier" not in rows
    assert repr(own.strategy) in rows["noise strategy"]
    assert ("samples" in rows) == (own.evidence.samples is not None)


def test_a_run_that_stopped_by_plan_is_told_by_its_own_eps():
    own = small()
    executed = dm.executed_epsilon(own.certificate(1.0, 10.0), 6)
    run = dataclasses.replace(
        run_of(own), steps=6, executed=executed, stopped_by_plan=True, most_participations=2
    )
    factor = float(re.search(r"at most ([\d.]+) times", words.claim_words(own, executed.upper)[1])[1])
    assert math.exp(executed.upper) <= factor < math.exp(own.budget.eps)
    rows = dict(words.run_words(run))
    assert rows["steps"] == "6 of 12"
    assert float(rows["eps of the steps executed"].split()[-1]) >= executed.upper
    assert dict(words.run_words(run, proved=False))["eps of the steps executed"].endswith(", not proved")


def test_a_run_tells_its_checkpoints():
    kept = dm.certificates.CheckpointHistory(
        dm.certificates.CheckpointMatch.SAME,
        dm.certificates.CheckpointMatch.ACCEPTED,
        dm.certificates.CheckpointMatch.UNKNOWN,
    )
    rows = dict(words.run_words(run_of(small(), checkpoint_history=kept)))
    assert rows["model across checkpoints"] == "changed, accepted by the caller"
    assert rows["loss across checkpoints"] == "not wholly fingerprinted"
