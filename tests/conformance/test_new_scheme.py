"""A sampling scheme that dpmech does not have, added from outside: a participation, an accountant, a sampler,
and the Scheme object that names them."""

import dataclasses
import json
import math
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

import dpmech as dm
from dpmech.checker import Kind
from dpmech.drawing.base import Sampler
from dpmech.drawing.random_words import groups
from dpmech.engines.accountant import Accountant, Solution
from dpmech.engines.gaussian import gaussian_delta
from dpmech.mechanism import Pattern, kinds
from dpmech.samplers import sampler_for
from dpmech.schemes import Scheme, add_scheme, remove_scheme, scheme_of, schemes
from dpmech.schemes.fixed_order import FixedOrderScheme, SequentialSampler

# ---- the scheme


@dataclasses.dataclass(frozen=True)
class OneStep(dm.Participation):
    """Every example takes part in exactly one step, drawn uniformly from all of them."""

    random = True
    plan_name = "one-step"

    def pattern(self, n):
        return Pattern(n, 1)

    def requirement(self, n):
        return f"Draw for every example one of the {n} steps, uniformly and independently; keep it secret."

    @classmethod
    def planned(cls, epochs, steps_per_epoch, sampling_prob, settings):
        return cls()


class OneStepAccountant(Accountant):
    """What is released is a mixture over the step, so that delta is at most the mean over the steps.

    Hockey-stick divergences are jointly convex; at a given step it is the Gaussian mechanism, whose
    sensitivity is the norm of that column.
    """

    guarantee = dm.Guarantee(dm.Kind.BOUND)
    by = dm.numerics.Provenance("toy.mean_over_the_step")

    def __init__(self, mechanism, method, rng):
        if method not in {None, dm.methods.Exact()}:
            raise dm.UnsupportedCombinationError(
                f"{method!r} under OneStep", supported="method=None, Exact()"
            )
        self.sensitivity = mechanism.sensitivity
        self.norms = mechanism.strategy.column_norms()

    def delta(self, sigma, eps, *, tolerance):
        terms = [gaussian_delta(sigma / norm, eps)[1] for norm in self.norms]
        return dm.Bounds(0.0, min(1.0, math.fsum(terms) / len(terms) * (1 + 1e-12)), self.guarantee, self.by)

    def epsilon(self, sigma, delta, *, tolerance):
        upper = _least(lambda eps: self.upper_delta(sigma, eps, tolerance=tolerance) <= delta)
        return dm.Bounds(0.0, upper, self.guarantee, self.by)

    def calibrate(self, eps, delta, *, rtol, progress):
        sigma = _least(lambda sigma: self.upper_delta(sigma, eps, tolerance=rtol) <= delta)
        return Solution(sigma, dm.Bounds(0.0, eps, self.guarantee, self.by))


def _least(met):
    """Of a condition that holds from some number > 0 on, that number, a little too large."""
    low, high = 1e-9, 1.0
    while not met(high):
        high *= 2.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if met(middle) else (middle, high)
    return high


class OneStepSampler(Sampler):
    def __init__(self, dataset_size, n, *, rng=None):
        super().__init__(
            dataset_size, OneStep(), n, steps_per_epoch=n, expected_batch_size=dataset_size / n, rng=rng
        )

    def _prepare(self):
        self._drawn = groups(self._key, self.n, self.dataset_size)

    def _batch(self, step):
        return np.flatnonzero(self._drawn == step)


class OneStepScheme(Scheme):
    samplers = {OneStep: OneStepSampler}  # noqa: RUF012

    def default(self, participation):
        return dm.methods.Exact()

    def accountant(self, participation, mechanism, method, rng):
        return OneStepAccountant(mechanism, method, rng)


SCHEME = OneStepScheme()


@dataclasses.dataclass(frozen=True)
class OtherStep(OneStep):
    """The same by another name."""

    plan_name = "other-step"


@pytest.fixture
def registered():
    scheme = add_scheme(SCHEME)
    assert scheme_of(OneStep()) is scheme
    yield
    remove_scheme(scheme)


MECHANISM = dm.Mechanism(dm.LambdaCGD(6, 0.8), OneStep())

# ---- what it goes through


def test_from_calibration_to_verdict(registered, tmp_path):
    cal = dm.calibrate_sigma(MECHANISM, 2.0, 1e-5)
    assert cal.mechanism == MECHANISM
    assert cal.achieved.upper <= 2.0
    assert dm.delta(MECHANISM, cal.sigma, 2.0).upper <= 1e-5
    assert dm.delta(MECHANISM, 0.999 * cal.sigma, 2.0).upper > 1e-5
    assert 1.9 < dm.epsilon(MECHANISM, cal.sigma, 1e-5).upper <= 2.0 + 1e-9
    # The steps differ in their norms, which the mean rewards.
    assert (
        cal.sigma
        < dm.calibrate_sigma(MECHANISM.strategy, 2.0, 1e-5, participation=dm.SingleParticipation()).sigma
    )

    certificate = cal.certificate(clip_norm=1.0)
    certificate.save(tmp_path / "toy.json")
    again = dm.Certificate.load(tmp_path / "toy.json")
    assert again == certificate
    assert again.mechanism == MECHANISM
    assert "one of the 6 steps" in str(again)

    # The checker has no theorem for it, and says so in place of taking the scheme's word.
    found = dm.verify(tmp_path / "toy.json", rigorous=True)
    assert not found.ok
    assert found.undecided
    assert found.claim is Kind.NOT_CHECKED
    assert [check.name for check in found.checks if not check.ok] == ["claim"]
    assert "the participation 'OneStep' is unknown" in found.failures[0]


def test_the_sampler_realises_it(registered):
    cal = dm.calibrate_sigma(MECHANISM, 2.0, 1e-5)
    sampler = sampler_for(cal, 600, rng=1)
    assert isinstance(sampler, OneStepSampler)
    assert sampler_for(MECHANISM, 600, rng=1).fingerprint() == sampler.fingerprint()
    tracker = dm.samplers.ParticipationTracker(cal.participation, cal.strategy.n, 600)
    sizes = []
    for step, batch in enumerate(sampler):
        tracker.record(step, batch)
        sizes.append(batch.size)
    assert sum(sizes) == 600
    assert stats.chisquare(sizes).pvalue > 1e-6
    assert tracker.summary()["most_participations"] == 1


def test_other_parts_take_it_or_refuse_by_name(registered):
    cal = dm.calibrate_sigma(MECHANISM, 2.0, 1e-5)
    assert 0.0 < cal.rmse() < math.inf
    ledger = dm.Ledger()
    ledger.add("toy", cal, batch="once")
    # No loss distribution is known, so that it enters by its claim.
    assert ledger.epsilon(1e-5).upper == pytest.approx(2.0)
    assert dm.executed_epsilon(cal, 3).upper <= 2.0
    again = dm.Mechanism.from_json(MECHANISM.to_json())
    assert again.fingerprint() == MECHANISM.fingerprint()
    with pytest.raises(dm.UnsupportedCombinationError, match="no bound is proven for REPLACE_ONE"):
        dm.Mechanism(dm.Identity(6), OneStep(), dm.Adjacency.REPLACE_ONE)
    with pytest.raises(dm.UnsupportedCombinationError, match=r"no test under OneStep\(\)"):
        dm.audits.empirical_epsilon(MECHANISM, 1.0, 0.1, samples=1000)
    with pytest.raises(dm.UnsupportedCombinationError, match=r"Rdp\(\) under OneStep"):
        dm.calibrate_sigma(MECHANISM, 2.0, 1e-5, method=dm.methods.Rdp())


def test_its_profile_is_composed(registered):
    cal = dm.calibrate_sigma(MECHANISM, 2.0, 1e-5)
    profile = dm.profile(MECHANISM, cal.sigma)
    assert 2.0 <= profile.epsilon(1e-5).upper < 2.01
    assert 1e-5 <= profile.delta(2.0).upper < 1.02e-5
    # Two Gaussian releases of the largest column would need more.
    largest = dm.profile(MECHANISM.strategy, cal.sigma, participation=dm.SingleParticipation())
    twice = profile.self_compose(2).epsilon(1e-5).upper
    assert 2.0 < twice < largest.self_compose(2).epsilon(1e-5).lower


def test_a_model_is_trained_under_it(registered, tmp_path):
    """What is applied is what is certified: two neighbours through the real loop, with the same noise."""
    torch = pytest.importorskip("torch")
    from torch.utils.data import TensorDataset

    from tests.support.training import private_run

    cal = dm.calibrate_sigma(MECHANISM, 2.0, 1e-5)
    rng = torch.Generator().manual_seed(0)
    inputs, targets = torch.randn(60, 3, generator=rng), torch.randn(61, 1, generator=rng)

    def linear(model, x, target):
        """A loss whose gradient does not depend on the weights, so that the other examples cancel."""
        return (model(x) * target).sum()

    def weights(alone):
        """After each step, at learning rate 1, with the last example as given."""
        model = torch.nn.Linear(3, 1, bias=False)
        torch.nn.init.zeros_(model.weight)
        data = TensorDataset(torch.cat([inputs, alone]), targets)
        model, optimizer, loader = private_run(
            cal,
            model,
            data,
            lr=1.0,
            clip_norm=1.0,
            loss=linear,
            expected_batch_size=10.0,
            dataset_size=61,
            generator=7,
            rng=3,
        )
        found = [torch.zeros(1, 3)]
        for x, target in loader:
            optimizer.zero_grad()
            model.backward(x, target)
            optimizer.step()
            found.append(next(model.parameters()).detach().clone())
        optimizer.run_record().save(tmp_path / "run.json")
        return torch.stack(found)

    there, absent = weights(torch.tensor([[900.0, 0.0, 0.0]])), weights(torch.zeros(1, 3))
    change = 10.0 * (there - absent).diff(dim=0).reshape(6, 3)
    joined = change.norm(dim=1) > 1e-3
    assert int(joined.sum()) == 1
    # Its gradient is large and clipped to 1, and enters one step.
    assert change[joined].norm() == pytest.approx(1.0, abs=1e-4)
    record = dm.verify(tmp_path / "run.json")
    assert record.undecided
    assert "the participation 'OneStep' is unknown" in record.failures[0]


def test_the_command_line_takes_it(registered, tmp_path, capsys):
    """A certificate, a comparison and a report, by the name that the participation has in plans."""
    from dpmech.cli import main

    def answer(*words):
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        return ended.value.code, capsys.readouterr().out

    plan = ["--dataset-size", 600, "--batch-size", 100, "--epochs", 1, "--eps", 2, "--delta", 1e-5]
    wanted = ["--strategy", "lambda-cgd", "--lam", 0.8, "--sampling", "one-step"]
    path, page = tmp_path / "toy.json", tmp_path / "toy.html"
    code, printed = answer("calibrate", *plan, *wanted, "--out", path)
    assert code == 0
    assert "toy.mean_over_the_step" in printed
    assert dm.Certificate.load(path).sigma == dm.calibrate_sigma(MECHANISM, 2.0, 1e-5).sigma
    code, printed = answer("verify", path)
    assert code == 3
    assert "NOT CHECKED" in printed
    code, printed = answer("show", path)
    assert code == 0
    assert "Draw for every example one of the 6 steps" in printed
    code, printed = answer("report", path, "--out", page)
    assert code == 3
    text = page.read_text(encoding="utf-8")
    assert "NOT CHECKED" in text
    assert "Draw for every example one of the 6 steps" in text
    code, printed = answer("compare", *plan, "--strategies", "bsr", "--sampling", "one-step", "--json")
    assert code == 0
    assert {row["sampling"] for row in json.loads(printed)["strategies"]} == {"one-step"}


@pytest.mark.parametrize("eps", [0.0, 0.3, 1.0])
def test_its_bound_is_one(registered, eps):
    """Against the hockey-stick divergences of the mixture itself, on a grid over two steps."""
    sigma, grid = 0.7, np.linspace(-8.0, 9.0, 1701)
    x, y = np.meshgrid(grid, grid)

    def density(mean_x, mean_y):
        return stats.norm.pdf(x, mean_x, sigma) * stats.norm.pdf(y, mean_y, sigma)

    mixture, absent = 0.5 * (density(1.0, 0.5) + density(0.0, 1.0)), density(0.0, 0.0)
    cell = (grid[1] - grid[0]) ** 2
    truth = max(
        cell * np.maximum(one - math.exp(eps) * other, 0.0).sum()
        for one, other in ((mixture, absent), (absent, mixture))
    )
    bound = dm.delta(dm.Mechanism(dm.LambdaCGD(2, 0.5), OneStep()), sigma, eps).upper
    assert 0.5 * bound < truth < bound


# ---- how it becomes known


def test_it_may_be_added_twice_and_nothing_is_left_of_one_that_is_refused(registered):
    scheme = scheme_of(OneStep())
    assert add_scheme(scheme) is scheme
    before = schemes()

    class Refused(OneStepScheme):
        samplers = {OtherStep: OneStepSampler, dm.Poisson: OneStepSampler}  # noqa: RUF012

    with pytest.raises(dm.InvalidParameterError, match="a name that no registered participation has"):
        add_scheme(Refused())
    assert schemes() == before
    assert OtherStep not in kinds()
    with pytest.raises(dm.InvalidParameterError, match="a Scheme object"):
        add_scheme(OneStepScheme)


def test_an_entry_point_is_found_by_whoever_asks_first(tmp_path):
    """In a process of its own, in which nothing has asked before which participations there are."""
    package, info = tmp_path / "one_step", tmp_path / "one_step-1.0.dist-info"
    package.mkdir()
    info.mkdir()
    (package / "__init__.py").write_text(pathlib.Path(__file__).read_text(encoding="utf-8"), encoding="utf-8")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: one-step\nVersion: 1.0\n", encoding="utf-8")
    point = "[dpmech.schemes]\none-step = one_step:SCHEME\n"
    (info / "entry_points.txt").write_text(point, encoding="utf-8")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import dpmech as dm, one_step;"
        "cal = dm.calibrate_sigma(dm.Identity(6), 2.0, 1e-5, participation=one_step.OneStep());"
        "from dpmech.schemes import schemes, add_scheme; add_scheme(one_step.SCHEME);"
        "print(cal.achieved.upper, one_step.SCHEME in schemes())"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["2.0", "True"]


@dataclasses.dataclass(frozen=True)
class Often(OneStep):
    """Every example may join every step, each accounted for by itself."""

    per_release = True
    plan_name = "often"


def test_a_tracker_takes_one_release_for_no_rule_about_all_of_them():
    scheme = type("OftenScheme", (OneStepScheme,), {"samplers": {Often: OneStepSampler}})()
    add_scheme(scheme)
    try:
        tracker = dm.samplers.ParticipationTracker(Often(), 3, 5)
        for step in range(3):
            tracker.record(step, [1, 2])
        assert tracker.summary() == {"steps": 3}
    finally:
        remove_scheme(scheme)


def test_a_participation_without_sampling_is_one_gaussian_release():
    kind = dataclasses.make_dataclass(
        "Twice",
        [],
        bases=(dm.MinSep,),
        namespace={"plan_name": "twice", "plan_settings": ()},
        frozen=True,
    )
    scheme = add_scheme(FixedOrderScheme([kind]))
    try:
        mechanism = dm.Mechanism(dm.LambdaCGD(6, 0.5), kind(3, 2))
        known = dm.calibrate_sigma(dm.LambdaCGD(6, 0.5), 2.0, 1e-5, participation=dm.MinSep(3, 2))
        assert dm.calibrate_sigma(mechanism, 2.0, 1e-5).sigma == known.sigma
        assert [batch.tolist() for batch in sampler_for(mechanism, 3)][:3] == [[0], [1], [2]]
    finally:
        remove_scheme(scheme)


# ---- what is not registered is refused


def test_only_a_registered_scheme_is_removed():
    other = type("OfPoisson", (type(scheme_of(dm.Poisson(0.1))),), {})()
    with pytest.raises(dm.InvalidParameterError, match="a registered scheme"):
        remove_scheme(other)
    assert scheme_of(dm.Poisson(0.1)) is not other
    bare = type("Bare", (OneStepScheme,), {})()
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(OneStepScheme, "samplers")
        with pytest.raises(dm.InvalidParameterError, match="with samplers"):
            add_scheme(bare)


def test_without_its_lines_it_is_refused():
    assert OneStep not in kinds()
    with pytest.raises(dm.UnsupportedCombinationError, match=r"the participation OneStep\(\)"):
        dm.calibrate_sigma(MECHANISM, 2.0, 1e-5)
    with pytest.raises(dm.UnsupportedCombinationError, match="no sampling scheme has the participation"):
        sampler_for(MECHANISM, 600)
    with pytest.raises(dm.UnsupportedCombinationError, match="is not realised by sequential batches"):
        SequentialSampler(600, OneStep(), 6)
    with pytest.raises(dm.InvalidParameterError, match="participation must be a mapping with type in"):
        dm.Mechanism.from_json(MECHANISM.to_json())
