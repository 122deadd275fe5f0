"""A KeyboardInterrupt at every line of a step, followed by a rerun of the loop: nothing counts twice.

Every release of an interrupted run is checked against two rules: no example adds more than one clipped
gradient to a step, and no row of noise is added to two different sums, not even by a run resumed from an
earlier state. A refusal is always allowed.
"""

import sys

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import dpmech as dm
from dpmech.optim import AdaptiveClip, NoiseStream, PrivateLoader, make_private
from dpmech.optim.runs.batch_optimizer import BatchOptimizer
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
        self.param = torch.nn.Parameter(torch.zeros(SIZE))
        self.sgd = torch.optim.SGD([self.param], lr=0.1)
        clip = AdaptiveClip(1.0, rate=1.0) if adaptive else 1.0
        self.optimizer = BatchOptimizer(self.loader, self.sgd, CAL, clip, SIZE / EPOCH, generator=generator)
        self.optimizer._stream.add_step = self._add_step

    def _add_step(self, sums, clip_norm=None):
        norm = 1.0 if clip_norm is None else clip_norm
        copied = [total.clone() for total in sums]
        assert float(copied[0].max()) <= norm * (1 + 1e-6), "an example adds more than one clipped gradient"
        if len(copied) > 1:
            assert abs(float(copied[1])) <= SIZE / EPOCH / 2, "an example is counted more than once"
        step = self.optimizer.record.steps
        NoiseStream.add_step(self.optimizer._stream, sums, clip_norm)
        self.releases.setdefault(step, []).append(torch.cat([total.double() for total in copied]))

    def state(self):
        state = self.loader.state_dict(), self.optimizer.state_dict(), self.param.detach().clone()
        return state

    def load(self, state):
        loader, optimizer, weights = state
        self.loader.load_state_dict(loader)
        with torch.no_grad():
            self.param.copy_(weights)
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


@pytest.mark.parametrize("when", ["before the step", "in the torch optimizer"])
def test_the_loop_continues_after_an_interrupt(when, monkeypatch):
    """After backward one step ends the batch; an interrupted step leaves no obstacle."""
    model = torch.nn.Linear(3, 1)
    data = TensorDataset(torch.ones(SIZE, 3), torch.zeros(SIZE, 1))
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = make_private(
        model, sgd, DataLoader(data), CAL, loss=torch.nn.MSELoss(), expected_batch_size=SIZE / EPOCH
    )

    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    def loop(interrupted=False):
        for batch in loader:
            model.backward(*batch)
            if interrupted and when == "before the step":
                raise KeyboardInterrupt
            optimizer.step()

    with monkeypatch.context() as patched:
        if when != "before the step":
            patched.setattr(sgd, "step", interrupt)
            patched.setattr(torch.optim.SGD, "step", interrupt)
        with pytest.raises(KeyboardInterrupt):
            loop(interrupted=True)
    if when == "before the step":
        with pytest.raises(
            dm.UnsupportedCombinationError, match=r"after an interrupt optimizer\.step\(\) once"
        ):
            loop()
        optimizer.step()
    while optimizer.steps_left:
        loop()
    assert optimizer.run_record().steps == N
    optimizer.close()
