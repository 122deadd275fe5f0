"""The arguments of a loss, and of backward of a PerExampleModel."""

import collections

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import dpmech as dm
from dpmech.optim import clipped_gradients
from dpmech.optim.clipping import Batch
from dpmech.optim.runs.example_loss import ExampleLoss
from tests.support.training import private_run

F = nn.functional
CAL = dm.calibrate_sigma(dm.Identity(6), 8.0, 1e-5)


def images(channels=3, side=3):
    """Images with as many channels as rows: one image looks like a batch of something else."""
    torch.manual_seed(0)
    return TensorDataset(torch.randn(8, channels, side, side), torch.randint(4, (8,)))


def features():
    torch.manual_seed(0)
    return TensorDataset(torch.randn(8, 6), torch.randint(4, (8,)))


class Pooling(nn.Module):
    """Treats one image as a batch of its channels, and still returns an output."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.head = nn.Linear(9, 4)

    def forward(self, x):
        return self.head(x.flatten(2).mean(1) if x.ndim == 4 else x.flatten(1).mean(0)[None].expand(1, -1))


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.convolution = nn.Conv2d(3, 3, 3, padding=1)
        self.head = nn.Linear(9, 4)

    def forward(self, x):
        # The usual flatten(1) treats channels as examples if the image has no batch dimension.
        return (
            self.head(self.convolution(x).flatten(1)[..., :9]).sum(-2)[None]
            if x.ndim == 3
            else self.head(self.convolution(x).flatten(1)[..., :9])
        )


def idiom(model, x, y):
    return F.cross_entropy(model(x), y)


def batched_idiom(model, x, y):
    return F.cross_entropy(model(x[None]), y[None])


def first_sums(model, loss, data, **options):
    """The clipped sum of the first batch, by make_private."""
    private, optimizer, loader = private_run(
        CAL, model, DataLoader(data, batch_size=4), generator=1, loss=loss, **options
    )
    batch = next(iter(loader))
    private.backward(*batch)
    return optimizer._batch.take(), batch


def test_an_image_is_passed_as_a_batch_of_one():
    """Without a batch dimension, the same loss gives other gradients without an error."""
    model = Convolutions()
    found, batch = first_sums(
        model, lambda f, x, y: F.cross_entropy(f(x).reshape(-1, 4)[:1], y.reshape(-1)), images()
    )
    right = clipped_gradients(model, batched_idiom, batch, 1.0).sums
    wrong = clipped_gradients(
        model, lambda f, x, y: F.cross_entropy(f(x).reshape(-1, 4)[:1], y[None]), batch, 1.0
    ).sums
    for one, other in zip(found, right, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)
    assert not all(torch.allclose(one, other, rtol=1e-2) for one, other in zip(wrong, right, strict=True))


@pytest.mark.parametrize("loss", [idiom, batched_idiom, nn.CrossEntropyLoss(), F.cross_entropy])
def test_all_ways_to_write_a_loss_agree(loss):
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))
    found, batch = first_sums(model, loss, features())
    expected = clipped_gradients(model, idiom, batch, 1.0).sums
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


def test_a_bare_example_that_is_something_else_is_refused():
    def loss(f, x, y):
        return F.cross_entropy(f(x).reshape(-1, 4)[:1], y.reshape(-1))

    with pytest.raises(
        dm.UnsupportedCombinationError, match="does not treat one example like a batch of one"
    ):
        first_sums(ByRows(), loss, images(), loss_takes="example")
    first_sums(ByRows(), loss, images(), loss_takes="batch_of_one")


class ByRows(nn.Module):
    """Flattens all dimensions except the first, as most image networks do."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.head = nn.LazyLinear(4)
        self.head(torch.zeros(1, 9))

    def forward(self, x):
        return self.head(x.mean(1).flatten(1) if x.ndim == 4 else x.flatten(1))


def test_losses_with_ambiguous_forms_are_refused():
    def along_the_first(f, x, y):
        return -F.log_softmax(f(x), dim=0).flatten()[y.flatten()].sum()

    model = nn.Linear(6, 4)
    with pytest.raises(dm.UnsupportedCombinationError, match="without a batch dimension, and 0 as a batch"):
        first_sums(model, along_the_first, features())
    found, batch = first_sums(model, along_the_first, features(), loss_takes="example")
    expected = clipped_gradients(model, idiom, batch, 1.0).sums
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("loss", "match"),
    [
        (lambda model, x: model(x).sum(), "on one example it failed"),
        (lambda model, x, y: model(x), "a scalar for one example"),
        (lambda model, x, y: 1.0, "a scalar for one example"),
        (lambda model, x, y: model(x[:, :2]).sum(), "on one example it failed"),
    ],
)
def test_failing_losses_state_the_accepted_form(loss, match):
    with pytest.raises(dm.InvalidParameterError, match=match) as caught:
        first_sums(nn.Linear(6, 4), loss, features())
    assert "lambda model, x, y" in str(caught.value)


def test_no_value_of_an_example_decides_the_form_or_is_shown():
    seen = []

    def along_the_first(f, x, y):
        seen.append(float(x.abs().max()))
        return -F.log_softmax(f(x), dim=0).flatten()[y.flatten()].sum()

    def fails(f, x, y):
        seen.append(float(x.abs().max()))
        raise ValueError(f"the sum is {x.sum()} and {f(x).sum()} of {y}")

    for loss, kind in ((along_the_first, dm.UnsupportedCombinationError), (fails, dm.InvalidParameterError)):
        texts = set()
        for value in (1e6, 3e6):
            batch = Batch((torch.full((2, 6), value), torch.full((2,), 3)), {})
            with pytest.raises(kind, match="loss") as caught:
                ExampleLoss(loss).resolve(nn.Linear(6, 4).eval().requires_grad_(False).apply(zeroed), batch)
            texts.add(str(caught.value))
        assert len(texts) == 1
    assert 0.0 < max(seen) < 1e5


def zeroed(layer):
    layer.weight.zero_()
    layer.bias.zero_()


def test_a_form_is_found_where_fractions_are_refused():
    def centered(f, x, y):
        if float(x.min()) > 0.0:
            raise ValueError("inputs are not centered")
        return batched_idiom(f, x, y)

    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))
    found, batch = first_sums(model, centered, features())
    expected = clipped_gradients(model, idiom, batch, 1.0).sums
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


def test_bad_arguments():
    for loss in (3, "mean"):
        with pytest.raises(dm.InvalidParameterError, match=r"nn\.CrossEntropyLoss\(\)"):
            ExampleLoss(loss)
    with pytest.raises(dm.InvalidParameterError, match="loss_takes"):
        ExampleLoss(idiom, "both")
    with pytest.raises(dm.InvalidParameterError, match="batch_of_one"):
        ExampleLoss(nn.MSELoss(), "example")
    weighted = nn.CrossEntropyLoss(weight=torch.ones(4))
    with pytest.raises(dm.UnsupportedCombinationError, match="which cancels it"):
        ExampleLoss(weighted)
    ExampleLoss(nn.CrossEntropyLoss(weight=torch.ones(4), reduction="sum"))


# ---- batches


class Records(Dataset):
    """Examples as dicts, with one entry that the model does not take."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        x, y = features()[index]
        return {"x": x, "labels": y, "nothing": None}


class Named(nn.Module):
    """Takes and returns named values, as models of transformers do."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.head = nn.Linear(6, 4)

    def forward(self, x, labels, nothing=None):
        del nothing
        return {"loss": F.cross_entropy(self.head(x), labels)}


def collate(examples):
    batch = {key: [one[key] for one in examples] for key in examples[0]}
    stacked = {key: None if key == "nothing" else torch.stack(values) for key, values in batch.items()}
    return collections.UserDict(stacked)


@pytest.mark.parametrize("how", ["named", "one dict", "picked"])
def test_batches_of_names(how):
    losses = {
        "named": lambda model, **batch: model(**batch)["loss"],
        "one dict": lambda model, batch: model(**batch)["loss"],
        "picked": lambda model, x, y: model(x, y)["loss"],
    }
    model = Named()
    private, optimizer, loader = private_run(
        CAL,
        model,
        DataLoader(Records(), batch_size=4, collate_fn=collate),
        generator=1,
        loss=losses[how],
    )
    batch = next(iter(loader))
    if how == "named":
        value = private.backward(**batch, return_loss=True)
    elif how == "one dict":
        value = private.backward(batch, return_loss=True)
    else:
        value = private.backward(batch["x"], batch["labels"], return_loss=True)
    plain = nn.Linear(6, 4)
    plain.load_state_dict(model.head.state_dict())
    expected = clipped_gradients(plain, idiom, (batch["x"], batch["labels"]), 1.0).sums
    for one, other in zip(optimizer._batch.take(), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(value, F.cross_entropy(plain(batch["x"]), batch["labels"]).detach())


def test_the_loss_is_returned_on_request():
    private, _, loader = private_run(
        CAL, nn.Linear(6, 4), DataLoader(features(), batch_size=4), generator=1, loss=idiom
    )
    x, y = next(iter(loader))
    keep = torch.tensor([1.0, 0.0, 1.0, 1.0])
    value = private.backward(x, y, weights=keep, return_loss=True)
    with torch.no_grad():
        torch.testing.assert_close(value, F.cross_entropy(private(x[keep > 0]), y[keep > 0]))
    private, _, loader = private_run(
        CAL, nn.Linear(6, 4), DataLoader(features(), batch_size=4), generator=1, loss=idiom
    )
    assert private.backward(*next(iter(loader))) is None


def test_batches_are_rebuilt():
    Pair = collections.namedtuple("Pair", "one two")
    x = torch.arange(6.0).reshape(3, 2)
    batch = Batch((Pair(x, [x, None]),), {"more": {"x": x}})
    assert batch.examples == 3
    args, kwargs = batch.arguments([tensor[0] for tensor in batch.tensors])
    assert isinstance(args[0], Pair)
    assert torch.equal(args[0].one, x[0])
    assert args[0].two[1] is None
    assert torch.equal(kwargs["more"]["x"], x[0])
    for bad in (("text",), (x, 3), ([x, object()],)):
        with pytest.raises(dm.InvalidParameterError, match="batch"):
            Batch(bad, {})


def test_a_class_of_criteria_is_no_criterion():
    with pytest.raises(dm.InvalidParameterError, match=r"loss must be an instance, CrossEntropyLoss\(\)"):
        ExampleLoss(nn.CrossEntropyLoss)
