"""No record changes more than is certified, in every way to train; and 5 % more are found in each."""

import pytest

import dpmech as dm

pytest.importorskip("torch")

from tests.property.neighbours import features, integrations  # noqa: E402, F401 - they register themselves
from tests.property.neighbours.check import LONG, REPLACE_ONE, WORST, Violation, check  # noqa: E402
from tests.property.neighbours.planted import planted  # noqa: E402
from tests.property.neighbours.registry import FEATURES  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:Full backward hook is firing"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*"),
]


def cases(make):
    """One a feature and whatever `make` gives for it: (name, value) with its marks."""
    found = []
    for name, feature in FEATURES.items():
        for value, marks in make(feature):
            slow = [pytest.mark.slow] if feature.slow else []
            label = f"{name} - {getattr(value, 'name', value)}"
            found.append(pytest.param(name, value, marks=[*slow, *marks], id=label))
    return found


def accepted(feature):
    for adjacency in feature.adjacencies:
        fault = feature.faults.get(adjacency)
        yield adjacency, [] if fault is None else [pytest.mark.xfail(raises=Violation, strict=True, reason=fault)]


@pytest.mark.parametrize(("name", "adjacency"), cases(accepted))
def test_no_record_changes_more_than_certified(name, adjacency):
    feature = FEATURES[name]
    found = check(feature, adjacency)
    # And the search comes near: what is 5 % more would be seen.
    assert max(found.step * feature.shrinks, found.whole) > 0.99


@pytest.mark.parametrize(("name", "fault"), cases(lambda feature: [(one, []) for one in feature.plants]))
def test_five_percent_are_found(name, fault):
    feature = FEATURES[name]
    adjacency = next(one for one in feature.adjacencies if one not in feature.faults)
    with planted(fault), pytest.raises(Violation, match=r"changed by|times the certified"):
        check(feature, adjacency, shapes=WORST if adjacency is REPLACE_ONE else LONG[:1], places=feature.at[:1])


@pytest.mark.parametrize("name", [one for one, feature in FEATURES.items() if not feature.plants])
def test_nothing_is_planted_where_a_known_fault_hides_it(name):
    assert set(FEATURES[name].faults) == set(FEATURES[name].adjacencies)


def others(feature):
    return [(one, []) for one in dm.Adjacency if one not in feature.adjacencies]


@pytest.mark.parametrize(("name", "adjacency"), cases(others))
def test_other_adjacencies_are_refused(name, adjacency):
    """So that what the library learns to accept is tried too."""
    feature = FEATURES[name]
    with pytest.raises(dm.UnsupportedCombinationError):
        check(feature, adjacency, shapes=LONG, places=feature.at[:1])
