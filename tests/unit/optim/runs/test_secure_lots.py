"""A private run with lots and noise from a cipher: what its record says, and that it is taken up again."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dpmech as dm
from dpmech.optim import make_private

pytest.importorskip("cryptography")
SIZE, STEPS = 40, 3
CLAIM = dm.calibrate_sigma(dm.Identity(STEPS), 8.0, 1e-5, participation=dm.Poisson(0.25))
DATA = TensorDataset(torch.linspace(-1, 1, SIZE).reshape(-1, 1), torch.arange(SIZE) % 2)


def private(rng, generator=None):
    torch.manual_seed(0)
    model = nn.Linear(1, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = nn.CrossEntropyLoss()
    return make_private(
        model, optimizer, DataLoader(DATA), CLAIM, clip_norm=1.0, loss=loss, rng=rng, generator=generator
    )


CIPHER = ", aes-128-ctr"


@pytest.mark.parametrize(
    ("rng", "generator", "lots", "noise", "seeded"),
    [
        ("secure", None, CIPHER, CIPHER, False),
        (None, None, "", "", False),
        (None, "secure", "", CIPHER, False),
        ("secure", 3, CIPHER, "", True),
    ],
)
def test_the_record_names_the_generators(rng, generator, lots, noise, seeded):
    model, optimizer, loader = private(rng, generator)
    for batch in loader:
        model.backward(*batch)
        optimizer.step()
    record = optimizer.run_record()
    assert (record.sampler.source, record.sampler.seeded) == ("PoissonSampler" + lots, False)
    assert (record.noise.source, record.noise.seeded) == ("NoiseStream" + noise, seeded)
    if noise and lots:
        assert dm.verify(record).ok


def test_a_state_of_one_generator_is_not_taken_up_by_the_other():
    state = private("secure")[2].state_dict()
    lots = private("secure")[2]
    lots.load_state_dict(state)
    assert lots.state_dict()["sampler"] == state["sampler"]
    with pytest.raises(dm.CertificateError, match=r"another generator.*'aes-128-ctr', here 'philox'"):
        private(None)[2].load_state_dict(state)
