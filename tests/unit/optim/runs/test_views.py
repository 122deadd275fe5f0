"""MeanOverViews compared with gradients of single views, averaged and clipped explicitly."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dpmech as dm
from dpmech.optim import MeanOverViews
from dpmech.optim.clipping import Batch
from tests.support.training import private_run

F = nn.functional
CAL = dm.calibrate_sigma(dm.Identity(4), 8.0, 1e-5)
CLIP, VIEWS, SIZE = 0.3, 3, 4
SHIFTS = torch.arange(VIEWS)[:, None, None, None] / 2


def shifted(images):
    return images + SHIFTS


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(48, 3))


def data(*, views=False):
    torch.manual_seed(0)
    images, labels = torch.randn(SIZE, 1, 6, 6), torch.randint(3, (SIZE,))
    given = torch.stack([shifted(one[None].expand(VIEWS, -1, -1, -1)) for one in images])
    return TensorDataset(given if views else images, labels), given, labels


def by_hand():
    """One backward pass per view."""
    model = network()
    params = list(model.parameters())
    total = [torch.zeros_like(param, dtype=torch.float64) for param in params]
    _, views, labels = data()
    for images, label in zip(views, labels, strict=True):
        grads = [torch.zeros_like(one) for one in total]
        for image in images:
            value = F.cross_entropy(model(image[None]), label[None])
            for one, grad in zip(grads, torch.autograd.grad(value, params), strict=True):
                one.add_(grad.double() / VIEWS)
        norm = float(torch.cat([one.flatten() for one in grads]).norm())
        for one, grad in zip(total, grads, strict=True):
            one.add_(grad, alpha=min(1.0, CLIP * (1.0 - 2.0**-14) / norm))
    return torch.cat([one.flatten() for one in total])


def run(dataset, loss, **options):
    return private_run(
        CAL,
        network(),
        DataLoader(dataset, batch_size=SIZE),
        clip_norm=CLIP,
        generator=1,
        loss=loss,
        **options,
    )


def mean_of_each(model, x, y):
    return F.cross_entropy(model(x), y, reduction="none")


@pytest.mark.parametrize("mode", ["per_example", "ghost"])
@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), F.cross_entropy, mean_of_each])
@pytest.mark.parametrize("stored", [True, False])
def test_views_are_averaged_before_they_are_clipped(loss, stored, mode):
    dataset, _, _ = data(views=stored)
    views = MeanOverViews(loss) if stored else MeanOverViews(loss, shifted, VIEWS)
    private, optimizer, loader = run(dataset, views, clipping_mode=mode)
    private.backward(*next(iter(loader)))
    found = torch.cat([one.double().flatten() for one in optimizer._batch.take()])
    torch.testing.assert_close(found, by_hand(), rtol=1e-5, atol=1e-7)
    assert float(found.norm()) <= SIZE * CLIP


def test_views_of_one_example_are_never_clipped_apart():
    """Microbatches contain full examples: one at a time gives the same result as the full batch."""
    dataset, _, _ = data(views=True)
    private, optimizer, loader = run(dataset, MeanOverViews(nn.CrossEntropyLoss()), max_physical_batch_size=1)
    private.backward(*next(iter(loader)))
    found = torch.cat([one.double().flatten() for one in optimizer._batch.take()])
    torch.testing.assert_close(found, by_hand(), rtol=1e-5, atol=1e-7)


def test_batches_by_name():
    dataset, _, _ = data()
    rows = [{"image": image, "kind": (label,), "none": None} for image, label in dataset]

    def collate(found):
        image, kind = (
            torch.stack(one) for one in zip(*((r["image"], r["kind"][0]) for r in found), strict=True)
        )
        return {"image": image, "kind": (kind,), "none": None}

    def loss(model, image, kind, none):
        assert none is None
        return F.cross_entropy(model(image), kind[0])

    private, optimizer, loader = private_run(
        CAL,
        network(),
        DataLoader(rows, batch_size=SIZE, collate_fn=collate),
        clip_norm=CLIP,
        generator=1,
        loss=MeanOverViews(loss, shifted, VIEWS),
    )
    private.backward(**next(iter(loader)))
    found = torch.cat([one.double().flatten() for one in optimizer._batch.take()])
    torch.testing.assert_close(found, by_hand(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("mode", ["per_example", "ghost"])
def test_every_view_of_every_example_has_new_random_numbers(mode):
    def draws(images):
        return images + torch.rand_like(images)

    def spread(model, x, y):
        return model(x).var(0).sum()

    image, label = torch.ones(1, 6, 6), torch.tensor(0)
    dataset = TensorDataset(image.repeat(SIZE, 1, 1, 1), label.repeat(SIZE))
    private, _, loader = run(dataset, MeanOverViews(spread, draws, 2), clipping_mode=mode)
    batch = Batch(next(iter(loader)), {})
    samples, losses = private.prepare(batch).samples(batch, batch.tensors)
    assert float(losses.min()) > 1e-4  # views of one example differ
    assert len(losses.unique()) == SIZE  # and so do those of equal examples
    assert samples[0] is not None


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: MeanOverViews("loss"), "loss must be a function"),
        (lambda: MeanOverViews(nn.MSELoss), "an instance, MSELoss"),
        (lambda: MeanOverViews(nn.MSELoss(), None, 3), "views must be None without augment"),
        (lambda: MeanOverViews(nn.MSELoss(), shifted), "views must be"),
        (lambda: MeanOverViews(nn.MSELoss(), shifted, 0), "views must be"),
        (lambda: MeanOverViews(nn.MSELoss(), "flip", 2), "augment must be a function"),
    ],
)
def test_bad_arguments(make, match):
    with pytest.raises(dm.InvalidParameterError, match=match):
        make()


def test_bad_views():
    model, x, y = network(), torch.randn(1, 1, 6, 6), torch.tensor([1])
    with pytest.raises(dm.InvalidParameterError, match=r"what augment returns must be 3 views, one a row"):
        MeanOverViews(F.cross_entropy, lambda images: images[:1], 3)(model, x, y)
    with pytest.raises(dm.InvalidParameterError, match=r"of shape \(views, \.\.\.\)"):
        MeanOverViews(F.cross_entropy)(model, torch.randn(1), y)
    with pytest.raises(dm.InvalidParameterError, match="with tensors"):
        MeanOverViews(F.cross_entropy)(model)
    dataset, _, _ = data()
    with pytest.raises(dm.InvalidParameterError, match="batch_of_one"):
        run(dataset, MeanOverViews(F.cross_entropy, shifted, VIEWS), loss_takes="example")
