"""A private run with batches and noise from a cipher: its record, and resuming."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dpmech as dm
from dpmech.optim import make_private

SIZE, STEPS = 40, 3
CLAIM = dm.calibrate_sigma(dm.Identity(STEPS), 8.0, 1e-5, participation=dm.Poisson(0.25))
DATA = TensorDataset(torch.linspace(-1, 1, SIZE).reshape(-1, 1), torch.arange(SIZE) % 2)


def private(rng, generator=None):
    torch.manual_seed(0)
    model = nn.Linear(1, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = nn.CrossEntropyLoss()
    return make_private(
        model,
        optimizer,
        DataLoader(DATA),
        CLAIM,
        clip_norm=1.0,
        loss=loss,
        expected_batch_size=10,
        rng=rng,
        generator=generator,
    )


CIPHER, ZIGGURAT, PHILOX = "aes-128-ctr", "aes-128-ctr, ziggurat", "philox"


@pytest.mark.parametrize(
    ("rng", "generator", "batches", "noise", "seeded"),
    [
        ("secure", None, CIPHER, ZIGGURAT, False),
        (None, None, CIPHER, ZIGGURAT, False),
        ("philox", None, PHILOX, ZIGGURAT, False),
        ("philox", "secure", PHILOX, ZIGGURAT, False),
        (None, "philox", CIPHER, PHILOX, False),
        ("secure", 3, CIPHER, PHILOX, True),
    ],
)
def test_the_record_names_the_generators(rng, generator, batches, noise, seeded):
    model, optimizer, loader = private(rng, generator)
    for batch in loader:
        model.backward(*batch)
        optimizer.step()
    record = optimizer.run_record()
    assert (record.sampler.source, record.sampler.generator) == ("PoissonSampler", batches)
    assert (record.noise.source, record.noise.generator) == ("NoiseStream", noise)
    assert (record.sampler.seeded, record.noise.seeded) == (False, seeded)
    said = {
        CIPHER: "aes-128-ctr (cryptographic)",
        ZIGGURAT: "aes-128-ctr, ziggurat (cryptographic)",
        PHILOX: "philox (not a cryptographic generator)",
    }
    assert (
        f"batches: 'PoissonSampler', from {said[batches]}; noise: 'NoiseStream', from {said[noise]})"
        in str(record)
    )
    found = dm.verify(dm.RunRecord.from_json(record.to_json()))
    assert found.ok
    (check,) = (check for check in found.checks if check.name == "randomness")
    assert check.detail.endswith(f"batches from {said[batches]}, noise from {said[noise]}")
    strict = dm.verify(record, policy=dm.Policy(require_cryptographic_generator=True))
    assert strict.ok == (PHILOX not in (batches, noise))


@pytest.mark.parametrize(
    ("participation", "shuffle", "words"),
    [
        (dm.MinSep(4), False, "no random numbers"),
        (dm.EveryStep(), False, "no random numbers"),
        (dm.EveryStep(), True, "aes-128-ctr (cryptographic)"),
    ],
)
def test_batches_in_a_fixed_order_have_no_random_numbers(participation, shuffle, words):
    cal = dm.calibrate_sigma(dm.Identity(8), 8.0, 1e-5, participation=participation)
    model = nn.Linear(3, 1)
    data = TensorDataset(torch.zeros(40, 3), torch.zeros(40, 1))
    optimizer = make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        DataLoader(data, batch_size=10, shuffle=shuffle),
        cal,
        loss=nn.MSELoss(),
        dataset_size=40,
    )[1]
    record = dm.RunRecord.from_json(optimizer.run_record().to_json())
    assert f"batches: 'SequentialSampler', from {words}; noise" in str(record)
    (check,) = (check for check in dm.verify(record).checks if check.name == "randomness")
    assert f"batches from {words}, noise" in check.detail
    assert dm.verify(record, policy=dm.Policy(require_cryptographic_generator=True)).ok
    optimizer.close()


@pytest.mark.parametrize(("before", "after"), [("philox", None), (None, "philox"), ("secure", None)])
def test_a_run_resumes_with_its_batches(before, after):
    first, batches = private(before)[2], private(after)[2]
    state = first.state_dict()
    batches.load_state_dict(state)
    assert batches.state_dict()["sampler"] == state["sampler"]
    drawn = [[source.sampler.indices(step).tolist() for step in range(STEPS)] for source in (first, batches)]
    assert drawn[0] == drawn[1]


def test_batches_of_philox_cannot_resume_with_a_cipher():
    state = private("philox")[2].state_dict()
    with pytest.raises(
        dm.exceptions.CertificateError, match=r"another generator.*'philox', here 'aes-128-ctr'"
    ):
        private("secure")[2].load_state_dict(state)
