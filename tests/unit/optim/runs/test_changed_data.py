"""Datasets changed after the check are detected at the next epoch, and in the record."""

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, StackDataset, Subset, TensorDataset

import dpmech as dm
from dpmech.optim import UserExamples
from dpmech.optim.runs.uniqueness import ExamplePlaces
from tests.support.training import linear, private_run, squared_error

SIZE, N, EPOCH = 24, 6, 3
CAL = dm.calibrate_sigma(dm.Identity(N), 8.0, 1e-5, participation=dm.MinSep(EPOCH))


def tensors():
    rng = torch.Generator().manual_seed(0)
    return torch.randn(2 * SIZE, 3, generator=rng), torch.randn(2 * SIZE, 1, generator=rng)


def reassigned_indices(data):
    data.indices = [0, *range(1, SIZE)][::-1]


def indices_in_place(data):
    data.indices[5] = SIZE + 3


def repeated(data):
    data.indices = [0] * SIZE


def other_tensors(data):
    data.dataset.tensors = tuple(tensor.clone() for tensor in data.dataset.tensors)


def tensors_in_place(data):
    data.dataset.tensors[0][1:] = data.dataset.tensors[0][0]


def other_base(data):
    data.dataset = TensorDataset(*tensors())


CHANGES = [reassigned_indices, indices_in_place, repeated, other_tensors, tensors_in_place, other_base]


@pytest.mark.parametrize("change", CHANGES)
def test_a_view_that_changes_after_an_epoch_is_refused(change):
    data = Subset(TensorDataset(*tensors()), list(range(SIZE)))
    model, optimizer, loader = private_run(CAL, linear(), data, loss=squared_error, clip_norm=1.0)
    for batch in loader:
        model.backward(*batch)
        optimizer.step()
    assert optimizer.run_record().steps == EPOCH
    change(data)
    with pytest.raises(dm.UnsupportedCombinationError, match="the dataset changed since the run was set up"):
        next(iter(loader))
    with pytest.raises(dm.UnsupportedCombinationError, match="another dataset is another run"):
        optimizer.run_record()
    assert optimizer.record.steps == EPOCH


def test_users_examples_that_change_are_refused():
    """One user would have more examples than certified."""
    ids = ["ann"] * 20 + ["bob"] * 28
    data = UserExamples(TensorDataset(*tensors()), ids, 12)
    cal = dm.calibrate_sigma(dm.Identity(4), 8.0, 1e-5, participation=dm.Poisson(0.5, 12))
    model, optimizer, loader = private_run(cal, linear(), data, loss=squared_error, clip_norm=1.0)
    for batch in loader:
        model.backward(*batch)
        optimizer.step()
    data.indices = list(range(24))  # twenty of Ann's
    with pytest.raises(dm.UnsupportedCombinationError, match="the dataset changed"):
        next(iter(loader))
    with pytest.raises(dm.UnsupportedCombinationError, match="the dataset changed"):
        optimizer.run_record()


class Named(Dataset):
    def __init__(self):
        self.example_ids = list("abcd")

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return index


def swapped(values):
    values[0], values[1] = values[1], values[0]


def swap_ids(data):
    swapped(data.example_ids)


def swap_parts(data):
    swapped(data.datasets)


def swap_second(data):
    swapped(data.datasets[1].indices)


@pytest.mark.parametrize(
    ("data", "change"),
    [
        ([torch.zeros(1), torch.ones(1)], swapped),
        ([1.5, 2.5], swapped),
        (Named(), swap_ids),
        (ConcatDataset([TensorDataset(torch.randn(3)), TensorDataset(torch.randn(3))]), swap_parts),
        (ConcatDataset([[1.0, 2.0], [3.0, 4.0]]), lambda data: swapped(data.datasets[0])),
        (StackDataset(torch.randn(3), Subset(torch.randn(9), [0, 1, 2])), swap_second),
        (np.array([object(), object()]), lambda data: data.__setitem__(0, object())),
    ],
)  # fmt: skip
def test_other_contents_are_detected(data, change):
    places = ExamplePlaces(data)
    assert not places.changed
    change(data)
    assert places.changed


def test_reading_is_not_a_change():
    """Spawned workers move tensors to shared memory."""
    first, second = tensors()
    data = Subset(TensorDataset(first, second), np.arange(SIZE))
    places = ExamplePlaces(data)
    first.share_memory_()
    list(DataLoader(data, batch_size=4))
    _ = first + 1.0, first[3].clone(), data.indices.sum()
    assert not places.changed
