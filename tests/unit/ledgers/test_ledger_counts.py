"""Counts in a ledger, against sums over the integers in which nothing of dpmech takes part."""

import json
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy.special import ndtr

import dpmech as dm
from dpmech.certificates import checksum_of_document

COUNTS = dm.DiscreteGaussian(5, 2, 3)
TEST = dm.calibrate_sigma(dm.Identity(1), 0.5, 1e-6, participation=dm.SingleParticipation())
USERS = dm.calibrate_sigma(
    dm.Mechanism(dm.Identity(1), dm.SingleParticipation(), unit=dm.Unit.USER), 0.5, 1e-6
)


def law_of_sum(sigma, times):
    """The sum of discrete Gaussians, by plain convolution with 40 digits' worth of reach."""
    reach = math.ceil(30 * sigma)
    one = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    one /= one.sum()
    law = one
    for _ in range(times - 1):
        law = np.convolve(law, one)
    return np.arange(law.size) - law.size // 2, law


def with_gaussian(parts, mu, eps):
    """delta of counts beside a Gaussian release: its delta at what the losses of the counts leave."""
    losses, masses = np.zeros(1), np.ones(1)
    for sigma, shift, times in parts:
        s, law = law_of_sum(sigma, times)
        own = (2.0 * s + times * shift) * shift / (2.0 * sigma**2)
        losses, masses = np.add.outer(losses, own).ravel(), np.multiply.outer(masses, law).ravel()
    left = eps - losses
    with np.errstate(over="ignore", invalid="ignore"):
        own = ndtr(-left / mu + mu / 2) - np.exp(np.minimum(left, 700.0)) * ndtr(-left / mu - mu / 2)
    return float(np.sum(masses * own))


def non_adaptive(*counts):
    book, names = dm.Ledger(), map("counts {}".format, range(len(counts)))
    for name, one in zip(names, counts, strict=True):
        book.add_counts(name, one)
    return book


def test_counts_alone_cost_what_they_cost_by_direct_sums():
    ledger = non_adaptive(COUNTS)
    mpmath.mp.dps = 40
    masses = {y: mpmath.exp(-(mpmath.mpf(y) ** 2) / 50) for y in range(-90, 91)}
    total = mpmath.fsum(masses.values())
    law = {0: mpmath.mpf(1)}
    for _ in range(3):
        following = {}
        for s, p in law.items():
            for y, q in masses.items():
                following[s + y] = following.get(s + y, 0) + p * q / total
        law = following
    for eps in (0.0, 1.0, 3.0):
        delta = mpmath.fsum(
            p * max(mpmath.mpf(0), 1 - mpmath.exp(eps - mpmath.mpf(2 * s + 6) * 2 / 50))
            for s, p in law.items()
        )
        found = ledger.delta(eps)
        assert found.lower <= delta <= found.upper <= float(delta) * (1 + 1e-8)
    assert str(ledger.guarantee) == "deterministic upper bound"


@pytest.mark.slow
@pytest.mark.parametrize("eps", [0.2, 1.0, 2.0])
def test_counts_compose_with_certified_releases(eps):
    ledger = non_adaptive(COUNTS, dm.DiscreteGaussian(5, 2, 1), dm.DiscreteGaussian(Fraction(15, 2)))
    ledger.add("accuracy", TEST)
    mu = TEST.sensitivity.upper / TEST.sigma
    expected = with_gaussian([(5.0, 2, 4), (7.5, 1, 1)], mu, eps)
    found = ledger.delta(eps)
    assert found.lower <= expected <= found.upper <= expected * 1.01
    alone = dm.Ledger()
    alone.add("accuracy", TEST)
    assert ledger.epsilon(1e-5).upper > alone.epsilon(1e-5).upper


def test_counts_of_one_noise_are_one_sum():
    found, expected = non_adaptive(COUNTS, COUNTS).epsilon(1e-6), COUNTS.with_releases(6).epsilon(1e-6)
    assert (found.lower, found.upper) == (expected.lower, expected.upper)
    ledger = non_adaptive(dm.DiscreteGaussian(1, 1, 9_000))
    with pytest.raises(dm.InvalidParameterError, match="at least sensitivity"):
        ledger.add_counts("more", dm.DiscreteGaussian(1.0, 1, 2_000))
    assert len(ledger.counts) == 1
    ledger.add_counts("more", dm.DiscreteGaussian(1.0, 1, 1_000))
    assert [one.name for one in ledger.counts] == ["counts 0", "more"]


def of_users():
    ledger = dm.Ledger()
    ledger.add("accuracy", USERS)
    return ledger


REPLACED = dm.DiscreteGaussian(5, adjacency=dm.Adjacency.REPLACE_ONE)
REFUSED, INVALID = dm.UnsupportedCombinationError, dm.InvalidParameterError


def closed():
    ledger = non_adaptive(COUNTS)
    ledger.close()
    return ledger


@pytest.mark.parametrize(
    ("ledger", "name", "counts", "error", "words"),
    [
        (dm.Ledger, "a", REPLACED, REFUSED, "REPLACE_ONE"),
        (of_users, "a", COUNTS, REFUSED, "hides one example, but the earlier releases hide one user"),
        (
            lambda: non_adaptive(COUNTS),
            "a",
            dm.DiscreteGaussian(5, unit=dm.Unit.USER),
            REFUSED,
            "hides one user",
        ),
        (lambda: dm.Ledger(budget=dm.PrivacyBudget(1.0, 1e-5)), "a", COUNTS, REFUSED, "no price"),
        (closed, "a", COUNTS, REFUSED, "closed before 'a'"),
        (lambda: non_adaptive(COUNTS), "counts 0", COUNTS, INVALID, "new in this ledger"),
        (dm.Ledger, "a", TEST, INVALID, "DiscreteGaussian"),
        (dm.Ledger, "", COUNTS, INVALID, "name"),
        (dm.Ledger, "a", dm.DiscreteGaussian(Fraction(10**60 + 1, 10**60)), INVALID, "digits"),
    ],
)
def test_counts_that_do_not_go_with_a_ledger_are_refused(ledger, name, counts, error, words):
    book = ledger()
    before = book.to_json()
    with pytest.raises(error, match=words):
        book.add_counts(name, counts)
    assert book.to_json() == before


def test_certified_releases_that_do_not_go_with_counts_are_refused():
    ledger = non_adaptive(COUNTS)
    with pytest.raises(
        dm.UnsupportedCombinationError, match="hides one user, but the earlier releases hide one example"
    ):
        ledger.add("accuracy", USERS)
    with pytest.raises(dm.InvalidParameterError, match="new in this ledger"):
        ledger.add("counts 0", TEST)
    with pytest.raises(dm.UnsupportedCombinationError, match="moments of counts"):
        ledger.epsilon(1e-6, method=dm.methods.Rdp())
    with pytest.raises(dm.UnsupportedCombinationError, match="counts, for whose noise there is no event"):
        dm.interchange.to_dp_event(ledger)
    with pytest.raises(dm.InvalidParameterError, match="unit"):
        dm.DiscreteGaussian(5, unit="user")


def test_counts_of_users_make_a_ledger_about_users():
    ledger = of_users()
    ledger.add_counts("counts", dm.DiscreteGaussian(5, unit=dm.Unit.USER))
    assert ledger.profile().unit is dm.Unit.USER
    assert dm.Ledger.from_json(ledger.to_json()).counts[0].counts.unit is dm.Unit.USER


# ---- files


def mixed():
    ledger = non_adaptive(COUNTS, dm.DiscreteGaussian(4.3))
    ledger.add("accuracy", TEST)
    return ledger


def rehashed(ledger, change):
    document = json.loads(ledger.to_json())
    change(document)
    del document["checksum"]
    return json.dumps(document | {"checksum": checksum_of_document(document)})


def test_a_file_holds_counts_to_the_last_bit(tmp_path):
    ledger = mixed()
    again = dm.Ledger.load(ledger.save(tmp_path / "ledger.json") or tmp_path / "ledger.json")
    assert again.to_json() == ledger.to_json()
    assert [Fraction(one.counts.sigma) for one in again.counts] == [5, Fraction(4.3)]
    assert again.epsilon(1e-6) == ledger.epsilon(1e-6)
    assert json.loads(ledger.to_json())["schema_version"] == 2


def test_ledgers_without_counts_stay_files_of_the_first_version():
    ledger = of_users()
    document = json.loads(ledger.to_json())
    assert document["schema_version"] == 1
    assert "counts" not in document
    assert dm.Ledger.from_json(ledger.to_json()).to_json() == ledger.to_json()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda one: one["counts"][0].update(sigma="50"), "entries contradict each other"),
        (lambda one: one["counts"][0].update(releases=1), "entries contradict each other"),
        (lambda one: one["counts"][0].update(sigma="10/2"), "entries contradict each other"),
        (lambda one: one["counts"][0].update(unit="user"), "does not hold together"),
        (lambda one: one["counts"][0].update(number=7), "entries contradict each other"),
        (lambda one: one["counts"][0].update(sigma="1e3"), "does not follow the schema"),
        (lambda one: one["counts"][0].update(sensitivity=0), "does not follow the schema"),
        (lambda one: one["counts"].clear(), "does not follow the schema"),
        (lambda one: one.update(schema_version=1), "does not follow the schema"),
        (lambda one: one.pop("counts"), "does not follow the schema"),
        (lambda one: one.update(schema_version=4), "schema version 4 is newer than 3"),
    ],
)
def test_edited_files_are_refused(change, words):
    text = rehashed(mixed(), change)
    with pytest.raises(dm.exceptions.CertificateError, match=words):
        dm.Ledger.from_json(text)
    assert dm.Ledger.from_json(rehashed(mixed(), lambda one: None)).counts == mixed().counts


def test_a_file_is_replaced_only_by_a_ledger_that_has_its_counts(tmp_path):
    path = tmp_path / "ledger.json"
    non_adaptive(COUNTS).save(path)
    with pytest.raises(dm.InvalidParameterError, match="a ledger that this one continues"):
        non_adaptive(COUNTS.with_releases(2)).save(path)
    closed().save(path)
    with pytest.raises(dm.InvalidParameterError, match="a ledger that this one continues"):
        non_adaptive(COUNTS, COUNTS).save(path)


def test_counts_beside_a_run_that_enters_by_its_claim_have_a_total(tmp_path):
    """A claim uses up its own delta: the total is looked at where something is left for the counts."""
    users = dm.BallsInBins(4, max_examples_per_user=2)
    cal = dm.calibrate_sigma(dm.Identity(8), 4.0, 1e-5, participation=users, method=dm.methods.Rdp())
    ledger = dm.Ledger()
    ledger.add_counts("classes", dm.DiscreteGaussian(20, releases=2, unit=dm.Unit.USER))
    ledger.add("run", cal, batch="run")
    ledger.close()
    assert ledger.usual_delta == pytest.approx(1.1e-5, rel=1e-12)
    found = ledger.epsilon(ledger.usual_delta, profiles=False).upper
    alone = dm.DiscreteGaussian(20, releases=2).epsilon(1e-6).upper
    assert 4.0 < found <= 4.0 + 1.01 * alone
    ledger.save(tmp_path / "ledger.json")
    assert dm.verify(tmp_path / "ledger.json").ok


@pytest.mark.parametrize("counts", [(1e4, 1, 10**6), (1e5, 7, 10**7)])
def test_counts_whose_sum_has_too_many_values_are_refused_before_they_are_entered(counts):
    book = non_adaptive(COUNTS)
    with pytest.raises(dm.NumericalError, match="has too many values"):
        book.add_counts("many", dm.DiscreteGaussian(*counts))
    assert [one.name for one in book.counts] == ["counts 0"]
    assert book.epsilon(1e-6).upper == non_adaptive(COUNTS).epsilon(1e-6).upper


def test_a_file_is_read_without_work_for_its_counts(monkeypatch):
    text = non_adaptive(COUNTS).to_json()
    monkeypatch.setattr(dm.DiscreteGaussian, "delta", lambda *_: pytest.fail("computed"))
    assert dm.Ledger.from_json(text).counts[0].counts == COUNTS


def test_equal_counts_are_refused_where_their_sum_has_too_many_values():
    book = non_adaptive(dm.DiscreteGaussian(1e3, 1, 10))
    before = book.to_json()
    with pytest.raises(
        dm.NumericalError, match=r"the sum of 10000010 releases of sigma 1000\.0 has too many"
    ):
        book.add_counts("more", dm.DiscreteGaussian(1e3, 1, 10**7))
    assert book.to_json() == before
