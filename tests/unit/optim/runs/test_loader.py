import collections
import io
import tracemalloc

import numpy as np
import pytest
import torch
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    StackDataset,
    Subset,
    TensorDataset,
)

import dpmech as dm
from dpmech.optim import CanaryData, PrivateLoader
from dpmech.optim.runs.datasets import Collation, OneByOne
from dpmech.optim.runs.uniqueness import ExamplePlaces
from dpmech.schemes.balls_in_bins.sampler import BallsInBinsSampler
from dpmech.schemes.cyclic_poisson.sampler import CyclicPoissonSampler
from dpmech.schemes.fixed_order.sampler import SequentialSampler
from dpmech.schemes.poisson.sampler import PoissonSampler
from tests.support.quick_cases import slow_but

SIZE = 23


def dataset(size=SIZE):
    return TensorDataset(torch.arange(size), torch.arange(2.0 * size).reshape(size, 2))


def samplers():
    return {
        "bins": BallsInBinsSampler(SIZE, 4, 12, rng=1),
        "poisson": PoissonSampler(SIZE, 0.1, 12, rng=1),
        "cyclic": CyclicPoissonSampler(SIZE, 0.5, 3, 12, rng=1),
        "min-sep": SequentialSampler(SIZE, dm.MinSep(4), 12),
        "drop": SequentialSampler(SIZE, dm.EveryStep(), 12, batch_size=5, drop_last=True),
        "every": SequentialSampler(SIZE, dm.EveryStep(), 12, batch_size=5, reshuffle=True, rng=1),
    }


every_sampler = pytest.mark.parametrize("name", list(samplers()))


def private(name="bins", **options):
    return PrivateLoader(DataLoader(dataset()), samplers()[name], **options)


def run(loader, steps=None):
    """The batches of a loader, one list of microbatches per step, with a step after every microbatch."""
    batches = []
    while loader.steps_taken < loader.sampler.n:
        begun = False
        for microbatch in loader:
            if not begun:
                batches.append([])
            batches[-1].append(microbatch)
            loader.progress.count(len(microbatch[0]))
            begun = not loader.progress.complete
            if not begun:
                loader.progress.note_step()
                if len(batches) == steps:
                    return batches
    return batches


@every_sampler
@pytest.mark.parametrize("most", slow_but([None, 1, 2, 100], 0, 2))
def test_batches_are_the_batches_of_the_sampler(name, most):
    loader = private(name, max_physical_batch_size=most)
    batches = run(loader)
    assert len(batches) == 12
    reference = samplers()[name]
    for step, microbatches in enumerate(batches):
        expected = reference.indices(step)
        found = torch.cat([microbatch[0] for microbatch in microbatches])
        np.testing.assert_array_equal(found.numpy(), expected)
        np.testing.assert_array_equal(
            torch.cat([microbatch[1] for microbatch in microbatches])[:, 0], 2 * expected
        )
        if most is not None:
            assert all(len(microbatch[0]) <= most for microbatch in microbatches)
        assert all(len(microbatch[0]) > 0 for microbatch in microbatches) or len(microbatches) == 1
    assert loader.tracker.steps == 12
    with pytest.raises(dm.exceptions.HorizonError):
        next(iter(loader))


@every_sampler
def test_an_iteration_is_an_epoch(name):
    loader = private(name)
    assert len(loader) == loader.sampler.steps_per_epoch
    counts = []
    while loader.steps_taken < 12:
        count = 0
        for microbatch in loader:
            loader.progress.count(len(microbatch[0]))
            loader.progress.note_step()
            count += 1
        counts.append(count)
    epoch = loader.sampler.steps_per_epoch
    assert counts[:-1] == [epoch] * (len(counts) - 1)
    assert sum(counts) == 12


@every_sampler
@pytest.mark.parametrize("stop", slow_but([0, 1, 5, 11], 2))
def test_resuming_uses_the_same_batches(name, stop):
    whole = [torch.cat([b[0] for b in batch]).tolist() for batch in run(private(name))]
    first = private(name)
    head = run(first, steps=stop) if stop else []
    buffer = io.BytesIO()
    torch.save(first.state_dict(), buffer)
    buffer.seek(0)
    second = PrivateLoader(DataLoader(dataset()), fresh(name))
    second.load_state_dict(torch.load(buffer, weights_only=True))
    assert second.steps_taken == stop
    tail = run(second)
    assert [torch.cat([b[0] for b in batch]).tolist() for batch in head + tail] == whole
    assert second.tracker.summary() == {**first_summary(name)}


def first_summary(name):
    loader = private(name)
    run(loader)
    return loader.tracker.summary()


def fresh(name):
    """The same configuration with another key."""
    kind = samplers()[name]
    match kind:
        case BallsInBinsSampler():
            return BallsInBinsSampler(SIZE, 4, 12)
        case PoissonSampler():
            return PoissonSampler(SIZE, 0.1, 12)
        case CyclicPoissonSampler():
            return CyclicPoissonSampler(SIZE, 0.5, 3, 12)
        case _:
            return samplers()[name]


def test_workers_sample_ahead_but_state_does_not():
    loader = PrivateLoader(DataLoader(dataset(), num_workers=1, prefetch_factor=4), samplers()["bins"])
    iterator = iter(loader)
    for _ in range(2):
        microbatch = next(iterator)
        loader.progress.count(len(microbatch[0]))
        loader.progress.note_step()
    state = loader.state_dict()
    assert state["steps"] == state["sampler"]["steps_taken"] == state["tracker"]["steps"] == 2
    del iterator


def test_empty_batches_have_the_shape_of_others():
    class Records(torch.utils.data.Dataset):
        def __len__(self):
            return 3

        def __getitem__(self, index):
            pair = collections.namedtuple("Pair", "a b")
            return {
                "x": torch.ones(2),
                "y": (index, torch.tensor(1.5)),
                "z": pair(torch.ones(1), 2),
                "s": "text",
            }

    sampler = PoissonSampler(3, 1e-6, 4, rng=1)
    loader = PrivateLoader(DataLoader(Records()), sampler)
    microbatch = next(iter(loader))
    assert microbatch["x"].shape == (0, 2)
    assert [part.shape for part in microbatch["y"]] == [(0,), (0,)]
    assert microbatch["z"].a.shape == (0, 1)
    assert microbatch["s"] == []
    odd = PrivateLoader(
        DataLoader(Records(), collate_fn=lambda examples: object()), PoissonSampler(3, 1e-6, 4, rng=1)
    )
    next(iter(odd))  # whatever it contains, it has no effect
    assert odd.progress.handed == 0


# ---- microbatches and steps correspond


def test_every_batch_needs_its_step():
    loader = private()
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(dm.UnsupportedCombinationError, match=r"before optimizer\.step"):
        next(iterator)
    with pytest.raises(dm.UnsupportedCombinationError, match="in the middle of batch 0"):
        loader.state_dict()


def test_an_unused_batch_is_returned_again():
    loader = private()
    looked = next(iter(loader))[0]
    microbatches = iter(loader)
    again = next(microbatches)[0]
    assert torch.equal(looked, again)
    assert loader.tracker.steps == 1
    loader.progress.count(len(again))
    with pytest.raises(
        dm.UnsupportedCombinationError,
        match=r"iteration restarts in the step of batch 0.*a new run from the newest checkpoint",
    ):
        next(iter(loader))
    parts = private(max_physical_batch_size=1)
    first = iter(parts)
    next(first)
    parts.progress.count(1)
    next(first)  # a part of the microbatch has reached the optimizer
    with pytest.raises(dm.UnsupportedCombinationError, match="restarts in the step of batch 0"):
        next(iter(parts))


def test_one_iteration_at_a_time():
    loader = private()
    first = iter(loader)
    loader.progress.count(len(next(first)[0]))
    loader.progress.note_step()
    second = iter(loader)
    next(second)
    loader.progress.note_step()
    with pytest.raises(dm.UnsupportedCombinationError, match="two iterations"):
        next(first)


def test_every_batch_of_a_batch_must_be_used():
    loader = private(max_physical_batch_size=1)
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(dm.UnsupportedCombinationError, match="a part of batch 0 was skipped"):
        next(iterator)


def test_batches_outside_the_pattern_are_refused():
    sampler = samplers()["min-sep"]
    other = SequentialSampler(SIZE, dm.MinSep(2), 12)
    sampler._batch = other._batch  # a sampler with a fault
    loader = PrivateLoader(DataLoader(dataset()), sampler)
    iterator = iter(loader)
    for _ in range(2):
        loader.progress.count(len(next(iterator)[0]))
        loader.progress.note_step()
    with pytest.raises(dm.exceptions.CertificateError, match=r"step 2: .* less than 4 steps"):
        next(iterator)


# ---- refusals


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda: PrivateLoader([1, 2], samplers()["bins"]), "loader"),
        (lambda: PrivateLoader(DataLoader(dataset()), "bins"), "sampler"),
        (lambda: PrivateLoader(DataLoader(dataset(5)), samplers()["bins"]), "number of examples"),
        (lambda: private(max_physical_batch_size=0), "max_physical_batch_size"),
    ],
)
def test_bad_arguments(build, match):
    with pytest.raises(dm.InvalidParameterError, match=match):
        build()


def test_iterable_datasets_are_refused():
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            yield from range(SIZE)

    with pytest.raises(dm.UnsupportedCombinationError, match="iterable"):
        PrivateLoader(DataLoader(Stream()), samplers()["bins"])


def test_states_of_other_runs_are_refused():
    loader = private()
    state = loader.state_dict()
    with pytest.raises(dm.InvalidParameterError, match="state"):
        private().load_state_dict({})
    with pytest.raises(dm.exceptions.CertificateError, match="2 processes"):
        private().load_state_dict(state | {"processes": 2})
    with pytest.raises(dm.exceptions.CertificateError, match="contradicts itself"):
        private().load_state_dict(state | {"steps": 3})
    with pytest.raises(dm.exceptions.CertificateError):
        private("poisson").load_state_dict(state)
    next(iter(loader))
    with pytest.raises(dm.InvalidParameterError, match="after 1 batches"):
        loader.load_state_dict(state)


@pytest.mark.parametrize("name", ["dataset", "sampler", "tracker", "process_group", "processes"])
def test_what_the_record_depends_on_cannot_be_replaced(name):
    """Else the steps would use other batches than those of the certificate in the record."""
    loader, other = private("poisson"), private("every")
    before = getattr(loader, name)
    with pytest.raises(AttributeError, match=f"{name} of a PrivateLoader cannot be replaced"):
        setattr(loader, name, getattr(other, name))
    assert getattr(loader, name) is before


def test_repr():
    assert "BallsInBins(bins=4)" in repr(private())
    assert private().processes == 1


# ---- repeated examples in the dataset


class Wrapped(torch.utils.data.Dataset):
    """A dataset of a custom class, with or without ids."""

    def __init__(self, ids=None, size=SIZE):
        self.size = size
        if ids is not None:
            self.example_ids = ids

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return torch.tensor([index])


class Method(Wrapped):
    def example_ids(self):
        return torch.arange(self.size) + 10**12


class Shifted(Subset):
    def __getitem__(self, index):
        return self.dataset[index]

    def __getitems__(self, indices):
        return [self[index] for index in indices]


def loaded(data, **options):
    return PrivateLoader(DataLoader(data), BallsInBinsSampler(len(data), 4, 12, rng=1), **options)


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (dataset, dm.certificates.Uniqueness.FLATTENED),
        (lambda: Subset(dataset(40), range(SIZE)), dm.certificates.Uniqueness.FLATTENED),
        (lambda: StackDataset(dataset(), list(range(SIZE))), dm.certificates.Uniqueness.FLATTENED),
        (
            lambda: CanaryData(TensorDataset(torch.ones(9, 2), torch.zeros(9)), 4, target=0, rng=1),
            "flattened",
        ),
        (Wrapped, dm.certificates.Uniqueness.NOT_CHECKED),
        (lambda: ConcatDataset([dataset(), Wrapped()]), dm.certificates.Uniqueness.NOT_CHECKED),
        (lambda: Shifted(dataset(), range(5)), dm.certificates.Uniqueness.NOT_CHECKED),
        (Method, dm.certificates.Uniqueness.EXAMPLE_IDS),
        (lambda: Wrapped(range(SIZE)), dm.certificates.Uniqueness.EXAMPLE_IDS),
        (lambda: Wrapped([("person", i) for i in range(SIZE)]), dm.certificates.Uniqueness.EXAMPLE_IDS),
        (
            lambda: Subset(Wrapped([str(i) for i in range(SIZE)]), [3, -1]),
            dm.certificates.Uniqueness.EXAMPLE_IDS,
        ),
        (
            lambda: ConcatDataset([Method(), Wrapped([10**12 + 40], 1)]),
            dm.certificates.Uniqueness.EXAMPLE_IDS,
        ),
        (lambda: Wrapped(np.arange(SIZE, dtype=np.uint64) + np.uint64(2**63 - 5)), "by example_ids"),
        # Datasets with ids and without ids cannot be compared.
        (lambda: StackDataset(Method(), dataset()), dm.certificates.Uniqueness.NOT_CHECKED),
    ],
)
def test_a_loader_states_how_its_examples_were_compared(build, expected):
    assert loaded(build()).uniqueness == expected


@pytest.mark.parametrize(
    "build",
    [
        lambda: Wrapped([*range(SIZE - 1), 3]),
        lambda: Wrapped(["a"] * SIZE),
        lambda: Wrapped([None] * SIZE),
        lambda: Wrapped([*map(str, range(SIZE - 2)), 1, 1.0]),
        lambda: Wrapped([*range(SIZE - 2), 1 << 70, 1 << 70]),
        lambda: ConcatDataset([Method(), Wrapped([10**12], 1)]),
        lambda: ConcatDataset([Wrapped(np.arange(SIZE)), Wrapped(["a", 3], 2)]),
        lambda: Subset(Method(), [0, -SIZE]),
        lambda: Shifted(dataset(), [1, 1]),  # it inherits the indices, however it uses them
    ],
)
def test_repeated_ids(build):
    with pytest.raises(
        dm.UnsupportedCombinationError, match="holds examples twice, one of them under the ind"
    ):
        loaded(build())


@pytest.mark.parametrize(
    "ids",
    [range(SIZE - 1), range(SIZE + 1), 7, np.zeros((SIZE, 2)), [[]] * SIZE, [float("nan")] * SIZE, {"a": 1}],
    ids=["too few", "too many", "no sequence", "a matrix", "not hashable", "not comparable", "a dict"],
)
def test_invalid_ids(ids):
    with pytest.raises(dm.InvalidParameterError, match="example_ids"):
        loaded(Wrapped(ids))


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda: Subset(dataset(), [0, SIZE]), "indices outside of a TensorDataset"),
        (lambda: Subset(dataset(), [0.5, 1]), "no integers"),
        (lambda: Subset({"a": 1, "b": 2}, ["a", "b"]), "no integers"),
        (lambda: grown(ConcatDataset([[1], [2, 3]])), "other lengths than when they were joined"),
    ],
)
def test_views_that_cannot_be_resolved(build, match):
    with pytest.raises(dm.UnsupportedCombinationError, match=match):
        loaded(build())


def grown(data):
    data.datasets[1].append(4)
    return data


def test_many_examples_need_few_bytes_each():
    size = 10**6
    whole = TensorDataset(torch.zeros(size))
    order = np.random.default_rng(1).permutation(size)
    for data, most in [(whole, 1), (Subset(whole, order), 60), (Subset(ConcatDataset([whole]), order), 80)]:
        tracemalloc.start()
        ExamplePlaces(data)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < most * size


@pytest.mark.parametrize("labels", [torch.arange(9), range(9), np.arange(9), [str(i) for i in range(9)]])
@pytest.mark.parametrize("kind", [lambda x, y: (x, y), lambda x, y: {"x": x, "y": y}, lambda x, y: [[x], y]])
@pytest.mark.parametrize("inputs", [torch.ones(9, 2), np.ones((9, 2))])
def test_elements_of_lists_are_identified_by_the_memory_of_their_tensors(inputs, kind, labels):
    """Every element is a separate object here."""
    again = [kind(inputs[i], labels[i]) for i in (0, 1, 2, 3, 4, 5, 6, 7, 1)]
    with pytest.raises(dm.UnsupportedCombinationError, match=r"twice, one of them under the indices 1 and 8"):
        ExamplePlaces(again)
    # Neither equal values of other tensors, nor shared parts, make two examples equal.
    equal = inputs + 0.0
    assert ExamplePlaces([*again[:8], kind(equal[1], labels[1])]).uniqueness == "flattened"
    assert ExamplePlaces([kind(inputs[0], labels[i]) for i in range(9)]).uniqueness == "flattened"


@pytest.mark.parametrize(
    "kind", [lambda words: {"input_ids": list(words), "label": 0}, lambda words: (tuple(words), 0)]
)
def test_elements_of_plain_values_may_be_equal(kind):
    """Two people may well have the same name."""
    assert ExamplePlaces([kind([1, 2]), kind([3]), kind([1, 2])]).uniqueness == "flattened"


def test_elements_of_lists_and_object_arrays_are_identified_by_object():
    examples = [(torch.ones(1), number) for number in range(5)]
    held = np.empty(7, dtype=object)
    held[:] = [*examples, examples[2], (torch.ones(1), 9)]
    for data in (held, [*examples, examples[2]], ["a constant", *examples, examples[2]]):
        with pytest.raises(dm.UnsupportedCombinationError, match="holds examples twice"):
            ExamplePlaces(data)
    assert ExamplePlaces(held[:5]).uniqueness == dm.certificates.Uniqueness.FLATTENED
    # Equal plain values are often one object without being one example: their positions count.
    assert ExamplePlaces([1, 1, "a", "a", *examples]).uniqueness == dm.certificates.Uniqueness.FLATTENED
    plain = [1, 1, *examples]
    with pytest.raises(dm.UnsupportedCombinationError, match="holds examples twice"):
        ExamplePlaces(ConcatDataset([plain, Subset(plain, [1])]))


class WithoutFirst(torch.utils.data.Dataset):
    """The example at position 0 is missing: reading it alone is an error."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        if index == 0:
            raise KeyError("a gap")
        return torch.full((2,), float(index))


class InLists(WithoutFirst):
    def __getitems__(self, indices):
        return [self[index] for index in indices if index]


@pytest.mark.parametrize("kind", [WithoutFirst, InLists])
def test_an_empty_batch_has_the_shape_of_any_existing_example(kind):
    """A run must not end at its first empty microbatch because of a missing example."""
    collate = Collation(torch.utils.data.default_collate, OneByOne(kind()))
    count, microbatch, _ = collate([])
    assert (count, microbatch.shape) == (0, (0, 2))
    assert collate([torch.ones(2)])[0] == 1
    with pytest.raises((KeyError, IndexError), match=r"a gap|no example"):
        Collation(torch.utils.data.default_collate, OneByOne(Subset(kind(), [0])))([])
