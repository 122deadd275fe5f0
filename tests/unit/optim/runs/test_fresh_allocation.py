"""A new allocation every epoch: from a certificate to a trained model, its run record, and its verdict."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import dpmech as dm
from dpmech.optim import make_private_with_epsilon
from tests.support import saved
from tests.support.training import classification, classifier, cross_entropy, private_run, train, weights

SIZE, BINS = 20, 2
CAL = saved.calibration("bins fresh")  # Identity(4): two epochs of two steps


def batches(loader):
    """The batches of a finished run."""
    return [loader.sampler.indices(step) for step in range(CAL.strategy.n)]


def test_every_epoch_uses_the_data_once_in_new_batches():
    model, optimizer, loader = private_run(
        CAL, classifier(), classification(SIZE), loss=cross_entropy, generator=1, rng=2
    )
    before = weights(model)
    after = train(model, optimizer, loader)
    assert not torch.equal(before, after)
    seen = batches(loader)
    for epoch in (seen[:BINS], seen[BINS:]):
        np.testing.assert_array_equal(np.sort(np.concatenate(epoch)), np.arange(SIZE))
    assert not np.array_equal(seen[0], seen[BINS])
    record = optimizer.run_record()
    assert (record.steps, record.executed) == (4, CAL.achieved)
    assert record.certificate.participation == dm.BallsInBins(BINS, fresh=True)


@pytest.mark.slow
def test_its_run_record_is_verified(tmp_path):
    model, optimizer, loader = private_run(CAL, classifier(), classification(SIZE), loss=cross_entropy)
    train(model, optimizer, loader)
    optimizer.run_record().save(tmp_path / "run.json")
    found = dm.verify(tmp_path / "run.json")
    assert found.ok, found
    model, optimizer, loader = private_run(CAL, classifier(), classification(SIZE), loss=cross_entropy)
    train(model, optimizer, loader, steps=2)
    planned = optimizer.run_record(stopped_by_plan=True)
    once = dm.epsilon(dm.Identity(2), CAL.sigma, CAL.budget.delta, participation=dm.BallsInBins(2))
    # Only one epoch was executed: one allocation.
    assert planned.executed.upper == pytest.approx(once.upper, rel=0.01)
    assert planned.executed.upper < CAL.achieved.upper


@pytest.mark.slow
def test_one_call_takes_it():
    sgd_model = classifier()
    _, optimizer, _ = make_private_with_epsilon(
        sgd_model,
        torch.optim.SGD(sgd_model.parameters(), lr=0.1),
        DataLoader(classification(SIZE), batch_size=10),
        eps=2.0,
        delta=1e-3,
        epochs=2,
        dataset_size=SIZE,
        participation=dm.BallsInBins(BINS, fresh=True),
        loss=cross_entropy,
    )
    assert optimizer.claim.participation == dm.BallsInBins(BINS, fresh=True)
    assert optimizer.steps_left == 4
    optimizer.close()


def test_correlated_noise_is_refused_before_the_first_step():
    model = classifier()
    with pytest.raises(dm.UnsupportedCombinationError, match="correlates it"):
        make_private_with_epsilon(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            DataLoader(classification(SIZE), batch_size=10),
            eps=2.0,
            delta=1e-3,
            epochs=2,
            dataset_size=SIZE,
            strategy=lambda n: dm.LambdaCGD(n, 0.5),
            participation=dm.BallsInBins(BINS, fresh=True),
            loss=cross_entropy,
        )
