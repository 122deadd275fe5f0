"""Two processes with gloo on which ways to clip take other times: both take the choice of rank 0.

Run as a script it is one of the processes; the tests look at what both of them found.
"""

from unittest import mock

import pytest

import dpmech as dm

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader  # noqa: E402

from dpmech.optim import load_checkpoint, make_private, save_checkpoint  # noqa: E402
from dpmech.optim.runs import measured_choice, per_example_model  # noqa: E402
from tests.support.training import classification, classifier, cross_entropy  # noqa: E402
from tests.support.two_processes import as_process, found_by_both  # noqa: E402

pytestmark = pytest.mark.slow  # two processes import torch

N, SIZE = 6, 12
WIDTHS = (30, 400, 2)
CAL = dm.calibrate_sigma(dm.LambdaCGD(N, 0.5), 8.0, 1e-5, participation=dm.MinSep(3))
# Seconds of the estimated choice, ghost, of per_example, and of factors for all layers.
ESTIMATED, GRADIENTS, FACTORS = (1.0, 2.0, 2.0), (1.0, 0.5, 2.0), (1.0, 2.0, 0.5)


class Timed:
    """A run whose ways take these seconds, as if it were on an accelerator."""

    def __init__(self, seconds, **keys):
        self.timed = []

        def least_seconds(*_):
            self.timed.append(seconds[len(self.timed)])
            return self.timed[-1]

        model = classifier(widths=WIDTHS)
        with (
            mock.patch.object(per_example_model, "is_timed", return_value=True),
            mock.patch.object(measured_choice, "least_seconds", least_seconds),
        ):
            self.parts = make_private(
                model,
                torch.optim.SGD(model.parameters(), lr=0.1),
                DataLoader(classification(SIZE, WIDTHS[0]), batch_size=2),
                CAL,
                1.0,
                loss=cross_entropy,
                **keys,
            )

    def train(self, until):
        private, optimizer, loader = self.parts
        while optimizer.record.steps < until:
            for batch in loader:
                private.backward(*batch)
                optimizer.step()
                if optimizer.record.steps == until:
                    break
        return self

    def found(self):
        private, optimizer, _ = self.parts
        optimizer.close()
        weights = [param.detach() for param in private.parameters()]
        return optimizer.clipping_mode, optimizer.factor_cost, len(self.timed), weights


def find(rank, folder):
    keys = {"generator": 1, "rng": 2}
    found = {}
    for name, own in (
        ("gradients", (GRADIENTS, FACTORS)),
        ("factors", (FACTORS, GRADIENTS)),
        ("estimated", (ESTIMATED, GRADIENTS)),
    ):
        found[name] = Timed(own[rank], **keys).train(N).found()
    first, path = Timed((FACTORS, GRADIENTS)[rank], **keys).train(2), folder / f"run_{rank}.pt"
    save_checkpoint(path, *first.parts)
    first.parts[1].close()
    second = Timed((GRADIENTS, FACTORS)[rank])
    load_checkpoint(path, *second.parts)
    found["resumed"] = second.train(N).found()
    return found


@pytest.fixture(scope="module")
def ranks():
    return found_by_both(__file__)


@pytest.mark.parametrize(
    ("name", "mode", "cost"),
    [
        ("gradients", "per_example", 1.0),
        ("factors", "ghost", 0.25),
        ("estimated", "ghost", 1.0),
        ("resumed", "ghost", 0.25),
    ],
)
def test_the_choice_of_rank_0_is_that_of_both(ranks, name, mode, cost):
    one, other = (rank[name] for rank in ranks)
    assert one[:2] == other[:2] == (mode, cost)
    assert all(map(torch.equal, one[3], other[3]))
    assert one[2] == 3
    assert other[2] == 0  # only rank 0 takes the time


def test_a_resumed_run_ends_at_the_same_bits(ranks):
    for rank in ranks:
        assert all(map(torch.equal, rank["resumed"][3], rank["factors"][3]))
        # In other modes sums round differently, so that the comparison shows something.
        assert not all(map(torch.equal, rank["gradients"][3], rank["factors"][3]))


if __name__ == "__main__":
    as_process(find)
