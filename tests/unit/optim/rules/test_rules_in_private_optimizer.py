"""Update rules and the denoiser inside a PrivateOptimizer."""

import io
import math

import numpy as np
import pytest
import torch

import dpmech as dm
from dpmech.exceptions import InvalidParameterError, UnsupportedCombinationError
from dpmech.optim.private_optimizer import PrivateOptimizer
from dpmech.optim.rules.adam import AdamBC
from dpmech.optim.rules.base import Rule, SignSGD
from dpmech.optim.rules.denoiser import attach_denoiser
from dpmech.optim.rules.diagnostics import momentum_noise_ratios, noise_share
from dpmech.optim.rules.muon import Muon
from tests.support.training import give_samples, parameters

STEPS, BATCH = 8, 4
SHAPES = [(6, 9), (9, 6), (5,)]
STRATEGY = dm.LambdaCGD(STEPS, 0.7)


class Shrunk(Rule):
    """A rule from outside: the gradient over 1 plus the standard deviation of its noise."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})
        self.seen = []

    def _check_group(self, group):
        assert group["lr"] > 0.0

    def _update(self, group, members):
        self.seen.append(members.phis)
        for param, grad, phi in zip(members.params, members.grads, members.phis, strict=True):
            param.add_(grad.to(param.dtype), alpha=-group["lr"] / (1.0 + math.sqrt(phi)))


RULES = {
    "from outside": lambda params: Shrunk(params, lr=0.1),
    "corr-sgd": lambda params: torch.optim.SGD(params, lr=0.1),
    "corr-mom": lambda params: AdamBC(params, lr=0.1, subtract_noise=False, floor=0.0),
    "adam-bc": lambda params: AdamBC(params, lr=0.1),
    "sign": lambda params: SignSGD(params, lr=0.1),
    "muon-bc": lambda params: Muon(
        params,
        lr=0.1,
        momentum=0.9,
        probes=1,
        probe_seed=11,
        noise_ratios=momentum_noise_ratios(STRATEGY, 0.9),
    ),
}


def calibrated(strategy):
    return dm.calibrate_sigma(strategy, 2.0, 1e-5, participation=dm.SingleParticipation())


def private(rule, params, strategy=STRATEGY):
    inner = RULES[rule](params)
    return PrivateOptimizer(inner, calibrated(strategy), 1.0, BATCH, generator=7), inner


def advance(optimizer, params, first, last):
    for step in range(first, last):
        give_samples(params, 50 + step, BATCH)
        optimizer.step()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kill_and_resume_with_the_denoiser(rule, dtype):
    params = parameters(SHAPES, dtype)
    optimizer, inner = private(rule, params)
    attach_denoiser(inner)
    advance(optimizer, params, 0, STEPS)
    optimizer.close()

    killed = parameters(SHAPES, dtype)
    optimizer, inner = private(rule, killed)
    attach_denoiser(inner)
    advance(optimizer, killed, 0, 3)
    file = io.BytesIO()
    torch.save((optimizer.state_dict(), [param.detach() for param in killed]), file)
    optimizer.close()

    file.seek(0)
    state, values = torch.load(file, weights_only=False)
    resumed = parameters(SHAPES, dtype)
    for param, value in zip(resumed, values, strict=True):
        param.data.copy_(value)
    optimizer, inner = private(rule, resumed)
    attach_denoiser(inner)
    optimizer.load_state_dict(state)
    advance(optimizer, resumed, 3, STEPS)
    for a, b in zip(params, resumed, strict=True):
        assert torch.equal(a, b)
        assert torch.isfinite(a).all()


def test_phi_reaches_the_rule():
    params = parameters(SHAPES, torch.float32)
    optimizer, inner = private("adam-bc", params)
    advance(optimizer, params, 0, 5)
    cal = calibrated(STRATEGY)
    weights = 0.999 ** np.arange(5)[::-1]
    expected = weights @ [cal.noise_variance(t, 1.0, BATCH) for t in range(5)] / weights.sum()
    average = inner.state[params[0]]["phi_average"] / (1 - 0.999**5)
    assert average == pytest.approx(expected, rel=1e-12)
    # 113 coordinates that are almost pure noise.
    share = noise_share(inner, strategy=STRATEGY)
    assert share.coordinates == 113
    assert share.rho == pytest.approx(1.0, abs=6 * share.stderr)


def test_phi_reaches_a_rule_from_outside():
    params = parameters(SHAPES, torch.float32)
    optimizer, inner = private("from outside", params)
    advance(optimizer, params, 0, 3)
    cal = calibrated(STRATEGY)
    for step, phis in enumerate(inner.seen):
        assert phis == pytest.approx([cal.noise_variance(step, 1.0, BATCH)] * len(SHAPES), rel=1e-12)


def test_muon_bc_refuses_correlated_noise_without_ratios():
    params = parameters(SHAPES, torch.float32)
    optimizer = PrivateOptimizer(Muon(params, probes=1), calibrated(STRATEGY), 1.0, BATCH, generator=7)
    with pytest.raises(UnsupportedCombinationError, match="momentum_noise_ratios"):
        advance(optimizer, params, 0, 2)


@pytest.mark.parametrize("rule", ["corr-sgd", "corr-mom"])
def test_without_correlation_it_is_the_uncorrelated_rule(rule):
    results = []
    for strategy in (dm.LambdaCGD(STEPS, 0.0), dm.Identity(STEPS)):
        params = parameters(SHAPES, torch.float32)
        optimizer, _ = private(rule, params, strategy)
        advance(optimizer, params, 0, STEPS)
        optimizer.close()
        results.append(params)
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)


def test_corr_sgd_sums_the_noise_predicted_by_theory():
    """Plain SGD holds the prefix sum: its noise has variance sigma^2 (1 + (1 - lam)^2 (T - 1))."""
    lam, size = 0.9, 100_000
    strategy = dm.LambdaCGD(STEPS, lam)
    cal = calibrated(strategy)
    param = torch.nn.Parameter(torch.zeros(size))
    optimizer = PrivateOptimizer(torch.optim.SGD([param], lr=1.0), cal, 1.0, 1, generator=3)
    for _ in range(STEPS):
        optimizer.step()
    variance = float(param.detach().double().var())
    expected = cal.sigma**2 * (1 + (1 - lam) ** 2 * (STEPS - 1))
    # 6.2 standard errors of a variance: a false positive rate of 1e-9; 5 % off would be detected.
    assert variance == pytest.approx(expected, rel=6.2 * math.sqrt(2 / size))
    assert abs(1.05 * variance / expected - 1) > 6.2 * math.sqrt(2 / size)


def test_the_denoiser_refuses_the_private_wrapper():
    optimizer, _ = private("adam-bc", parameters(SHAPES, torch.float32))
    with pytest.raises(InvalidParameterError, match="the inner torch optimizer of a PrivateOptimizer"):
        attach_denoiser(optimizer)
