"""Collate functions that make an example depend on the others of its batch."""

import random
import threading

import pytest
import torch

import dpmech as dm

pytest.importorskip("opacus")

import numpy as np
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, default_collate

from tests.support.training import private_run

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing")

CAL = dm.calibrate_sigma(dm.Identity(2), 8.0, 1e-5, participation=dm.FixedEpochs(1))  # batches of 12
F = nn.functional


class Pooled(nn.Module):
    """Words, their mean, with or without a mask, and a head."""

    def __init__(self, *, masked, tokens=False):
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(20, 8, padding_idx=0)
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(8, 2)
        nn.init.zeros_(self.head.weight)  # the loss alone would show nothing
        self.masked, self.tokens = masked, tokens

    def forward(self, x):
        words = self.drop(self.words(x))
        mask = (x != 0 if self.masked else torch.ones_like(x, dtype=torch.bool))[:, :, None].to(words.dtype)
        mean = (words * mask).sum(1) / mask.sum(1)
        return self.head(words + mean[:, None] if self.tokens else mean)


def texts():
    generator = torch.Generator().manual_seed(0)
    return [(torch.randint(1, 20, (3 + i % 5,), generator=generator), i % 2) for i in range(24)]


def to_longest(examples):
    return pad_sequence([x for x, _ in examples], batch_first=True), torch.tensor([y for _, y in examples])


def to_longest_left(examples):
    found, targets = to_longest([(x.flip(0), y) for x, y in examples])
    return found.flip(1), targets


def in_dicts(examples):
    rows = [{"x": x, "y": y} for x, y in examples]
    labels = torch.tensor([row.pop("y") for row in rows])
    return {"x": pad_sequence([row["x"] for row in rows], batch_first=True), "y": labels}


def vectors():
    generator = torch.Generator().manual_seed(0)
    return list(zip(torch.randn(24, 8, generator=generator), torch.arange(24) % 2, strict=True))


def train(model, data, collate, *, functional, workers=0):
    loss = nn.CrossEntropyLoss() if functional else None
    loader = DataLoader(data, batch_size=12, collate_fn=collate, num_workers=workers)
    private, optimizer, batches = private_run(CAL, model, loader, loss=loss, generator=1, rng=2)
    for batch in batches:
        x, y = batch.values() if isinstance(batch, dict) else batch
        optimizer.zero_grad()
        if functional:
            private.backward(x, y)
        else:
            outputs = private(x)
            if outputs.ndim == 3:
                mask = (x != 0)[:, :, None]
                outputs = (outputs * mask).sum(1) / mask.sum(1)
            F.cross_entropy(outputs, y).backward()
        optimizer.step()
    return optimizer.record.steps


@pytest.mark.parametrize("collate", [to_longest, to_longest_left, in_dicts])
@pytest.mark.parametrize("functional", [True, False])
def test_padding_visible_to_the_model(collate, functional):
    with pytest.raises(dm.UnsupportedCombinationError, match="depends on the padding"):
        train(Pooled(masked=False), texts(), collate, functional=functional)
    assert train(Pooled(masked=True), texts(), collate, functional=functional) == 2


@pytest.mark.parametrize("functional", [True, False])
def test_padding_barely_visible_to_the_model(functional):
    """A third of a percent, which all examples of a batch may add in one direction."""
    data = [(torch.arange(300 + i // 2 % 2) % 19 + 1, y) for i, (_, y) in enumerate(texts())]
    with pytest.raises(dm.UnsupportedCombinationError, match="depends on the padding"):
        train(Pooled(masked=False), data, to_longest, functional=functional)
    assert train(Pooled(masked=True), data, to_longest, functional=functional) == 2


def test_padding_visible_in_token_outputs():
    with pytest.raises(dm.UnsupportedCombinationError, match="depends on the padding"):
        train(Pooled(masked=False, tokens=True), texts(), to_longest, functional=False)
    assert train(Pooled(masked=True, tokens=True), texts(), to_longest, functional=False) == 2


def test_padding_to_a_fixed_length_is_no_business_of_the_others():
    def fixed(examples):
        rows, targets = to_longest(examples)
        return F.pad(rows, (0, 9 - rows.shape[1])), targets

    assert train(Pooled(masked=False), texts(), fixed, functional=True) == 2


@pytest.mark.slow
def test_padding_in_workers():
    with pytest.raises(dm.UnsupportedCombinationError, match="depends on the padding"):
        train(Pooled(masked=False), texts(), to_longest, functional=True, workers=1)


def mixup(examples):
    x, y = default_collate(examples)
    share = float(np.random.beta(0.4, 0.4))  # noqa: NPY002 - as people write it
    return share * x + (1.0 - share) * x[torch.randperm(len(x))], y


def cutmix(examples):
    x, y = default_collate(examples)
    return torch.cat([x[:, :4], x.roll(1, 0)[:, 4:]], dim=1), y


def standardised(examples):
    x, y = default_collate(examples)
    return (x - x.mean(0)) / (x.std(0, correction=0) + 1e-3), y


def upside_down(examples):
    x, y = default_collate(examples)
    return x[torch.arange(len(x)).flip(0)], y


def with_a_partner(examples):
    """One of the others is required, so that an example cannot be collated alone."""
    x, y = default_collate(examples)
    partners = [random.choice([other for other in range(len(x)) if other != row]) for row in range(len(x))]
    return (x + x[partners]) / 2, y


def noisy_mixup(examples):
    x, y = mixup(examples)
    return x + 0.1 * torch.randn_like(x), y


def noisy_centred(examples):
    x, y = default_collate(examples)
    return x - x.mean(0) + 0.1 * torch.randn_like(x), y


class Centred:
    """A batch of a custom class."""

    def __init__(self, examples):
        x, self.y = default_collate(examples)
        self.x = x - x.mean(0)

    def __iter__(self):
        return iter((self.x, self.y))


class CentredInSlots:
    __slots__ = ("x", "y")
    __init__, __iter__ = Centred.__init__, Centred.__iter__


@pytest.mark.parametrize(
    "collate",
    [
        mixup,
        cutmix,
        standardised,
        upside_down,
        with_a_partner,
        noisy_mixup,
        noisy_centred,
        Centred,
        CentredInSlots,
    ],
)
@pytest.mark.parametrize("functional", [True, False])
def test_rows_of_other_examples(collate, functional):
    with pytest.raises(dm.UnsupportedCombinationError, match=r"other values in a batch than alone"):
        train(nn.Linear(8, 2), vectors(), collate, functional=functional)


def test_rows_of_other_examples_where_an_example_cannot_be_copied():
    """deepcopy supports neither tensors with a graph nor a lock."""
    scale, lock = torch.ones(8, requires_grad=True), threading.Lock()
    data = [(x * scale, y, lock) for x, y in vectors()]

    def centred(examples):
        x = torch.stack([x.detach() for x, _, _ in examples])
        return x - x.mean(0), torch.stack([y for _, y, _ in examples])

    def own(examples):
        return torch.stack([x.detach() for x, _, _ in examples]), torch.stack([y for _, y, _ in examples])

    with pytest.raises(dm.UnsupportedCombinationError, match=r"other values in a batch than alone"):
        train(nn.Linear(8, 2), data, centred, functional=True)
    assert train(nn.Linear(8, 2), data, own, functional=True) == 2


def test_packed_examples():
    def packed(examples):
        flat = torch.cat([x.repeat(1 + 3 * int(x[0] > 0)) for x, _ in examples])
        return flat[: 8 * len(examples)].view(-1, 8), torch.tensor([y for _, y in examples])

    with pytest.raises(dm.UnsupportedCombinationError, match=r"other values in a batch than alone"):
        train(nn.Linear(8, 2), vectors(), packed, functional=True)


class TransformedTogether(Dataset):
    """Passes all examples read together to a transform, as Hugging Face's datasets do."""

    def __init__(self, data, transform):
        self.data, self.transform = data, transform

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.__getitems__([index])[0]

    def __getitems__(self, indices):
        x, y = self.transform([self.data[index] for index in indices])
        return list(zip(x, y, strict=True))


@pytest.mark.parametrize("functional", [True, False])
def test_examples_are_read_one_at_a_time(functional):
    """A transform of the dataset itself sees one example, and cannot mix it with others."""
    met = []

    def shifted(examples):
        met.append(len(examples))
        x, y = default_collate(examples)
        return x - x.mean(0), y

    data = TransformedTogether(vectors(), shifted)
    assert train(nn.Linear(8, 2), data, None, functional=functional) == 2
    assert set(met) == {1}


@pytest.mark.slow
def test_workers_see_the_dataset_itself():
    """A worker_init_fn opens files for the dataset, and uses its attributes."""

    class Opened(Dataset):
        opened = None

        def __len__(self):
            return 24

        def __getitem__(self, index):
            return self.opened[index], index % 2

    def open_it(_):
        dataset = torch.utils.data.get_worker_info().dataset
        dataset.opened = torch.ones(len(dataset), 8)

    loader = DataLoader(Opened(), batch_size=12, num_workers=1, worker_init_fn=open_it)
    _, _, batches = private_run(CAL, nn.Linear(8, 2), loader, generator=1, rng=2)
    assert next(iter(batches))[0].sum() == 12 * 8


def noisy(examples):
    x, y = default_collate(examples)
    return x + torch.randn_like(x), y


def flipped(examples):
    x, y = default_collate(examples)
    return torch.where(torch.rand(len(x), 1) < 0.2, -x, x), y


def in_turn(examples):
    return default_collate([(x + np.float32(np.random.rand()), y) for x, y in examples])  # noqa: NPY002 - the same


def in_two_passes(examples):
    """How many numbers the first pass draws depends on the examples; the second draws for all at once."""
    kept = [random.sample(range(8), 2 + int(x[0] > 0)) for x, _ in examples]
    x, y = default_collate(examples)
    for row, places in enumerate(kept):
        x[row, places] = 0.0
    return x + torch.randn_like(x), y


@pytest.mark.parametrize("collate", [noisy, flipped, in_turn, in_two_passes])
def test_random_numbers_for_every_example_are_no_mixing(collate):
    assert train(nn.Linear(8, 2), vectors(), collate, functional=True) == 2


def test_random_numbers_and_modes_are_put_back():
    model = Pooled(masked=True)
    torch.manual_seed(3)
    loader = DataLoader(texts(), batch_size=12, collate_fn=to_longest)
    private, _, batches = private_run(CAL, model, loader, loss=nn.CrossEntropyLoss(), generator=1, rng=2)
    batch = next(iter(batches))
    before = torch.get_rng_state()
    private.backward(*batch)
    assert torch.equal(before, torch.get_rng_state())
    assert model.training
    assert model.drop.training
