"""Common mistakes by which one example could change the sum by more than the clip norm, each refused."""

import numpy as np
import pytest
import torch

import dpmech as dm

pytest.importorskip("opacus")

from torch import nn
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    StackDataset,
    Subset,
    TensorDataset,
    random_split,
)

from dpmech.optim import (
    CanaryData,
    ClippedSum,
    FlatClipping,
    PrivateOptimizer,
    clipped_gradients,
    load_checkpoint,
    make_private,
    save_checkpoint,
)
from tests.support.training import linear, private_run, regression, squared_error

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing")

SIZE, N = 24, 6
CAL = dm.calibrate_sigma(dm.Identity(N), 8.0, 1e-5, participation=dm.FixedEpochs(2))  # batches of 8
mse = nn.functional.mse_loss


def dataset(*shape, size=SIZE):
    return regression(size, *shape)


def made(model=None, loader=None, *, cal=CAL, **options):
    model = linear() if model is None else model
    options = {"generator": 1, "rng": 2} | options
    return private_run(cal, model, dataset(3) if loader is None else loader, **options)


def step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()
    mse(model(x), y).backward()
    optimizer.step()


# ---- rows that are not examples


class SequenceFirst(nn.Module):
    """(batch, time, 3) in and out, time first inside, so that Opacus treats the rows of time as examples."""

    def __init__(self):
        super().__init__()
        self.inner = linear()

    def forward(self, x):
        return self.inner(x.transpose(0, 1)).transpose(0, 1)


@pytest.mark.parametrize("times", [1, 5])
def test_time_steps_are_not_examples(times):
    model, optimizer, loader = made(SequenceFirst(), DataLoader(dataset(times, 3)))
    with pytest.raises(dm.UnsupportedCombinationError, match=f"called with {times} and {times} rows"):
        step(model, optimizer, next(iter(loader)))


def test_halves_of_a_batch_in_one_backward_pass():
    model, optimizer, loader = made()
    x, y = next(iter(loader))
    (mse(model(x[:4]), y[:4]) + mse(model(x[4:]), y[4:])).backward()
    with pytest.raises(dm.UnsupportedCombinationError, match="fewer gradients than the batch has examples"):
        optimizer.step()
    assert optimizer.record.steps == 0


def test_a_second_call_of_the_model_on_a_part_of_the_batch():
    """There are as many rows as examples, but one example contributes to two of them."""
    model, optimizer, loader = made()
    x, y = next(iter(loader))
    chosen = torch.tensor([2, 5])
    (mse(model(x), y) + mse(model(x[chosen]), y[chosen])).backward()
    with pytest.raises(dm.UnsupportedCombinationError, match="called 2 times on one batch"):
        optimizer.step()


def test_calls_without_gradients_are_free():
    model, optimizer, loader = made()
    for x, y in loader:
        with torch.no_grad():
            model(x)
        step(model, optimizer, (x, y))
    assert optimizer.record.steps == 3


@pytest.mark.parametrize("functional", [True, False])
def test_examples_packed_by_a_collate_function(functional):
    def packed(examples):
        rows = torch.stack([x for x, _ in examples])
        return rows.view(-1, 2, 3).sum(1), torch.zeros(len(rows) // 2, 1)

    loader = DataLoader(dataset(3), collate_fn=packed)
    model, optimizer, loader = made(loader=loader, loss=squared_error if functional else None)
    batch = next(iter(loader))
    if functional:
        model.backward(*batch)
    else:
        mse(model(batch[0]), batch[1]).backward()
    with pytest.raises(dm.UnsupportedCombinationError, match="fewer gradients than the batch has examples"):
        optimizer.step()


def test_padding_and_left_out_examples_have_weight_zero():
    def padded(examples):
        rows = torch.stack([x for x, _ in examples])
        return torch.cat([rows, torch.zeros(3, 3)]), torch.zeros(len(rows) + 3, 1)

    model, optimizer, loader = made(loader=DataLoader(dataset(3), collate_fn=padded), loss=squared_error)
    batches = iter(loader)
    weights = torch.ones(11)
    weights[8:] = 0.0
    model.backward(*next(batches), weights=weights)
    optimizer.step()
    weights[2] = 0.0  # an example as well
    model.backward(*next(batches), weights=weights)
    optimizer.step()
    with pytest.raises(dm.UnsupportedCombinationError, match="more examples than the batch holds"):
        model.backward(*next(batches))
    assert optimizer.record.steps == 2


def test_gaps_of_a_dataset_are_no_examples():
    data = CanaryData(dataset(3), 24, target=torch.zeros(1), rng=4)
    torch.manual_seed(0)
    model = nn.Linear(data.width, 1, bias=False)
    model, optimizer, loader = made(model, DataLoader(data), loss=squared_error)
    handed = []
    for x, y in loader:
        handed.append(loader.progress.handed)
        assert len(x) == handed[-1]
        model.backward(x, y)
        optimizer.step()
    assert sum(handed) == 24 + int(data.included.sum()) < 48


@pytest.mark.parametrize("gaps", [(), (1, 3, 5, 7)])
def test_a_dataset_that_returns_too_many_examples(gaps):
    """Also if gaps make up for them: every row would be clipped separately."""

    class Double(TensorDataset):
        def __getitems__(self, indices):
            return [self[i] for i in indices if i % 8 not in gaps for _ in range(2)]

    _, _, loader = made(loader=DataLoader(Double(*dataset(3).tensors)))
    with pytest.raises(dm.UnsupportedCombinationError, match="more examples than were requested"):
        next(iter(loader))


@pytest.mark.parametrize(
    "build",
    [
        lambda: ConcatDataset([TWICE, TWICE]),
        lambda: Subset(TWICE, [0, 1, 2, 1]),
        lambda: Subset(ConcatDataset([TWICE, TWICE]), range(24)),
        lambda: ConcatDataset([TWICE, Subset(TWICE, range(12))]),
        lambda: ConcatDataset([Subset(TWICE, range(12)), Subset(TWICE, range(11, -1, -1))]),
        lambda: Subset(ConcatDataset([TWICE, Subset(TWICE, range(12))]), range(24)),
        lambda: Subset(TWICE, [*range(12), -1]),
        lambda: Subset(TWICE, torch.tensor([*range(11), -12])),
        lambda: StackDataset(Subset(TWICE, [0, 0] * 12)),
        lambda: StackDataset(x=TWICE, y=Subset(TWICE, [*range(1, 12), 0])),
        lambda: ConcatDataset([TWICE, *random_split(TWICE, [6, 6])]),
        lambda: ConcatDataset([TWICE, TensorDataset(*TWICE.tensors)]),
        lambda: ConcatDataset([TWICE, TensorDataset(*(one[5:] for one in TWICE.tensors))]),
        lambda: TensorDataset(torch.zeros(1, 3).expand(24, 3), torch.zeros(1, 1).expand(24, 1)),
        lambda: ConcatDataset([[SAMPLE] * 12, [SAMPLE]]),
        lambda: ConcatDataset([CanaryData(TWICE, 6, target=torch.zeros(1), rng=1), Subset(TWICE, range(6))]),
        lambda: ConcatDataset([FOREIGN, Subset(FOREIGN, [-1])]),
    ],
    ids=[
        "concatenated",
        "picked",
        "nested",
        "with a part of itself",
        "overlapping parts",
        "parts of that",
        "from the end",
        "from the end, by a tensor",
        "stacked",
        "stacked, shifted",
        "split",
        "tensors twice",
        "part of a tensor twice",
        "expanded",
        "one object",
        "among canaries",
        "class of its own",
    ],
)
def test_examples_under_two_indices(build):
    data = build()
    cal = dm.calibrate_sigma(dm.Identity(N), 8.0, 1e-5)  # batches of any size
    with pytest.raises(dm.UnsupportedCombinationError, match="holds examples twice"):
        made(loader=DataLoader(data, batch_size=4), cal=cal, loss=squared_error)


class Foreign(torch.utils.data.Dataset):
    """A sampler of an unknown class."""

    def __len__(self):
        return len(TWICE)

    def __getitem__(self, index):
        return TWICE[index]


TWICE = dataset(3, size=12)
FOREIGN = Foreign()
SAMPLE = torch.zeros(3), torch.zeros(1)


def test_other_concatenations_and_subsets_are_accepted():
    joined = ConcatDataset([TWICE, dataset(3, size=20)])
    _, _, loader = made(loader=DataLoader(Subset(joined, np.arange(24))))
    assert len(next(iter(loader))[0]) == 8


def test_a_loader_with_its_own_batch_sampler():
    batches = torch.utils.data.BatchSampler(
        torch.utils.data.SequentialSampler(dataset(3)), 4, drop_last=False
    )
    every = dm.calibrate_sigma(dm.Identity(N), 8.0, 1e-5)
    with pytest.raises(dm.UnsupportedCombinationError, match="makes its own batches"):
        made(loader=DataLoader(dataset(3), batch_sampler=batches), cal=every)


def test_every_step_uses_the_loaders_batch_size():
    every = dm.calibrate_sigma(dm.Identity(N), 8.0, 1e-5)
    _, optimizer, loader = made(loader=DataLoader(dataset(3), batch_size=7), cal=every)
    assert (optimizer.expected_batch_size, len(loader)) == (7, 4)


# ---- state in the model


class Remembering(nn.Module):
    """A linear layer on features centered by the last batch, as in a layer with statistics."""

    def __init__(self):
        super().__init__()
        self.inner = linear()
        self.center = Centre()

    def forward(self, x):
        return self.inner(self.center(x))


class Centre(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        if self.training:
            self.mean.copy_(x.mean(0))
        return x - self.mean


def test_buffers_that_carry_data():
    model, optimizer, loader = made(Remembering(), public_buffers=["center.calls"])
    x, y = next(iter(loader))
    with pytest.raises(dm.UnsupportedCombinationError, match=r"changed its buffers center\.mean"):
        model(x)
    model.eval()
    with pytest.raises(dm.UnsupportedCombinationError, match=r"changed its buffers center\.mean"):
        model(x)  # the data are still stored there
    model._module.center.mean.zero_()
    model(x)  # only the counter changes
    with pytest.raises(dm.UnsupportedCombinationError, match=r"center\.calls"):
        made(Remembering().eval())[0](x)
    for bad in (["center.sum"], "calls"):
        with pytest.raises(dm.InvalidParameterError, match="public_buffers"):
            made(Remembering(), public_buffers=bad)
    assert optimizer.record.steps == 0
    del y


def test_buffers_may_be_loaded_between_steps():
    model, optimizer, loader = made(Remembering().eval(), public_buffers=["center.calls"])
    model.load_state_dict(model.state_dict())
    model(next(iter(loader))[0])
    assert optimizer.record.steps == 0


# ---- batches and rows of noise correspond


class Failing(torch.optim.SGD):
    fail = False

    def step(self, closure=None):
        if self.fail:
            raise MemoryError("planted")
        return super().step(closure)


def test_after_a_failed_update_batches_and_rows_still_correspond(tmp_path):
    model = linear()
    sgd = Failing(model.parameters(), lr=0.1)
    model, optimizer, loader = make_private(
        model,
        sgd,
        DataLoader(dataset(3)),
        CAL,
        loss=squared_error,
        expected_batch_size=8,
        generator=1,
        rng=2,
    )
    batches = iter(loader)
    model.backward(*next(batches))
    sgd.fail = True
    with pytest.raises(MemoryError, match="planted"):
        optimizer.step()
    sgd.fail = False
    # The row of noise is spent, and so is the batch: it cannot be released again under the next row.
    assert (optimizer.record.steps, loader.steps_taken) == (1, 1)
    with pytest.raises(dm.UnsupportedCombinationError, match="without a batch"):
        optimizer.step()
    optimizer.zero_grad()
    model.backward(*next(batches))
    optimizer.step()
    assert (optimizer.record.steps, loader.steps_taken) == (2, 2)
    save_checkpoint(tmp_path / "run.pt", model, optimizer, loader)
    assert optimizer.run_record().steps == 2


def test_extra_rows_of_noise_are_refused():
    model, optimizer, loader = made(loss=squared_error)
    optimizer._stream.step()  # a row without a batch
    model.backward(*next(iter(loader)))
    with pytest.raises(dm.UnsupportedCombinationError, match="1 rows of noise were used on 0 batches"):
        optimizer.step()
    with pytest.raises(dm.UnsupportedCombinationError, match="1 rows of noise"):
        optimizer.state_dict()


def test_a_closure_without_backward_makes_no_step():
    _, optimizer, loader = made()
    next(iter(loader))
    with pytest.raises(dm.UnsupportedCombinationError, match="only noise"):
        optimizer.step(lambda: 0.0)
    assert optimizer.record.steps == 0


def test_a_refused_sum_is_not_counted():
    model, optimizer, loader = made(loss=squared_error)
    x, y = next(iter(loader))
    other = clipped_gradients(model.module, squared_error, (x, y), 3.0)
    with pytest.raises(dm.InvalidParameterError, match="clipping of the sum"):
        optimizer.accumulate(other)
    model.backward(x, y)
    optimizer.step()
    assert optimizer.record.steps == 1


def test_an_optimizer_is_made_private_once():
    model = linear()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(dm.InvalidParameterError, match="clip_norm"):
        make_private(
            model,
            sgd,
            DataLoader(dataset(3)),
            CAL,
            clip_norm=-1.0,
            loss=squared_error,
            expected_batch_size=8,
        )
    given = {"loss": squared_error, "expected_batch_size": 8}
    make_private(model, sgd, DataLoader(dataset(3)), CAL, **given)  # the failure had no side effects
    with pytest.raises(dm.InvalidParameterError, match="made private already"):
        make_private(model, sgd, DataLoader(dataset(3)), CAL, **given)


def test_a_layer_frozen_on_the_way_stays():
    model, optimizer, loader = made(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)), loss=squared_error)
    batches = iter(loader)
    model.backward(*next(batches))
    optimizer.step()
    frozen = model.module[0]
    frozen.requires_grad_(False)
    before, moved = frozen.weight.clone(), model.module[1].weight.clone()
    x, y = next(batches)
    own = clipped_gradients(model.module, squared_error, (x, y), optimizer.clipping)
    optimizer.accumulate(own)
    optimizer.step()
    assert torch.equal(frozen.weight, before)
    assert not torch.equal(model.module[1].weight, moved)


# ---- resuming from a checkpoint with other settings


def test_other_settings_after_a_checkpoint(tmp_path):
    model, optimizer, loader = made(loss=squared_error)
    model.backward(*next(iter(loader)))
    optimizer.step()
    save_checkpoint(tmp_path / "run.pt", model, optimizer, loader)
    model, optimizer, loader = made(loss=squared_error, lr=0.3)
    load_checkpoint(tmp_path / "run.pt", model, optimizer, loader)
    assert optimizer.param_groups[0]["lr"] == 0.1
    batches = iter(loader)
    model.backward(*next(batches))
    optimizer.param_groups[0]["lr"] = torch.tensor(0.01)
    with pytest.raises(dm.UnsupportedCombinationError, match="lr changed since the state was saved"):
        optimizer.step()
    optimizer.param_groups[0]["lr"] = 0.1
    optimizer.step()
    optimizer.param_groups[0]["lr"] = 0.01  # a scheduler
    model.backward(*next(batches))
    optimizer.step()
    assert optimizer.record.steps == 3


def test_other_physical_batches_after_a_checkpoint(tmp_path):
    model, optimizer, loader = made(max_physical_batch_size=4)
    save_checkpoint(tmp_path / "run.pt", model, optimizer, loader)
    model, optimizer, loader = made(max_physical_batch_size=2)
    with pytest.raises(dm.exceptions.CertificateError, match="microbatches of at most 4, here 2"):
        load_checkpoint(tmp_path / "run.pt", model, optimizer, loader)


# ---- sums


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_in_half_precision(dtype):
    """3000 clipped gradients of 1 add up to 3008 in bfloat16, 2999 of them to 2992."""
    params = [nn.Parameter(torch.zeros(2, dtype=dtype))]
    params[0].grad = torch.ones(2, dtype=dtype)
    for build in (
        lambda: ClippedSum(params, [torch.ones(2, dtype=dtype)], FlatClipping(1.0)),
        lambda: ClippedSum.from_grads(params, FlatClipping(1.0)),
    ):
        with pytest.raises(dm.InvalidParameterError, match="float32 or float64"):
            build()


def sums_of_batches(parts):
    """The sum before noise if microbatches of one value each are accumulated."""
    param = nn.Parameter(torch.zeros(1))
    optimizer = PrivateOptimizer(torch.optim.SGD([param], lr=1.0), CAL, expected_batch_size=1, generator=1)
    clip = FlatClipping(1.0)
    for value in parts:
        optimizer.accumulate(ClippedSum([param], [torch.tensor([value])], clip, examples=1))
    return float(optimizer._batch.take()[0])


@pytest.mark.slow
def test_roundings_of_many_micro_batches_stay_below_one_example():
    """In float32 numbers near 8192 are 2^-10 apart: 0.0004 is lost every time, or counts 2.4 times."""
    base, many = [1.0] * 8192, [0.0006] * 8192
    truth = 8192 + 8192 * float(np.float32(0.0006))
    assert sums_of_batches(base + many) == pytest.approx(truth, abs=1e-3)
    total = torch.zeros(1)
    for value in base + many:
        total += value
    assert abs(float(total) - truth) > 1.0  # the float32 result


@pytest.mark.slow
def test_micro_batches_of_torch_func_are_added_in_float64():
    model = linear()
    nn.init.zeros_(model.weight)
    x = torch.zeros(3000, 3)
    x[:, 0] = torch.linspace(0.5, 1.0, 3000)
    batch = x, torch.full((3000, 1), -0.05)
    found = clipped_gradients(model, squared_error, batch, 1.0, microbatch_size=1).sums[0]
    assert found.dtype == torch.float64
    truth = (2 * 0.05 * x[:, 0].double()).sum()
    assert abs(float(found[0, 0]) - float(truth)) < 2e-5


def test_messages_and_reprs_show_no_data():
    model = linear()
    secret = torch.full((2, 3), 0.123456)
    with pytest.raises(dm.InvalidParameterError, match=r"batch must be") as caught:
        clipped_gradients(model, squared_error, (secret, torch.zeros(3, 1)), 1.0)
    assert "0.1235" not in str(caught.value)
    with pytest.raises(dm.InvalidParameterError, match="weights") as caught:
        clipped_gradients(model, squared_error, (secret, torch.zeros(2, 1)), 1.0, weights=secret[:, 0])
    assert "0.1235" not in str(caught.value)
    total = ClippedSum([model.weight], [secret[:1]], FlatClipping(1.0))
    assert "0.1235" not in repr(total)


def test_a_wrapped_model_with_a_loss_of_one_example():
    from opacus.grad_sample import GradSampleModule

    with pytest.raises(dm.UnsupportedCombinationError, match="GradSampleModule with a loss"):
        made(GradSampleModule(linear()), loss=squared_error)


class FullyShardedDataParallel(nn.Sequential):
    """Named as torch's, which cannot be built without processes."""


def test_fsdp_of_the_first_kind():
    with pytest.raises(dm.UnsupportedCombinationError, match="FSDP1"):
        made(nn.Sequential(FullyShardedDataParallel(linear())), loss=squared_error)


# ---- changes in the number of processes


def test_added_processes_are_refused(monkeypatch):
    from dpmech.optim import processes as agreement

    model, optimizer, loader = made(loss=squared_error)
    model.backward(*next(iter(loader)))
    monkeypatch.setattr(agreement, "processes", lambda group: 2)
    with pytest.raises(dm.UnsupportedCombinationError, match=r"1 processes shared .* now there are 2"):
        optimizer.step()
    with pytest.raises(dm.UnsupportedCombinationError, match="now there are 2"):
        optimizer._stream.step()


@pytest.mark.filterwarnings("ignore:.*weight_norm")
def test_recomputed_weights_under_hooks():
    model = nn.Sequential(nn.utils.weight_norm(nn.Linear(3, 2)), nn.Linear(2, 1))
    with pytest.raises(dm.UnsupportedCombinationError, match=r"computed before every call.*0 \(Linear\)"):
        made(model)
