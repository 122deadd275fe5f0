import numpy as np
import pytest

import dpmech as dm
from dpmech.samplers import ParticipationTracker
from dpmech.schemes.balls_in_bins.sampler import BallsInBinsSampler
from dpmech.schemes.cyclic_poisson.sampler import CyclicPoissonSampler
from dpmech.schemes.fixed_order.sampler import SequentialSampler

MAKE = {
    "every": lambda: ParticipationTracker(dm.EveryStep(), 6, 10),
    "single": lambda: ParticipationTracker(dm.SingleParticipation(), 6, 10),
    "min_sep": lambda: ParticipationTracker(dm.MinSep(2, 2), 6, 10),
    "epochs": lambda: ParticipationTracker(dm.FixedEpochs(3), 6, 10),
    "poisson": lambda: ParticipationTracker(dm.Poisson(0.3), 6, 10),
    "cyclic": lambda: ParticipationTracker(dm.CyclicPoisson(0.3, 2), 6, 10),
    "bins": lambda: ParticipationTracker(dm.BallsInBins(2), 6, 10),
}
ALL = pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)


def fed(name, *batches):
    tracker = MAKE[name]()
    for step, batch in enumerate(batches):
        tracker.record(step, batch)
    return tracker


# ---- what no pattern allows


@ALL
def test_an_example_twice_in_a_batch_is_refused(make):
    with pytest.raises(
        dm.exceptions.CertificateError, match=r"^step 0: an example is in the batch more than once"
    ):
        make().record(0, [7, 3, 7])


@ALL
@pytest.mark.parametrize("index", [-1, 10, 2**63])
def test_an_example_outside_the_dataset_is_refused(make, index):
    with pytest.raises(dm.exceptions.CertificateError, match=r"^step 0: an index is outside of the dataset"):
        make().record(0, np.array([index], dtype=np.uint64 if index > 99 else np.int64))


@ALL
def test_steps_come_once_and_in_order(make):
    tracker = make()
    tracker.record(0, [])
    for step in (0, 2):
        with pytest.raises(
            dm.exceptions.CertificateError, match=f"^step {step}: the batch of step 1 comes next"
        ):
            tracker.record(step, [])
    for step in range(1, 6):
        tracker.record(step, [])
    with pytest.raises(dm.exceptions.HorizonError):
        tracker.record(6, [])
    assert tracker.steps == 6


@ALL
@pytest.mark.parametrize(
    ("step", "batch", "name"), [(-1, [], "step"), (0.0, [], "step"), (0, [0.5], "indices"), (0, 3, "indices")]
)
def test_what_is_no_batch_is_refused(make, step, batch, name):
    with pytest.raises(dm.InvalidParameterError, match=name):
        make().record(step, batch)


# ---- what one pattern forbids


@pytest.mark.parametrize(
    ("name", "batches", "rule"),
    [
        ("single", [[4], [], [4]], "more than 1 times"),
        ("min_sep", [[4], [4]], "less than 2 steps after"),
        ("min_sep", [[4], [], [4], [], [4]], "more than 2 times"),
        ("epochs", [[4], [4]], "twice within 2 steps"),
        ("epochs", [[4], [5], [4], [4]], "did not 2 steps earlier"),
        ("epochs", [[4], [5], [4], [6]], "did not 2 steps earlier"),
        ("epochs", [[4], [5, 6], [4], [5]], "missing that took part 2 steps earlier"),
        ("epochs", [[4], [5], []], "missing that took part 2 steps earlier"),
        ("bins", [[4], [5], [5]], "did not 2 steps earlier"),
        ("bins", [[4], [5], [4], [5], [4, 5]], "did not 2 steps earlier"),
        ("bins", [[4], [5], [4], [5], [4], []], "missing that took part 2 steps earlier"),
        ("cyclic", [[4], [4]], "two of the 2 groups"),
        ("cyclic", [[4], [], [], [], [4], [4]], "two of the 2 groups"),
    ],
)
def test_the_first_batch_outside_the_pattern_is_refused(name, batches, rule):
    tracker = fed(name, *batches[:-1])
    step = len(batches) - 1
    with pytest.raises(dm.exceptions.CertificateError, match=f"^step {step}: .*{rule}") as caught:
        tracker.record(step, batches[-1])
    assert "4" not in str(caught.value).removeprefix(f"step {step}")  # never the example
    assert "5" not in str(caught.value).removeprefix(f"step {step}")
    assert tracker.steps == step


def test_a_refused_batch_leaves_no_trace():
    tracker = fed("min_sep", [4])
    with pytest.raises(dm.exceptions.CertificateError):
        tracker.record(1, [2, 4])
    tracker.record(1, [3])
    tracker.record(2, [2])
    assert tracker.state_dict()["counts"].tolist() == [0, 0, 1, 1, 1, 0, 0, 0, 0, 0]


def test_poisson_batches_may_be_anything_and_nothing_is_held():
    tracker = fed("poisson", [4], [4, 5], [], [4])
    assert tracker.state_dict()["last"].size == 0


def test_reshuffled_epochs_are_refused_under_a_separation():
    shuffled = SequentialSampler(40, dm.EveryStep(), 8, batch_size=10, reshuffle=True, rng=1)
    tracker = ParticipationTracker(dm.MinSep(4), 8, 40)
    for step in range(4):
        tracker.record(step, shuffled.indices(step))
    with pytest.raises(dm.exceptions.CertificateError, match="less than 4 steps"):
        tracker.record(4, shuffled.indices(4))


def test_a_new_allocation_each_epoch_is_refused():
    first, second = (BallsInBinsSampler(40, 4, 8, rng=seed) for seed in (1, 2))
    tracker = ParticipationTracker(dm.BallsInBins(4), 8, 40)
    for step in range(4):
        tracker.record(step, first.indices(step))
    with pytest.raises(dm.exceptions.CertificateError, match="did not 4 steps earlier"):
        tracker.record(4, second.indices(4))


# ---- what may be published


def test_summaries_do_not_tell_that_an_example_is_there():
    """What happened is as private as the examples: without example 2 nobody took part twice in a row."""
    for name, most, apart in (("every", 4, 1), ("min_sep", 2, 2), ("epochs", 2, 2)):
        facts = {"steps": 4, "smallest_separation": apart, "most_participations": most}
        assert fed(name, [1], [2], [1], [2]).summary() == facts
        assert fed(name, [1], [], [1], []).summary() == facts
        assert fed(name, [], [], [], []).summary() == facts
    assert fed("every").summary() == {"steps": 0, "smallest_separation": None, "most_participations": 0}


@pytest.mark.parametrize("name", ["poisson", "cyclic"])
def test_counts_of_a_sampled_pattern_are_not_published(name):
    assert fed(name, [1], [2], [1]).summary() == {"steps": 3}


def test_the_summary_of_bins_does_not_depend_on_the_allocation():
    for steps in range(7):
        summaries = [
            fed("bins", *([[], [4]] * 3)[:steps]).summary(),
            fed("bins", *([[4], []] * 3)[:steps]).summary(),
        ]
        assert summaries[0] == summaries[1]
    assert summaries[0] == {"steps": 6, "smallest_separation": 2, "most_participations": 3}


def test_repr_shows_no_example():
    assert repr(fed("min_sep", [8])) == (
        "ParticipationTracker(MinSep(min_sep=2, max_participations=2), n=6, steps=1)"
    )


# ---- states


def test_a_state_survives_a_round_trip_and_is_a_copy():
    tracker = fed("epochs", [4], [5, 6], [4])
    state = tracker.state_dict()
    again = MAKE["epochs"]()
    again.load_state_dict(state)
    state["last"][:] = -1
    for one in (tracker, again):
        one.record(3, [6, 5])
        with pytest.raises(dm.exceptions.CertificateError, match="missing"):
            one.record(4, [])
        assert one.summary() == {"steps": 4, "smallest_separation": 2, "most_participations": 2}


def test_states_of_another_certificate_are_refused():
    state = fed("min_sep", [4]).state_dict()
    for other in (
        ParticipationTracker(dm.MinSep(2, 3), 6, 10),
        ParticipationTracker(dm.MinSep(2, 2), 7, 10),
        ParticipationTracker(dm.MinSep(2, 2), 6, 11),
    ):
        with pytest.raises(dm.exceptions.CertificateError, match="another configuration"):
            other.load_state_dict(state)


def test_states_are_loaded_before_the_first_batch_only():
    tracker = fed("min_sep", [4])
    with pytest.raises(dm.InvalidParameterError, match="before the first batch"):
        tracker.load_state_dict(tracker.state_dict())


@pytest.mark.parametrize(
    "entries",
    [
        {"steps": 7},
        {"last": np.full(9, -1), "counts": np.zeros(9, dtype=int)},
        {"last": np.full(10, -1)},
        {"counts": np.zeros(9, dtype=int)},
        {"last": np.full(10, 2), "counts": np.ones(10, dtype=int)},
        {"last": np.full(10, -2), "counts": np.zeros(10, dtype=int)},
        {"last": np.full(10, 0.0)},
        {"extra": 1},
    ],
)
def test_broken_states_are_refused(entries):
    tracker = MAKE["min_sep"]()
    with pytest.raises(dm.InvalidParameterError):
        tracker.load_state_dict(fed("min_sep", [4], [5]).state_dict() | entries)
    assert tracker.steps == 0


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("MinSep", 6, 10), "participation"),
        ((dm.MinSep(2), 0, 10), "n must"),
        ((dm.MinSep(2), 6, 0), "dataset_size"),
        ((dm.MinSep(7), 6, 10), "min_sep"),
        ((dm.BallsInBins(7), 6, 10), "bins"),
    ],
)
def test_bad_arguments_are_named(arguments, name):
    with pytest.raises(dm.InvalidParameterError, match=name):
        ParticipationTracker(*arguments)


# ---- a new allocation every epoch


def fresh_tracker():
    return ParticipationTracker(dm.BallsInBins(2, fresh=True), 6, 4)


def test_fresh_batches_differ_from_epoch_to_epoch():
    tracker = fresh_tracker()
    for step, batch in enumerate([[0, 1], [2, 3], [3], [0, 1, 2], [], [0, 1, 2, 3]]):
        tracker.record(step, batch)
    assert tracker.summary() == {"steps": 6, "smallest_separation": 1, "most_participations": 3}


@pytest.mark.parametrize(
    ("batches", "rule"),
    [
        ([[0, 1], [1, 2]], "twice in an epoch of 2 steps"),
        ([[0, 1], [2], [0], [1]], "an example is missing in the epoch that ends"),
        ([[0, 1], [2], [0, 3]], "did not in the first epoch"),
    ],
)
def test_fresh_batches_that_leave_the_pattern(batches, rule):
    tracker = fresh_tracker()
    for step, batch in enumerate(batches[:-1]):
        tracker.record(step, batch)
    before = tracker.state_dict()
    with pytest.raises(dm.exceptions.CertificateError, match=rule):
        tracker.record(len(batches) - 1, batches[-1])
    assert tracker.steps == before["steps"]


def test_a_fresh_sampler_passes_and_resumes():
    sampler = BallsInBinsSampler(40, 4, 12, fresh=True, rng=1)
    tracker = ParticipationTracker(sampler.participation, 12, 40)
    for step in range(6):
        tracker.record(step, sampler.indices(step))
    again = ParticipationTracker(sampler.participation, 12, 40)
    again.load_state_dict(tracker.state_dict())
    for step in range(6, 12):
        again.record(step, sampler.indices(step))
    assert again.summary()["most_participations"] == 3


# ---- users with several examples

IDS = ["ann", "bob", "ann", "cem", "bob", "ann", "dan", "cem", "eve", "eve"]
CYCLIC = dm.CyclicPoisson(0.3, 3, max_examples_per_user=3)
APART = dm.MinSep(2, 2, max_examples_per_user=3)


def of_users(participation, ids=IDS, *batches):
    tracker = ParticipationTracker(participation, 9, len(IDS), user_ids=ids)
    for step, batch in enumerate(batches):
        tracker.record(step, batch)
    return tracker


@pytest.mark.parametrize(
    "batches",
    [
        [[0], [2]],  # ann
        [[3], [], [], [], [7]],  # cem, a cycle later
        [[0, 2], [1, 4], [8], [], [], [5]],
    ],
)
def test_examples_of_one_user_in_two_groups_are_refused(batches):
    tracker = of_users(CYCLIC, IDS, *batches[:-1])
    step, before = len(batches) - 1, of_users(CYCLIC, IDS, *batches[:-1]).state_dict()
    with pytest.raises(
        dm.exceptions.CertificateError, match=f"^step {step}: examples of one user are in two of"
    ) as caught:
        tracker.record(step, batches[-1])
    assert not any(name in str(caught.value) for name in IDS)
    assert all(np.array_equal(value, before[name]) for name, value in tracker.state_dict().items())
    tracker.record(step, [6])
    # What is not said is not seen.
    blind = ParticipationTracker(CYCLIC, 9, len(IDS))
    for index, batch in enumerate(batches):
        blind.record(index, batch)


def record_all(tracker, batches):
    for step, batch in enumerate(batches):
        tracker.record(step, batch)


def test_users_who_stay_in_their_groups_pass():
    tracker = of_users(CYCLIC, IDS, [0, 2], [1, 3], [8], [0, 2, 5], [3, 4, 7], [6, 9], [], [1])
    with pytest.raises(dm.exceptions.CertificateError, match="an example is in two of the 3 groups"):
        tracker.record(8, [0])


@pytest.mark.parametrize("rng", range(3))
def test_groups_drawn_for_users_pass_and_those_drawn_for_examples_do_not(rng):
    ids = np.repeat(np.arange(40), 3)
    together = CyclicPoissonSampler(120, 0.5, 4, 40, max_examples_per_user=3, user_ids=ids, rng=rng)
    tracker = ParticipationTracker(together.participation, 40, 120, user_ids=ids)
    record_all(tracker, together)
    apart = CyclicPoissonSampler(120, 0.5, 4, 40, rng=rng)
    tracker = ParticipationTracker(together.participation, 40, 120, user_ids=ids)
    with pytest.raises(dm.exceptions.CertificateError, match="examples of one user"):
        record_all(tracker, apart)


def test_groups_of_users_follow_from_states_also_of_those_who_watched_examples_alone():
    for ids in (IDS, None):
        state = of_users(CYCLIC, ids, [0, 2], [1], [], []).state_dict()
        tracker = of_users(CYCLIC)
        tracker.load_state_dict(state)
        with pytest.raises(dm.exceptions.CertificateError, match="step 4: examples of one user"):
            tracker.record(4, [5])
        tracker.record(4, [4])
    torn = of_users(CYCLIC, None, [0], [2]).state_dict()
    tracker = of_users(CYCLIC)
    with pytest.raises(
        dm.exceptions.CertificateError, match="the state has examples of one user in two of the 3 groups"
    ):
        tracker.load_state_dict(torn)
    assert tracker.steps == 0
    tracker.record(0, [0])


@pytest.mark.parametrize("participation", [CYCLIC, APART, dm.Poisson(0.3, max_examples_per_user=3)], ids=repr)
def test_who_has_more_examples_than_certified_is_refused(participation):
    assert of_users(participation).steps == 0
    with pytest.raises(dm.exceptions.CertificateError, match="a user has 4 examples") as caught:
        of_users(participation, ["ann", *IDS[1:6], "ann", *IDS[7:]])
    assert (caught.value.claimed, caught.value.recomputed) == (3, 4)


def test_examples_of_users_keep_their_separation():
    tracker = of_users(APART, IDS, [0, 2], [5])
    with pytest.raises(dm.exceptions.CertificateError, match="less than 2 steps after"):
        tracker.record(2, [5])
    tracker.record(2, [0])


@pytest.mark.parametrize(
    ("participation", "ids"),
    [(dm.CyclicPoisson(0.3, 3), IDS), (APART, IDS[:-1]), (APART, [None] * 10), (CYCLIC, "abcdefghij")],
)
def test_ids_that_say_nothing_are_refused(participation, ids):
    with pytest.raises(dm.InvalidParameterError, match="user_ids"):
        of_users(participation, ids)
