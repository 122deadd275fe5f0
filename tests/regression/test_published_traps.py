"""Mistakes that published implementations made, each with a test that dpmech does not make it.

The figures in the names and comments are what the mistake costs; the tests reproduce the wrong number where
that takes a line, so that a change that brings it back is seen.
"""

import dataclasses
import inspect
import json
import math
import pathlib
import subprocess
import sys
import weakref
from fractions import Fraction

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant

import dpmech as dm
from dpmech.engines.losses.prv import PrvAccountant
from dpmech.engines.losses.release import PoissonRelease
from dpmech.plans.training_plans import TrainingPlan
from tests.support import oracles

ROOT = pathlib.Path(__file__).parents[2]
SINGLE = dm.SingleParticipation()


def test_trap_01_cholesky_without_reversal_has_unit_rows_not_unit_columns():
    """X = C^T C has a unit diagonal; its plain Cholesky factor has sensitivity above 1, and says so."""
    target = dm.ColumnNormalized(dm.SquareRoot(64)).to_dense()
    gram = target.T @ target
    wrong = dm.Dense(np.linalg.cholesky(gram))
    right = dm.Dense(np.linalg.cholesky(gram[::-1, ::-1])[::-1, ::-1].T)
    np.testing.assert_allclose(right.to_dense().T @ right.to_dense(), gram, atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(wrong.to_dense(), axis=1), 1.0, rtol=1e-12)
    assert dm.sensitivity(right, SINGLE).upper == pytest.approx(1.0, rel=1e-12)
    true = float(np.linalg.norm(wrong.to_dense(), axis=0).max())
    assert true > 1.5
    assert dm.sensitivity(wrong, SINGLE).lower == pytest.approx(true, rel=1e-12)
    sigma = dm.calibrate_sigma(right, 2.0, 1e-5, participation=SINGLE).sigma
    assert dm.epsilon(wrong, sigma, 1e-5, participation=SINGLE).lower > 3.0
    assert dm.calibrate_sigma(wrong, 2.0, 1e-5, participation=SINGLE).sigma == pytest.approx(
        true * sigma, rel=1e-9
    )


@pytest.mark.parametrize("sigma", [1, np.int64(1), np.float32(1.0), np.float64(1.0), Fraction(1)])
def test_trap_02_the_type_of_sigma_drops_no_compositions(sigma):
    """An accountant that asks for a float composes an int once: 2.44 in place of 17.57."""
    expected = dm.epsilon(dm.Identity(100), 1.0, 1e-5, participation=dm.Poisson(0.1)).upper
    assert dm.epsilon(dm.Identity(100), sigma, 1e-5, participation=dm.Poisson(0.1)).upper == expected
    once = dm.epsilon(dm.Identity(1), 1.0, 1e-5, participation=dm.Poisson(0.1)).upper
    assert expected > 2.0 * once
    assert dm.delta(dm.Identity(3), sigma, 1.0) == dm.delta(dm.Identity(3), 1.0, 1.0)


def test_trap_03_the_count_of_a_claim_is_not_ignored():
    """Ten pure ln 3 releases cost 10.99 at delta = 0, not 1.10; here ten claims in one ledger."""
    cal = dm.calibrate_sigma(
        dm.Identity(4), math.log(3.0), 1e-12, participation=dm.BallsInBins(2), method=dm.methods.Rdp()
    )
    ledger = dm.Ledger()
    for index in range(10):
        ledger.add(f"release {index}", cal, batch=f"batch {index}")
    # At so small a delta nothing is gained over adding up.
    assert ledger.epsilon(1.01e-11, profiles=False).upper == pytest.approx(10.0 * math.log(3.0), rel=1e-3)
    assert ledger.epsilon(1.01e-11, profiles=False).upper <= 10.0 * math.log(3.0) * (1.0 + 1e-12)


def test_trap_04_blocks_of_one_batch_do_not_compose_like_two_batches():
    """Sigma = 1 twice, q = 0.01, T = 1000, delta = 1e-6: 5.287 jointly, 2.955 composed wrongly."""
    wrong = PLDAccountant(value_discretization_interval=1e-3)
    wrong.compose(dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(1.0)), 2000)
    assert wrong.get_epsilon(1e-6) == pytest.approx(2.955, rel=5e-3)
    batch = dm.ledgers.SharedBatch("batches of the run", dm.Identity(1000), dm.Poisson(0.01))
    batch.register("first", 1.0)
    batch.register("second", 1.0)
    assert batch.epsilon(1e-6).lower == pytest.approx(5.287, rel=5e-3)
    cal = dm.calibrate_sigma(dm.Identity(10), 1.0, 1e-6, participation=dm.Poisson(0.01))
    ledger = dm.Ledger()
    ledger.add("first", cal, batch="batches of the run")
    with pytest.raises(dm.UnsupportedCombinationError, match="two releases from one batch"):
        ledger.add("second", cal, batch="batches of the run")
    with pytest.raises(dm.InvalidParameterError, match="batch"):
        ledger.add("second", cal)


def test_trap_05_noise_is_that_of_the_normalised_strategy_where_sigma_is():
    """The noise of C under the sigma of C D^-1 has an effective multiplier of 0.51, reported as 1."""
    raw = dm.LambdaCGD(64, 0.9)
    normalised = dm.ColumnNormalized(raw)
    cal = dm.calibrate_sigma(normalised, 1.0, 1e-5, participation=SINGLE)
    assert cal.sensitivity.upper == pytest.approx(1.0, rel=1e-12)
    rows = np.linalg.norm(np.linalg.inv(normalised.to_dense()), axis=1)
    found = [cal.noise_variance(step, 1.0, 1.0) for step in (0, 1, 63)]
    np.testing.assert_allclose(found, (cal.sigma * rows[[0, 1, 63]]) ** 2, rtol=1e-10)
    # The raw strategy at that sigma would not be as private, and its own calibration knows.
    assert dm.epsilon(raw, cal.sigma, 1e-5, participation=SINGLE).lower > 2.0
    own = dm.calibrate_sigma(raw, 1.0, 1e-5, participation=SINGLE)
    assert own.sigma == pytest.approx(cal.sigma * raw.column_norms().max(), rel=1e-9)


def test_trap_06_past_the_horizon_no_row_is_used_again():
    """A row index that clamps gives every later step the same noise: differences are exact gradients."""
    cal = dm.calibrate_sigma(dm.LambdaCGD(4, 0.5), 1.0, 1e-5)
    for step in (4, 5, 10**9):
        with pytest.raises(dm.exceptions.HorizonError):
            cal.noise_variance(step, 1.0, 1.0)
    torch = pytest.importorskip("torch")
    from dpmech.optim import NoiseStream

    stream = NoiseStream(cal, [torch.zeros(3)], generator=1)
    rows = [stream.step()[0] for _ in range(4)]
    assert len({tuple(row.tolist()) for row in rows}) == 4
    for _ in range(2):
        with pytest.raises(dm.exceptions.HorizonError):
            stream.step()


def test_trap_07_steps_and_keys_that_agree_in_32_bits_draw_different_noise():
    """A CPU generator uses 32 bits of a 64-bit key: two of 60,000 steps drew identical noise."""
    torch = pytest.importorskip("torch")
    from dpmech.optim import NoiseStream

    n = 20_000
    cal = dm.calibrate_sigma(dm.Identity(n), 1.0, 1e-5)
    stream = NoiseStream(cal, [torch.zeros(2, dtype=torch.float64)], generator=7)
    seen = {tuple(stream.step()[0].tolist()) for _ in range(n)}
    assert len(seen) == n
    # The trap itself: on this generator those keys are one.
    same = [torch.randn(4, generator=torch.Generator().manual_seed(key)) for key in (5, 5 + 2**32)]
    assert torch.equal(*same)
    short = dm.calibrate_sigma(dm.Identity(4), 1.0, 1e-5)
    rows = [
        NoiseStream(short, [torch.zeros(4)], generator=key).step()[0] for key in (5, 5 + 2**32, 5 + 2**64)
    ]
    assert not torch.equal(rows[0], rows[1])
    assert not torch.equal(rows[0], rows[2])


def test_trap_08_sensitivities_are_not_float32():
    """At n = 65,536 float32 sums are low by 5e-5: each such calibration under-noises."""
    data = json.loads((ROOT / "tests" / "reference" / "toeplitz_65536.json").read_text(encoding="utf-8"))
    case = next(one for one in data["cases"] if one["strategy"] == "SquareRoot")
    schema = dm.MinSep(case["min_sep"], case["max_participations"])
    bounds = dm.sensitivity(dm.SquareRoot(data["n"]), schema)
    true = float(case["sensitivity"])
    assert bounds.lower <= true <= bounds.upper
    assert bounds.upper == pytest.approx(true, rel=1e-11)


@pytest.mark.parametrize("factor", [1e-3, 0.5, 7.0])
def test_trap_09_errors_do_not_change_with_the_scale_of_the_strategy(factor):
    """RMSE without the sensitivity factor does."""
    matrix = dm.SquareRoot(12).to_dense()
    plain, scaled = dm.Dense(matrix), dm.Dense(factor * matrix)
    schema = dm.MinSep(4, 3)
    assert dm.rmse(scaled, schema) == pytest.approx(dm.rmse(plain, schema), rel=1e-10)
    assert dm.max_se(scaled, schema) == pytest.approx(dm.max_se(plain, schema), rel=1e-10)
    first = dm.calibrate_sigma(plain, 1.0, 1e-5, participation=schema)
    second = dm.calibrate_sigma(scaled, 1.0, 1e-5, participation=schema)
    assert second.rmse() == pytest.approx(first.rmse(), rel=1e-10)
    assert second.noise_variance(3, 1.0, 1.0) == pytest.approx(first.noise_variance(3, 1.0, 1.0), rel=1e-9)
    ratios = [one.sigma / one.sensitivity.upper for one in (first, second)]
    assert ratios[1] == pytest.approx(ratios[0], rel=1e-10)


def test_trap_10_replace_one_reaches_every_method():
    """An RDP backend that ignores the relation says 4.73; exact is 9.997 (sigma = 1, delta = 1e-5)."""
    replace = dm.Adjacency.REPLACE_ONE
    exact = dm.epsilon(dm.Identity(1), 1.0, 1e-5, adjacency=replace)
    assert exact.exact
    assert exact.upper == pytest.approx(9.997, abs=1e-3)
    assert float(oracles.gaussian_delta(0.5, exact.upper)) == pytest.approx(1e-5, rel=1e-8)
    assert (
        dm.epsilon(dm.Identity(1), 1.0, 1e-5, adjacency=replace, method=dm.methods.Rdp()).upper >= exact.upper
    )
    ledger = dm.Ledger(replace)
    cal = dm.calibrate_sigma(dm.Identity(1), exact.upper, 1e-5, adjacency=replace)
    ledger.add("release", cal)
    for method in (None, dm.methods.Rdp()):
        assert ledger.epsilon(1e-5, method=method).upper >= exact.upper * (1.0 - 1e-9)
    for sampled in (dm.Poisson(0.5), dm.CyclicPoisson(0.5, 1)):
        removed = dm.epsilon(dm.Identity(2), 1.0, 1e-5, participation=sampled)
        replaced = dm.epsilon(dm.Identity(2), 1.0, 1e-5, adjacency=replace, participation=sampled)
        assert replaced.lower > 1.2 * removed.upper
        with pytest.raises(dm.UnsupportedCombinationError):
            dm.epsilon(
                dm.Identity(2), 1.0, 1e-5, adjacency=replace, participation=sampled, method=dm.methods.Rdp()
            )
    with pytest.raises(dm.UnsupportedCombinationError, match="REPLACE_ONE"):
        dm.epsilon(dm.Identity(2), 1.0, 1e-5, adjacency=replace, participation=dm.BallsInBins(1))


def test_trap_11_no_size_loses_a_step_to_float_division():
    """int(epochs / sample_rate) does, for 153 of the sizes below 3000."""
    lost = 0
    for size in range(1, 3000):
        plan = TrainingPlan(size, 1, 1)
        assert (plan.steps_per_epoch, plan.steps) == (size, size)
        assert TrainingPlan(7 * size + 3, 7, 5).steps == 5 * ((7 * size + 3) // 7)
        lost += int(1 / (1 / size)) != size
    assert lost > 100
    with pytest.raises(dm.InvalidParameterError, match="epochs"):
        TrainingPlan(100, 10, 1.5)


def test_trap_12_tiny_eps_does_not_cost_more_noise_than_it_must():
    """A fixed lattice asks for sigma = 4800 where 771 meets (1e-3, 1e-6) at q = 0.01, T = 1000."""
    cal = dm.calibrate_sigma(dm.Identity(1000), 1e-3, 1e-6, participation=dm.Poisson(0.01))
    assert cal.sigma == pytest.approx(771.0, rel=5e-3)


def test_trap_13_the_denominator_is_a_public_constant():
    """One computed from the private number of records tells that number."""
    cal = dm.calibrate_sigma(dm.Identity(4), 1.0, 1e-5)
    parameters = inspect.signature(cal.noise_variance).parameters
    assert parameters["batch_size"].default is inspect.Parameter.empty
    torch = pytest.importorskip("torch")
    from dpmech.optim import PrivateOptimizer

    updates = []
    for records in (1, 5):
        weights = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
        inner = torch.optim.SGD([weights], lr=1.0)
        optimizer = PrivateOptimizer(inner, cal, clip_norm=1.0, expected_batch_size=8, generator=3)
        weights.grad_sample = torch.tensor([[0.3, 0.4]], dtype=torch.float64).expand(records, 2)
        optimizer.step()
        optimizer.close()
        updates.append(-weights.detach())
    # The same noise in both runs: four more records move the mean by 4 / 8 of one, whatever the batch's size.
    difference = updates[1] - updates[0]
    np.testing.assert_allclose(difference.numpy(), [4 * 0.3 / 8, 4 * 0.4 / 8], rtol=1e-3)


@pytest.mark.parametrize("eps", [0.1, 1.0, 8.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-5])
@pytest.mark.parametrize("participation", [SINGLE, dm.MinSep(5, 2), dm.Poisson(0.2)], ids=repr)
def test_trap_14_calibration_ends_on_the_safe_side(eps, delta, participation):
    """A search that stops within a tolerance may stop on the wrong side."""
    cal = dm.calibrate_sigma(dm.Identity(10), eps, delta, participation=participation)
    assert cal.achieved.upper <= eps
    assert dm.delta(dm.Identity(10), cal.sigma, eps, participation=participation).upper <= delta
    closer = cal.sigma * (1.0 - 1.1e-3)
    assert dm.delta(dm.Identity(10), closer, eps, participation=participation).upper > delta


def test_trap_15_the_identity_strategy_knows_its_participation():
    """Sigma = 5, 100 participations, delta = 1e-5: 9.997, not the 0.726 of a single one."""
    matrices = (
        dm.Identity(100),
        dm.BandedToeplitz(100, [1.0]),
        dm.LambdaCGD(100, 0.0),
        dm.Dense(np.eye(100)),
    )
    for strategy in matrices:
        for participation in (dm.EveryStep(), dm.MinSep(1, 100), dm.FixedEpochs(100), dm.BallsInBins(1)):
            found = dm.epsilon(strategy, 5.0, 1e-5, participation=participation)
            assert found.upper == pytest.approx(9.997, abs=1e-3)
        assert dm.epsilon(strategy, 5.0, 1e-5, participation=SINGLE).upper == pytest.approx(0.726, abs=1e-3)


@pytest.mark.slow
def test_trap_16_prv_models_both_directions_in_a_bounded_domain():
    """The package has the direction mixture against Gaussian only, and a domain that can outgrow memory."""
    q, sigma, eps = 0.3, 1.0, 0.2
    accountant = PrvAccountant(
        PoissonRelease(q, 2, dm.Bounds.bracket(1.0, 1.0, dm.numerics.Provenance("one")))
    )
    found = []
    for side, remove in zip(accountant._sides(sigma), (True, False), strict=True):
        exact = float(oracles.sampled_delta_two_steps(q, sigma, eps, remove=remove, digits=15))
        composed, delta_error, eps_error = side.composed(1e-4, 0.1)
        assert float(composed.compute_delta_estimate(eps + eps_error)) - delta_error <= exact
        assert exact <= float(composed.compute_delta_estimate(eps - eps_error)) + delta_error
        found.append(exact)
    # The directions differ by a third here, so that neither passes for the other.
    assert min(found) < 0.7 * max(found)
    small, pld = (
        dm.epsilon(dm.Identity(20), 300.0, 1e-8, participation=dm.Poisson(0.01), method=method)
        for method in (dm.methods.Prv(), dm.methods.Pld())
    )
    assert pld.lower <= small.upper < 3.0 * pld.upper < 1e-2


def test_trap_17_no_dataclass_option_that_some_pythons_refuse():
    """weakref_slot=True under an abstract base does not import on Python 3.11.7 and 3.12.1."""
    for path in (ROOT / "dpmech").rglob("*.py"):
        assert "weakref_slot" not in path.read_text(encoding="utf-8"), path
    strategy = dm.Identity(3)
    assert weakref.ref(strategy)() is strategy
    assert dataclasses.is_dataclass(strategy)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "import dpmech"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
