import csv
import itertools
import json
import math
import pathlib
import re
import zipfile

import numpy as np
import pytest

pytest.importorskip("torch")

import accuracy_study
import accuracy_tasks
import accuracy_training
import torch
from scipy import signal
from torch.utils.data import DataLoader, TensorDataset

import dpmech as dm
from dpmech.optim import AdamBC, Muon, attach_denoiser, make_private
from tests.support.tasks import small_task


def test_nobody_is_trained_on_and_tested_with_or_chooses_a_rate():
    task = small_task()
    splits = [[set(part.tolist()) for part in task.split(seed)] for seed in range(4)]
    validation = splits[0][1]
    for train, chosen, test in splits:
        assert chosen == validation
        assert (len(train), len(test)) == (60, 20)
        assert not train & test
        assert not validation & (train | test)
        assert len(train | test | validation) == len(task.labels)
    assert splits[0][2] != splits[1][2]


def torch_model(plan, task):
    d = task.features.shape[1] - 1
    if plan.model == "softmax":
        return torch.nn.Linear(d, task.classes)
    width = accuracy_training.HIDDEN
    return torch.nn.Sequential(
        torch.nn.Linear(d, width), torch.nn.ReLU(), torch.nn.Linear(width, task.classes)
    )


def load(model, weights, seed, rate):
    """The weights of one seed and rate: bias last."""
    layers = [layer for layer in model.modules() if isinstance(layer, torch.nn.Linear)]
    with torch.no_grad():
        for layer, weight in zip(layers, weights, strict=True):
            layer.weight.copy_(weight[seed, :-1, rate].T)
            layer.bias.copy_(weight[seed, -1, rate])
    return model


def private_run(plain, data, cal, rate, momentum, loss, seed):
    """The weights after every step of a run of make_private, layers as (inputs + 1, outputs)."""
    private, optimizer, batches = make_private(
        plain,
        torch.optim.SGD(plain.parameters(), lr=rate, momentum=momentum),
        DataLoader(data),
        cal,
        accuracy_training.CLIP,
        loss=loss,
        expected_batch_size=12.0,
        generator=seed,
        rng=seed,
    )
    steps = []
    while optimizer.steps_left:
        for x, y in batches:
            private.backward(x, y)
            optimizer.step()
            layers = [layer for layer in plain.modules() if isinstance(layer, torch.nn.Linear)]
            steps.append([torch.cat([one.weight.T, one.bias[None]]).detach() for one in layers])
    return steps


@pytest.mark.parametrize(
    ("model", "kind", "momentum"),
    [
        ("softmax", "poisson", 0.0),
        ("softmax", "balls-in-bins", 0.9),
        ("network", "poisson", 0.9),
        ("network", "balls-in-bins", 0.0),
    ],
)
def test_training_is_that_of_make_private(model, kind, momentum, monkeypatch):
    """The same batches, clipping, noise and steps; its noise is found where all gradients are 0."""
    task = small_task()
    plan = accuracy_training.Plan("small", model, 5, 2, 4.0)
    where = accuracy_study.participation(kind, plan.bins, plan.epochs)
    strategy = dm.Identity(10) if kind == "poisson" else dm.BLT(10, [0.5, 0.9], [0.3, 0.1])
    cal = dm.calibrate_sigma(strategy, 64.0, 1e-5, participation=where, rng=0)
    scale = cal.sigma * accuracy_training.CLIP / 12.0
    rates = [0.5, 2.0]
    start = accuracy_training.starts(plan, task, 2, 2)

    def model_of(seed, rate):
        return load(torch_model(plan, task), start, seed, rate)

    def data_of(seed):
        places = task.split(seed)[0]
        return TensorDataset(task.features[places, :-1], task.labels[places])

    drawn = []
    for seed in range(2):
        still = private_run(
            model_of(seed, 0), data_of(seed), cal, 1.0, 0.0, lambda one, x, y: 0.0 * one(x).sum(), seed
        )
        places = [torch.cat([one[seed, :, 0].ravel() for one in start])]
        places += [torch.cat([one.ravel() for one in step]) for step in still]
        drawn.append([(one - two) / scale for one, two in itertools.pairwise(places)])
    rows = [torch.stack(both) for both in zip(*drawn, strict=True)]
    monkeypatch.setattr(accuracy_training, "noise_rows", lambda *_: iter(rows))

    noise = accuracy_training.Noise(strategy, where, cal.sigma, 1.0)
    rule = accuracy_training.Rule("SGD", 1.0, momentum=momentum)
    mine = accuracy_training.trained(plan, task, noise, rule, rates, seeds=2)
    for seed in range(2):
        for place, rate in enumerate(rates):
            steps = private_run(
                model_of(seed, place),
                data_of(seed),
                cal,
                rate,
                momentum,
                lambda one, x, y: torch.nn.functional.cross_entropy(one(x), y),
                seed,
            )
            for layer, last in enumerate(mine["last"]):
                averaged = sum(step[layer] for step in steps[5:]) / 5
                assert averaged.abs().max() > 0.1
                torch.testing.assert_close(last[seed, :, place], steps[-1][layer], atol=1e-4, rtol=1e-4)
                average = mine["average"][layer][seed, :, place]
                torch.testing.assert_close(average, averaged, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("strategy", [dm.Identity(30), dm.BLT(30, [0.5, 0.9, 0.99], [0.2, 0.1, 0.05])])
def test_noise_is_that_of_the_strategy(strategy):
    rows = torch.stack(list(accuracy_training.noise_rows(strategy, (2, 3), 5))).double().numpy()
    generator = torch.Generator().manual_seed(5)
    z = torch.stack([torch.randn(2, 3, generator=generator) for _ in range(30)]).double().numpy()
    assert np.allclose(strategy.to_dense() @ rows.reshape(30, 6), z.reshape(30, 6), atol=1e-5)


def test_adam_is_that_of_the_library():
    generator = torch.Generator().manual_seed(3)
    start = torch.randn(1, 4, 2, 3, generator=generator)
    rule = accuracy_training.Rule("AdamBC", 1.0, adam=(0.9, 0.99))
    mine, rates = [start.clone()], [0.1, 0.01]
    updates = accuracy_training.Updates(rule, mine, rates, np.full(6, 0.04))
    others = [torch.nn.Parameter(start[0, :, place].clone()) for place in range(2)]
    optimizers = [
        AdamBC([one], rate, betas=(0.9, 0.99), floor=0.04, eps=0.0)
        for one, rate in zip(others, rates, strict=True)
    ]
    for optimizer in optimizers:
        optimizer.param_groups[0]["phi"] = 0.04
    for t in range(6):
        gradient = 0.3 * torch.randn(1, 4, 2, 3, generator=generator)
        updates.step(t, [gradient])
        for place, (one, optimizer) in enumerate(zip(others, optimizers, strict=True)):
            one.grad = gradient[0, :, place].clone()
            optimizer.step()
            torch.testing.assert_close(mine[0][0, :, place], one.data, atol=1e-6, rtol=1e-5)


def denoised_sgd(params, rate):
    inner = torch.optim.SGD(params, rate, momentum=0.9)
    attach_denoiser(inner)
    return inner


@pytest.mark.parametrize(
    ("rule", "library"),
    [
        (
            accuracy_training.Rule("Adam", 1.0, adam=(0.9, 0.99), subtract=False),
            lambda params, rate: torch.optim.Adam(params, rate, betas=(0.9, 0.99), eps=0.0),
        ),
        (
            accuracy_training.Rule("Muon", 1.0, momentum=0.95, muon=True),
            lambda params, rate: Muon(params, rate, momentum=0.95),
        ),
        (
            accuracy_training.Rule("denoised", 1.0, momentum=0.9, denoised=True),
            denoised_sgd,
        ),
    ],
    ids=lambda one: getattr(one, "name", ""),
)
def test_rules_are_those_of_the_libraries(rule, library):
    """Two seeds and rates at once; gradients of rank one in noise of standard deviation 0.2."""
    generator = torch.Generator().manual_seed(4)
    start = torch.randn(2, 12, 2, 5, generator=generator)
    mine, rates = [start.clone()], [0.1, 0.01]
    updates = accuracy_training.Updates(rule, mine, rates, np.full(6, 0.04))
    others = {
        (seed, place): torch.nn.Parameter(start[seed, :, place].clone())
        for seed in range(2)
        for place in range(2)
    }
    optimizers = {where: library([one], rates[where[1]]) for where, one in others.items()}
    for t in range(6):
        gradient = 0.2 * torch.randn(2, 12, 2, 5, generator=generator)
        gradient += torch.linspace(-1.0, 1.0, 12)[None, :, None, None]
        updates.step(t, [gradient])
        for (seed, place), one in others.items():
            optimizers[seed, place].param_groups[0]["phi"] = 0.04
            one.grad = gradient[seed, :, place].clone()
            optimizers[seed, place].step()
            torch.testing.assert_close(mine[0][seed, :, place], one.data, atol=1e-5, rtol=1e-4)
    assert (mine[0] - start).abs().max() > 0.05


def test_a_falling_rate_ends_at_nothing():
    rule = accuracy_training.Rule("SGD", 1.0, decay=True)
    weights = [torch.zeros(1, 1, 1, 1)]
    updates = accuracy_training.Updates(rule, weights, [2.0], np.zeros(4))
    places = []
    for t in range(4):
        updates.step(t, [torch.ones(1, 1, 1, 1)])
        places.append(float(weights[0]))
    assert places == [-2.0, -3.5, -4.5, -5.0]


def test_the_grid_grows_until_the_best_rates_are_inside(monkeypatch):
    """Rates far from the first grid: below it for the last weights, above it for their average."""
    rule = accuracy_training.Rule("SGD", 1.0)
    peaks = {"last": 2.0**-5, "average": 2.0**9}
    asked = []

    def trained(plan, task, noise, rule, rates, *, seeds, noisy):
        asked.append(rates)
        return {name: [name, rates] for name in peaks}

    def tested(plan, task, weights):
        name, rates = weights
        found = np.array([[-abs(math.log2(rate / peaks[name])) for rate in rates]] * 2)
        return found, 0.5 + found / 100.0

    monkeypatch.setattr(accuracy_study, "trained", trained)
    monkeypatch.setattr(accuracy_study, "tested", tested)
    plan = accuracy_training.Plan("small", "softmax", 100, 4, 1.0)
    found = accuracy_study.tuned(plan, None, None, rule, 2, noisy=True)
    assert {name: one["rate"] for name, one in found.items()} == peaks
    assert found["last"]["test"] == [0.5, 0.5]
    every = sorted(rate for rates in asked for rate in rates)
    assert len(set(every)) == len(every) == found["last"]["tried"]
    assert every[0] < peaks["last"]
    assert every[-1] > peaks["average"]


def test_the_interval_is_that_of_student():
    mean, width = accuracy_study.interval(np.array([0.01, 0.03]))  # sd 0.01414, t 12.706 with one degree
    assert mean == pytest.approx(0.02)
    assert width == pytest.approx(0.12706, rel=1e-4)
    values = np.array([1.0, 2.0, 3.0, 4.0, 5.0])  # sd 1.5811, t 2.7764 with four
    assert accuracy_study.interval(values)[1] == pytest.approx(2.7764 * 1.5811 / math.sqrt(5), rel=1e-4)


def test_a_batch_size_is_chosen_by_the_validation_part_alone():
    part = accuracy_study.Part("digits", "softmax", 4, (1.0,))

    def one(validation, test):
        return {"rate": 1.0, "tried": 7, "validation": validation, "test": test}

    names = [
        accuracy_study.name_of(
            accuracy_training.Plan("digits", "softmax", bins, 4, 1.0), "poisson", accuracy_study.SGD
        )
        for bins in (100, 20)
    ]
    found = {
        names[0]: {"last": one(0.8, [0.1, 0.2]), "average": one(0.7, [0.9, 0.9])},
        names[1]: {"last": one(0.6, [0.9, 0.9]), "average": one(0.9, [0.3, 0.4])},
    }
    assert accuracy_study.best(found, part, 1.0, "poisson").tolist() == [0.1, 0.2]
    assert accuracy_study.best(found, part, 1.0, "poisson", bins=(100, 20)).tolist() == [0.3, 0.4]


def test_the_rule_is_about_what_noise_costs_and_the_ratio_of_errors():
    part = accuracy_study.Part("digits", "softmax", 4, (1.0,))
    found = {}
    for kind, eps, accuracy, rmse in (
        ("no noise", math.inf, 0.9, None),
        ("poisson", 1.0, 0.8, 6.0),
        ("balls-in-bins", 1.0, 0.5, 3.0),  # what is predicted does not look at it
    ):
        plan = accuracy_training.Plan("digits", "softmax", 100, 4, eps)
        one = {"rate": 1.0, "tried": 7, "validation": accuracy, "test": [accuracy] * 2}
        found[accuracy_study.name_of(plan, kind, accuracy_study.SGD)] = {"last": one, "average": one}
        found[accuracy_study.noise_name(kind, 100, 4, eps)] = {"rmse": rmse}
    assert accuracy_study.ratio(found, part, 1.0) == 2.0
    assert accuracy_study.predicted(found, part, 1.0) == pytest.approx((0.05, 0.075))


def test_a_stored_result_is_not_made_again(tmp_path):
    made = []

    def make():
        made.append(1)
        return {"a": 0.1}

    path = tmp_path / "numbers.json"
    assert accuracy_study.Store(path).get("one", make) == {"a": 0.1}
    assert accuracy_study.Store(path).get("one", make) == {"a": 0.1}
    assert made == [1]
    assert json.loads(path.read_text(encoding="utf-8")) == {"one": {"a": 0.1}}


def test_the_script_trains_writes_and_goes_on(tmp_path, capsys, monkeypatch):
    """A small study, with noise that nobody has certified."""
    task = small_task(train=100, test=40)

    def uncertified(kind, bins, epochs, eps):
        steps = bins * epochs
        strategy = dm.BLT(steps, [0.5, 0.9], [0.3, 0.1]) if kind == "balls-in-bins" else dm.Identity(steps)
        return {"strategy": strategy.to_dict(), "sigma": 4.0 / eps, "rmse": 2.0 if kind == "poisson" else 1.0}

    monkeypatch.setattr(accuracy_study, "TASKS", {"small": lambda: task})
    monkeypatch.setattr(accuracy_study, "BINS", (5, 2))
    monkeypatch.setattr(accuracy_study, "certified", uncertified)
    rules = (accuracy_study.SGD, accuracy_training.Rule("AdamBC", 0.01, adam=(0.9, 0.999)))
    parts = (
        accuracy_study.Part(
            "small", "softmax", 2, (8.0,), rules, (*accuracy_study.KINDS, accuracy_study.ALLOCATION)
        ),
        accuracy_study.Part("small", "network", 2, (8.0,), bins=(10, 5, 2)),
    )
    monkeypatch.setattr(accuracy_study, "STUDY", parts)
    arguments = [str(tmp_path), "--seeds", "2"]
    assert accuracy_study.main(arguments) == 0
    printed = capsys.readouterr().out
    found = json.loads((tmp_path / "accuracy_study.json").read_text(encoding="utf-8"))
    # Batch sizes and kinds of noise, and without noise; one more rule, and allocation, with one batch size.
    assert len([name for name in found if "softmax" in name]) == 3 * 3 + 2
    assert len([name for name in found if "network" in name]) == 3 * 3
    table = (tmp_path / "accuracy_study.txt").read_text(encoding="utf-8")
    assert printed == table + "\n" + (tmp_path / "accuracy_study_optimizers.txt").read_text("utf-8") + "\n"
    assert "| small, network, 2 x 10, 8 |" in table
    assert accuracy_study.best(found, parts[0], math.inf, "no noise").mean() > 0.8
    monkeypatch.setattr(accuracy_study, "tuned", None)  # a second call finds everything done
    assert accuracy_study.main(arguments) == 0
    assert capsys.readouterr().out == printed


def test_tables_of_packages_become_tasks(tmp_path, monkeypatch):
    monkeypatch.setattr(accuracy_tasks, "_folder", lambda package: tmp_path)
    (tmp_path / "data").mkdir()
    flight = {"month": 1, "hour": 5, "carrier": "UA", "origin": "JFK", "dest": "MIA", "day": 1}
    delays = ["20", "3", "-4", "NA", "16", "15"]
    with (tmp_path / "flights.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*flight, "arr_delay"])
        writer.writeheader()
        writer.writerows(flight | {"arr_delay": delay, "month": place} for place, delay in enumerate(delays))
    with zipfile.ZipFile(tmp_path / "data/flights.csv.zip", "w") as archive:
        archive.write(tmp_path / "flights.csv", "flights.csv")
    task = accuracy_tasks.flights()
    assert np.bincount(task.labels).tolist() == [2, 2]  # as many late as not, none without a delay
    assert torch.allclose(task.features[:, :-1].norm(dim=1), torch.ones(4))
    assert (task.features[:, -1] == 1.0).all()

    diamond = {"carat": 1, "depth": 60, "table": 57, "price": 900, "x": 4, "y": 4, "z": 2}
    with (tmp_path / "data/diamonds.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*diamond, "cut", "color", "clarity"])
        writer.writeheader()
        for cut, color in (("Fair", "D"), ("Ideal", "E"), ("Good", "E")):
            writer.writerow(diamond | {"cut": cut, "color": color, "clarity": "SI1"})
    task = accuracy_tasks.diamonds()
    assert task.labels.tolist() == [0, 4, 1]
    assert task.features.shape == (3, 7 + 2 + 1 + 1)


def test_a_missing_package_says_how_to_install_it():
    with pytest.raises(SystemExit, match="pip install no_such_package"):
        accuracy_tasks._folder("no_such_package")


def committed():
    folder = pathlib.Path(__file__).parents[2] / "docs"
    found = json.loads((folder / "figures/accuracy_study.json").read_text(encoding="utf-8"))
    return folder, found


def test_the_tables_of_the_page_are_those_of_the_numbers():
    folder, found = committed()
    for name, table in (
        ("accuracy_study", accuracy_study.table),
        ("accuracy_study_optimizers", accuracy_study.optimizers),
    ):
        assert (folder / f"figures/{name}.txt").read_text(encoding="utf-8") == table(found)


def test_what_the_page_says_of_the_rule_and_of_the_largest_gain():
    folder, found = committed()
    page = " ".join((folder / "choosing.md").read_text(encoding="utf-8").split())
    rows = [(part, eps) for part in accuracy_study.STUDY for eps in part.budgets]
    gains = {
        row: accuracy_study.best(found, *row, "balls-in-bins") - accuracy_study.best(found, *row, "poisson")
        for row in rows
    }
    misses = []
    for row in rows:
        low, high = accuracy_study.predicted(found, *row)
        misses.append(max(low - gains[row].mean(), gains[row].mean() - high, 0.0))
    stated = re.search(
        r"On these (\d+) plans, the gain is at most ([\d.]+) points outside the predicted range", page
    )
    at_most = math.ceil(1000 * max(misses)) / 10  # "at most": rounded up
    assert stated.groups() == (str(len(rows)), f"{at_most:.1f}")
    largest = max(rows, key=lambda row: gains[row].mean())
    mean, width = (100 * one for one in accuracy_study.interval(gains[largest]))
    assert mean - width > 1.0  # a point of accuracy, with an interval that excludes it
    assert f"{mean:.1f} ± {width:.1f} points" in page


def test_committed_noise_is_what_the_calibration_says():
    _, found = committed()
    stated = found[accuracy_study.noise_name("poisson", 20, 4, 4.0)]
    again = accuracy_study.certified("poisson", 20, 4, 4.0)
    assert stated["strategy"] == again["strategy"]
    assert again["sigma"] == pytest.approx(stated["sigma"], rel=1e-3)
    assert again["rmse"] == pytest.approx(stated["rmse"], rel=1e-3)
    for name, one in found.items():
        if name.startswith("balls-in-bins"):
            bins, epochs = (int(number) for number in re.findall(r"\d+", name)[:2])
            strategy = dm.Strategy.from_dict(one["strategy"])
            assert isinstance(strategy, dm.BLT)
            # The noise of the sums, from the coefficients of A C^-1, the series 1 / ((1 - x) c(x)).
            powers = np.asarray(strategy.decays)[:, None] ** np.arange(bins * epochs - 1)
            first = np.concatenate([[1.0], np.asarray(strategy.scales) @ powers])
            sums = np.cumsum(signal.lfilter([1.0], first, np.eye(1, len(first))[0]))
            rmse = one["sigma"] * math.sqrt(np.mean(np.cumsum(sums**2)))
            assert rmse == pytest.approx(one["rmse"], rel=1e-6)
