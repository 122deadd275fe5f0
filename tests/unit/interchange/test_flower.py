"""An accountant with the protocol of Flower, with Flower's own types where its package is there."""

import dataclasses
import enum
import importlib.util
import json
import math

import pytest

import dpmech as dm

DELTA = 1e-5


class Stand(enum.StrEnum):
    """Flower's names."""

    POISSON = "poisson"
    WITHOUT = "without-replacement"
    PLAIN = "no-amplification"
    ADD_REMOVE = "add-or-remove-one"
    REPLACE = "replace-one"


@dataclasses.dataclass(frozen=True)
class Config:
    """Flower's configuration, as version 1.42 has it."""

    target_delta: float = DELTA
    population_size: int = 1000
    neighboring_relation: Stand = Stand.ADD_REMOVE
    sampling_method: Stand = Stand.POISSON
    max_epsilon: float | None = 3.0


@dataclasses.dataclass(frozen=True)
class Event:
    """Flower's event."""

    noise_multiplier: float = 1.1
    sample_size: int = 20
    population_size: int = 1000


def test_rounds_on_sampled_clients_cost_what_our_accountant_says():
    accountant = dm.interchange.FlowerAccountant(Config())
    assert (accountant.get_epsilon(DELTA), accountant.get_delta(1.0)) == (0.0, 0.0)
    accountant.compose(Event(), 60)
    accountant.compose(Event(), count=40)
    own = dm.epsilon(dm.Identity(100), 1.1, DELTA, participation=dm.Poisson(0.02))
    found = accountant.bounds(DELTA)
    assert (found.lower, accountant.get_epsilon(DELTA)) == pytest.approx((own.lower, own.upper), rel=1e-9)
    assert accountant.get_delta(own.upper) == pytest.approx(DELTA, rel=1e-2)
    spent = accountant.get_privacy_spent()
    assert (spent.epsilon, spent.delta, spent.num_releases) == (found.upper, DELTA, 100)
    assert spent.accounting_method == "dpmech"


def test_without_amplification_every_client_counts_in_every_round():
    accountant = dm.interchange.FlowerAccountant(Config(sampling_method=Stand.PLAIN))
    accountant.compose(Event(4.0), 9)
    own = dm.epsilon(dm.Identity(9), 4.0, DELTA)
    assert accountant.get_epsilon(DELTA) == pytest.approx(own.upper, rel=1e-6)
    assert accountant.get_epsilon(DELTA) >= own.lower


def test_a_limit_is_looked_at_before_the_round():
    accountant = dm.interchange.FlowerAccountant(Config())
    accountant.compose(Event(), 100)
    assert not accountant.would_exceed(Event())
    assert accountant.would_exceed(Event(), count=100_000)
    assert accountant.would_exceed(Event(), max_epsilon=math.nextafter(accountant.get_epsilon(DELTA), 0.0))
    assert accountant.num_releases == 100
    with pytest.raises(dm.InvalidParameterError, match="max_epsilon"):
        dm.interchange.FlowerAccountant(Config(max_epsilon=None)).would_exceed(Event())


def test_its_state_goes_through_json():
    accountant = dm.interchange.FlowerAccountant(Config())
    accountant.compose(Event(), 7)
    state = json.loads(json.dumps(accountant.state_dict()))
    again = dm.interchange.FlowerAccountant(Config())
    again.load_state_dict(state)
    assert again.get_epsilon(DELTA) == accountant.get_epsilon(DELTA)
    assert again.state_dict() == accountant.state_dict()
    for change in (
        {"backend": "rdp"},
        {"schema_version": 2},
        {"config": {}},
        {"releases": None},
        {"releases": [[1.0, 2]]},
        {"releases": [[1.0, 2000, 3]]},
        {"releases": [[0.0, 20, 3]]},
    ):
        with pytest.raises(dm.exceptions.CertificateError):
            again.load_state_dict(state | change)
    assert again.state_dict() == accountant.state_dict()


def test_what_no_theorem_covers_is_refused():
    with pytest.raises(dm.UnsupportedCombinationError, match="without-replacement"):
        dm.interchange.FlowerAccountant(
            Config(sampling_method=Stand.WITHOUT, neighboring_relation=Stand.REPLACE)
        )
    with pytest.raises(dm.UnsupportedCombinationError, match="replace-one"):
        dm.interchange.FlowerAccountant(Config(neighboring_relation=Stand.REPLACE))
    with pytest.raises(dm.InvalidParameterError, match="a PrivacyConfig of Flower"):
        dm.interchange.FlowerAccountant({"target_delta": DELTA})
    accountant = dm.interchange.FlowerAccountant(Config())
    for event, words in (
        (Event(population_size=999), "population_size must be 1000, as configured"),
        (Event(sample_size=1001), "sample_size"),
        (Event(noise_multiplier=0.0), "noise_multiplier"),
    ):
        with pytest.raises(dm.InvalidParameterError, match=words):
            accountant.compose(event)
    with pytest.raises(dm.InvalidParameterError, match="count"):
        accountant.compose(Event(), 0)
    assert accountant.num_releases == 0


@pytest.mark.skipif(importlib.util.find_spec("flwr") is None, reason="needs flwr, which no extra brings")
def test_it_stands_where_the_accountant_of_flower_does():
    from flwr.supercore import privacy_accounting as flower
    from flwr.supercore.privacy_accounting.rdp_accountant import RdpAccountant

    config = flower.PrivacyConfig(
        DELTA, 1000, flower.NeighboringRelation.ADD_OR_REMOVE_ONE, flower.SamplingMethod.POISSON, 3.0
    )
    own, theirs = dm.interchange.FlowerAccountant(config), RdpAccountant(config)
    event = flower.GaussianPrivacyEvent(1.1, 20, 1000)
    for accountant in (own, theirs):
        accountant.compose(event, 100)
    assert own.num_releases == theirs.num_releases
    assert own.get_epsilon(DELTA) <= theirs.get_epsilon(DELTA)
    assert own.get_epsilon(DELTA) >= 0.5 * theirs.get_epsilon(DELTA)
    names = {field.name for field in dataclasses.fields(flower.PrivacySpent)}
    assert {field.name for field in dataclasses.fields(own.get_privacy_spent())} == names
    protocol = {name for name in vars(flower.PrivacyAccountant) if not name.startswith("_")}
    assert all(hasattr(own, name) for name in protocol)
