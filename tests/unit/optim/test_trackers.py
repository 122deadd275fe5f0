"""What is logged of a run, also by the packages themselves where they are installed."""

import warnings

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import dpmech as dm
from dpmech.optim import AdamBC, Muon, clamp_fraction, make_private, noise_share
from dpmech.optim.rules import logged_values, momentum_noise_ratios
from dpmech.optim.trackers import ProgressBar, follow
from tests.support.training import classification, classifier, cross_entropy, private_run, train

N = 12
CAL = dm.calibrate_sigma(dm.LambdaCGD(N, 0.5), 8.0, 1e-5, participation=dm.MinSep(4))
NAMES = [
    "privacy/epsilon_spent",
    "privacy/epsilon_of_plan",
    "privacy/delta",
    "privacy/steps_left",
    "privacy/noise_variance",
]


class Calls:
    """Records the calls of any method."""

    def __init__(self, *methods):
        self.calls = []
        for method in methods:
            setattr(
                self, method, lambda *args, _name=method, **kwargs: self.calls.append((_name, args, kwargs))
            )


class Kept:
    def __init__(self):
        self.entries = []

    def __call__(self, values, step):
        self.entries.append((step, dict(values)))


def run(**options):
    data = DataLoader(classification(20), batch_size=5)
    return private_run(CAL, classifier(), data, clip_norm=0.5, loss=cross_entropy, generator=1, **options)


def test_only_publishable_values_are_logged():
    parts = run()
    kept = Kept()
    follow(parts[1], kept)
    train(*parts)
    assert [step for step, _ in kept.entries] == list(range(1, N + 1))
    for step, values in kept.entries:
        assert list(values) == NAMES
        assert values["privacy/epsilon_spent"] >= dm.executed_epsilon(CAL, step).upper * (1 - 1e-9)
        assert values["privacy/epsilon_of_plan"] == CAL.achieved.upper
        assert values["privacy/delta"] == 1e-5
        assert values["privacy/steps_left"] == N - step
        assert values["privacy/noise_variance"] == pytest.approx(CAL.noise_variance(step - 1, 0.5, 5))
    assert kept.entries[-1][1]["privacy/epsilon_spent"] == CAL.achieved.upper


def test_some_steps_and_physical_batches_and_an_end():
    pytest.importorskip("opacus")
    data = DataLoader(classification(20), batch_size=5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parts = private_run(CAL, classifier(), data, generator=1, max_physical_batch_size=2)
        often, seldom, ended = Kept(), Kept(), Kept()
        follow(parts[1], often)
        follow(parts[1], seldom, every=5, delta=1e-4)
        end = follow(parts[1], ended)
        train(*parts, after_step=lambda step: end() if step == 2 else None)
    assert [step for step, _ in often.entries] == list(range(1, N + 1))  # not after every microbatch
    assert [step for step, _ in seldom.entries] == [5, 10, 12]
    assert seldom.entries[0][1]["privacy/delta"] == 1e-4
    assert [step for step, _ in ended.entries] == [1, 2]


def test_a_bar_shows_what_is_spent():
    values = dict.fromkeys(NAMES, 0.5)
    bar = Calls("update", "set_postfix")
    log = ProgressBar(bar)
    log(values, 1)
    log(values, 6)
    assert [args for name, args, _ in bar.calls if name == "update"] == [(1,), (5,)]
    assert bar.calls[0] == ("set_postfix", (), {"eps": "0.5 of 0.5, paid for all steps", "refresh": False})
    log(values | {"privacy/epsilon_of_plan": 2.0}, 7)
    assert bar.calls[-2][2]["eps"] == "0.5 of 2"
    log(values | {"privacy/steps_left": 0.0}, 8)
    assert bar.calls[-2][2]["eps"] == "0.5 of 0.5"


def test_no_destination_changes_the_values_of_another():
    parts = run()
    kept = Kept()
    follow(parts[1], lambda values, _: values.clear(), kept)
    train(*parts)
    assert all(list(values) == NAMES for _, values in kept.entries)


def test_a_bar_of_tqdm(capsys):
    tqdm = pytest.importorskip("tqdm")
    parts = run()
    with tqdm.tqdm(total=parts[1].steps_left) as bar:
        follow(parts[1], ProgressBar(bar))
        train(*parts)
        assert bar.n == N
        assert "eps=8 of 8" in str(bar)


@pytest.mark.parametrize(
    ("rule", "names"),
    [
        (AdamBC, {"rule/noise_share", "rule/clamp_fraction"}),
        (Muon, {"rule/noise_share"}),
        (torch.optim.SGD, set()),
    ],
)
def test_rules_that_know_their_noise_are_asked_for_it(rule, names):
    data, model = DataLoader(classification(20), batch_size=5), classifier()
    own = rule(model.parameters(), lr=0.01)
    parts = make_private(model, own, data, CAL, clip_norm=0.5, loss=cross_entropy, generator=1)
    kept = Kept()
    follow(parts[1], kept)
    train(*parts)
    parts[1].close()
    assert len(kept.entries) == N
    for _, values in kept.entries:
        assert {name for name in values if name.startswith("rule/")} == names
        assert values.get("rule/noise_share", 1.0) > 0.0
    if rule is AdamBC:
        last = kept.entries[-1][1]
        assert last["rule/noise_share"] == noise_share(own).rho
        assert last["rule/clamp_fraction"] == clamp_fraction(own)


@pytest.mark.parametrize("strategy", [dm.Identity(30), dm.LambdaCGD(30, 0.8)], ids=repr)
@pytest.mark.parametrize("signal", [0.0, 3.0])
def test_the_noise_share_of_a_muon_is_one_on_pure_noise(strategy, signal):
    """Noise drawn row by row from C^-1; a constant signal adds to the square of the momentum as it should."""
    rng, shape, phi = np.random.default_rng(5), (150, 200), 0.25
    param = torch.nn.Parameter(torch.zeros(shape, dtype=torch.float64))
    rule = Muon([param], lr=0.0, momentum=0.9, probes=0)
    rows = np.linalg.inv(strategy.to_dense())
    noise = np.tensordot(rows, 0.5 * rng.standard_normal((30, *shape)), axes=1)
    for step in range(30):
        param.grad = torch.tensor(noise[step] + signal)
        for group in rule.param_groups:
            group["phi"] = phi * float((rows[step] ** 2).sum())
        rule.step()
    weights = 0.9 ** np.arange(29, -1, -1.0)
    variance = phi * float(((weights @ rows) ** 2).sum())
    due = variance / (variance + (signal * weights.sum()) ** 2)
    found = logged_values(rule, lambda momentum: momentum_noise_ratios(strategy, momentum))
    assert found["noise_share"] == pytest.approx(due, rel=0.05)


def test_before_a_step_nothing_is_known():
    param = torch.nn.Parameter(torch.zeros(3, 3))
    for rule in (AdamBC([param]), Muon([param], lr=0.1)):
        assert logged_values(rule, lambda _: np.ones(3)) == {}


@pytest.mark.slow
def test_the_writer_of_tensorboard(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("tensorboard")
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        from torch.utils.tensorboard import SummaryWriter

        parts = run()
        with SummaryWriter(str(tmp_path)) as writer:

            def log(values, step):
                for name, value in values.items():
                    writer.add_scalar(name, value, step)

            follow(parts[1], log, every=4)
            train(*parts)
        found = EventAccumulator(str(tmp_path)).Reload()
    assert set(found.Tags()["scalars"]) == set(NAMES)
    spent = found.Scalars("privacy/epsilon_spent")
    assert [event.step for event in spent] == [4, 8, 12]
    assert spent[-1].value == pytest.approx(CAL.achieved.upper)


def test_bad_arguments():
    optimizer = run()[1]
    with pytest.raises(dm.InvalidParameterError, match="logs must be functions of the values"):
        follow(optimizer, "tensorboard")
    with pytest.raises(dm.InvalidParameterError, match="every must be an integer >= 1"):
        follow(optimizer, every=0)
    with pytest.raises(dm.InvalidParameterError, match="delta must be"):
        follow(optimizer, delta=1.0)
    with pytest.raises(dm.InvalidParameterError, match="optimizer must be a BatchOptimizer"):
        follow(torch.optim.SGD([torch.zeros(1)], lr=0.1))
