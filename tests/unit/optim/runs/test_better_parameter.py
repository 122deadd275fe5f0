"""make_private warns if another parameter of the strategy is much better, and only then."""

import re
import warnings

import pytest
import torch
from torch.utils.data import DataLoader

import dpmech as dm
from dpmech.optim import BetterParameterWarning, make_private
from tests.support.training import classification, classifier, cross_entropy, private_run

N = 40


def started(strategy, participation):
    cal = dm.calibrate_sigma(strategy, 1.0, 1e-5, participation=participation)
    return private_run(cal, classifier(), classification(20), loss=cross_entropy, generator=1)


def test_a_bad_parameter_brings_a_warning_that_names_a_better_one_and_the_way_to_the_best():
    with pytest.warns(BetterParameterWarning) as caught:
        started(dm.LambdaCGD(N, 0.0), dm.MinSep(20))
    (warning,) = caught
    text = str(warning.message)
    lam, factor = re.search(
        r"LambdaCGD\(n=40, lam=([0-9.]+)\) has an error about ([0-9.]+) times", text
    ).groups()
    participation = dm.MinSep(20)
    exact = dm.rmse(dm.LambdaCGD(N, 0.0), participation) / dm.rmse(dm.LambdaCGD(N, float(lam)), participation)
    assert float(factor) == pytest.approx(exact, abs=0.05)
    best = eval(re.search(r"dm\.optimize\(.*\)\.strategy", text).group())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        started(best, participation)


def test_bands_are_named_as_they_are_to_be_used():
    with pytest.warns(BetterParameterWarning, match=r"use SquareRoot\(n=40, bands=\d+\)"):
        started(dm.SquareRoot(N, 1), dm.MinSep(20))


def test_it_can_be_filtered_by_its_category():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", category=BetterParameterWarning)
        started(dm.LambdaCGD(N, 0.0), dm.MinSep(20))


def test_it_points_at_the_call_of_make_private():
    cal = dm.calibrate_sigma(dm.LambdaCGD(N, 0.0), 1.0, 1e-5, participation=dm.MinSep(20))
    model = classifier()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(BetterParameterWarning) as caught:
        make_private(
            model, sgd, DataLoader(classification(20)), cal, loss=cross_entropy, expected_batch_size=1
        )
    assert caught[0].filename == __file__
