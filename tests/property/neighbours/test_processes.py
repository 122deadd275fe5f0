"""Neighbouring data sets through two processes, which share every batch and add up what they clipped.

Run as a script it is one of the processes; the tests look at what the first of them found.
"""

import json
import pathlib
import sys

import pytest

torch = pytest.importorskip("torch")

from tests.property.neighbours import features  # noqa: E402, F401 - registers
from tests.property.neighbours.check import LONG, PLANTED, WORST, Violation, check  # noqa: E402
from tests.property.neighbours.planted import planted  # noqa: E402
from tests.property.neighbours.registry import FEATURES  # noqa: E402
from tests.support.torchrun import by_two  # noqa: E402

pytestmark = pytest.mark.slow  # two processes import torch

# One a way in which sums reach the optimizer, and an unequal share of a batch of three for either process.
SHARED = (
    "loss, per example",
    "loss, ghost",
    "hooks, per example",
    "matrices, loss",
    "adaptive, loss",
    "microbatches, loss",
    "Poisson",
    "empty batches, loss",
    "users, Poisson",
    "sampled users, mean",
    "resumed",
)


def found(name):
    """How much of the claim is reached, or what is wrong, by adjacency and by the fault that is planted."""
    feature = FEATURES[name]
    results = {}
    for adjacency in feature.adjacencies:
        try:
            result = check(feature, adjacency, shapes=WORST)
            results[adjacency.name] = max(result.step * feature.shrinks, result.whole)
        except Violation as violation:
            results[adjacency.name] = str(violation)
    right = feature.adjacencies[0]
    for fault in PLANTED:
        try:
            with planted(fault):
                check(feature, right, shapes=LONG, places=feature.at[:1])
            results[fault] = "not found"
        except Violation as violation:
            results[fault] = str(violation)
    return results


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    by_two(__file__, str(folder))
    ranks = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]
    assert ranks[0] == ranks[1]
    return ranks[0]


def cases():
    for name in SHARED:
        for adjacency in FEATURES[name].adjacencies:
            yield pytest.param(name, adjacency, id=f"{name} - {adjacency.name}")


@pytest.mark.parametrize(("name", "adjacency"), list(cases()))
def test_two_processes_change_no_more_than_one(name, adjacency, seen):
    reached = seen[name][adjacency.name]
    assert not isinstance(reached, str), reached
    assert 0.99 < reached <= 1.0 + 1e-6


@pytest.mark.parametrize("name", SHARED)
def test_five_percent_are_found_in_two_processes(name, seen):
    for fault in PLANTED:
        assert "changed by" in seen[name][fault] or "times the certified" in seen[name][fault]


if __name__ == "__main__":
    import torch.distributed as dist

    dist.init_process_group("gloo")
    results = {name: found(name) for name in SHARED}
    (pathlib.Path(sys.argv[1]) / f"{dist.get_rank()}.json").write_text(json.dumps(results))
    dist.destroy_process_group()
