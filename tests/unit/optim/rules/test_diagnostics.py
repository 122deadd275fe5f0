import math

import numpy as np
import pytest
import scipy.stats
import torch

import dpmech as dm
from dpmech.exceptions import InvalidParameterError
from dpmech.optim.rules.adam import AdamBC
from dpmech.optim.rules.diagnostics import (
    clamp_fraction,
    effective_degrees,
    muon_quality,
    noise_share,
)
from dpmech.optim.rules.muon import Muon


def adam_on_noise(strategy, steps, size, signal=0.0, phi_scale=4.0, betas=(0.9, 0.999), **kwargs):
    """An AdamBC driven by the strategy's noise, and Phi as a private optimizer writes it."""
    rng = np.random.default_rng(0)
    noise = strategy.solve(rng.standard_normal((strategy.n, size))) * math.sqrt(phi_scale)
    param = torch.nn.Parameter(torch.zeros(size, dtype=torch.float64))
    optimizer = AdamBC([param], betas=betas, **kwargs)
    row_norms = strategy.noising_row_norms()
    for t in range(steps):
        param.grad = torch.tensor(noise[t] + signal * rng.standard_normal(size))
        optimizer.param_groups[0]["phi"] = phi_scale * float(row_norms[t]) ** 2
        optimizer.step()
    return optimizer


# Each is 6 standard errors from a false positive.
@pytest.mark.parametrize("strategy", [dm.Identity(40), dm.LambdaCGD(40, 0.9)], ids=repr)
@pytest.mark.parametrize("steps", [10, 40])
def test_rho_is_one_on_pure_noise(strategy, steps):
    optimizer = adam_on_noise(strategy, steps, 100_000)
    share = noise_share(optimizer, strategy=strategy)
    assert share.coordinates == 100_000
    assert share.stderr < 0.003
    # The chi-square law is exact for independent noise and a fit of two moments otherwise.
    allowance = 6 * share.stderr + (0.0 if isinstance(strategy, dm.Identity) else 0.003)
    assert abs(share.rho - 1.0) < allowance
    assert abs(share.rho_mean - 1.0) < allowance
    assert share.rho_raw > 1.0 + 6 * share.stderr


def test_rho_under_signal_and_over_groups():
    optimizer = adam_on_noise(dm.Identity(60), 60, 100_000, signal=2.0)
    share = noise_share(optimizer)
    assert share.rho_mean == pytest.approx(0.5, rel=0.01)
    assert share.rho == pytest.approx(0.5, rel=0.02)

    rng = np.random.default_rng(1)
    params = [torch.nn.Parameter(torch.zeros(50_000, dtype=torch.float64)) for _ in range(3)]
    optimizer = AdamBC(params)
    for _ in range(10):
        for param, deviation in zip(params, (1.0, 30.0, 1.0), strict=True):
            param.grad = torch.tensor(deviation * rng.standard_normal(50_000))
        optimizer.param_groups[0]["phi"] = [1.0, 900.0, 0.0]
        optimizer.step()
    share = noise_share(optimizer)
    assert share.coordinates == 100_000
    assert abs(share.rho - 1.0) < 6 * share.stderr


@pytest.mark.parametrize("step", [1, 2, 7, 30])
@pytest.mark.parametrize("beta2", [0.0, 0.5, 0.999])
@pytest.mark.parametrize(
    "strategy",
    [None, dm.Identity(30), dm.LambdaCGD(30, 0.9), dm.ColumnNormalized(dm.LambdaCGD(30, 0.6))],
    ids=repr,
)
def test_degrees_against_the_double_sum(step, beta2, strategy):
    noising = np.eye(30) if strategy is None else np.linalg.inv(strategy.to_dense())
    covariance = noising @ noising.T
    mean = variance = 0.0
    for s in range(step):
        mean += beta2 ** (step - 1 - s) * covariance[s, s]
        for r in range(step):
            variance += 2 * beta2 ** (2 * step - 2 - s - r) * covariance[s, r] ** 2
    assert effective_degrees(beta2, step, strategy=strategy) == pytest.approx(
        2 * mean**2 / variance, rel=1e-9
    )


def test_refused_degrees():
    with pytest.raises(InvalidParameterError, match=r"step must be an integer in \[1, 5\]"):
        effective_degrees(0.9, 6, strategy=dm.Identity(5))
    with pytest.raises(InvalidParameterError, match="beta2"):
        effective_degrees(1.0, 6)
    with pytest.raises(InvalidParameterError, match="strategy"):
        effective_degrees(0.9, 6, strategy=3)


def test_clamp_fraction_on_pure_noise_is_chi_squares():
    size, steps = 50_000, 40
    for floor in (1e-9, 0.4, 40.0):
        optimizer = adam_on_noise(dm.Identity(steps), steps, size, floor=floor)
        degrees = effective_degrees(0.999, steps)
        expected = scipy.stats.chi2.cdf(degrees * (1 + floor / 4.0), degrees)
        # The law is chi-square only up to its first two moments.
        assert clamp_fraction(optimizer) == pytest.approx(expected, abs=6 * math.sqrt(0.25 / size) + 0.002)
    assert clamp_fraction(adam_on_noise(dm.Identity(5), 5, 1000, subtract_noise=False)) == 0.0


def test_adam_probes_refuse_other_optimizers():
    param = torch.nn.Parameter(torch.ones(3))
    fresh = AdamBC([param])
    for probe in (noise_share, clamp_fraction):
        with pytest.raises(InvalidParameterError, match="an AdamBC that has made a step"):
            probe(fresh)
        with pytest.raises(InvalidParameterError, match="an AdamBC"):
            probe(torch.optim.Adam([param]))
    param.grad = torch.ones(3)
    fresh.step()
    with pytest.raises(InvalidParameterError, match="under noise"):
        noise_share(fresh)


def muon_after(steps, phi, coefs=None, steps_ns=5):
    rng = np.random.default_rng(3)
    params = [
        torch.nn.Parameter(torch.zeros(shape, dtype=torch.float64)) for shape in [(4, 6), (7,), (5, 2, 2)]
    ]
    optimizer = Muon(params, momentum=0.5, coefs=coefs, steps=steps_ns)
    seen = []
    for _ in range(steps):
        seen.append([rng.standard_normal(param.shape) for param in params])
        for param, grad in zip(params, seen[-1], strict=True):
            param.grad = torch.tensor(grad)
        for group in optimizer.param_groups:
            group["phi"] = phi
        optimizer.step()
    momenta = [
        sum(0.5 ** (steps - 1 - t) * seen[t][i] for t in range(steps)).reshape(len(params[i]), -1)
        for i in (0, 2)
    ]
    return optimizer, momenta


def test_muon_quality_against_singular_values():
    optimizer, momenta = muon_after(3, 0.1)
    expected = []
    for matrix in momenta:
        values = np.linalg.svd(matrix)[1]
        x = values / np.linalg.norm(values)
        for _ in range(5):
            x = x * (1 + (1 - x**2) / 2 + 3 * (1 - x**2) ** 2 / 8)
        expected.append(float(values @ x / values.sum()))
    assert muon_quality(optimizer) == pytest.approx(expected, rel=1e-10)
    sharp, _ = muon_after(3, 0.1, steps_ns=20)
    assert muon_quality(sharp) == pytest.approx([1.0, 1.0], rel=1e-9)
    zero = Muon([torch.nn.Parameter(torch.ones(2, 2))])
    zero.param_groups[0]["params"][0].grad = torch.zeros(2, 2)
    zero.step()
    assert muon_quality(zero) == (0.0,)


def test_muon_probes_refuse_other_optimizers():
    param = torch.nn.Parameter(torch.ones(2, 2))
    with pytest.raises(InvalidParameterError, match="has made a step on a matrix"):
        muon_quality(Muon([param]))
    with pytest.raises(InvalidParameterError, match="a Muon"):
        muon_quality(torch.optim.SGD([param], lr=0.1))
