"""Examples without finite gradients: the operator is warned, and nothing else depends on them."""

import logging
import math
import warnings

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader

import dpmech as dm
from dpmech.optim import (
    ClippedSum,
    FlatClipping,
    NonFiniteGradientsWarning,
    PrivateOptimizer,
    save_checkpoint,
)
from dpmech.optim.clipping.clipped_sum import Accumulator, _weighted_sum
from tests.support.training import classification, classifier, cross_entropy, linear, private_run, train

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing")

SIZE, N = 80, 4
CAL = dm.calibrate_sigma(dm.Identity(N), 8.0, 1e-5, participation=dm.FixedEpochs(2))  # batches of 40
F = torch.nn.functional


def data(bad=()):
    dataset = classification(SIZE)
    dataset.tensors[0][list(bad)] = math.nan
    return dataset


def made(dataset, *, functional=True, **options):
    loss = cross_entropy if functional else None
    return private_run(CAL, linear(3, 2, bias=True, seed=1), dataset, loss=loss, **options)


def quietly(*parts):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NonFiniteGradientsWarning)
        train(*parts)
    return parts


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_are_replaced_before_they_are_widened(dtype):
    chosen = []

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            found = func(*args, **(kwargs or {}))
            if func is torch.ops.aten.where.self:
                chosen.append(found.dtype)
            return found

    drawn = torch.Generator().manual_seed(0)
    values = torch.randn(5, 300, generator=drawn, dtype=dtype)
    factor = torch.rand(5, generator=drawn, dtype=torch.float64)
    factor[[1, 4]] = 0.0
    expected = factor.numpy() @ values.double().numpy()
    values[1], values[4, ::7] = math.nan, math.inf
    with Seen():
        found = _weighted_sum(values, factor, torch.tensor([True, False, True, True, False]))
    assert chosen == [dtype]
    torch.testing.assert_close(found, torch.from_numpy(expected), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("functional", [True, False])
@pytest.mark.parametrize("most", [None, 7])
def test_data_without_a_finite_gradient_make_no_step(functional, most):
    if not functional:
        pytest.importorskip("opacus")
    parts = made(data(range(SIZE)), functional=functional, max_physical_batch_size=most)
    before = [param.detach().clone() for param in parts[0].parameters()]
    with (
        pytest.raises(dm.NumericalError, match="all examples before the first step are not finite"),
        pytest.warns(NonFiniteGradientsWarning),
    ):
        train(*parts)
    assert parts[1].record.steps == 0
    assert all(torch.equal(a, b) for a, b in zip(before, parts[0].parameters(), strict=True))


def test_one_finite_example_suffices_and_later_batches_have_no_effect():
    """Even if every later batch is only noise: stopping there would be a release."""
    sampler = made(data())[2].sampler
    bad = set(range(SIZE)) - {int(sampler.indices(0)[7])}
    parts = quietly(*made(data(bad)))
    assert parts[1].record.steps == N
    assert parts[1].dropped_examples == 2 * len(bad)
    late = set(sampler.indices(1).tolist())
    assert quietly(*made(data(late)))[1].record.steps == N


@pytest.mark.parametrize(("examples", "refused"), [(31, False), (32, True), (None, False)])
def test_the_probe_is_of_32_examples(examples, refused):
    param = torch.nn.Parameter(torch.zeros(2))
    opt = PrivateOptimizer(torch.optim.SGD([param], lr=1.0), CAL, expected_batch_size=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NonFiniteGradientsWarning)
        for part in (16, None if examples is None else examples - 16):
            opt.accumulate(
                ClippedSum([param], [torch.zeros(2)], FlatClipping(1.0), examples=part, dropped=part or 40)
            )
    if refused:
        with pytest.raises(dm.NumericalError, match="all examples"):
            opt.step()
        assert opt.steps_left == N
    else:
        opt.step()
        param.grad_sample = torch.full((64, 2), math.nan)
        opt.step()  # after the first release nothing is refused
        assert opt.dropped_examples >= 64


@pytest.mark.parametrize("count", [-5, 3, 1.5, math.nan, "2", True])
def test_counts_that_are_no_number_of_examples_are_refused(count):
    param = torch.nn.Parameter(torch.zeros(2))

    def summed(value, **others):
        return ClippedSum(
            [param], [torch.zeros(2)], FlatClipping(1.0), examples=2, **{"dropped": value} | others
        )

    with pytest.raises(dm.InvalidParameterError, match=r"dropped must be an integer in \[0, 2\]"):
        summed(count)
    with pytest.raises(dm.InvalidParameterError, match=r"below must be an integer in \[0, 1\]"):
        summed(1, below=count, above=0)
    if isinstance(count, str | bool):
        return
    opt = PrivateOptimizer(torch.optim.SGD([param], lr=1.0), CAL, expected_batch_size=1)
    with pytest.raises(dm.InvalidParameterError, match="dropped must be an integer"):  # noqa: PT012 - either
        opt.accumulate(summed(torch.tensor(count)))
        opt.step()
    assert opt.steps_left == N


def test_counts_of_possible_numbers_of_examples_are_accepted():
    param = torch.nn.Parameter(torch.zeros(2))
    for count in (0, 2, torch.tensor(2), torch.tensor([2.0])):
        ClippedSum([param], [torch.zeros(2)], FlatClipping(1.0), examples=2, dropped=count)
    with pytest.raises(dm.InvalidParameterError, match="dropped must be a number, or a tensor of one value"):
        ClippedSum([param], [torch.zeros(2)], FlatClipping(1.0), examples=2, dropped=torch.tensor([1, 1]))


def test_a_partly_restored_batch_is_not_probed():
    """Earlier examples are in the sums, and their number is unknown."""
    param = torch.nn.Parameter(torch.zeros(2))
    first, second = (Accumulator([param], FlatClipping(1.0), 1.0, None) for _ in range(2))
    second.load_state_dict(first.state_dict())  # empty: no earlier examples
    with pytest.warns(NonFiniteGradientsWarning):
        second.add_samples([torch.full((64, 2), math.nan)])
    with pytest.raises(dm.NumericalError, match="all examples"):
        second.check_probe()
    first.add_samples([torch.ones(1, 2)])
    second.load_state_dict(first.state_dict())
    second.add_samples([torch.full((64, 2), math.nan)])
    second.check_probe()
    assert second.dropped == 64


def silent(model, x, target):
    """A loss without gradients on this data: its classes are below 9."""
    return (torch.nn.functional.cross_entropy(model(x), target, reduction="none") * (target == 9)).mean()


@pytest.mark.parametrize("mode", ["per_example", "loop"])
def test_gradients_of_zero_stop_nothing(mode):
    """Whether all are zero depends on the data: one other example would change it."""
    cal = dm.calibrate_sigma(dm.Identity(N), 8.0, 1e-5, participation=dm.MinSep(1))
    model, optimizer, loader = private_run(
        cal, classifier(), DataLoader(classification(32)), loss=silent, clipping_mode=mode
    )
    model.backward(*next(iter(loader)))
    optimizer.step()
    assert optimizer.record.steps == 1


@pytest.mark.parametrize("filter_", ["default", "always", "error"])
def test_one_warning_per_run_that_never_stops_it(filter_):
    parts = made(data([3, 30, 60]))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter(filter_)
        train(*parts)
    found = [one for one in seen if one.category is NonFiniteGradientsWarning]
    assert len(found) == 1
    assert "raw data" in str(found[0].message)
    assert parts[1].record.steps == N
    assert parts[1].dropped_examples == 6


def test_the_operator_may_silence_it():
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("ignore", NonFiniteGradientsWarning)
        train(*made(data([3])))
    assert not [one for one in seen if one.category is NonFiniteGradientsWarning]


def test_published_results_do_not_depend_on_them(caplog, tmp_path):
    """Records, certificates, logs and the number of steps are those of a run without such examples."""
    records = []
    for bad, loop in (((), train), ((3, 30), quietly)):
        parts = made(data(bad))
        with caplog.at_level(logging.DEBUG):
            loop(*parts)
        assert not caplog.records
        records.append(parts[1].run_record())
        records[-1].save(tmp_path / "run.json")
        assert "dropped" not in (tmp_path / "run.json").read_text()
        assert "dropped" not in repr(parts[1]) + repr(parts[1].record)
    assert records[0].steps == records[1].steps
    assert records[0].certificate == records[1].certificate
    save_checkpoint(tmp_path / "run.pt", *parts)  # as secret as the data: it may contain the number


def test_without_such_examples_there_is_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(*made(data()))
