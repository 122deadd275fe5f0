"""A KeyboardInterrupt at every line of a step, followed by a rerun of the loop: nothing counts twice.

Every release of an interrupted run is checked against two rules: no example adds more than one clipped
gradient to a step, and no row of noise is added to two different sums, not even by a run resumed from an
earlier state. A refusal is always allowed.
"""

import pathlib
import sys
import tempfile

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import dpmech as dm
from dpmech.optim import AdaptiveClip, NoiseStream, PrivateLoader, make_private
from dpmech.optim.runs.batch_optimizer import BatchOptimizer
from dpmech.optim.runs.unchanged import Unchanged
from dpmech.samplers import sampler_for
from tests.support.quick_cases import slow_but

SIZE, N, EPOCH = 8, 4, 2
CAL = dm.calibrate_sigma(dm.LambdaCGD(N, 0.5), 8.0, 1e-5, participation=dm.MinSep(EPOCH))
WATCHED = (
    "optim/runs/batch_optimizer.py",
    "optim/runs/loader.py",
    "optim/runs/loader.py",
    "optim/private_optimizer.py",
    "optim/private_optimizer.py",
    "optim/clipping/clipped_sum.py",
    "optim/clipping/factored.py",
    "optim/noise/stream.py",
    "optim/private_optimizer.py",
    "samplers/tracker.py",
)


class Interrupt:
    """Counts lines of the watched files between `on` and `off`, and interrupts one of them."""

    def __init__(self, line=None):
        self.left, self.seen, self.place = line, 0, None
        self.first = {}  # by source line, the time of its first execution
        self._before = sys.gettrace()  # a coverage measurement, which continues afterwards

    def on(self):
        if self.place is None:
            sys.settrace(self._entered)

    def off(self):
        sys.settrace(self._before)

    def _entered(self, frame, event, arg):
        return self._line if frame.f_code.co_filename.endswith(WATCHED) else None

    def _line(self, frame, event, arg):
        if event == "line":
            if self.seen == self.left and self.place is None:
                self.place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                self.off()
                raise KeyboardInterrupt
            self.first.setdefault((frame.f_code.co_filename, frame.f_lineno), self.seen)
            self.seen += 1
        return self._line


class Run:
    """A run in which example i has the gradient 10 e_i, which is clipped."""

    def __init__(self, releases, *, adaptive, physical, generator=None, rng=None):
        self.releases = releases
        data = TensorDataset(10.0 * torch.eye(SIZE))
        sampler = sampler_for(CAL, SIZE, rng=rng)
        self.loader = PrivateLoader(DataLoader(data), sampler, max_physical_batch_size=physical)
        self.model = torch.nn.ParameterList([torch.zeros(SIZE)])
        self.param = self.model[0]
        self.sgd = torch.optim.SGD([self.param], lr=0.1)
        clip = AdaptiveClip(1.0, rate=1.0) if adaptive else 1.0
        self.optimizer = BatchOptimizer(
            self.loader,
            self.sgd,
            CAL,
            clip,
            SIZE / EPOCH,
            dataset_size=None,
            unchanged=Unchanged(self.model, [self.param]),
            generator=generator,
        )
        self.optimizer._stream.mean_step = self._mean_step

    def _mean_step(self, sums, divisors, clip_norm=None):
        norm = 1.0 if clip_norm is None else clip_norm
        copied = [total.clone() for total in sums]
        assert float(copied[0].max()) <= norm * (1 + 1e-6), "an example adds more than one clipped gradient"
        if len(copied) > 1:
            assert abs(float(copied[1])) <= SIZE / EPOCH / 2, "an example is counted more than once"
        step = self.optimizer.record.steps
        means = NoiseStream.mean_step(self.optimizer._stream, sums, divisors, clip_norm)
        self.releases.setdefault(step, []).append(torch.cat([total.double() for total in copied]))
        return means

    def state(self):
        state = self.loader.state_dict(), self.optimizer.state_dict(), self.param.detach().clone()
        return state

    def load(self, state):
        loader, optimizer, weights = state
        self.loader.load_state_dict(loader)
        self.model.load_state_dict({"0": weights})
        self.optimizer.load_state_dict(optimizer)

    def loop(self, interrupt=None):
        while self.optimizer.steps_left:
            for (rows,) in self.loader:
                self.optimizer.zero_grad()
                if interrupt is not None and self.loader.steps_taken == 1:
                    interrupt.on()
                self.param.grad_sample = rows.clone()
                self.optimizer.accumulate()
                self.optimizer.step()
                if interrupt is not None and self.loader.steps_taken == 3:
                    interrupt.off()

    def go_on(self, how):
        """The actions of a user who stopped a notebook: rerun the cell, or first end the step."""
        try:
            if how == "step":
                self.optimizer.step()
            self.loop()
        except dm.DpmechError:
            pass
        finally:
            self.optimizer.close()


def interrupted(line, how, *, saved, **options):
    """Interrupts a run at a line, continues, and lets another run repeat it; returns the place, or None."""
    releases = {}
    run = Run(releases, **options, generator=1, rng=2)
    state = run.state() if saved else None
    interrupt = Interrupt(line)
    try:
        run.loop(interrupt)
    except KeyboardInterrupt:
        run.go_on(how)
    finally:
        interrupt.off()
        run.optimizer.close()
    if saved:
        again = Run(releases, **options)
        again.load(state)
        again.loop()
        again.optimizer.close()
        assert sorted(releases) == list(range(N))
    for step, sums in releases.items():
        assert len(sums) <= (2 if saved else 1), f"row {step} was used twice by one run ({interrupt.place})"
        assert all(torch.equal(one, sums[0]) for one in sums), (
            f"row {step} was added to two sums ({interrupt.place})"
        )
    return interrupt.place


def lines(**options):
    """The time at which every line is first executed."""
    counting = Interrupt()
    run = Run({}, **options, generator=1, rng=2)
    run.loop(counting)
    run.optimizer.close()
    counting.off()
    return list(counting.first.values())


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("how", "saved", "adaptive", "physical"),
    [
        ("again", False, True, None),
        ("step", False, False, 3),
        ("again", True, False, 3),
        ("again", True, True, None),
        ("step", True, True, None),
    ],
)
def test_an_interrupt_at_any_line(how, saved, adaptive, physical):
    options = {"adaptive": adaptive, "physical": physical}
    found = lines(**options)
    places = [interrupted(line, how, saved=saved, **options) for line in found]
    assert len(set(places)) == len(found) > 200
    assert {name for name in WATCHED if any(name in place for place in places)} == set(WATCHED)


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("adaptive", slow_but([False, True], 1))
def test_an_interrupt_at_some_lines(saved, adaptive):
    options = {"adaptive": adaptive, "physical": None}
    for line in lines(**options)[::20]:
        assert interrupted(line, "again", saved=saved, **options) is not None


def test_an_interrupted_load_repeats_no_row():
    """Half of a state must not step: its rows belong to the weights, batches and norms of all of it."""
    options = {"adaptive": True, "physical": None}
    releases = {}
    run = Run(releases, **options, generator=1, rng=2)
    for (rows,) in run.loader:
        run.param.grad_sample = rows.clone()
        run.optimizer.step()
    state = run.state()
    run.loop()
    run.optimizer.close()
    whole = {step: list(sums) for step, sums in releases.items()}
    for line in range(0, 10_000, 7):
        again = Run(releases, **options)
        interrupt = Interrupt(line)
        try:
            interrupt.on()
            again.load(state)
        except KeyboardInterrupt:
            again.go_on("again")
        finally:
            interrupt.off()
            again.optimizer.close()
        for step, sums in whole.items():
            fresh = again.optimizer._stream.fingerprint() != run.optimizer._stream.fingerprint()
            assert fresh or all(torch.equal(one, sums[0]) for one in releases[step]), interrupt.place
        releases = {step: list(sums) for step, sums in whole.items()}
        if interrupt.place is None:
            break
    assert line > 100


def test_a_warning_that_raises_adds_nothing_twice(monkeypatch):
    """As if `warnings.showwarning` was replaced by a function that fails."""

    def fails(dropped):
        raise RuntimeError("no place to write to")

    releases = {}
    run = Run(releases, adaptive=False, physical=None, generator=1, rng=2)
    (rows,) = next(iter(run.loader))
    monkeypatch.setattr("dpmech.optim.clipping.clipped_sum.warn_operator", fails)
    run.param.grad_sample = rows.clone()
    run.param.grad_sample[0] *= float("nan")
    with pytest.raises(RuntimeError, match="no place"):
        run.optimizer.accumulate()
    run.param.grad_sample = rows.clone()
    run.optimizer.accumulate()
    run.optimizer.step()
    assert float(releases[0][0].max()) == pytest.approx(1.0, abs=1e-3)
    run.optimizer.close()


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)

    def forward(self, inputs):
        hidden = torch.dropout(torch.tanh(self.first(inputs)), 0.2, train=self.training)
        NOW[0].reach("in the forward pass")
        return self.last(hidden)


class Points:
    """Places in a loop, one of which interrupts in the second batch, once."""

    def __init__(self, wanted=None):
        self.wanted, self.step = wanted, 0
        # What a model and its code hold is put back after an error, but not this.
        self.once = pathlib.Path(tempfile.mkdtemp()) / "not interrupted yet"
        self.once.touch()

    def reach(self, place):
        if place == self.wanted and self.step == 1 and self.once.exists():
            self.once.unlink()
            raise KeyboardInterrupt


NOW = [Points()]


class Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, points, outputs):
        ctx.points = points
        return outputs.clone()

    @staticmethod
    def backward(ctx, grads):
        ctx.points.reach("in the backward pass")
        return None, grads


class Sgd(torch.optim.SGD):
    """A torch optimizer that may be interrupted in its step."""

    points = Points()

    def step(self, closure=None):
        self.points.reach("in the torch optimizer")
        return super().step(closure)


PLACES = ("before the backward pass", "in the forward pass", "after the forward pass", "in the backward pass",
          "after the backward pass", "in the torch optimizer", "after the step")  # fmt: skip


def trained(place, *, hooks, physical, saved=False):
    """Run the loop until it is interrupted, and again as from the cell above; weights, record, interrupts."""
    points = Points(place)
    NOW[:] = [points]
    model = Net()
    sgd = Sgd(model.parameters(), lr=0.1)
    sgd.points = points
    data = TensorDataset(torch.arange(3.0 * SIZE).reshape(SIZE, 3) / 10, torch.ones(SIZE, 1))
    private, optimizer, loader = make_private(
        model, sgd, DataLoader(data), CAL, loss=None if hooks else torch.nn.MSELoss(), generator=1, rng=2,
        expected_batch_size=SIZE / EPOCH, max_physical_batch_size=physical,
    )  # fmt: skip
    if saved:
        optimizer.state_dict()

    def loop():
        while optimizer.steps_left:
            for inputs, targets in loader:
                points.step = optimizer.record.steps
                optimizer.zero_grad()
                points.reach("before the backward pass")
                if hooks:
                    outputs = Backward.apply(points, private(inputs))
                    points.reach("after the forward pass")
                    torch.nn.functional.mse_loss(outputs, targets).backward()
                else:
                    private.backward(inputs, targets)
                points.reach("after the backward pass")
                optimizer.step()
                points.reach("after the step")

    try:
        loop()
    except KeyboardInterrupt:
        loop()
    record = optimizer.run_record()
    optimizer.close()
    weights = torch.cat([param.detach().flatten() for param in model.parameters()])
    return weights, record, not points.once.exists()


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("hooks", [False, True])
@pytest.mark.parametrize("physical", [None, 3])
@pytest.mark.parametrize("place", PLACES)
def test_the_loop_runs_again_from_the_cell_above(place, physical, hooks):
    """The batch of the interrupt is returned again, with the same examples, dropout and noise."""
    expected, whole, _ = trained(None, hooks=hooks, physical=physical)
    lost = place == "in the torch optimizer"  # its update is: batch and noise are spent
    if lost:
        with pytest.raises(dm.UnsupportedCombinationError, match="a new run that resumes from the newest"):
            trained(place, hooks=hooks, physical=physical, saved=True)
    found, record, hits = trained(place, hooks=hooks, physical=physical, saved=not lost)
    within = place in ("after the forward pass", "in the backward pass")  # of a user's own loss
    assert hits != (within and not hooks)
    assert record.steps == whole.steps == N
    assert record.executed == whole.executed
    if lost:
        assert not torch.equal(found, expected)
    else:
        torch.testing.assert_close(found, expected, rtol=0.0, atol=0.0)


def loop(parts, *, hooks, most):
    model, optimizer, loader = parts
    while optimizer.record.steps < most:
        for inputs, targets in loader:
            optimizer.zero_grad()
            if hooks:
                torch.nn.functional.mse_loss(model(inputs), targets).backward()
            else:
                model.backward(inputs, targets)
            optimizer.step()
            if optimizer.record.steps == most:
                break


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("same_optimizer", [False, True])
def test_a_model_is_made_private_again_once_the_first_run_is_closed(first, second, same_optimizer):
    """With Opacus' hooks (True) or a loss, and with the torch optimizer of the first run or another."""
    data = TensorDataset(torch.arange(3.0 * SIZE).reshape(SIZE, 3) / 10, torch.ones(SIZE, 1))

    def private(model, sgd, hooks, seed):
        return make_private(
            model, sgd, DataLoader(data), CAL, loss=None if hooks else torch.nn.MSELoss(),
            expected_batch_size=SIZE / EPOCH, generator=seed, rng=seed + 1,
        )  # fmt: skip

    def made():
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1))
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    model, sgd = made()
    parts = private(model, sgd, first, 1)
    loop(parts, hooks=first, most=2)
    wanted = "already has Opacus' hooks" if first else "made private already"
    with pytest.raises(dm.DpmechError, match=wanted):
        private(model, sgd, second, 3)
    parts[1].close()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    again = private(model, sgd if same_optimizer else torch.optim.SGD(model.parameters(), lr=0.1), second, 3)
    loop(again, hooks=second, most=N)
    assert again[1].run_record().steps == N
    again[1].close()
    # As a model that knows of no earlier run.
    fresh, other = made()
    fresh.load_state_dict(weights)
    alone = private(fresh, other, second, 3)
    loop(alone, hooks=second, most=N)
    alone[1].close()
    for name, value in fresh.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=0.0, atol=0.0)
    with pytest.raises(dm.DpmechError):
        parts[1].step()
