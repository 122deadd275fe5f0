"""No record changes more than is certified, in every way to train; and 5 % more are found in each."""

import dataclasses

import numpy as np
import pytest

import dpmech as dm

pytest.importorskip("torch")

from dpmech.schemes.fixed_order.sampler import SequentialSampler
from tests.property.neighbours import features, integrations, own_loops  # noqa: F401 - they register themselves
from tests.property.neighbours.check import ADD_REMOVE, LONG, REPLACE_ONE, WORST, Violation, check
from tests.property.neighbours.planted import planted
from tests.property.neighbours.registry import FEATURES, by_loss

pytestmark = [
    pytest.mark.filterwarnings("ignore:Full backward hook is firing"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*"),
]


def cases(make, quick=lambda feature, place, value: True):
    """One a feature and whatever `make` gives for it: (name, value); what is not `quick` is slow."""
    found = []
    for place, (name, feature) in enumerate(FEATURES.items()):
        for value in make(feature):
            slow = [pytest.mark.slow] if feature.slow or not quick(feature, place, value) else []
            label = f"{name} - {getattr(value, 'name', value)}"
            found.append(pytest.param(name, value, marks=slow, id=label))
    return found


def first_adjacency(feature, place, adjacency):
    """Of every feature; of the thorough ones, which differ in how they clip, all."""
    return feature.thorough or adjacency is feature.adjacencies[0]


def one_in_turn(feature, place, fault):
    """Of every feature one fault, the next one at the next."""
    return fault == feature.plants[place % len(feature.plants)]


@pytest.mark.parametrize(("name", "adjacency"), cases(lambda feature: feature.adjacencies, first_adjacency))
def test_no_record_changes_more_than_certified(name, adjacency):
    feature = FEATURES[name]
    found = check(feature, adjacency)
    # And the search comes near: what is 5 % more would be seen.
    assert max(found.step * feature.shrinks, found.whole) > 0.99


@pytest.mark.parametrize(("name", "fault"), cases(lambda feature: feature.plants, one_in_turn))
def test_five_percent_are_found(name, fault):
    feature = FEATURES[name]
    adjacency = feature.adjacencies[0]
    shapes = WORST if adjacency is REPLACE_ONE else LONG if feature.at[0] == "first" else LONG[:1]
    with planted(fault), pytest.raises(Violation, match=r"changed by|times the certified"):
        check(feature, adjacency, shapes=shapes, places=feature.at[:1])


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("EveryStep", {"count": 7}),  # a batch less, by the real size
        ("EveryStep, shuffled", {"count": 6}),  # another order
        ("drop_last", {"count": 204, "at": ("last",)}),  # a last row that is not full any more
    ],
)
def test_closing_a_gap_at_the_end_moves_no_others(name, settings):
    """Batches follow from the declared size of the data set, whatever the real one is."""
    closed = dataclasses.replace(FEATURES[name], absent=("shorter",), **settings)
    check(closed, ADD_REMOVE, shapes=LONG[:1], places=["last"])


def test_a_divisor_that_follows_the_data_is_found():
    """Everything that is released is a function of the releases and of public numbers."""

    def by_present(run):
        return by_loss(run, expected_batch_size=sum(one is not None for one in run.records) / 2)

    feature = dataclasses.replace(FEATURES["loss, per example"], train=by_present)
    with pytest.raises(Violation, match="weights differs at equal releases"):
        check(feature, ADD_REMOVE, shapes=LONG[:1], places=["last"])


def test_a_record_that_joins_another_step_is_found(monkeypatch):
    """At most once in two steps, says the claim; here by a loop that adds a record to a second batch."""

    def twice(run):
        original = SequentialSampler._batch

        def batch(sampler, step):
            return np.union1d(original(sampler, step), [5] if step < 2 else []).astype(np.int64)

        with monkeypatch.context() as patched:
            patched.setattr(SequentialSampler, "_batch", batch)
            return FEATURES["grad_sample"].train(run)

    feature = dataclasses.replace(FEATURES["grad_sample"], train=twice)
    with pytest.raises(Violation, match="took part in steps"):
        check(feature, ADD_REMOVE, shapes=LONG[:1], places=["last"])


def others(feature):
    return [one for one in dm.Adjacency if one not in feature.adjacencies]


@pytest.mark.parametrize(("name", "adjacency"), cases(others))
def test_other_adjacencies_are_refused(name, adjacency):
    """So that what the library learns to accept is tried too."""
    feature = FEATURES[name]
    with pytest.raises(dm.UnsupportedCombinationError):
        check(feature, adjacency, shapes=LONG, places=feature.at[:1])
