"""Blocks of a clipping belong to parameters, independent of their order in an optimizer."""

import itertools
from fractions import Fraction

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import dpmech as dm
from dpmech.optim import (
    Muon,
    PerLayerClipping,
    PerMatrixClipping,
    load_checkpoint,
    make_private,
    save_checkpoint,
)
from tests.support.training import classification, classifier

F = nn.functional
CAL = dm.calibrate_sigma(dm.Identity(6), 8.0, 1e-5, dataset_size=6)
NORMS = {"0.weight": 0.5, "0.bias": 0.1, "2.weight": 0.4, "2.bias": 0.2}
SIZES = [20 * 80, 80, 80 * 5, 5]


def by_kind(params):
    """Two groups, as for AdamW: matrices, which are decayed, come first."""
    return [{"params": [p for p in params if p.ndim == many], "lr": 1e-3} for many in (2, 1)]


OPTIMIZERS = {
    "one group": lambda params: torch.optim.SGD(params, lr=1e-3),
    "turned": lambda params: torch.optim.SGD(params[::-1], lr=1e-3),
    "two groups": lambda params: torch.optim.AdamW(by_kind(params)),
    "muon": lambda params: Muon(params, lr=1e-3),
}


def large(model, x, y):
    """With gradients that are longer than every norm."""
    return 1e4 * F.cross_entropy(model(x), y)


def clipping_of(style, keys, model):
    """Norms of 0.weight, 0.bias, ... in one of the ways to specify blocks."""
    layers = None
    if keys != "order":
        named = list(model.named_parameters())[::-1]
        layers = {name if keys == "names" else param: list(NORMS).index(name) for name, param in named}
    if style == "layer":
        return PerLayerClipping(list(NORMS.values()), layers)
    blocks = dm.ledgers.BlockClipping.from_joint(list(NORMS.values()), CAL.sigma, dimensions=SIZES)
    return PerMatrixClipping(blocks, layers)


def made(optimizer, style, keys, way, generator):
    model = classifier(widths=(20, 80, 5))
    clipping = clipping_of(style, keys, model)
    parts = make_private(
        model,
        OPTIMIZERS[optimizer](list(model.parameters())),
        DataLoader(classification(6, 20, 5), batch_size=1),
        CAL,
        clipping=clipping,
        generator=generator,
        loss=None if way == "hooks" else large,
        clipping_mode="auto" if way == "hooks" else way,
    )
    return model, *parts


def take_in(private, optimizer, batch, way):
    if way == "hooks":
        optimizer.zero_grad()
        large(private, *batch).backward()
        optimizer.accumulate()
    else:
        private.backward(*batch)


@pytest.mark.parametrize("way", ["hooks", "ghost", "per_example"])
@pytest.mark.parametrize("style", ["layer", "matrix"])
@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
def test_every_parameter_has_its_norm_and_noise(optimizer, style, way):
    for seed, keys in enumerate(["order", "names", "parameters"]):
        model, private, dp, loader = made(optimizer, style, keys, way, seed)
        take_in(private, dp, next(iter(loader)), way)
        order = [id(param) for group in dp.param_groups for param in group["params"]]
        sums = dp.state_dict()["dpmech"]["batch"]["sums"]
        phis = dp.phi if isinstance(dp.phi, tuple) else (dp.phi,) * 4
        blocks = dm.ledgers.BlockClipping.from_joint(list(NORMS.values()), CAL.sigma, dimensions=SIZES)
        stddevs = blocks.noise_stddevs if style == "matrix" else [CAL.sigma * dp.clip_norm] * 4
        for (name, param), stddev in zip(model.named_parameters(), stddevs, strict=True):
            at = order.index(id(param))
            # One example, longer than its norm everywhere.
            assert float(sums[at].norm()) == pytest.approx(NORMS[name], rel=1e-3)
            assert phis[at] == pytest.approx(stddev**2, rel=1e-9)
        dp.step()
        dp.close()


def test_a_checkpoint_stores_the_same_blocks_in_every_process(tmp_path):
    _, *parts = made("muon", "matrix", "names", "ghost", 1)
    take_in(parts[0], parts[1], next(iter(parts[2])), "ghost")
    parts[1].step()
    save_checkpoint(tmp_path / "run.pt", *parts)
    parts[1].close()
    for keys in ("parameters", "order"):
        _, *again = made("muon", "matrix", keys, "ghost", 1)
        load_checkpoint(tmp_path / "run.pt", *again)
        assert again[1].record.steps == 1
        again[1].close()


@pytest.mark.parametrize(
    ("layers", "match"),
    [
        ({"0.weight": 0, "0.bias": 1, "2.weight": 2, "bias": 3}, r"names of trained parameters: 0\.weight"),
        ({"0.weight": 0, "0.bias": 1, "2.weight": 2}, r"every number from 0 to 3"),
        ({"0.weight": 0, "0.bias": 1, "2.weight": 2, 7: 3}, "their names, as keys"),
    ],
)
def test_keys_that_do_not_fit_are_named(layers, match):
    model = classifier(widths=(20, 80, 5))
    with pytest.raises(dm.InvalidParameterError, match=match):
        make_private(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            DataLoader(classification(6, 20, 5)),
            CAL,
            clipping=PerLayerClipping(list(NORMS.values()), layers),
            loss=large,
        )


def test_keys_of_other_parameters_and_missing_ones():
    model, other = classifier(widths=(20, 80, 5)), classifier(widths=(20, 80, 5))
    params = list(model.parameters())
    for layers, match in (
        (dict(zip(other.parameters(), range(4), strict=True)), "without 0.weight, 0.bias, 2.weight"),
        (dict(zip([*params, nn.Parameter(torch.zeros(1))], [0, 1, 2, 3, 3], strict=True)), "that get noise"),
        (dict(zip(["0.weight", *params], [0, 0, 1, 2, 3], strict=True)), "one key per parameter"),
    ):
        clipping = PerLayerClipping(list(NORMS.values()), layers)
        with pytest.raises(dm.InvalidParameterError, match=match):
            clipping.over(params, list(NORMS))
    by_name = PerLayerClipping([1.0], dict.fromkeys(NORMS, 0))
    with pytest.raises(dm.InvalidParameterError, match="no model is known"):
        by_name.blocks(params)


def test_blocks_of_sigma_root_k_are_not_refused_for_a_rounding():
    """The applied noise has at least the certified joint sigma, in rational numbers."""
    refused_for_roundings = 0
    for count, sigma in itertools.product(range(2, 60), (CAL.sigma, 0.7, 1.0 / 3.0)):
        norms = [0.1 + 0.37 * index for index in range(count)]
        blocks = dm.ledgers.BlockClipping(norms, sigma * count**0.5)
        refused_for_roundings += blocks.sigma < sigma
        found = PerMatrixClipping(blocks).noise_norms([None] * count, sigma)
        parts = [(Fraction(c) / Fraction(one * sigma)) ** 2 for c, one in zip(norms, found, strict=True)]
        assert sum(parts) <= 1 / Fraction(sigma) ** 2
        assert float(sum(parts)) * sigma**2 == pytest.approx(1.0, rel=1e-13)
        short = PerMatrixClipping(dm.ledgers.BlockClipping(norms, sigma * count**0.5 * (1.0 - 1e-9)))
        with pytest.raises(dm.InvalidParameterError, match="joint sigma >="):
            short.noise_norms([None] * count, sigma)
    assert refused_for_roundings > 100


def test_four_blocks_of_twice_sigma_in_a_run_and_in_a_ledger():
    model = classifier(widths=(20, 80, 5))
    clipping = PerMatrixClipping(dm.ledgers.BlockClipping(list(NORMS.values()), 2.0 * CAL.sigma))
    _, optimizer, _ = make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        DataLoader(classification(6, 20, 5)),
        CAL,
        clipping=clipping,
        loss=large,
        generator=1,
    )
    optimizer.close()
    batch = dm.ledgers.SharedBatch("run", CAL.strategy, CAL.participation)
    for index, _ in enumerate(NORMS):
        batch.register(f"block {index}", 2.0 * CAL.sigma)
    dm.Ledger().add("training", CAL, batch=batch)


BUDGET = dm.calibrate_sigma(dm.Identity(3), 8.0, 1e-5, participation=dm.Poisson(0.5), dataset_size=8)


def image_model():
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 4), nn.LayerNorm(4))


def tiny_gpt2():
    pytest.importorskip("transformers")
    from tests.support.transformer_zoo import gpt2

    return gpt2()


@pytest.mark.parametrize("least_noise", [False, True])
@pytest.mark.parametrize("rest", ["one block", "one block each"])
@pytest.mark.parametrize("build", [image_model, tiny_gpt2], ids=["biases", "GPT-2"])
def test_every_matrix_of_a_model_is_a_block(build, rest, least_noise):
    model = build()
    found = PerMatrixClipping.for_model(
        model, 0.7, 0.1, rest=rest, rest_clip_norm=0.3, least_noise=least_noise
    )
    named = dict(model.named_parameters())
    assert set(found.layers) == set(named)
    blocks = [
        [name for name, at in found.layers.items() if at == place]
        for place in sorted({*found.layers.values()})
    ]
    matrices = [block for block in blocks if named[block[0]].ndim >= 2]
    others = [block for block in blocks if named[block[0]].ndim < 2]
    assert all(len(block) == 1 for block in matrices)
    assert sum(map(len, others)) == sum(param.ndim < 2 for param in named.values())
    assert len(others) == (1 if rest == "one block" else sum(map(len, others)))
    assert found.block_clipping.clip_norms == (0.1,) * len(matrices) + (0.3,) * len(others)
    # Together they are one release with the calibration's sigma: sum 1 / sigma_W^2 = 1 / sigma^2.
    sigmas = found.block_clipping.sigmas
    assert sum(one**-2 for one in sigmas) == pytest.approx(0.7**-2, rel=1e-12)
    sizes = [sum(named[name].numel() for name in block) for block in blocks]

    def total(given):
        return sum(
            d * (s * c) ** 2 for d, s, c in zip(sizes, given, found.block_clipping.clip_norms, strict=True)
        )

    equal = total([0.7 * len(blocks) ** 0.5] * len(blocks))
    assert total(sigmas) == pytest.approx(equal) if not least_noise else total(sigmas) < equal


def test_frozen_parameters_are_in_no_block():
    model = image_model()
    model[3].requires_grad_(requires_grad=False)
    assert set(PerMatrixClipping.for_model(model, 0.7, 0.1).layers) == {
        "0.weight", "0.bias", "4.weight", "4.bias"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"model": nn.LayerNorm(3)}, "model must be a model that trains a parameter of two or more dim"),
        ({"rest": "none"}, "rest must be 'one block' or 'one block each', got 'none'"),
        ({"clip_norm": 0.0}, "clip_norm must"),
        ({"rest_clip_norm": -1.0}, "rest_clip_norm must"),
        ({"sigma": 0.0}, "sigma must"),
    ],
)
def test_what_makes_no_blocks(options, match):
    given = {"model": image_model(), "sigma": 0.7, "clip_norm": 0.1} | options
    with pytest.raises(dm.InvalidParameterError, match=match):
        PerMatrixClipping.for_model(**given)


def mean_of_texts(model, words):
    return F.cross_entropy(model(input_ids=words).logits[:, :-1].flatten(0, 1), words[:, 1:].flatten())


@pytest.mark.parametrize("build", [image_model, tiny_gpt2], ids=["biases", "GPT-2"])
def test_muon_for_matrices_and_adam_with_its_correction_for_the_rest(build, tmp_path):
    """Algorithm 1 of DP-Muon on a network with biases: trained, recorded, and the record verified."""
    torch.manual_seed(0)
    model = build()
    if build is tiny_gpt2:
        data, loss = torch.utils.data.TensorDataset(torch.randint(0, 40, (8, 6))), mean_of_texts
    else:
        data = torch.utils.data.TensorDataset(torch.randn(8, 1, 4, 4), torch.randint(0, 4, (8,)))
        loss = lambda net, x, y: F.cross_entropy(net(x), y)  # noqa: E731 - one line reads best
    before = {name: param.detach().clone() for name, param in model.named_parameters()}
    clipping = PerMatrixClipping.for_model(model, BUDGET.sigma, 0.1)
    optimizer = Muon(model.parameters(), lr=0.02, aux_lr=1e-2, aux_subtract_noise=True, aux_floor=1e-6)
    private, dp, loader = make_private(
        model, optimizer, DataLoader(data, batch_size=4), BUDGET, clipping=clipping, loss=loss
    )
    for batch in loader:
        private.backward(*batch)
        dp.step()
    moved = {name for name, param in model.named_parameters() if not torch.equal(param, before[name])}
    assert moved == set(before)
    dp.run_record().save(tmp_path / "run.json")
    dp.close()
    found = dm.verify(tmp_path / "run.json")
    assert found.ok, found.failures
    assert found.run.steps == 2  # of one pass


def test_the_correction_of_the_rest_is_that_of_adambc():
    from dpmech.optim import AdamBC

    vector, twin = (torch.nn.Parameter(torch.ones(50, dtype=torch.float64)) for _ in range(2))
    muon = Muon([vector], lr=0.1, aux_betas=(0.8, 0.9), aux_subtract_noise=True, aux_floor=1e-3)
    adam = AdamBC([twin], lr=0.1, betas=(0.8, 0.9), floor=1e-3)
    plain = Muon([torch.nn.Parameter(torch.ones(50, dtype=torch.float64))], lr=0.1, aux_betas=(0.8, 0.9))
    generator = torch.Generator().manual_seed(1)
    for _ in range(5):
        gradient = torch.randn(50, generator=generator, dtype=torch.float64)
        for rule in (muon, adam, plain):
            rule.param_groups[0]["phi"] = 0.5
            rule.param_groups[0]["params"][0].grad = gradient.clone()
            rule.step()
    assert torch.equal(vector, twin)
    assert not torch.allclose(vector, plain.param_groups[0]["params"][0])
