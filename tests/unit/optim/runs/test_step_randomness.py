"""Random numbers of models and datasets in a step depend on a secret of the run, not on earlier steps."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import dpmech as dm
from dpmech.optim import make_private
from dpmech.optim.noise import NoiseStream
from dpmech.optim.runs import PrivateLoader
from dpmech.optim.runs.loader import StepRandomness
from dpmech.samplers import sampler_for

CAL = dm.calibrate_sigma(dm.Identity(4), 8.0, 1e-5, participation=dm.MinSep(4))
SIZE = 24


class Rows(Dataset):
    """Rows with separate draws, in addition to or instead of those of a model; one may be missing."""

    def __init__(self, gone=None, draw=None):
        self.inputs = torch.randn(SIZE, 8, generator=torch.Generator().manual_seed(0))
        self.gone, self.draw = gone, draw

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        noise = 0.0 if self.draw is None else float(self.draw())
        return self.inputs[index] + noise, index % 2

    def __getitems__(self, indices):
        return [self[index] for index in indices if index != self.gone]


class Depth(nn.Module):
    """Two layers of dropout."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.first, self.drop, self.last = nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 2)
        for param in self.parameters():
            nn.init.normal_(param, generator=generator)

    def forward(self, x):
        return self.last(self.drop(torch.relu(self.first(self.drop(x)))))


def sums(monkeypatch, data, *, loss=True, workers=0, model=None, **options):
    """The sums of all steps before the noise, after a seed at the top of the script."""
    found, mean = [], NoiseStream.mean_step

    def noted(self, parts, divisors, clip_norm=None):
        found.append(torch.cat([part.flatten().double() for part in parts]))
        return mean(self, parts, divisors, clip_norm)

    with monkeypatch.context() as patched:
        patched.setattr(NoiseStream, "mean_step", noted)
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002 - as scripts do
        model = Depth() if model is None else model()
        made, optimizer, loader = make_private(
            model,
            torch.optim.SGD(model.parameters(), lr=0.0),
            DataLoader(data, num_workers=workers),
            CAL,
            1.0,
            loss=nn.CrossEntropyLoss() if loss else None,
            expected_batch_size=SIZE / 4,
            dataset_size=SIZE,
            **options,
        )
        for inputs, targets in loader:
            if loss:
                made.backward(inputs, targets)
            else:
                optimizer.zero_grad()
                nn.functional.cross_entropy(made(inputs), targets).backward()
            optimizer.step()
        optimizer.close()
    return torch.stack(found), [loader.sampler.indices(step).tolist() for step in range(4)]


def run():
    model = nn.Linear(8, 2)
    return make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=0.0),
        DataLoader(Rows()),
        CAL,
        1.0,
        loss=nn.CrossEntropyLoss(),
        expected_batch_size=SIZE / 4,
        dataset_size=SIZE,
    )


WAYS = {
    "per example": {"clipping_mode": "per_example"},
    "ghost": {"clipping_mode": "ghost"},
    "parts": {"max_physical_batch_size": 2},
    "hooks": {"loss": False},
    "hooks, parts": {"loss": False, "max_physical_batch_size": 2},
}


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("way", WAYS)
def test_a_missing_example_does_not_shift_later_draws(way, monkeypatch):
    if "hooks" in way:
        pytest.importorskip("opacus")
    whole, batches = sums(monkeypatch, Rows(), generator=1, **WAYS[way])
    without, _ = sums(monkeypatch, Rows(gone=batches[0][0]), generator=1, **WAYS[way])
    assert not torch.equal(whole[0], without[0])
    assert torch.equal(whole[1:], without[1:])


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("way", WAYS)
def test_a_script_seed_does_not_determine_the_draws(way, monkeypatch):
    if "hooks" in way:
        pytest.importorskip("opacus")
    (one, _), (other, _) = (sums(monkeypatch, Rows(), **WAYS[way]) for _ in range(2))
    # Of 96 masks and more a step: they agree by chance with probability below 2^-96.
    assert not any(torch.equal(mine, theirs) for mine, theirs in zip(one, other, strict=True))


@pytest.mark.parametrize("draw", [random.random, np.random.random, lambda: torch.rand(())])
@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_datasets_use_the_secret_too(draw, workers, monkeypatch):
    def found(**options):
        return sums(monkeypatch, Rows(draw=draw), model=lambda: nn.Linear(8, 2), workers=workers, **options)[
            0
        ]

    assert torch.equal(found(generator=1), found(generator=1))
    assert not torch.equal(found(), found())


def test_parts_of_a_batch_use_different_numbers():
    """Equal numbers would correlate the masks of one example with those of another."""
    loader = PrivateLoader(DataLoader(Rows()), sampler_for(CAL, SIZE), max_physical_batch_size=2)
    drawn, masks = set(), set()
    for inputs, _ in loader:
        drawn.add(float(torch.rand(())))
        with loader.drawing():
            masks.add(float(torch.rand(())))
        loader.progress.count(len(inputs))
        if loader.progress.complete:
            loader.progress.note_step()
    assert len(drawn) == len(masks) == SIZE // 2
    assert not drawn & masks


def test_draws_outside_of_steps_are_unaffected():
    made, optimizer, loader = run()
    torch.manual_seed(7)
    expected = torch.rand(4)
    torch.manual_seed(7)
    found, inside = [], []
    for inputs, targets in loader:
        inside.append(torch.rand(()))
        made.backward(inputs, targets)
        optimizer.step()
        found.append(torch.rand(()))
    assert torch.equal(torch.stack(found), expected)
    assert not set(torch.stack(inside).tolist()) & set(expected.tolist())


def test_torch_uses_the_whole_secret():
    """An integer seeds torch's CPU generator with 32 bits, which can be tried in minutes."""
    bits = np.random.MT19937()
    with StepRandomness(lambda use: use.encode() * 4).at("8 bytes."):
        words = torch.get_rng_state().numpy()[24:5016].view(np.uint64).astype(np.uint32)
        found = torch.randint(2**20, (2000,))
    state = bits.state
    state["state"] = {"key": words, "pos": 624}
    bits.state = state
    expected = bits.random_raw(2000) % 2**20
    assert found.tolist() == expected.tolist()
    assert len(set(words.tolist())) > 600
    drawn = set()
    for end in "ab":  # the 32 bits that an integer seed would use are equal
        with StepRandomness(lambda use, end=end: b"x" * 31 + end.encode()).at(""):
            drawn.add(tuple(torch.rand(4).tolist()))
    assert len(drawn) == 2
