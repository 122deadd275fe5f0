"""b-min-sep sampling by the verifier's own draws and recursion: integrals, and faults that are planted."""

import dataclasses
import math

import numpy as np
import pytest

import dpmech as dm
from dpmech.accounting.min_sep import ChainAdd, ChainGram, ChainRemove, chain_gram, kernels
from dpmech.accounting.min_sep.removing import ChainPart
from dpmech.certificates.claim import with_checksum
from dpmech.mechanism import RestLaw
from dpmech.verifying import chain_checks, recomputation, weighed_draws
from dpmech.verifying.chain_checks import ratio_check
from dpmech.verifying.chain_draws import ChainDraws
from tests.support import saved


def integrals(coefs, p, sigma, eps):
    """REMOVE and ADD of two steps and b = 2, by sums over a fine grid of outputs."""
    columns = np.array([coefs, [0.0, coefs[0]]]) / sigma
    rate = p / (1.0 + p)
    axis = np.linspace(-11.0, 11.0, 801)
    x, y = np.meshgrid(axis, axis, indexing="ij")
    base = np.exp(-0.5 * (x**2 + y**2)) / (2.0 * math.pi) * (axis[1] - axis[0]) ** 2
    ratio = np.full(x.shape, 1.0 - 2.0 * rate)
    for one, two in columns:
        ratio += rate * np.exp(one * x + two * y - 0.5 * (one**2 + two**2))
    removed = float(np.sum(base * np.maximum(ratio - math.exp(eps), 0.0)))
    return removed, float(np.sum(base * np.maximum(1.0 - math.exp(eps) * ratio, 0.0)))


def own(coefs, p, seed=1):
    matrix = np.array([[coefs[0], 0.0], [coefs[1], coefs[0]]])
    return ChainDraws(matrix, RestLaw(2, p), np.random.default_rng(seed))


@pytest.mark.parametrize(
    ("p", "sigma", "eps"),
    [(0.9, 2.0, 0.02), (1.0, 1.5, 0.1), (0.4, 1.0, 0.3), (0.4, 0.5, 0.6), (0.1, 1.0, 0.1)],
)
def test_the_bound_on_add_is_above_the_integral(p, sigma, eps):
    coefs = (1.0, 0.6)
    draws = own(coefs, p)
    truth = integrals(coefs, p, sigma, eps)[1]
    assert draws.largest_add(draws.matrix / sigma, eps) >= truth > 0.0


def test_the_bound_on_add_is_small_where_add_is():
    # With more than e^-eps nobody joins.
    draws = own((1.0, 0.6), 0.1)
    assert draws.largest_add(draws.matrix, 0.4) < 1e-12
    # And with certain coins it is that of one Gaussian: of all steps, each half as large: 2 - 4 / 4 over 1.
    half = ChainDraws(np.eye(4), RestLaw(2, 1.0), np.random.default_rng(1))
    assert half.largest_add(half.matrix, 2.0) == pytest.approx(math.erfc(math.sqrt(0.5)) / 2.0, rel=1e-6)
    # Near 0 ADD is as large as REMOVE.
    assert draws.largest_add(draws.matrix, 0.01) > integrals((1.0, 0.6), 0.1, 1.0, 0.01)[0]


@pytest.mark.parametrize(("p", "sigma", "eps"), [(0.9, 2.0, 0.02), (1.0, 1.5, 0.1)])
def test_add_is_drawn_where_it_is_near_remove(p, sigma, eps):
    draws, truths = own((1.0, 0.6), p), integrals((1.0, 0.6), p, sigma, eps)
    for add, truth in zip((False, True), truths, strict=True):
        low, high = draws._direction(draws.matrix / sigma, eps, add=add)
        assert low < truth < high < 1.1 * truth
    assert truths[1] > 0.8 * truths[0]
    found = draws.delta(sigma, eps)
    assert found.lower < max(truths) < found.upper


def test_a_direction_that_is_not_seen_is_no_zero(monkeypatch):
    whole, asked = ChainDraws._weights, []

    def unseen(self, *args, add):
        weights, odds = whole(self, *args, add=add)
        asked.append(add)
        return (np.zeros(weights.size), odds) if add else (weights, odds)

    monkeypatch.setattr(ChainDraws, "_weights", unseen)
    with pytest.raises(dm.NumericalError, match="do not show the mean in the direction of ADD"):
        own((1.0, 0.6), 0.9).delta(2.0, 0.02)
    assert any(asked)
    # Where the bound says that it is the smaller one, it need not be seen.
    asked.clear()
    found = own((1.0, 0.6), 0.1).delta(1.0, 0.4)
    assert found.lower < integrals((1.0, 0.6), 0.1, 1.0, 0.4)[0] < found.upper
    assert not any(asked)


def test_remove_that_is_not_seen_is_refused(monkeypatch):
    monkeypatch.setattr(weighed_draws, "_RESOLVED", 0.0)
    with pytest.raises(
        dm.NumericalError, match="160000 draws do not show the mean in the direction of REMOVE"
    ):
        own((1.0, 0.6), 0.4).delta(1.0, 0.3)


@pytest.fixture(scope="module")
def certified():
    return saved.calibration("rests inside").certificate()


def test_the_accountant_s_ratios_are_those_of_the_recursion_forward(certified):
    for seed in (1, 2):
        found = ratio_check(certified, np.random.default_rng(seed))
        assert found.ok, found.detail


def of_another_law(values, scale, offsets, log_prob, log_rest, starts, out):
    real(values, scale, offsets, log_prob, log_rest, np.full(starts.size, -math.log(starts.size)), out)


def without_the_last_step(values, scale, offsets, log_prob, log_rest, starts, out):
    cut = values.copy()
    cut[:, -1] = -1e3
    real(cut, scale, offsets, log_prob, log_rest, starts, out)


def of_shorter_rests(values, scale, offsets, log_prob, log_rest, starts, out):
    real(values, scale, offsets, log_prob, log_rest, starts[:-1] - np.logaddexp.reduce(starts[:-1]), out)


real = kernels.log_sums


@pytest.mark.parametrize("fault", [of_another_law, without_the_last_step, of_shorter_rests])
def test_a_fault_in_the_compiled_recursion_is_seen(certified, monkeypatch, fault):
    monkeypatch.setattr(kernels, "log_sums", fault)
    found = ratio_check(certified, np.random.default_rng(1))
    assert not found.ok
    assert "likelihood ratios differ" in found.detail


def test_faults_in_densities_and_bounds_are_seen(certified, monkeypatch):
    whole = ChainGram.tilt
    with monkeypatch.context() as patch:
        patch.setattr(
            ChainGram,
            "tilt",
            lambda gram, gains: dataclasses.replace(
                whole(gram, gains), log_total=whole(gram, gains).log_total - 1e-5
            ),
        )
        found = ratio_check(certified, np.random.default_rng(1))
        assert not found.ok
        assert "densities of the part" in found.detail
    gram = chain_gram(dm.SquareRoot(12, 4), 4, 0.1).scaled(certified.sigma**-2)
    none, remove, add = np.zeros(12), ChainRemove.at(gram, 2.0), ChainAdd.at(gram, 2.0)
    star = ChainPart.at(gram, "star", remove.parts[1].scale, none, none)
    loose = dataclasses.replace(remove, parts=(remove.parts[0], star, *remove.parts[2:]))
    with monkeypatch.context() as patch:
        patch.setattr(chain_checks, "remove_mixture", lambda *_: loose)
        found = ratio_check(certified, np.random.default_rng(1))
        assert (found.ok, found.detail) == (False, "a density of the star is below its bound")
    deep = dataclasses.replace(add.point, depth=add.point.depth + 0.5)
    monkeypatch.setattr(chain_checks, "add_mixture", lambda *_: dataclasses.replace(add, point=deep))
    found = ratio_check(certified, np.random.default_rng(1))
    assert (found.ok, found.detail) == (False, "an output lies beyond the half-space of ADD")


def test_who_rests_is_asked_first():
    with pytest.raises(dm.UnsupportedCombinationError, match="lets nobody rest"):
        ratio_check(saved.calibration("single").certificate(), None)


@pytest.mark.slow
def test_a_proved_file_is_checked_by_other_code_too(certified, monkeypatch):
    found = dm.verify(certified, rng=np.random.default_rng(3))
    assert found.ok, found.failures
    assert ChainDraws.name in found.routes
    assert "forward over the rest counter" in found.routes
    # Should the bets be wrong, the other draws are not.
    wide = dataclasses.replace(certified.achieved, lower=0.0)
    forged = with_checksum(dataclasses.replace(certified, sigma=0.94 * certified.sigma, achieved=wide))
    judged = recomputation.own_draw(certified, np.random.default_rng(4))
    monkeypatch.setattr(recomputation, "own_draw", lambda *_: judged)
    found = dm.verify(forged, rng=np.random.default_rng(5))
    assert not found.ok
    assert any("exceeds the claimed 0.001" in line for line in found.failures)
