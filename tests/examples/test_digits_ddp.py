"""The digits by two processes under torchrun, and by one: the same batches, the same weights.

Run as a script it is one of the processes; the tests look at what they saved.
"""

import collections
import json
import os
import pathlib
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

import digits_ddp  # noqa: E402 - after the check for torch

import dpmech as dm  # noqa: E402
from tests.support.torchrun import by_two  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]  # two processes import torch

N, BINS = 50, 5


class Watched(torch.utils.data.Dataset):
    """A dataset that notes which examples are asked for."""

    def __init__(self, dataset):
        self.dataset = dataset
        self.asked = []

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        self.asked.append(int(index))
        return self.dataset[index]


def process(folder):
    """Run the example in this process; saves which examples it saw at every step."""
    dataset, test = digits_ddp.digits()
    watched = Watched(dataset)
    batches = []

    def made(*arguments, **options):
        parts = make_private(*arguments, **options)
        watched.asked = []  # without the example that the loss was tried on
        parts[1].register_step_post_hook(
            lambda *_: (batches.append(watched.asked), setattr(watched, "asked", []))
        )
        return parts

    def saved(*arguments, **options):
        asked = list(watched.asked)
        save_checkpoint(*arguments, **options)
        watched.asked = asked  # without the examples of the fingerprint

    make_private, save_checkpoint = digits_ddp.make_private, digits_ddp.save_checkpoint
    originals = digits_ddp.digits, make_private, save_checkpoint
    digits_ddp.digits, digits_ddp.make_private = lambda: (watched, test), made
    digits_ddp.save_checkpoint = saved
    try:
        digits_ddp.main(["8", str(folder), "--seed", "1"])
    finally:
        digits_ddp.digits, digits_ddp.make_private, digits_ddp.save_checkpoint = originals
    rank = os.environ.get("RANK", "0")
    (folder / f"batches-{rank}.json").write_text(json.dumps(batches), encoding="utf-8")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """(of one process, of two)"""
    alone, together = tmp_path_factory.mktemp("alone"), tmp_path_factory.mktemp("together")
    process(alone)
    by_two(__file__, together)
    return alone, together


def weights(folder, rank):
    return torch.load(folder / f"checkpoint-{rank}.pt", weights_only=True)["model"]


def test_both_processes_end_with_the_same_weights(folders):
    first, second = (weights(folders[1], rank) for rank in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_one_process_ends_with_them_too(folders):
    alone, together = (weights(folder, 0) for folder in folders)
    for name, value in alone.items():
        np.testing.assert_allclose(value.numpy(), together[name].numpy(), rtol=1e-3, atol=1e-4)
        assert value.abs().max() > 0.1


def test_two_processes_share_the_batches_of_one(folders):
    alone = json.loads((folders[0] / "batches-0.json").read_text(encoding="utf-8"))
    shares = [
        json.loads((folders[1] / f"batches-{rank}.json").read_text(encoding="utf-8")) for rank in range(2)
    ]
    assert len(alone) == N
    for batch, *parts in zip(alone, *shares, strict=True):
        first, second = (collections.Counter(part) for part in parts)
        compared = first & second  # both processes ask for the examples by which they compare their data
        first, second = first - compared, second - compared
        assert sorted((first + second).elements()) == sorted(batch)
        assert not set(first) & set(second)
        assert abs(first.total() - second.total()) <= 1
    assert sorted(place for batch in alone[:BINS] for place in batch) == list(range(1497))


def test_the_records_say_how_many_trained(folders):
    alone, together = (dm.RunRecord.load(folder / "run.json") for folder in folders)
    assert (alone.processes, together.processes) == (1, 2)
    for record in (alone, together):
        assert (record.steps, record.most_participations, record.smallest_separation) == (N, N // BINS, BINS)
        assert record.sampler.seeded
        assert record.noise.seeded
    assert together.sampler == alone.sampler
    assert together.noise == alone.noise
    assert dm.verify(folders[1] / "run.json")


if __name__ == "__main__":
    process(pathlib.Path(sys.argv[1]))
