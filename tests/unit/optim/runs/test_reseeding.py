"""Under hooks no example decides what the others of its batch draw: by seeds, or by states set back."""

import functools
import random
from random import setstate as put_back

import numpy as np
import pytest
from numpy.random import seed as numpy_seed

import dpmech as dm

torch = pytest.importorskip("torch")
pytest.importorskip("opacus")

from torch import nn  # noqa: E402
from torch.utils._python_dispatch import _get_current_dispatch_mode  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402

from dpmech.optim.noise import NoiseStream  # noqa: E402
from tests.support.training import private_run  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook")
CAL = dm.calibrate_sigma(dm.Identity(4), 8.0, 1e-5, participation=dm.MinSep(4))
SIZE, FAR = 48, 1000.0
AT = 2  # step of the example that differs


class Rows(Dataset):
    def __init__(self, gone=None):
        self.inputs, self.gone = torch.randn(SIZE, 8, generator=torch.Generator().manual_seed(0)), gone

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        return self.inputs[index], index % 2

    def __getitems__(self, indices):
        return [self[index] for index in indices if index != self.gone]


class Layers(nn.Module):
    """Two layers of dropout, and of depth drawn by Python and numpy."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2)
        self.own = torch.Generator().manual_seed(0)
        generator = torch.Generator().manual_seed(0)
        for param in self.parameters():
            nn.init.normal_(param, generator=generator)

    def between(self, inputs, before):
        """What happens after the first draws."""

    def forward(self, inputs):
        before = torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002 - as models do
        drawn = random.random(), np.random.random()  # noqa: NPY002 - the same
        hidden = nn.functional.dropout(self.first(inputs), 0.5)
        self.between(inputs, before)
        again = random.random(), np.random.random()  # noqa: NPY002 - the same
        hidden = nn.functional.dropout(torch.relu(self.second(hidden)), 0.5)
        for one, other in zip(drawn, again, strict=True):
            hidden = hidden if one > other else -hidden
        return self.last(hidden)


def set_back(put):
    """A model in which a large value sets a generator."""

    class Model(Layers):
        def between(self, inputs, before):
            if bool((inputs[:, 0] > 0.5 * FAR).any()):
                put(self, *before)

    return Model


class OwnDraws(Layers):
    def forward(self, inputs):
        self.between(inputs, ())
        hidden = self.first(inputs)
        return self.last(torch.relu(hidden * (torch.rand(hidden.shape, generator=self.own) > 0.5)))


class OwnSeeded(OwnDraws):
    def between(self, inputs, before):
        if bool((inputs[:, 0] > 0.5 * FAR).any()):
            self.own.manual_seed(5)


def masked(make):
    """A model with a mask of one draw."""

    class Model(Layers):
        def forward(self, inputs):
            hidden = nn.functional.dropout(self.first(inputs), 0.5)
            return self.last(torch.relu(self.second(make(inputs, hidden))))

    return Model


def of_the_first(inputs):
    return int(inputs[0, 0].detach().abs() * 1000)


def fresh(seed):
    def mask(inputs, hidden):
        return hidden * (
            torch.rand(hidden.shape, generator=torch.Generator().manual_seed(seed(inputs))) > 0.5
        )

    return masked(mask)


def forked(inputs, hidden):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(of_the_first(inputs))
        return nn.functional.dropout(hidden, 0.5)


def sums(model, data):
    """The sums of every step before their noise, and the batches."""
    found, mean = [], NoiseStream.mean_step

    def noted(self, parts, divisors, clip_norm=None):
        found.append(torch.cat([part.flatten().double() for part in parts]))
        return mean(self, parts, divisors, clip_norm)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(NoiseStream, "mean_step", noted)
        made, optimizer, loader = private_run(
            CAL, model(), DataLoader(data), lr=0.0, rng=3, generator=1, expected_batch_size=SIZE / 4,
            dataset_size=SIZE,
        )  # fmt: skip
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(made(inputs), targets).backward()
            optimizer.step()
    return torch.stack(found), [loader.sampler.indices(step).tolist() for step in range(4)]


@functools.cache
def place_of():
    """The first example of a batch."""
    return sums(lambda: nn.Linear(8, 2), Rows())[1][AT][0]


def moved(model):
    """How far sums move if an example is replaced, in its step and in others."""
    data, place, found = Rows(), place_of(), []
    for value in (FAR, -FAR):
        data.inputs[place] = value
        found.append(sums(model, data)[0])
    return (found[0] - found[1]).norm(dim=1)


DECIDED = {
    "torch's own seed": set_back(lambda *_: torch.manual_seed(torch.initial_seed())),
    "torch's earlier state": set_back(lambda model, before, *_: torch.set_rng_state(before)),
    "state of torch's object": set_back(lambda model, before, *_: torch.default_generator.set_state(before)),
    "Python's earlier state": set_back(lambda model, _, before, __: random.setstate(before)),
    "numpy's earlier state": set_back(lambda model, _, __, before: np.random.set_state(before)),  # noqa: NPY002 - as models do
    "a seed of Python": set_back(lambda *_: random.seed(3)),
    "a seed of numpy": set_back(lambda *_: np.random.seed(3)),  # noqa: NPY002 - the same
    "Python's earlier state, by another name": set_back(lambda _, __, before, ___: put_back(before)),
    "a seed of numpy, by another name": set_back(lambda *_: numpy_seed(3)),  # noqa: NPY002 - the same
    "a generator of the model": OwnSeeded,
}


@pytest.mark.parametrize("way", DECIDED)
def test_an_example_that_sets_a_generator_is_refused(way):
    """One example moved sums by 2.6 to 5.1 clip norms where 2 were certified."""
    with pytest.raises(dm.UnsupportedCombinationError, match=r"seeds a generator of|mixes examples"):
        moved(DECIDED[way])


SEEDED = {
    "a generator of the call": fresh(of_the_first),
    "a fork": masked(forked),
    "a known seed": fresh(lambda inputs: 3),
}


@pytest.mark.parametrize("way", SEEDED)
def test_draws_of_all_examples_from_a_seed_of_the_call_are_refused(way):
    """Of a known seed too: an example that is absent gives the others the draws of other places."""
    with pytest.raises(dm.UnsupportedCombinationError, match="seeds a generator of torch"):
        sums(SEEDED[way], Rows())


def features(inputs, hidden):
    return hidden @ torch.randn(8, 8, generator=torch.Generator().manual_seed(3))


def features_in_a_fork(inputs, hidden):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return hidden @ torch.randn(8, 8)


def by_rows(inputs, hidden):
    seeds = [int(one.abs() * 1000) for one in inputs[:, 0].detach()]
    masks = [torch.rand(8, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    return hidden * (torch.stack(masks) > 0.5)


class Repeating(Layers):
    """The same mask twice, in every call."""

    def between(self, inputs, before):
        torch.set_rng_state(before[0])


def by_methods():
    """As after `from random import random`."""
    draws = random.random, np.random.random

    def skipped(inputs, hidden):
        for draw in draws:
            hidden = hidden if draw() > 0.5 else -hidden
        return hidden

    return masked(skipped)


HARMLESS = {
    "methods of global generators": by_methods(),
    "the same numbers in every call": masked(features),
    "the same in a fork": masked(features_in_a_fork),
    "of its own row": masked(by_rows),
    "one mask twice": Repeating,
    "nothing": Layers,
    "names only": set_back(lambda *_: None),
}


@pytest.mark.parametrize("way", HARMLESS)
def test_draws_that_no_other_example_decides(way):
    found = moved(HARMLESS[way])
    assert found[AT] < 2.0 + 1e-6
    assert not found[:AT].any()
    assert not found[AT + 1 :].any()


def test_a_generator_of_the_model_follows_from_the_secret():
    """From its own seed, which scripts state, an absent example would shift the draws of later steps."""
    whole, without = (sums(OwnDraws, Rows(gone=gone))[0] for gone in (None, place_of()))
    assert torch.equal(whole[AT + 1 :], without[AT + 1 :])
    own = []

    def made():
        own.append(OwnDraws())
        return own[-1]

    before = OwnDraws().own.get_state()
    sums(made, Rows())
    assert torch.equal(own[0].own.get_state(), before)  # the secret is not left in the model


def test_an_interrupt_leaves_nothing_behind():
    """No hook runs after it: the next call ends the watch of that one."""
    kept = random.seed, np.random.seed

    class Interrupted(Layers):
        def between(self, inputs, before):
            if type(_get_current_dispatch_mode()).__name__ == "_Draws":  # not in trials
                raise KeyboardInterrupt
            if bool((inputs[:, 0] > 2 * FAR).any()):
                torch.manual_seed(1)

    with pytest.raises(KeyboardInterrupt):
        sums(Interrupted, Rows())
    assert random.seed is not kept[0]
    sums(set_back(lambda *_: torch.manual_seed(1)), Rows())
    assert _get_current_dispatch_mode() is None
    assert (random.seed, np.random.seed) == kept
