"""What is drawn as examples are read and collated follows from a secret, for each example by itself."""

import functools
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import dpmech as dm
from dpmech.optim import UserDataset
from dpmech.optim.noise import NoiseStream
from dpmech.optim.state import generators_of
from tests.support.training import private_run

CAL = dm.calibrate_sigma(dm.Identity(4), 8.0, 1e-5, participation=dm.MinSep(4))
SIZE, FAR = 40, 1000.0
AT = 1  # step of the example that is absent, or differs


class Rows(Dataset):
    """Rows with noise, of a sign that is drawn; one of them may be absent."""

    def __init__(self, seed=lambda index, value: None, draw=random.random):
        self.inputs, self.gone = torch.randn(SIZE, 8, generator=torch.Generator().manual_seed(0)), None
        self.seed, self.draw = seed, draw

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        value = self.inputs[index]
        self.seed(index, float(value[0]))
        return value if self.draw() > 0.5 else -value, index % 2

    def __getitems__(self, indices):
        return [self[index] for index in indices if index != self.gone]


class Noisy:
    """A collate function that adds noise, row by row."""

    def __init__(self, draw=torch.rand):
        self.draw = draw

    def __call__(self, examples):
        inputs = [one + 3.0 * self.draw(8) for one, _ in examples]
        targets = torch.tensor([target for _, target in examples], dtype=torch.int64)
        return torch.stack(inputs) if inputs else torch.zeros(0, 8), targets


class WithGenerator:
    def __init__(self, generator):
        self.generator = generator

    def __call__(self, *size):
        if isinstance(self.generator, torch.Generator):
            return torch.rand(size, generator=self.generator)
        if isinstance(self.generator, random.Random):
            return self.generator.random()
        return self.generator.random(*size)


RNG = np.random.default_rng(0)
BITS = np.random.MT19937(0)


def sums(data, collate=None, *, workers=0, generator=1):
    """The sums of every step before their noise, and the batches."""
    found, mean = [], NoiseStream.mean_step

    def noted(self, parts, divisors, clip_norm=None):
        found.append(torch.cat([part.flatten().double() for part in parts]))
        return mean(self, parts, divisors, clip_norm)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(NoiseStream, "mean_step", noted)
        torch.manual_seed(0)
        loader = DataLoader(data, collate_fn=collate or Noisy(), num_workers=workers)
        made, optimizer, loader = private_run(
            CAL, nn.Linear(8, 2), loader, lr=0.0, rng=3, generator=generator, loss=nn.CrossEntropyLoss(),
            expected_batch_size=SIZE / 4, dataset_size=SIZE,
        )  # fmt: skip
        for inputs, targets in loader:
            made.backward(inputs, targets)
            optimizer.step()
    return torch.stack(found), [loader.sampler.indices(step).tolist() for step in range(4)]


@functools.cache
def place_of(number):
    """An example of a batch."""
    return sums(Rows())[1][AT][number]


def by_value(seed):
    """A large value of an example seeds what the examples after it draw."""

    def seeded(index, value):
        if value > 0.5 * FAR:
            seed(7)

    return seeded


def of_a_global():
    return RNG.random()


DATA = {
    "torch, by index": lambda: Rows(lambda index, _: torch.manual_seed(index)),
    "Python, by value": lambda: Rows(by_value(random.seed)),
    "numpy, by value": lambda: Rows(by_value(np.random.seed), np.random.random),
    "a numpy generator": lambda: Rows(draw=WithGenerator(np.random.default_rng(0))),
    "a Python generator": lambda: Rows(draw=WithGenerator(random.Random(0))),
    "a generator of torch": lambda: Rows(draw=WithGenerator(torch.Generator().manual_seed(0))),
    "bits of numpy": lambda: Rows(draw=lambda: np.random.Generator(BITS).random()),
    "a global": lambda: Rows(draw=of_a_global),
}
WORKERS = [0, pytest.param(1, marks=pytest.mark.slow)]


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("way", DATA)
def test_an_absent_example_changes_no_other_draw(way, workers):
    """It shifted those of all later examples, in later steps too."""
    place, found = place_of(0), []
    for gone in (None, place):
        data = DATA[way]()
        data.inputs[place], data.gone = FAR, gone
        found.append(sums(data, Noisy(torch.zeros), workers=workers)[0])
    moved = (found[0] - found[1]).norm(dim=1)
    assert moved[AT] < 1.0 + 1e-6
    assert not moved[AT + 1 :].any()
    assert not moved[:AT].any()


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize(
    "collate",
    [Noisy, lambda: Noisy(WithGenerator(torch.Generator().manual_seed(0)))],
    ids=["global", "its own generator"],
)
def test_what_is_collated_follows_from_the_secret(collate, workers):
    """Reading an example may seed by its index, which everybody knows."""

    def data():
        return Rows(lambda index, _: torch.manual_seed(index), draw=lambda: 1.0)

    first, again, other = (
        sums(data(), collate(), generator=generator, workers=workers)[0] for generator in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert (first - other).norm(dim=1).min() > 1e-3


@pytest.mark.parametrize("workers", WORKERS)
def test_an_absent_last_example_changes_no_noise_of_others(workers):
    def data():
        return Rows(lambda index, _: torch.manual_seed(index), draw=lambda: 1.0)

    found = []
    for gone in (None, place_of(-1)):
        rows = data()
        rows.gone = gone
        found.append(sums(rows, workers=workers)[0])
    moved = (found[0] - found[1]).norm(dim=1)
    assert moved[AT] < 1.0 + 1e-6
    assert moved.sum() == moved[AT]


class Late(Rows):
    """Makes its generator, of a known seed, when an example needs it."""

    def __init__(self):
        super().__init__(draw=lambda: 1.0)
        self.own = None

    def __getitem__(self, index):
        if self.own is None and index >= SIZE // 2:
            self.own = np.random.default_rng(0)
        value, target = super().__getitem__(index)
        return value + (0.0 if self.own is None else self.own.random()), target


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_generators_that_are_made_while_reading_are_seeded(workers):
    epochs = []
    for _ in range(2):
        _, _, loader = private_run(
            CAL,
            nn.Linear(8, 2),
            DataLoader(Late(), num_workers=workers),
            loss=nn.CrossEntropyLoss(),
            expected_batch_size=SIZE // 4,
        )
        rows = []
        for inputs, _ in loader:
            rows.append(inputs.clone())
            loader.progress.note_step()
        epochs.append(torch.cat(rows))
    assert not (epochs[0] == epochs[1]).all(dim=1)[-(SIZE // 4) :].any()


class LateNoise(Noisy):
    """Makes its generator, of a known seed, at its first call."""

    def __init__(self):
        super().__init__(lambda size: torch.from_numpy(self.own.random(size)))
        self.own = None

    def __call__(self, examples):
        self.own = np.random.default_rng(0) if self.own is None else self.own
        return super().__call__(examples)


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), None])
def test_generators_that_a_collate_function_makes_are_seeded(loss):
    found = []
    for _ in range(2):
        data = DataLoader(Rows(draw=lambda: 1.0), collate_fn=LateNoise())
        _, _, loader = private_run(CAL, nn.Linear(8, 2), data, loss=loss, expected_batch_size=SIZE // 4)
        found.append(next(iter(loader))[0])
    assert not (found[0] == found[1]).all(dim=1).any()


def test_generators_are_found_wherever_they_are():
    class Holder:
        kept = random.Random(0)

        def __init__(self):
            self.data = list(range(100_000))
            self.inner = {"x": [torch.Generator()]}

        def draw(self):
            return RNG

    expected = {id(Holder.kept), id(RNG)}
    holder = Holder()
    expected.add(id(holder.inner["x"][0]))
    assert {id(one) for one in generators_of([holder])} == expected
    assert generators_of([random.random, np.random.random, torch.default_generator]) == []
    assert generators_of([random.SystemRandom()]) == []


def test_generators_of_a_run_are_its_own():
    """A collate function may be a method of an object that also holds the optimizer."""

    class Trainer:
        def __init__(self):
            self.own = np.random.default_rng(0)

        def collate(self, examples):
            return Noisy()(examples)

    trainer = Trainer()
    loader = DataLoader(Rows(), collate_fn=trainer.collate)
    trainer.parts = private_run(
        CAL, nn.Linear(8, 2), loader, generator=np.random.default_rng(1), rng=np.random.default_rng(2),
        loss=nn.CrossEntropyLoss(), expected_batch_size=SIZE / 4, dataset_size=SIZE,
    )  # fmt: skip
    assert generators_of([trainer.collate]) == [trainer.own]
    drawing = random.Random(0)
    users = UserDataset(Rows(draw=drawing.random), (np.arange(SIZE) // 2).tolist(), 2)
    assert generators_of([users]) == [drawing]
