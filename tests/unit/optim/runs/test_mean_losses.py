"""Under hooks the loss must be the mean over the examples: sums and class weights are refused."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dpmech as dm
from dpmech.optim import make_private
from dpmech.optim.runs import mean_losses

pytest.importorskip("opacus")

F = nn.functional
SIZE = 8
CAL = dm.calibrate_sigma(dm.Identity(4), 8.0, 1e-5, participation=dm.MinSep(2))
WEIGHT = torch.tensor([1.0, 5.0])


def step(loss, *, rows=SIZE // 2, data=None, scale=1.0):
    """The sum of a step on some examples whose gradients are far below the clip norm."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    if data is None:
        data = TensorDataset(torch.randn(SIZE, 3), torch.arange(SIZE) // 2 % 2)
    model.weight.data *= scale
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    given = {"expected_batch_size": SIZE // 2, "max_physical_batch_size": rows}
    model, optimizer, loader = make_private(model, sgd, DataLoader(data), CAL, 1e3, **given)
    sums, take = [], optimizer._batch.take
    optimizer._batch.take = lambda: [sums.append(one.clone()) or one for one in take()]
    try:
        for inputs, labels in loader:
            loss(model(inputs), labels).backward()
            optimizer.step()
            if sums:
                return torch.cat([one.flatten() for one in sums])
    finally:
        optimizer.close()


MIXING = {
    "sum": (lambda out, y: F.cross_entropy(out, y, reduction="sum"), "is a sum over the examples"),
    "sum of losses": (lambda out, y: F.cross_entropy(out, y, reduction="none").sum(), "is a sum over"),
    "squares": (lambda out, y: F.mse_loss(out, F.one_hot(y, 2).float(), reduction="sum"), "is a sum over"),
    "class weights": (lambda out, y: F.cross_entropy(out, y, WEIGHT), "divided by the class weights"),
    "scaled": (lambda out, y: 0.1 * nn.CrossEntropyLoss(WEIGHT)(out, y), "divided by the class weights"),
    "smoothed": (
        lambda out, y: F.cross_entropy(out, y, WEIGHT, label_smoothing=0.1),
        "divided by the class weights",
    ),
}


@pytest.mark.parametrize("name", MIXING)
def test_losses_that_are_no_mean_are_refused(name, monkeypatch):
    loss, words = MIXING[name]
    with pytest.raises(
        dm.UnsupportedCombinationError, match=rf"the loss .*{words}.*make_private\(\.\.\., loss"
    ):
        step(loss)
    # What the refusal prevents: the same examples in other microbatches have another sum.
    monkeypatch.setattr(mean_losses.LossWatch, "__call__", lambda *_: None)
    assert not torch.allclose(step(loss), step(loss, rows=1), rtol=1e-3)


@pytest.mark.parametrize("create_graph", [False, True])
def test_sums_that_torch_autograd_differentiates_are_refused_too(create_graph):
    model, data = nn.Linear(3, 2), TensorDataset(torch.randn(SIZE, 3), torch.arange(SIZE) % 2)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = make_private(model, sgd, DataLoader(data), CAL, 1.0, expected_batch_size=4)
    inputs, labels = next(iter(loader))
    total = F.cross_entropy(model(inputs), labels, reduction="sum")
    with pytest.raises(dm.UnsupportedCombinationError, match="is a sum over the examples"):
        torch.autograd.grad(total, list(model.parameters()), create_graph=create_graph)
    optimizer.close()


MEANS = {
    "mean": F.cross_entropy,
    "a sum of one value": lambda out, y: F.cross_entropy(out, y).sum(),
    "sum over the number": lambda out, y: F.cross_entropy(out, y, reduction="sum") / len(y),
    "mean of losses": lambda out, y: F.cross_entropy(out, y, reduction="none").mean(),
    "weights of examples": lambda out, y: (F.cross_entropy(out, y, reduction="none") * WEIGHT[y]).mean(),
    "weighted losses": lambda out, y: F.cross_entropy(out, y, WEIGHT, reduction="none").mean(),
    "squares": lambda out, y: (out - F.one_hot(y, 2)).square().sum(1).mean(),
    "smoothed": lambda out, y: F.cross_entropy(out, y, label_smoothing=0.1),
}


@pytest.mark.parametrize("name", MEANS)
def test_means_are_accepted(name):
    torch.testing.assert_close(step(MEANS[name]), step(MEANS[name], rows=1))


LENGTH = 5


def texts(ignored):
    """Examples of five tokens, of which the last `ignored` of each have no target."""
    torch.manual_seed(1)
    labels = torch.randint(0, 2, (SIZE, LENGTH))
    for row, count in zip(labels, ignored, strict=True):
        row[LENGTH - count :] = -100
    return TensorDataset(torch.randn(SIZE, LENGTH, 3), labels)


def of_tokens(out, y):
    return F.cross_entropy(out.movedim(-1, 1), y.clamp(min=0), reduction="none")


UNEVEN, EVEN = [2, 1, 3, 2, 1, 0, 4, 2], [2] * SIZE
TOKENS = {
    "flat": lambda out, y: F.cross_entropy(out.flatten(0, 1), y.flatten()),
    "classes first": lambda out, y: F.cross_entropy(out.movedim(-1, 1), y),
    "images": lambda out, y: F.cross_entropy(out.movedim(-1, 1)[..., None], y[..., None]),
    "shifted": lambda out, y: F.cross_entropy(out[:, :-1].flatten(0, 1), y[:, 1:].flatten()),
    "smoothed": lambda out, y: F.cross_entropy(out.flatten(0, 1), y.flatten(), label_smoothing=0.1),
    "logs of probabilities": lambda out, y: F.nll_loss(out.log_softmax(2).flatten(0, 1), y.flatten()),
    "selected": lambda out, y: F.cross_entropy(out[y >= 0], y[y >= 0]),
    "mean of some": lambda out, y: of_tokens(out, y)[y >= 0].mean(),
    "masked": lambda out, y: torch.masked_select(of_tokens(out, y), y >= 0).mean() * 2.0,
    "weighted": lambda out, y: 0.5 * nn.CrossEntropyLoss()(out.flatten(0, 1), y.flatten()),
}


@pytest.mark.parametrize("name", TOKENS)
def test_means_over_unequal_numbers_of_targets_are_refused(name, monkeypatch):
    loss, data = TOKENS[name], texts(UNEVEN)
    with pytest.raises(dm.UnsupportedCombinationError, match="number of targets in the batch that are not"):
        step(loss, data=data)
    monkeypatch.setattr(mean_losses.LossWatch, "__call__", lambda *_: None)
    assert not torch.allclose(step(loss, data=data), step(loss, data=data, rows=1), rtol=1e-3)


@pytest.mark.parametrize("name", TOKENS)
def test_means_over_equal_numbers_of_targets_are_accepted(name):
    loss, data = TOKENS[name], texts(EVEN)
    torch.testing.assert_close(step(loss, data=data), step(loss, data=data, rows=1))


def test_an_example_without_a_label_is_refused():
    def loss(out, y):
        return F.cross_entropy(out, y.where(torch.arange(len(y)) > 0, -100))

    with pytest.raises(dm.UnsupportedCombinationError, match="number of targets in the batch that are not"):
        step(loss)


def test_a_model_without_doubts_is_no_fault(monkeypatch):
    counted, bare = [], mean_losses._by_example
    monkeypatch.setattr(mean_losses, "_by_example", lambda rows: counted.append(bare(rows)) or counted[-1])
    step(TOKENS["flat"], data=texts([0] * SIZE), scale=1e4)
    zero, ignored = counted
    assert zero.amax() > zero.amin()
    assert ignored.amax() == 0
    counted.clear()
    with pytest.raises(dm.UnsupportedCombinationError, match="number of targets in the batch that are not"):
        step(TOKENS["flat"], data=texts(UNEVEN), scale=30.0)
    assert len(counted) == 2


@pytest.mark.parametrize("ignored", [EVEN, UNEVEN])
def test_means_of_every_example_are_accepted(ignored):
    def loss(out, y):
        mask = y >= 0
        return ((of_tokens(out, y) * mask).sum(1) / mask.sum(1)).mean()

    def whole(out, y):
        return (of_tokens(out, y) * (y >= 0)).mean()

    def pooled(out, y):
        mask = (y >= 0)[..., None]
        return F.cross_entropy((out * mask).sum(1) / mask.sum(1), y[:, 0])

    for mean in (loss, whole, pooled):
        data = texts(ignored)
        torch.testing.assert_close(step(mean, data=data), step(mean, data=data, rows=1))


SUMS = {
    "sum": lambda out, y: F.cross_entropy(out, y, reduction="sum") / 4,
    "sum of losses": lambda out, y: 0.25 * F.cross_entropy(out, y, reduction="none").sum(),
    "probabilities": lambda out, y: F.nll_loss(out.log_softmax(1), y, reduction="sum") / 4,
    "weights": lambda out, y: (F.cross_entropy(out, y, reduction="none") * 7.0).sum() / torch.tensor(4),
}


@pytest.mark.parametrize("name", SUMS)
def test_sums_over_a_constant_are_refused_at_a_batch_of_another_size(name, monkeypatch):
    loss = SUMS[name]
    with pytest.raises(dm.UnsupportedCombinationError, match="is a sum over the examples that a constant"):
        step(loss, rows=3)  # of three examples, then of one
    monkeypatch.setattr(mean_losses.LossWatch, "__call__", lambda *_: None)
    assert not torch.allclose(step(loss, rows=3), step(loss), rtol=1e-3)


def test_sums_of_tokens_over_a_constant_are_refused():
    with pytest.raises(dm.UnsupportedCombinationError, match="is a sum over the examples that a constant"):
        step(lambda out, y: (of_tokens(out, y) * (y >= 0)).sum() / 20, rows=3, data=texts(UNEVEN))


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_sums_over_the_number_of_examples_are_accepted(scale):
    def weighted(out, y):
        return (F.cross_entropy(out, y, reduction="none") * (1.0 + 4.0 * y)).sum() / len(y)

    for loss in (MEANS["sum over the number"], weighted):
        found, alone = (step(loss, rows=rows, scale=scale) for rows in (3, 1))
        torch.testing.assert_close(found, alone, rtol=1e-5, atol=1e-6)


class WithLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, inputs, labels):
        out = self.linear(inputs)
        return F.cross_entropy(out.flatten(0, 1), labels.flatten()), out


class LayerWithLoss(nn.Linear):
    def forward(self, inputs, labels):
        out = super().forward(inputs)
        return F.cross_entropy(out.flatten(0, 1), labels.flatten()), out


def within(model, ignored):
    """Backward pass of a loss that the model computes itself."""
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    given = {"expected_batch_size": SIZE // 2}
    model, optimizer, loader = make_private(model, sgd, DataLoader(texts(ignored)), CAL, 1.0, **given)
    try:
        inputs, labels = next(iter(loader))
        loss, _ = model(inputs, labels)
        loss.backward()
        optimizer.step()
    finally:
        optimizer.close()


def test_a_loss_within_the_model_is_accepted_for_equal_numbers_alone():
    within(WithLoss(), EVEN)
    with pytest.raises(dm.UnsupportedCombinationError, match="an output that has no row for every"):
        within(WithLoss(), UNEVEN)


def test_a_layer_that_returns_its_loss_is_refused_by_name():
    with pytest.raises(dm.UnsupportedCombinationError, match="is called with 2 positional arguments"):
        within(LayerWithLoss(3, 2), EVEN)
