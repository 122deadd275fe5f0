import io

import pytest
import torch

from dpmech.exceptions import InvalidParameterError
from dpmech.optim.rules.adam import AdamBC
from dpmech.optim.rules.base import SignSGD
from dpmech.optim.rules.muon import QUINTIC_COEFS, Muon
from tests.support.training import apply_gradients, normal_gradients, parameters

RULES = {
    "adam": lambda params: AdamBC(params, lr=0.01, low_pass=0.5, weight_decay=0.1),
    "sign": lambda params: SignSGD(params, lr=0.01, momentum=0.9),
    "muon": lambda params: Muon(params, lr=0.01, probes=2, probe_seed=7, weight_decay=0.1),
    "muon quintic": lambda params: Muon(params, lr=0.01, coefs=QUINTIC_COEFS, nesterov=True),
}
SHAPES = [(3, 4), (4, 3), (4, 4), (2, 3, 2), (5,), ()]


def make(rule, dtype=torch.float32):
    params = parameters(SHAPES, dtype, seed=3)
    return params, RULES[rule](params)


def run(optimizer, params, steps, phi=0.04, first=0):
    """Steps `first` to `first + steps` of one sequence of gradients; returns the weights."""
    grads = normal_gradients(SHAPES, first + steps)[first:]
    apply_gradients(optimizer, params, grads, [phi] * steps)
    return [param.detach().clone() for param in params]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_resume_is_bit_for_bit(rule, dtype):
    params, optimizer = make(rule, dtype)
    whole = run(optimizer, params, 6)

    params, optimizer = make(rule, dtype)
    run(optimizer, params, 3)
    file = io.BytesIO()
    torch.save({"optimizer": optimizer.state_dict(), "params": params}, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    fresh, other = make(rule, dtype)
    for param, old in zip(fresh, loaded["params"], strict=True):
        param.data.copy_(old)
    other.load_state_dict(loaded["optimizer"])
    resumed = run(other, fresh, 3, first=3)
    for a, b in zip(whole, resumed, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("rule", RULES)
def test_state_is_wide_and_never_shared(rule):
    params, optimizer = make(rule, torch.bfloat16)
    run(optimizer, params, 2)
    fresh, other = make(rule, torch.bfloat16)
    other.load_state_dict(optimizer.state_dict())
    for param, twin in zip(params, fresh, strict=True):
        for key, value in optimizer.state[param].items():
            mine = other.state[twin][key]
            if isinstance(value, torch.Tensor):
                assert mine.dtype == torch.float32
                assert torch.equal(mine, value)
                assert mine.data_ptr() != value.data_ptr()
            else:
                assert mine == value


def test_load_respects_the_callers_hook():
    params, optimizer = make("sign")
    run(optimizer, params, 1)
    fresh, other = make("sign")

    def zeroed(_, state_dict):
        state = {
            i: {key: torch.zeros_like(value) for key, value in entry.items()}
            for i, entry in state_dict["state"].items()
        }
        return {**state_dict, "state": state}

    other.register_load_state_dict_pre_hook(zeroed)
    other.load_state_dict(optimizer.state_dict())
    for param in fresh:
        assert not other.state[param]["exp_avg"].any()


@pytest.mark.parametrize("rule", RULES)
def test_maximize_ascends(rule):
    down, descending = make(rule)
    up, ascending = make(rule)
    for group in ascending.param_groups:
        group["maximize"] = True
        group["weight_decay"] = 0.0
    for group in descending.param_groups:
        group["weight_decay"] = 0.0
    start = [param.detach().clone() for param in down]
    run(descending, down, 1, phi=0.0)
    run(ascending, up, 1, phi=0.0)
    for a, b, origin in zip(down, up, start, strict=True):
        torch.testing.assert_close(a.detach() - origin, origin - b.detach(), rtol=1e-4, atol=1e-6)
        assert not torch.equal(a, origin)


@pytest.mark.parametrize("rule", RULES)
def test_closure_and_missing_gradients(rule):
    params, optimizer = make(rule)
    before = [param.detach().clone() for param in params]

    def closure():
        assert torch.is_grad_enabled()
        optimizer.zero_grad()
        loss = (params[0] ** 2).sum()
        loss.backward()
        return loss.item()

    loss = optimizer.step(closure)
    assert loss == pytest.approx(float((before[0] ** 2).sum()))
    assert not torch.equal(params[0], before[0])
    for param, old in zip(params[1:], before[1:], strict=True):
        assert torch.equal(param, old)
    assert optimizer.step() is None


@pytest.mark.parametrize("rule", RULES)
def test_refused_gradients(rule):
    params, optimizer = make(rule)
    params[0].grad = torch.eye(4)[:3].to_sparse()
    with pytest.raises(InvalidParameterError, match=r"gradient must be dense"):
        optimizer.step()
    strange = torch.nn.Parameter(torch.ones(2, 2, dtype=torch.complex64))
    other = RULES[rule]([strange])
    strange.grad = torch.ones_like(strange)
    with pytest.raises(InvalidParameterError, match="real floating-point dtype"):
        other.step()


@pytest.mark.parametrize("phi", [-1.0, float("nan"), float("inf"), "0", [0.0], True])
def test_refused_phi(phi):
    params, optimizer = make("adam")
    for param in params:
        param.grad = torch.ones_like(param)
    optimizer.param_groups[0]["phi"] = phi
    with pytest.raises(InvalidParameterError, match="phi"):
        optimizer.step()


@pytest.mark.parametrize(
    "bad",
    [
        {"lr": -1.0},
        {"lr": float("nan")},
        {"lr": torch.tensor(0.1)},
        {"weight_decay": -0.1},
        {"maximize": 1},
    ],
)
@pytest.mark.parametrize("kind", [AdamBC, SignSGD, Muon])
def test_refused_hyperparameters(kind, bad):
    param = torch.nn.Parameter(torch.ones(2, 2))
    with pytest.raises(InvalidParameterError, match=next(iter(bad))):
        kind([param], **bad)
    with pytest.raises(InvalidParameterError, match=next(iter(bad))):
        kind([{"params": [param], **bad}])


def test_works_with_a_scheduler_and_named_parameters():
    layer = torch.nn.Linear(3, 2)
    optimizer = Muon(layer.named_parameters(), lr=1.0, aux_lr=0.5)
    assert [group["param_names"] for group in optimizer.param_groups] == [["weight"], ["bias"]]
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1)
    for param in layer.parameters():
        param.grad = torch.ones_like(param)
    optimizer.step()
    scheduler.step()
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.1, 0.05])
