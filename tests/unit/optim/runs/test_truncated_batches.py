"""Training with batches of at most B examples: sampling, records and refusals."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dpmech as dm
from dpmech.optim import make_private

MOST, SIZE, STEPS = 12, 60, 12


def private(size):
    torch.manual_seed(0)
    x = torch.randn(size, 3)
    batches = dm.Poisson(0.2, truncated_batch_size=MOST, dataset_size=SIZE)
    claim = dm.certify_sigma(
        dm.Identity(STEPS), 2.0, delta=1e-3, participation=batches, adjacency=dm.Adjacency.ZERO_OUT
    )
    certificate = claim.certificate(1.0, batches.truncation.expected_batch_size)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=11)
    return make_private(model, optimizer, loader, certificate, loss=nn.CrossEntropyLoss())


@pytest.mark.slow
def test_a_run_uses_truncated_batches_and_its_record_verifies():
    model, optimizer, loader = private(SIZE)
    sizes = []
    while loader.steps_taken < STEPS:
        for batch in loader:
            sizes.append(len(batch[0]))
            model.backward(*batch)
            optimizer.step()
    assert len(sizes) == loader.tracker.steps == STEPS
    assert max(sizes) <= MOST
    assert dm.verify(optimizer.run_record()).ok


def test_a_dataset_of_another_size_than_the_claim_states_is_refused():
    with pytest.raises(dm.InvalidParameterError, match="dataset_size must be 60, on which the claim depends"):
        private(SIZE - 1)
