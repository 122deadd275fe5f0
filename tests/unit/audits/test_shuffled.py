"""Shuffled batches: lower bounds beside quadrature of the whole pair, exact cases and other accountants."""

import itertools
import json
import math

import mpmath
import numpy as np
import pytest
import scipy
from click.testing import CliRunner

import dpmech as dm
from dpmech import cli
from dpmech.audits import PublishedClaim, Shuffled, audit, shuffled_epsilon
from dpmech.audits.shuffled import Epoch, _added, _below, epsilon_below
from dpmech.plans import read_claims


def gaussian(sigma, delta, **changes):
    return dm.epsilon(dm.Identity(1), sigma, delta, participation=dm.SingleParticipation(), **changes).upper


def hockey_stick(epoch, eps, step):
    """Delta of one epoch's pair at eps: one sum in closed form, the others by the trapezoidal rule.

    Over the density of noise alone, "with" less e^eps "without" is a quadratic in u = e^(w / sigma^2).
    """
    s2, share, grow = epoch.sigma**2, (1.0 - epoch.left_out) / epoch.batches, math.exp(eps)
    axis = np.arange(-9.0, 9.0 + 2.0 / epoch.sigma, step) * epoch.sigma
    base, r_with, r_without = np.ones(1), np.zeros(1), np.zeros(1)
    for _ in range(epoch.batches - 1):
        noise = np.exp(-0.5 * axis**2 / s2) * step / math.sqrt(2.0 * math.pi)
        base = np.multiply.outer(base, noise).ravel()
        r_with = np.add.outer(r_with, np.exp((2.0 * axis - 2.0) / s2)).ravel()
        lift = np.exp((epoch.absent * axis - 0.5 * epoch.absent**2) / s2)
        r_without = np.add.outer(r_without, lift).ravel()
    square = share * math.exp(-2.0 / s2)
    linear = grow * share * math.exp(-0.5 / s2) if epoch.absent else 0.0
    rest = share * r_with + epoch.left_out - grow * (share * r_without + epoch.left_out)
    rest = rest - (0.0 if epoch.absent else grow * share)
    root = np.sqrt(np.maximum(linear**2 - 4.0 * square * rest, 0.0))
    with np.errstate(divide="ignore"):
        high, low = (np.log(np.maximum(linear + sign * root, 0.0) / (2.0 * square)) * s2 for sign in (1, -1))

    def beyond(end, sign):
        tails = [scipy.special.ndtr(sign * (mean - end) / epoch.sigma) for mean in (0.0, epoch.absent, 2.0)]
        found = share * (r_with * tails[0] + tails[2]) + epoch.left_out * tails[0]
        return found - grow * (share * (r_without * tails[0] + tails[1]) + epoch.left_out * tails[0])

    return float(np.sum(base * (beyond(high, 1) + beyond(low, -1))))


# ---- one epoch


EPOCHS = [
    Epoch(1, 0.7, 2.0, 1.0),
    Epoch(2, 0.6, 2.0, 1.0),
    Epoch(2, 1.5, 2.0, 1.0, 0.2),
    Epoch(2, 0.9, 2.0, 0.0),
    pytest.param(Epoch(3, 0.8, 2.0, 1.0), marks=pytest.mark.slow),
    pytest.param(Epoch(3, 1.2, 2.0, 1.0, 0.1), marks=pytest.mark.slow),
]


@pytest.mark.parametrize("epoch", EPOCHS, ids=str)
@pytest.mark.parametrize("delta", [1e-5, 0.02])
def test_one_epoch_is_below_the_quadrature_of_its_pair_and_near_it(epoch, delta):
    step = 0.02 if epoch.batches == 3 else 0.01
    eps = epsilon_below(epoch, 1, delta)
    assert hockey_stick(epoch, eps, step) >= delta * (1.0 - 1e-3)  # which is what the rule may miss
    assert hockey_stick(epoch, 1.05 * eps + 0.01, step) < delta


@pytest.mark.parametrize(("mean", "left_out"), [(2.0, 0.0), (1.0, 0.3), (0.0, 0.0)])
def test_tails_agree_with_forty_digits(mean, left_out):
    epoch = Epoch(37, 0.45, 2.0, 1.0, left_out)
    thresholds = np.array([0.0, 0.3, 1.0, 1.9, 2.5, 4.0, 9.0, 16.0])
    found = epoch.tails(thresholds, mean)
    with mpmath.workdps(60):

        def below(x):
            return mpmath.ncdf(mpmath.mpf(x) / mpmath.mpf(0.45))

        for threshold, tail in zip(thresholds, found, strict=True):
            w = mpmath.mpf(left_out)
            raised = (1 - w) * below(mpmath.mpf(threshold) - mean) + w * below(threshold)
            true = 1 - below(threshold) ** 36 * raised
            if true > mpmath.mpf(10) ** -50:  # of what sixty digits leave
                assert abs(mpmath.mpf(tail) / true - 1) < 1e-12
            assert tail >= 0.0


# ---- several epochs


@pytest.mark.parametrize("epochs", [1, 2, 7, 40, 300])
@pytest.mark.parametrize("delta", [1e-6, 0.01])
def test_batches_of_everybody_are_the_gaussian_mechanism(epochs, delta):
    """One batch an epoch: k releases of sensitivity 1, whose exact eps is known."""
    sigma = 0.8 * math.sqrt(epochs)
    found = epsilon_below(Epoch(1, sigma, 2.0, 1.0), epochs, delta)
    exact = gaussian(sigma / math.sqrt(epochs), delta)
    assert 0.9 * exact < found <= exact


def test_sums_of_scores_stay_within_their_error():
    rng = np.random.default_rng(5)
    for size, count in ((2, 1), (3, 2), (9, 13)):
        masses = rng.random(size) ** 4
        found, error = _added(masses, count)
        with mpmath.workdps(40):
            exact = [mpmath.mpf(1)]
            for _ in range(count):
                exact = [
                    mpmath.fsum(
                        exact[i - j] * mpmath.mpf(masses[j]) for j in range(size) if 0 <= i - j < len(exact)
                    )
                    for i in range(len(exact) + size - 1)
                ]
            assert len(exact) == found.size
            assert max(abs(mpmath.mpf(x) / y - 1) for x, y in zip(found, exact, strict=True)) <= error


def test_more_epochs_than_scores_drop_some_and_stay_below():
    epoch = Epoch(1, 100.0, 2.0, 1.0)
    assert epsilon_below(epoch, 8192, 1e-3) == epsilon_below(epoch, 10**9, 1e-3)
    assert epsilon_below(Epoch(1, 1e16, 2.0, 1.0), 5, 1e-3) == 0.0


# ---- runs


SETTINGS = [
    pytest.param(*setting, marks=[] if place % 9 == 0 else pytest.mark.slow)
    for place, setting in enumerate(
        itertools.product((1, 4, 30), (0.3, 1.0, 6.0), (1, 3, 12), (True, False), dm.Adjacency)
    )
]


@pytest.mark.parametrize(("batches", "sigma", "epochs", "once", "adjacency"), SETTINGS)
def test_no_lower_end_is_above_the_unamplified_gaussian(batches, sigma, epochs, once, adjacency):
    """An upper bound of the same run; `shuffled_epsilon` would cut it off there, `_below` does not."""
    upper = gaussian(sigma / math.sqrt(epochs), 1e-5, adjacency=adjacency)
    for size in (10 * batches, 10 * batches + 3):
        made = Shuffled(size, 10, once=once)
        below = _below(batches * epochs, sigma, 1e-5, made, adjacency)
        assert 0.0 <= below <= upper * (1.0 + 1e-12)
    found = shuffled_epsilon(batches * epochs, sigma, 1e-5, made, adjacency=adjacency)
    assert (found.lower, found.upper) == pytest.approx((below, upper), rel=1e-9)
    assert found.guarantee.kind is dm.Kind.BOUND


@pytest.mark.slow
def test_at_least_what_a_blank_dataset_leaks():
    """Others of gradient 0 make independent bins of it, of which another accountant knows eps."""
    for sigma, epochs in ((1.0, 1), (3.0, 4)):
        bins = dm.epsilon(dm.Identity(5 * epochs), sigma, 1e-5, participation=dm.BallsInBins(5, fresh=True))
        assert shuffled_epsilon(5 * epochs, sigma, 1e-5, Shuffled(50, 10)).lower > 0.97 * bins.lower


def test_more_noise_and_fewer_epochs_leave_less():
    made = Shuffled(1000, 20)
    by_noise = [shuffled_epsilon(500, sigma, 1e-5, made).lower for sigma in (0.5, 0.7, 1.0, 1.4, 2.0, 4.0)]
    assert by_noise == sorted(by_noise, reverse=True)
    by_epochs = [shuffled_epsilon(50 * epochs, 0.9, 1e-5, made).lower for epochs in (1, 2, 4, 8, 32)]
    assert by_epochs == sorted(by_epochs)


def test_one_order_is_one_epoch_of_less_noise():
    once = shuffled_epsilon(160, 2.0, 1e-5, Shuffled(1000, 100, once=True))
    assert once.lower == pytest.approx(shuffled_epsilon(10, 0.5, 1e-5, Shuffled(1000, 100)).lower, rel=1e-6)
    assert once.lower > shuffled_epsilon(160, 2.0, 1e-5, Shuffled(1000, 100)).lower


def test_what_is_left_of_an_epoch_enters_the_upper_end_alone():
    made = Shuffled(100, 10)
    whole, more = shuffled_epsilon(20, 1.0, 1e-5, made), shuffled_epsilon(23, 1.0, 1e-5, made)
    assert more.lower == whole.lower
    assert more.upper == shuffled_epsilon(30, 1.0, 1e-5, made).upper
    part = shuffled_epsilon(4, 1.0, 1e-5, made)  # less than an epoch: six in ten examples have no turn
    assert part.lower == epsilon_below(Epoch(4, 1.0, 2.0, 1.0, 0.6), 1, 1e-5) > 1.0


def test_who_is_left_out_is_told_by_the_sizes():
    dropped, kept = Shuffled(25, 10), Shuffled(25, 10, drop_last=False)
    assert (dropped.batches_per_epoch, kept.batches_per_epoch) == (2, 3)
    assert shuffled_epsilon(2, 0.5, 1e-5, dropped).lower == epsilon_below(
        Epoch(2, 0.5, 2.0, 1.0, 0.2), 1, 1e-5
    )
    assert shuffled_epsilon(3, 0.5, 1e-5, kept).lower >= epsilon_below(Epoch(3, 0.5, 2.0, 1.0), 1, 1e-5)


@pytest.mark.parametrize(
    "call",
    [
        lambda: Shuffled(0, 1),
        lambda: Shuffled(10, 11),
        lambda: Shuffled(10, 2, drop_last=1),
        lambda: Shuffled(10, 2, once=None),
        lambda: shuffled_epsilon(0, 1.0, 1e-5, Shuffled(10, 2)),
        lambda: shuffled_epsilon(5, 0.0, 1e-5, Shuffled(10, 2)),
        lambda: shuffled_epsilon(5, 1.0, 1.0, Shuffled(10, 2)),
        lambda: shuffled_epsilon(5, 1.0, 1e-5, dm.Poisson(0.2)),
        lambda: shuffled_epsilon(5, 1.0, 1e-5, Shuffled(10, 2), adjacency="zero_out"),
    ],
)
def test_bad_arguments_are_refused(call):
    with pytest.raises(dm.InvalidParameterError):
        call()


# ---- audits


def claim(**changes):
    fields = {
        "name": "a",
        "strategy": dm.Identity(300),
        "participation": Shuffled(50_000, 500),
        "sigma": 0.7,
        "delta": 1e-5,
        "claimed_eps": 3.1,
    }
    return PublishedClaim(**(fields | changes))


def test_a_claim_accounted_as_poisson_and_trained_by_shuffling_is_under_stated():
    as_accounted, as_trained = audit([claim(participation=dm.Poisson(0.01)), claim()])
    assert as_accounted.verdict == "holds"
    assert as_trained.verdict == "under-stated"
    assert as_trained.certified.lower > 12.0
    at_least, between, safe = audit([claim(claimed_eps=eps) for eps in (12.4, 12.8, 13.1)])
    assert (at_least.verdict, between.verdict, safe.verdict) == ("under-stated", "undecided", "holds")
    assert str(safe.certified.by) == "100 shuffled batches an epoch, 3 epochs, a new order"


def test_blocks_are_joined_and_correlated_noise_is_refused():
    (joined, alone) = audit([claim(sigma=1.4, blocks=4), claim()])
    assert joined.certified.lower == pytest.approx(alone.certified.lower, rel=1e-9)
    (found,) = audit([claim(strategy=dm.LambdaCGD(300, 0.5))])
    assert found.verdict == "refused"
    assert "correlates noise" in found.reason
    (found,) = audit([claim(sigma=1e-200)])
    assert found.verdict == "refused"


FILE = """
[defaults]
dataset_size = 50_030
batch_size = 500
delta = 1e-5
sigma = 0.7
claimed_eps = 3.1
[[claim]]
name = "accounted"
sampling = "poisson"
epochs = 3
[[claim]]
name = "trained"
sampling = "shuffle"
epochs = 3
[[claim]]
name = "one order"
sampling = "shuffle-once"
steps = 300
drop_last = false
[[claim]]
name = "multiplier"
sampling = "shuffle"
epochs = 3
drop_last = false
claimed_eps = 13.5
"""


def test_a_file_says_so_and_the_command_tells_both_ends(tmp_path):
    path = tmp_path / "claims.toml"
    path.write_text(FILE, encoding="utf-8")
    _, trained, once, kept = read_claims(path)
    assert trained.participation == Shuffled(50_030, 500)
    assert once.participation == Shuffled(50_030, 500, drop_last=False, once=True)
    assert [one.strategy.n for one in (trained, once, kept)] == [300, 300, 303]
    result = CliRunner().invoke(cli.main, ["audit", str(path)])
    assert result.exit_code == 1
    assert result.stdout.count("under-stated") == 2
    assert "12.45 to 13.04" in result.stdout
    assert "some data have eps of at least 12.45" in " ".join(result.stdout.split())
    record = json.loads(CliRunner().invoke(cli.main, ["audit", str(path), "--json"]).stdout)
    assert [one["verdict"] for one in record["claims"]] == ["holds", "under-stated", "under-stated", "holds"]
    assert record["claims"][2]["participation"] == once.participation.to_dict()
    assert record["claims"][1]["eps_lower"] > 12.4


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "epochs must be given"),
        ("steps = 3\nepochs = 1", "epochs"),
        ("epochs = 2\ncycle = 3", "cycle"),
        ("epochs = 2\ndrop_last = 1", "drop_last"),
        ("epochs = 0", "epochs"),
    ],
)
def test_a_bad_table_is_refused(tmp_path, line, message):
    path = tmp_path / "claims.toml"
    path.write_text(
        '[[claim]]\nname = "a"\nsampling = "shuffle"\ndataset_size = 50\nbatch_size = 5\n'
        f"delta = 1e-5\nsigma = 1.0\nclaimed_eps = 1.0\n{line}\n",
        encoding="utf-8",
    )
    with pytest.raises(dm.InvalidParameterError, match=message):
        read_claims(path)


def test_a_multiplier_is_that_of_one_release(tmp_path):
    path = tmp_path / "claims.toml"
    path.write_text(FILE.replace("sigma = 0.7", "noise_multiplier = 0.7"), encoding="utf-8")
    assert {one.sigma for one in read_claims(path)} == {0.7}
