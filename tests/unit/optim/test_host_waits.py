"""A step waits for its device once, and what it learns so late still stops it before anything is released."""

from types import SimpleNamespace

import pytest

import dpmech as dm

torch = pytest.importorskip("torch")
pytest.importorskip("opacus")

from torch import nn  # noqa: E402

from dpmech.optim import ClippedSum, FlatClipping, Muon, NonFiniteGradientsWarning, PrivateOptimizer  # noqa: E402
from dpmech.optim.clipping.clipped_sum import clip_and_sum  # noqa: E402
from dpmech.optim.processes import Slot  # noqa: E402
from tests.support.device_runs import BATCH, MODES, RULE, SETUPS, WIDTHS, Run, by_hooks, by_loss  # noqa: E402
from tests.support.other_device import known, other_device  # noqa: E402
from tests.support.quick_cases import slow_but  # noqa: E402
from tests.support.training import classifier  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:Full backward hook"),
    pytest.mark.filterwarnings("ignore::dpmech.optim.NonFiniteGradientsWarning"),
]
# Eigenvalues are found with waits: torch checks that they converged.
WAITING = {"rule: denoiser"}
QUICK = ["mode: ghost", "mode: ghost microbatches", "clipping: adaptive", "NaN"]
COUNTED = [name for name in SETUPS if name not in WAITING]
# Calls of the model that are tried for mixed examples are compared at once (one batch in 64, on average).
TRIALS = ("mixing.py", "same_draws.py", "containers.py")


def outside(notes, *files):
    return [one for one in notes if not any(file in one for file in files)]


@pytest.fixture
def queued(monkeypatch):
    """Defer what is read on the CPU too."""
    monkeypatch.setattr("dpmech.optim.deferred._AT_ONCE", frozenset())


@pytest.mark.skipif(not known(), reason="this torch registers no device from Python")
@pytest.mark.parametrize("name", slow_but(COUNTED, *map(COUNTED.index, QUICK)))
def test_a_step_waits_once(name, monkeypatch):
    monkeypatch.setattr(Slot, "forms_on", property(lambda slot: slot.device))  # as on CUDA
    with other_device() as waits:
        run = Run(SETUPS[name], there=True).train(2)  # the first batch chooses modes, which is compared
        reads, steps = [], run.optimizer.record.steps
        for batch in run.batches(3):
            waits.clear()
            run.step(*batch)
            reads += outside(waits.reads, *TRIALS)
            # Normal numbers of the CPU are copied; those of a GPU are drawn there.
            assert not outside(waits.uploads, *TRIALS, "optim/noise/")
            if run.optimizer.record.steps > steps:  # else the batch has more microbatches
                assert len(reads) == 1, reads
                reads, steps = [], run.optimizer.record.steps
        run.close()


@pytest.mark.skipif(not known(), reason="this torch registers no device from Python")
def test_probes_of_muon_wait_for_nothing(monkeypatch):
    # torch's generators are of CPUs and of real devices only.
    on_cpu = SimpleNamespace(**vars(torch) | {"Generator": lambda device: torch.Generator()})
    monkeypatch.setattr("dpmech.optim.rules.muon.torch", on_cpu)
    rule = {"rule": lambda params: Muon(params, lr=0.01, probes=2, probe_seed=1)}
    setup = SETUPS["noise: identity"] | rule
    here = Run(setup, there=False).train(2)
    here.close()
    with other_device() as waits:
        there = Run(setup, there=True).train(2)
        uploads = [one for one in waits.uploads if "rules/muon" in one or "optim/deferred" in one]
        weights = there.weights()
        there.close()
    assert not uploads
    torch.testing.assert_close(weights, here.weights(), rtol=0.0, atol=0.0)


def finished(name):
    run = Run(SETUPS[name], there=False).train()
    run.close()
    return run


# The keys of ciphers cannot be repeated.
REPEATED = [name for name in COUNTED if not name.startswith("generator: secure")]


@pytest.mark.parametrize("name", slow_but(REPEATED, *map(REPEATED.index, QUICK)))
def test_what_is_read_late_changes_no_result(name, monkeypatch):
    plain = finished(name)
    monkeypatch.setattr("dpmech.optim.deferred._AT_ONCE", frozenset())
    late = finished(name)
    exact = "NaN" not in name  # rows of zeros are added there
    torch.testing.assert_close(late.weights(), plain.weights(), rtol=0.0, atol=0.0 if exact else 1e-6)
    assert late.optimizer.clip_norm == plain.optimizer.clip_norm
    assert late.optimizer.dropped_examples == plain.optimizer.dropped_examples


class Alone:
    """A PrivateOptimizer of two parameters without a loader."""

    def __init__(self, **options):
        self.params = [nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(2))]
        cal = options.pop("cal", dm.calibrate_sigma(dm.Identity(5), 8.0, 1e-5))
        sgd = torch.optim.SGD(self.params, lr=0.1)
        self.optimizer = PrivateOptimizer(sgd, cal, expected_batch_size=4, **{"generator": 1} | options)

    def give(self, value=1.0):
        for param in self.params:
            param.grad_sample = torch.full((4, *param.shape), value)

    def refuses(self, error, match):
        """A step is refused, and so is the next: nothing was released."""
        for _ in range(2):
            with pytest.raises(error, match=match):
                self.optimizer.step()
        assert self.optimizer.record.steps == 0
        assert not any(bool(param.any()) for param in self.params)


@pytest.mark.parametrize("value", [10.0, float("nan"), float("inf")])
def test_a_sum_that_was_not_clipped_stops_the_step(queued, value):
    one = Alone()
    sums = [torch.full((3,), value), torch.zeros(2)]
    counts = {name: torch.tensor(0.0) for name in ("dropped", "below", "above")}
    given = ClippedSum(one.params, sums, FlatClipping(1.0), examples=4, **counts)
    assert given.is_unread
    one.optimizer.accumulate(given)
    one.refuses(dm.NumericalError, "more than possible|not finite")


def test_counts_that_cannot_be_stop_the_step(queued):
    one = Alone()
    sums = [torch.zeros(3), torch.zeros(2)]
    counts = {"dropped": torch.tensor(1.0), "below": torch.tensor(4.0), "above": torch.tensor(0.0)}
    one.optimizer.accumulate(ClippedSum(one.params, sums, FlatClipping(1.0), examples=4, **counts))
    one.refuses(dm.InvalidParameterError, r"below must be an integer in \[0, 3\], got 4")


def test_numbers_are_checked_at_once(queued):
    one = Alone()
    with pytest.raises(dm.NumericalError, match="more than possible"):
        ClippedSum(one.params, [torch.full((3,), 10.0), None], FlatClipping(1.0), examples=4)


def test_a_gradient_without_examples_stops_the_step(queued):
    one = Alone()
    one.params[0].grad_sample = torch.ones(4, 3)
    one.params[1].grad = torch.ones(2)
    one.optimizer.accumulate()
    one.params[1].grad = None  # too late: it was there when the batch was taken
    one.refuses(dm.UnsupportedCombinationError, "parameter 1, of shape .2,., has a gradient but no")


def test_zeros_without_examples_are_no_gradient(queued):
    one = Alone()
    one.params[0].grad_sample = torch.ones(4, 3)
    one.params[1].grad = torch.zeros(2)
    one.optimizer.step()
    assert one.optimizer.record.steps == 1


def test_a_discarded_batch_takes_its_checks_with_it(queued):
    one = Alone()
    sums = [torch.full((3,), 10.0), None]
    counts = {name: torch.tensor(float(name == "dropped")) for name in ("dropped", "below", "above")}
    one.optimizer.accumulate(ClippedSum(one.params, sums, FlatClipping(1.0), examples=4, **counts))
    with pytest.warns(NonFiniteGradientsWarning):
        one.optimizer.zero_grad()
    assert one.optimizer.dropped_examples == 1
    one.give()
    one.optimizer.step()
    assert one.optimizer.record.steps == 1


def test_dropped_examples_are_counted_when_asked_for(queued):
    one = Alone()
    one.give(float("nan"))
    one.optimizer.accumulate()
    with pytest.warns(NonFiniteGradientsWarning, match="4 examples"):
        assert one.optimizer.dropped_examples == 4


def test_a_run_on_nothing_but_nan_is_refused(queued):
    one = Alone()
    for _ in range(8):
        one.give(float("nan"))
        one.optimizer.accumulate()
    one.refuses(dm.NumericalError, "train on noise alone")


def test_a_state_in_the_middle_of_a_batch_has_its_count(monkeypatch):
    """The count of examples below the clip norm is read late too, and the next clip norm depends on it."""
    norms = []
    for devices in ({"cpu"}, set()):
        monkeypatch.setattr("dpmech.optim.deferred._AT_ONCE", frozenset(devices))
        first = Alone(clip_norm=RULE)
        first.give(0.01)
        first.optimizer.accumulate()
        state = first.optimizer.state_dict()
        first.optimizer.close()
        second = Alone(clip_norm=RULE, generator=None)
        second.optimizer.load_state_dict(state)
        second.optimizer.step()
        norms.append(second.optimizer.clip_norm)
        second.optimizer.close()
    assert norms[0] == norms[1]
    # Without the four small gradients the norm would fall less.
    none = Alone(clip_norm=RULE)
    none.optimizer.step()
    none.optimizer.close()
    assert none.optimizer.clip_norm > norms[0]


class Remembers(nn.Module):
    """Writes what it sees into a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(WIDTHS[1]))
        self.on = False

    def forward(self, x):
        if self.on:
            self.seen.data = x.detach().reshape(-1, WIDTHS[1])[0].clone()
        return torch.tanh(x)


@pytest.mark.parametrize("late", [False, True])
def test_data_in_a_buffer_stops_the_step(late, monkeypatch):
    if late:
        monkeypatch.setattr("dpmech.optim.deferred._AT_ONCE", frozenset())
    middle = Remembers()
    run = Run(by_loss("loop"), there=False, model=classifier(middle, widths=WIDTHS)).train(2)
    before = run.weights()
    middle.on = True
    with pytest.raises(dm.UnsupportedCombinationError, match=r"changed its buffers 1\.seen"):
        run.train(1)
    assert run.optimizer.record.steps == 2
    assert torch.equal(run.weights(), before)
    run.close()


@pytest.mark.parametrize("late", [False, True])
def test_changed_weights_stop_the_step_and_may_be_put_back(late, monkeypatch):
    if late:
        monkeypatch.setattr("dpmech.optim.deferred._AT_ONCE", frozenset())
    run = Run(by_loss("per_example"), there=False).train(2)
    (batch,) = [next(iter(run.batches(1)))]
    run.backward(*batch)
    weight = run.model[0].weight
    before = weight.detach().clone()
    with torch.no_grad():
        weight.add_(1.0)
    with pytest.raises(dm.UnsupportedCombinationError, match=r"trained parameters 0\.weight changed"):
        run.optimizer.step()
    assert run.optimizer.record.steps == 2
    with torch.no_grad():
        weight.copy_(before)
    run.optimizer.step()
    assert run.optimizer.record.steps == 3
    run.close()


class Tied(nn.Module):
    """A weight that is also used outside its layer, from some step on."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(WIDTHS[0], 2, bias=False)
        self.on = False

    def forward(self, x):
        out = self.layer(x)
        return out + 0.5 * x @ self.layer.weight.T if self.on else out


@pytest.mark.parametrize("size", [None, BATCH // 2])
@pytest.mark.parametrize("mode", ["per_example", "ghost"])
@pytest.mark.parametrize("late", [False, True])
def test_a_use_that_hooks_do_not_see_stops_the_step(late, mode, size, monkeypatch):
    if late:
        monkeypatch.setattr("dpmech.optim.deferred._AT_ONCE", frozenset())
    model = Tied()
    run = Run(by_hooks(mode, max_physical_batch_size=size), there=False, model=model).train(2)
    before = run.weights()
    model.on = True
    with pytest.raises(dm.UnsupportedCombinationError, match="do not add up to that of the batch"):
        run.train(1)
    assert run.optimizer.record.steps == 2
    assert torch.equal(run.weights(), before)
    run.close()


class Penalised(nn.Module):
    """Adds a function of its first weight to the loss, from some step on."""

    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(*WIDTHS[:2]), nn.Linear(*WIDTHS[1:])
        self.kind = kind
        self.on = False

    def forward(self, x):
        out, weight = self.last(torch.tanh(self.first(x))), self.first.weight
        if not self.on:
            return out, 0.0
        return out, 0.1 * (weight if self.kind == "constant" else x @ weight.T).square().sum()


def penalised(model, x, target):
    out, penalty = model(x)
    return nn.functional.cross_entropy(out, target) + penalty


@pytest.mark.parametrize("kind", ["of the example", "constant"])
def test_other_uses_may_begin_at_any_step(kind, monkeypatch):
    """Under ghost clipping the host looks for their gradients; late, it asks the graph."""
    found = []
    for devices in ({"cpu"}, set()):
        monkeypatch.setattr("dpmech.optim.deferred._AT_ONCE", frozenset(devices))
        for on in (False, True):
            model = Penalised(kind)
            run = Run(by_loss("ghost", loss=penalised), there=False, model=model).train(2)
            model.on = on
            found.append(run.train(2).weights())
            assert run.optimizer.clipping_mode == "ghost"
            run.close()
    torch.testing.assert_close(found[:2], found[2:], rtol=0.0, atol=0.0)
    assert not torch.equal(found[0], found[1])


def test_examples_that_are_left_out_may_have_any_values(queued):
    """Zeros in their place, also where a factor of an infinite gradient is not a number."""
    bad = [float("nan"), float("inf"), -float("inf"), 3e38]
    rows = torch.randn(8, 5, generator=torch.Generator().manual_seed(0))
    for place, value in enumerate(bad):
        rows[place, place] = value
    blocks = FlatClipping(1.0).blocks([None])
    (found,), _, dropped, *_ = clip_and_sum([rows], blocks)
    good = rows[4:].double()
    expected = (good / good.norm(dim=1, keepdim=True).clamp(min=1.0)).sum(0)
    assert int(dropped) in {3, 4}  # the square of the last one overflows or not
    if int(dropped) == 3:
        expected[3] += 1.0
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_modes_cover_every_way_to_train():
    assert {"per_example", "ghost", "loop", "hooks", "ghost hooks"} <= set(MODES)
