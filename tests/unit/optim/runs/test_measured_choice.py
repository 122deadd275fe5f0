"""On an accelerator "auto" takes the fastest way to clip: without a trace, and kept by checkpoints."""

import random
import types

import numpy as np
import pytest

import dpmech as dm

torch = pytest.importorskip("torch")
pytest.importorskip("opacus")

from torch import nn  # noqa: E402

from dpmech.optim import load_checkpoint, save_checkpoint  # noqa: E402
from dpmech.optim.clipping import Factored, per_example  # noqa: E402
from dpmech.optim.processes import Slot  # noqa: E402
from dpmech.optim.runs import measured_choice, per_example_model  # noqa: E402
from tests.support.device_runs import WIDTHS, Run, by_loss  # noqa: E402
from tests.support.other_device import _BACKEND, known, other_device  # noqa: E402
from tests.support.quick_cases import slow_but  # noqa: E402

pytestmark = pytest.mark.skipif(not known(), reason="this torch registers no device from Python")

LEAST_SECONDS = measured_choice.least_seconds
# Seconds for every value of a gradient, and for every weight with factors, of examples that are clipped.
SLOW_FACTORS = 0.0, 1.0
SLOW_GRADIENTS = 1.0, 1e-3
CHOICES = {
    "per_example": (SLOW_FACTORS, ("per_example", 1.0)),
    "ghost everywhere": (SLOW_GRADIENTS, ("ghost", 0.25)),
    "as estimated": ((0.0, 0.0), ("ghost", 1.0)),
}


class Clock:
    """Seconds by a formula in place of those of a computer; a factor of None raises OutOfMemoryError."""

    def __init__(self, monkeypatch, rates):
        self.now, self.rates, self.sizes = 0.0, rates, []
        clip_and_sum = per_example.clip_and_sum

        def clipped(samples, blocks):
            dense, factor = self.rates
            factored = [one for one in samples if isinstance(one, Factored)]
            if (factored and factor is None) or (not factored and dense is None):
                raise torch.OutOfMemoryError("CUDA out of memory")
            values = sum(one.numel() for one in samples if isinstance(one, torch.Tensor))
            self.now += (dense or 0.0) * values + (factor or 0.0) * len(factored)
            self.sizes += [len(samples[0])]
            return clip_and_sum(samples, blocks)

        monkeypatch.setattr(per_example, "clip_and_sum", clipped)
        monkeypatch.setattr(measured_choice, "least_seconds", LEAST_SECONDS)
        timer = types.SimpleNamespace(perf_counter=lambda: self.now)
        monkeypatch.setattr(measured_choice, "time", timer)


def chosen(run):
    choice = run.private.clipping_choice
    assert (run.optimizer.clipping_mode, run.optimizer.factor_cost) == (choice.mode, choice.factor_cost)
    return choice.mode, choice.factor_cost


@pytest.fixture
def timed(monkeypatch):
    """Ways are timed on the CPU as on an accelerator, which is faster than to pretend one."""
    monkeypatch.setattr(per_example_model, "is_timed", lambda _: True)


@pytest.mark.parametrize("name", slow_but(CHOICES, 0))
def test_the_fastest_way_is_chosen(name, monkeypatch):
    rates, expected = CHOICES[name]
    with other_device():
        clock = Clock(monkeypatch, rates)
        run = Run(by_loss("auto"), there=True)
        assert chosen(run) == expected
        assert set(clock.sizes) == {4}  # the expected batch
        assert "measured on pretend:0 for 4 examples" in run.private.clipping_choice.reason
        run.close()


@pytest.mark.parametrize("name", CHOICES)
def test_the_fastest_way_trains(name, timed, monkeypatch):
    rates, expected = CHOICES[name]
    Clock(monkeypatch, rates)
    found = []
    for mode in ("auto", "loop"):
        run = Run(by_loss(mode), there=False)
        assert chosen(run) == (expected if mode == "auto" else ("loop", 1.0))
        found.append(run.train().weights())
        run.close()
    torch.testing.assert_close(*found, rtol=0.0, atol=1e-6)


def test_a_choice_needs_a_clear_difference(timed, monkeypatch):
    monkeypatch.setattr(measured_choice, "least_seconds", lambda *_: next(seconds))
    for other, expected in ((0.91, "ghost"), (0.89, "per_example")):
        seconds = iter([1.0, other, 2.0, 2.0])
        run = Run(by_loss("auto"), there=False)
        assert chosen(run) == (expected, 1.0)
        run.close()


@pytest.mark.parametrize("mode", ["per_example", "ghost", "loop"])
def test_a_requested_mode_is_not_timed(mode, timed, monkeypatch):
    clock = Clock(monkeypatch, SLOW_FACTORS)
    run = Run(by_loss(mode), there=False)
    assert chosen(run) == (mode, 1.0)
    assert not clock.sizes
    run.close()


def test_nothing_is_timed_on_the_cpu(monkeypatch):
    clock = Clock(monkeypatch, SLOW_FACTORS)
    run = Run(by_loss("auto"), there=False)
    assert chosen(run) == ("ghost", 1.0)
    assert not clock.sizes
    run.close()


def test_what_needs_too_much_memory_is_ruled_out(timed, monkeypatch):
    for rates, expected in (
        ((1.0, None), ("per_example", 1.0)),
        ((None, 1.0), ("ghost", 1.0)),
        ((None, None), ("ghost", 1.0)),  # nothing is known: as estimated
    ):
        Clock(monkeypatch, rates)
        run = Run(by_loss("auto"), there=False)
        assert chosen(run) == expected
        run.close()


def test_factors_of_other_gradients_are_not_timed(timed, monkeypatch):
    class Doubled(nn.Linear):
        pass

    def doubled(self, x):
        return 2.0 * nn.functional.linear(x, self.weight, self.bias)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(*WIDTHS[:2]), nn.Tanh(), nn.Linear(*WIDTHS[1:]))
    monkeypatch.setattr(nn.Linear, "forward", doubled)
    clock = Clock(monkeypatch, SLOW_GRADIENTS)
    run = Run(by_loss("auto"), there=False, model=model)
    assert chosen(run) == ("per_example", 1.0)
    assert not clock.sizes
    run.close()


class OwnMasks(nn.Module):
    """A layer that drops values by a generator of its own."""

    def __init__(self):
        super().__init__()
        self.own = torch.Generator().manual_seed(1)

    def forward(self, x):
        return 2.0 * x * torch.bernoulli(torch.full_like(x, 0.5), generator=self.own)


@pytest.mark.parametrize("masks", [OwnMasks, nn.Dropout])
def test_ways_that_draw_at_random_are_timed(masks, timed, monkeypatch):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(*WIDTHS[:2]), masks(), nn.Linear(*WIDTHS[1:]))
    Clock(monkeypatch, SLOW_GRADIENTS)
    run = Run(by_loss("auto"), there=False, model=model)
    assert chosen(run) == ("ghost", 0.25)
    run.close()


def test_microbatches_are_those_of_the_run(timed, monkeypatch):
    clock = Clock(monkeypatch, SLOW_FACTORS)
    run = Run(by_loss("auto", max_physical_batch_size=3), there=False)
    assert set(clock.sizes) == {3, 1}
    run.close()


def test_the_microbatch_of_another_mode_is_determined_anew(timed, monkeypatch):
    monkeypatch.setattr(per_example_model, "largest_batch", lambda run, device, most: sizes.append(run) or 2)
    sizes = []
    Clock(monkeypatch, SLOW_FACTORS)
    run = Run(by_loss("auto", max_physical_batch_size="auto"), there=False)
    assert len(sizes) == 2
    assert chosen(run) == ("per_example", 1.0)
    run.close()


RESUMED = [(saved, later) for saved in CHOICES for later in (SLOW_FACTORS, SLOW_GRADIENTS)]
OPPOSITE = [("per_example", SLOW_GRADIENTS), ("ghost everywhere", SLOW_FACTORS)]


@pytest.mark.parametrize(("saved", "later"), slow_but(RESUMED, *map(RESUMED.index, OPPOSITE)))
def test_a_resumed_run_keeps_the_choice(saved, later, timed, monkeypatch, tmp_path):
    rates, expected = CHOICES[saved]
    Clock(monkeypatch, rates)
    first = Run(by_loss("auto"), there=False)
    save_checkpoint(tmp_path / "before.pt", first.private, first.optimizer, first.loader)
    first.train(3)
    save_checkpoint(tmp_path / "after.pt", first.private, first.optimizer, first.loader)
    whole = first.train(5).weights()
    first.close()
    Clock(monkeypatch, later)
    for name, left in (("before", 8), ("after", 5)):
        second = Run(by_loss("auto", generator=None, rng=None), there=False)
        load_checkpoint(tmp_path / f"{name}.pt", second.private, second.optimizer, second.loader)
        assert torch.equal(second.train(left).weights(), whole)
        assert chosen(second) == expected
        second.close()


@pytest.mark.parametrize("resumed", [False, True])
def test_factors_that_fail_under_autocast_are_given_up(resumed, timed, monkeypatch, tmp_path):
    def forward(self, x):
        doubled = 2.0 if torch.is_autocast_enabled("cpu") else 1.0
        return doubled * nn.functional.linear(x, self.weight, self.bias)

    monkeypatch.setattr(nn.Linear, "forward", forward)
    Clock(monkeypatch, SLOW_GRADIENTS)
    run = Run(by_loss("auto"), there=False)
    assert chosen(run) == ("ghost", 0.25)
    if resumed:
        save_checkpoint(tmp_path / "run.pt", run.private, run.optimizer, run.loader)
        run.close()
        Clock(monkeypatch, SLOW_FACTORS)
        run = Run(by_loss("auto", generator=None, rng=None), there=False)
        assert chosen(run) == ("per_example", 1.0)
        load_checkpoint(tmp_path / "run.pt", run.private, run.optimizer, run.loader)
    with torch.autocast("cpu", torch.bfloat16):
        run.train(2)
    assert chosen(run) == ("per_example", 1.0)
    assert "not determined" in run.private.clipping_choice.reason
    save_checkpoint(tmp_path / "later.pt", run.private, run.optimizer, run.loader)
    run.close()
    again = Run(by_loss("auto", generator=None, rng=None), there=False)
    load_checkpoint(tmp_path / "later.pt", again.private, again.optimizer, again.loader)
    with torch.autocast("cpu", torch.bfloat16):
        again.train(1)
    assert chosen(again) == ("per_example", 1.0)
    again.close()


def test_a_choice_from_times_is_kept_under_autocast(timed, monkeypatch):
    Clock(monkeypatch, SLOW_GRADIENTS)
    run = Run(by_loss("auto"), there=False)
    with torch.autocast("cpu", torch.bfloat16):
        run.train(2)
    assert chosen(run) == ("ghost", 0.25)
    assert "measured on cpu" in run.private.clipping_choice.reason
    run.close()


def test_states_of_before_have_estimated_costs(timed, monkeypatch):
    Clock(monkeypatch, SLOW_GRADIENTS)
    run = Run(by_loss("auto"), there=False)
    state = run.optimizer.state_dict()
    assert state.pop("dpmech_factor_cost") == 0.25
    batches = run.loader.state_dict()
    run.close()
    second = Run(by_loss("auto", generator=None, rng=None), there=False)
    second.loader.load_state_dict(batches)
    second.optimizer.load_state_dict(state, any_weights=True)
    second.train(1)
    assert chosen(second) == ("ghost", 1.0)
    second.close()


class Kept(nn.Module):
    """Draws random numbers, counts its calls, and keeps what it saw."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(*WIDTHS[:2]), nn.Linear(*WIDTHS[1:])
        self.dropout = nn.Dropout(0.5)
        self.register_buffer("scale", torch.ones(1))
        self.calls, self.seen = 0, []

    def forward(self, x):
        self.calls += 1
        self.seen.append(x)
        random.random()
        np.random.random()  # noqa: NPY002 - global on purpose
        return self.last(self.dropout(torch.tanh(self.first(x)))) * self.scale


def state_after_set_up(monkeypatch, *, timed, there):
    """What make_private leaves behind, and the number of examples that were clipped meanwhile."""
    clock = Clock(monkeypatch, (0.0, 0.0))
    monkeypatch.setattr(per_example_model, "is_timed", lambda _: timed)
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002 - global on purpose
    torch.manual_seed(1)
    model = Kept()
    run = Run(by_loss("auto"), there=there, model=model)
    clipped = sum(clock.sizes)
    state = {
        "random": random.getstate(),
        "numpy": str(np.random.get_state()),  # noqa: NPY002 - the same
        "torch": torch.get_rng_state().tolist(),
        "device": _BACKEND.generator.get_state().tolist() if there else None,
        "attributes": (model.calls, len(model.seen), model.training),
        "buffers": [one.cpu().tolist() for one in model.buffers()],
        "gradients": [param.grad for param in model.parameters()],
        "samples": [hasattr(param, "grad_sample") for param in model.parameters()],
        "hooks": [(len(one._forward_hooks), len(one._forward_pre_hooks)) for one in model.modules()],
        "weights": run.weights().tolist(),
        "versions": [param._version for param in model.parameters()],
        "optimizer": sorted(run.optimizer.state),
        "later": run.train(2).weights().tolist(),
    }
    run.close()
    return state, clipped


@pytest.mark.parametrize("there", slow_but([False, True], 0))
def test_timing_leaves_no_trace(there, monkeypatch):
    """Everything is as after a set-up in which nothing is timed."""
    with other_device():
        plain, none = state_after_set_up(monkeypatch, timed=False, there=there)
        state, clipped = state_after_set_up(monkeypatch, timed=True, there=there)
    assert none == 0 < clipped
    assert state == plain


def test_no_value_of_the_data_is_used(timed, monkeypatch):
    """The gradients that are timed are those of other numbers than the examples have."""
    met = []
    samples = per_example.ExampleGradients.samples

    def recorded(self, batch, tensors):
        met.extend(one.cpu() for one in [*tensors, *batch.tensors])
        return samples(self, batch, tensors)

    monkeypatch.setattr(per_example.ExampleGradients, "samples", recorded)
    Clock(monkeypatch, (0.0, 0.0))
    before = per_example_model.PerExampleModel.measure

    def measured(*given):
        met.clear()
        before(*given)

    monkeypatch.setattr(per_example_model.PerExampleModel, "measure", measured)
    monkeypatch.setattr("tests.support.device_runs.classification", constant)
    run = Run(by_loss("auto"), there=False)
    assert len(met) > 8
    assert not any(bool((one == 7).any()) for one in met)
    met.clear()
    run.train(1)
    assert any(bool((one == 7).any()) for one in met)
    run.close()


def constant(size, width):
    return torch.utils.data.TensorDataset(
        torch.full((size, width), 7.0), torch.zeros(size, dtype=torch.int64)
    )


@pytest.mark.parametrize("name", slow_but(CHOICES, 1))
def test_a_step_still_waits_once(name, monkeypatch):
    monkeypatch.setattr(Slot, "forms_on", property(lambda slot: slot.device))  # as on CUDA
    rates, expected = CHOICES[name]
    with other_device() as waits:
        Clock(monkeypatch, rates)
        run = Run(by_loss("auto"), there=True).train(2)
        assert chosen(run) == expected
        for batch in run.batches(3):
            waits.clear()
            run.step(*batch)
            assert len(waits.reads) == 1, waits.reads
        run.close()


def test_the_least_time_of_a_few_calls_counts(monkeypatch):
    """The first call is not counted, and what is hopeless is not repeated."""
    now, calls = [0.0], []
    timer = types.SimpleNamespace(perf_counter=lambda: now[0])
    monkeypatch.setattr(measured_choice, "time", timer)

    def run():
        now[0] += [9.0, 4.0, 3.0, 5.0][len(calls)]
        calls.append("run")

    def begin():
        now[0] += 100.0

    here = torch.device("cpu")
    assert LEAST_SECONDS(run, here, 2.0, begin) == 3.0
    assert len(calls) == 4
    calls.clear()
    assert LEAST_SECONDS(run, here, 1.0, begin) == 4.0
    assert len(calls) == 2


def test_processes_of_other_ways_keep_the_estimates(timed, monkeypatch):
    """Another process found another way exact: no time decides."""
    asked = []

    def gathered(what, value, group):
        asked.append(what)
        return [value, value[:1]]

    monkeypatch.setattr(per_example_model, "gathered", gathered)
    clock = Clock(monkeypatch, SLOW_FACTORS)
    run = Run(by_loss("auto"), there=False)
    assert asked == ["the ways of clipping"]
    assert chosen(run) == ("ghost", 1.0)
    assert not clock.sizes
    run.close()


def test_a_checkpoint_of_another_mode_than_requested_is_refused(timed, monkeypatch):
    Clock(monkeypatch, SLOW_GRADIENTS)
    run = Run(by_loss("auto"), there=False)
    second = Run(by_loss("loop", generator=None, rng=None), there=False)
    second.loader.load_state_dict(run.loader.state_dict())
    with pytest.raises(dm.exceptions.CertificateError, match="clipping_mode 'ghost', here it is 'loop'"):
        second.optimizer.load_state_dict(run.optimizer.state_dict())
    for one in (run, second):
        one.close()
