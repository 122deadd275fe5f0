"""Certificates under edits: any change of a file is refused, and no false claim is ever verified."""

import contextlib
import copy
import dataclasses
import json
import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dpmech as dm
from dpmech.certificates.document import checksum_of_document, from_plain, to_text
from dpmech.checker import Kind
from dpmech.numerics import metering
from tests.support import saved
from tests.support.forged_files import changed
from tests.support.generators import finite, strategies, strategy_and_participation, unsampled
from tests.support.oracles import epoch_sets, gaussian_delta, sensitivity_ceiling, separated_sets


def issue(strategy, participation, eps=1.0, delta=1e-5):
    return dm.calibrate_sigma(strategy, eps, delta, participation=participation).certificate(1.0, 32)


def leaves(value, path=()):
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from leaves(item, (*path, index))
    else:
        yield path


DOCUMENTS = [
    issue(dm.LambdaCGD(10, 0.9), dm.MinSep(4, 2)).to_dict(),
    issue(dm.ColumnNormalized(dm.BLT(8, [0.9, 0.5], [0.2, 0.1])), dm.FixedEpochs(4)).to_dict(),
    issue(dm.Dense([[1.0, 0.0], [-0.5, 2.0]]), dm.EveryStep()).to_dict(),
    saved.certificate("poisson").to_dict(),
    saved.certificate("bins 8").to_dict(),
]
LEAVES = [(index, path) for index, document in enumerate(DOCUMENTS) for path in leaves(document)]


def other_value(draw, value):
    """Some other value of the same JSON kind, sometimes of another."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.sampled_from([v for v in (None, True, 0, -1.5, "", [], {}) if v != value]))
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + draw(st.sampled_from([-1, 1, 7, 10**6]))
    if isinstance(value, float):
        nearest = math.nextafter(value, draw(st.sampled_from([-math.inf, math.inf])))
        return draw(st.sampled_from([nearest, value * 1.02 + 1e-300, value * 0.98 - 1e-300, -value - 1.0]))
    if isinstance(value, str):
        place = draw(st.integers(0, len(value)))
        return (
            value[:place]
            + draw(st.sampled_from("0f x"))
            + value[place + 1 :]
            + draw(st.sampled_from(["", "1"]))
        )
    return draw(st.sampled_from([1, "x", 0.5]))


@st.composite
def edited(draw):
    index, path = draw(st.sampled_from(LEAVES))
    document = copy.deepcopy(DOCUMENTS[index])
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    before = inner[path[-1]]
    if isinstance(inner, dict) and draw(st.integers(0, 14)) == 0:
        del inner[path[-1]]
    else:
        inner[path[-1]] = other_value(draw, before)
    return index, path, document


def test_the_documents_themselves_are_accepted():
    for document in DOCUMENTS:
        assert dm.Certificate.from_json(to_text(document)).to_dict() == document


@given(edited())
def test_any_changed_field_is_refused(edit):
    index, _, document = edit
    if document == DOCUMENTS[index]:  # the edit wrote the same value again, as in "0" for "0"
        return
    with pytest.raises(dm.exceptions.CertificateError):
        dm.Certificate.from_json(to_text(document))


# Entries that stand for themselves: nothing else in the file or in mathematics follows from them.
FREE = {"by", "machine", "longdouble_bits", "versions", "rng_supplied", "samples", "rtol"}


@given(edited())
def test_a_changed_number_of_the_claim_is_refused_even_with_a_new_checksum(edit):
    """One number changed, in both spellings, with a new checksum: the parts contradict each other."""
    index, path, document = edit
    if document == DOCUMENTS[index] or FREE & set(map(str, path)) or path[0] == "checksum":
        return
    with contextlib.suppress(dm.exceptions.CertificateError):
        if from_plain(document) == from_plain(DOCUMENTS[index]):
            return  # another spelling of the same number, as in "001.0p+0"
    with pytest.raises(dm.exceptions.CertificateError):
        dm.Certificate.from_json(to_text(document | {"checksum": checksum_of_document(document)}))


def true_delta(certificate):
    """Delta of the claim, from dense algebra over all sets and 60 digits."""
    n, schema = certificate.strategy.n, certificate.participation
    pattern = schema.pattern(n)
    if pattern.evenly_spaced:
        sets = epoch_sets(n, n // pattern.min_sep)
    else:
        sets = separated_sets(n, pattern.min_sep, pattern.max_participations)
    examples = getattr(schema, "max_examples_per_user", None) or 1
    sens = examples * sensitivity_ceiling(certificate.strategy.to_dense(), sets)
    return float(gaussian_delta(certificate.sigma / sens, certificate.budget.eps))


@settings(max_examples=60)
@given(strategy_and_participation(max_n=9, of=unsampled), finite(0.05, 8.0), finite(1e-9, 0.3))
def test_an_honest_certificate_is_verified(pair, eps, delta):
    strategy, schema = pair
    certificate = issue(strategy, schema, eps, delta)
    assert true_delta(certificate) <= delta * (1 + 1e-9)
    found = dm.verify(certificate)
    assert found.ok, found.failures
    assert found.claim is Kind.PROVED


@settings(max_examples=60)
@given(st.data())
def test_no_false_claim_is_verified(data):
    """Forged as well as can be: every derived entry, hash and checksum is computed anew."""
    strategy, schema = data.draw(strategy_and_participation(max_n=8, of=unsampled))
    own = issue(strategy, schema, data.draw(finite(0.05, 8.0)), data.draw(finite(1e-9, 0.3)))
    change = data.draw(st.sampled_from(["sigma", "eps", "delta", "strategy", "participation"]))
    factor = data.draw(finite(0.5, 1.5))
    if change == "sigma":
        forged = dataclasses.replace(own, sigma=factor * own.sigma)
    elif change == "eps":
        forged = dataclasses.replace(own, budget=dm.PrivacyBudget(factor * own.budget.eps, own.budget.delta))
    elif change == "delta":
        forged = dataclasses.replace(own, budget=dm.PrivacyBudget(own.budget.eps, factor * own.budget.delta))
    elif change == "strategy":
        forged = changed(own, strategy=data.draw(strategies(strategy.n)))
    else:
        forged = changed(own, participation=data.draw(unsampled(strategy.n)))
    if true_delta(forged) > forged.budget.delta * (1 + 1e-5):
        found = dm.verify(forged)
        assert not found.ok, change
        assert found.failures


ODD = [
    10**400,
    -(10**30),
    1e308,
    5e-324,
    -0.0,
    "\U0001f600",
    "9" * 5000,
    {"type": []},
    [[]],
    [{}] * 50,
    {"": {}},
]


@st.composite
def mangled(draw):
    """One document with up to four entries removed, moved or replaced, with a new checksum or not."""
    document = copy.deepcopy(DOCUMENTS[draw(st.integers(0, len(DOCUMENTS) - 1))])
    for _ in range(draw(st.integers(1, 4))):
        places = list(leaves(document))
        path = draw(st.sampled_from(places))
        # Not only leaves: also the objects that hold them.
        path = path[: draw(st.integers(1, len(path)))]
        inner = document
        for key in path[:-1]:
            inner = inner[key]
        match draw(st.integers(0, 3)):
            case 0:
                inner[path[-1]] = draw(st.sampled_from(ODD))
            case 1:
                inner[path[-1]] = copy.deepcopy(draw(st.sampled_from([document, *document.values()])))
            case 2 if isinstance(inner, dict):
                del inner[path[-1]]
            case _:
                value = draw(st.one_of(st.floats(), st.integers(-(10**9), 10**9)))
                number = isinstance(value, float) and math.isfinite(value)
                inner[path[-1]] = {"decimal": value, "hex": value.hex()} if number else value
    try:
        return document | ({"checksum": checksum_of_document(document)} if draw(st.booleans()) else {})
    except dm.exceptions.CertificateError:  # a number that is none
        return document


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(document=mangled())
def test_a_mangled_file_is_refused_within_the_budget_and_never_breaks_verify(document, tmp_path, monkeypatch):
    spent = []
    honest = metering._Meter.spend

    def counted(self, work, what):
        honest(self, work, what)
        spent.append(work)

    path = tmp_path / "mangled.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    with monkeypatch.context() as patch:
        patch.setattr(metering._Meter, "spend", counted)
        try:
            found = dm.verify(path, max_seconds=2.0, max_memory=1e9)
        except dm.DpmechError:
            found = None
    assert sum(work.seconds for work in spent) <= 300.0 * (1.0 + 1e-9)
    assert all(work.memory <= 1e9 for work in spent)
    if found is not None and found.ok:
        # A free entry, or one that says the same: given a new checksum, it is a true claim of the same
        # mechanism.
        assert any(
            found.certificate.strategy.to_dict() == from_plain(one["claim"]["strategy"]) for one in DOCUMENTS
        )
    elif found is not None:
        assert len(str(found)) < 10_000
