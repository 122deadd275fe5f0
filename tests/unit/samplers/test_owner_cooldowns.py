"""Why cooldowns of owners have no amplification in dpmech: absent records of others show who took part.

One record belongs to a person and to friends, each of whom also owns another record. A record is sampled with
probability p at every step at which none of its owners took part in the last b - 1 steps. All laws are
enumerated here, from this definition.
"""

import itertools

import numpy as np
import pytest

import dpmech as dm
from tests.support.participation_laws import Pair, hockey_stick

N, B, P, SIGMA, FRIENDS, DRAWS, ERROR = 2, 2, 0.35, 1.0, 3, 400_000, 1e-9
SHARED = {"person", *range(FRIENDS)}


def first_come(sampled, owners):
    """Of records with a common owner, the first one is kept."""
    kept, used = [], set()
    for record in sampled:
        if not used & owners[record]:
            kept.append(record)
            used |= owners[record]
    return kept


def all_dropped(sampled, owners):
    """Records with a common owner are all dropped."""
    return [
        one for one in sampled if not any(other != one and owners[one] & owners[other] for other in sampled)
    ]


def independent(sampled, owners):
    """No cooldown, for comparison: nothing is dropped."""
    del owners
    return list(sampled)


def batches(owners, settled, apart):
    """All runs: the probability and the batches of each."""
    found = []

    def walk(step, last, path, prob):
        if step == N:
            found.append((prob, path))
            return
        free = [
            record
            for record, own in enumerate(owners)
            if all(step - last.get(one, -apart) >= apart for one in own)
        ]
        for coins in itertools.product((False, True), repeat=len(free)):
            sampled = [record for record, coin in zip(free, coins, strict=True) if coin]
            batch = settled(sampled, owners)
            taken = {one: step for record in batch for one in owners[record]}
            odds = P ** len(sampled) * (1.0 - P) ** (len(free) - len(sampled))
            walk(step + 1, last | taken, (*path, batch), prob * odds)

    walk(0, {}, (), 1.0)
    return found


def worlds(settled, apart=B):
    """The run with the gradients of the person set to zero in one of two, and the law of the person alone.

    The gradient of the shared record is orthogonal to those of the others, which are all equal.
    """
    owners = [SHARED, *({friend} for friend in range(FRIENDS))]
    law = batches(owners, settled, apart)
    weights = np.array([prob for prob, _ in law])
    own = np.array([[float(0 in batch) for batch in path] for _, path in law])
    others = np.array([[float(sum(one > 0 for one in batch)) for batch in path] for _, path in law])
    zeros = np.zeros_like(own)
    whole = Pair(merged(weights, own, others), merged(weights, zeros, others))
    alone = Pair(merged(weights, own), (np.ones(1), np.zeros((1, N))))
    return whole, alone


def merged(weights, *sums):
    """Probabilities and rows of all different sums."""
    rows, places = np.unique(np.hstack(sums), axis=0, return_inverse=True)
    return np.bincount(places.ravel(), weights), rows


def delta(pair, eps, matrix=None, draws=DRAWS):
    columns = pair.present[1].shape[1] // N
    matrix = np.kron(np.eye(columns), np.eye(N) if matrix is None else matrix)
    return hockey_stick(pair, matrix, SIGMA, eps, draws, ERROR, 7)


@pytest.mark.parametrize("settled", [first_come, all_dropped])
def test_records_of_others_show_who_took_part(settled):
    """The loss exceeds that of the person's own participations, whose law is the same in both."""
    whole, alone = worlds(settled)
    banded = dm.SquareRoot(N, B).to_dense()
    assert delta(whole, 0.5, banded)[0] > delta(alone, 0.5, banded)[1]


@pytest.mark.parametrize(
    ("settled", "most", "least"), [(first_come, 0.044, 0.051), (all_dropped, 0.0024, 0.0039)]
)
def test_the_numbers_of_the_page(settled, most, least):
    whole, alone = worlds(settled)
    assert delta(alone, 0.5)[1] < most < least < delta(whole, 0.5)[0]


@pytest.mark.parametrize("settled", [first_come, all_dropped])
def test_without_amplification_it_is_covered(settled):
    """Given who takes part when, this is one Gaussian release with the sensitivity of MinSep(b)."""
    whole, _ = worlds(settled)
    users = dm.Mechanism(dm.Identity(N), dm.MinSep(B), dm.Adjacency.ZERO_OUT, dm.Unit.USER)
    assert delta(whole, 0.5)[1] < dm.delta(users, SIGMA, 0.5).lower


def test_separate_sampling_shows_nothing():
    """Records that are sampled without regard to others: the loss is that of the person's record alone."""
    whole, alone = worlds(independent, apart=1)
    low, high = delta(alone, 0.5, draws=100_000)
    found = delta(whole, 0.5, draws=100_000)
    assert low <= found[1]
    assert found[0] <= high
