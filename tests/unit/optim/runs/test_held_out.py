"""Which evaluation data are recognized as training data, and which are not."""

import numpy as np
import pytest
import torch
from torch.utils.data import (
    ConcatDataset,
    Dataset,
    IterableDataset,
    StackDataset,
    Subset,
    TensorDataset,
    random_split,
)

from dpmech.optim import UserDataset, UserExamples
from dpmech.optim.runs.held_out import TrainedOn
from tests.support.training import classification


class Wrapper(Dataset):
    def __init__(self, dataset, change=lambda example: example):
        self.dataset, self.change = dataset, change

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        return self.change(self.dataset[index])


class Opaque(Dataset):
    """A wrapper without a recognizable attribute."""

    def __init__(self, read, size):
        self.read, self.size = read, size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return self.read(index)


class Buffer:
    def __init__(self, array):
        self.address = array.__array_interface__["data"][0]


class Chunk:
    """A chunk of a column, as in pyarrow: memory, and the offset of the chunk."""

    def __init__(self, array, offset, size):
        self.array, self.offset, self.size = array, offset, size

    def __len__(self):
        return self.size

    def buffers(self):
        return [None, Buffer(self.array)]

    def to_numpy(self):
        return self.array[self.offset : self.offset + self.size]


class Table:
    def __init__(self, chunks):
        self.column_names = ["x"]
        self.chunks = chunks

    def column(self, name):
        return self if len(self.chunks) > 1 or name == "x" else self.chunks[0]


class Arrow(Dataset):
    """A dataset as in Hugging Face's library: a table, and optionally selected rows of it."""

    def __init__(self, table, indices=None):
        self.column_names = table.column_names
        self._data = table
        self._indices = None if indices is None else Table([Chunk(np.array(indices), 0, len(indices))])

    def __len__(self):
        held = self._data.chunks if self._indices is None else self._indices.chunks
        return sum(map(len, held))

    def __getitem__(self, index):
        if self._indices is not None:
            index = int(self._indices.chunks[0].to_numpy()[index])
        values = np.concatenate([chunk.to_numpy() for chunk in self._data.chunks])
        return {"x": float(values[index])}


def halves():
    whole = classification(40)
    return whole, *random_split(whole, [20, 20], torch.Generator().manual_seed(1))


def test_views_of_the_training_data_are_recognised():
    whole, train, other = halves()
    found = TrainedOn(train).holds
    assert found(train)
    assert found(whole)
    assert found(Subset(train, [3]))
    assert found(Subset(whole, [int(train.indices[7])]))
    assert found(ConcatDataset([other, Subset(train, [0])]))
    assert found(StackDataset(train))
    assert found({"val": other, "train": train})
    assert found([other, Wrapper(train)])
    assert found(Wrapper(train, change=lambda example: (example[0] * 0, example[1])))
    assert found(TensorDataset(*(tensor[train.indices[4] :] for tensor in whole.tensors)))
    assert TrainedOn(Wrapper(train)).holds(Subset(whole, train.indices[:1]))


def test_copies_in_the_same_order_are_recognised():
    whole, train, other = halves()
    copied = TensorDataset(*(tensor[train.indices] for tensor in whole.tensors))
    assert TrainedOn(train).holds(copied)
    assert TrainedOn(train).holds([train[index] for index in range(20)])
    assert TrainedOn(train).holds(Opaque(train.__getitem__, 12))
    assert not TrainedOn(train).holds(Opaque(other.__getitem__, 12))


def test_held_out_data_are_not_taken_for_them():
    whole, train, other = halves()
    found = TrainedOn(train).holds
    assert not found(None)
    assert not found(other)
    assert not found(Subset(other, [3, 3, 3]))  # repetitions in the other dataset are allowed
    assert not found(Wrapper(other))
    assert not found({"a": other, "b": Subset(whole, other.indices)})
    assert not found(classification(40, seed=9))
    zeros = torch.zeros(40)  # targets of no one in particular
    first, second = (TensorDataset(x, zeros) for x in torch.randn(2, 40, 3))
    assert not TrainedOn(first).holds(second)
    assert not found(iter(other))


@pytest.mark.parametrize("kind", [UserDataset, UserExamples])
def test_users_are_known_by_their_examples(kind):
    whole = classification(40)
    train = kind(whole, ["ann"] * 10 + ["bob"] * 10 + ["eve"] * 20, 4)
    assert TrainedOn(train).holds(Subset(whole, [1]))
    assert not TrainedOn(train).holds(Subset(whole, [9]))  # not retained


def test_tables_are_known_by_their_memory():
    column = np.random.default_rng(0).normal(size=40)
    whole = Arrow(Table([Chunk(column, 0, 25), Chunk(column[25:], 0, 15)]))
    chosen = Arrow(whole._data, [1, 3, 30])
    sliced = Arrow(Table([Chunk(column, 3, 5)]))
    assert chosen[2] == whole[30]
    assert sliced[0] == whole[3]
    found = TrainedOn(chosen).holds
    assert found(whole)
    assert found(sliced)
    assert found(Arrow(whole._data, [30]))
    assert not found(Arrow(whole._data, [2, 4, 5, 31]))
    assert not found(Arrow(Table([Chunk(column, 4, 5)])))


class Held(Dataset):
    """A wrapper with an attribute of any name, which returns some of its examples."""

    def __init__(self, data, places):
        self.inner, self.places = data, places

    def __len__(self):
        return len(self.places)

    def __getitem__(self, index):
        return self.inner[self.places[index]]


class Streamed(IterableDataset):
    def __init__(self, read):
        self.read = read

    def __iter__(self):
        return iter(self.read())


class Augmented(Opaque):
    def __getitem__(self, index):
        x, y = self.read(index)
        return x + torch.rand(()), y


def test_wrappers_of_the_training_data_are_recognized():
    _, train, other = halves()
    found = TrainedOn(train).holds
    for places in (range(20), range(0, 20, 2), range(19, -1, -1)):
        assert found(Held(train, places))
        assert found(Subset(Held(train, places), range(4)))
        assert not found(Held(other, places))
        assert not found(Subset(Held(other, places), range(4)))
    stream = Streamed(list)
    stream.inner = [train]
    assert found(stream)
    loop = Held(other, range(20))
    loop.itself = loop
    assert not found(loop)


@pytest.mark.parametrize(
    "size", [20, pytest.param(6000, marks=pytest.mark.slow)]
)  # all training examples are compared, or a sample
def test_copies_in_another_order_are_recognised(size):
    whole = classification(2 * size)
    train, other = Subset(whole, range(size)), Subset(whole, range(size, 2 * size))
    found = TrainedOn(train).holds
    orders = range(size - 1, -1, -1), torch.randperm(size).tolist(), range(0, size, 2)
    for one, expected in ((train, True), (other, False)):
        for places in orders:
            assert found(Opaque(lambda i, one=one, places=places: one[places[i]], len(places))) is expected
        assert found([list(one[i]) for i in orders[0]]) is expected
        assert found(Streamed(lambda one=one: (one[i] for i in orders[1]))) is expected
        assert found(Augmented(one.__getitem__, size)) is False  # not behind other transforms
    assert found(Opaque(lambda i: (train if i % 4 else other)[i], size))
    own = TrainedOn(Augmented(train.__getitem__, size)).holds
    assert own(Augmented(lambda i: train[size - 1 - i], size))  # the same random numbers after the same seeds
    assert not own(Augmented(lambda i: other[size - 1 - i], size))


def test_examples_looked_up_by_a_collate_fn_are_recognized():
    whole, train, other = halves()
    for one, expected in ((train, True), (other, False)):
        places = torch.tensor(one.indices).flip(0)

        def look_up(keys, places=places):
            return [tensor[places[keys]] for tensor in whole.tensors]

        assert TrainedOn(train).holds(range(20), collate=look_up) is expected
    assert not TrainedOn(train).holds(range(20))


def test_selection_by_incomparable_data_gives_a_warning(recwarn):
    _, train, other = halves()
    found = TrainedOn(train).holds
    assert not found(iter(other))
    assert not found(other, chosen=["EarlyStopping"])
    assert not found(Streamed(lambda: (other[i] for i in range(20))), chosen=["EarlyStopping"])
    assert not recwarn
    with pytest.warns(UserWarning, match=r"iterator, .* cannot be read .* selected by it \(EarlyStopping\)"):
        assert not found(iter([train[0]]), chosen=["EarlyStopping"])
    few = TensorDataset(torch.arange(40) % 2)  # only two values: held-out examples equal some of them
    found = TrainedOn(few).holds
    data = [TensorDataset((torch.arange(30) // 3) % 2) for _ in range(2)]  # a new object per evaluation
    with pytest.warns(UserWarning, match=r"cannot be compared .* many training examples are equal") as told:
        assert [found(one, chosen=["EarlyStopping"]) for one in data] == [False, False]
    assert len(told) == 1


def test_reading_is_bounded_and_leaves_random_numbers_alone():
    reads = []
    whole = classification(30_000)
    train = Opaque(lambda i: reads.append(i) or whole[i], 10_000)
    held = Opaque(lambda i: reads.append(i) or whole[20_000 + i], 10_000)
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    finder = TrainedOn(train)
    assert not finder.holds(held)
    assert not finder.holds(held)  # kept
    assert torch.equal(torch.rand(2), expected)
    assert len(reads) <= 4096 + 256 + 4 * 16
    assert finder.holds(Opaque(lambda i: whole[9_999 - i], 10_000))
