"""Under hooks the loss must be the mean over the examples: sums and class weights are refused."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dpmech as dm
from dpmech.optim import make_private

pytest.importorskip("opacus")

F = nn.functional
SIZE = 8
CAL = dm.calibrate_sigma(dm.Identity(4), 8.0, 1e-5, participation=dm.MinSep(2))
WEIGHT = torch.tensor([1.0, 5.0])


def step(loss, *, rows=SIZE // 2):
    """The sum of a step on some examples whose gradients are far below the clip norm."""
    torch.manual_seed(0)
    model, data = nn.Linear(3, 2), TensorDataset(torch.randn(SIZE, 3), torch.arange(SIZE) // 2 % 2)
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
    monkeypatch.setattr("dpmech.optim.runs.gradient_modes.watch_loss", lambda _: None)
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
