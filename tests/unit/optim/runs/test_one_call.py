import copy
import importlib

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy as plain_cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import dpmech as dm
from dpmech.optim import make_private, make_private_with_epsilon
from tests.support.training import classification, classifier, cross_entropy, weights

one_call = importlib.import_module("dpmech.optim.runs.one_call")
SIZE, BATCH, EPOCHS = 23, 5, 3
PLAN = dm.TrainingPlan(SIZE, BATCH, EPOCHS)


def made(loader=None, **options):
    model = classifier()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(classification(SIZE), batch_size=BATCH) if loader is None else loader
    given = {
        "eps": 4.0,
        "delta": 1e-3,
        "epochs": EPOCHS,
        "dataset_size": SIZE,
        "strategy": dm.Identity,
        "loss": cross_entropy,
    } | options
    return make_private_with_epsilon(model, sgd, loader, **given)


def test_one_call_is_a_plan_a_calibration_and_make_private():
    model, optimizer, loader = made(clip_norm=0.5)
    cal = dm.calibrate_sigma(dm.Identity(PLAN.steps), 4.0, 1e-3, participation=PLAN.participation("poisson"))
    assert optimizer.claim == cal
    assert isinstance(optimizer.claim, dm.Calibration)
    assert (optimizer.steps_left, len(loader)) == (PLAN.steps, PLAN.steps_per_epoch)
    assert (optimizer.clip_norm, optimizer.expected_batch_size) == (0.5, BATCH)
    before = weights(model)
    spent = []
    for _ in range(EPOCHS):
        for batch in loader:
            model.backward(*batch)
            optimizer.step()
            if optimizer.steps_left % 6 == 0:
                spent.append(optimizer.epsilon_spent())
    assert not torch.equal(before, weights(model))
    uppers = [one.upper for one in spent]
    assert uppers == sorted(uppers)
    assert 0.0 < uppers[0] < uppers[-1] == cal.achieved.upper <= 4.0
    record = optimizer.run_record()
    assert record.certificate.sigma == cal.sigma
    assert record.certificate.clip_norm == 0.5
    # The logged value holds for a number of steps fixed in advance; the record is charged the full budget.
    assert record.executed == cal.achieved


def test_its_certificate_fixes_what_the_call_fixed_and_is_that_of_the_run_record():
    optimizer = made(clip_norm=0.5)[1]
    own = optimizer.certificate()
    assert (own.clip_norm, own.expected_batch_size, own.dataset_size) == (0.5, BATCH, SIZE)
    assert own == optimizer.claim.certificate(0.5, BATCH, dataset_size=SIZE)
    assert own == optimizer.run_record().certificate


def test_epsilon_spent_before_the_first_step_and_at_another_delta():
    optimizer = made()[1]
    assert optimizer.epsilon_spent().upper == 0.0
    with pytest.raises(dm.InvalidParameterError, match="delta"):
        optimizer.epsilon_spent(2.0)


def test_the_loader_of_a_run_cannot_be_replaced():
    """Its batches are those of the certificate in the record."""
    _, optimizer, loader = made()
    _, _, other = made()
    with pytest.raises(AttributeError):
        optimizer.loader = other
    assert optimizer.loader is loader


class ShallowCopies(nn.Sequential):
    """Calls a copy of a layer, which has the layer's weights and hooks and is not in the model."""

    def forward(self, x):
        return copy.copy(self[1])(self[0](x))


def test_layers_that_a_call_makes_are_refused_by_name():
    model = ShallowCopies(nn.Flatten(), nn.Linear(4, 3))
    data = TensorDataset(torch.randn(SIZE, 4), torch.randint(3, (SIZE,)))
    model, _, loader = make_private_with_epsilon(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        DataLoader(data, batch_size=BATCH),
        eps=4.0,
        delta=1e-3,
        epochs=EPOCHS,
        dataset_size=SIZE,
        strategy=dm.Identity,
    )
    model.eval()
    for x, y in loader:
        if len(x):
            with pytest.raises(dm.UnsupportedCombinationError, match=r"Linear.*was not recorded"):
                plain_cross_entropy(model(x), y).backward()
            break


def test_strategies_from_their_number_of_steps():
    optimizer = made(strategy=lambda n: dm.LambdaCGD(n, 0.5), method=dm.methods.Rdp())[1]
    assert optimizer.claim.strategy == dm.LambdaCGD(PLAN.steps, 0.5)
    assert optimizer.claim.participation == dm.BallsInBins(PLAN.bins)
    optimizer = made(
        strategy=dm.LambdaCGD(PLAN.steps, 0.5),
        participation=PLAN.participation("min-sep"),
        adjacency=dm.Adjacency.ZERO_OUT,
    )[1]
    assert optimizer.claim.participation == dm.MinSep(PLAN.steps_per_epoch, EPOCHS)
    assert optimizer.claim.adjacency is dm.Adjacency.ZERO_OUT


@pytest.mark.parametrize(
    ("steps", "strategy"),
    [(2, dm.Identity), (10, dm.Identity), (10, lambda n: dm.LambdaCGD(n, 0.5)), (3, None)],
)
def test_a_run_of_any_number_of_steps(steps, strategy):
    given = {"method": dm.methods.Rdp()} if strategy else {}
    model, optimizer, loader = made(epochs=None, max_steps=steps, strategy=strategy, **given)
    plan = dm.TrainingPlan.of_steps(SIZE, BATCH, steps)
    sampling = "balls-in-bins" if isinstance(optimizer.claim.strategy, dm.LambdaCGD) else "poisson"
    assert optimizer.claim.participation == plan.participation(sampling)
    assert optimizer.claim.strategy.n == optimizer.steps_left == steps
    while optimizer.steps_left:
        for batch in loader:
            model.backward(*batch)
            optimizer.step()
    record = optimizer.run_record()
    assert record.steps == steps
    assert dm.verify(record).ok


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": dm.Identity(7)}, r"strategy must be None, a strategy over n = 12 steps"),
        ({"strategy": lambda n: n}, r"strategy must be None, a strategy over n = 12 steps.*got 12"),
        ({"max_vectors": 1}, "max_vectors must be None with a strategy, which fixes them, got 1"),
        ({"strategy": None, "max_vectors": -1}, "max_vectors must be an integer >= 0, got -1"),
        ({"strategy": None, "max_vectors": 0.5}, "max_vectors must be an integer >= 0, got 0.5"),
        ({"strategy": None, "eps": 0.0}, "eps must be"),
        ({"strategy": "identity"}, r"strategy must be None, a strategy over n = 12 steps"),
        ({"epochs": 1.5}, "epochs must be an integer >= 1, got 1.5"),
        ({"max_steps": 5}, r"epochs and max_steps must be None for one of them, got \(3, 5\)"),
        ({"epochs": None}, r"epochs and max_steps must be None for one of them, got \(None, None\)"),
        ({"epochs": None, "max_steps": 0}, "max_steps must be an integer >= 1, got 0"),
        (
            {"epochs": None, "max_steps": 3, "strategy": lambda n: dm.LambdaCGD(n, 0.5)},
            "bins must be at most n=3, got 4",
        ),
        ({"eps": 0.0}, "eps must be"),
        ({"delta": 1.0}, "delta must be"),
        ({"clip_norm": 0.0}, "clip_norm must be"),
        ({"loader": [1, 2]}, "loader must be a torch.utils.data.DataLoader"),
        ({"loader": DataLoader(classification(SIZE))}, r"loader must be DataLoader\(dataset, batch_size="),
        (
            {"loader": DataLoader(classification(SIZE), batch_size=24)},
            r"batch_size, times processes must be an integer in \[1, 23\], got 24",
        ),
        (
            {"loader": DataLoader(TensorDataset(torch.zeros(0, 3)), batch_size=2)},
            r"len\(dataset\) must be an integer >= 1, got 0",
        ),
    ],
)
def test_bad_calls(options, message):
    with pytest.raises(dm.InvalidParameterError, match=message):
        made(**options)


def test_refusals_of_make_private_apply():
    weighted = torch.utils.data.WeightedRandomSampler([1.0] * SIZE, SIZE)
    loader = DataLoader(classification(SIZE), batch_size=BATCH, sampler=weighted)
    with pytest.raises(
        dm.UnsupportedCombinationError, match=r"has a WeightedRandomSampler; .* loss times the weight"
    ):
        made(loader)
    with pytest.raises(dm.UnsupportedCombinationError):
        made(strategy=lambda n: dm.LambdaCGD(n, 0.5), participation=dm.Poisson(0.1))


FIXED = PLAN.participation("min-sep")


def recommended(max_vectors, *participations):
    return dm.recommend(
        dataset_size=SIZE,
        batch_size=BATCH,
        epochs=EPOCHS,
        eps=4.0,
        delta=1e-3,
        max_vectors=max_vectors,
        samplings=participations,
    )


def test_without_a_strategy_the_best_one_is_taken_and_named(caplog):
    optimizer = made(strategy=None, participation=FIXED)[1]
    best = recommended(1, FIXED)
    assert optimizer.claim == best.calibration
    alone = dm.calibrate_sigma(dm.Identity(PLAN.steps), 4.0, 1e-3, participation=FIXED)
    assert optimizer.claim.rmse() < 0.9 * alone.rmse()
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("dpmech.optim", "WARNING")
    assert best.words in record.getMessage()
    assert "1 vector of the model's size (8 bytes a parameter)" in record.getMessage()
    caplog.clear()
    made()
    assert caplog.records == []


def test_vectors_are_limited():
    assert made(strategy=None, participation=FIXED, max_vectors=0)[1].claim.strategy == dm.Identity(
        PLAN.steps
    )
    more = made(strategy=None, participation=FIXED, max_vectors=3)[1].claim
    assert more == recommended(3, FIXED).calibration


@pytest.mark.parametrize(
    ("options", "max_vectors"), [({}, 1), ({"max_vectors": 4}, 4), ({"generator": "secure-lattice"}, 0)]
)
def test_what_the_loop_can_do_is_asked_for(monkeypatch, options, max_vectors):
    asked = []

    def recommend_under(participations, **given):
        asked.append((participations, given["max_vectors"], given["n"]))
        return recommended(0, dm.Poisson(BATCH / SIZE))

    monkeypatch.setattr(one_call, "recommend_under", recommend_under)
    claim = made(strategy=None, **options)[1].claim
    assert claim.participation == dm.Poisson(BATCH / SIZE)
    schemas = [dm.Poisson(BATCH / SIZE), dm.BallsInBins(PLAN.bins)]
    assert asked == [(schemas, max_vectors, PLAN.steps)]


def test_what_can_be_refused_early_is_refused_before_the_search(monkeypatch):
    monkeypatch.setattr(one_call, "recommend_under", lambda *_, **__: pytest.fail("searched"))
    weighted = torch.utils.data.WeightedRandomSampler([1.0] * SIZE, SIZE)
    loader = DataLoader(classification(SIZE), batch_size=BATCH, sampler=weighted)
    with pytest.raises(
        dm.UnsupportedCombinationError, match=r"has a WeightedRandomSampler; .* loss times the weight"
    ):
        made(loader, strategy=None)
    with pytest.raises(dm.InvalidParameterError, match="dataset_size"):
        made(strategy=None, dataset_size=None)
    with pytest.raises(TypeError, match="los"):
        made(strategy=None, los=cross_entropy)
    with pytest.raises(dm.InvalidParameterError, match="clip_norm"):
        made(strategy=None, clip_norm=-1.0)
    with pytest.raises(dm.InvalidParameterError, match='None or 0 with generator="secure-lattice"'):
        made(strategy=None, generator="secure-lattice", max_vectors=1)


@pytest.mark.slow
def test_the_recommendation_is_never_worse_than_dp_sgd_trains_and_resumes():
    first = made(strategy=None, rng=1)[1]
    saved, text = first.state_dict(), first.certificate().to_json()
    first.close()
    # Another call may find another sigma; the certificate of the first one resumes its run.
    model = classifier()
    model, optimizer, loader = make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        DataLoader(classification(SIZE), batch_size=BATCH),
        dm.Certificate.from_json(text),
        loss=cross_entropy,
        rng=1,
    )
    optimizer.load_state_dict(saved)
    poisson = dm.calibrate_sigma(
        dm.Identity(PLAN.steps), 4.0, 1e-3, participation=PLAN.participation("poisson")
    )
    assert optimizer.claim.rmse() <= poisson.rmse()
    while optimizer.steps_left:
        for batch in loader:
            model.backward(*batch)
            optimizer.step()
    assert optimizer.run_record().certificate.sigma == optimizer.claim.sigma


def test_processes_share_the_claim_of_the_first(monkeypatch):
    """Sampled calibrations differ between processes; one run would have two claims."""
    cal = dm.calibrate_sigma(dm.Identity(4), 4.0, 1e-3)
    sent = []
    monkeypatch.setattr(one_call, "is_first", lambda group: True)
    monkeypatch.setattr(
        one_call.dist, "broadcast_object_list", lambda found, source, group: sent.append(found[0])
    )
    first = one_call._from_first(lambda: cal, None)
    monkeypatch.setattr(one_call, "is_first", lambda group: False)

    def receive(found, source, group):
        found[0] = sent[-1]

    monkeypatch.setattr(one_call.dist, "broadcast_object_list", receive)
    assert one_call._from_first(lambda: pytest.fail("calibrated twice"), None) == first
    assert first.sigma == cal.sigma
    sent.append(dm.InvalidParameterError("eps", 0.0, "more"))
    with pytest.raises(dm.InvalidParameterError):
        one_call._from_first(lambda: cal, None)
