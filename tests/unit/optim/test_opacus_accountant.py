"""Opacus with the dpmech accountant: a training run, its history, its noise multiplier, and refusals."""

import math

import pytest

pytest.importorskip("opacus", reason="the extra `opacus` is optional")
import torch
from opacus import PrivacyEngine
from opacus.accountants import PRVAccountant, RDPAccountant, create_accountant
from opacus.accountants.utils import get_noise_multiplier
from opacus.optimizers import AdaClipDPOptimizer
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch.utils.data import DataLoader, TensorDataset

import dpmech as dm
from dpmech.optim import register_opacus_accountant

DELTA = 1e-5
# Of `clipping="adaptive"` in Opacus.
FOLLOWED = {
    "target_unclipped_quantile": 0.5,
    "clipbound_learning_rate": 0.2,
    "max_clipbound": 10.0,
    "min_clipbound": 0.01,
    "unclipped_num_std": 5.0,
}
pytestmark = [
    pytest.mark.filterwarnings("ignore:Secure RNG turned off:UserWarning"),
    pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning"),
]


@pytest.fixture(autouse=True)
def registered():
    register_opacus_accountant()
    register_opacus_accountant()


def trained(*, steps=12, physical=None, poisson=True, accumulate=1, **private):
    """A run of Opacus on 64 examples, batches of 8 on average."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(64, 3), torch.randn(64, 1))
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = PrivacyEngine(accountant="dpmech")
    settings = {"noise_multiplier": 1.3} | private
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=optimizer,
        data_loader=DataLoader(data, batch_size=8),
        max_grad_norm=1.0,
        poisson_sampling=poisson,
        **settings,
    )

    def run(batches):
        done = 0
        while done < steps:
            for number, (x, y) in enumerate(batches):
                torch.nn.functional.mse_loss(model(x), y).backward()
                if (number + 1) % accumulate == 0:
                    optimizer.step()
                    optimizer.zero_grad()
                done = len(engine.accountant)
                if done >= steps:
                    return

    if physical is None:
        run(loader)
    else:
        with BatchMemoryManager(
            data_loader=loader, max_physical_batch_size=physical, optimizer=optimizer
        ) as batches:
            run(batches)
    return engine


@pytest.mark.parametrize("physical", [None, 3])
def test_a_run_costs_the_eps_of_our_accountant(physical):
    engine = trained(physical=physical)
    assert engine.accountant.history == [(1.3, 1 / 8, 12)]
    assert len(engine.accountant) == 12
    own = dm.epsilon(dm.Identity(12), 1.3, DELTA, participation=dm.Poisson(1 / 8))
    bounds = engine.accountant.bounds(DELTA)
    assert (bounds.lower, bounds.upper) == pytest.approx((own.lower, own.upper), rel=1e-9)
    assert engine.get_epsilon(DELTA) == bounds.upper
    assert dm.interchange.from_opacus_history(engine.accountant).epsilon(DELTA).upper == bounds.upper
    assert (
        dm.interchange.from_opacus_history(engine.accountant.state_dict()).epsilon(DELTA).upper
        == bounds.upper
    )


def test_their_accountants_are_audited_by_the_same_history():
    for kind in (PRVAccountant, RDPAccountant):
        theirs = kind()
        for _ in range(20):
            theirs.step(noise_multiplier=1.1, sample_rate=0.05)
        found = dm.interchange.from_opacus_history(theirs).epsilon(DELTA)
        assert found.lower <= theirs.get_epsilon(DELTA)
        ours = create_accountant("dpmech")
        ours.load_state_dict(theirs.state_dict() | {"mechanism": "dpmech"})
        assert ours.get_epsilon(DELTA) == found.upper


@pytest.mark.slow
def test_opacus_sizes_its_noise_by_it():
    steps = 100
    sigma = get_noise_multiplier(
        target_epsilon=2.0, target_delta=DELTA, sample_rate=0.05, steps=steps, accountant="dpmech"
    )
    cal = dm.calibrate_sigma(dm.Identity(steps), 2.0, DELTA, participation=dm.Poisson(0.05))
    assert cal.sigma / 1.001 <= sigma <= cal.sigma * 1.01
    assert dm.epsilon(dm.Identity(steps), sigma, DELTA, participation=dm.Poisson(0.05)).upper <= 2.0


def test_noise_that_changes_is_composed():
    accountant = create_accountant("dpmech")
    assert accountant.get_epsilon(DELTA) == 0.0
    for noise in (1.0, 1.0, 2.0, 1.0):
        accountant.step(noise_multiplier=noise, sample_rate=0.1)
    assert accountant.history == [(1.0, 0.1, 2), (2.0, 0.1, 1), (1.0, 0.1, 1)]
    assert len(accountant) == 4
    due = dm.interchange.from_opacus_history([(1.0, 0.1, 3), (2.0, 0.1, 1)]).epsilon(DELTA)
    assert accountant.get_epsilon(delta=DELTA, eps_error=0.1) == due.upper


def test_no_noise_is_no_privacy():
    accountant = create_accountant("dpmech")
    accountant.step(noise_multiplier=0.0, sample_rate=0.1)
    accountant.step(noise_multiplier=1.0, sample_rate=0.1)
    assert accountant.get_epsilon(DELTA) == math.inf
    with pytest.raises(dm.InvalidParameterError, match="noise_multiplier"):
        accountant.bounds(DELTA)
    for noise, rate in ((-1.0, 0.1), (math.nan, 0.1), (1.0, 0.0), (1.0, 1.5)):
        with pytest.raises(dm.InvalidParameterError):
            accountant.step(noise_multiplier=noise, sample_rate=rate)
    with pytest.raises(dm.InvalidParameterError, match="delta"):
        accountant.get_epsilon(0.0)


def test_accumulated_batches_are_refused_before_the_step():
    with pytest.raises(dm.UnsupportedCombinationError, match="gradients of 2 batches were accumulated"):
        trained(poisson=False, accumulate=2)


def test_adaptive_clipping_is_refused_before_the_step():
    """One example changes Opacus' count of unclipped ones by 1; its history states the cost of 1/2."""
    weight = torch.nn.Parameter(torch.zeros(2))
    counts = []
    for examples in (4, 5):
        own = AdaClipDPOptimizer(
            torch.optim.SGD([weight], lr=0.1),
            **FOLLOWED,
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            expected_batch_size=4,
        )
        weight.grad_sample = torch.full((examples, 2), 0.1)
        own.clip_and_accumulate()
        counts.append(float(own.unclipped_num))
    assert counts == [4.0, 5.0]
    with pytest.raises(dm.UnsupportedCombinationError, match=r"AdaClipDPOptimizer.*AdaptiveClip"):
        trained(steps=1, clipping="adaptive", **FOLLOWED)


def test_a_history_does_not_state_the_sampling():
    # So the caller is responsible: the same history, and no bound is proved for the second.
    assert trained(poisson=False).accountant.history == trained().accountant.history


def test_without_opacus_the_error_names_it(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "opacus.accountants", None)
    with pytest.raises(dm.exceptions.MissingDependencyError, match=r"opacus>=1\.6"):
        register_opacus_accountant()
