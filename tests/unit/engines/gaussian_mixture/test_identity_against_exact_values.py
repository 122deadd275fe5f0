"""Independent bins: every method against the law of a sum of b lognormals, by FFT (`identity_delta`)."""

import numpy as np
import pytest

import dpmech as dm
from dpmech.engines.gaussian_mixture.estimate import estimate_delta
from dpmech.engines.gaussian_mixture.gram import CirculantGram
from tests.support.bins_oracles import gaussian, identity_bracket, identity_delta, quadrature

# (bins, sigma, eps): delta is about 1e-3, 1e-6, 1e-9, 1e-12 in turn.
EPS = {
    (50, 0.6): (2.193, 4.941, 7.053, 8.811),
    (50, 1.0): (0.4637, 1.298, 2.36, 3.361),
    (50, 2.0): (0.1404, 0.2982, 0.4108, 0.5279),
    (390, 0.6): (0.7233, 2.919, 4.992, 6.748),
    (390, 1.0): (0.1246, 0.3261, 0.8081, 1.522),
    (390, 2.0): (0.03779, 0.0982, 0.1382, 0.1704),
    (1000, 0.6): (0.369, 2.074, 4.077, 5.822),
    (1000, 1.0): (0.06753, 0.1718, 0.4017, 0.8708),
    (1000, 2.0): (0.01996, 0.05947, 0.08475, 0.105),
}
CASES = [(b, s, eps) for (b, s), every in EPS.items() for eps in every]
ACCURACY = 1e-3


def identity(bins, sigma):
    row = np.zeros(bins)
    row[0] = sigma**-2.0
    return CirculantGram(row)


def check(bins, sigma, eps, seed):
    remove, add = identity_delta(sigma**-2.0, bins, eps)
    result = estimate_delta(identity(bins, sigma), eps, rng=np.random.default_rng(seed))
    assert result.remove.lower <= remove * (1 + ACCURACY)
    assert result.remove.upper >= remove * (1 - ACCURACY)
    assert result.lower <= max(remove, add) * (1 + ACCURACY)
    assert result.upper >= max(remove, add) * (1 - ACCURACY)
    assert result.upper < 1.3 * result.lower


def test_the_oracle_itself():
    assert identity_delta(1.0, 1, 1.0) == pytest.approx([gaussian(1.0, 1.0)] * 2, rel=1e-8)
    for square, bins, eps in ((0.5, 20, 0.5), (1.0, 20, 1.2), (0.3, 50, 0.25)):
        lower, upper = identity_bracket(square, bins, eps)
        value = identity_delta(square, bins, eps)[0]
        assert lower * (1 - 1e-5) < value < upper * (1 + 1e-5)
    for got, exact in zip(identity_delta(0.5, 2, 1.0), quadrature(0.5 * np.eye(2), 1.0), strict=True):
        assert got == pytest.approx(exact, rel=ACCURACY)


@pytest.mark.parametrize(
    ("bins", "sigma", "eps"), [(50, 2.0, 0.5279), (390, 0.6, 4.992), (1000, 1.0, 0.1718), (1000, 2.0, 0.105)]
)
def test_the_oracle_has_converged(bins, sigma, eps):
    coarse, fine = (identity_delta(sigma**-2.0, bins, eps, cells=cells) for cells in (2**15, 2**17))
    assert coarse[0] == pytest.approx(fine[0], rel=10 * ACCURACY)
    assert identity_delta(sigma**-2.0, bins, eps)[0] == pytest.approx(fine[0], rel=2 * ACCURACY)


# (bins, sigma, eps): lower and upper bound on delta by PLD_accounting 2.0 (Feldman and Shenfeld), geometric
# convolution, loss_discretization 0.02 at sigma 0.6 and 0.01 elsewhere, tail_truncation 1e-16.
ALLOCATION = {
    (50, 0.6, 4.941): (9.77875457844432e-07, 9.878534714756634e-07),
    (50, 1.0, 1.298): (1.0017604927421024e-06, 1.033027368293186e-06),
    (50, 2.0, 0.5279): (9.307281838584753e-13, 1.3367762554864947e-12),
    (390, 0.6, 4.992): (1.034764279230852e-09, 1.0440815635904272e-09),
    (390, 1.0, 0.3261): (9.20456049265255e-07, 1.1017975827471323e-06),
}


@pytest.mark.parametrize(
    "case",
    [pytest.param(one, marks=[pytest.mark.slow] if one == (390, 1.0, 0.3261) else []) for one in ALLOCATION],
)
def test_another_accountant_agrees(case):
    """Random allocation by privacy loss distributions: it shares no step with either of ours."""
    bins, sigma, eps = case
    lower, upper = ALLOCATION[case]
    assert lower < max(identity_delta(sigma**-2.0, bins, eps)) < upper
    result = estimate_delta(identity(bins, sigma), eps, rng=np.random.default_rng(5))
    assert result.lower < upper
    assert result.upper > lower
    scheme, one = dm.BallsInBins(bins), dm.Identity(bins)
    assert dm.delta(one, sigma, eps, participation=scheme, method=dm.methods.Rdp()).upper > lower


@pytest.mark.slow
def test_exact_agrees_with_another_accountant():
    lower, upper = ALLOCATION[50, 1.0, 1.298]
    scheme = dm.BallsInBins(50)
    exact = dm.delta(dm.Identity(50), 1.0, 1.298, participation=scheme, method=dm.methods.Exact()).upper
    assert lower < exact < 1.02 * upper


@pytest.mark.filterwarnings("default::ImportWarning")
def test_the_other_accountant_says_what_is_recorded():
    package = pytest.importorskip(
        "PLD_accounting", reason="optional: an alpha release, in the extra `oracle`"
    )
    bins, sigma, eps = 50, 2.0, 0.5279
    params = package.PrivacyParams(sigma=sigma, num_steps=bins, epsilon=eps)
    config = package.AllocationSchemeConfig(loss_discretization=0.01, tail_truncation=1e-16)
    found = [
        package.gaussian_allocation_delta_configurable(params=params, config=config, bound_type=bound)
        for bound in (package.BoundType.IS_DOMINATED, package.BoundType.DOMINATES)
    ]
    assert found == pytest.approx(ALLOCATION[bins, sigma, eps], rel=1e-6)


QUICK = [
    (50, 0.6, 8.811),
    (50, 1.0, 1.298),
    (50, 2.0, 0.4108),
    (50, 2.0, 0.5279),
]


@pytest.mark.parametrize(("bins", "sigma", "eps"), QUICK)
def test_interval_contains_the_exact_value(bins, sigma, eps):
    check(bins, sigma, eps, seed=bins)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bins", "sigma", "eps"), [case for case in CASES if case not in QUICK and case[0] < 1000]
)
def test_interval_contains_the_exact_value_everywhere(bins, sigma, eps):
    check(bins, sigma, eps, seed=bins)


@pytest.mark.parametrize(("sigma", "eps"), [(2.0, 0.5279), (1.0, 1.298), (0.6, 8.811)])
def test_moments_lie_above(sigma, eps):
    truth = max(identity_delta(sigma**-2.0, 50, eps))
    upper = dm.delta(
        dm.Identity(50), sigma, eps, participation=dm.BallsInBins(50), method=dm.methods.Rdp()
    ).upper
    assert truth * (1 - ACCURACY) <= upper <= gaussian(sigma**-2.0, eps) * (1 + 1e-6)


@pytest.mark.slow
def test_certified_lies_above():
    truth = max(identity_delta(1.0, 50, 1.298))
    bound = dm.delta(
        dm.Identity(50), 1.0, 1.298, participation=dm.BallsInBins(50), method=dm.methods.Certified(), rng=1
    )
    assert truth * (1 - ACCURACY) <= bound.upper <= 1.5 * truth
