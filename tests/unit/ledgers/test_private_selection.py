"""The helper that makes a secret number of runs: what it returns, and what it keeps to itself."""

import copy
import json
import pickle

import numpy as np
import pytest

import dpmech as dm

RUN = dm.profile(dm.Identity(1), 2.0, participation=dm.SingleParticipation())
LAW = dm.ledgers.NegativeBinomialRuns.of_mean(20.0)


def test_the_best_run_is_returned_with_its_candidate():
    seen = []

    def train(candidate):
        score = float(np.random.default_rng(len(seen)).random()) + candidate
        seen.append((score, candidate, len(seen)))
        return score, seen[-1][2]

    selection = dm.ledgers.PrivateSelection(RUN, LAW, rng=5)
    candidate, result = selection.best(train, [0.0, 0.1, 0.2])
    assert (max(seen)[1], max(seen)[2]) == (candidate, result)
    assert len(seen) == LAW.draw(np.random.default_rng(5))
    with pytest.raises(dm.UnsupportedCombinationError, match="made already"):
        selection.best(train, [0.0])


def test_candidates_are_drawn_evenly_and_ties_are_decided_by_coins():
    runs = dm.ledgers.PoissonRuns(3000.0)
    counts = dict.fromkeys("abc", 0)

    def train(candidate):
        counts[candidate] += 1
        return 0.0, counts[candidate]

    found = {
        dm.ledgers.PrivateSelection(RUN, runs, rng=seed).best(train, list("abc"))[0] for seed in range(12)
    }
    assert found == set("abc")
    total = sum(counts.values())
    assert all(abs(one - total / 3) < 6.0 * (total * 2 / 9) ** 0.5 for one in counts.values())


def test_a_score_that_is_no_number_is_the_lowest_or_refused():
    scores = iter([float("nan"), 1.0, float("nan"), -5.0])
    runs = dm.ledgers.NegativeBinomialRuns.of_mean(4.0)
    seed = next(one for one in range(1000) if runs.draw(np.random.default_rng(one)) == 4)
    found = dm.ledgers.PrivateSelection(RUN, runs, rng=seed).best(
        lambda _: ((one := next(scores)), one), ["x"]
    )
    assert found == ("x", 1.0)
    with pytest.raises(dm.InvalidParameterError, match="score"):
        dm.ledgers.PrivateSelection(RUN, LAW).best(lambda _: ("high", None), ["x"])


def test_no_run_is_no_result():
    runs = dm.ledgers.PoissonRuns(0.01)
    assert dm.ledgers.PrivateSelection(RUN, runs, rng=2).best(lambda _: (0.0, 0), ["x"]) is None


def test_the_number_is_nowhere_to_be_read():
    """Two selections that drew different numbers cannot be told apart by anything but their calls."""
    selections = [dm.ledgers.PrivateSelection(RUN, LAW, rng=seed) for seed in (1, 2)]
    calls = [0, 0]
    for index, selection in enumerate(selections):

        def train(_, index=index):
            calls[index] += 1
            return 0.0, "model"

        selection.best(train, ["x"])
    assert calls[0] != calls[1]
    told = [(repr(one), str(one), {k: v for k, v in vars(one).items() if k != "_rng"}) for one in selections]
    assert told[0] == told[1]
    for make in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(dm.UnsupportedCombinationError, match="must stay secret"):
            make(selections[0])
    with pytest.raises(TypeError):
        json.dumps(selections[0])


def test_its_price_is_that_of_the_profile():
    selection = dm.ledgers.PrivateSelection(RUN, LAW)
    assert selection.profile is selection.profile
    assert selection.profile.delta(1.0).upper == RUN.private_selection(LAW).delta(1.0).upper
    assert selection.profile.delta(1.0).upper > RUN.delta(1.0).upper


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: dm.ledgers.PrivateSelection(2.0, LAW), "run"),
        (lambda: dm.ledgers.PrivateSelection(RUN, 20), "runs"),
        (lambda: dm.ledgers.PrivateSelection(RUN, LAW, rng="x"), "rng"),
        (lambda: dm.ledgers.PrivateSelection(RUN, LAW).best(lambda _: (0.0, 0), []), "candidates"),
        (lambda: dm.ledgers.PrivateSelection(RUN, LAW).best(lambda _: (0.0, 0), "abc"), "candidates"),
    ],
)
def test_bad_input(make, name):
    with pytest.raises(dm.InvalidParameterError, match=name):
        make()
