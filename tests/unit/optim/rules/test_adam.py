import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpmech.exceptions import InvalidParameterError
from dpmech.optim.rules.adam import AdamBC
from dpmech.optim.rules.base import SignSGD
from tests.support.training import apply_gradients, normal_gradients, parameters

SHAPES = [(7, 5), (11,), (), (2, 3, 4)]


def gradients(steps, seed=0, shapes=SHAPES):
    """Of all orders of magnitude from 1e-3 to 10."""
    return normal_gradients(shapes, steps, seed=seed, scale=lambda rng: 10.0 ** rng.uniform(-3, 1))


def reference(params, grads, phis, *, lr, betas, eps, floor, subtract, low_pass, decay, decoupled):
    """The definition, coordinate by coordinate, with weights spelled out instead of recursions."""
    out = []
    for i, start in enumerate(params):
        p = start.detach().double().numpy().copy()
        seen, centred = [], []
        for t in range(len(grads)):
            g = grads[t][i].copy()
            if decoupled:
                p *= 1 - lr * decay
            else:
                g += decay * p
            seen.append(g)
            w1 = np.array([betas[0] ** (t - s) for s in range(t + 1)])
            w2 = np.array([betas[1] ** (t - s) for s in range(t + 1)])
            m = sum(w * x for w, x in zip(w1, seen, strict=True)) / w1.sum()
            v = sum(w * x**2 for w, x in zip(w2, seen, strict=True)) / w2.sum()
            phi = sum(w * phis[s][i] for s, w in enumerate(w2)) / w2.sum()
            centred.append(m)
            w3 = np.array([low_pass ** (t - s) for s in range(t + 1)])
            m = sum(w * x for w, x in zip(w3, centred, strict=True)) / w3.sum()
            p = p - lr * m / (np.sqrt(np.maximum(v - phi * subtract, floor)) + eps)
        out.append(p)
    return out


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("decoupled", [True, False])
@pytest.mark.parametrize("maximize", [True, False])
def test_without_noise_and_floor_it_is_torchs_adam(dtype, tolerance, weight_decay, decoupled, maximize):
    grads = gradients(60)
    mine, theirs = parameters(SHAPES, dtype), parameters(SHAPES, dtype)
    kind = torch.optim.AdamW if decoupled else torch.optim.Adam
    common = {"lr": 1e-3, "weight_decay": weight_decay, "maximize": maximize}
    a = apply_gradients(AdamBC(mine, floor=0.0, decoupled_weight_decay=decoupled, **common), mine, grads)
    b = apply_gradients(kind(theirs, **common), theirs, grads)
    for x, y in zip(a, b, strict=True):
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)


@given(
    betas=st.tuples(st.floats(0, 0.999), st.floats(0, 0.9999)),
    floor=st.sampled_from([0.0, 1e-6, 0.1]),
    subtract=st.booleans(),
    low_pass=st.sampled_from([0.0, 0.5, 0.9]),
    decay=st.sampled_from([0.0, 0.2]),
    decoupled=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_it_is_the_definition(betas, floor, subtract, low_pass, decay, decoupled, seed):
    grads = gradients(6, seed)
    rng = np.random.default_rng(seed)
    # A floor below every squared gradient never applies, one above all always: include some of each.
    phis = [(10.0 ** rng.uniform(-6, 0, len(SHAPES))).tolist() for _ in range(6)]
    params = parameters(SHAPES, torch.float64)
    expected = reference(
        params,
        grads,
        phis,
        lr=0.01,
        betas=betas,
        eps=1e-3,
        floor=floor,
        subtract=subtract,
        low_pass=low_pass,
        decay=decay,
        decoupled=decoupled,
    )
    optimizer = AdamBC(
        params,
        lr=0.01,
        betas=betas,
        eps=1e-3,
        floor=floor,
        subtract_noise=subtract,
        low_pass=low_pass,
        weight_decay=decay,
        decoupled_weight_decay=decoupled,
    )
    for x, y in zip(apply_gradients(optimizer, params, grads, phis), expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-7, atol=1e-9)


def test_the_average_phi_is_subtracted_not_the_current_one():
    params = parameters(SHAPES, torch.float64)
    optimizer = AdamBC(params, betas=(0.9, 0.9))
    phis = [1.0, 1.81, 1.81]
    apply_gradients(optimizer, params, gradients(3), phis)
    state = optimizer.state[params[0]]
    weights = np.array([0.81, 0.9, 1.0])
    average = state["phi_average"] / (1 - 0.9**3)
    assert average == pytest.approx(weights @ phis / weights.sum(), rel=1e-13)
    assert average < 0.9 * phis[-1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_both_betas_zero_is_sign_descent(dtype):
    grads = gradients(20)
    grads[3][0][2, 2] = 0.0
    grads[5][0][1, 1] = -1e-30
    mine, theirs = parameters(SHAPES, dtype), parameters(SHAPES, dtype)
    adam = AdamBC(mine, lr=0.01, betas=(0.0, 0.0), eps=0.0, floor=0.0, subtract_noise=False)
    a = apply_gradients(adam, mine, grads)
    b = apply_gradients(SignSGD(theirs, lr=0.01), theirs, grads)
    for i, (x, y) in enumerate(zip(a, b, strict=True)):
        if i == 0 and dtype == torch.float32:
            # The square of 1e-30 underflows in float32: that coordinate does not move.
            assert abs(x[1, 1] - y[1, 1]) == pytest.approx(0.01, rel=1e-4)
            x[1, 1] = y[1, 1]
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-6 if dtype == torch.float32 else 1e-15)


def test_sign_descent_moves_by_the_rate_and_keeps_nan():
    param = torch.nn.Parameter(torch.zeros(5))
    optimizer = SignSGD([param], lr=0.5, weight_decay=0.1)
    param.grad = torch.tensor([2.0, -1e-30, 0.0, float("nan"), float("inf")])
    optimizer.step()
    assert param[:3].tolist() == [-0.5, 0.5, 0.0]
    assert torch.isnan(param[3:]).all()


def test_sign_descent_with_momentum_and_decay():
    params = parameters([(4, 4)], torch.float64)
    start = params[0].detach().numpy().copy()
    grads = gradients(5, shapes=[(4, 4)])
    optimizer = SignSGD(params, lr=0.1, momentum=0.7, weight_decay=0.2)
    found = apply_gradients(optimizer, params, grads)[0]
    p = start
    for t in range(5):
        average = sum(0.7 ** (t - s) * grads[s][0] for s in range(t + 1))
        p = p * (1 - 0.1 * 0.2) - 0.1 * np.sign(average)
    np.testing.assert_allclose(found, p, rtol=1e-13)


def test_zero_gradients_do_not_move_and_an_active_floor_is_momentum_sgd():
    params = parameters([(3, 3)], torch.float32)
    start = params[0].detach().clone()
    apply_gradients(
        AdamBC(params, eps=0.0, floor=0.0, subtract_noise=False), params, [[np.zeros((3, 3))]] * 3
    )
    assert torch.equal(params[0], start)

    grads = gradients(4, shapes=[(3, 3)])
    params = parameters([(3, 3)], torch.float64)
    start = params[0].detach().numpy().copy()
    found = apply_gradients(AdamBC(params, lr=0.1, eps=0.0, floor=1e6), params, grads, [1.0] * 4)[0]
    steps = [
        sum(0.9 ** (t - s) * grads[s][0] for s in range(t + 1)) / sum(0.9**s for s in range(t + 1))
        for t in range(4)
    ]
    np.testing.assert_allclose(found, start - 0.1 / 1e3 * sum(steps), rtol=1e-13)


def test_subtracting_to_zero_without_floor_and_eps_is_refused():
    params = parameters([(3,)], torch.float32)
    optimizer = AdamBC(params, eps=0.0, floor=0.0)
    apply_gradients(optimizer, params, [[np.ones(3)]], [0.0])
    with pytest.raises(InvalidParameterError, match="not both zero where noise is subtracted"):
        apply_gradients(optimizer, params, [[np.ones(3)]], [1.0])


def test_bfloat16_parameters_lose_only_their_rounding():
    grads = gradients(1)
    grads = [[torch.tensor(g).bfloat16().double().numpy() for g in grads[0]]]
    narrow = parameters(SHAPES, torch.bfloat16)
    wide = [torch.nn.Parameter(param.detach().float()) for param in narrow]
    apply_gradients(AdamBC(narrow, lr=0.1), narrow, grads, [1e-6])
    apply_gradients(AdamBC(wide, lr=0.1), wide, grads, [1e-6])
    for a, b in zip(narrow, wide, strict=True):
        assert torch.equal(a, b.bfloat16())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("betas", (0.9,)),
        ("betas", (0.9, 1.0)),
        ("betas", "ab"),
        ("eps", -1e-8),
        ("floor", -1.0),
        ("floor", float("inf")),
        ("low_pass", 1.0),
        ("subtract_noise", 1),
        ("decoupled_weight_decay", None),
    ],
)
def test_refused_arguments(name, value):
    with pytest.raises(InvalidParameterError, match=name):
        AdamBC([torch.nn.Parameter(torch.ones(1))], **{name: value})


def test_sign_refuses_a_bad_momentum():
    with pytest.raises(InvalidParameterError, match="momentum"):
        SignSGD([torch.nn.Parameter(torch.ones(1))], momentum=1.0)
