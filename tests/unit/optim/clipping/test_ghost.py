"""Clipping by factors of gradients compared with an independent loop over the examples."""

from fractions import Fraction

import numpy as np
import pytest
import torch
import torch.nn.utils.prune
import torch.utils.checkpoint
from torch import nn

import dpmech as dm
from dpmech.optim import FlatClipping, PerLayerClipping, clipped_gradients
from dpmech.optim.clipping import factored as factored_module
from dpmech.optim.clipping.clipped_sum import clip_and_sum
from dpmech.optim.clipping.factored import Factored, has_factors, prefers_factors
from dpmech.optim.clipping.norms import Piece, has_fast_float64
from dpmech.optim.clipping.styles import Blocks

F = nn.functional
SLACK = 2.0**-14


def naive(model, loss, examples, clip_norms, members):
    """The sum of clipped gradients in float64, one backward pass per example."""
    double = model.double()
    params = [param for param in double.parameters() if param.requires_grad]
    total = [torch.zeros_like(param) for param in params]
    for example in examples:
        value = loss(double, *(one.double() if one.is_floating_point() else one for one in example))
        grads = torch.autograd.grad(value, params, allow_unused=True)
        for block, limit in enumerate(clip_norms):
            own = [g for g, member in zip(grads, members, strict=True) if member == block and g is not None]
            norm = float(torch.stack([g.square().sum() for g in own]).sum().sqrt()) if own else 0.0
            factor = min(1.0, limit * (1.0 - SLACK) / norm) if norm else 1.0
            for sums, grad, member in zip(total, grads, members, strict=True):
                if member == block and grad is not None:
                    sums.add_(grad, alpha=factor)
    return total


class Words(nn.Module):
    """Tied embeddings, positions that broadcast, a layer used twice, a bare parameter, an unused layer."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(40, 48, padding_idx=0)
        self.places = nn.Embedding(5, 48)
        self.layer = nn.Linear(48, 48)
        self.norm = nn.LayerNorm(48)
        self.mark = nn.Parameter(torch.randn(48))
        self.head = nn.Linear(48, 40, bias=False)
        self.head.weight = self.tokens.weight
        self.unused = nn.Linear(48, 48)

    def forward(self, x):
        z = self.tokens(x) + self.places(torch.arange(x.shape[1], device=x.device)[None]) + self.mark
        return self.head(self.norm(self.layer(torch.tanh(self.layer(z)))))


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(30, 30)
        self.outer = nn.Linear(30, 4)

    def forward(self, x):
        return self.outer(F.relu(x + self.inner(x), inplace=True))


def frozen():
    model = nn.Sequential(nn.Linear(20, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 4))
    model[0].requires_grad_(False)
    model[2].weight.requires_grad_(False)
    return model


def labels(*shape, classes=4, count=6):
    return lambda: (torch.randn(count, *shape), torch.randint(classes, (count,)))


def cross_entropy(model, x, y):
    return F.cross_entropy(model(x[None]), y[None])


def next_words(model, x):
    return F.cross_entropy(model(x[None])[0, :-1], x[1:])


MODELS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(20, 60), nn.ReLU(), nn.Linear(60, 4)), labels(20), cross_entropy),
    "frozen": (frozen, labels(20), cross_entropy),
    "residual in place": (Residual, labels(30), cross_entropy),
    "conv2d": (
        lambda: nn.Sequential(
            *(nn.Conv2d(3, 24, 3, stride=2, padding=1, dilation=2), nn.GroupNorm(4, 24), nn.ReLU()),
            *(nn.Conv2d(24, 30, (3, 2), padding="same"), nn.ReLU(), nn.Conv2d(30, 64, 3), nn.Flatten()),
            nn.Linear(64, 4),
        ),
        labels(3, 8, 8),
        cross_entropy,
    ),
    "conv1d and 3d": (
        lambda: nn.Sequential(
            *(nn.Conv3d(1, 8, (2, 3, 2), padding=(1, 0, 1)), nn.Flatten(2)),
            *(nn.Conv1d(8, 30, 5, stride=3), nn.Tanh(), nn.Flatten(), nn.LazyLinear(4)),
        ),
        labels(1, 2, 4, 3),
        cross_entropy,
    ),
    "words": (Words, lambda: (torch.randint(40, (6, 5)),), next_words),
}


def built(name):
    torch.manual_seed(3)
    make, data, loss = MODELS[name]
    model, batch = make(), data()
    if any(isinstance(layer, nn.LazyLinear) for layer in model.modules()):
        model(batch[0])
    return model, batch, loss


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("style", ["flat", "per layer"])
@pytest.mark.parametrize("microbatch", [None, 4])
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
def test_sums_are_those_of_a_loop_over_the_examples(name, style, microbatch):
    model, batch, loss = built(name)
    count = sum(param.requires_grad for param in model.parameters())
    # Some examples are clipped, others are not.
    clip = FlatClipping(0.7) if style == "flat" else PerLayerClipping(np.geomspace(0.05, 0.5, count))
    found = clipped_gradients(model, loss, batch, clip, microbatch_size=microbatch, clipping_mode="ghost")
    blocks = clip.blocks([None] * count)
    expected = naive(model, loss, zip(*batch, strict=True), blocks.clip_norms, blocks.members)
    for one, other in zip(found.sums, expected, strict=True):
        value = torch.zeros_like(other) if one is None else one
        torch.testing.assert_close(value, other, rtol=2e-5, atol=2e-7)


def pieces(draw, examples, positions, rows, columns, *, cancel):
    left = torch.randn(examples, positions, rows, generator=draw)
    right = torch.randn(examples, positions, columns, generator=draw)
    if cancel:  # the second half cancels the first, up to the last bit of a few
        half = positions // 2
        left[:, half : 2 * half], right[:, half : 2 * half] = left[:, :half], -right[:, :half]
        right[:, 0, 0] *= 1.0 + 2.0**-20
        if positions % 2:
            left[:, -1] = 0.0
    return Piece(left, right)


def exact_squares(factored):
    """Squared norms in rational numbers."""
    found = []
    for example in range(len(factored)):
        total = {}
        for piece in factored.pieces:
            for t in range(piece.right.shape[1]):
                right = [Fraction(float(x)) for x in piece.right[example, t]]
                left = piece.left[example, t]
                rows = (
                    {int(left): Fraction(1)}
                    if piece.looks_up
                    else dict(enumerate(map(Fraction, map(float, left))))
                )
                for i, a in rows.items():
                    for j, b in enumerate(right):
                        total[i, j] = total.get((i, j), Fraction(0)) + a * b
        found.append(sum(value * value for value in total.values()))
    return found


@pytest.mark.parametrize("cancel", [False, True])
@pytest.mark.parametrize("kinds", ["outer", "lookup", "tied"])
@pytest.mark.parametrize("positions", [1, 2, 5])
def test_norms_are_never_too_small(kinds, positions, cancel):
    draw = torch.Generator().manual_seed(positions)
    parts = []
    if kinds != "lookup":
        parts.append(pieces(draw, 3, positions, 4, 3, cancel=cancel))
    if kinds != "outer":
        index = torch.randint(4, (3, positions), generator=draw)
        right = torch.randn(3, positions, 3, generator=draw)
        if cancel and positions > 1:
            index[:, 1], right[:, 1] = index[:, 0], -right[:, 0]
        parts.append(Piece(index, right))
    factored = Factored(parts, (4, 3))
    for bound, exact in zip(factored.squares().tolist(), exact_squares(factored), strict=True):
        assert Fraction(bound) >= exact
        mass = sum(float(piece.mass().max()) ** 0.5 for piece in parts) ** 2
        assert Fraction(bound) <= exact * Fraction(1 + 2.0**-40) + Fraction(mass * 2.0**-29)


@pytest.mark.parametrize("cancel", [False, True])
def test_each_contribution_is_at_most_the_clip_norm(cancel):
    """Norm and sum of one example, in rational numbers; float32 would lose the norm of what cancels."""
    draw = torch.Generator().manual_seed(8)
    piece = pieces(draw, 32, 6, 5, 4, cancel=cancel)
    big = Piece(piece.left * 1e4, piece.right * 1e4)
    for example in range(32):
        one = Factored([Piece(big.left[example : example + 1], big.right[example : example + 1])], (5, 4))
        (total,), *_ = clip_and_sum([one], Blocks((0,), (1.0,)))
        assert sum(Fraction(float(x)) ** 2 for x in total.flatten()) <= 1
    if cancel:
        grams = (big.left @ big.left.mT) * (big.right @ big.right.mT)
        exact = [float(square) for square in exact_squares(Factored([big], (5, 4)))]
        lost = grams.sum(dim=(1, 2)).clamp(min=0).tolist()
        assert any(found < 0.5 * true for found, true in zip(lost, exact, strict=True))  # what is not done


def test_formed_gradients_are_those_of_the_factors():
    draw = torch.Generator().manual_seed(1)
    outer = pieces(draw, 3, 5, 4, 3, cancel=False)
    lookup = Piece(torch.randint(4, (3, 5), generator=draw), torch.randn(3, 5, 3, generator=draw))
    factored = Factored([outer, lookup], (4, 3))
    formed = factored.formed()
    assert len(factored) == 3
    torch.testing.assert_close(
        factored.squares().sqrt(), formed.double().flatten(1).norm(dim=1), rtol=1e-5, atol=0
    )
    weights = torch.tensor([0.5, 0.0, 2.0], dtype=torch.float64)
    torch.testing.assert_close(
        factored.weighted_sum(weights, None),
        torch.einsum("e,eij->ij", weights, formed.double()),
        rtol=1e-5,
        atol=1e-6,
    )


def test_many_examples_go_in_runs(monkeypatch):
    from dpmech.optim.clipping import factored as module

    draw = torch.Generator().manual_seed(1)
    whole = Factored([pieces(draw, 7, 3, 4, 3, cancel=False)], (4, 3))
    weights = torch.rand(7, generator=draw, dtype=torch.float64)
    kept = torch.tensor([True, False, True, True, True, False, True])
    squares, total = whole.squares(), whole.weighted_sum(weights, kept)
    monkeypatch.setattr(module, "_AT_ONCE", {"cpu": 40})
    torch.testing.assert_close(whole.squares(), squares)
    torch.testing.assert_close(whole.weighted_sum(weights, kept), total)


def test_no_examples():
    empty = Factored([Piece(torch.zeros(0, 3, 4), torch.zeros(0, 3, 2))], (4, 2))
    assert empty.squares().shape == (0,)
    assert torch.equal(
        empty.weighted_sum(torch.zeros(0, dtype=torch.float64), None), torch.zeros(4, 2).double()
    )


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_examples_without_a_finite_gradient_are_left_out(bad):
    model, (x, y), loss = built("mlp")
    spoiled = x.clone()
    spoiled[2, 0] = bad
    found = clipped_gradients(model, loss, (spoiled, y), 1.0, clipping_mode="ghost")
    keep = torch.arange(len(x)) != 2
    expected = clipped_gradients(model, loss, (x[keep], y[keep]), 1.0, clipping_mode="ghost")
    assert found.dropped == 1
    for one, other in zip(found.sums, expected.sums, strict=True):
        torch.testing.assert_close(one, other)


def test_layers_that_have_factors():
    from transformers.pytorch_utils import Conv1D

    class Other(nn.Linear):
        pass

    yes = [nn.Linear(2, 2), nn.Conv2d(2, 2, 1), nn.Embedding(3, 2), Conv1D(2, 3)]
    no = [
        *(Other(2, 2), nn.LayerNorm(2), nn.Embedding(3, 2, max_norm=1.0), nn.Embedding(3, 2, sparse=True)),
        *(nn.Conv2d(2, 2, 1, groups=2), nn.Conv1d(2, 2, 3, padding=1, padding_mode="circular")),
        *(nn.Embedding(3, 2, scale_grad_by_freq=True), nn.ConvTranspose1d(2, 2, 1)),
        *(nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)), nn.Linear(2, 2)),
    ]
    no[-1].forward = lambda x: x  # a function instead of the method
    assert all(map(has_factors, yes))
    assert not any(map(has_factors, no))


def test_shapes_determine_the_cheaper_mode():
    here = torch.device("cpu")
    assert prefers_factors(1, 1024, 784, here)
    assert prefers_factors(128, 768, 768, here)
    assert not prefers_factors(1, 2, 3, here)
    assert not prefers_factors(169, 16, 64, here)  # a small kernel over many positions


@pytest.mark.parametrize("capability", [(9, 0), (8, 9)])
def test_the_device_enters_the_choice(capability, monkeypatch):
    """Products are cheap on GPUs, compared with memory; in float64 only on those for data centres."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    factored_module._costs_on.cache_clear()
    has_fast_float64.cache_clear()
    there = torch.device("cuda", 0)
    assert prefers_factors(1, 1024, 784, there)
    assert prefers_factors(128, 768, 768, there) == (capability == (9, 0))
    assert prefers_factors(256, 768, 768, there) == (capability == (9, 0))
    assert not prefers_factors(1, 2, 3, there)
    assert not prefers_factors(2048, 768, 768, there)
    factored_module._costs_on.cache_clear()
    has_fast_float64.cache_clear()


def test_other_modes_are_refused():
    model, batch, loss = built("mlp")
    with pytest.raises(dm.InvalidParameterError, match="clipping_mode"):
        clipped_gradients(model, loss, batch, 1.0, clipping_mode="fast")


def test_layers_that_depend_on_more_than_shapes_are_refused(tmp_path):
    model, (x, y), _ = built("mlp")
    with (tmp_path / "calls").open("wb") as calls:  # no list: it would be put back

        def loss(f, x, y):
            calls.write(b"x")
            return F.cross_entropy(f(x[None]), y[None]) + (
                F.cross_entropy(f(x[None]), y[None]) if calls.tell() % 2 == 0 else 0
            )

        with pytest.raises(dm.UnsupportedCombinationError, match="otherwise than for the first example"):
            clipped_gradients(model, loss, (x, y), 1.0, clipping_mode="ghost")


@pytest.mark.parametrize("mode", ["ghost", "per_example"])
@pytest.mark.parametrize("kind", ["weight_norm", "prune"])
@pytest.mark.filterwarnings("ignore:.*weight_norm")
def test_weights_that_are_computed_before_every_call(kind, mode):
    torch.manual_seed(0)
    layer = nn.Linear(6, 40)
    if kind == "weight_norm":
        layer = nn.utils.weight_norm(layer)
    else:
        layer = nn.utils.prune.random_unstructured(layer, "weight", 0.5)
    assert not has_factors(layer)
    model = nn.Sequential(layer, nn.Tanh(), nn.Linear(40, 2))
    x, y = 5.0 * torch.randn(4, 1, 6), torch.zeros(4, 1, dtype=torch.long)

    def loss(call, x, y):
        return F.cross_entropy(call(x), y)

    found = clipped_gradients(model, loss, (x, y), 0.5, clipping_mode=mode)
    params = list(model.parameters())
    expected = [torch.zeros_like(param) for param in params]
    for example in zip(x, y, strict=True):
        grads = torch.autograd.grad(loss(model, *example), params)
        norm = float(torch.cat([one.flatten() for one in grads]).norm())
        for total, grad in zip(expected, grads, strict=True):
            total.add_(grad, alpha=min(1.0, 0.5 * (1.0 - SLACK) / norm))
    for mine, theirs in zip(found.sums, expected, strict=True):
        assert torch.allclose(mine.double(), theirs.double(), rtol=1e-3, atol=1e-5)


class Rerun(nn.Module):
    def __init__(self, *, dropped):
        super().__init__()
        self.inner, self.outer, self.dropped = nn.Linear(6, 6), nn.Linear(6, 2), dropped

    def forward(self, x):
        if not self.dropped:
            return self.outer(torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=True))
        return self.outer(self.inner(x) if torch.rand(()) < 0.5 else x)


@pytest.mark.parametrize(("dropped", "reason"), [(False, "use_reentrant=True"), (True, "layer drop")])
def test_unsupported_vmap_operations_are_named(dropped, reason):
    batch = (torch.randn(3, 1, 6), torch.zeros(3, 1, dtype=torch.long))
    with pytest.raises(dm.UnsupportedCombinationError, match=reason):
        clipped_gradients(Rerun(dropped=dropped), lambda call, x, y: F.cross_entropy(call(x), y), batch, 1.0)
