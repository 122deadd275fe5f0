import dpmech as dm
from dpmech.reports import checklists, words
from dpmech.reports.checklists import NOT_STATED
from tests.support.reviewed import review_of, run_of, small


def answers(review):
    return {answer.key: answer for one in checklists(review) for answer in one.answers}


def test_what_a_certificate_knows_is_stated_and_nothing_else():
    found = answers(review_of(small()))
    assert len(found) == 41
    for answer in found.values():
        assert answer.question.endswith("?")
        assert answer.stated == (answer.text != NOT_STATED)
    known = {key for key, answer in found.items() if answer.stated}
    assert {"dpfy.unit", "dpfy.curve", "nist.epsilon", "nist.correctness", "registry.mechanism"} <= known
    assert not known & {"dpfy.tuning", "nist.bias", "registry.curator", "nist.composition", "nist.randomness"}
    assert "Whether a run did so: not stated" in found["dpfy.assumptions"].text
    assert "at a false-positive rate of 1 % at most" in found["dpfy.curve"].text


def test_runs_and_ledgers_state_more():
    own = small().certificate(1.0, 10.0)
    ledger = dm.Ledger()
    ledger.add("one", own)
    found = answers(review_of(own, run_of(own), ledger))
    assert found["nist.randomness"].text == (
        "Noise from system entropy, drawn by a generator that is not stated, not seeded by the caller."
    )
    assert found["nist.composition"].basis == "ledger"
    assert found["dpfy.accesses"].text.startswith("1 non-adaptive release,")
    ledger.add("two", own)
    found = answers(review_of(own, run_of(own), ledger))
    assert found["dpfy.accesses"].text.startswith("2 non-adaptive releases,")
    ledger = dm.Ledger(budget=dm.PrivacyBudget(8.0, 1e-3))
    ledger.add("one", own)
    found = answers(review_of(own, run_of(own), ledger))
    assert found["dpfy.accesses"].text.startswith("1 adaptive release,")
    assert found["dpfy.assumptions"].basis == "run record"


def test_a_seeded_run_says_so():
    own = small().certificate(1.0, 10.0)
    run = run_of(own)
    seeded = dm.certificates.Randomness("a seed", "2" * 64, seeded=True)
    found = answers(review_of(dm.RunRecord(**{**vars(run), "noise": seeded})))
    assert "seeded by the caller" in found["nist.randomness"].text
    assert "not seeded" not in found["nist.randomness"].text
    assert "random numbers that the caller seeded" in found["dpfy.assumptions"].text


def test_the_number_of_examples_is_private_where_neighbours_differ_in_it():
    key = "registry.unprotected"
    own = small().certificate(1.0, 10.0)
    private = answers(review_of(own))[key].text
    assert "is private" in dict(words.not_covered(own))["Sizes"]
    alike = dm.certify_sigma(own.strategy, own.sigma, delta=1e-5, adjacency=dm.Adjacency.ZERO_OUT)
    assert "public" in dict(words.not_covered(alike))["Sizes"]
    assert "private" not in dict(words.not_covered(alike))["Sizes"]
    assert private.startswith("Public by assumption: 12 steps, expected batch size 10. Private: the number")
    declared = answers(review_of(small().certificate(1.0, 10.0, dataset_size=40)))[key].text
    assert "expected batch size 10, declared dataset size 40. Private: the number of examples" in declared
    public = answers(review_of(small("fixed batches")))[key].text
    assert public == "Public by assumption: 12 steps, number of examples."
