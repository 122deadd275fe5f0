import dataclasses
import json
import math
import pathlib

import pytest
import scipy.integrate
import scipy.stats
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant

import dpmech as dm
from dpmech.certificates.claim import with_checksum
from dpmech.certificates.document import Document, checksum_of_document
from dpmech.engines.profiles.curves import SampledPart
from tests.support import oracles
from tests.support.non_adaptive import whole

REPLACE = dm.Adjacency.REPLACE_ONE


def gaussian(eps, delta=1e-6, n=1, **options):
    return dm.calibrate_sigma(dm.Identity(n), eps, delta, **options)


def sampled(n=30, q=0.1, eps=1.0, delta=1e-6):
    return dm.calibrate_sigma(dm.Identity(n), eps, delta, participation=dm.Poisson(q))


def allocated(eps=2.0, delta=1e-5, method=None):
    return dm.calibrate_sigma(
        dm.LambdaCGD(6, 0.5), eps, delta, participation=dm.BallsInBins(3), method=method or dm.methods.Rdp()
    )


def uncertain(kind, error):
    """A calibration as a randomised accountant would return it."""
    cal = allocated()
    achieved = dm.Bounds(0.0, cal.budget.eps, dm.Guarantee(kind, error), dm.numerics.Provenance("sampled"))
    return with_checksum(dataclasses.replace(cal, achieved=achieved))


# ---- totals


def test_an_empty_ledger_has_spent_nothing():
    ledger = dm.Ledger()
    assert ledger.epsilon(1e-5).upper == 0.0
    assert ledger.delta(0.0).upper == 0.0
    assert str(ledger.guarantee) == "exact"
    assert ledger.releases == ()


def test_unsampled_releases_are_one_gaussian_exactly():
    ledger = dm.Ledger()
    first, second = (
        gaussian(1.0),
        dm.calibrate_sigma(dm.LambdaCGD(9, 0.7), 3.0, 1e-5, participation=dm.MinSep(3, 3)),
    )
    ledger.add("a", first)
    ledger.add("b", second)
    precision = sum((one.sensitivity.upper / one.sigma) ** 2 for one in (first, second))
    eps = ledger.epsilon(1e-6)
    assert eps.exact
    assert float(oracles.gaussian_delta(1.0 / math.sqrt(precision), eps.upper)) == pytest.approx(
        1e-6, rel=1e-8
    )
    found = ledger.delta(2.0)
    exact = float(oracles.gaussian_delta(1.0 / math.sqrt(precision), 2.0))
    assert found.lower <= exact * (1.0 + 1e-9)
    assert found.upper >= exact * (1.0 - 1e-9)
    assert found.upper == pytest.approx(exact, rel=1e-8)
    assert str(ledger.guarantee) == "exact"
    # One release alone costs what it was certified for.
    alone = dm.Ledger()
    alone.add("a", first)
    assert alone.epsilon(1e-6).upper == pytest.approx(first.achieved.upper, rel=1e-11)


def test_runs_of_one_kind_are_one_longer_run():
    cal = sampled()
    ledger = dm.Ledger()
    ledger.add("a", cal, batch="a")
    ledger.add("b", cal.certificate(), batch="b")
    whole = dm.epsilon(dm.Identity(60), cal.sigma, 1e-6, participation=dm.Poisson(0.1))
    found = ledger.epsilon(1e-6)
    assert found.upper == pytest.approx(whole.upper, rel=1e-3)
    assert found.lower == pytest.approx(whole.lower, rel=1e-3)
    assert found.lower > cal.achieved.upper
    whole_delta = dm.delta(dm.Identity(60), cal.sigma, 1.0, participation=dm.Poisson(0.1))
    assert ledger.delta(1.0).upper == pytest.approx(whole_delta.upper, rel=2e-3)
    assert str(ledger.guarantee) == "deterministic upper bound"


@pytest.mark.slow
def test_cyclic_sampling_counts_the_releases_of_one_group():
    cal = dm.calibrate_sigma(
        dm.BandedToeplitz(9, [1.0, 0.5]), 1.0, 1e-6, participation=dm.CyclicPoisson(0.2, 3)
    )
    ledger = dm.Ledger()
    ledger.add("a", cal, batch="a")
    # Nine steps, three groups: three releases for each.
    assert ledger.epsilon(1e-6).upper == pytest.approx(cal.achieved.upper, rel=1e-3)
    assert ledger.epsilon(1e-6).upper <= 1.0 * (1.0 + 1e-3)


def one_step_and_gaussian(q, s, mu, eps):
    """Delta of one sampled step and one plain Gaussian release, by quadrature over the step's output."""
    values = []
    for remove in (True, False):

        def integrand(x, remove=remove):
            ratio = 1.0 - q + q * math.exp((2.0 * x - 1.0) / (2.0 * s * s))
            pure = scipy.stats.norm.pdf(x, scale=s)
            loss = math.log(ratio) if remove else -math.log(ratio)
            return float(oracles.gaussian_delta(1.0 / mu, eps - loss, 30)) * pure * (ratio if remove else 1.0)

        values.append(scipy.integrate.quad(integrand, -12.0 * s, 12.0 * s + 1.0, limit=200, epsrel=1e-7)[0])
    return max(values)


def test_a_sampled_and_a_plain_release_against_quadrature():
    q, s, mu, eps = 0.3, 0.8, 0.7, 1.5
    exact = one_step_and_gaussian(q, s, mu, eps)
    mixed = whole((mu**2, mu**2), (SampledPart(q, s, 1, tight=True),))
    found = mixed.delta(eps, renyi=False)
    assert found.lower <= exact * (1.0 + 1e-6)
    assert exact * (1.0 - 1e-6) <= found.upper <= exact * 1.002
    again = mixed.epsilon(exact, renyi=False)
    assert eps * (1.0 - 1e-6) <= again.upper <= eps * 1.001
    assert eps * 0.999 <= again.lower <= eps * (1.0 + 1e-6)
    # One percent less noise is seen, at both ends.
    less = whole((mu**2, mu**2), (SampledPart(q, 0.99 * s, 1, tight=True),)).delta(eps, renyi=False)
    assert less.lower > exact * 1.006


@pytest.mark.slow
def test_a_mixed_ledger_against_a_fine_grid_and_moments():
    training, other, test = sampled(), sampled(n=10, q=0.3, eps=0.7), gaussian(0.5)
    ledger = dm.Ledger()
    ledger.add("training", training, batch="a")
    ledger.add("other", other, batch="b")
    ledger.add("test", test)
    fine = PLDAccountant(value_discretization_interval=1e-4)
    for cal, q, n in ((training, 0.1, 30), (other, 0.3, 10)):
        fine.compose(dp_event.PoissonSampledDpEvent(q, dp_event.GaussianDpEvent(cal.sigma)), n)
    fine.compose(dp_event.GaussianDpEvent(test.sigma))
    found = ledger.epsilon(1e-6)
    assert found.upper == pytest.approx(fine.get_epsilon(1e-6), rel=2e-3)
    assert max(1.0, found.lower) < found.upper < 1.0 + 0.7 + 0.5
    assert ledger.delta(found.upper).upper == pytest.approx(1e-6, rel=2e-2)
    moments = ledger.epsilon(1e-6, method=dm.methods.Rdp())
    assert found.upper < moments.upper < 2.0 * found.upper
    assert ledger.delta(found.upper, method=dm.methods.Rdp()).upper > 1e-6
    assert ledger.epsilon(1e-6, method=dm.methods.Pld()) == found


# ---- claims


def optimal_delta(eps, delta, count, total):
    """Kairouz, Oh and Viswanath 2015, Theorem 3.3: the optimal composition of identical claims."""
    likely, rare = math.exp(eps) / (1.0 + math.exp(eps)), 1.0 / (1.0 + math.exp(eps))
    value = 0.0
    for hits in range(count + 1):
        upper = math.comb(count, hits) * likely**hits * rare ** (count - hits)
        lower = math.comb(count, hits) * rare**hits * likely ** (count - hits)
        value += max(0.0, upper - math.exp(total) * lower)
    return 1.0 - (1.0 - delta) ** count * (1.0 - value)


@pytest.mark.parametrize(("eps", "delta", "count", "total"), [(0.1, 1e-7, 40, 2.0), (1.0, 1e-6, 5, 4.0)])
def test_claims_compose_optimally(eps, delta, count, total):
    mixed = whole(claims=((eps, delta),) * count)
    exact = optimal_delta(eps, delta, count, total)
    found = mixed.delta(total, renyi=False)
    assert exact * (1.0 - 1e-9) <= found.upper <= exact * 1.01
    assert mixed.epsilon(exact, renyi=False).upper == pytest.approx(total, rel=5e-3)
    assert mixed.epsilon(exact, renyi=True).upper == pytest.approx(eps * count, rel=1e-12)
    assert mixed.delta(eps * count, renyi=False).upper == pytest.approx(count * delta, rel=1e-4)
    assert mixed.delta(total, renyi=True).upper == 1.0


def test_one_claim_costs_what_it_claims():
    ledger = dm.Ledger()
    ledger.add("a", allocated(), batch="a")
    assert ledger.epsilon(1e-5).upper == pytest.approx(2.0, rel=1e-12)
    assert ledger.delta(2.0 + 1e-9).upper == 1e-5
    with pytest.raises(dm.UnattainableBudgetError, match="alone fail"):
        ledger.epsilon(0.9e-5)


@pytest.mark.slow
def test_claims_join_other_releases():
    ledger = dm.Ledger()
    ledger.add("a", allocated(), batch="a")
    ledger.add("b", sampled(), batch="b")
    total = ledger.epsilon(2e-5, profiles=False).upper
    assert 2.0 < total < 3.0
    assert ledger.epsilon(2e-5, method=dm.methods.Rdp()).upper > 2.0
    assert ledger.delta(total, profiles=False).upper <= 2e-5 * (1.0 + 1e-2)
    assert ledger.delta(0.0, method=dm.methods.Rdp()).upper == 1.0


def test_balls_in_one_bin_are_no_claim():
    cal = dm.calibrate_sigma(dm.Identity(3), 1.0, 1e-6, participation=dm.BallsInBins(1))
    ledger = dm.Ledger()
    ledger.add("a", cal, batch="a")
    assert ledger.epsilon(1e-6).upper == pytest.approx(cal.achieved.upper, rel=1e-9)


# ---- what may enter


def test_estimates_enter_only_where_asked_for():
    cal = uncertain(dm.Kind.ESTIMATE, 1e-4)
    with pytest.raises(dm.UnsupportedCombinationError, match="estimate"):
        dm.Ledger().add("a", cal, batch="a")
    ledger = dm.Ledger(allow_estimates=True)
    ledger.add("a", cal, batch="a")
    ledger.add("b", gaussian(0.1))
    assert str(ledger.guarantee) == "estimate"
    total = ledger.epsilon(2e-5, profiles=False)
    assert total.guarantee.error == cal.achieved.guarantee.error == 1e-4
    assert total.lower == 0.0


def test_probabilities_of_failure_add_up():
    cal = uncertain(dm.Kind.PROBABLE, 1e-17)
    ledger = dm.Ledger()
    ledger.add("a", cal, batch="a")
    ledger.add("b", cal, batch="b")
    assert str(ledger.guarantee) == "with probability 1 - beta"
    assert 2e-17 <= ledger.epsilon(3e-5, profiles=False).guarantee.error <= 2e-17 * (1.0 + 1e-15)


def test_adjacencies_do_not_mix():
    ledger = dm.Ledger()
    for adjacency in (REPLACE, dm.Adjacency.ZERO_OUT):
        with pytest.raises(dm.UnsupportedCombinationError, match="one adjacency"):
            ledger.add("a", gaussian(1.0, adjacency=adjacency))
    replaced = dm.Ledger(REPLACE)
    cal = gaussian(1.0, adjacency=REPLACE)
    replaced.add("a", cal)
    assert replaced.epsilon(1e-6).upper == pytest.approx(cal.achieved.upper, rel=1e-11)


@pytest.mark.slow
def test_a_sampled_release_names_batches_that_are_new():
    ledger = dm.Ledger()
    with pytest.raises(dm.InvalidParameterError, match="batches are sampled"):
        ledger.add("a", sampled())
    ledger.add("a", sampled(), batch="run 1")
    for cal in (sampled(), allocated()):
        with pytest.raises(dm.UnsupportedCombinationError, match=r"dm\.ledgers\.joint_release"):
            ledger.add("b", cal, batch="run 1")
    batch = dm.ledgers.SharedBatch("run 1", dm.Identity(30), dm.Poisson(0.1))
    batch.register("a", 50.0)
    with pytest.raises(dm.UnsupportedCombinationError, match="in the ledger already"):
        ledger.add("b", sampled(), batch=batch)
    assert not batch.closed
    assert len(ledger.releases) == 1


@pytest.mark.parametrize(
    "batch", ["batch 1 ", " batch 1", "batch 1\n", "batch\u200b 1", "batch\u00a01", "e\u0301", "\ud800"]
)
def test_batches_whose_names_look_the_same_are_refused(batch):
    """Only its name tells a batch from another one: a second spelling would let it enter twice."""
    ledger = dm.Ledger()
    ledger.add("a", sampled(), batch="batch 1")
    with pytest.raises(dm.InvalidParameterError, match="batch must be printable text"):
        ledger.add("b", sampled(), batch=batch)
    with pytest.raises(dm.InvalidParameterError, match="name must be printable text"):
        dm.ledgers.SharedBatch(batch, dm.Identity(10), dm.Poisson(0.1))
    ledger.add("c", sampled(), batch="\u00e9")


def test_blocks_of_a_batch_enter_once_and_jointly():
    cal = sampled()
    blocks = dm.ledgers.BlockClipping.from_joint([0.1, 0.2, 0.3], cal.sigma)
    batch = dm.ledgers.SharedBatch("run", cal.strategy, cal.participation)
    for index, sigma in enumerate(blocks.sigmas):
        batch.register(f"block {index}", sigma)
    ledger = dm.Ledger()
    ledger.add("training", cal, batch=batch)
    assert batch.closed
    assert len(ledger.releases[0].blocks) == 3
    assert ledger.epsilon(1e-6).upper == pytest.approx(cal.achieved.upper, rel=1e-3)


def test_a_batch_with_too_little_noise_or_another_plan_is_refused():
    cal = sampled()
    batch = dm.ledgers.SharedBatch("run", cal.strategy, cal.participation)
    batch.register("a", cal.sigma)
    batch.register("b", cal.sigma)
    with pytest.raises(dm.UnsupportedCombinationError, match="less than the certified"):
        dm.Ledger().add("training", cal, batch=batch)
    with pytest.raises(dm.UnsupportedCombinationError, match="less than the certified"):
        dm.Ledger().add("training", cal, batch=dm.ledgers.SharedBatch("run", cal.strategy, cal.participation))
    other = dm.ledgers.SharedBatch("run", cal.strategy, dm.Poisson(0.05))
    other.register("a", 10.0 * cal.sigma)
    with pytest.raises(dm.UnsupportedCombinationError, match="not what was certified"):
        dm.Ledger().add("training", cal, batch=other)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda ledger, _: ledger.add("", gaussian(1.0)), "name"),
        (lambda ledger, _: ledger.add("a", 3.0), "release"),
        (lambda ledger, cal: ledger.add("a", cal, batch=3), "batch"),
        (lambda ledger, _: ledger.epsilon(0.0), "delta"),
        (lambda ledger, _: ledger.delta(-1.0), "eps"),
        (lambda ledger, _: ledger.epsilon(1e-5, method="pld"), "method"),
        (lambda ledger, _: ledger.delta(1.0, profiles=1), "profiles"),
        (lambda ledger, _: ledger.meets((1.0, 1e-5)), "budget"),
        (lambda _, __: dm.Ledger("add_remove"), "adjacency"),
        (lambda _, __: dm.Ledger(allow_estimates=1), "allow_estimates"),
    ],
)
def test_bad_arguments_are_refused(act, message):
    with pytest.raises(dm.InvalidParameterError, match=message):
        act(dm.Ledger(), sampled())


def test_a_name_enters_once_and_a_method_must_compose():
    ledger = dm.Ledger()
    ledger.add("a", gaussian(1.0))
    with pytest.raises(dm.InvalidParameterError, match="new in this ledger"):
        ledger.add("a", gaussian(1.0))
    with pytest.raises(dm.UnsupportedCombinationError, match="does not compose"):
        ledger.epsilon(1e-5, method=dm.methods.Prv())
    assert "1 release," in repr(ledger)


# ---- files


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    ledger = dm.Ledger()
    cal = sampled()
    batch = dm.ledgers.SharedBatch("run 1", cal.strategy, cal.participation)
    batch.register("a", cal.sigma * math.sqrt(2.0) * 1.001)
    batch.register("b", cal.sigma * math.sqrt(2.0) * 1.001)
    ledger.add("training", cal, batch=batch)
    ledger.add("second", cal, batch="run 2")
    ledger.add("test", gaussian(0.5))
    path = tmp_path_factory.mktemp("ledger") / "ledger.json"
    ledger.save(path)
    return ledger, path


def test_a_ledger_comes_back_as_it_was(saved):
    ledger, path = saved
    loaded = dm.Ledger.load(path)
    assert loaded.releases == ledger.releases
    assert loaded.adjacency is ledger.adjacency
    assert loaded.epsilon(1e-6) == ledger.epsilon(1e-6)
    assert loaded.to_dict() == ledger.to_dict()


def test_a_file_of_brackets_is_no_ledger(tmp_path):
    (tmp_path / "deep.json").write_text("[" * 200_000)
    with pytest.raises(dm.exceptions.CertificateError, match="not JSON"):
        dm.Ledger.load(tmp_path / "deep.json")


def test_files_that_cannot_be_read_or_written_are_refused(tmp_path):
    with pytest.raises(dm.InvalidParameterError, match="readable"):
        dm.Ledger.load(tmp_path / "none.json")
    with pytest.raises(dm.InvalidParameterError, match="written"):
        dm.Ledger().save(tmp_path)
    text = tmp_path / "text.json"
    text.write_text("{", encoding="utf-8")
    with pytest.raises(dm.exceptions.CertificateError, match="not JSON"):
        dm.Ledger.load(text)


def test_a_release_deleted_by_hand_is_refused(tmp_path):
    """Two became one, and 12.256 became 8.0, without a word."""
    ledger, path = dm.Ledger(), tmp_path / "ledger.json"
    one = gaussian(8.0, 1e-5)
    ledger.add("a", one)
    ledger.add("b", one)
    assert ledger.epsilon(1e-5).upper == pytest.approx(12.2564578, rel=1e-8)
    ledger.save(path)
    data = json.loads(path.read_text(encoding="utf-8"))
    del data["releases"][0]
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(dm.exceptions.CertificateError, match="checksum is broken"):
        dm.Ledger.load(path)
    assert not dm.verify(path)
    # Checksummed again, it contradicts what else stands there: the number of the entry, and the total.
    content = {key: value for key, value in data.items() if key != "checksum"}
    path.write_text(json.dumps(content | {"checksum": checksum_of_document(content)}), encoding="utf-8")
    with pytest.raises(dm.exceptions.CertificateError, match="contradict each other"):
        dm.Ledger.load(path)


def test_a_killed_writer_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    ledger, path = dm.Ledger(), tmp_path / "ledger.json"
    ledger.add("a", gaussian(1.0))
    ledger.save(path)
    before = path.read_text(encoding="utf-8")
    ledger.add("b", gaussian(1.0))
    opened = pathlib.Path.open

    def killed(*_):
        raise KeyboardInterrupt

    def truncated(self, mode="r", *rest, **options):
        stream = opened(self, mode, *rest, **options)
        if "w" in mode:  # it was emptied, and the writer dies
            stream.close()
            raise KeyboardInterrupt
        return stream

    with monkeypatch.context() as patched:
        patched.setattr(pathlib.Path, "replace", killed)
        patched.setattr(pathlib.Path, "open", truncated)
        with pytest.raises(KeyboardInterrupt):
            ledger.save(path)
    assert path.read_text(encoding="utf-8") == before
    assert [one.name for one in tmp_path.iterdir()] == ["ledger.json"]
    ledger.save(path)
    assert len(dm.Ledger.load(path).releases) == 2


def test_two_writers_do_not_lose_each_others_releases_without_a_word(tmp_path):
    path = tmp_path / "ledger.json"
    start = dm.Ledger()
    start.add("a", gaussian(1.0))
    start.save(path)
    first, second = dm.Ledger.load(path), dm.Ledger.load(path)
    first.add("of the first", gaussian(1.0))
    first.save(path)
    second.add("of the second", gaussian(1.0))
    with pytest.raises(dm.InvalidParameterError, match="load it again"):
        second.save(path)
    assert dm.Ledger.load(path).releases[-1].name == "of the first"


def test_whatever_is_kept_as_a_file_is_one_kind_of_document():
    kept = [kind for kind in vars(dm).values() if isinstance(kind, type) and hasattr(kind, "save")]
    assert {kind.__name__ for kind in kept} >= {"Certificate", "RunRecord", "Ledger"}
    assert all(issubclass(kind, Document) for kind in kept)
    schemas = {path.name for path in (pathlib.Path(dm.__file__).parent / "schemas").glob("*.json")}
    assert {"certificate-1.json", "run-record-1.json", "ledger-1.json"} <= schemas
