"""What every sampling scheme has to satisfy, over all schemes, methods and adjacencies that dpmech has.

The oracle is `tests.support.participation_laws`: all participations of a small plan, enumerated, and the
divergences in both directions, for the matrix C, which `tests/conformance/test_strategy.py` checks. Not
covered here: a method with settings of its own (`Certified(beta)`, `Deterministic(tolerance)`:
tests/regression), and the noise that a trainer adds (tests/unit/optim).
"""

import dataclasses
import functools
import itertools
import json
import math

import numpy as np
import pytest
from scipy import stats

import dpmech as dm
from dpmech.certificates.claim import with_checksum
from dpmech.checker import Kind
from dpmech.checker.decide import _SHAPES
from dpmech.mechanism import kinds
from dpmech.methods import Method
from dpmech.samplers import ParticipationTracker, TruncatedPoissonSampler, sampler_for
from dpmech.schemes import accountant_for, scheme_of, unsampled_method
from tests.support.forged_files import changed
from tests.support.oracles import sampled_delta, sampled_delta_two_steps
from tests.support.participation_laws import LAWS, hockey_stick, laws_of, pairs_of

# Chance of a false alarm of one test.
ALPHA = 1e-9
# Large enough that samples see it.
EPS, DELTA = 1.0, 0.03
ROOT, MIXED, PLAIN = dm.SquareRoot(6, 2), dm.LambdaCGD(6, 0.7), dm.Identity(4)

# A small plan for each scheme, and one for each of its fields that may be left out; a scheme or a field
# without one fails `test_every_scheme_is_here`.
PLANS = {
    "EveryStep": (MIXED, dm.EveryStep()),
    "SingleParticipation": (dm.Diagonal([1.0, 1.5, 0.5, 1.2]), dm.SingleParticipation()),
    "MinSep": (MIXED, dm.MinSep(3, 2)),
    "MinSep of users": (MIXED, dm.MinSep(3, max_examples_per_user=2)),
    "FixedEpochs": (dm.InverseSquareRoot(6, 3), dm.FixedEpochs(2)),
    "Poisson": (PLAIN, dm.Poisson(0.3)),
    "Poisson by a schedule": (dm.Diagonal([1.0, 1.3, 1.0, 0.8]), dm.Poisson([0.3, 0.2, 0.3, 0.4])),
    "Poisson of users": (dm.Identity(3), dm.Poisson(0.3, max_examples_per_user=2)),
    "truncated Poisson": (dm.Identity(3), dm.Poisson(0.3, truncated_batch_size=6, dataset_size=12)),
    "FixedSizeBatches": (dm.Identity(3), dm.FixedSizeBatches(12, 4)),
    "BMinSep": (ROOT, dm.BMinSep(2, 0.4)),
    "CyclicPoisson": (ROOT, dm.CyclicPoisson(0.4, 2)),
    "CyclicPoisson of users": (ROOT, dm.CyclicPoisson(0.4, 3, max_examples_per_user=2)),
    "BallsInBins": (MIXED, dm.BallsInBins(3)),
    "BallsInBins, cut short": (dm.LambdaCGD(5, 0.7), dm.BallsInBins(3)),
    "BallsInBins of users": (dm.LambdaCGD(4, 0.7), dm.BallsInBins(2, max_examples_per_user=2)),
    "fresh BallsInBins": (PLAIN, dm.BallsInBins(2, fresh=True)),
    "RandomAllocation": (PLAIN, dm.RandomAllocation(2)),
    "RandomAllocation in groups": (dm.SquareRoot(8, 2), dm.RandomAllocation(2, cycle=2)),
}

# What there is a theorem for, the default method first (None where no single method is it): everything else
# is refused.
ANY, SAMPLED = tuple(dm.Adjacency), (dm.Adjacency.ADD_REMOVE, dm.Adjacency.ZERO_OUT)
EXACTLY, COINS = (
    (dm.methods.Exact(), dm.methods.Rdp()),
    (dm.methods.Pld(), dm.methods.Prv(), dm.methods.Rdp()),
)
BINS = (None, dm.methods.Certified(), dm.methods.Importance(), dm.methods.Rdp())
ALLOCATED = (
    None,
    dm.methods.Pld(),
    dm.methods.Deterministic(),
    dm.methods.Certified(),
    dm.methods.Importance(),
)
PROVED = {
    "EveryStep": (ANY, EXACTLY),
    "SingleParticipation": (ANY, EXACTLY),
    "MinSep": (ANY, EXACTLY),
    "MinSep of users": (ANY, EXACTLY),
    "FixedEpochs": (ANY, EXACTLY),
    "Poisson": (ANY, COINS),
    "Poisson by a schedule": (ANY, (dm.methods.Pld(),)),
    "Poisson of users": (SAMPLED, (dm.methods.Pld(),)),
    "truncated Poisson": ((dm.Adjacency.ZERO_OUT,), (dm.methods.Pld(),)),
    "FixedSizeBatches": ((dm.Adjacency.REPLACE_ONE,), (dm.methods.Pld(), dm.methods.Rdp())),
    "BMinSep": (SAMPLED, (dm.methods.Certified(), dm.methods.Importance())),
    "CyclicPoisson": (ANY, COINS),
    "CyclicPoisson of users": (SAMPLED, (dm.methods.Pld(),)),
    "BallsInBins": (SAMPLED, (*BINS, dm.methods.Deterministic())),
    "BallsInBins, cut short": (SAMPLED, (*BINS, dm.methods.Deterministic())),
    "BallsInBins of users": (SAMPLED, BINS),
    "fresh BallsInBins": (SAMPLED, (dm.methods.Exact(),)),
    "RandomAllocation": (SAMPLED, ALLOCATED),
    "RandomAllocation in groups": (SAMPLED, ALLOCATED),
}
# Where an example is replaced, one method covers what several do where it is removed.
REPLACED = {"Poisson", "CyclicPoisson"}


def methods_of(name, adjacency):
    """The methods of a scheme under one adjacency."""
    methods = PROVED[name][1]
    return methods[:1] if name in REPLACED and adjacency is dm.Adjacency.REPLACE_ONE else methods


CASES = [
    (name, adjacency, method)
    for name, (adjacencies, _) in PROVED.items()
    for adjacency in adjacencies
    for method in methods_of(name, adjacency)
]
# Costly: their calibrations take seconds each.
COSTLY = {
    "BMinSep",
    "BallsInBins",
    "BallsInBins, cut short",
    "BallsInBins of users",
    "fresh BallsInBins",
    "RandomAllocation",
    "RandomAllocation in groups",
}
# Of two kinds with one accountant, the one that most quick tests leave out.
TWINS = {"CyclicPoisson of users", "Poisson of users"}
# How much less noise is surely found out: 10 %, but where a bound is above the truth.
FAULT = 0.9
FAULTS = {dm.methods.Rdp: 0.7, dm.methods.Deterministic: 0.7}
FAR_ABOVE = {("FixedSizeBatches", dm.methods.Rdp): 0.4}


def fault_of(name, method, otherwise):
    """How much noise, as a share, is surely found to be too little."""
    return FAR_ABOVE.get((name, type(method)), FAULTS.get(type(method), otherwise))


def marked(*case, slow, exhaustive=False):
    """A case under a name that can be read."""
    words = [getattr(one, "value", one if isinstance(one, str) else type(one).__name__) for one in case]
    name = "-".join("default" if word == "NoneType" else word for word in words)
    marks = [pytest.mark.exhaustive] if exhaustive else [pytest.mark.slow] if slow else []
    return pytest.param(*case, id=name, marks=marks)


def schemes(slow=frozenset()):
    """Of every scheme one case, that of these schemes slow."""
    return pytest.mark.parametrize("name", [marked(name, slow=name in slow) for name in PLANS])


@functools.cache
def calibrated(name, adjacency, method=None):
    strategy, participation = PLANS[name]
    mechanism = dm.Mechanism(strategy, participation, adjacency)
    return dm.calibrate_sigma(mechanism, EPS, DELTA, method=method, rtol=2e-3, rng=3)


def of(name):
    """A calibration by the default method, under the first adjacency that the scheme has a theorem for."""
    adjacencies, methods = PROVED[name]
    return calibrated(name, adjacencies[0], methods[0])


# ---- what there is


def test_every_scheme_is_here():
    assert set(PLANS) == set(PROVED)
    there = [participation for _, participation in PLANS.values()]
    assert set(LAWS) == {type(one).__name__ for one in there} == {kind.__name__ for kind in kinds()}
    said = {(type(one), name) for one in there for name in one.given()}
    assert said == {(kind, field.name) for kind in kinds() for field in dataclasses.fields(kind)}
    for strategy, participation in PLANS.values():
        for law in laws_of(participation, strategy.n):
            assert math.fsum(p for p, _ in law) == pytest.approx(1.0, rel=1e-12)


def test_every_method_is_here():
    assert {type(method) for _, _, method in CASES} == {type(None), *Method.__subclasses__()}


@schemes()
def test_a_plan_of_training_makes_it(name):
    _, participation = PLANS[name]
    kind = type(participation)
    settings = {setting: getattr(participation, setting, 2) for setting in kind.plan_settings}
    if "sampling_probs" in settings:
        settings["sampling_probs"] = None
    sizes = {"dataset_size": 12, "batch_size": 3}
    made = kind.planned(2, 3, 0.25, settings | {size: sizes[size] for size in kind.plan_sizes})
    assert type(made) is kind
    assert set(made.given()) == set(participation.given())
    mechanism = dm.Mechanism(dm.Identity(6), made, PROVED[name][0][0])
    assert mechanism.certain is not kind.random
    assert mechanism.participation.pattern(6).max_participations >= 1


@schemes()
def test_what_has_no_theorem_is_refused(name):
    adjacencies, methods = PROVED[name]
    strategy, participation = PLANS[name]
    for adjacency in dm.Adjacency:
        if adjacency not in adjacencies:
            with pytest.raises(dm.UnsupportedCombinationError, match=adjacency.name) as refused:
                dm.Mechanism(strategy, participation, adjacency)
            assert refused.value.supported
            continue
        mechanism = dm.Mechanism(strategy, participation, adjacency)
        default, first = accountant_for(mechanism, None), accountant_for(mechanism, methods[0])
        assert type(default) is type(first)
        assert default.guarantee == first.guarantee
        for method in (kind() for kind in Method.__subclasses__()):
            if method in methods_of(name, adjacency):
                bound = accountant_for(mechanism, method)
                assert bound.guarantee.rigorous is not isinstance(method, dm.methods.Importance)
                continue
            with pytest.raises(dm.UnsupportedCombinationError, match=type(method).__name__) as refused:
                accountant_for(mechanism, method)
            assert refused.value.supported


@schemes()
def test_a_method_without_samples_leaves_nothing_to_chance(name):
    """Every random scheme has one, but b-min-sep sampling; the others have no lines in the registry."""
    strategy, participation = PLANS[name]
    mechanism = dm.Mechanism(strategy, participation, PROVED[name][0][0])
    assert type(participation).__name__ in _SHAPES
    if not participation.random:
        assert unsampled_method(participation) is None
        assert accountant_for(mechanism, None).sensitivity == mechanism.sensitivity
        return
    scheme = scheme_of(participation)
    defaults = (scheme.default(participation), scheme.unsampled(participation))
    without = [method for method in defaults if method not in {None, dm.methods.Certified()}]
    assert all(accountant_for(mechanism, method).guarantee.error == 0.0 for method in without)
    assert all(accountant_for(mechanism, method).guarantee.rigorous for method in without)
    assert bool(without) is (name != "BMinSep")


# ---- numbers


@pytest.mark.parametrize(("q", "sigma", "eps"), [(0.3, 1.0, 0.5), (0.5, 0.7, 1.0), (0.05, 1.5, 0.1)])
def test_the_oracle_finds_what_sixty_digits_find(q, sigma, eps):
    """One step of Poisson sampling in closed form, both directions, and two steps by quadrature."""
    for n, exactly in ((1, sampled_delta), (2, sampled_delta_two_steps)):
        (pair,) = pairs_of(dm.Poisson(q), n, "add_remove")
        low, high = hockey_stick(pair, np.eye(n), sigma, eps, 100_000, ALPHA, 3)
        known = max(float(exactly(q, sigma, eps, remove=remove)) for remove in (True, False))
        assert low <= known <= high <= 1.1 * known + 1e-3


def truth(cal, eps, factor=1.0, draws=100_000, seed=11):
    """An interval for delta at eps, of noise that is so much of what was certified."""
    matrix, n = cal.strategy.to_dense(), cal.strategy.n
    pairs = list(pairs_of(cal.participation, n, cal.mechanism.adjacency.value))
    ends = [
        hockey_stick(pair, matrix, factor * cal.sigma, eps, draws, ALPHA / len(pairs), seed) for pair in pairs
    ]
    return tuple(map(max, zip(*ends, strict=True)))


def later(name, adjacency, method):
    """Whether only the slow tests look at this case."""
    if PROVED[name][1] is EXACTLY:
        return False
    adjacencies, methods = PROVED[name]
    first = (adjacency, method) == (adjacencies[0], methods[0])
    return name in {"fresh BallsInBins", "RandomAllocation", "RandomAllocation in groups"} or not (
        first or (name not in COSTLY and adjacency is adjacencies[0] and method != dm.methods.Prv())
    )


# Calibrations by samples that take a minute each; both adjacencies have the same pair of distributions.
LONG = {
    (name, adjacency, method)
    for name in ("RandomAllocation", "RandomAllocation in groups")
    for adjacency in SAMPLED
    for method in (None, dm.methods.Certified())
} - {
    ("RandomAllocation", SAMPLED[0], None),
    ("RandomAllocation in groups", SAMPLED[1], dm.methods.Certified()),
}


@pytest.mark.parametrize(
    ("name", "adjacency", "method"),
    [marked(*case, slow=later(*case), exhaustive=case in LONG) for case in CASES],
)
def test_claims_hold_and_too_little_noise_is_found(name, adjacency, method):
    cal = calibrated(name, adjacency, method)
    assert cal.achieved.upper <= EPS
    assert cal.guarantee.rigorous is not isinstance(method, dm.methods.Importance)
    assert truth(cal, EPS)[0] <= DELTA * (1.0 + 1e-9)
    assert truth(cal, EPS, fault_of(name, method, FAULT), seed=12)[0] > DELTA


@pytest.mark.slow
@pytest.mark.parametrize(("name", "delta"), [("BMinSep", 0.05), ("BMinSep", 0.3), ("BallsInBins", 0.3)])
def test_sampled_bounds_hold_at_large_deltas_too(name, delta):
    strategy, participation = PLANS[name]
    cal = dm.calibrate_sigma(strategy, EPS, delta, participation=participation, rng=3)
    assert truth(cal, EPS)[0] <= delta
    assert truth(cal, EPS, 0.9, seed=12)[0] > delta
    spent = dm.epsilon(cal.mechanism, cal.sigma, delta, rng=3)
    assert spent.lower <= EPS < 1.05 * spent.upper <= 1.1 * EPS


@schemes(COSTLY | TWINS | {"truncated Poisson", "CyclicPoisson", "FixedSizeBatches"})
def test_more_privacy_takes_more_noise(name):
    cal = of(name)
    again = functools.partial(dm.calibrate_sigma, cal.mechanism, rtol=1e-2, rng=3)
    assert again(1.5 * EPS, DELTA).sigma < cal.sigma < again(EPS, 0.5 * DELTA).sigma
    deltas = [dm.delta(cal.mechanism, cal.sigma, eps, rng=3).upper for eps in (EPS, 2.0 * EPS)]
    # The upper end of a sample of its own is a few per cent above.
    assert 1.2 * deltas[1] < deltas[0] <= DELTA * (1.1 if name in COSTLY else 1.02)
    assert dm.epsilon(cal.mechanism, 0.9 * cal.sigma, DELTA, rng=3).upper > EPS * 1.02


@schemes(COSTLY | TWINS | {"truncated Poisson", "FixedSizeBatches"})
def test_its_profile_lies_above_the_truth(name):
    cal = of(name)
    profile = cal.profile(rel_error=0.05, rng=5)
    for eps in (0.3, 1.0, 2.0):
        lowest, highest = truth(cal, eps, seed=7)
        found = profile.delta(eps).upper
        assert lowest * (1.0 - 1e-9) <= found
        assert found <= (1.2 if name in COSTLY else 1.1) * highest + 1e-3


# ---- documents


# Of these the checker knows no close bound from below: it says no more than that nothing is shown.
OPEN_BELOW = {("truncated Poisson", 0.98), ("FixedSizeBatches", 0.98)}


@pytest.mark.parametrize(
    ("name", "method"),
    [
        marked(name, method, slow=name in COSTLY | TWINS or method != methods[0])
        for name, (_, methods) in PROVED.items()
        for method in methods
    ],
)
def test_its_certificate_comes_back_and_is_decided(name, method, tmp_path):
    """Proved as it is, and not with two per cent less noise; with still less where the bound leaves room."""
    cal = calibrated(name, PROVED[name][0][0], method)
    certificate = cal.certificate(clip_norm=1.0)
    certificate.save(tmp_path / "claim.json")
    assert dm.Certificate.load(tmp_path / "claim.json") == certificate
    assert dm.Mechanism.from_json(cal.mechanism.to_json()) == cal.mechanism
    found = dm.verify(tmp_path / "claim.json")
    assert found.ok, found.failures
    assert found.claim is Kind.PROVED

    less = fault_of(name, method, 0.98)
    found = dm.verify(with_checksum(changed(certificate, sigma=less * cal.sigma)))
    assert not found.ok
    assert found.claim is (Kind.NOT_CHECKED if (name, less) in OPEN_BELOW else Kind.REFUTED)


@schemes(COSTLY)
def test_a_ledger_takes_it(name):
    cal = of(name)
    ledger = dm.Ledger(cal.mechanism.adjacency)
    ledger.add("once", cal, batch="one")
    assert 0.9 * EPS < ledger.epsilon(DELTA).upper <= EPS * 1.02


# Nobody has derived the best test of these.
NO_ATTACK = {"truncated Poisson", "FixedSizeBatches", "BMinSep", "BallsInBins of users"}


def run_of(strategy, sigma):
    """The mechanism without dpmech: dense C^-1 times Gaussian noise."""
    inverse = np.linalg.inv(strategy.to_dense())
    return lambda gradients, rng: gradients + sigma * rng.standard_normal(gradients.shape) @ inverse.T


@pytest.mark.parametrize(
    ("name", "adjacency"),
    [
        marked(name, adjacency, slow=name in COSTLY or (name, number) not in {(name, 0), ("MinSep", 2)})
        for name, (adjacencies, _) in PROVED.items()
        for number, adjacency in enumerate(adjacencies)
    ],
)
def test_an_attack_finds_less_than_is_certified_or_is_refused(name, adjacency):
    cal = calibrated(name, adjacency, PROVED[name][1][0])

    def attack(factor, seed):
        return dm.audits.empirical_epsilon(
            cal.mechanism,
            cal.sigma,
            DELTA,
            mechanism=run_of(cal.strategy, factor * cal.sigma),
            samples=200_000,
            confidence=1.0 - ALPHA,
            rng=seed,
        )

    if name in NO_ATTACK:
        with pytest.raises(dm.UnsupportedCombinationError, match="no test under") as refused:
            attack(1.0, 11)
        assert refused.value.supported
        return
    found = attack(1.0, 11)
    assert 0.78 * EPS < found.lower <= cal.achieved.upper
    assert found.guarantee.error == pytest.approx(ALPHA, rel=1e-6)
    assert attack(0.85, 12).lower > EPS


# ---- samplers

UNITS = 6000


def examples_of(participation):
    return getattr(participation, "max_examples_per_user", None) or 1


def sampler_of(name, units, n=None, seed=1):
    """A sampler over so many units, each with as many consecutive examples as it may have."""
    strategy, participation = PLANS[name]
    examples, whose = examples_of(participation), {}
    if participation.users_together:
        whose = {"user_ids": [i // examples for i in range(units * examples)]}
    if not participation.random:
        whose = {"batch_size": units // 2} if participation.unrestricted else {}
    return sampler_for(participation, units * examples, n=n or strategy.n, rng=seed, **whose)


def counts_of(name, sampler):
    """How many examples of every unit are in the batch of every step, and whether none is there twice."""
    examples = examples_of(PLANS[name][1])
    table = np.zeros((sampler.dataset_size // examples, sampler.n), dtype=int)
    for step in range(sampler.n):
        batch = sampler.indices(step)
        assert np.unique(batch).size == batch.size
        np.add.at(table[:, step], batch // examples, 1)
    return table


@pytest.mark.parametrize("name", [name for name in PLANS if PLANS[name][1].random])
def test_its_sampler_has_the_law_of_the_definition(name):
    strategy, participation = PLANS[name]
    n, size = strategy.n, getattr(participation, "dataset_size", None)
    if size is None:
        rows = counts_of(name, sampler_of(name, UNITS))
    else:  # examples of one batch depend on each other, batches do not
        table = counts_of(name, sampler_of(name, size, n=n * UNITS))
        rows = np.array([table[i % size, n * i : n * (i + 1)] for i in range(UNITS)])
    laws = list(laws_of(participation, n))
    expected = {}
    for p, counts in itertools.chain.from_iterable(laws):
        expected[counts] = expected.get(counts, 0.0) + p / len(laws)
    assert pvalue(rows, expected) > ALPHA
    # A third too often in the first batch is found.
    wrong = {counts: p * 1.33 ** counts[0] for counts, p in expected.items()}
    total = math.fsum(wrong.values())
    assert pvalue(rows, {counts: p / total for counts, p in wrong.items()}) < ALPHA


def pvalue(rows, expected):
    """Of a chi-square test, cells of fewer than five rows together; 0 if a row is impossible."""
    different, seen = np.unique(rows, axis=0, return_counts=True)
    seen_of = {tuple(one): count for one, count in zip(different.tolist(), seen.tolist(), strict=True)}
    if not set(seen_of) <= set(expected):
        return 0.0
    wanted = {counts: len(rows) * p for counts, p in expected.items()}
    large = [counts for counts, number in wanted.items() if number >= 5.0]
    observed, due = [seen_of.get(one, 0) for one in large], [wanted[one] for one in large]
    if (rest := len(rows) - math.fsum(due)) > 1e-6:
        observed.append(len(rows) - sum(observed))
        due.append(rest)
    return stats.chisquare(observed, due).pvalue


@pytest.mark.parametrize("name", [name for name in PLANS if not PLANS[name][1].random])
def test_batches_in_order_keep_to_the_definition(name):
    strategy, participation = PLANS[name]
    table = counts_of(name, sampler_of(name, 12))
    most = np.array([counts for law in laws_of(participation, strategy.n) for _, counts in law])
    # Examples of a user need not come together.
    fits = (table[:, None, :] <= most[None, :, :]).all(axis=2).any(axis=1)
    assert fits.all()
    assert table.any(axis=1).all()


@schemes()
def test_its_sampler_resumes_and_passes_its_own_check(name):
    strategy, participation = PLANS[name]
    units = getattr(participation, "dataset_size", None) or 12
    sampler, batches = sampler_of(name, units, seed=4), []
    truncated = getattr(participation, "truncated_batch_size", None) is not None
    known = scheme_of(participation).samplers[type(participation)]
    assert type(sampler) is (TruncatedPoissonSampler if truncated else known)
    assert (sampler.participation, sampler.n) == (participation, strategy.n)
    assert sampler.dataset_size == units * examples_of(participation)
    assert sampler.seeded is participation.random
    tracker = ParticipationTracker(participation, strategy.n, sampler.dataset_size)
    for step, batch in enumerate(sampler):
        tracker.record(step, batch)
        batches.append(batch.tolist())
        if step == 1:
            state = json.loads(json.dumps(sampler.state_dict()))
    assert len(batches) == strategy.n
    again = sampler_of(name, units, seed=5)
    again.load_state_dict(state)
    assert [batch.tolist() for batch in again] == batches[2:]
    assert again.fingerprint() == sampler.fingerprint()
    assert sampler.state_dict()["key"] not in repr(sampler)
    assert [batch.tolist() for batch in sampler_of(name, units, seed=4)] == batches
    # Nothing that a claim does not say is taken from the caller.
    if participation.random:
        for options in ({"batch_size": 3}, {"drop_last": True}):
            with pytest.raises(dm.InvalidParameterError, match=next(iter(options))):
                sampler_for(participation, 12, n=strategy.n, **options)
