"""The saved certificates that other tests build on: of the present schema, complete, and true."""

import dataclasses

import pytest

import dpmech as dm
from dpmech.checker import Kind
from tests.support import saved

NAMES = list(saved.RECIPES)


def kinds_below(base):
    return {kind for one in base.__subclasses__() for kind in {one, *kinds_below(one)}}


def test_there_is_a_file_for_every_recipe_and_no_other():
    assert set(saved.FOLDER.iterdir()) == {saved.path_of(name) for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_it_is_of_the_present_schema(name):
    """Reading compares every entry; the calibration that it was made from gives it back."""
    certificate = saved.certificate(name)
    again = saved.calibration(name).certificate()
    assert dataclasses.replace(again, versions=certificate.versions) == certificate


def test_every_scheme_and_method_has_one():
    certificates = [saved.certificate(name) for name in NAMES]
    schemes = {type(one.participation) for one in certificates}
    methods = {type(one.evidence.accountant) for one in certificates}
    ours = [kind for kind in kinds_below(dm.Participation) if kind.__module__.startswith("dpmech.")]
    assert {kind for kind in ours if not kinds_below(kind)} <= schemes
    assert methods == kinds_below(type(certificates[0].evidence.accountant).__mro__[1])


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_it_is_true_and_found_again(name):
    certificate = saved.certificate(name)
    found = dm.verify(saved.path_of(name))
    assert found.ok, found.failures
    assert found.claim is Kind.PROVED
    # Another processor may differ in its last digits, never by what a test could rest on.
    assert saved.found_again(name) == pytest.approx(certificate.sigma, rel=1e-9)
