"""Fits without amplification: gradients, cuts, the published optima and the laws they obey."""

import itertools
import math

import numpy as np
import pytest

import dpmech as dm
from dpmech.exceptions import InvalidParameterError, UnsupportedCombinationError
from dpmech.fitting import descent
from dpmech.fitting import gram_gradient as cuts
from dpmech.fitting.amplified import damped
from dpmech.fitting.dense_program import _Program
from dpmech.fitting.descent import Objective, Problem, fit_family
from dpmech.fitting.families import BandedFamily, BufferedFamily, InverseFamily
from dpmech.numerics import up
from dpmech.numerics.toeplitz import best_separated_sum
from tests.support.oracles import epoch_sets, sensitivity_ceiling, separated_sets

N = 30
PATTERNS = [dm.MinSep(7, 4), dm.SingleParticipation(), dm.EveryStep(), dm.FixedEpochs(5)]
FAMILIES = [
    (BandedFamily(N, 5, False), 5),
    (BandedFamily(N, 12, True), 12),
    (InverseFamily(N, 4), None),
    (BufferedFamily(N, 2), None),
]
SIGMA = dm.calibrate_sigma(dm.Identity(1), 8.0, 1e-5, participation=dm.SingleParticipation()).sigma
TABLE = dm.MinSep(390, 10)


def workloads(n, rng):
    return [
        dm.workloads.prefix_sum(n),
        dm.workloads.momentum(n, 0.9),
        dm.workloads.learning_rate_weighted(rng.uniform(0.1, 1.0, n), beta=0.5),
    ]


def differences(function, x, step=1e-6):
    return np.array([(function(x + h)[0] - function(x - h)[0]) / (2 * step) for h in step * np.eye(x.size)])


@pytest.mark.parametrize("participation", PATTERNS, ids=repr)
@pytest.mark.parametrize(("family", "bands"), FAMILIES, ids=lambda value: type(value).__name__)
def test_gradients(participation, family, bands):
    rng = np.random.default_rng(3)
    for workload in workloads(N, rng):
        for objective in Objective:
            for normalized in (False, True):
                problem = Problem(participation, N, workload, objective, normalized)
                mode = descent._mode(problem, family, bands)
                loss = descent._Loss(problem, family, mode, [cuts.leftmost_cut(N, problem.pattern)])
                free = family.lower is None
                x = family.starts()[0]
                x = x + 0.01 * (rng.standard_normal(x.size) if free else rng.uniform(0.5, 1.0, x.size))
                gradient = loss(x)[1]
                error = np.abs(differences(loss, x) - gradient).max()
                assert error <= 1e-6 * max(1.0, np.abs(gradient).max()), (workload, objective, normalized)


@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("objective", list(Objective))
def test_gradient_of_the_dense_program(objective, free):
    n, bands = 9, 3
    problem = Problem(dm.MinSep(3, 3), n, dm.workloads.prefix_sum(n), objective, column_normalized=False)
    program = _Program(problem, bands, free=free)
    gram = np.eye(n) + 0.1 * program.mask
    gradient = program(gram)[1]
    for i in range(n):
        for j in range(i + 1):
            move = np.zeros((n, n))
            move[i, j] = move[j, i] = 1.0
            move *= program.mask
            slope = (program(gram + 1e-6 * move)[0] - program(gram - 1e-6 * move)[0]) / 2e-6
            assert slope == pytest.approx(float(np.vdot(gradient, move)), abs=1e-8)


def test_gradient_of_the_dense_program_under_exact_spacing():
    n = 8
    problem = Problem(
        dm.FixedEpochs(4), n, dm.workloads.prefix_sum(n), Objective.RMSE, column_normalized=False
    )
    program = _Program(problem, n, free=True, sharpness=2000.0)
    assert not program.mask[0, 2]
    assert program.mask[0, 1]
    assert program.mask[0, 7]
    gram = np.eye(n) + 0.05 * program.mask
    gradient = program(gram)[1]
    for i, j in itertools.product(range(n), repeat=2):
        move = np.zeros((n, n))
        move[i, j] += 0.5 * program.mask[i, j]
        move[j, i] += 0.5 * program.mask[i, j]
        slope = (program(gram + 1e-6 * move)[0] - program(gram - 1e-6 * move)[0]) / 2e-6
        assert slope == pytest.approx(float(np.vdot(gradient, move)), abs=1e-7)


# What jax_privacy's dense optimisation for fixed epochs reaches.
@pytest.mark.parametrize(("n", "peer"), [(16, 3.6706), (64, 4.4079)])
def test_dense_under_exact_spacing_is_no_worse_than_jax_privacy(n, peer):
    schema, apart = dm.FixedEpochs(4), n // 4
    fit = dm.optimize(dm.Dense, schema, n=n)
    assert fit.error <= peer * (1 + 1e-5)
    matrix = fit.strategy.to_dense()
    # The sensitivity by all signs of all four steps of an example, and the error by the inverse.
    signs = np.array(list(itertools.product((1.0, -1.0), repeat=4)))
    worst = max(np.linalg.norm(matrix[:, s::apart] @ signs.T, axis=0).max() for s in range(apart))
    rows = np.linalg.norm(np.tril(np.ones((n, n))) @ np.linalg.inv(matrix), axis=1)
    assert fit.error == pytest.approx(worst * np.linalg.norm(rows) / math.sqrt(n), rel=1e-9)
    assert fit.error >= worst * np.linalg.norm(rows) / math.sqrt(n) * (1 - 1e-12)
    banded = dm.optimize(dm.Dense, schema, n=n, bands=apart)
    assert banded.strategy.bands <= apart
    assert fit.error < banded.error


@pytest.mark.parametrize("options", [{"bands": 7}, {"column_normalized": True}, {"objective": "max_se"}])
def test_dense_under_exact_spacing_takes_the_options(options):
    fit = dm.optimize(dm.Dense, dm.FixedEpochs(3), n=12, **options)
    limited = dm.optimize(dm.Dense, dm.FixedEpochs(3), n=12, **{**options, "bands": 4})
    assert fit.error <= limited.error * (1 + 1e-6)
    if "bands" in options:
        assert fit.strategy.bands <= 7
    if "column_normalized" in options:
        np.testing.assert_allclose(fit.strategy.column_norms(), 1.0, rtol=1e-12)


class TestCuts:
    def test_best_set_attains_the_best_sum(self):
        rng = np.random.default_rng(5)
        for _ in range(300):
            n, b = int(rng.integers(1, 15)), int(rng.integers(1, 6))
            k = int(rng.integers(0, 6))
            weights = rng.uniform(size=n) * (rng.uniform(size=n) < 0.7)
            steps = cuts.best_separated_set(weights, b, k)
            assert len(steps) <= k
            assert all(later - earlier >= b for earlier, later in itertools.pairwise(steps))
            assert weights[steps].sum() == pytest.approx(best_separated_sum(weights, b, k), abs=1e-12)

    @pytest.mark.parametrize("participation", [dm.MinSep(3, 3), dm.FixedEpochs(4)], ids=repr)
    def test_the_worst_cut_is_the_certified_bound(self, participation):
        rng = np.random.default_rng(6)
        for _ in range(40):
            strategy = dm.BandedInverse(12, np.append(1.0, rng.uniform(-0.6, 0.3, 4)))
            pattern = participation.pattern(12)
            cut = cuts.worst_cut(strategy, pattern)
            value = cut.at(strategy.toeplitz_coefs, None).value
            sets = (
                epoch_sets(12, 4)
                if pattern.evenly_spaced
                else separated_sets(12, pattern.min_sep, pattern.max_participations)
            )
            assert value >= sensitivity_ceiling(strategy.to_dense(), sets) ** 2 * (1 - 1e-12)
            bound = dm.sensitivity(strategy, participation).upper ** 2
            # The public bound takes the better of this one and the monotone envelope.
            assert value >= bound * (1 - 1e-9)

    def test_value_of_a_set_is_the_norm_of_its_columns(self):
        strategy = dm.LambdaCGD(10, 0.7)
        cut = cuts.leftmost_cut(10, dm.MinSep(4).pattern(10))
        norm = np.linalg.norm(strategy.to_dense()[:, [0, 4, 8]].sum(axis=1))
        assert cut.at(strategy.toeplitz_coefs, None).value == pytest.approx(norm**2, rel=1e-13)


class TestPublishedOptima:
    """Table 4 of the DP-lambda-CGD paper, first column: n = 3900, b = 390, k = 10."""

    @pytest.mark.parametrize(
        ("bands", "printed"), [(2, 59.43), (4, 42.29), (16, 22.05), (64, 12.59), (390, 7.77)]
    )
    def test_banded(self, bands, printed):
        fit = dm.optimize(dm.BandedToeplitz, TABLE, n=3900, bands=bands)
        assert fit.error * SIGMA <= printed
        assert fit.error * SIGMA >= 0.998 * printed
        assert dm.sensitivity(fit.strategy, TABLE).exact

    def test_buffers(self):
        fit = dm.optimize(dm.BLT, TABLE, n=3900)
        assert fit.error * SIGMA <= 8.145
        assert fit.strategy.decays.size == 3

    def test_lambda(self):
        fit = dm.optimize(dm.LambdaCGD, TABLE, n=3900)
        assert fit.strategy.lam == pytest.approx(0.97756, abs=2e-5)
        assert dm.optimize(dm.LambdaCGD, TABLE, n=3900, objective="max_se").strategy.lam == pytest.approx(
            0.98380, abs=2e-5
        )

    @pytest.mark.slow
    @pytest.mark.parametrize(("bands", "printed"), [(4, 10.27), (16, 8.54)])
    def test_inverse_bands_beat_print_with_a_certified_sensitivity(self, bands, printed):
        fit = dm.optimize(dm.BandedInverse, TABLE, n=3900, bands=bands)
        assert fit.error * SIGMA <= printed
        bounds = dm.sensitivity(fit.strategy, TABLE)
        assert bounds.exact
        assert np.any(np.diff(fit.strategy.toeplitz_coefs) > 0.0)  # outside Theorem 1, so by the bracket


class TestLaws:
    @pytest.mark.parametrize(("k", "b"), [(1, 390), (5, 50), (10, 10), (10, 50)])
    def test_max_se_wants_more_correlation_than_rmse(self, k, b):
        """lambda_cgd Lemma 3."""
        best = {
            objective: dm.optimize(dm.LambdaCGD, dm.MinSep(b, k), n=k * b, objective=objective).strategy.lam
            for objective in ("rmse", "max_se")
        }
        assert best["max_se"] >= best["rmse"]

    def test_fourth_root_law(self):
        """One participation: RMSE at the best lambda is (n / 2)^(1/4), MaxSE n^(1/4), as n grows."""
        for n in (1000, 20_000):
            rmse = dm.optimize(dm.LambdaCGD, dm.SingleParticipation(), n=n).error
            largest = dm.optimize(dm.LambdaCGD, dm.SingleParticipation(), n=n, objective="max_se").error
            assert rmse == pytest.approx((n / 2) ** 0.25, rel=0.4 / n**0.25)
            assert largest == pytest.approx(n**0.25, rel=0.4 / n**0.25)

    def test_full_batch(self):
        """lambda_cgd Theorem 4, Corollary 6: lambda = 0; the diagonal strategy is the best of all."""
        n = 60
        assert dm.optimize(dm.LambdaCGD, dm.EveryStep(), n=n).strategy.lam == 0.0
        assert dm.optimize(dm.LambdaCGD, dm.EveryStep(), n=n, objective="max_se").strategy.lam == 0.0
        diagonal = np.sqrt(np.arange(1, n + 1)).sum() / math.sqrt(n)
        fit = dm.optimize(dm.Dense, dm.EveryStep(), n=n)
        assert diagonal * (1 - 1e-12) <= fit.error <= diagonal * (1 + 1e-4)
        assert fit.identity_error == pytest.approx(math.sqrt(n * (n + 1) / 2), rel=1e-12)


def test_dense_optimum_has_no_duality_gap():
    """Unit columns, one participation: tr(M X^-1) >= 2 tr((V^1/2 M V^1/2)^1/2) - tr V for every V >= 0."""
    n = 24
    fit = dm.optimize(dm.Dense, dm.SingleParticipation(), n=n)
    workload = np.tril(np.ones((n, n)))
    m = workload.T @ workload
    c = fit.strategy.to_dense()
    inverse = np.linalg.inv(c.T @ c)
    multipliers = np.diag(inverse @ m @ inverse)
    root = np.sqrt(multipliers)
    values = np.linalg.eigvalsh(m * np.outer(root, root))
    dual = 2.0 * np.sqrt(np.maximum(values, 0.0)).sum() - multipliers.sum()
    primal = float(np.trace(m @ inverse))
    assert primal / n == pytest.approx(fit.error**2, rel=1e-9)
    assert dual <= primal * (1 + 1e-12)
    assert primal <= dual * (1 + 1e-4)
    toeplitz = dm.optimize(dm.BandedToeplitz, dm.SingleParticipation(), n=n, bands=n)
    assert fit.error < toeplitz.error


@pytest.mark.parametrize("participation", PATTERNS, ids=repr)
@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize(
    ("family", "options"),
    [
        (dm.LambdaCGD, {}),
        (dm.BandedToeplitz, {"bands": 5}),
        (dm.BandedInverse, {"bands": 3}),
        (dm.BLT, {"buffers": 2}),
        (dm.Dense, {}),
    ],
)
@pytest.mark.parametrize("objective", ["rmse", "max_se", "last"])
def test_never_worse_than_the_identity_and_as_large_as_said(
    participation, normalized, family, options, objective
):
    n = 20
    workload = dm.workloads.momentum(n, 0.5)
    schema = dm.FixedEpochs(4) if isinstance(participation, dm.FixedEpochs) else participation
    fit = dm.optimize(
        family, schema, n=n, column_normalized=normalized, objective=objective, workload=workload, **options
    )
    rows = np.linalg.norm(workload.to_dense() @ np.linalg.inv(fit.strategy.to_dense()), axis=1)
    norm = {"rmse": np.linalg.norm(rows) / math.sqrt(n), "max_se": rows.max(), "last": rows[-1]}[objective]
    assert fit.error == pytest.approx(norm * dm.sensitivity(fit.strategy, schema).upper, rel=1e-9)
    assert fit.error <= fit.identity_error * (1 + 1e-12)
    assert fit.error <= min(error for _, error in fit.candidates) * (1 + 1e-8)
    base = fit.strategy.strategy if isinstance(fit.strategy, dm.ColumnNormalized) else fit.strategy
    assert isinstance(base, family)


class TestRandomParticipations:
    @pytest.mark.slow
    def test_cyclic_poisson_chooses_bands_and_cycle(self):
        schemas = [dm.CyclicPoisson(c / 50, c) for c in (1, 2, 10)]
        fit = dm.optimize(dm.BandedToeplitz, schemas, n=100, eps=4.0, delta=1e-5)
        assert fit.participation in schemas
        assert fit.strategy.bands <= getattr(fit.participation, "cycle", 1)
        assert fit.calibration.sigma > 0.0
        assert fit.error == pytest.approx(fit.calibration.rmse(), rel=1e-12)
        assert fit.error <= fit.identity_error

    @pytest.mark.parametrize("family", [dm.BandedToeplitz, dm.Dense])
    def test_bands_above_the_cycle_are_refused(self, family):
        with pytest.raises(UnsupportedCombinationError, match="bands=5 under a cycle of 4"):
            dm.optimize(family, dm.CyclicPoisson(0.1, 4), n=40, bands=5, eps=1.0, delta=1e-5)

    @pytest.mark.slow
    def test_dense_with_more_bands_than_bins_is_fitted_with_one_band_for_every_bin(self):
        bins, options = dm.BallsInBins(2), {"n": 4, "eps": 4.0, "delta": 1e-3, "rng": 0, "compare": False}
        least, more = (dm.optimize(dm.Dense, bins, bands=bands, **options) for bands in (2, 3))
        assert more.error == least.error
        assert np.array_equal(more.strategy.matrix, least.strategy.matrix)

    def test_a_budget_sizes_the_noise_of_the_winner(self):
        fit = dm.optimize(dm.LambdaCGD, dm.MinSep(20, 3), n=60, eps=2.0, delta=1e-5)
        cal = dm.calibrate_sigma(fit.strategy, 2.0, 1e-5, participation=dm.MinSep(20, 3))
        assert fit.calibration.sigma == cal.sigma
        assert fit.error == pytest.approx(cal.rmse(), rel=1e-12)

    @pytest.mark.slow
    @pytest.mark.exhaustive
    def test_balls_in_bins_is_close_to_a_dense_scan_and_shrinks_with_eps(self):
        schema, n = dm.BallsInBins(20), 60
        chosen = {}
        for eps in (6.0, 0.5):
            fit = dm.optimize(dm.LambdaCGD, schema, n=n, eps=eps, delta=1e-4, rng=1)
            chosen[eps] = fit.strategy.lam
            scan = [
                dm.calibrate_sigma(dm.LambdaCGD(n, lam), eps, 1e-4, participation=schema, rng=1).rmse()
                for lam in (0.0, 0.4, 0.6, 0.7, 0.8, 0.85, 0.9)
            ]
            assert fit.error <= 1.01 * min(scan)
            assert fit.error <= fit.identity_error
        assert chosen[0.5] < chosen[6.0]


@pytest.mark.parametrize(
    "strategy",
    [
        dm.LambdaCGD(8, 0.9),
        dm.BandedToeplitz(8, [1.0, 0.5, 0.2]),
        dm.BandedInverse(8, [1.0, -0.5, -0.1]),
        dm.BLT(8, [0.9, 0.4], [0.3, 0.2]),
        dm.Dense(np.tril(np.arange(64.0).reshape(8, 8)) + np.eye(8)),
    ],
    ids=repr,
)
def test_damping_conjugates_by_powers(strategy):
    powers = 0.7 ** np.arange(8.0)
    dense = strategy.to_dense() * powers[:, None] / powers[None, :]
    np.testing.assert_allclose(damped(strategy, 0.7).to_dense(), dense, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(damped(strategy, 1.0).to_dense(), strategy.to_dense(), rtol=1e-13)
    normalized = damped(dm.ColumnNormalized(strategy), 0.7)
    np.testing.assert_allclose(
        normalized.to_dense(), dense / np.linalg.norm(dense, axis=0), rtol=1e-12, atol=1e-14
    )


def test_damping_needs_coefficients():
    with pytest.raises(UnsupportedCombinationError, match="damp"):
        damped(dm.SquareRoot(8), 0.5)


class TestCache:
    def fit(self, folder, **options):
        return dm.optimize(dm.BandedToeplitz, dm.MinSep(10, 2), n=20, bands=4, cache=folder, **options)

    def test_a_second_call_reads_the_coefficients(self, tmp_path, monkeypatch):
        first = self.fit(tmp_path)
        monkeypatch.setattr("dpmech.fitting.optimizing.fit_family", None)
        again = self.fit(tmp_path)
        assert again.strategy == first.strategy
        assert again.error == first.error
        with pytest.raises(TypeError):
            self.fit(tmp_path, objective="last")

    def test_nothing_half_written_is_left(self, tmp_path, monkeypatch):
        def full(handle):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("os.fsync", full)
        with pytest.raises(InvalidParameterError, match="cache file must be a file that can be written"):
            self.fit(tmp_path)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("text", ["", "[]", '{"format": 1}', '{"format": 0, "key": ""}'])
    def test_foreign_files_are_refused(self, tmp_path, text):
        self.fit(tmp_path)
        (path,) = tmp_path.iterdir()
        path.write_text(text)
        with pytest.raises(InvalidParameterError, match="cache file"):
            self.fit(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "options", "match"),
    [
        ((dm.SquareRoot, dm.EveryStep()), {}, "family"),
        (("LambdaCGD", dm.EveryStep()), {}, "family"),
        ((dm.LambdaCGD, dm.EveryStep()), {"n": 0}, "n"),
        ((dm.LambdaCGD, dm.EveryStep()), {"bands": 3}, "bands"),
        ((dm.BandedToeplitz, dm.EveryStep()), {"bands": 11}, "bands"),
        ((dm.BandedToeplitz, dm.EveryStep()), {"buffers": 2}, "buffers"),
        ((dm.BLT, dm.EveryStep()), {"buffers": 0}, "buffers"),
        ((dm.BLT, dm.EveryStep()), {"objective": "mse"}, "objective"),
        ((dm.BLT, dm.EveryStep()), {"eps": 1.0}, "delta must be given with eps"),
        ((dm.BLT, dm.EveryStep()), {"delta": 0.1}, "eps must be given with delta"),
        ((dm.BLT, []), {}, "participation"),
        ((dm.BLT, "every step"), {}, "participation"),
        ((dm.LambdaCGD, dm.BallsInBins(5)), {}, "eps"),
        ((dm.LambdaCGD, dm.BallsInBins(99)), {"eps": 1.0, "delta": 0.1}, "bins"),
        ((dm.Dense, dm.EveryStep()), {"n": 5000}, "n"),
        ((dm.LambdaCGD, dm.EveryStep()), {"workload": dm.workloads.prefix_sum(9)}, "workload"),
    ],
)
def test_bad_arguments_are_named(arguments, options, match):
    with pytest.raises(InvalidParameterError, match=match):
        dm.optimize(*arguments, **({"n": 10} | options))


def test_with_one_participation_all_entries_are_free():
    capped = dm.optimize(dm.Dense, dm.MinSep(5, 1), n=7, bands=7)
    single = dm.optimize(dm.Dense, dm.SingleParticipation(), n=7)
    assert capped.error == pytest.approx(single.error, rel=1e-9)
    assert capped.error < dm.optimize(dm.BandedToeplitz, dm.SingleParticipation(), n=7, bands=7).error


def test_dense_bands_beyond_the_separation_are_refused():
    with pytest.raises(UnsupportedCombinationError, match="bands"):
        dm.optimize(dm.Dense, dm.MinSep(3, 4), n=12, bands=4)


def test_a_fit_is_printed_as_lines():
    plain = dm.optimize(dm.LambdaCGD, dm.MinSep(10, 5), n=50)
    first, second, third, fourth = str(plain).splitlines()
    assert (first, second) == (repr(plain.strategy), "MinSep(min_sep=10, max_participations=5)")
    assert third.startswith(f"rmse {up(plain.error)}, of independent noise {up(plain.identity_error)}: ")
    assert fourth == "within 15 % of the best possible"
    sized = dm.optimize(dm.LambdaCGD, dm.MinSep(10, 5), n=50, eps=2.0, delta=1e-5)
    assert str(sized).endswith(f"at the calibrated sigma\n{fourth}\n{sized.calibration}")
    last = dm.optimize(dm.LambdaCGD, dm.MinSep(10, 5), n=50, objective="last")
    assert len(str(last).splitlines()) == 3


def test_one_step():
    for family in (dm.LambdaCGD, dm.BandedToeplitz, dm.BandedInverse, dm.BLT, dm.Dense):
        assert dm.optimize(family, dm.EveryStep(), n=1).error == pytest.approx(1.0)


def test_fit_family_reports_every_candidate():
    lines = []
    problem = Problem(
        dm.MinSep(5, 2), 10, dm.workloads.prefix_sum(10), Objective.RMSE, column_normalized=False
    )
    fit_family(problem, InverseFamily(10, 3), None, lines.append)
    assert len(lines) >= 3


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_new_allocation_every_epoch_leaves_the_identity():
    fresh = dm.BallsInBins(2, fresh=True)
    fit = dm.optimize(dm.BandedToeplitz, fresh, n=4, eps=1.0, delta=1e-2)
    np.testing.assert_array_equal(fit.strategy.to_dense(), np.eye(4))
    own = dm.calibrate_sigma(dm.Identity(4), 1.0, 1e-2, participation=fresh)
    assert fit.calibration.sigma == pytest.approx(own.sigma, rel=1e-3)
    assert fit.calibration.participation == fresh


def test_the_best_candidate_alone_can_be_calibrated(tmp_path):
    call = {"n": N, "eps": 2.0, "delta": 1e-5, "cache": tmp_path}
    whole = dm.optimize(dm.LambdaCGD, dm.MinSep(7, 4), **call)
    alone = dm.optimize(dm.LambdaCGD, dm.MinSep(7, 4), **call, compare=False)
    assert (alone.strategy, alone.error) == (whole.strategy, whole.error)
    assert (len(whole.candidates), len(alone.candidates)) == (2, 1)
    assert math.isnan(alone.identity_error)
    assert alone.identity_calibration is None
    assert whole.identity_calibration.rmse() == pytest.approx(whole.identity_error, rel=1e-12)
    assert "independent" not in str(alone)
    # Without a candidate it is independent noise, which is then compared.
    none = dm.optimize(dm.LambdaCGD, dm.Poisson(0.1), **call, compare=False)
    assert (none.strategy, none.error) == (dm.LambdaCGD(N, 0.0), none.identity_error)


@pytest.mark.parametrize("normalized", [False, True])
def test_inverse_square_roots_have_the_best_of_some_numbers_of_bands(normalized):
    fit = dm.optimize(dm.InverseSquareRoot, dm.MinSep(7, 4), n=N, bands=11, column_normalized=normalized)
    inner = fit.strategy.strategy if normalized else fit.strategy
    errors = {}
    for bands in (1, 2, 4, 8, 11):
        one = dm.InverseSquareRoot(N, bands)
        one = dm.ColumnNormalized(one) if normalized and bands > 1 else one
        errors[bands] = dm.rmse(one, dm.MinSep(7, 4))
    assert fit.error == pytest.approx(min(errors.values()), rel=1e-9)
    assert errors[inner.inverse_bands] == pytest.approx(fit.error, rel=1e-9)
