"""Whether a dataset is accepted, against a count of how often each example of it really appears."""

import collections

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dpmech as dm

torch = pytest.importorskip("torch")

from torch.utils.data import (  # noqa: E402 - after the check for torch
    ConcatDataset,
    Dataset,
    StackDataset,
    Subset,
    TensorDataset,
    random_split,
)

from dpmech.optim.runs.uniqueness import ExamplePlaces  # noqa: E402


class Own(Dataset):
    """A dataset of a class of its own, of which nothing is known."""

    def __init__(self, tags):
        self.tags = tags

    def __len__(self):
        return len(self.tags)

    def __getitem__(self, index):
        return self.tags[index]


class Named(Own):
    def example_ids(self):
        return [("named", tag) for tag in self.tags]


# Every example says which one it is; two of the tensors share memory.
TAGS = torch.arange(100, 112)
BASES = {
    "tensor": TensorDataset(TAGS[:7]),
    "overlapping tensor": TensorDataset(TAGS[4:]),
    "every second": TensorDataset(TAGS[::2], torch.full((1,), 7).expand(6)),
    "list": list(range(200, 205)),
    "range": range(300, 306),
    "array": np.arange(400, 405),
    "own": Own(range(500, 506)),
    "named": Named(range(600, 606)),
}


def tags(example):
    """The base examples that an example consists of."""
    match example:
        case dict():
            return set().union(*map(tags, example.values()))
        case tuple() | list():
            return set().union(*map(tags, example))
        case _:
            tag = int(example)
            return set() if tag == 7 else {tag}


def most_rows(dataset):
    """In how many rows the base example stands that stands in most."""
    counts = collections.Counter()
    for row in range(len(dataset)):
        counts.update(tags(dataset[row]))
    return max(counts.values(), default=0)


@st.composite
def indices(draw, length, *, distinct):
    size = draw(st.integers(1, length))
    if distinct:
        picked = draw(st.permutations(range(length)))[:size]
        return [place - length if draw(st.booleans()) else place for place in picked]
    return draw(st.lists(st.integers(-length, length - 1), min_size=1, max_size=size))


def as_given(draw, picked):
    kind = draw(st.sampled_from([list, tuple, np.array, torch.tensor]))
    return kind(picked)


@st.composite
def nestings(draw, depth=3):
    if depth == 0 or draw(st.integers(0, 5)) == 0:
        return BASES[draw(st.sampled_from(sorted(BASES)))]
    inner = draw(nestings(depth - 1))
    kind = draw(st.sampled_from(["subset", "joined", "split", "stacked", "partition"]))
    if kind == "subset":
        # Mostly without repeats: with them nearly every nesting is refused.
        picked = draw(indices(len(inner), distinct=draw(st.integers(0, 4)) > 0))
        return Subset(inner, as_given(draw, picked))
    if kind == "joined":
        return ConcatDataset([inner, *draw(st.lists(nestings(depth - 1), min_size=1, max_size=2))])
    if kind in ("split", "partition"):
        if len(inner) == 1:
            return inner
        first = draw(st.integers(1, len(inner) - 1))
        shuffled = torch.Generator().manual_seed(draw(st.integers(0, 9)))
        parts = random_split(inner, [first, len(inner) - first], generator=shuffled)
        return parts[1] if kind == "split" else ConcatDataset(parts[::-1])
    other = draw(nestings(depth - 1))
    length = min(len(inner), len(other))
    inner, other = Subset(inner, range(length)), Subset(other, range(length))
    return StackDataset(inner, other) if draw(st.booleans()) else StackDataset(one=inner, two=other)


verdicts = collections.Counter()


@given(nestings())
def check(dataset):
    once = most_rows(dataset) == 1
    try:
        ExamplePlaces(dataset)
        accepted = True
    except dm.UnsupportedCombinationError as error:
        accepted = "holds examples twice" not in str(error)
    assert accepted == once
    verdicts[accepted] += 1


def test_a_nesting_is_accepted_exactly_if_every_example_stands_in_one_row():
    check()
    # Neither verdict is a rare one, however many examples the profile has.
    assert min(verdicts[True], verdicts[False]) >= 0.1 * sum(verdicts.values()) > 0
