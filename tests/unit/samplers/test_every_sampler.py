import copy
import json
import pickle

import numpy as np
import pytest

import dpmech as dm
from dpmech.samplers import padded, sampler_for, shard
from dpmech.schemes.b_min_sep.sampler import BMinSepSampler
from dpmech.schemes.balls_in_bins.sampler import (
    BallsInBinsSampler,
)
from dpmech.schemes.cyclic_poisson.sampler import CyclicPoissonSampler
from dpmech.schemes.fixed_order.sampler import SequentialSampler
from dpmech.schemes.fixed_size.sampler import FixedSizeSampler
from dpmech.schemes.poisson.sampler import PoissonSampler
from dpmech.schemes.poisson.truncated_sampler import TruncatedPoissonSampler
from dpmech.schemes.random_allocation.sampler import RandomAllocationSampler

PAIRS = [example // 2 for example in range(200)]
MAKE = {
    "poisson": lambda rng=None: PoissonSampler(200, 0.1, 12, rng=rng),
    "cyclic": lambda rng=None: CyclicPoissonSampler(200, 0.5, 3, 12, rng=rng),
    "bins": lambda rng=None: BallsInBinsSampler(200, 4, 12, rng=rng),
    "fresh bins": lambda rng=None: BallsInBinsSampler(200, 4, 12, fresh=True, rng=rng),
    "poisson of users": lambda rng=None: PoissonSampler(200, 0.1, 12, max_examples_per_user=2, rng=rng),
    "cyclic of users": lambda rng=None: CyclicPoissonSampler(
        200, 0.5, 3, 12, max_examples_per_user=2, user_ids=PAIRS, rng=rng
    ),
    "bins of users": lambda rng=None: BallsInBinsSampler(200, 4, 12, max_examples_per_user=2, rng=rng),
    "truncated": lambda rng=None: TruncatedPoissonSampler(200, 0.1, 30, 200, 12, rng=rng),
    "fixed size": lambda rng=None: FixedSizeSampler(200, 200, 20, 12, rng=rng),
    "b-min-sep": lambda rng=None: BMinSepSampler(200, 3, 0.1, 12, rng=rng),
    "random allocation": lambda rng=None: RandomAllocationSampler(200, 3, 12, rng=rng),
    "random allocation, most steps": lambda rng=None: RandomAllocationSampler(200, 9, 12, rng=rng),
    "random allocation in groups": lambda rng=None: RandomAllocationSampler(200, 2, 12, cycle=3, rng=rng),
    "random allocation in groups, most steps": lambda rng=None: RandomAllocationSampler(
        200, 3, 12, cycle=3, rng=rng
    ),
    "reshuffled": lambda rng=None: SequentialSampler(
        200, dm.EveryStep(), 12, batch_size=40, reshuffle=True, rng=rng
    ),
}
DRAWN = pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)


def batches(sampler):
    return [sampler.indices(step).tolist() for step in range(sampler.n)]


# ---- what a sampler says of itself


@pytest.mark.parametrize(
    ("sampler", "epoch", "size"),
    [
        (PoissonSampler(50_000, 128 / 50_000, 9), 390, 128.0),
        (PoissonSampler(50, 1 / 49, 9), 49, 50 / 49),
        (PoissonSampler(50, 1.0, 9), 1, 50.0),
        (CyclicPoissonSampler(60, 0.5, 3, 9), 6, 10.0),
        (BallsInBinsSampler(10, 4, 8), 4, 2.5),
        (BallsInBinsSampler(10, 4, 8, fresh=True), 4, 2.5),
        (RandomAllocationSampler(10, 3, 12), 4, 2.5),
        (RandomAllocationSampler(10, 9, 12), 1, 7.5),
        (RandomAllocationSampler(10, 3, 12, cycle=3), 4, 2.5),
        (SequentialSampler(10, dm.MinSep(4), 9), 4, 2.5),
        (SequentialSampler(10, dm.MinSep(4), 9, drop_last=True), 4, 2.0),
        (SequentialSampler(10, dm.FixedEpochs(3), 9), 3, 10 / 3),
        (SequentialSampler(10, dm.SingleParticipation(), 5), 5, 2.0),
        (SequentialSampler(10, dm.EveryStep(), 9, batch_size=4), 3, 10 / 3),
        (SequentialSampler(11, dm.EveryStep(), 9, batch_size=4, drop_last=True), 2, 4.0),
    ],
)
def test_epochs_and_expected_sizes(sampler, epoch, size):
    assert sampler.steps_per_epoch == epoch
    assert sampler.expected_batch_size == size


def test_an_epoch_is_whole_though_its_probability_is_rounded():
    epochs = range(1, 500)
    assert [PoissonSampler(1, 1 / epoch, 1).steps_per_epoch for epoch in epochs] == list(epochs)


def test_the_smallest_probability_is_no_special_case():
    sampler = PoissonSampler(50, 5e-324, 3)
    assert sampler.steps_per_epoch > 10**323
    assert batches(sampler) == [[], [], []]


def test_sequential_batches_go_by_position():
    assert batches(SequentialSampler(5, dm.FixedEpochs(2), 4)) == [[0, 2, 4], [1, 3], [0, 2, 4], [1, 3]]
    assert batches(SequentialSampler(5, dm.MinSep(2), 3, drop_last=True)) == [[0, 2], [1, 3], [0, 2]]
    assert batches(SequentialSampler(2, dm.SingleParticipation(), 4)) == [[0], [1], [], []]
    assert batches(SequentialSampler(3, dm.EveryStep(), 2, batch_size=2, drop_last=True)) == [[0, 1], [0, 1]]


def test_only_reshuffling_says_so():
    assert [name for name, make in MAKE.items() if make().reshuffled] == ["reshuffled"]
    assert not SequentialSampler(5, dm.MinSep(2), 4).reshuffled
    reshuffled = batches(MAKE["reshuffled"](1))
    assert reshuffled[:5] != reshuffled[5:10]


def test_repr_names_the_pattern_but_no_key():
    sampler = MAKE["bins"](1)
    assert repr(sampler) == "BallsInBinsSampler(BallsInBins(bins=4), n=12, steps_taken=0)"
    assert sampler.state_dict()["key"] not in repr(sampler)


def test_samplers_may_be_copied_and_sent_to_other_processes():
    for make in MAKE.values():
        sampler = make()
        next(iter(sampler))
        for twin in (copy.deepcopy(sampler), pickle.loads(pickle.dumps(sampler))):
            assert batches(twin) == batches(sampler)
            assert twin.steps_taken == 1


def test_a_batch_may_be_changed_without_changing_the_sampler():
    for make in MAKE.values():
        sampler = make(3)
        expected = batches(sampler)
        sampler.indices(0)[:] = -1
        assert batches(sampler) == expected


def test_two_iterators_share_the_run():
    sampler = MAKE["poisson"](1)
    assert [batch.tolist() for pair in zip(sampler, sampler, strict=True) for batch in pair] == batches(
        sampler
    )


# ---- keys


@DRAWN
def test_entropy_of_the_operating_system_differs_and_a_seed_repeats(make):
    assert batches(make()) != batches(make())
    assert make().fingerprint() != make().fingerprint()
    assert batches(make(7)) == batches(make(7)) == batches(make(np.random.default_rng(7)))
    assert batches(make(7)) != batches(make(8))
    assert [make().seeded, make(7).seeded] == [False, True]


@DRAWN
def test_a_generator_moves_on(make):
    rng = np.random.default_rng(7)
    assert batches(make(rng)) != batches(make(rng))


def test_the_fingerprint_depends_on_key_and_configuration_not_on_progress():
    sampler = MAKE["bins"](7)
    before = sampler.fingerprint()
    next(iter(sampler))
    assert sampler.fingerprint() == before == MAKE["bins"](7).fingerprint()
    others = [BallsInBinsSampler(200, 4, 16, rng=7), MAKE["bins"](8)]
    assert len({before, *(other.fingerprint() for other in others)}) == 3
    # How many examples there are is private under ADD_REMOVE, and a fingerprint is published.
    assert BallsInBinsSampler(201, 4, 12, rng=7).fingerprint() == before
    assert len(before) == 64
    assert sampler.state_dict()["key"] not in before


# ---- states


def changed(state, **entries):
    return json.loads(json.dumps(state)) | entries


def test_states_of_other_samplers_are_refused():
    state = MAKE["bins"](1).state_dict()
    with pytest.raises(dm.exceptions.CertificateError, match="another type"):
        MAKE["poisson"]().load_state_dict(state)
    with pytest.raises(dm.exceptions.CertificateError, match="another configuration"):
        BallsInBinsSampler(201, 4, 12).load_state_dict(state)
    with pytest.raises(dm.exceptions.CertificateError, match="another configuration"):
        BallsInBinsSampler(200, 2, 12).load_state_dict(state)
    with pytest.raises(dm.exceptions.CertificateError, match="another format"):
        MAKE["bins"]().load_state_dict(changed(state, format=2))
    reshuffled = MAKE["reshuffled"](1).state_dict()
    with pytest.raises(dm.exceptions.CertificateError, match="another configuration"):
        SequentialSampler(200, dm.EveryStep(), 12, batch_size=40).load_state_dict(reshuffled)


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("key", "0" * 31),
        ("key", "0" * 31 + "G"),
        ("key", "0" * 31 + "\uff11"),
        ("key", 5),
        ("steps_taken", 13),
        ("steps_taken", -1),
        ("steps_taken", 1.0),
        ("seeded", 1),
    ],
)
def test_broken_states_are_refused_and_change_nothing(entry, value):
    sampler = MAKE["bins"](1)
    before = sampler.state_dict()
    with pytest.raises(dm.InvalidParameterError, match=entry):
        sampler.load_state_dict(changed(before, **{entry: value}))
    assert sampler.state_dict() == before


@pytest.mark.parametrize("state", [None, {}, {"type": "BallsInBinsSampler"}, [1]])
def test_what_is_no_state_is_refused(state):
    with pytest.raises(dm.InvalidParameterError, match="state"):
        MAKE["bins"]().load_state_dict(state)


def test_a_refused_key_is_not_shown():
    secret = MAKE["bins"](1).state_dict()["key"][:31]
    with pytest.raises(dm.InvalidParameterError) as caught:
        MAKE["bins"]().load_state_dict(changed(MAKE["bins"](1).state_dict(), key=secret))
    assert secret not in str(caught.value)


def test_states_are_loaded_before_the_first_batch_only():
    sampler = MAKE["poisson"]()
    state = sampler.state_dict()
    next(iter(sampler))
    with pytest.raises(dm.InvalidParameterError, match="before the first batch"):
        sampler.load_state_dict(state)


def test_a_resumed_sampler_still_says_that_it_was_seeded():
    sampler = MAKE["bins"]()
    sampler.load_state_dict(MAKE["bins"](1).state_dict())
    assert sampler.seeded
    assert batches(sampler) == batches(MAKE["bins"](1))


# ---- bad input


@DRAWN
def test_steps_outside_the_run_are_refused(make):
    sampler = make(1)
    with pytest.raises(dm.exceptions.HorizonError):
        sampler.indices(12)
    for step in (-1, 1.0, True, "1"):
        with pytest.raises(dm.InvalidParameterError, match="step"):
            sampler.indices(step)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: PoissonSampler(0, 0.1, 5), "dataset_size"),
        (lambda: PoissonSampler(5, 0.0, 5), "sampling_prob"),
        (lambda: PoissonSampler(5, 1.1, 5), "sampling_prob"),
        (lambda: PoissonSampler(5, 0.1, 0), "n must"),
        (lambda: PoissonSampler(5, 0.1, 2**31), "n must"),
        (lambda: PoissonSampler(5, 0.1, 5, rng="a"), "rng"),
        (lambda: CyclicPoissonSampler(5, 0.1, 0, 5), "cycle"),
        (lambda: CyclicPoissonSampler(5.0, 0.1, 1, 5), "dataset_size"),
        (lambda: BallsInBinsSampler(5, 2, 5, fresh=True), "bins"),
        (lambda: BallsInBinsSampler(5, 0, 5), "bins"),
        (lambda: BallsInBinsSampler(True, 1, 5), "dataset_size"),
        (lambda: SequentialSampler(0, dm.MinSep(2), 4), "dataset_size"),
        (lambda: SequentialSampler(5, dm.MinSep(5), 4), "min_sep"),
        (lambda: SequentialSampler(5, dm.FixedEpochs(3), 4), "epochs"),
        (lambda: SequentialSampler(5, "MinSep", 4), "participation"),
        (lambda: SequentialSampler(5, dm.EveryStep(), 4), "batch_size"),
        (lambda: SequentialSampler(5, dm.EveryStep(), 4, batch_size=0), "batch_size"),
        (lambda: SequentialSampler(5, dm.EveryStep(), 4, batch_size=6, drop_last=True), "batch_size"),
        (lambda: SequentialSampler(5, dm.MinSep(2), 4, batch_size=4), r"batch_size .* \[2, 3\]"),
        (lambda: SequentialSampler(5, dm.MinSep(2), 4, batch_size=3, drop_last=True), r"\[2, 2\]"),
        (lambda: SequentialSampler(1, dm.MinSep(2), 4, drop_last=True), "dataset_size"),
        (lambda: SequentialSampler(5, dm.MinSep(2), 4, drop_last=1), "drop_last"),
        (lambda: SequentialSampler(5, dm.EveryStep(), 4, batch_size=2, reshuffle=None), "reshuffle"),
        (lambda: SequentialSampler(5, dm.MinSep(2), 4, rng=1), "rng"),
    ],
)
def test_bad_arguments_are_named(make, name):
    with pytest.raises(dm.InvalidParameterError, match=name):
        make()


def test_more_epochs_than_certified_are_refused():
    SequentialSampler(5, dm.MinSep(3, 2), 6)
    with pytest.raises(dm.InvalidParameterError, match="at most min_sep \\* max_participations = 6"):
        SequentialSampler(5, dm.MinSep(3, 2), 7)
    SequentialSampler(5, dm.MinSep(3, 99), 7)
    assert batches(SequentialSampler(5, dm.MinSep(2), 3, batch_size=2)) == [[0, 2, 4], [1, 3], [0, 2, 4]]


@pytest.mark.parametrize("participation", [dm.MinSep(2), dm.FixedEpochs(2), dm.SingleParticipation()])
def test_reshuffling_is_refused_with_the_reason(participation):
    with pytest.raises(dm.UnsupportedCombinationError, match="may end one epoch and start the next"):
        SequentialSampler(9, participation, 4, reshuffle=True)


@pytest.mark.parametrize("name", [name for name in MAKE if name != "reshuffled"])
def test_random_patterns_are_not_sequential(name):
    with pytest.raises(dm.UnsupportedCombinationError, match="not realised by sequential"):
        SequentialSampler(200, MAKE[name]().participation, 12)


# ---- the sampler of a claim


def test_a_claim_brings_its_pattern_and_steps():
    cal = dm.calibrate_sigma(dm.LambdaCGD(12, 0.9), 8.0, 1e-5, participation=dm.MinSep(4, 3))
    for claim in (cal, cal.certificate(clip_norm=1.0)):
        sampler = sampler_for(claim, 100)
        assert (sampler.participation, sampler.n) == (dm.MinSep(4, 3), 12)
        checked = sampler_for(claim, 100, n=12, batch_size=25, declared_size=100)
        assert batches(checked) == batches(sampler)
        assert sampler.expected_batch_size is None  # 100 / 4 would tell how many examples there are
        for change in ({"batch_size": 25}, {"drop_last": True}):
            with pytest.raises(dm.InvalidParameterError, match="declared_size must be a public number"):
                sampler_for(claim, 100, **change)
        with pytest.raises(dm.exceptions.CertificateError, match="n is certified as 12, got 11"):
            sampler_for(claim, 100, n=11)
        told = cal.certificate(1.0, 24.0)
        assert sampler_for(told, 100).expected_batch_size == 24.0
    zeroed = dm.calibrate_sigma(
        dm.LambdaCGD(12, 0.9), 8.0, 1e-5, participation=dm.MinSep(4, 3), adjacency=dm.Adjacency.ZERO_OUT
    )
    assert sampler_for(zeroed, 100).expected_batch_size == 25.0


def declared(size, *, batch_size=None, drop_last=False, reshuffle=False, participation=None):
    return SequentialSampler(
        size,
        participation or dm.EveryStep(),
        12,
        batch_size=batch_size,
        drop_last=drop_last,
        reshuffle=reshuffle,
        declared_size=40,
        rng=5 if reshuffle else None,
    )


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 8},
        {"batch_size": 7, "drop_last": True},
        {"batch_size": 8, "reshuffle": True},
        {"batch_size": 7, "drop_last": True, "reshuffle": True},
        {"participation": dm.MinSep(6)},
        {"participation": dm.MinSep(6), "drop_last": True},
    ],
)
def test_one_example_less_moves_no_other(options):
    """Without a declared size 40 examples in batches of 8 have 5 batches an epoch, and 41 have 6."""
    for size in (36, 37, 39, 40, 41, 44):
        one, other = declared(size, **options), declared(size - 1, **options)
        assert one.steps_per_epoch == other.steps_per_epoch
        assert [[i for i in batch if i != size - 1] for batch in batches(one)] == batches(other)
        if options.get("reshuffle"):  # elsewhere the key is drawn, and nothing from it
            assert one.fingerprint() == other.fingerprint()
    assert batches(declared(40, **options)) == batches(
        SequentialSampler(
            40,
            options.get("participation", dm.EveryStep()),
            12,
            **{name: value for name, value in options.items() if name != "participation"},
            **({"rng": 5} if options.get("reshuffle") else {}),
        )
    )


def test_states_of_another_dataset_are_refused_without_its_size():
    state = BallsInBinsSampler(201, 4, 12, rng=7).state_dict()
    with pytest.raises(dm.exceptions.CertificateError, match="another dataset") as caught:
        MAKE["bins"](7).load_state_dict(state)
    told = f"{caught.value} {caught.value.claimed} {caught.value.recomputed}"
    assert "200" not in told
    assert "201" not in told


def test_what_is_neither_claim_nor_participation_is_refused():
    with pytest.raises(dm.InvalidParameterError, match="claim_or_participation"):
        sampler_for(dm.LambdaCGD(4, 0.9), 50, n=4)
    with pytest.raises(dm.InvalidParameterError, match="n must be the number of steps"):
        sampler_for(dm.MinSep(2), 50)
    assert sampler_for(dm.EveryStep(), 50, n=4, batch_size=10).steps_per_epoch == 5


# ---- parts and padding


def test_parts_of_a_batch():
    assert shard([3, 5, 8], 0, 2).tolist() == [3, 8]
    assert shard(np.array([3, 5, 8], dtype=np.int32), 1, 2).tolist() == [5]
    assert shard([], 1, 2).dtype == np.int64
    for rank, world_size, name in ((2, 2, "rank"), (-1, 2, "rank"), (0, 0, "world_size")):
        with pytest.raises(dm.InvalidParameterError, match=name):
            shard([1, 2], rank, world_size)


def test_padded_batches():
    indices, mask = padded([4, 9, 7], 2)
    assert indices.tolist() == [4, 9, 7, 0]
    assert mask.tolist() == [True, True, True, False]
    assert padded([], 8)[0].size == padded([], 8)[1].size == 0
    with pytest.raises(dm.InvalidParameterError, match="multiple"):
        padded([1], 0)


@pytest.mark.parametrize("bad", [[0.5], [[1]], [True], "ab", 3, [[1], [2, 3]], None])
def test_batches_are_integers_and_are_not_shown(bad):
    with pytest.raises(dm.InvalidParameterError, match="indices must be a one-dimensional") as caught:
        shard(bad, 0, 1)
    assert "0.5" not in str(caught.value)
