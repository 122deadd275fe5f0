import concurrent.futures
import dataclasses
import math

import numpy as np
import pytest

import dpmech as dm
from dpmech.engines.gaussian_mixture import estimate as importance
from dpmech.engines.gaussian_mixture.certified_bound import certify_delta
from dpmech.engines.gaussian_mixture.dense_gram import DenseGram
from dpmech.engines.gaussian_mixture.dominating_pair import bin_gram
from dpmech.engines.gaussian_mixture.estimate import estimate_delta
from dpmech.engines.gaussian_mixture.gram import CirculantGram, FactorGram
from dpmech.engines.gaussian_mixture.mixtures import AddProposal, RemoveProposal
from dpmech.engines.gaussian_mixture.samples import block_size, likelihood_interval, weight_sample
from dpmech.engines.gaussian_mixture.streams import Stage
from dpmech.exceptions import InvalidParameterError, NumericalError
from tests.support.bins_oracles import gaussian, identity_bracket, identity_delta, quadrature, strategy_gram
from tests.support.quick_cases import slow_but

TWO = np.array([[1.0, 0.3], [0.3, 1.2]])
THREE = np.array([[1.0, 0.3, 0.1], [0.3, 1.2, 0.2], [0.1, 0.2, 0.8]])


def rng(seed):
    return np.random.default_rng(seed)


@pytest.mark.parametrize("square", [0.01, 1.0, 60.0, 1500.0])
@pytest.mark.parametrize("deviations", slow_but([0.5, 4.0, 12.0, 35.0], 0, 2))
def test_one_bin_is_the_gaussian_mechanism(square, deviations):
    eps = square / 2 + deviations * math.sqrt(square)
    truth = gaussian(square, eps)
    result = estimate_delta(DenseGram([[square]]), eps, rng=rng(int(deviations * 10)))
    assert truth > 0.0
    assert result.lower < truth < result.upper
    assert result.remove.lower < truth < result.remove.upper
    assert result.add.lower < truth < result.add.upper
    assert result.relative_error < 0.025


@pytest.mark.parametrize(
    ("matrix", "eps"),
    slow_but(
        [
            (TWO, 0.001),
            (TWO, 0.5),
            (TWO, 3.0),
            (0.05 * TWO, 0.6),
            (THREE, 1.0),
            (THREE, 3.5),
            (4 * THREE, 8.0),
            (0.1 * THREE, 0.9),
        ],
        1,
        4,
        7,
    ),
)
def test_quadrature_two_and_three_bins(matrix, eps):
    remove, add = quadrature(matrix, eps)
    result = estimate_delta(DenseGram(matrix), eps, rel_error=0.005, rng=rng(1))
    assert result.remove.lower < remove < result.remove.upper
    assert result.add.lower < add < result.add.upper
    assert result.delta == pytest.approx(max(remove, add), rel=0.03)


@pytest.mark.parametrize("part", slow_but(range(17), 0, 5, 10, 16))
def test_every_part_of_the_mixture_has_the_density_it_says(part):
    """Whatever part draws nearly all samples, the mean weight is the delta of quadrature."""
    matrix, eps = 1.5 * THREE[:, [0, 1, 2]], 1.2
    proposal = RemoveProposal.at(DenseGram(matrix), eps)
    names = proposal.names
    assert len(names) == 17
    weights = np.full(len(names), 0.02)
    weights[0] = 0.3
    weights[part] += 1.0 - weights.sum()
    sample = weight_sample(proposal.reweighted(weights), (part, 7), Stage.REMOVE_MAIN, 200_000)
    drawn = np.exp(sample.log_weights)
    error = drawn.std() / math.sqrt(drawn.size)
    assert abs(drawn.mean() - quadrature(matrix, eps)[0]) < 6.2 * error
    assert error < 0.01 * drawn.mean()
    assert sample.shares.sum() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("square", "bins", "eps"), slow_but([(0.5, 3, 0.7), (0.5, 20, 0.5), (1.0, 20, 1.2), (0.3, 50, 0.25)], 1)
)
def test_identity_against_convolution(square, bins, eps):
    lower, upper = identity_bracket(square, bins, eps)
    assert upper < 1.02 * lower
    result = estimate_delta(DenseGram(square * np.eye(bins)), eps, rel_error=0.01, rng=rng(bins))
    assert result.remove.lower < upper
    assert result.remove.upper > lower


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param("entry", marks=pytest.mark.slow),
        pytest.param("direction", marks=pytest.mark.slow),
        pytest.param("log bins", marks=pytest.mark.slow),
    ],
)
def test_planted_faults_are_rejected(fault):
    eps = 1.0
    truth, other = quadrature(THREE, eps)
    matrix = THREE.copy()
    if fault == "entry":
        matrix[1, 1] *= 1.02
    elif fault == "direction":
        truth = other
    else:
        truth = quadrature(THREE, eps, log_bins=math.log(2.95))[0]
    result = estimate_delta(DenseGram(matrix), eps, rel_error=0.001, confidence=1 - 1e-9, rng=rng(3))
    assert not result.lower < truth < result.upper


def test_gram_monotonicity():
    small = DenseGram(strategy_gram(60, 12, 0.7) / 9.0)
    large = DenseGram(strategy_gram(60, 12, 0.75) / 9.0)
    for eps in (0.5, 2.0):
        one = estimate_delta(small, eps, rng=rng(0))
        two = estimate_delta(large, eps, rng=rng(1))
        assert one.lower < two.upper
        assert one.remove.upper < two.remove.lower


@pytest.mark.slow
def test_the_three_grams_agree():
    row = np.array([1.0, 0.5, 0.2, 0.2, 0.5])
    matrix = np.array([np.roll(row, i) for i in range(5)])
    root = np.linalg.cholesky(matrix)
    factor = FactorGram(5, 5, lambda x: x @ root.T, lambda v: v @ root)
    results = [
        estimate_delta(gram, 1.0, rel_error=0.004, rng=rng(seed))
        for seed, gram in enumerate((DenseGram(matrix), CirculantGram(row), factor))
    ]
    for one in results:
        for two in results:
            assert one.lower < two.upper
    assert "star" in results[1].remove.carried
    assert "star" not in results[2].remove.carried


@pytest.mark.parametrize("workers", slow_but([1, 3], 1))
def test_result_does_not_depend_on_threads(workers):
    gram = DenseGram(strategy_gram(120, 40, 0.8) / 9.0)
    alone = estimate_delta(gram, 2.0, rel_error=0.01, rng=rng(5))
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        assert estimate_delta(gram, 2.0, rel_error=0.01, rng=rng(5), executor=pool) == alone


@pytest.mark.slow
def test_result_does_not_depend_on_processes():
    gram = DenseGram(strategy_gram(120, 40, 0.8) / 9.0)
    alone = estimate_delta(gram, 2.0, rng=rng(5))
    sure = certify_delta(gram, 2.0, rng=rng(5))
    with concurrent.futures.ProcessPoolExecutor(2) as pool:
        assert estimate_delta(gram, 2.0, rng=rng(5), executor=pool) == alone
        assert certify_delta(gram, 2.0, rng=rng(5), executor=pool) == sure


@pytest.mark.slow
def test_result_does_not_depend_on_dask_workers():
    distributed = pytest.importorskip(
        "dask.distributed", reason="several machines are driven through dask, an optional extra"
    )
    gram = DenseGram(strategy_gram(120, 40, 0.8) / 9.0)
    with (
        distributed.LocalCluster(n_workers=2, processes=False, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        result = estimate_delta(gram, 2.0, rng=rng(5), executor=client.get_executor())
    assert result == estimate_delta(gram, 2.0, rng=rng(5))


def test_seeds():
    gram = DenseGram(THREE)
    assert estimate_delta(gram, 1.0, rng=rng(1)) == estimate_delta(gram, 1.0, rng=rng(1))
    assert estimate_delta(gram, 1.0, rng=rng(1)) != estimate_delta(gram, 1.0, rng=rng(2))
    assert estimate_delta(gram, 1.0).plan.entropy != estimate_delta(gram, 1.0).plan.entropy


def test_common_random_numbers_make_delta_smooth_in_sigma():
    gram = DenseGram(strategy_gram(390, 39, 0.9) / 2.927**2)
    first = estimate_delta(gram, 8.0, rng=rng(0))
    sigmas = 1.0 + 0.0005 * np.arange(8)
    logs = [math.log(estimate_delta(gram.scaled(s**-2), 8.0, plan=first.plan).delta) for s in sigmas]
    steps = np.diff(logs)
    assert np.all(steps < 0.0)  # monotone, at steps of 0.05 % in sigma, with 2 % of sampling error
    assert np.ptp(steps) < 0.5 * abs(steps.mean())


def test_plan_must_fit():
    plan = estimate_delta(DenseGram(THREE), 1.0, rng=rng(0)).plan
    again = estimate_delta(DenseGram(THREE), 1.0, plan=plan)
    assert again.plan == plan
    with pytest.raises(InvalidParameterError, match="plan"):
        estimate_delta(DenseGram(TWO), 1.0, plan=dataclasses.replace(plan, remove_weights=(1.0,)))


def test_a_plan_serves_where_parts_differ():
    """Other eps and fewer bins have other parts: those that the plan lacks get a small probability."""
    plan = estimate_delta(DenseGram(0.3 * np.eye(3)), 0.4, rng=rng(0)).plan
    for matrix, eps in ((THREE, 1.0), (TWO, 0.5)):
        assert RemoveProposal.at(DenseGram(matrix), eps).names != plan.remove_parts
        result = estimate_delta(DenseGram(matrix), eps, plan=plan)
        remove, add = quadrature(matrix, eps)
        assert result.remove.lower < remove < result.remove.upper
        assert result.add.lower < add < result.add.upper


@pytest.mark.parametrize(
    "bad",
    [{"eps": 0.0}, {"eps": math.nan}, {"rel_error": 0.9}, {"confidence": 1.0}, {"max_samples": 10}],
)
def test_bad_arguments(bad):
    with pytest.raises(InvalidParameterError):
        estimate_delta(DenseGram(TWO), **({"eps": 1.0} | bad))


def test_heavy_tails_are_refused():
    """Independent bins known only through products have no parts that raise all bins unevenly."""
    gram = FactorGram(50, 50, lambda x: 0.5 * x, lambda v: 0.5 * v)
    with pytest.raises(NumericalError, match=r"largest .*% of the sum.*Pareto shape"):
        estimate_delta(gram, 0.5, rng=rng(0), max_samples=8192)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.zeros(4096), "no sample had a positive weight"),
        (np.full(4096, np.nan), "not a number"),
        (np.append(np.full(4036, 1e-6), np.full(60, 0.9)), "one weight exceeds 1%"),
    ],
)
def test_weights_without_an_interval_are_refused(monkeypatch, weights, message):
    """The ADD direction of a problem where it counts, its weights replaced."""

    def block(self, seed, count):
        with np.errstate(divide="ignore"):
            return np.log(weights[:count]), np.zeros((count, len(self.names)))

    monkeypatch.setattr(AddProposal, "block", block)
    with pytest.raises(NumericalError, match=message):
        estimate_delta(DenseGram(THREE), 0.5, rng=rng(0), max_samples=4096)


@pytest.mark.parametrize(("enlarged", "share"), [(False, 0.9), (True, 0.1)])
def test_each_sample_has_its_share_of_the_error(enlarged, share):
    """Two chances to miss: their shares of the error add up to it, each split over the directions."""
    gram = DenseGram(strategy_gram(390, 39, 0.9) / 2.927**2)
    plan = dataclasses.replace(estimate_delta(gram, 8.0, rng=rng(0), rel_error=0.1).plan, enlarged=enlarged)
    result = estimate_delta(gram, 8.0, plan=plan, confidence=0.99)
    stage = Stage.REMOVE_ENLARGED if enlarged else Stage.REMOVE_MAIN
    known = dict(zip(plan.remove_parts, plan.remove_weights, strict=True))
    remove = RemoveProposal.at(gram, 8.0)
    remove = remove.reweighted(np.array([known[name] for name in remove.names]))
    sample = weight_sample(remove, plan.entropy, stage, plan.remove_samples)
    lower, upper = likelihood_interval(sample.log_weights, 1.0 - 0.5 * 0.01 * share)
    assert (result.remove.lower, result.remove.upper) == pytest.approx((lower, upper), rel=1e-12)


def test_a_doubted_sample_is_followed_by_one_larger_one(monkeypatch):
    """The second has random numbers of its own, and a size at which the proved bound removes the doubt."""
    gram = DenseGram(strategy_gram(390, 39, 0.9) / 2.927**2)
    first = estimate_delta(gram, 8.0, rng=rng(0), rel_error=0.1)
    assert not first.plan.enlarged
    for name, strict in (("LARGEST_SHAPE", -10.0), ("LARGEST_SHARE", 0.002), ("EXEMPT", 0.5)):
        monkeypatch.setattr(importance, name, strict)
    second = estimate_delta(gram, 8.0, rng=rng(0), rel_error=0.1)
    assert second.plan.enlarged
    assert second.remove.samples == 4 * first.remove.samples
    assert second.remove.weight_bound <= 0.002 * second.remove.samples * second.remove.lower
    assert max(first.lower, second.lower) < min(first.upper, second.upper)
    again = estimate_delta(gram, 8.0, plan=second.plan)
    assert (again.delta, again.plan) == (second.delta, second.plan)
    own = dataclasses.replace(second.plan, enlarged=False)
    assert estimate_delta(gram, 8.0, plan=own).delta != second.delta


@pytest.mark.slow
def test_two_bands_where_the_first_sample_is_doubted():
    """SquareRoot(3900, 2), 390 bins, eps = 2: with one seed in four the first weights have a heavy tail."""
    gram = bin_gram(dm.SquareRoot(3900, 2), 390).scaled(2.138162317554161**-2)
    result = estimate_delta(gram, 2.0, rel_error=0.03, rng=rng(9))
    assert result.plan.enlarged
    other = estimate_delta(gram, 2.0, rel_error=0.03, rng=rng(8))
    assert max(result.lower, other.lower) < min(result.upper, other.upper)


def test_the_same_bins_with_a_factor_are_not():
    result = estimate_delta(DenseGram(np.eye(50) / 4), 0.5, rng=rng(0))
    remove, add = identity_delta(0.25, 50, 0.5)
    assert result.remove.lower < remove < result.remove.upper
    assert result.add.lower < add < result.add.upper
    assert list(result.carriers.items())[:1] == [("direction", "REMOVE")]
    assert list(result.carriers)[1].startswith("all bins")
    assert abs(result.remove.tail_shape) < 0.5


def test_blocks_are_bounded():
    assert block_size(1) == 4096
    assert block_size(390) * 390 <= 2**20
    assert block_size(10**6) == 16


def test_singular_gram():
    result = estimate_delta(DenseGram(np.ones((4, 4))), 1.0, rng=rng(0))
    assert result.lower < gaussian(1.0, 1.0) < result.upper


def test_certified_bound_on_closed_forms():
    for matrix, eps in (([[1.0]], 1.0), ([[4.0]], 10.0), (TWO, 3.0), (THREE, 1.0), (0.1 * THREE, 0.9)):
        truth = gaussian(matrix[0][0], eps) if len(matrix) == 1 else max(quadrature(matrix, eps))
        bound = certify_delta(DenseGram(matrix), eps, rng=rng(0))
        assert truth < bound.upper < 1.25 * truth
        assert bound.upper == max(bound.remove.upper, bound.add.upper)
        assert bound.samples == bound.remove.samples + bound.add.samples


def test_certified_threshold():
    truth = max(quadrature(TWO, 3.0))
    loose = certify_delta(DenseGram(TWO), 3.0, 3.0 * truth, rng=rng(0))
    tight = certify_delta(DenseGram(TWO), 3.0, rel_gap=0.02, rng=rng(0))
    assert loose.meets(3.0 * truth)
    assert not loose.meets(0.9 * truth)
    assert loose.samples < tight.samples
    # The gap comes on top of what the pilot leaves open: two standard errors, each 2 % or less here.
    assert tight.upper < 1.02 * 1.04 * truth * 1.02


def test_certified_stays_a_bound_where_samples_run_out():
    bound = certify_delta(DenseGram(np.eye(50) / 4), 0.5, rng=rng(0), max_samples=1000)
    assert bound.upper > 4.4e-12


def test_certified_refuses_bad_arguments():
    for bad in ({"beta": 0.0}, {"threshold": 2.0}, {"rel_gap": 0.0}, {"eps": -1.0}):
        with pytest.raises(InvalidParameterError):
            certify_delta(DenseGram(TWO), **({"eps": 1.0} | bad))


@pytest.mark.slow
def test_hard_point():
    gram = DenseGram(strategy_gram(3900, 390, 0.9) / 2.927**2)
    result = estimate_delta(gram, 8.0, rng=rng(0))
    assert result.lower < 9.9e-6
    assert result.upper > 1.005e-5
    assert result.relative_error < 0.025
    bound = certify_delta(gram, 8.0, 1.2e-5, rng=rng(0))
    assert 9.9e-6 < bound.upper < 1.2e-5


@pytest.mark.slow
@pytest.mark.exhaustive
def test_large_circulant():
    """b = 20,000: the ring that dominates LambdaCGD(0.9), k = 3."""
    bins, lam = 20_000, 0.9
    distance = np.minimum(np.arange(bins), bins - np.arange(bins))
    row = 3 / (1 - lam**2) * (lam**distance + lam ** (bins - distance)) / (1 - lam**bins)
    result = estimate_delta(CirculantGram(row / 1.5**2), 8.0, rng=rng(0), rel_error=0.05)
    assert 0.0 < result.lower < result.upper < 1.5 * result.lower


def test_the_levels_of_both_directions_and_both_samples_add_up_to_the_error(monkeypatch):
    levels = []
    whole = importance.likelihood_interval

    def interval(log_weights, level):
        levels.append(level)
        return whole(log_weights, level)

    monkeypatch.setattr(importance, "likelihood_interval", interval)
    gram = DenseGram(np.eye(3))
    first = estimate_delta(gram, 0.5, rng=np.random.default_rng(3), rel_error=0.2, confidence=0.9)
    enlarged = dataclasses.replace(first.plan, enlarged=True)
    estimate_delta(gram, 0.5, plan=enlarged, confidence=0.9)
    assert levels == pytest.approx([1.0 - 0.05 * 0.9] * 2 + [1.0 - 0.05 * 0.1] * 2, rel=1e-12)
    assert sum(1.0 - level for level in levels) == pytest.approx(0.1)


def test_the_smallest_relative_error_that_can_be_asked_for():
    gram = DenseGram(np.eye(2))
    estimate_delta(gram, 0.5, rng=np.random.default_rng(3), rel_error=1e-4, max_samples=5000)
    with pytest.raises(dm.InvalidParameterError, match="rel_error"):
        estimate_delta(gram, 0.5, rng=np.random.default_rng(3), rel_error=0.99e-4, max_samples=5000)


def test_the_proved_bound_is_that_of_the_mixture_drawn_from():
    gram, eps = DenseGram(THREE), 0.8
    found = estimate_delta(gram, eps, rng=rng(5), rel_error=0.2)
    parts = ((RemoveProposal, found.remove, found.plan.remove_weights),
             (AddProposal, found.add, found.plan.add_weights))  # fmt: skip
    for kind, direction, weights in parts:
        proposal = kind.at(gram, eps).reweighted(np.array(weights))
        assert direction.weight_bound == pytest.approx(math.exp(proposal.log_weight_bound), rel=1e-12)


def test_a_proved_bound_that_keeps_every_weight_small_excuses_a_heavy_tail():
    found = estimate_delta(DenseGram(THREE), 0.8, rng=rng(5), rel_error=0.2).remove
    heavy = dataclasses.replace(found, tail_shape=0.7, largest_share=1e-3)
    most = 0.01 * heavy.samples * heavy.lower  # a hundredth of the sum
    for factor, excused in ((0.99, True), (1.01, False)):
        one = dataclasses.replace(heavy, weight_bound=factor * most)
        assert ("too heavy" not in importance._doubt("REMOVE", one, heavy)) is excused


def test_samples_are_sized_for_six_errors_a_decade():
    steps = [0.5, 0.3, 0.2, 0.15, 0.1, 0.07]
    rungs = [step * 10.0**-power for power in range(4) for step in steps][:-1]
    assert importance.REL_ERRORS.rungs == pytest.approx(rungs, rel=1e-12)
    assert (rungs[0], rungs[-1]) == (0.5, pytest.approx(1e-4))
    assert importance.pilot_size(8) == 4096
