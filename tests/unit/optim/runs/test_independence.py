"""State of a loss that cannot be put back between two examples of a loop is found by a comparison."""

import contextvars
import itertools
import random
import tempfile

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

import dpmech as dm  # noqa: E402
from dpmech.optim.runs import independence  # noqa: E402
from tests.support.training import classification, classifier, cross_entropy, private_run  # noqa: E402

CAL = dm.calibrate_sigma(dm.Identity(6), 8.0, 1e-5)


def in_a_loop(loss, model=None, mode="loop"):
    """The clipping mode after a step."""
    model = classifier() if model is None else model
    loader = DataLoader(classification(12), batch_size=4)
    private, optimizer, loader = private_run(
        CAL, model, loader, generator=1, loss=loss, loss_takes="batch_of_one", clipping_mode=mode
    )
    private.backward(*next(iter(loader)))
    optimizer.step()
    return optimizer.clipping_mode


def counted(step):
    """A loss whose shift follows from a call of `step`."""
    return lambda model, x, y: cross_entropy(model, x + 0.1 * step(), y)


def filed(file):
    return counted(lambda: file.write(b"x") and file.tell())


def drifting(file):
    """Values of the example itself, and slowly."""

    def kept(model, x, y):
        mean = file.tell() / 1e6
        file.seek(int(1e6 * (0.99 * mean + 0.01 * float(x.detach().square().mean()))))
        return cross_entropy(model, x + mean, y)

    return kept


@pytest.mark.parametrize(
    ("make", "mode"),
    [(filed, "loop"), (filed, "per_example"), (filed, "auto"), (drifting, "loop")],
)
def test_state_that_cannot_be_put_back_is_refused(make, mode, monkeypatch):
    with (
        tempfile.TemporaryFile() as file,
        pytest.raises(
            dm.UnsupportedCombinationError,
            match=r"another gradient after other examples .* set by the training",
        ),
    ):
        in_a_loop(make(file), mode=mode)
    monkeypatch.setattr(independence, "_changed", lambda *_, **how: [])
    with tempfile.TemporaryFile() as file:
        assert mode in (in_a_loop(make(file), mode=mode), "auto")  # nothing else refuses it


# ---- iterators are refused by name, as the first turns may all be the same


def warmed():
    yield from itertools.repeat(0.0, 1000)
    yield 1.0


def endless():
    while True:
        for number in range(3):
            yield 0.0 * number


def numbered():
    numbers = itertools.count()
    return lambda: float(next(numbers) > 1000)


def listed(wrap=iter):
    rates = wrap([0.0] * 1000 + [1.0])
    return lambda: next(rates)


def twice_around():
    turns = itertools.cycle([0.0, 0.0])
    for _ in range(3):  # past the first pass
        next(turns)
    return lambda: next(turns)


ITERATORS = {
    "generator": lambda: warmed().__next__,
    "generator, in a loop": lambda: endless().__next__,
    "count": numbered,
    "list_iterator": listed,
    "list_iterator, mapped": lambda: listed(lambda rates: map(float, rates)),
    "tuple_iterator, chained": lambda: listed(itertools.chain),
    "list_reverseiterator": lambda: listed(reversed),
    "cycle": lambda: itertools.cycle([0.0] * 1000 + [1.0]).__next__,
    "cycle, later": twice_around,
}


@pytest.mark.parametrize("mode", ["loop", "auto"])
@pytest.mark.parametrize("name", ITERATORS)
def test_an_iterator_that_a_loss_advances_is_refused(name, mode):
    kind = name.partition(",")[0]
    with pytest.raises(dm.UnsupportedCombinationError, match=f"advanced a {kind}.* by the training"):
        in_a_loop(counted(ITERATORS[name]()), mode=mode)


@pytest.mark.parametrize("mode", ["loop", "auto"])
def test_an_iterator_that_only_the_training_loop_advances_is_not_refused(mode):
    held = [warmed(), itertools.count(), iter([1.0, 2.0]), itertools.cycle([1.0]), endless()]
    rates = [next(one) for one in held]
    assert in_a_loop(counted(lambda: 0.01 * len(held) + 0.0 * sum(rates)), mode=mode) in (
        "loop",
        "per_example",
    )


def test_a_context_variable_without_a_value_is_refused():
    variable = contextvars.ContextVar("rate")

    def loss(model, x, y):
        variable.set(1.0)
        return cross_entropy(model, x, y)

    with pytest.raises(
        dm.UnsupportedCombinationError, match=r"context variable 'rate'.* set before training"
    ):
        in_a_loop(loss)


@pytest.mark.parametrize(
    "unusual", [lambda x: x.max() > 50, lambda x: x.min() < -50, lambda x: x.max() < 2e-3]
)
def test_state_that_only_unusual_examples_write_is_refused(unusual):
    with tempfile.TemporaryFile() as file:

        def loss(model, x, y):
            written = file.tell()
            if unusual(x.detach()):
                file.write(b"x")
            return cross_entropy(model, x + written, y)

        with pytest.raises(dm.UnsupportedCombinationError, match="another gradient after other examples"):
            in_a_loop(loss)


@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.parametrize("loss", [cross_entropy, None])
def test_modules_whose_state_cannot_be_found_are_refused(loss):
    model = torch.jit.trace(classifier(), torch.randn(1, 3))
    with pytest.raises(
        dm.UnsupportedCombinationError, match=r"TorchScript .* the module before torch\.jit\.script"
    ):
        private_run(CAL, model, DataLoader(classification(12), batch_size=4), loss=loss)


def test_a_function_of_its_example_is_not_refused():
    def noisy(model, x, y):
        return cross_entropy(model, nn.functional.dropout(x + torch.randn_like(x), 0.3), y)

    assert in_a_loop(noisy) == "loop"
    generators = np.random.default_rng(1), random.Random(1)
    assert in_a_loop(counted(lambda: generators[0].normal() + generators[1].random())) == "loop"
    assert in_a_loop(lambda model, x, y: cross_entropy(model, x, y) + float("nan")) == "loop"
    held = []
    assert in_a_loop(counted(lambda: held.append(1.0) or sum(held))) == "loop"  # put back
