"""Certified bounds on delta against exact values, and what they must not depend on."""

import concurrent.futures
import itertools
import math

import numpy as np
import pytest

import dpmech as dm
from dpmech.engines.gaussian_mixture import certified_bound as module
from dpmech.engines.gaussian_mixture import samples as blocks
from dpmech.engines.gaussian_mixture.certified_bound import certified_floor, certify_delta
from dpmech.engines.gaussian_mixture.dense_gram import DenseGram
from dpmech.engines.gaussian_mixture.mixtures import AddProposal, RemoveProposal
from dpmech.engines.gaussian_mixture.pilots import Pilots
from dpmech.engines.gaussian_mixture.samples import block_size, weight_stream
from dpmech.engines.gaussian_mixture.sequential_tests import rounded_bound
from dpmech.engines.gaussian_mixture.streams import Stage
from tests.support.bins_oracles import gaussian, quadrature

TWO = np.array([[1.0, 0.3], [0.3, 1.2]])
SLACK = 1e-6  # of the quadrature


def rng(seed=1):
    return np.random.default_rng(seed)


def problem(case):
    """(K, eps, (REMOVE, ADD)) with 1, 2 or 3 bins (few of 3, whose quadrature is slow); case is the seed."""
    draw = np.random.default_rng([2027, case])
    while True:
        bins = 3 if case % 10 == 0 else 1 + case % 2
        rows = np.tril(draw.uniform(size=(2 * bins, 2 * bins))) + draw.uniform(0.3, 1.0) * np.eye(2 * bins)
        rows = (rows[:, :bins] + rows[:, bins:]).T
        matrix = rows @ rows.T
        matrix *= draw.uniform(0.05, 5.0) / matrix.diagonal().max()
        eps = float(draw.uniform(0.05, 4.0))
        exact = (gaussian(matrix[0, 0], eps),) * 2 if bins == 1 else quadrature(matrix, eps)
        if min(exact) > 1e-8:
            return matrix, eps, exact


def scaled_weights(patch, factor):
    for kind in (RemoveProposal, AddProposal):
        true = kind.log_weights
        patch.setattr(
            kind,
            "log_weights",
            lambda self, payoffs, densities, true=true: true(self, payoffs, densities) + math.log(factor),
        )


def outside(case, **options):
    """Whether either upper end, or that of delta, or its lower end is on the wrong side of the truth."""
    matrix, eps, exact = problem(case)
    gram = DenseGram(matrix)
    found = certify_delta(gram, eps, rng=rng(case), **options)
    ends = zip((found.remove, found.add, found), (*exact, max(exact)), strict=True)
    # A goal that is not true keeps the draws coming as long as there is patience.
    pilots, goal = Pilots.at(gram, eps, (case, 4, 5, 6)), 1.1 * max(exact)
    floor = certified_floor(pilots, goal, 1e-9, rng=rng(case), max_samples=200_000)
    return floor > max(exact) * (1.0 + SLACK) or any(one.upper < truth * (1.0 - SLACK) for one, truth in ends)


def claimed(case, side):
    """Whether the exact value itself is claimed to be a strict bound on delta: a proof of what is false."""
    matrix, eps, exact = problem(case)
    gram, truth = DenseGram(matrix), max(exact)
    if side == "upper":
        goal = truth * (1.0 - SLACK)
        return certify_delta(gram, eps, goal, rng=rng(case), max_samples=300_000).upper <= goal
    pilots = Pilots.at(gram, eps, (case, 1, 2, 3))
    goal = truth * (1.0 + SLACK)
    return certified_floor(pilots, goal, 1e-9, rng=rng(case), max_samples=300_000) >= goal


def test_no_bound_is_on_the_wrong_side():
    assert not any(outside(case, rel_gap=0.2) for case in range(15))


@pytest.mark.slow
@pytest.mark.exhaustive
def test_no_bound_of_a_thousand_is_on_the_wrong_side():
    wrong = [case for case in range(1000) if outside(case, rel_gap=0.1)]
    assert wrong == []


@pytest.mark.slow
@pytest.mark.parametrize(("side", "fault"), [("upper", 0.97), ("lower", 1.03)])
def test_a_fault_of_three_per_cent_in_the_weights_is_found(side, fault):
    """Each true claim would have to fail with probability 1 - 1e-9."""
    cases = range(1, 8)
    assert not any(claimed(case, side) for case in cases)
    with pytest.MonkeyPatch.context() as patch:
        scaled_weights(patch, fault)
        assert sum(claimed(case, side) for case in cases) >= 4


def test_a_threshold_that_is_far_takes_fewer_draws_and_is_what_is_proved():
    truth = max(quadrature(TWO, 1.0))
    draws = []
    for factor in (1.03, 1.2, 3.0):
        found = certify_delta(DenseGram(TWO), 1.0, factor * truth, rng=rng())
        assert found.meets(factor * truth)
        assert truth < found.upper <= factor * truth
        draws.append(found.samples)
    assert draws == sorted(draws, reverse=True)
    assert draws[0] > draws[2]
    lost = certify_delta(DenseGram(TWO), 1.0, 0.9 * truth, rng=rng(), max_samples=50_000)
    assert not lost.meets(0.9 * truth)
    assert lost.upper > truth


@pytest.mark.parametrize(("square", "eps"), [(1e-3, 1.0), (1e-6, 1.0), (1e-12, 8.0)])
def test_what_no_sample_could_reach_is_bounded_without_one(square, eps):
    for matrix in (np.eye(1), np.array([[1.0, 0.4], [0.4, 1.0]])):
        gram = DenseGram(square * matrix)
        found = certify_delta(gram, eps, rng=rng(), max_samples=20_000)
        assert 0.0 < found.upper < 1e-200
        floor = certified_floor(
            Pilots.at(gram, eps, (1, 2, 3, 4)), 1e-250, 1e-9, rng=rng(), max_samples=20_000
        )
        assert 0.0 <= floor <= found.upper
        assert gaussian(square, eps) <= found.upper or len(matrix) > 1


def test_a_direction_without_samples_has_its_proved_bound_rounded_up():
    found = certify_delta(DenseGram([[0.01]]), 1.0, 0.5, rng=rng())
    for one, kind in ((found.remove, RemoveProposal), (found.add, AddProposal)):
        proposal = kind.at(DenseGram([[0.01]]), 1.0)
        log_bound, rounding = proposal.log_weight_bound, proposal.weight_rounding
        assert one.samples == 0
        assert 0.0 < rounding < 1e-6
        assert one.upper == rounded_bound(log_bound, rounding) > math.exp(log_bound)


@pytest.fixture
def bets_made(monkeypatch):
    """Every sequential test that saw weights, with its beta."""
    made = {}
    for kind in (module.UpperTest, module.LowerTest):
        true = kind.add

        def noted(self, log_weights, true=true):
            made[id(self)] = self
            true(self, log_weights)

        monkeypatch.setattr(kind, "add", noted)
    return made


def betas(made):
    return sorted(math.exp(-one._level) for one in made.values())


def test_both_directions_share_beta(bets_made):
    certify_delta(DenseGram([[1.0]]), 1.0, beta=1e-3, rng=rng())
    assert betas(bets_made) == pytest.approx([5e-4] * 2)
    bets_made.clear()
    # The same stage has one sample, which both tests use.
    threshold = max(quadrature(TWO, 6.0)) * 1.2
    found = certify_delta(DenseGram(TWO), 6.0, threshold, beta=1e-3, rng=rng())
    assert math.fsum(betas(bets_made)) <= 1e-3
    assert found.samples == sum(one.samples for one in bets_made.values())


def test_pilots_do_not_draw_what_counts(monkeypatch):
    drawn = []
    true = blocks.stage_seed
    monkeypatch.setattr(
        blocks, "stage_seed", lambda *key: drawn.append((key[0], key[1], key[2])) or true(*key)
    )
    gram = DenseGram(TWO)
    pilots = Pilots.at(gram, 1.0, (1, 2, 3, 4))
    pilots.moved(gram, 1.1, (5, 6, 7, 8)).regenerated(20_000)
    mains = {Stage.REMOVE_MAIN, Stage.ADD_MAIN}
    assert drawn
    assert not {stage for _, stage, _ in drawn} & mains
    drawn.clear()
    certify_delta(gram, 1.0, rng=rng(), pilots=pilots)
    assert {stage for _, stage, _ in drawn} == mains
    assert len(set(drawn)) == len(drawn)
    assert (1, 2, 3, 4) not in {entropy for entropy, _, _ in drawn}


def test_pilots_of_one_point_serve_one_nearby():
    gram = DenseGram(TWO)
    pilots = Pilots.at(gram, 1.0, (1, 2, 3, 4))
    moved = pilots.moved(gram.scaled(0.9), 1.1, (5, 6, 7, 8))
    assert moved.eps == 1.1
    assert moved.entropy == (5, 6, 7, 8)
    truth = max(quadrature(0.9 * TWO, 1.1))
    regenerated = moved.regenerated(40_000)
    assert regenerated.samples >= 40_000
    assert abs(math.exp(regenerated.log_mean) / truth - 1.0) < 8.0 * regenerated.relative_error < 0.3
    for name, proposal in moved.proposals.items():
        assert proposal.names == pilots.proposals[name].names
        assert proposal.weights == pytest.approx(pilots.proposals[name].weights)
        assert proposal.eps == 1.1
    assert certify_delta(moved.gram, 1.1, rng=rng(), pilots=moved).upper > truth
    floor = certified_floor(moved, 0.9 * truth, 1e-9, rng=rng(), max_samples=400_000)
    assert 0.9 * truth <= floor < truth
    # Fewer draws are expected for more, and none for what every weight is below.
    goals = [math.log(truth * factor) for factor in (1.02, 1.1, 2.0)]
    expected = [regenerated.expected_samples(goal, 1e-9) for goal in goals]
    assert expected == sorted(expected, reverse=True)
    assert regenerated.expected_samples(20.0, 1e-9) == 0.0


def test_a_floor_is_a_lower_bound_and_ends_at_its_threshold():
    gram, truth = DenseGram(TWO), max(quadrature(TWO, 1.0))
    pilots = Pilots.at(gram, 1.0, (1, 2, 3, 4))
    for factor in (0.5, 0.9, 0.97):
        found = certified_floor(pilots, factor * truth, 1e-9, rng=rng(), max_samples=400_000)
        assert factor * truth <= found < truth
    assert certified_floor(pilots, 1.2 * truth, 1e-9, rng=rng(), max_samples=50_000) < truth
    # A pilot that saw next to nothing does not make five times the truth proved.
    for off in (1e-3, 0.18, 1e3):
        wrong = Pilots(
            gram,
            1.0,
            (1, 2, 3, 4),
            pilots.proposals,
            {name: one + math.log(off) for name, one in pilots.weights.items()},
        )
        for goal in (1.05 * truth, 4.5 * off * truth):
            found = certified_floor(wrong, goal, 1e-9, rng=rng(), max_samples=50_000)
            assert found < truth
    empty = Pilots(gram, 1.0, (1, 2, 3, 4), pilots.proposals, {})
    assert certified_floor(empty, truth, 1e-9, rng=rng(), max_samples=50_000) == 0.0


def stream_of(expected, executor=None, count=7):
    proposal = RemoveProposal.at(DenseGram(TWO), 1.0)
    stream = weight_stream(proposal, (1, 2, 3, 4), Stage.REMOVE_MAIN, expected, executor)
    found = list(itertools.islice(stream, count))
    stream.close()
    return np.concatenate(found)


def test_a_stream_does_not_depend_on_who_draws_it_and_how_far_ahead(monkeypatch):
    size = block_size(2)
    one = stream_of(1)
    assert one.size == 7 * size
    assert np.unique(one[one > -np.inf]).size == np.sum(one > -np.inf)
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        for expected in (1, 5 * size, 40 * size, 400 * size):
            for executor in (None, pool):
                assert np.array_equal(stream_of(expected, executor), one)
    for cores in ({0}, {0, 1, 2}):
        monkeypatch.setattr(blocks.os, "sched_getaffinity", lambda _, cores=cores: cores, raising=False)
        assert np.array_equal(stream_of(40 * size), one)


class Late(concurrent.futures.Executor):
    """Runs a task when its result is asked for."""

    def __init__(self):
        self.tasks = []

    def submit(self, call, /, *args, **options):
        future = concurrent.futures.Future()
        plain = future.result

        def result(timeout=None):
            if not future.done():
                future.set_result(call(*args, **options))
            return plain(timeout)

        future.result = result
        self.tasks.append(future)
        return future


def test_a_stream_that_is_closed_cancels_what_it_started():
    late = Late()
    size = block_size(2)
    assert np.array_equal(stream_of(40 * size, late, count=2), stream_of(1, count=2))
    done = [task for task in late.tasks if task.done() and not task.cancelled()]
    assert len(done) == 2
    assert len(late.tasks) > 10
    assert all(task.cancelled() for task in late.tasks if task not in done)


@pytest.mark.slow
def test_bounds_do_not_depend_on_the_executor(monkeypatch):
    gram = DenseGram(TWO)

    def bound(executor=None):
        pilots = Pilots.at(gram, 1.0, (1, 2, 3, 4), executor)
        floor = certified_floor(pilots, 0.5, 1e-9, rng=rng(5), max_samples=100_000)
        return floor, certify_delta(gram, 1.0, rng=rng(5), executor=executor)

    plain = bound()
    monkeypatch.setattr(blocks.os, "sched_getaffinity", lambda _: {0}, raising=False)
    assert bound() == plain
    monkeypatch.setattr(blocks.os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    assert bound() == plain
    assert bound(Late()) == plain
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        assert bound(pool) == plain
    with dm.Workers(2) as workers:
        assert bound(workers) == plain
