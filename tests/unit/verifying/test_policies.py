"""Every rule of a policy: kept at its limit, and broken just beyond it."""

import dataclasses
import datetime
import functools
import math

import pytest

import dpmech as dm
from dpmech.checker import Kind, Verdict
from dpmech.numerics.printed import up
from dpmech.verifying import Verification, claims
from dpmech.verifying.policy_checks import policy_checks
from dpmech.verifying.report import Check
from tests.support import saved

PLAIN = saved.calibration("min-sep").certificate()  # eps 2, delta 1e-5
POISSON = saved.calibration("poisson").certificate(1.0, 20.0)  # 20 of 100 examples
PROVED = Verdict(Kind.PROVED, "a claim", "a reason")


@functools.cache
def verified(certificate):
    return dm.verify(certificate)


def broken(policy, found=None, **options):
    """The details of the rules that are broken, by name."""
    checks = list(policy_checks(policy, found or verified(PLAIN), **options))
    assert all(check.name.startswith("policy ") for check in checks)
    return {check.name.removeprefix("policy "): check.detail for check in checks if not check.ok}


@pytest.mark.parametrize(
    ("kept", "breaking"),
    [
        ({"max_eps": 2.0}, {"max_eps": math.nextafter(2.0, 0.0)}),
        ({"max_delta": 1e-5}, {"max_delta": math.nextafter(1e-5, 0.0)}),
        ({"forbidden_guarantees": (dm.Kind.ESTIMATE,)}, {"forbidden_guarantees": (dm.Kind.EXACT,)}),
        (
            {"allowed_adjacencies": (dm.Adjacency.ADD_REMOVE,)},
            {"allowed_adjacencies": (dm.Adjacency.ZERO_OUT, dm.Adjacency.REPLACE_ONE)},
        ),
        ({"allowed_units": (dm.Unit.EXAMPLE,)}, {"allowed_units": ()}),
        # As they were typed, 1e-5 times 50 000 is 0.5, though the float is a little above 1e-5.
        (
            {"max_delta_times_dataset_size": 0.5, "dataset_size": 50_000},
            {"max_delta_times_dataset_size": 0.5, "dataset_size": 50_001},
        ),
    ],
)
def test_a_rule_holds_at_its_limit_and_not_beyond(kept, breaking):
    assert broken(dm.Policy(**kept)) == {}
    assert list(broken(dm.Policy(**breaking))) == list(breaking)[:1]


def test_every_broken_rule_is_a_check_of_its_own():
    policy = dm.Policy(max_eps=1.0, max_delta=1e-6, max_delta_times_dataset_size=1e-4, dataset_size=1000)
    found = dm.verify(PLAIN, policy=policy)
    assert not found.ok
    assert found.failures == (
        "policy max_eps: eps 2, at most 1 is allowed",
        "policy max_delta: delta 1e-05, at most 1e-06 is allowed",
        "policy max_delta_times_dataset_size: delta times 1000 examples is 0.01, at most 0.0001 is allowed",
    )
    assert dm.verify(PLAIN, policy=dm.Policy(max_eps=2.0)).ok


def test_the_size_of_the_data_follows_from_the_sampling_or_is_stated():
    rule = {"max_delta_times_dataset_size": 1e-3}
    assert "has to say dataset_size" in broken(dm.Policy(**rule))["max_delta_times_dataset_size"]
    assert broken(dm.Policy(**rule), verified(POISSON)) == {}
    # The larger of both counts.
    assert broken(dm.Policy(**rule, dataset_size=10), verified(POISSON)) == {}
    beyond = dm.Policy(max_delta_times_dataset_size=0.99e-3, dataset_size=10)
    assert list(broken(beyond, verified(POISSON))) == ["max_delta_times_dataset_size"]
    beyond = dm.Policy(**rule, dataset_size=101)
    assert list(broken(beyond, verified(POISSON))) == ["max_delta_times_dataset_size"]


@pytest.mark.parametrize(
    ("name", "size"),
    [("poisson", 100.0), ("cyclic", 20.0 * 4 / 0.3), ("bins", 80.0), ("min-sep", None), ("single", None)],
)
def test_sizes_by_scheme(name, size):
    from dpmech.verifying.policy_checks import implied_size

    own = saved.calibration(name)
    assert implied_size(own.certificate(1.0, 20.0)) == (None if size is None else round(size), "")
    assert implied_size(own.certificate()) == (None, "")


@pytest.mark.parametrize("name", ["poisson", "cyclic", "bins"])
@pytest.mark.parametrize("size", [5e-324, 1e-9, 0.001, 1e300, 1.7e308])
@pytest.mark.parametrize("known", [{}, {"dataset_size": 100}])
def test_a_batch_size_that_no_dataset_has_breaks_the_rule(name, size, known):
    """With an expected batch size of 1e-9 and a new checksum, delta times the size was 0, which passed."""
    found = dataclasses.replace(verified(PLAIN), certificate=saved.calibration(name).certificate(1.0, size))
    detail = broken(dm.Policy(max_delta_times_dataset_size=1e12, **known), found)
    assert "stands for" in detail["max_delta_times_dataset_size"]


def test_what_follows_is_rounded_up_and_under_bins_an_integer():
    rule = {"max_delta_times_dataset_size": 1.0}

    def found(name, size):
        own = saved.calibration(name).certificate(1.0, size)
        return dataclasses.replace(verified(PLAIN), certificate=own)

    delta = saved.calibration("poisson").budget.delta
    at = dm.Policy(max_delta_times_dataset_size=101 * delta)
    below = dm.Policy(max_delta_times_dataset_size=100.9 * delta)
    assert broken(at, found("poisson", 20.1)) == {}  # 100.5 examples, a rate that was rounded
    assert list(broken(below, found("poisson", 20.1))) == ["max_delta_times_dataset_size"]
    assert "no integer" in broken(dm.Policy(**rule), found("bins", 20.1))["max_delta_times_dataset_size"]
    assert broken(dm.Policy(**rule, dataset_size=90), found("bins", 20.1)) == {}
    stated = saved.calibration("bins").certificate(1.0, 20.1, dataset_size=80)
    assert broken(dm.Policy(**rule), dataclasses.replace(verified(PLAIN), certificate=stated)) == {}
    # 81 examples in 4 bins are 20.25 each, and an integer in all.
    assert broken(dm.Policy(**rule), found("bins", 81 / saved.calibration("bins").participation.bins)) == {}


def test_limits_that_no_calendar_has_are_limits(tmp_path):
    path, key = tmp_path / "certificate.json", tmp_path / "key.pem"
    PLAIN.save(path)
    public = dm.certificates.new_key(key)
    dm.sign(path, key, "somebody")
    assert dm.verify(path, keys=[public], policy=dm.Policy(max_age_days=1e300)).ok
    with pytest.raises(dm.InvalidParameterError, match="dataset_size must be an integer in"):
        dm.Policy(dataset_size=10**400)


def test_a_broken_policy_and_a_false_claim_are_both_told():
    from dpmech.certificates.claim import with_checksum

    forged = with_checksum(dataclasses.replace(PLAIN, sigma=0.9 * PLAIN.sigma))
    found = dm.verify(forged, policy=dm.Policy(max_eps=1.0))
    assert [failure.split(":")[0] for failure in found.failures] == ["claim", "policy max_eps"]


def test_a_file_that_cannot_be_read_has_no_rules(tmp_path):
    (tmp_path / "x.json").write_text("{}")
    found = dm.verify(tmp_path / "x.json", policy=dm.Policy(max_eps=1.0))
    assert [check.name for check in found.checks] == ["file"]


def test_age_is_that_of_a_signature(tmp_path):
    path, key = tmp_path / "certificate.json", tmp_path / "key.pem"
    PLAIN.save(path)
    public = dm.certificates.new_key(key)
    policy = dm.Policy(max_age_days=30.0)
    assert list(broken(policy)) == ["max_age_days"]
    issued = datetime.datetime(2026, 3, 1, tzinfo=datetime.UTC)
    dm.sign(path, key, "review", issued_on=issued)
    signed = dm.verify(path, keys=[public])
    day = datetime.timedelta(days=1)
    for age, ok in ((0 * day, True), (30 * day, True), (30 * day + day / 86400, False), (-day, False)):
        assert (broken(policy, signed, now=issued + age) == {}) == ok
    with pytest.raises(dm.InvalidParameterError, match="key must be given"):
        dm.verify(path, policy=policy)
    found = dm.verify(path, keys=[public], policy=policy)
    assert [failure.split(":")[0] for failure in found.failures] == ["policy max_age_days"]


def test_a_policy_may_name_its_keys_and_require_one(tmp_path):
    from dpmech.certificates import PublicKey

    path, key = tmp_path / "certificate.json", tmp_path / "key.pem"
    PLAIN.save(path)
    policy = dm.Policy(require_signature=True, trusted_keys=(PublicKey.load(dm.certificates.new_key(key)),))
    assert dm.verify(path, policy=policy).failures == ("signature: not signed, a signature is required",)
    dm.sign(path, key, "review")
    assert dm.verify(path, policy=policy).ok
    with pytest.raises(dm.InvalidParameterError, match="key must be given"):
        dm.verify(path, policy=dm.Policy(require_signature=True))


def test_of_a_ledger_the_total_counts(tmp_path):
    non_adaptive = dm.Ledger()
    non_adaptive.add("one", saved.calibration("single"))
    non_adaptive.add("two", saved.calibration("min-sep"))
    found = dm.verify(non_adaptive)
    assert found.ok
    total = non_adaptive.epsilon(2e-5).upper
    assert total > 2.0
    at = {"max_delta": 2e-5}
    assert broken(dm.Policy(max_eps=total, **at), found) == {}
    assert list(broken(dm.Policy(max_eps=0.999 * total, **at), found)) == ["max_eps"]
    # Without a delta in the policy it is the sum of those of the releases.
    assert broken(dm.Policy(max_eps=total), found) == {}
    assert list(broken(dm.Policy(allowed_adjacencies=()), found)) == ["allowed_adjacencies"]
    chosen = dm.Ledger(budget=dm.PrivacyBudget(5.0, 1e-4))
    chosen.add("one", saved.calibration("single"))
    found = dm.verify(chosen)
    # What holds is the budget, however little of it was spent.
    assert broken(dm.Policy(max_eps=5.0, max_delta=1e-4), found) == {}
    assert list(broken(dm.Policy(max_eps=4.9, max_delta=0.9e-4), found)) == ["max_eps", "max_delta"]


def test_a_largest_delta_below_the_sum_of_the_releases_is_named():
    ledger = dm.Ledger()
    ledger.add("one", saved.calibration("bins certified"), batch="one")
    ledger.add("two", saved.calibration("bins certified 6"), batch="two")
    stated = sum(one.certificate.budget.delta for one in ledger.releases)
    found = Verification("ledger.json", None, (Check("mode", ok=True, detail=""),), ledger=ledger)
    told = broken(dm.Policy(max_eps=99.0, max_delta=0.9 * stated), found)
    assert list(told) == ["max_delta"]
    assert told["max_delta"].startswith(f"the deltas of the releases add up to {up(stated)}, at most ")
    # At their sum there is a total, of claims alone; a stored profile would cost less.
    refused = broken(dm.Policy(max_eps=1e-3, max_delta=stated), found)
    assert "2 releases by their claims: no profile is stored for them" in refused["max_eps"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"forbidden_guarantees": ("estimate",)}, "forbidden_guarantees must be a tuple of Kind"),
        ({"allowed_units": dm.Unit.EXAMPLE}, "allowed_units must be a tuple of Unit"),
        ({"trusted_keys": ("key.pub",)}, "trusted_keys must be a tuple of PublicKey"),
        ({"max_eps": float("inf")}, "max_eps must be a finite number"),
        ({"dataset_size": 0}, "dataset_size must be an integer"),
        ({"require_signature": 1}, "require_signature must be True or False"),
    ],
)
def test_bad_policies(settings, words):
    with pytest.raises(dm.InvalidParameterError, match=words):
        dm.Policy(**settings)
    with pytest.raises(dm.InvalidParameterError, match="a Policy, or None"):
        dm.verify(PLAIN, policy=settings)


def test_the_unit_of_counts_is_one_of_a_ledger(tmp_path):
    ledger = dm.Ledger()
    ledger.add_counts("classes", dm.DiscreteGaussian(20, unit=dm.Unit.USER))
    ledger.save(tmp_path / "ledger.json")
    for unit, ok in ((dm.Unit.USER, True), (dm.Unit.EXAMPLE, False)):
        assert dm.verify(tmp_path / "ledger.json", policy=dm.Policy(allowed_units=(unit,))).ok == ok


def recorded(certificate, batches, noise):
    """A whole run whose numbers came from these generators."""
    secret = certificate.participation.per_release
    pattern = certificate.participation.pattern(certificate.strategy.n)
    return dm.RunRecord(
        certificate.certificate(1.0, 20.0),
        certificate.strategy.n,
        certificate.achieved,
        dm.certificates.Randomness("a sampler", "0" * 64, False, batches),
        dm.certificates.Randomness("a stream", "1" * 64, False, noise),
        smallest_separation=None if secret else pattern.min_sep,
        most_participations=None if secret else pattern.max_participations,
    )


@pytest.mark.parametrize(
    ("certificate", "batches", "noise", "kept"),
    [
        (POISSON, "aes-128-ctr", "aes-128-ctr, ziggurat", True),
        (POISSON, "aes-128-ctr", "aes-128-ctr, lattice", True),
        (POISSON, "aes-128-ctr", "philox", False),
        (POISSON, "philox", "aes-128-ctr, ziggurat", False),
        (POISSON, None, "aes-128-ctr, ziggurat", False),
        (POISSON, "aes-128-ctr", None, False),
        (POISSON, "aes-128-ctr", "aes-128-ctr, of mine", False),
        # Nothing is secret about batches in a fixed order.
        (PLAIN, "philox", "aes-128-ctr, ziggurat", True),
        (PLAIN, "philox", "philox", False),
    ],
)
def test_a_cryptographic_generator_can_be_required(certificate, batches, noise, kept, monkeypatch):
    if certificate is POISSON:  # whose claim other tests prove; here are rules about the run
        monkeypatch.setattr(claims, "check_text", lambda *_, **__: PROVED)
    rule = dm.Policy(require_cryptographic_generator=True)
    found = dm.verify(recorded(certificate, batches, noise), policy=rule)
    assert found.ok == kept
    assert kept or found.failures[0].startswith("policy require_cryptographic_generator: noise from ")
    assert dm.verify(recorded(certificate, batches, noise), rigorous=True).ok
    assert dm.verify(certificate, policy=rule).ok  # which states no random numbers


@pytest.mark.parametrize(
    ("certificate", "batches", "noise", "said"),
    [
        (POISSON, "none", "aes-128-ctr, ziggurat", "the batches of the run came from no random numbers"),
        (POISSON, "philox", "none", "the noise of the run came from no random numbers"),
        (PLAIN, "none", "none", "the noise of the run came from no random numbers"),
    ],
)
def test_a_run_without_the_random_numbers_of_its_claim_is_refused(certificate, batches, noise, said):
    """A record that states no noise at all was verified, also with `rigorous`."""
    with pytest.raises(dm.exceptions.CertificateError, match=said):
        recorded(certificate, batches, noise)
    assert recorded(PLAIN, "none", "philox").sampler.generator == "none"  # batches in a fixed order


def test_the_generators_stand_in_every_verdict():
    details = [
        one.detail for one in dm.verify(recorded(POISSON, "aes-128-ctr", "philox"), rigorous=True).checks
    ]
    words = "batches from aes-128-ctr (cryptographic), noise from philox (not a cryptographic generator)"
    assert any(detail.endswith(words) for detail in details)


def test_what_certificates_leave_to_chance_their_total_leaves_too(monkeypatch):
    parts = tuple(Verdict(Kind.PROVED, "", "", failure) for failure in (5e-10, 1e-12))
    whole = Verdict(Kind.PROVED, "", "", 5e-10 + 1e-12, parts=parts)
    monkeypatch.setattr(claims, "check_text", lambda text, **options: whole)
    check = claims.total_check("policy max_eps", "", 1.0, 1e-5, seconds=1.0)
    assert check.ok
    assert check.verdict.failure == whole.failure
