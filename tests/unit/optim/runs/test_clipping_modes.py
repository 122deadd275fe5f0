"""make_private with clipping_mode: the choice, refusals, and that both loops train alike."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset

import dpmech as dm
from dpmech.optim import load_checkpoint, make_private, save_checkpoint
from dpmech.optim.runs.clipping_choice import ClippingChoice
from tests.support.training import private_run, weights

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing")
F = nn.functional
CAL = dm.calibrate_sigma(dm.Identity(6), 8.0, 1e-5)


def network(seed=1):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(20, 80), nn.Tanh(), nn.Linear(80, 5))


def data(size=12):
    rng = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(size, 20, generator=rng), torch.randint(5, (size,), generator=rng))


def loss(model, x, y):
    return F.cross_entropy(model(x), y)


def run(mode, *, by_loss=True, model=None, steps=None, keep=None, **options):
    model = network() if model is None else model
    loader = DataLoader(data(), batch_size=4)
    options = {"generator": 1, "loss": loss if by_loss else None, "clipping_mode": mode} | options
    parts = private_run(CAL, model, loader, **options)
    if keep is not None:
        keep(parts)
    advance(parts, by_loss=by_loss, steps=steps)
    return parts


def advance(parts, *, by_loss=True, steps=None):
    model, optimizer, loader = parts
    while optimizer.steps_left and optimizer.record.steps != steps:
        for x, y in loader:
            if by_loss:
                model.backward(x, y)
            else:
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
            optimizer.step()
            if optimizer.record.steps == steps:
                break


@pytest.mark.parametrize("most", [None, 3])
@pytest.mark.parametrize("by_loss", [True, False])
@pytest.mark.parametrize("mode", ["ghost", "auto"])
def test_modes_train_alike(mode, by_loss, most):
    expected = weights(run("per_example")[0])
    model, optimizer, _ = run(mode, by_loss=by_loss, max_physical_batch_size=most)
    assert optimizer.clipping_mode == "ghost"
    torch.testing.assert_close(weights(model), expected, rtol=1e-5, atol=1e-6)
    assert dm.verify(optimizer.run_record()).ok


def test_the_choice_is_said():
    model, optimizer, _ = run("auto", steps=0)
    assert optimizer.clipping_mode == model.clipping_choice.mode == "ghost"
    assert "2085 of 2085 weights" in str(model.clipping_choice)
    small, optimizer, _ = run("auto", model=nn.Linear(20, 5), steps=0)
    assert optimizer.clipping_mode == "per_example"
    assert "under 1024" in str(small.clipping_choice)
    assert run("per_example", steps=0)[0].clipping_choice.reason == "as requested"


class Regularised(nn.Module):
    """Uses a weight outside its layer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(20, 80)
        self.head = nn.Linear(80, 5)

    def forward(self, x):
        return self.head(torch.tanh(self.layer(x))) + self.layer.weight.square().sum()


class TiedByHand(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(20, 80)
        self.head = nn.Linear(20, 5)

    def forward(self, x):
        return self.head(F.linear(torch.tanh(self.layer(x)), self.layer.weight.T))


def squares(model, x, y):
    del y
    return model(x).square().sum()


@pytest.mark.parametrize("mode", ["ghost", "auto"])
@pytest.mark.parametrize("kind", [Regularised, TiedByHand])
def test_weights_used_outside_their_layers(kind, mode):
    """The factors of a layer do not include that use: its gradients are formed, and clipped with the rest."""
    torch.manual_seed(2)
    first = kind()
    expected = weights(run("per_example", model=copy.deepcopy(first), loss=squares)[0])
    model, optimizer, _ = run(mode, model=first, loss=squares)
    assert optimizer.clipping_mode == "ghost"
    torch.testing.assert_close(weights(model), expected, rtol=1e-5, atol=1e-6)


def doubled(layer, x):
    return F.linear(x, 2.0 * layer.weight, layer.bias)


def test_layers_that_compute_something_else_are_detected(monkeypatch):
    monkeypatch.setattr(nn.Linear, "forward", doubled)
    with pytest.raises(
        dm.UnsupportedCombinationError, match=r"gradients of 0\.weight, 2\.weight are not det"
    ):
        run("ghost", steps=0)
    model, optimizer, _ = run("auto")
    assert optimizer.clipping_mode == "per_example"
    assert "are not determined" in model.clipping_choice.reason


FROM, OTHER_FROM = 1e5, 2e5


def other_layer(layer, x):
    """Doubles its weight for large inputs."""
    return F.linear(x, (1.0 + (x.amax() > OTHER_FROM)) * layer.weight, layer.bias)


def only_of_large_inputs(model, x, y):
    return loss(model, x, y) * (x.amax() > FROM)


def first_of(value, mode):
    x, y = data().tensors
    x = x.clone()
    x[0] = value
    loader = DataLoader(TensorDataset(x, y), batch_size=4)
    return private_run(
        CAL, network(), loader, generator=1, loss=only_of_large_inputs, clipping_mode=mode,
        loss_takes="batch_of_one",
    )[1].clipping_mode  # fmt: skip


def test_the_mode_does_not_depend_on_the_gradients_of_an_example(monkeypatch):
    monkeypatch.setattr(nn.Linear, "forward", other_layer)
    assert {first_of(value, "auto") for value in (1.5e5, 3e5)} == {"per_example"}
    with pytest.raises(
        dm.UnsupportedCombinationError, match=r"factors of gradients could be compared .*'per_example' or 'a"
    ):
        first_of(1.5e5, "ghost")


def test_other_examples_are_tried_where_fractions_have_no_gradient():
    """As targets with equal labels do, or inputs below a threshold."""

    def ranked(model, x, y):
        del y
        return F.relu(-x).sum() * model(x).sum()

    assert run("auto", loss=ranked, steps=0)[1].clipping_mode == "ghost"


# ---- gradients that begin later


class Late(nn.Module):
    """Starts a use in a forward pass after `begins` steps."""

    def __init__(self, what, begins=2):
        super().__init__()
        torch.manual_seed(2)
        self.layer, self.head, self.more = nn.Linear(20, 80), nn.Linear(80, 5), nn.Linear(80, 80)
        self.dropout = nn.Dropout(0.5)
        self.what, self.begins, self.steps = what, begins, 0

    def forward(self, x):
        z = self.dropout(torch.tanh(self.layer(x)))
        if self.steps < self.begins:
            return self.head(z)
        if self.what == "a layer":
            return self.head(torch.tanh(self.more(z)))
        # Also if an example has no other gradient, and a gradient that all examples share.
        return self.head(z) + getattr(self, self.what).weight.square().sum()


def late(mode, what, *, keep=None, resume=None, by_loss=True, cal=CAL):
    model = Late(what)
    private, optimizer, loader = private_run(
        cal,
        model,
        DataLoader(data(), batch_size=4),
        generator=1,
        loss=squares if by_loss else None,
        clipping_mode=mode,
    )
    if resume is not None:
        load_checkpoint(resume, private, optimizer, loader)
    while optimizer.steps_left:
        for x, _ in loader:
            model.steps = optimizer.record.steps
            torch.manual_seed(model.steps)
            if by_loss:
                private.backward(x, x)
            else:
                private(x).square().sum(dim=1).mean().backward()
            optimizer.step()
            if keep is not None and optimizer.record.steps == 2:
                save_checkpoint(keep, private, optimizer, loader)
    return weights(private)


@pytest.mark.parametrize("mode", ["ghost", "auto"])
@pytest.mark.parametrize("what", ["layer", "head", "a layer"])
def test_gradients_that_begin_later_are_clipped_with_the_rest(what, mode, tmp_path):
    expected = late("per_example", what)
    found = late(mode, what, keep=tmp_path / "run.pt")
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    # A resumed run plans the layers when the uses have already begun.
    assert torch.equal(late(mode, what, resume=tmp_path / "run.pt"), found)


@pytest.mark.parametrize("mode", ["ghost", "per_example"])
def test_under_hooks_later_uses_are_refused_or_clipped(mode):
    assert bool(torch.isfinite(late(mode, "a layer", by_loss=False)).all())
    # One of four parameters at a time: 300 batches miss it once in 10^37 runs.
    cal = dm.calibrate_sigma(dm.Identity(300), 8.0, 1e-5)
    with pytest.raises(dm.UnsupportedCombinationError, match=r"of head\.weight do not add up"):
        late(mode, "head", by_loss=False, cal=cal)


def penalised(private, model, x, names):
    own = dict(model.named_parameters())
    return private(x).square().mean() + sum(own[name].square().sum() for name in names)


@pytest.mark.parametrize("names", [["0.weight", "0.bias", "2.weight", "2.bias"], ["2.bias"]])
def test_a_regularizer_that_begins_later_is_refused(names):
    """Immediately if every parameter has it, else soon: parameters are compared in random order."""
    cal = dm.calibrate_sigma(dm.Identity(600), 8.0, 1e-5)
    model = network()
    private, optimizer, loader = private_run(cal, model, DataLoader(data(), batch_size=4), generator=1)

    def go_on():
        while optimizer.steps_left:
            for x, _ in loader:
                penalised(private, model, x, names if optimizer.record.steps > 2 else []).backward()
                optimizer.step()

    with pytest.raises(dm.UnsupportedCombinationError, match=rf"of .*{names[-1]} do not add up"):
        go_on()
    # As above.
    assert optimizer.record.steps == 3 if len(names) == 4 else 3 <= optimizer.record.steps < 303


def roundings(size, *, loss, autocast):
    """The sum of clipped gradients of equal examples in half precision."""
    model = nn.Linear(4, 1, bias=False)
    nn.init.zeros_(model.weight)
    model = model if autocast else model.bfloat16()
    dtype = model.weight.dtype
    alike = TensorDataset(torch.ones(size, 4, dtype=dtype), torch.full((size, 1), 1.2, dtype=dtype))
    clip_norm = 2 * 2 * 1.21  # just above the norm of each
    cal = dm.calibrate_sigma(dm.Identity(2), 8.0, 1e-5, adjacency=dm.Adjacency.ZERO_OUT)
    loader = DataLoader(alike, batch_size=size)
    private, optimizer, loader = private_run(cal, model, loader, clip_norm=clip_norm, loss=loss)
    x, y = next(iter(loader))
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        if loss is None:
            F.mse_loss(private(x), y).backward()
        else:
            private.backward(x, y)
        optimizer.accumulate()
    return optimizer._batch.take()[0] / clip_norm


@pytest.mark.parametrize("autocast", [False, True])
def test_one_example_changes_no_rounding_of_others(autocast):
    """A mean over 968 examples, rounded to bfloat16 and multiplied, is not that over 967: 11 clip norms."""
    by_loss = [roundings(size, loss=nn.MSELoss(), autocast=autocast) for size in (968, 967)]
    assert 0.9 < float((by_loss[0] - by_loss[1]).norm()) <= 1.0
    with pytest.raises(dm.UnsupportedCombinationError, match="divided by the number of examples"):
        roundings(968, loss=None, autocast=autocast)


@pytest.mark.parametrize("clear", [None, True, False])
def test_leftover_gradients_are_not_part_of_the_next_batch(clear):
    expected = weights(run("auto", by_loss=False)[0])
    private, optimizer, loader = run("auto", by_loss=False, steps=0)
    for param in private.parameters():
        param.grad = torch.ones_like(param) if clear is None else None
    optimizer._intake.note_own()
    while optimizer.steps_left:
        for x, y in loader:
            if clear is not None:
                optimizer.zero_grad(set_to_none=clear)
            F.cross_entropy(private(x), y).backward()
            optimizer.step()
            assert all(param.grad is not None for param in private.parameters())
    torch.testing.assert_close(weights(private), expected, rtol=0.0, atol=0.0)


def test_a_loss_that_uses_weights_of_others():
    teacher = network(seed=5)  # its parameters require gradients, and are not trained

    def distilled(own, x, y):
        return loss(own, x, y) + (own(x) - teacher(x)).square().sum()

    for mode in ("ghost", "per_example", "loop"):
        assert run(mode, loss=distilled, steps=1)[1].clipping_mode == mode


class Penalised:
    """A loss that uses a trained weight outside the model it gets, from a call on: that of a later batch."""

    def __init__(self, model):
        self.model, self.begun = model, False

    def __call__(self, own, x, y):
        return loss(own, x, y) + (0.1 * self.model[0].weight.square().sum() if self.begun else 0.0)


def begun_after_two_steps(mode):
    model = network()
    penalised = Penalised(model)
    parts = run(mode, model=model, loss=penalised, steps=2)
    penalised.begun = True
    return parts


def test_a_loss_that_bypasses_its_model_is_refused_with_factors():
    parts = begun_after_two_steps("ghost")
    with pytest.raises(dm.UnsupportedCombinationError, match=r"the loss uses 0\.weight outside the model"):
        advance(parts)
    assert parts[1].clipping_mode == "ghost"


@pytest.mark.parametrize("asked", ["auto", "per_example"])
def test_what_vmap_cannot_follow_later_changes_no_mode(asked, caplog):
    """When it begins may follow from the data, and the mode stands in the record of the run."""
    parts = begun_after_two_steps(asked)
    with pytest.raises(dm.UnsupportedCombinationError, match=r"outside the model .* clipping_mode='loop'"):
        advance(parts)
    assert parts[1].clipping_mode == parts[0].clipping_choice.mode == ("ghost" if asked == "auto" else asked)
    assert caplog.records == []
    expected = begun_after_two_steps("loop")
    advance(expected)  # the way out


class Branching(nn.Linear):
    """Takes another path for large inputs."""

    def __init__(self):
        super().__init__(20, 5)

    def forward(self, x):
        return super().forward(-x if float(x.sum()) > 0 else x)


def branching():
    torch.manual_seed(3)
    return Branching()


def test_a_resumed_run_repeats_the_choice_of_a_loop(tmp_path, caplog):
    expected = run("auto", model=branching())
    assert [record.name for record in caplog.records] == ["dpmech.optim"]  # one line, once
    assert "'loop' was chosen, which computes gradients one example at a time: the model br" in caplog.text
    parts = run("auto", model=branching(), steps=2)
    save_checkpoint(tmp_path / "run.pt", *parts)
    again = run("auto", model=branching(), steps=0)
    load_checkpoint(tmp_path / "run.pt", *again)
    advance(again)
    assert again[1].clipping_mode == "loop"
    assert torch.equal(weights(again[0]), weights(expected[0]))


def test_a_loop_of_the_checkpoint_is_taken_up(tmp_path):
    """Whatever is chosen here: sums would round otherwise."""
    parts = run("loop", steps=2)
    save_checkpoint(tmp_path / "run.pt", *parts)
    advance(parts)
    again = run("auto", steps=0)
    assert again[1].clipping_mode == "ghost"
    load_checkpoint(tmp_path / "run.pt", *again)
    advance(again)
    assert again[0].clipping_choice == ClippingChoice("loop", "as in the checkpoint")
    assert torch.equal(weights(again[0]), weights(parts[0]))


@pytest.mark.parametrize("asked", ["auto", "per_example", "ghost"])
def test_other_errors_under_vmap_are_raised_as_they_are(asked):
    def fails(model, x, y):
        if torch._C._functorch.is_functorch_wrapped_tensor(x):
            raise ArithmeticError("the sum is 12.5")
        return loss(model, x, y)

    parts = run("loop", loss=fails, steps=1)  # alone it works
    assert parts[1].clipping_mode == "loop"
    with pytest.raises(ArithmeticError, match=r"the sum is 12\.5"):
        run(asked, loss=fails, steps=1)


def read(model, x, y):
    return loss(model, x, y) * (1.0 + sum(y.tolist()))


def repeated(model, x, y):
    """Of a length that depends on the data: vmap follows one example, and fails on several."""
    times = (x[0] > 0.6).long() + y[0]
    return loss(model, x, y) + 0.1 * torch.repeat_interleave(model(x).mean(), times.sum()).sum()


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (read, "reads the memory of a tensor"),
        (repeated, "tensors whose shapes depend on the data"),
    ],
)
def test_a_loop_is_chosen_for_what_vmap_cannot_follow(kind, why):
    model, optimizer, _ = run("auto", loss=kind)
    assert optimizer.clipping_mode == "loop"
    assert why in model.clipping_choice.reason
    assert f"in {kind.__name__}: " in model.clipping_choice.reason or kind is repeated
    torch.testing.assert_close(weights(model), weights(run("loop", loss=kind)[0]), rtol=0.0, atol=0.0)


def test_reasons_hold_no_text_of_other_errors(monkeypatch, caplog):
    def fails(layer, given, gradient):
        raise ArithmeticError(f"the inputs are {given}")

    monkeypatch.setattr("dpmech.optim.clipping.per_example.factors_of", fails)
    model, optimizer, _ = run("auto", steps=1)
    assert optimizer.clipping_mode == "per_example"
    assert "factors fail: ArithmeticError (" in model.clipping_choice.reason
    assert "in fails" in model.clipping_choice.reason
    assert "the inputs are tensor" not in model.clipping_choice.reason + caplog.text


@pytest.mark.parametrize("first", [0.0, 1.0, float("nan")])
def test_the_choice_does_not_depend_on_the_first_example(first, monkeypatch):
    """Gradients of zeros would show no difference, and those of no number either."""
    monkeypatch.setattr(nn.Linear, "forward", doubled)
    inputs = data().tensors[0].clone()
    inputs[0] = first
    loader = DataLoader(TensorDataset(inputs, data().tensors[1]), batch_size=4)
    model, optimizer, _ = private_run(CAL, network(), loader, generator=1, loss=loss)
    assert "are not determined" in model.clipping_choice.reason
    assert optimizer.clipping_mode == "per_example"


def test_an_error_of_the_loss_itself_changes_no_mode(caplog):
    parts = run("auto", steps=2)
    x, y = next(iter(parts[2]))
    with pytest.raises(RuntimeError, match=r"index 10. is out of bounds"):
        parts[0].backward(x, y + 100)
    assert (parts[1].clipping_mode, caplog.records) == ("ghost", [])
    parts[0].backward(x, y)
    parts[1].step()


def test_a_loop_needs_a_loss():
    with pytest.raises(dm.UnsupportedCombinationError, match=r"'loop' without a loss.*loss=\.\.\."):
        run("loop", by_loss=False)


@pytest.mark.parametrize("by_loss", [True, False])
def test_parameters_that_are_unfrozen_later_are_refused(by_loss):
    model = network()
    model[0].requires_grad_(False)
    private, optimizer, loader = make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        DataLoader(data(), batch_size=4),
        CAL,
        loss=loss if by_loss else None,
        generator=1,
        dataset_size=12,
    )
    parts = private, optimizer, loader
    advance(parts, by_loss=by_loss, steps=2)
    model[0].requires_grad_(True)
    with pytest.raises(dm.UnsupportedCombinationError, match=r"frozen parameter 0, .* (now|received)"):
        advance(parts, by_loss=by_loss)
    optimizer.close()


@pytest.mark.parametrize("kind", [Regularised, TiedByHand])
def test_hooks_add_only_clipped_gradients(kind):
    """Opacus' loop misses such a use, in norm and sum: no example contributes more than its norm.

    Opacus' own second backward pass would add it unclipped, which the last lines show.
    """
    from opacus.grad_sample import GradSampleModuleFastGradientClipping

    torch.manual_seed(2)
    model = kind()
    theirs = GradSampleModuleFastGradientClipping(copy.deepcopy(model), max_grad_norm=1e-3)
    private, optimizer, loader = private_run(
        CAL, model, DataLoader(data(1), batch_size=1), generator=1, clipping_mode="ghost", clip_norm=1e-3
    )
    x, _ = next(iter(loader))
    optimizer.zero_grad()
    private(x).square().sum(dim=1).mean().backward()
    optimizer._names = None  # without the comparison of the next test
    optimizer.accumulate()
    total = torch.cat([one.flatten() for one in optimizer._batch.take()])
    assert float(total.norm()) <= 1e-3
    each = theirs(x).square().sum(dim=1)
    each.mean().backward(retain_graph=True)
    factors = theirs.get_clipping_coef()
    theirs.zero_grad(set_to_none=True)
    theirs.disable_hooks()
    (factors * each).sum().backward()
    added = torch.cat([param.grad.flatten() for param in theirs.parameters()])
    assert float(added.norm()) > 1.05e-3


@pytest.mark.parametrize("mode", ["ghost", "per_example"])
@pytest.mark.parametrize("kind", [Regularised, TiedByHand])
def test_hooks_that_miss_a_use_are_detected_at_the_first_batch(kind, mode):
    private, optimizer, loader = run(mode, by_loss=False, model=kind(), steps=0)
    x, _ = next(iter(loader))
    optimizer.zero_grad()
    private(x).square().sum(dim=1).mean().backward()
    with pytest.raises(dm.UnsupportedCombinationError, match=r"of layer\.weight do not add up"):
        optimizer.step()


def test_parameters_that_a_batch_does_not_use_keep_no_norm_of_the_one_before():
    """Opacus keeps the norms of a layer until the next batch; here they belong to one batch."""

    class Sometimes(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(20, 80)
            self.second = nn.Linear(80, 80)
            self.head = nn.Linear(80, 5)
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            z = torch.tanh(self.first(x))
            return self.head(self.second(z) if self.calls % 2 else z)

    private, optimizer, loader = private_run(
        CAL, Sometimes(), DataLoader(data(), batch_size=4), generator=1, clipping_mode="ghost", clip_norm=1e-3
    )
    plain = Sometimes()
    for number, (x, y) in enumerate(loader):
        plain.load_state_dict(private._module.state_dict())
        optimizer.zero_grad()
        F.cross_entropy(private(x), y).backward()
        optimizer.accumulate()
        found = [one.clone() for one in optimizer._batch._sums if one is not None]
        expected = [torch.zeros_like(param, dtype=torch.float64) for param in plain.parameters()]
        for one, target in zip(x, y, strict=True):
            plain.calls = number
            grads = torch.autograd.grad(
                F.cross_entropy(plain(one[None]), target[None]), list(plain.parameters()), allow_unused=True
            )
            norm = torch.stack([g.double().square().sum() for g in grads if g is not None]).sum().sqrt()
            for total, grad in zip(expected, grads, strict=True):
                if grad is not None:
                    total.add_(1e-3 * (1.0 - 2.0**-14) / norm * grad.double())
        used = [one for one in expected if bool(one.any())]
        for one, other in zip(found, used, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-9)
        optimizer.step()


def test_bad_modes():
    with pytest.raises(dm.InvalidParameterError, match="clipping_mode"):
        run("fast")
    from opacus.grad_sample import GradSampleModule

    with pytest.raises(dm.UnsupportedCombinationError, match="the module itself with clipping_mode='ghost'"):
        run("ghost", by_loss=False, model=GradSampleModule(network()))
    assert run("auto", by_loss=False, model=GradSampleModule(network()))[1].clipping_mode == "per_example"


@pytest.mark.parametrize("by_loss", [True, False])
def test_checkpoints_keep_the_mode(by_loss, tmp_path):
    expected = weights(run("ghost", by_loss=by_loss)[0])
    parts = run("ghost", by_loss=by_loss, steps=2)
    save_checkpoint(tmp_path / "run.pt", *parts)
    again = run("auto", by_loss=by_loss, steps=0)
    load_checkpoint(tmp_path / "run.pt", *again)
    advance(again, by_loss=by_loss)
    assert torch.equal(weights(again[0]), expected)
    other = run("per_example", by_loss=by_loss, steps=0)
    with pytest.raises(
        dm.exceptions.CertificateError, match="clipping_mode 'ghost', here it is 'per_example'"
    ):
        load_checkpoint(tmp_path / "run.pt", *other)


@pytest.mark.parametrize("by_loss", [True, False])
def test_batches_without_examples(by_loss):
    cal = dm.calibrate_sigma(dm.Identity(12), 8.0, 1e-5, participation=dm.Poisson(1e-6))
    model, optimizer, loader = private_run(
        cal,
        nn.Sequential(
            nn.Conv1d(1, 8, 3), nn.GroupNorm(2, 8), nn.Flatten(), nn.Linear(144, 60), nn.Linear(60, 5)
        ),
        TensorDataset(*(one[:, None] if one.ndim == 2 else one for one in data().tensors)),
        generator=1,
        loss=loss if by_loss else None,
        clipping_mode="ghost",
    )
    while optimizer.steps_left:
        for x, y in loader:
            if by_loss:
                assert model.backward(x, y, return_loss=True).isnan()
            else:
                F.cross_entropy(model(x), y).backward()
            optimizer.step()
    assert bool(torch.isfinite(weights(model)).all())


# ---- the largest microbatch


def test_the_largest_physical_batch_is_determined(monkeypatch, tmp_path):
    from dpmech.optim.runs import per_example_model as physical_batch

    expected = weights(run("ghost")[0])
    _, _, loader = run("ghost", max_physical_batch_size="auto", steps=0)
    # Twice the expected size: from public numbers, as it is reported and sums round by it.
    assert loader.physical_batch_size == 2 * loader.sampler.expected_batch_size
    # An example needs a few kB here: inputs and output gradients of the layers, in float64 too.
    monkeypatch.setattr(physical_batch, "free_memory", lambda _: 50_000)
    parts = run("ghost", max_physical_batch_size="auto", steps=2)
    found = parts[2].physical_batch_size
    assert found in {1, 2, 4, 8}
    save_checkpoint(tmp_path / "run.pt", *parts)
    advance(parts)
    torch.testing.assert_close(weights(parts[0]), expected, rtol=1e-6, atol=1e-7)
    monkeypatch.setattr(physical_batch, "free_memory", lambda _: 10**9)
    again = run("ghost", max_physical_batch_size="auto", steps=0)
    load_checkpoint(tmp_path / "run.pt", *again)
    assert again[2].physical_batch_size == found  # sums round as before
    advance(again)
    assert torch.equal(weights(again[0]), weights(parts[0]))
    with pytest.raises(dm.InvalidParameterError, match="with loss="):
        run("auto", by_loss=False, max_physical_batch_size="auto")


def test_memory_is_measured_where_it_is_used():
    from dpmech.optim.runs.per_example_model import free_memory, largest_batch, memory_of

    here = torch.device("cpu")
    assert 4e6 <= memory_of(lambda: torch.zeros(1_000_000) + 1, here) <= 9e6
    assert free_memory(here) > 0
    sizes = []

    def few(count):
        sizes.append(count)
        return torch.zeros(count, 1000)

    assert largest_batch(few, here, 10**4) == 10**4
    assert sizes[0] == 2


def test_no_state_before_the_physical_batch_is_determined(tmp_path):
    def two_arguments(model, x):
        return model(x).square().sum()

    # The loop passes a part of the batch to the loss, so that nothing is known before it does.
    parts = run("auto", loss=two_arguments, max_physical_batch_size="auto", model=Unfit(), steps=0)
    with pytest.raises(dm.UnsupportedCombinationError, match="before the microbatch size was determined"):
        save_checkpoint(tmp_path / "run.pt", *parts)
    x, _ = next(iter(parts[2]))
    parts[0].backward(x)
    parts[1].step()
    save_checkpoint(tmp_path / "run.pt", *parts)


class Unfit(nn.Linear):
    """A layer with one input."""

    def __init__(self):
        super().__init__(20, 5)


def test_a_refused_set_up_may_be_tried_again(monkeypatch):
    monkeypatch.setattr(nn.Linear, "forward", doubled)
    model = TiedByHand()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(data(), batch_size=4)
    options = {"loss": squares, "generator": 1, "dataset_size": len(loader.dataset)}
    with pytest.raises(dm.UnsupportedCombinationError) as caught:
        make_private(model, sgd, loader, CAL, clipping_mode="ghost", **options)
    private, optimizer, batches = make_private(model, sgd, loader, CAL, **options)
    private.backward(*next(iter(batches)))
    optimizer.step()
    with pytest.raises(dm.UnsupportedCombinationError, match="stepped directly"):
        sgd.step()
    del caught


@pytest.mark.parametrize("shape", [(5, 40, 30), (3, 7), (4,), (1, 1), (2, 0, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_gradients_are_compared_in_little_memory(shape, dtype, monkeypatch):
    """Under hooks the first batch compares all its gradients, which are not copied to float64 as a whole."""
    from dpmech.optim.runs import adding_up

    monkeypatch.setattr(adding_up, "_AT_ONCE", 100, raising=False)
    largest = []

    class Wide(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            found = func(*args, **(kwargs or {}))
            if isinstance(found, torch.Tensor) and found.dtype == torch.float64:
                largest.append(found.numel())
            return found

    sample = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)
    grad = torch.ones(shape[1:], dtype=dtype)
    with Wide():
        read = adding_up._Measured(
            [adding_up._Pair("weight", grad, sample)],
            [adding_up._Pair("other", grad, 2 * sample)],
        ).values.tolist()
    if dtype != torch.float64 and sample.numel() > 100:
        assert max(largest) < sample.numel()
    rows = sample.double().numpy().reshape(len(sample), -1)
    norm = np.sqrt((rows**2).sum(1)).mean()
    expected = [np.sqrt(((rows.mean(0) - 1.0) ** 2).sum()), norm, 2 * norm]
    np.testing.assert_allclose(read, expected, rtol=1e-12)
