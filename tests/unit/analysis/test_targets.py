"""Noise shares as targets, against bounds of dp-accounting and against their own definition."""

import pytest
from dp_accounting.pld import privacy_loss_distribution as pld

import dpmech as dm
from dpmech.analysis.noise_share.moments import (
    debiased_noise_share,
    median_factor,
    noise_share,
    noise_variance,
    share_of_measured,
)
from dpmech.analysis.noise_share.targets import (
    batch_size_for_share,
    epsilon_for_share,
    noise_multiplier_for_share,
)
from dpmech.exceptions import InvalidParameterError, NumericalError, UnattainableBudgetError

PLAN = {"signal_second_moment": 3e-4, "clip_norm": 2.0}
RUN = {"dataset_size": 1000, "steps": 20, "delta": 1e-5}


def peer_eps(sigma, q, steps, delta):
    """An upper bound of dp-accounting, within about 0.1 %."""
    one = pld.from_gaussian_mechanism(sigma, sampling_prob=q, value_discretization_interval=1e-4)
    return one.self_compose(steps).get_epsilon_for_delta(delta)


def test_the_measured_moment_contains_the_noise():
    """At saturation the share of a measured moment is near 1, where the other formula would say one half."""
    phi, signal = 2.2e-8, 1e-9
    assert share_of_measured(phi, phi + signal) == pytest.approx(noise_share(phi, signal), rel=1e-12)
    assert share_of_measured(phi, phi + signal) > 0.95
    assert noise_share(phi, phi + signal) < 0.5
    median = (phi + signal) * median_factor(0.999, 500)
    assert debiased_noise_share(phi, median, beta2=0.999, step=500) == pytest.approx(
        share_of_measured(phi, phi + signal), rel=1e-12
    )


@pytest.mark.parametrize("rho", [1e-6, 0.3, 0.5, 0.999])
@pytest.mark.parametrize("size", [1.0, 512.0])
def test_noise_multiplier_is_the_inverse_of_the_share(rho, size):
    sigma = noise_multiplier_for_share(rho, batch_size=size, **PLAN)
    phi = noise_variance(sigma, PLAN["clip_norm"], size)
    assert noise_share(phi, PLAN["signal_second_moment"]) == pytest.approx(rho, rel=1e-12)


def test_epsilon_of_a_share():
    found = epsilon_for_share(0.6, batch_size=100, **PLAN, **RUN)
    sigma = noise_multiplier_for_share(0.6, batch_size=100, **PLAN)
    assert found.upper == pytest.approx(peer_eps(sigma, 0.1, 20, 1e-5), rel=2e-3)
    assert epsilon_for_share(0.7, batch_size=100, **PLAN, **RUN).upper < found.lower


@pytest.mark.parametrize(("rho", "eps"), [(0.8, 2.0), (0.5, 4.0)])
def test_batch_size_is_the_smallest_that_meets_the_budget(rho, eps):
    found = batch_size_for_share(rho, eps=eps, **PLAN, **RUN)
    assert found.share <= rho * (1.0 + 1e-12)
    assert found.noise_multiplier <= noise_multiplier_for_share(rho, batch_size=found.batch_size, **PLAN)
    spent = [
        peer_eps(noise_multiplier_for_share(rho, batch_size=size, **PLAN), size / 1000, 20, 1e-5)
        for size in (found.batch_size, found.batch_size - 1)
    ]
    assert spent[0] <= eps * (1.0 + 2e-3)
    assert spent[1] >= eps * (1.0 - 2e-3)
    assert spent[1] > spent[0]
    q = found.batch_size / 1000
    assert dm.epsilon(
        dm.Identity(20), found.noise_multiplier, 1e-5, participation=dm.Poisson(q)
    ).upper <= eps * (1.0 + 1e-6)


def test_one_example_may_be_enough():
    plan = PLAN | {"signal_second_moment": 1e3}
    assert batch_size_for_share(0.9, eps=4.0, **plan, **RUN).batch_size == 1


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("rho", {"rho": 0.0}),
        ("rho", {"rho": 1.0}),
        ("signal_second_moment", {"signal_second_moment": 0.0}),
        ("clip_norm", {"clip_norm": -1.0}),
        ("dataset_size", {"dataset_size": 0}),
        ("n", {"steps": 0}),
        ("delta", {"delta": 1.0}),
    ],
)
def test_bad_arguments_are_named(name, changed):
    plan = {"rho": 0.5, "eps": 1.0, "batch_size": 10} | PLAN | RUN | changed
    for function, without in ((batch_size_for_share, "batch_size"), (epsilon_for_share, "eps")):
        given = {key: value for key, value in plan.items() if key != without}
        with pytest.raises(InvalidParameterError) as caught:
            function(given.pop("rho"), **given)
        assert caught.value.name == name


def test_batches_are_no_larger_than_the_data():
    with pytest.raises(InvalidParameterError, match="batch_size"):
        epsilon_for_share(0.5, batch_size=1001, **PLAN, **RUN)


def test_a_share_that_no_batch_reaches_is_refused_with_the_least_one():
    """Every batch with all examples: the share of the Gaussian mechanism's sigma."""
    with pytest.raises(InvalidParameterError, match="if every batch has all 1000 examples") as caught:
        batch_size_for_share(1e-4, eps=0.5, **PLAN, **RUN)
    sigma = dm.calibrate_sigma(dm.Identity(20), 0.5, 1e-5, participation=dm.EveryStep()).sigma
    least = noise_share(noise_variance(sigma, 2.0, 1000), 3e-4)
    stated = float(caught.value.accepted.split("at least ")[1].split(",")[0])
    assert least <= stated <= least * 1.01 + 1e-4


def test_overflow_is_an_error():
    with pytest.raises(NumericalError):
        noise_multiplier_for_share(0.5, signal_second_moment=1e300, clip_norm=1e-200, batch_size=1e100)
    with pytest.raises((InvalidParameterError, UnattainableBudgetError)):
        batch_size_for_share(0.5, eps=0.0, **PLAN, **RUN)
