import io
import itertools
import math

import numpy as np
import pytest
import torch

import dpmech as dm
from dpmech.exceptions import HorizonError, InvalidParameterError, UnsupportedCombinationError
from dpmech.optim.rules.diagnostics import momentum_noise_ratios
from dpmech.optim.rules.muon import QUINTIC_COEFS, Muon, MuonScale, extrapolated, orthogonalize, taylor_coefs
from tests.support import training

SHAPES = [(4, 6), (6, 4), (4, 6), (5, 5), (3, 2, 4), (7,), ()]


def parameters(shapes=SHAPES):
    return training.parameters(shapes, torch.float64)


def drive(optimizer, params, steps, phi=0.0):
    """Take steps with normal gradients, which are returned; `phi` is for all steps, or a list of each."""
    grads = training.normal_gradients([param.shape for param in params], steps)
    training.apply_gradients(optimizer, params, grads, phi if isinstance(phi, list) else [phi] * steps)
    return grads


def newton_schulz(matrix, coefs, steps):
    """By the singular values: an oracle without matrix products."""
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    x = values / np.linalg.norm(values)
    for _ in range(steps):
        x = x * np.polyval(coefs[::-1], 1 - x**2)
    return left @ np.diag(x) @ right


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("coefs", [taylor_coefs(2), QUINTIC_COEFS])
@pytest.mark.parametrize("scale", list(MuonScale))
def test_it_is_the_algorithm(nesterov, coefs, scale):
    params = parameters()
    start = [param.detach().numpy().copy() for param in params]
    optimizer = Muon(
        params,
        lr=0.1,
        momentum=0.8,
        nesterov=nesterov,
        coefs=coefs,
        scale=scale,
        weight_decay=0.3,
        aux_lr=0.02,
    )
    grads = drive(optimizer, params, 4)
    twins = [torch.nn.Parameter(torch.tensor(p)) for p in start[5:]]
    aux = torch.optim.AdamW(twins, lr=0.02, weight_decay=0.3)
    for step in grads:
        for param, grad in zip(twins, step[5:], strict=True):
            param.grad = torch.tensor(grad)
        aux.step()
    for param, twin in zip(params[5:], twins, strict=True):
        torch.testing.assert_close(param, twin, rtol=1e-12, atol=1e-14)
    for i, p in enumerate(start[:5]):
        rows, columns = p.shape[0], p[0].size
        factor = {
            MuonScale.NONE: 1.0,
            MuonScale.RECTANGULAR: math.sqrt(max(1, rows / columns)),
            MuonScale.MATCH_RMS: 0.2 * math.sqrt(max(rows, columns)),
        }[scale]
        for t in range(4):
            m = sum(0.8 ** (t - s) * grads[s][i] for s in range(t + 1))
            if nesterov:
                m = grads[t][i] + 0.8 * m
            o = newton_schulz(m.reshape(rows, columns), coefs, 5).reshape(p.shape)
            p = p * (1 - 0.1 * 0.3) - 0.1 * factor * o  # noqa: PLW2901 - the running parameter
        np.testing.assert_allclose(params[i].detach().numpy(), p, rtol=1e-9, atol=1e-11)


def test_shapes_and_their_transposes_share_a_batch(monkeypatch):
    from dpmech.optim.rules import muon

    batches = []

    def counted(matrices, **kwargs):
        batches.append(tuple(matrices.shape))
        return orthogonalize(matrices, **kwargs)

    monkeypatch.setattr(muon, "orthogonalize", counted)
    params = parameters()
    drive(Muon(params), params, 1)
    assert sorted(batches) == [(1, 3, 8), (1, 5, 5), (3, 4, 6)]


def test_groups_are_split_by_dimension():
    params = parameters()
    optimizer = Muon(params, lr=0.1, aux_lr=0.5)
    assert [group["use_muon"] for group in optimizer.param_groups] == [True, False]
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.5]
    assert [len(group["params"]) for group in optimizer.param_groups] == [5, 2]
    embedding = torch.nn.Parameter(torch.ones(3, 3))
    optimizer.add_param_group({"params": embedding, "use_muon": False, "lr": 0.7})
    assert optimizer.param_groups[2]["lr"] == 0.7
    embedding.grad = torch.ones(3, 3)
    optimizer.step()
    assert torch.allclose(embedding, torch.tensor(0.3))
    with pytest.raises(InvalidParameterError, match="use_muon"):
        Muon([{"params": params, "use_muon": True}])
    only = Muon([torch.nn.Parameter(torch.ones(3))], lr=0.2)
    assert [(group["use_muon"], group["lr"]) for group in only.param_groups] == [(False, 0.2)]
    with pytest.raises(InvalidParameterError, match="an ordered collection"):
        Muon([{"params": set(params)}])


@pytest.mark.parametrize("nesterov", [False, True])
def test_without_ratios_the_noise_is_independent(nesterov):
    ratios = momentum_noise_ratios(dm.Identity(6), 0.9, nesterov=nesterov)
    results = []
    for given in (None, ratios):
        params = parameters()
        optimizer = Muon(
            params, momentum=0.9, nesterov=nesterov, probes=2, probe_seed=5, noise_ratios=given, lr=0.1
        )
        drive(optimizer, params, 6, phi=0.3)
        results.append([param.detach().clone() for param in params])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_probes_have_the_deviation_of_the_buffers_noise(monkeypatch):
    from dpmech.optim.rules import muon

    seen = []

    def recorded(output, batch, probes):
        drawn = list(probes)
        seen.append(torch.stack(drawn))
        return extrapolated(output, batch, drawn)

    monkeypatch.setattr(muon, "extrapolated", recorded)
    strategy = dm.LambdaCGD(3, 0.7)
    ratios = momentum_noise_ratios(strategy, 0.9)
    params = parameters(shapes=[(60, 60), (60, 60)])
    optimizer = Muon(params, momentum=0.9, probes=20, probe_seed=1, noise_ratios=ratios)
    row_norms = strategy.noising_row_norms()
    phis = [[0.5 * float(norm) ** 2, 2.0 * float(norm) ** 2] for norm in row_norms]
    drive(optimizer, params, 3, phi=phis)
    for t, draws in enumerate(seen):
        for i in range(2):
            # 72,000 draws: relative standard error 0.0026, so 6 of them are 1.6 %.
            assert float(draws[:, i].std()) == pytest.approx(math.sqrt(phis[t][i] * ratios[t]), rel=0.016)
    assert not torch.equal(seen[0][0, 0] / seen[0].std(), seen[1][0, 0] / seen[1].std())
    assert abs(float(torch.corrcoef(torch.stack([s[:, 0].flatten() for s in seen]))[0, 1])) < 0.025


def test_groups_use_different_probes(monkeypatch):
    from dpmech.optim.rules import muon

    seen = []

    def recorded(output, batch, probes):
        drawn = list(probes)
        seen.append(drawn[0])
        return extrapolated(output, batch, drawn)

    monkeypatch.setattr(muon, "extrapolated", recorded)
    params = parameters(shapes=[(4, 4), (4, 4), (2, 2)])
    optimizer = Muon([{"params": [params[0], params[2]]}, {"params": params[1]}], probes=1, probe_seed=1)
    drive(optimizer, params, 1, phi=1.0)
    assert len(seen) == 3
    assert not torch.equal(seen[0], seen[2])
    assert not torch.equal(seen[0][0, :2, :2], seen[1][0])


def test_without_noise_probes_have_no_effect():
    results = []
    for probes in (0, 3):
        params = parameters()
        drive(Muon(params, probes=probes), params, 2)
        results.append(params)
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)


def test_a_changing_phi_needs_ratios():
    params = parameters()
    optimizer = Muon(params, probes=1)
    with pytest.raises(UnsupportedCombinationError, match=r"momentum_noise_ratios\(strategy, momentum\)"):
        drive(optimizer, params, 2, phi=[1.0, 1.81])
    drive(Muon(params), params, 2, phi=[1.0, 1.81])


def test_past_the_ratios_it_stops():
    params = parameters()
    optimizer = Muon(params, probes=1, noise_ratios=[1.0, 1.5])
    with pytest.raises(HorizonError, match=r"step must be in \[0, 1\], got 2"):
        drive(optimizer, params, 3, phi=1.0)


def test_the_seed_is_generated_stored_and_used():
    def final(seed, resume_from=None):
        params = parameters()
        optimizer = Muon(params, probes=1, probe_seed=seed)
        if resume_from is not None:
            optimizer.load_state_dict(resume_from)
        drive(optimizer, params, 3, phi=0.5)
        return params[0].detach()

    assert torch.equal(final(3), final(3))
    assert not torch.equal(final(3), final(4))
    assert not torch.equal(final(None), final(None))
    fresh = parameters()
    saved = Muon(fresh, probes=1).state_dict()
    assert torch.equal(final(1, saved), final(2, saved))


def test_state_dict_holds_plain_data():
    params = parameters()
    optimizer = Muon(
        [{"params": params, "scale": MuonScale.MATCH_RMS, "noise_ratios": np.ones(9)}],
        probes=1,
        compute_dtype=torch.bfloat16,
    )
    drive(optimizer, params, 2, phi=0.5)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    other = Muon(parameters())
    other.load_state_dict(torch.load(file, weights_only=True))
    assert other.param_groups[0]["scale"] == "match_rms"
    assert other.param_groups[0]["noise_ratios"] == [1.0] * 9


# ---- the bias, by quadrature


def gauss_hermite(dimension, points):
    nodes, weights = np.polynomial.hermite_e.hermegauss(points)
    weights = weights / weights.sum()
    grid = np.array(list(itertools.product(nodes, repeat=dimension)))
    return torch.tensor(grid), torch.tensor(
        [math.prod(w) for w in itertools.product(weights, repeat=dimension)]
    )


def mean_outputs(output, h, rho, points):
    """(E output(h + noise), E of the corrected output), noise and probe by tensor quadrature."""
    size = h.numel()
    nodes, weights = gauss_hermite(2 * size, points)
    noise = rho * nodes[:, :size].reshape(-1, *h.shape)
    probe = rho * nodes[:, size:].reshape(-1, *h.shape)
    weights = weights[:, None, None]
    plain = (weights * output(h + noise)).sum(0)
    corrected = (weights * extrapolated(output, h + noise, [probe])).sum(0)
    return plain, corrected


def test_bias_falls_as_the_fourth_power_against_the_second():
    h = torch.tensor([[1.0, 0.7]], dtype=torch.float64)

    def output(matrices):
        return orthogonalize(matrices, coefs=taylor_coefs(2), steps=1)

    biases = []
    for rho in (0.02, 0.04, 0.08):
        plain, corrected = mean_outputs(output, h, rho, 14)
        exact = output(h[None])[0]
        biases.append((float((plain - exact).norm()), float((corrected - exact).norm())))
    for (small, small_bc), (large, large_bc) in itertools.pairwise(biases):
        assert math.log2(large / small) == pytest.approx(2.0, abs=0.03)
        assert math.log2(large_bc / small_bc) == pytest.approx(4.0, abs=0.1)
    assert biases[0][1] < 0.01 * biases[0][0]


def test_two_by_two_bias_and_the_heat_semigroup():
    h = torch.tensor([[0.8, -0.3], [0.2, 0.6]], dtype=torch.float64)

    def output(matrices):
        return orthogonalize(matrices, coefs=taylor_coefs(2), steps=2)

    def heat(rho, points=10):
        nodes, weights = gauss_hermite(4, points)
        return (weights[:, None, None] * output(h + rho * nodes.reshape(-1, 2, 2))).sum(0)

    exact = output(h[None])[0]
    plain, corrected = mean_outputs(output, h, 0.03, 5)
    torch.testing.assert_close(plain, heat(0.03), rtol=0, atol=1e-8)
    torch.testing.assert_close(corrected, 2 * heat(0.03) - heat(math.sqrt(2) * 0.03), rtol=0, atol=1e-8)
    assert float((corrected - exact).norm()) < 0.05 * float((plain - exact).norm())


def test_a_cubic_is_corrected_exactly():
    h = torch.tensor([[0.3, -0.1], [0.05, 0.2]], dtype=torch.float64)

    def output(matrices):
        return orthogonalize(matrices, coefs=taylor_coefs(1), steps=1, shrink_only=True)

    plain, corrected = mean_outputs(output, h, 0.02, 4)
    exact = output(h[None])[0]
    # Q(X) = 1.5 X - 0.5 X X^T X, whose Laplacian is -(m + n + 1) X.
    torch.testing.assert_close(plain - exact, -0.5 * 0.02**2 * 5 * h, rtol=1e-9, atol=0)
    torch.testing.assert_close(corrected, exact, rtol=0, atol=1e-15)


# ---- noise in the buffer

STRATEGIES = [
    dm.Identity(9),
    dm.LambdaCGD(9, 0.8),
    dm.SquareRoot(9, 4),
    dm.Diagonal([1.0, 2.0, 0.5]),
    dm.ColumnNormalized(dm.LambdaCGD(9, 0.6)),
    dm.Dense(np.tril(np.random.default_rng(0).random((300, 300))) / 40 + np.eye(300)),
]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.95])
@pytest.mark.parametrize("nesterov", [False, True])
def test_noise_ratios_against_dense_matrices(strategy, momentum, nesterov):
    n = strategy.n
    noising = np.linalg.inv(strategy.to_dense())
    weights = np.array([[momentum ** (t - s) if s <= t else 0.0 for s in range(n)] for t in range(n)])
    if nesterov:
        weights = np.eye(n) + momentum * weights
    expected = ((weights @ noising) ** 2).sum(1) / (noising**2).sum(1)
    np.testing.assert_allclose(
        momentum_noise_ratios(strategy, momentum, nesterov=nesterov), expected, rtol=1e-9
    )


def test_refused_ratios():
    with pytest.raises(InvalidParameterError, match="strategy"):
        momentum_noise_ratios("identity", 0.9)
    with pytest.raises(InvalidParameterError, match="momentum"):
        momentum_noise_ratios(dm.Identity(3), 1.0)
    with pytest.raises(InvalidParameterError, match="nesterov"):
        momentum_noise_ratios(dm.Identity(3), 0.5, nesterov=1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("momentum", 1.0),
        ("nesterov", 1),
        ("coefs", (1.0,)),
        ("steps", -1),
        ("scale", "none"),
        ("shrink_only", None),
        ("probes", -1),
        ("probe_seed", -1),
        ("noise_ratios", [1.0, 0.0]),
        ("noise_ratios", "ab"),
        ("compute_dtype", torch.int8),
        ("compute_dtype", "bfloat16"),
        ("aux_lr", -1.0),
        ("aux_betas", (0.9, 1.0)),
        ("aux_eps", -1.0),
    ],
)
def test_refused_arguments(name, value):
    with pytest.raises(InvalidParameterError, match=name):
        Muon([torch.nn.Parameter(torch.ones(2, 2))], **{name: value})


def test_refused_scale_of_a_group():
    with pytest.raises(InvalidParameterError, match="a MuonScale"):
        Muon([{"params": [torch.nn.Parameter(torch.ones(2, 2))], "scale": "huge"}])
