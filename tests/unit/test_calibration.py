import dataclasses
import math
import re

import numpy as np
import pytest

import dpmech as dm

ONE, SINGLE = dm.Identity(1), dm.SingleParticipation()


def test_the_record_holds_every_assumption():
    strategy, schema = dm.LambdaCGD(12, 0.9), dm.MinSep(4, 2)
    calibration = dm.calibrate_sigma(strategy, 2, 1e-5, participation=schema, adjacency=dm.Adjacency.ZERO_OUT)
    assert calibration.strategy == strategy
    assert calibration.participation == schema
    assert calibration.adjacency is dm.Adjacency.ZERO_OUT
    assert calibration.budget == dm.PrivacyBudget(2.0, 1e-5)
    assert calibration.sensitivity == dm.sensitivity(strategy, schema)
    assert float(calibration) == calibration.sigma
    assert calibration.noise_multiplier is None  # correlated noise has none
    assert str(calibration.guarantee) == "exact"
    assert "analytic Gaussian" in calibration.method
    assert "Theorem 1" in calibration.method
    assert calibration.achieved.upper <= 2.0
    for word in (
        "LambdaCGD(n=12, lam=0.9)",
        "MinSep(min_sep=4",
        "ZERO_OUT",
        "eps=2.0",
        "delta=1e-05",
        "sigma=",
    ):
        assert word in repr(calibration)
    with pytest.raises(dataclasses.FrozenInstanceError):
        calibration.sigma = 0.0


def test_the_default_participation_is_every_step():
    assert dm.calibrate_sigma(dm.Identity(9), 1.0, 1e-5).sigma == pytest.approx(
        3 * dm.calibrate_sigma(ONE, 1.0, 1e-5, participation=SINGLE).sigma, rel=1e-12
    )


def test_an_inexact_sensitivity_is_labelled():
    calibration = dm.calibrate_sigma(dm.BandedToeplitz(9, [1.0, 0.5, -0.4]), 1.0, 1e-5)
    assert str(calibration.guarantee) == "deterministic upper bound"
    assert calibration.achieved.lower < calibration.achieved.upper <= 1.0


def test_replace_one_doubles_sigma_without_sampling():
    strategy, schema = dm.LambdaCGD(12, 0.9), dm.MinSep(4, 2)
    single = dm.calibrate_sigma(strategy, 1.0, 1e-5, participation=schema)
    double = dm.calibrate_sigma(strategy, 1.0, 1e-5, participation=schema, adjacency=dm.Adjacency.REPLACE_ONE)
    assert double.sigma == pytest.approx(2 * single.sigma, rel=1e-12)
    assert double.noise_multiplier is single.noise_multiplier is None


def test_noise_variance():
    strategy = dm.LambdaCGD(6, 0.9)
    calibration = dm.calibrate_sigma(strategy, 1.0, 1e-5)
    base = (calibration.sigma * 2.0 / 128.0) ** 2
    assert calibration.noise_variance(0, 2.0, 128) == pytest.approx(base)
    for step in range(1, 6):
        assert calibration.noise_variance(step, 2.0, 128.0) == pytest.approx(base * (1 + 0.9**2))
    assert calibration.noise_variance(np.int64(5), 1, 1) == pytest.approx(calibration.sigma**2 * 1.81)
    with pytest.raises(dm.exceptions.HorizonError, match=r"step must be in \[0, 5\], got 6"):
        calibration.noise_variance(6, 1.0, 1.0)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((-1, 1.0, 1.0), "step"),
        ((True, 1.0, 1.0), "step"),
        ((0.5, 1.0, 1.0), "step"),
        ((0, 0.0, 1.0), "clip_norm"),
        ((0, math.inf, 1.0), "clip_norm"),
        ((0, 1.0, 0), "batch_size"),
        ((0, 1.0, "8"), "batch_size"),
    ],
)
def test_noise_variance_refuses(arguments, name):
    with pytest.raises(dm.InvalidParameterError, match=f"{name} must be"):
        dm.calibrate_sigma(ONE, 1.0, 1e-5).noise_variance(*arguments)


def test_errors_are_amplified_where_sigma_is():
    calibration = dm.calibrate_sigma(dm.Identity(20), 1.0, 1e-5, participation=dm.Poisson(0.1))
    assert calibration.rmse() == pytest.approx(calibration.sigma * math.sqrt(21 / 2))
    assert calibration.max_se() == pytest.approx(calibration.sigma * math.sqrt(20))
    weights = dm.workloads.learning_rate_weighted(np.full(20, 0.5))
    assert calibration.rmse(workload=weights) == pytest.approx(0.5 * calibration.rmse())
    assert calibration.max_se(workload=weights) == pytest.approx(0.5 * calibration.max_se())


BAD_EPS = [0, 0.0, -1.0, math.nan, math.inf, -math.inf, "8", None, True, 1j, [8.0]]
BAD_DELTA = [0.0, 1.0, 0, 1, -1e-9, 1.1, math.nan, math.inf, "1e-5", None, True]


@pytest.mark.parametrize("eps", BAD_EPS, ids=repr)
def test_bad_eps(eps):
    with pytest.raises(dm.InvalidParameterError, match=r"eps must be a finite number in \(0, inf\), got"):
        dm.calibrate_sigma(ONE, eps, 1e-5)


@pytest.mark.parametrize("eps", BAD_EPS[2:], ids=repr)
def test_bad_eps_of_delta(eps):
    with pytest.raises(dm.InvalidParameterError, match=r"eps must be a finite number in \[0, inf\), got"):
        dm.delta(ONE, 1.0, eps)


@pytest.mark.parametrize("delta", BAD_DELTA, ids=repr)
def test_bad_delta(delta):
    for call in (lambda: dm.calibrate_sigma(ONE, 1.0, delta), lambda: dm.epsilon(ONE, 1.0, delta)):
        with pytest.raises(dm.InvalidParameterError, match=r"delta must be a finite number in \(0, 1\), got"):
            call()


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.nan, math.inf, "1", None, True], ids=repr)
@pytest.mark.parametrize("call", [dm.epsilon, dm.delta])
def test_bad_sigma(call, sigma):
    with pytest.raises(dm.InvalidParameterError, match=r"sigma must be a finite number in \(0, inf\), got"):
        call(ONE, sigma, 0.5)


@pytest.mark.parametrize("rtol", [0.0, 1e-7, 0.6, math.nan, "1e-3", None, True], ids=repr)
def test_bad_rtol(rtol):
    with pytest.raises(
        dm.InvalidParameterError, match=r"rtol must be a finite number in \[1e-06, 0.5\], got"
    ):
        dm.calibrate_sigma(ONE, 1.0, 1e-5, rtol=rtol)


@pytest.mark.parametrize("rng", [-1, 1.5, "0", True, np.random.RandomState], ids=repr)
def test_bad_rng(rng):
    for call in (dm.calibrate_sigma, dm.epsilon, dm.delta):
        with pytest.raises(dm.InvalidParameterError, match=r"rng must be None, a numpy.random.Generator"):
            call(ONE, 1.0, 0.5, rng=rng)


@pytest.mark.parametrize("rng", [None, 0, 17, np.random.default_rng(0)], ids=["none", "0", "17", "generator"])
def test_rng_does_not_change_deterministic_results(rng):
    assert dm.calibrate_sigma(ONE, 1.0, 1e-5, rng=rng).sigma == dm.calibrate_sigma(ONE, 1.0, 1e-5).sigma


@pytest.mark.parametrize("adjacency", ["add_remove", None, 1], ids=repr)
def test_bad_adjacency(adjacency):
    for call in (dm.calibrate_sigma, dm.epsilon, dm.delta):
        with pytest.raises(dm.InvalidParameterError, match=r"adjacency must be one of Adjacency.ADD_REMOVE"):
            call(ONE, 1.0, 0.5, adjacency=adjacency)


NUMBERS = [0, -1, 1.0, True, "3", None, math.nan]


@pytest.mark.parametrize("n", NUMBERS, ids=repr)
@pytest.mark.parametrize(
    "build",
    [
        dm.Identity,
        dm.SquareRoot,
        lambda n: dm.LambdaCGD(n, 0.5),
        lambda n: dm.InverseSquareRoot(n, 1),
        lambda n: dm.BandedToeplitz(n, [1.0]),
        lambda n: dm.BandedInverse(n, [1.0]),
        lambda n: dm.BLT(n, [0.5], [0.1]),
    ],
)
def test_bad_n(build, n):
    with pytest.raises(dm.InvalidParameterError, match=r"n must be an integer in \[1, 1000000000\], got"):
        build(n)


NAN = math.nan


@pytest.mark.parametrize(
    ("build", "message"),
    [
        *((lambda lam=lam: dm.LambdaCGD(3, lam), r"lam must be a finite number in \[0, 1\), got")
          for lam in (1.0, 1, -1e-9, 2.0, NAN, math.inf, "0.9", None, True)),
        *((lambda bands=bands: dm.SquareRoot(3, bands), r"bands must be an integer in \[1, 3\], got")
          for bands in (0, 4, True, 1.0, "2")),
        *((lambda bands=bands: dm.InverseSquareRoot(3, bands), r"bands must be an integer in \[1, 3\], got")
          for bands in (0, 4, True, 1.0, "2", None)),
        *((lambda kind=kind, head=head: kind(3, [head, 0.5]), r"coefs\[0\] must be a finite number > 0, got")
          for kind in (dm.BandedToeplitz, dm.BandedInverse) for head in (0.0, -1.0)),
        *((lambda kind=kind, coefs=coefs: kind(3, coefs), "coefs must be a non-empty one-dim")
          for kind in (dm.BandedToeplitz, dm.BandedInverse)
          for coefs in ([], [NAN], [1.0, math.inf], "1,2", 1.0, None, [True], ["1"], [[1.0]])),
        *((lambda kind=kind: kind(3, [1.0] * 4), r"coefs must be at most 3 numbers, got .* coefs\[:3\]")
          for kind in (dm.BandedToeplitz, dm.BandedInverse)),
        *((lambda decays=decays: dm.BLT(3, decays, [0.1]), r"decays must be numbers in \[0, 1\], got")
          for decays in ([math.nextafter(1.0, 2.0)], [-0.1], [2.0])),
        (lambda: dm.BLT(3, [NAN], [0.1]), "decays must be a non-empty"),
        (lambda: dm.BLT(3, [0.5], [0.1, 0.2]), "scales must be of the same length as decays, 1"),
        (lambda: dm.BLT(3, [0.5], [math.inf]), "scales must be a non-empty"),
        (lambda: dm.Diagonal([1.0, 0.0]), "entries must be positive numbers"),
        (lambda: dm.Diagonal([1.0, -1.0]), "entries must be positive numbers"),
        (lambda: dm.Diagonal([]), "entries must be a non-empty"),
        (lambda: dm.Diagonal([NAN]), "entries must be a non-empty"),
        (
            lambda: dm.Dense(np.array([[1.0, 0.5], [0.0, 1.0]])),
            r"matrix must be lower-triangular \(zeros above the diagonal\), got an array of shape "
            r"\(2, 2\): row 0, column 1 has 0.5",
        ),
        (lambda: dm.Dense([[1.0, 0.0], [0.5, 0.0]]), "matrix must be invertible .*: row 1, column 1 has 0"),
        (lambda: dm.Dense([[1.0, 0.0]]), "matrix must be a non-empty square matrix"),
        (lambda: dm.Dense([[NAN]]), "matrix must be a non-empty square matrix"),
        (lambda: dm.Dense("identity"), "matrix must be a non-empty square matrix"),
        (lambda: dm.ColumnNormalized(np.eye(2)), "strategy must be a Strategy"),
        (lambda: dm.ColumnNormalized(3), "strategy must be a Strategy"),
    ],
)  # fmt: skip
def test_bad_strategies(build, message):
    with pytest.raises(dm.InvalidParameterError, match=message):
        build()


@pytest.mark.parametrize("call", [dm.calibrate_sigma, dm.epsilon, dm.delta])
def test_only_strategies_and_participations(call):
    with pytest.raises(dm.InvalidParameterError, match="strategy must be a Strategy such as"):
        call("identity", 1.0, 0.5)
    with pytest.raises(dm.InvalidParameterError, match="participation must be a Participation such as"):
        call(ONE, 1.0, 0.5, participation="poisson")


def test_numpy_scalars_and_sequences_are_accepted():
    assert dm.LambdaCGD(np.int32(4), np.float64(0.5)) == dm.LambdaCGD(4, 0.5)
    assert dm.BandedToeplitz(4, (1, 2)) == dm.BandedToeplitz(4, np.array([1.0, 2.0]))
    assert (
        dm.calibrate_sigma(ONE, np.int64(8), np.float64(1e-5)).sigma == dm.calibrate_sigma(ONE, 8, 1e-5).sigma
    )


def test_a_solution_on_the_wrong_side_is_never_returned(monkeypatch):
    from dpmech.engines.accountant import Solution
    from dpmech.engines.gaussian import GaussianAccountant

    for sigma, upper in ((1.0, 1.0000001), (math.nan, 0.5), (0.0, 0.5), (math.inf, 0.5)):
        solution = Solution(sigma, dm.Bounds.bracket(0.0, upper, dm.numerics.Provenance("wrong")))
        monkeypatch.setattr(GaussianAccountant, "calibrate", lambda *_, found=solution, **__: found)
        with pytest.raises(dm.NumericalError, match="calibration ended on the wrong side"):
            dm.calibrate_sigma(ONE, 1.0, 1e-5)


def test_progress_is_told():
    lines = []
    dm.calibrate_sigma(dm.Identity(10), 1.0, 1e-5, participation=dm.Poisson(0.1), progress=lines.append)
    assert len(lines) >= 2


# ---- the claim of a sigma that is there already

GIVEN = [
    (dm.LambdaCGD(40, 0.9), dm.MinSep(10, 3), None),
    (dm.LambdaCGD(40, 0.9), dm.MinSep(10, 3), dm.methods.Rdp()),
    (dm.BandedToeplitz(40, [1.0, -0.5, 0.2]), dm.MinSep(2, 3), None),
    # One sampled release, whose claim is tight up to rounding.
    (dm.Identity(1), dm.Poisson(0.1), None),
    (dm.SquareRoot(3, 2), dm.CyclicPoisson(0.4, 3), None),
    *(
        pytest.param(*case, marks=pytest.mark.slow)
        for case in (
            (dm.Identity(60), dm.Poisson(0.02), None),
            (dm.Identity(60), dm.Poisson(0.02), dm.methods.Rdp()),
            (dm.BandedToeplitz(40, [1.0, 0.5]), dm.CyclicPoisson(0.1, 4), None),
            (dm.LambdaCGD(8, 0.5), dm.BallsInBins(4), dm.methods.Rdp()),
            (dm.Identity(8), dm.BallsInBins(4), dm.methods.Exact()),
        )
    ),
]


@pytest.mark.parametrize("sigma", [0.9, 1.5])
@pytest.mark.parametrize("at", [{"delta": 1e-5}, {"eps": 0.3}], ids=lambda at: next(iter(at)))
@pytest.mark.parametrize(("strategy", "participation", "method"), GIVEN, ids=repr)
def test_the_claim_of_a_given_sigma_is_what_it_gives_and_is_verified(
    strategy, participation, method, at, sigma
):
    settings = {"participation": participation, "method": method}
    if not (isinstance(method, dm.methods.Rdp) and "eps" in at):
        cal = dm.certify_sigma(strategy, sigma, **at, **settings)
        assert cal.sigma == sigma
        assert cal.achieved.upper == cal.budget.eps
        if "delta" in at:
            assert cal.budget.delta == 1e-5
            assert cal.budget.eps == pytest.approx(
                dm.epsilon(strategy, sigma, 1e-5, **settings).upper, rel=1e-3
            )
        else:
            assert cal.budget.eps == pytest.approx(0.3, rel=1e-4)
            assert cal.budget.delta == dm.delta(strategy, sigma, 0.3, **settings).upper
        assert dm.delta(strategy, sigma, cal.budget.eps, **settings).upper <= cal.budget.delta
        found = dm.verify(cal.certificate())
        assert found.ok, found.failures


def test_the_claim_of_a_given_sigma_agrees_with_a_calibration():
    cal = dm.calibrate_sigma(dm.LambdaCGD(40, 0.9), 2.0, 1e-5, participation=dm.MinSep(10, 3))
    again = dm.certify_sigma(cal.strategy, cal.sigma, delta=1e-5, participation=cal.participation)
    assert again.budget.eps == pytest.approx(2.0, rel=1e-9)
    mechanism = dm.Mechanism(dm.Identity(4), dm.SingleParticipation(), dm.Adjacency.REPLACE_ONE)
    assert dm.certify_sigma(mechanism, 2.0, delta=1e-5).adjacency is dm.Adjacency.REPLACE_ONE


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({}, dm.InvalidParameterError, "delta must be given, or else eps, and not both"),
        ({"eps": 1.0, "delta": 1e-5}, dm.InvalidParameterError, "delta must be given, or else eps"),
        ({"eps": 0.0}, dm.InvalidParameterError, "eps must be"),
        ({"delta": 1.0}, dm.InvalidParameterError, "delta must be"),
        ({"delta": 0.9}, dm.UnattainableBudgetError, "gives no eps > 0 there"),
        (
            {"delta": 1e-5, "participation": dm.BallsInBins(2)},
            dm.UnsupportedCombinationError,
            "draws samples, but a certificate of a given sigma uses none",
        ),
    ],
)
def test_what_no_given_sigma_claims(arguments, error, words):
    with pytest.raises(error, match=re.escape(words)):
        dm.certify_sigma(dm.Identity(4), 2.0, **arguments)
