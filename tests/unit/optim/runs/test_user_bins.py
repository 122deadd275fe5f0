"""Training if the examples of users are in separate bins: sampling, records and refusals."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dpmech as dm
from dpmech.optim import UserExamples, make_private
from tests.support import saved

SIZE, STEPS, BINS = 40, 12, 4


def parts():
    torch.manual_seed(0)
    x = torch.arange(SIZE, dtype=torch.float32)[:, None].repeat(1, 3)
    model = nn.Linear(3, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), TensorDataset(x, (x[:, 0] > 9).long())


@pytest.mark.slow
def test_every_example_has_one_bin_for_the_run_and_the_record_holds():
    model, optimizer, examples = parts()
    kept = UserExamples(examples, [row // 2 for row in range(SIZE)], 2)
    claim = saved.calibration("users in bins moments")
    loader = DataLoader(kept, batch_size=10)
    model, optimizer, loader = make_private(
        model, optimizer, loader, claim, loss=nn.CrossEntropyLoss(), unit="user"
    )
    bins, step = {}, 0
    while loader.steps_taken < STEPS:
        for batch in loader:
            for example in batch[0][:, 0].tolist():
                assert bins.setdefault(example, step % BINS) == step % BINS
            model.backward(*batch)
            optimizer.step()
            step += 1
    assert len(bins) == SIZE
    assert any(bins[2 * user] != bins[2 * user + 1] for user in range(SIZE // 2))
    assert dm.verify(optimizer.run_record()).ok


def test_examples_of_users_have_to_be_bounded():
    model, optimizer, examples = parts()
    claim = saved.calibration("users in bins moments")
    with pytest.raises(dm.UnsupportedCombinationError, match="users with at most 2 examples"):
        make_private(model, optimizer, DataLoader(examples, batch_size=10), claim, loss=nn.CrossEntropyLoss())
    three = UserExamples(examples, [row // 3 for row in range(SIZE)], 3)
    with pytest.raises(dm.exceptions.CertificateError, match="up to 3 examples, but 2 are certified"):
        make_private(model, optimizer, DataLoader(three, batch_size=10), claim, loss=nn.CrossEntropyLoss())
