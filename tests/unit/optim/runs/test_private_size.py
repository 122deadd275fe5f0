"""Under ADD_REMOVE no release depends on the number of examples: neighbours, same keys.

The last example has a gradient of zero in one dataset and is missing in the other. All other gradients are
integers that are not clipped, so that sums are exact in any order: any difference is then a function of
the number of examples.
"""

import itertools
import json
import secrets

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dpmech as dm
from dpmech.optim import UserDataset, UserExamples, make_private, make_private_with_epsilon
from dpmech.samplers import sampler_for
from tests.support import saved
from tests.support.quick_cases import slow_but

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing")
SIZE, CLIP = 40, 1e4
SCHEMES = [
    "every step",
    "single",
    "min-sep",
    "epochs",
    "min-sep of users",
    "poisson",
    "users",
    "users in groups",
    "b-min-sep",
    "cyclic",
    "bins",
    "users in bins",
    "bins fresh",
]


def linear_loss(model, x, y):
    """Its gradient is x y, whatever the weights are."""
    return (model(x) * y).sum()


def examples(size):
    rng = torch.Generator().manual_seed(0)
    inputs = 12.0 * torch.randint(-3, 4, (SIZE, 3), generator=rng).float()
    inputs[-1] = 0.0
    return TensorDataset(inputs[:size], torch.ones(SIZE, 1)[:size])


def dataset(size, participation):
    most = participation.examples
    return (
        examples(size) if most == 1 else UserExamples(examples(size), [i // most for i in range(size)], most)
    )


def planned(cal, **whose):
    """The mean size of a batch of the larger dataset, for both."""
    return sampler_for(cal.participation, SIZE, n=cal.strategy.n, rng=1, **whose).mean_batch_size


def run(monkeypatch, cal, data, *, shuffle=False, batch_size=1, loss=linear_loss, **options):
    """(model, optimizer, loader), and all public outputs of the run."""
    words = itertools.count(5)
    monkeypatch.setattr(secrets, "randbits", lambda bits: next(words))  # keys that are not random
    torch.manual_seed(0)
    model = nn.Linear(3, 1, bias=False)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    whose = {"user_ids": [i // 2 for i in range(SIZE)]} if cal.participation.users_together else {}
    mean = 10 if batch_size > 1 else planned(cal, **whose)
    given = {"expected_batch_size": mean, "generator": 1, "rng": 2} | options
    loader = DataLoader(data, batch_size=batch_size, shuffle=shuffle)
    model, optimizer, loader = parts = make_private(model, sgd, loader, cal, CLIP, loss=loss, **given)
    seen = [len(loader), repr(loader), repr(loader.sampler), repr(loader.tracker), repr(optimizer)]
    while optimizer.steps_left:
        for x, y in loader:
            optimizer.zero_grad()
            if loss is None:
                (model(x) * y).mean().backward()
            else:
                model.backward(x, y)
            optimizer.step()
            if optimizer.batch_complete:
                seen.append([param.detach().clone() for param in model.parameters()])
                seen.append([param.grad.clone() for param in model.parameters()])
    record = optimizer.run_record()
    seen += [record.to_json(), str(record), str(record.certificate), repr(optimizer.record)]
    seen += [loader.physical_batch_size, optimizer.clipping_mode, str(optimizer.epsilon_spent())]
    optimizer.close()
    return parts, seen


def same(one, other):
    assert len(one) == len(other)
    for mine, theirs in zip(one, other, strict=True):
        if isinstance(mine, list):
            assert all(map(torch.equal, mine, theirs))
        else:
            assert mine == theirs
    return True


def neighbours(monkeypatch, cal, **options):
    found = []
    for size in (SIZE, SIZE - 1):
        parts, seen = run(monkeypatch, cal, dataset(size, cal.participation), **options)
        assert parts[2].sampler.dataset_size == size
        found.append(seen)
    return found


def options_of(name):
    return {"batch_size": 10, "dataset_size": SIZE} if name == "every step" else {}


@pytest.mark.parametrize("name", SCHEMES)
def test_one_example_less_changes_no_release(name, monkeypatch):
    cal = saved.calibration(name)
    assert cal.mechanism.hides_size
    same(*neighbours(monkeypatch, cal, unit=cal.unit.value, **options_of(name)))


@pytest.mark.parametrize("mode", ["per_example", "ghost", "hooks"])
@pytest.mark.parametrize("most", [None, 4])
def test_in_every_mode(mode, most, monkeypatch):
    if mode == "hooks":
        pytest.importorskip("opacus")
    how = {"loss": None} if mode == "hooks" else {"clipping_mode": mode}
    same(*neighbours(monkeypatch, saved.calibration("poisson"), max_physical_batch_size=most, **how))


@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": True},
        {"drop_last": True},
        {"shuffle": True, "drop_last": True},
        {"batch_size": 13},  # 40 examples make 4 batches of 13, and 39 make 3
    ],
)
def test_under_every_step(options, monkeypatch):
    given = {"batch_size": 10, "dataset_size": SIZE} | options
    same(*neighbours(monkeypatch, saved.calibration("every step"), **given))


def test_the_largest_physical_batch_follows_from_public_numbers(monkeypatch):
    same(*neighbours(monkeypatch, saved.calibration("bins"), max_physical_batch_size="auto"))


def test_users_as_items(monkeypatch):
    cal = dm.calibrate_sigma(dm.Mechanism(dm.Identity(6), dm.MinSep(2), unit=dm.Unit.USER), 8.0, 1e-5)
    seen = []
    for size in (SIZE, SIZE - 1):
        data = UserDataset(examples(size), list(range(size)), 1)
        words = itertools.count(5)
        monkeypatch.setattr(secrets, "randbits", lambda bits, words=words: next(words))
        torch.manual_seed(0)
        model = nn.Linear(3, 1, bias=False)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer, loader = make_private(
            model, sgd, DataLoader(data), cal, CLIP, loss=linear_loss, expected_batch_size=20, generator=1
        )
        for batch in loader:
            model.backward(*batch)
            optimizer.step()
        seen.append(([model.module.weight.detach().clone()], optimizer.run_record().to_json(), repr(loader)))
        optimizer.close()
    same(*seen)


def test_an_empty_part_of_the_data_is_checked_alike(monkeypatch):
    """A part with one example, of an unknown class: with and without it, the same record."""

    class Unknown(torch.utils.data.Dataset):
        def __init__(self, size):
            self.size = size

        def __len__(self):
            return self.size

        def __getitem__(self, index):
            return torch.zeros(3), torch.ones(1)

    cal = saved.calibration("bins")
    seen = [
        run(monkeypatch, cal, torch.utils.data.ConcatDataset([examples(SIZE - 1), Unknown(size)]))[1]
        for size in (1, 0)
    ]
    same(*seen)


# ---- required declarations


def made(cal, size=SIZE, **options):
    model = nn.Linear(3, 1, bias=False)
    loader = DataLoader(examples(size), batch_size=options.pop("batch_size", 1))
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    return make_private(model, sgd, loader, cal, CLIP, loss=linear_loss, **options)


def test_a_missing_declaration_is_named():
    with pytest.raises(dm.InvalidParameterError, match="expected_batch_size must be a constant"):
        made(saved.calibration("poisson"))
    with pytest.raises(dm.InvalidParameterError, match="dataset_size must be a public number"):
        made(saved.calibration("every step"), batch_size=10)
    with pytest.raises(dm.InvalidParameterError, match="dataset_size must be a public number"):
        made(saved.calibration("min-sep"), expected_batch_size=10, drop_last=True)
    model = nn.Linear(3, 1)
    with pytest.raises(dm.InvalidParameterError, match="dataset_size must be a public number"):
        make_private_with_epsilon(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            DataLoader(examples(SIZE), batch_size=8),
            eps=1.0,
            delta=1e-5,
            epochs=2,
            loss=linear_loss,
        )


@pytest.mark.parametrize("size", [38, 40, 42])
def test_the_denominator_is_the_declared_one(size):
    cal = saved.calibration("poisson")
    for source, options in (
        (cal, {"expected_batch_size": 8}),
        (cal.certificate(expected_batch_size=8), {}),
        (cal, {"batch_size": 8}),
    ):
        optimizer = made(source, size, **options)[1]
        assert optimizer.expected_batch_size == 8.0
        assert optimizer.run_record().certificate.dataset_size is None
        optimizer.close()


def test_a_calibration_carries_it():
    cal = dm.calibrate_sigma(
        dm.Identity(4),
        8.0,
        1e-5,
        participation=dm.Poisson(0.2),
        expected_batch_size=8,
        dataset_size=40,
    )
    certificate = dm.Certificate.from_json(cal.certificate(1.0).to_json())
    assert (certificate.expected_batch_size, certificate.dataset_size) == (8.0, 40)
    assert "dataset size, 40, is a declared public number" in str(certificate)
    assert dm.verify(certificate).ok
    optimizer = made(cal, 41)[1]
    assert (optimizer.expected_batch_size, optimizer.run_record().certificate.dataset_size) == (8.0, 40)
    assert str(optimizer.run_record()).endswith("; declared dataset size 40")
    assert "public" not in str(optimizer.run_record())
    with pytest.raises(dm.exceptions.CertificateError, match="dataset_size is certified as 40, got 41"):
        made(cal, 41, dataset_size=41)
    for bad in (0, 1.5, "40"):
        with pytest.raises(dm.InvalidParameterError, match="dataset_size"):
            dm.calibrate_sigma(dm.Identity(4), 8.0, 1e-5, dataset_size=bad)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("poisson", {"expected_batch_size": 100}),
        ("bins", {"batch_size": 100}),
        ("poisson", {"expected_batch_size": 100, "dataset_size": 500}),
        ("min-sep", {"dataset_size": 500, "expected_batch_size": 100}),
    ],
)
def test_a_mismatch_is_told_without_the_real_size(name, options):
    told = set()
    for size in (4999, 5000, 5003):
        real = TensorDataset(torch.zeros(size, 3), torch.ones(size, 1))
        model = nn.Linear(3, 1)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(real, batch_size=options.get("batch_size", 1))
        given = {key: value for key, value in options.items() if key != "batch_size"}
        with pytest.raises(
            dm.exceptions.CertificateError, match="differs from the dataset by more than 10%"
        ) as caught:
            make_private(model, sgd, loader, saved.calibration(name), loss=linear_loss, **given)
        told.add((str(caught.value), caught.value.claimed, caught.value.recomputed))
    assert len(told) == 1
    text = str(caught.value)
    assert "Plan with a number known without the data" in text
    assert len(text) <= 400


@pytest.mark.parametrize("size", [39, 40, 41])
def test_declared_sizes_that_contradict_each_other_are_both_named(size):
    cal = saved.calibration("poisson")
    certified = cal.certificate(expected_batch_size=8)
    with pytest.raises(
        dm.exceptions.CertificateError, match=r"expected_batch_size is certified as 8\.0, got 32\.0"
    ):
        made(certified, size, expected_batch_size=32)
    with pytest.raises(
        dm.exceptions.CertificateError,
        match=r"times processes is 32, and the certificate's .* is 8: two declared sizes",
    ):
        made(certified, size, batch_size=32)
    with pytest.raises(
        dm.exceptions.CertificateError, match=r"times processes is 32, and expected_batch_size is 8:"
    ):
        made(cal, size, batch_size=32, expected_batch_size=8)


def test_errors_about_batches_of_users_mention_users():
    cal = dm.calibrate_sigma(dm.Mechanism(dm.Identity(6), dm.MinSep(2), unit=dm.Unit.USER), 8.0, 1e-5)
    data = UserDataset(examples(SIZE), [i // 4 for i in range(SIZE)], 4)  # 10 users, 5 per batch
    model = nn.Linear(3, 1, bias=False)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(
        dm.exceptions.CertificateError, match=r"is 20 \(users, not examples: items of a UserDataset\)"
    ):
        make_private(model, sgd, DataLoader(data), cal, CLIP, loss=linear_loss, expected_batch_size=20)


@pytest.mark.parametrize("name", ["min-sep", "every step", "poisson"])
def test_drop_last_of_a_loader_is_refused(name):
    """It is ignored if the certificate determines the batches, and under random sampling."""
    cal, given = saved.calibration(name), {"expected_batch_size": 10} if name == "min-sep" else {}

    def private(**options):
        model = nn.Linear(3, 1, bias=False)
        loader = DataLoader(examples(SIZE), batch_size=8 if name == "poisson" else 10, drop_last=True)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        return make_private(model, sgd, loader, cal, CLIP, loss=linear_loss, **given | options)

    if name != "poisson":
        with pytest.raises(
            dm.UnsupportedCombinationError, match=r"drop_last=True.*make_private\(\.\.\., drop"
        ):
            private(dataset_size=SIZE)
        private(dataset_size=SIZE, drop_last=False)[1].close()
        private(dataset_size=SIZE, drop_last=True)[1].close()
    else:
        private()[1].close()


def test_within_the_tolerance_no_error_is_raised(recwarn):
    for size in (38, 39, 41, 42):
        made(saved.calibration("poisson"), size, expected_batch_size=8, dataset_size=40)[1].close()
    assert not recwarn.list


# ---- a public number of examples


def test_under_zero_out_the_size_is_public():
    cal = dm.calibrate_sigma(
        dm.Identity(4), 8.0, 1e-5, participation=dm.Poisson(0.2), adjacency=dm.Adjacency.ZERO_OUT
    )
    optimizer = made(cal)[1]
    assert optimizer.expected_batch_size == 8.0
    record = optimizer.run_record()
    assert record.certificate.dataset_size == SIZE
    assert "The dataset size, 40, is public." in str(record.certificate)
    assert str(record).endswith("dataset size 40, public")
    assert json.loads(record.to_json())["certificate"]["claim"]["dataset_size"] == SIZE
    with pytest.raises(dm.exceptions.CertificateError, match="dataset_size is 41, the dataset has 40"):
        made(cal, dataset_size=41)
    with pytest.raises(dm.exceptions.CertificateError, match="over 40 examples gives batches of 8"):
        made(cal, expected_batch_size=11)


def test_a_stated_size_is_that_of_the_participation():
    cal = saved.calibration("fixed batches")
    assert not cal.mechanism.hides_size
    with pytest.raises(dm.InvalidParameterError, match="dataset_size must be None or that of"):
        cal.certificate(dataset_size=31)
    assert cal.certificate(dataset_size=30).dataset_size == 30


def test_a_replacement_user_may_have_fewer_examples():
    users = dm.MinSep(4, max_examples_per_user=3)
    for adjacency, participation, hidden in (
        (dm.Adjacency.REPLACE_ONE, users, True),
        (dm.Adjacency.REPLACE_ONE, dm.MinSep(4), False),
        (dm.Adjacency.ZERO_OUT, users, False),
        (dm.Adjacency.ADD_REMOVE, dm.MinSep(4), True),
    ):
        assert dm.Mechanism(dm.Identity(12), participation, adjacency).hides_size is hidden


# ---- the trainers


class Linear(nn.Module):
    """A model that computes its loss, with the gradients of `linear_loss`."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.last = nn.Linear(3, 1, bias=False)

    def forward(self, inputs, labels=None):
        logits = self.last(inputs)
        return {"loss": logits.sum() if labels is None else (logits * labels).sum(), "logits": logits}


class Named(torch.utils.data.Dataset):
    """Examples by name."""

    def __init__(self, size):
        self.inner = examples(size)

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, index):
        x, y = self.inner[index]
        return {"inputs": x, "labels": y}


def kept_still(value):
    """Logs without times and values derived from them."""
    if isinstance(value, dict):
        return {
            name: kept_still(one)
            for name, one in value.items()
            if "second" not in name and "runtime" not in name
        }
    return [kept_still(one) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", slow_but(["poisson", "min-sep"], 1))
def test_a_trainer_does_not_reveal_the_size(name, monkeypatch, tmp_path, caplog, capsys):
    transformers = pytest.importorskip("transformers")
    hf = pytest.importorskip("dpmech.optim.hf")
    cal, seen = saved.calibration(name), []
    transformers.utils.logging.enable_propagation()
    monkeypatch.setattr(transformers.trainer.logger, "level", 10)
    for size in (SIZE, SIZE - 1):
        words = itertools.count(5)
        monkeypatch.setattr(secrets, "randbits", lambda bits, words=words: next(words))
        folder = tmp_path / "out"  # a path may be logged
        args = transformers.TrainingArguments(
            str(folder),
            per_device_train_batch_size=8 if name == "poisson" else 10,
            max_steps=12,
            save_strategy="steps",
            save_steps=6,
            logging_steps=3,
            optim="sgd",
            learning_rate=0.125,
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = hf.PrivateTrainer(
            model=Linear(),
            args=args,
            train_dataset=Named(size),
            privacy=hf.Privacy(cal, clip_norm=CLIP, generator=1, rng=2),
        )
        caplog.clear()
        trainer.train()
        trainer.save_model(str(folder / "model"))
        state = json.loads((folder / "checkpoint-12" / "trainer_state.json").read_text())
        batches = trainer.get_train_dataloader()
        shown = [line for line in capsys.readouterr().out.splitlines() if "runtime" not in line]
        logged = [one.getMessage() for one in caplog.records]
        seen.append(
            (
                [trainer.model.last.weight.detach().clone()],
                (folder / "model" / "run_record.json").read_text(),
                str(kept_still(state)),
                str(kept_still(trainer.state.log_history)),
                str(logged),
                str(shown),
                (len(batches), trainer.num_examples(batches)),
            )
        )
        trainer.run[1].close()
        folder.rename(tmp_path / f"out-{size}")
    assert any("Num examples" in line for line in logged)
    same(*seen)


@pytest.mark.filterwarnings("ignore:.*LeafSpec.*", "ignore:.*does not have many workers.*")
def test_lightning_does_not_reveal_the_size(monkeypatch, tmp_path):
    lightning = pytest.importorskip("lightning")
    from lightning.pytorch.loggers import CSVLogger

    from dpmech.optim.lightning import PrivateTraining

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Linear()

        def forward(self, **batch):
            return self.net(**batch)

        def training_step(self, batch, index):
            raise NotImplementedError

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.125)

    seen = []
    for size in (SIZE, SIZE - 1):
        words = itertools.count(5)
        monkeypatch.setattr(secrets, "randbits", lambda bits, words=words: next(words))
        private = PrivateTraining(
            saved.calibration("poisson"),
            DataLoader(Named(size)),
            CLIP,
            loss=lambda model, **batch: model(**batch)["loss"],
            expected_batch_size=8,
            folder=tmp_path / f"run-{size}",
            generator=1,
            rng=2,
        )
        logger = CSVLogger(tmp_path / f"log-{size}")
        fit = lightning.Trainer(
            max_steps=12,
            callbacks=[private],
            logger=logger,
            accelerator="cpu",
            enable_progress_bar=False,
            enable_model_summary=False,
            log_every_n_steps=3,
        )
        module = Module()
        fit.fit(module, private.loader)
        seen.append(
            (
                [module.net.last.weight.detach().clone()],
                private.run_record().to_json(),
                str(logger.experiment.metrics),
                str(fit.logged_metrics),
                (fit.num_training_batches, repr(private.run[2])),
            )
        )
        private.run[1].close()
    same(*seen)
