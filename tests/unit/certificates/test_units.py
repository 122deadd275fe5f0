"""Whose presence a claim hides: where it stands, and what does not go together."""

import json

import pytest

import dpmech as dm

ULS = dm.Mechanism(dm.LambdaCGD(12, 0.5), dm.MinSep(4), unit=dm.Unit.USER)


def test_a_mechanism_says_its_unit_and_old_data_mean_examples():
    plain = dm.Mechanism(ULS.strategy, ULS.participation)
    assert (plain.unit, ULS.unit) == (dm.Unit.EXAMPLE, dm.Unit.USER)
    assert "unit" not in plain.to_dict()
    assert dm.Mechanism.from_json(ULS.to_json()) == ULS
    assert dm.Mechanism.from_json(plain.to_json()) == plain
    assert ULS.fingerprint() != plain.fingerprint()
    assert ULS.prefix(4).unit is dm.Unit.USER
    with pytest.raises(dm.InvalidParameterError, match="unit must be one of example, user"):
        dm.Mechanism.from_dict(ULS.to_dict() | {"unit": "household"})
    with pytest.raises(dm.InvalidParameterError, match=r"unit must be one of Unit.EXAMPLE, Unit.USER"):
        dm.Mechanism(ULS.strategy, ULS.participation, unit="user")


def test_a_participation_may_say_the_unit_by_itself():
    users = dm.Poisson(0.1, max_examples_per_user=2)
    mechanism = dm.Mechanism(dm.Identity(4), users)
    assert mechanism.unit is dm.Unit.USER
    assert dm.Mechanism.from_json(mechanism.to_json()) == mechanism
    assert dm.Participation.from_json(users.to_json()) == users
    assert dm.Poisson(0.1, max_examples_per_user=None) == dm.Poisson(0.1)
    assert dm.sensitivity(dm.Identity(4), users).upper == 2.0


def test_users_cost_what_examples_cost_and_the_certificate_says_so(tmp_path):
    cal, same = (
        dm.calibrate_sigma(one, 2.0, 1e-5) for one in (ULS, dm.Mechanism(ULS.strategy, ULS.participation))
    )
    assert cal.sigma == same.sigma
    assert (cal.unit, same.unit) == (dm.Unit.USER, dm.Unit.EXAMPLE)
    assert cal.fingerprint() != same.fingerprint()
    cal.certificate(clip_norm=0.5).save(tmp_path / "users.json")
    again = dm.Certificate.load(tmp_path / "users.json")
    assert again.unit is dm.Unit.USER
    requirements = json.loads((tmp_path / "users.json").read_text())["trainer"]
    assert "are users" in requirements["sampler"]
    assert "one contribution of every user" in requirements["clipping"]
    assert "at most 0.5" in requirements["clipping"]
    assert "number of users" in requirements["denominator"]
    assert dm.verify(tmp_path / "users.json").ok
    # Who changes the unit alone is found out by what follows from it, checksum or not.
    text = (tmp_path / "users.json").read_text()
    with pytest.raises(dm.exceptions.CertificateError):
        dm.Certificate.from_json(text.replace('"unit": "user"', '"unit": "example"'))


def test_profiles_and_batches_keep_the_unit():
    cal = dm.calibrate_sigma(ULS, 2.0, 1e-5)
    assert cal.profile().unit is dm.Unit.USER
    with pytest.raises(dm.UnsupportedCombinationError, match="one unit"):
        cal.profile().compose(dm.profile(dm.Mechanism(ULS.strategy, ULS.participation), cal.sigma))
    ledger = dm.Ledger()
    ledger.add("first", cal)
    ledger.add("second", cal)
    assert ledger.epsilon(1e-5).upper > 2.0
    assert ledger.profile().unit is dm.Unit.USER
