"""Training under b-min-sep sampling: sampling, records and refusals."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dpmech as dm
from dpmech.optim import make_private
from tests.support import saved

SIZE, STEPS, MIN_SEP = 40, 12, 4


@pytest.mark.slow
def test_a_run_respects_the_cooldown_and_its_record_verifies():
    claim = saved.certificate("b-min-sep")
    expected = claim.participation.rate * SIZE
    torch.manual_seed(0)
    x = torch.arange(SIZE, dtype=torch.float32)[:, None].repeat(1, 3)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(x, (x[:, 0] > 9).long()), batch_size=4)
    certificate = saved.calibration("b-min-sep").certificate(1.0, expected)
    model, optimizer, loader = make_private(model, optimizer, loader, certificate, loss=nn.CrossEntropyLoss())
    last, step = {}, 0
    while loader.steps_taken < STEPS:
        for batch in loader:
            for example in batch[0][:, 0].tolist():
                assert step - last.get(example, -MIN_SEP) >= MIN_SEP
                last[example] = step
            model.backward(*batch)
            optimizer.step()
            step += 1
    assert loader.tracker.steps == step == STEPS
    assert last
    record = optimizer.run_record()
    assert dm.verify(record).ok
