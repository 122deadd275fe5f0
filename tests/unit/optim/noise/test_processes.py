"""Behavior of several processes, with the others simulated; tests/distributed has real ones."""

import numpy as np
import pytest
import torch

import dpmech as dm
from dpmech.optim import ClippedSum, FlatClipping, NoiseMode, NoiseStream, PrivateOptimizer
from dpmech.optim import processes as agreement
from dpmech.optim import processes as slots
from dpmech.optim.processes import make_slots
from tests.support.drawn_noise import DrawnNoise

N = 4


class World:
    """torch.distributed as seen by rank `rank` of two, if the other one says and sends `other`."""

    def __init__(self, rank, other=None):
        self.rank, self.other, self.sums = rank, other, []

    def is_available(self):
        return True

    def is_initialized(self):
        return True

    def get_world_size(self, group):
        return 2

    def get_backend(self, group):
        return "gloo"

    def get_rank(self, group):
        return self.rank

    def all_gather_object(self, found, mine, group):
        other = mine if self.other is None else (mine[0], self.other)
        found[:] = [mine, other] if self.rank == 0 else [other, mine]

    def all_reduce(self, tensor, group, async_op):
        if tensor.is_floating_point():  # counts of examples are added up too
            self.sums.append(tensor.clone())
        tensor.mul_(2)  # the other process has the same values
        return self

    def wait(self):
        pass


def calibration():
    return dm.calibrate_sigma(dm.SquareRoot(N, 2), 8.0, 1e-5)


def optimizer(params):
    return PrivateOptimizer(torch.optim.SGD(params, lr=1.0), calibration(), 1.0, 4, generator=1)


def test_one_process_needs_no_agreement():
    assert agreement.processes(None) == 1
    assert agreement.is_first(None)
    assert agreement.shared_key((1, 2), None) == (1, 2)
    agreement.check_agreement("anything", {"a": 1}, None)
    one = torch.ones(2)
    agreement.add_over([one], None)
    assert torch.equal(one, torch.ones(2))


@pytest.mark.parametrize(("rank", "expected"), [(0, (1, 2)), (1, (3, 4))])
def test_the_key_comes_from_rank_zero(monkeypatch, rank, expected):
    monkeypatch.setattr(agreement, "dist", World(rank, (3, 4)))
    assert agreement.shared_key((1, 2), None) == expected
    assert agreement.is_first(None) == (rank == 0)


def test_claims_must_agree(monkeypatch):
    monkeypatch.setattr(agreement, "dist", World(0))
    agreement.check_agreement("anything", {"a": 1}, None)
    monkeypatch.setattr(agreement, "dist", World(0, "f" * 64))
    with pytest.raises(dm.exceptions.CertificateError, match="processes disagree on anything") as raised:
        agreement.check_agreement("anything", {"a": 1}, None)
    assert "f" * 64 not in f"{raised.value} {vars(raised.value)}"  # it may depend on a key, or on data


def test_processes_out_of_step_reveal_no_keys(monkeypatch):
    """One process sends the key, the other the claim: the key must not be revealed."""

    class OutOfStep(World):
        def all_gather_object(self, found, mine, group):
            found[:] = [mine, ("the claim", (123456789, 987654321))]

    monkeypatch.setattr(agreement, "dist", OutOfStep(0))
    with pytest.raises(
        dm.UnsupportedCombinationError, match="exchange the claim and the key of the noise"
    ) as raised:
        agreement.shared_key((1, 2), None)
    assert "123456789" not in f"{raised.value} {vars(raised.value)}"


def test_without_distributed_support_there_is_one_process(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_available", lambda: False)
    assert agreement.processes(None) == 1
    assert not slots.is_sharded(torch.zeros(2))


@pytest.mark.parametrize("rank", [0, 1])
def test_clipped_sums_are_added_over_processes_before_the_noise(monkeypatch, rank):
    monkeypatch.setattr(agreement, "dist", World(rank))
    params = [torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.zeros(2))]
    noise = DrawnNoise(calibration(), params, 1.0, 1).step()
    opt = optimizer(params)
    for param in params:
        param.grad_sample = torch.full((1, *param.shape), 0.1)
    opt.step()
    (together,) = agreement.dist.sums  # small sums travel as one
    np.testing.assert_allclose(together.numpy(), 0.1, rtol=1e-6)
    assert together.numel() == 5
    assert all(total.dtype == torch.float64 for total in agreement.dist.sums)
    for param, row in zip(params, noise, strict=True):
        np.testing.assert_allclose(param.grad.numpy(), ((row + 0.2) / 4).numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_reduced_sum_is_brought_by_the_first(monkeypatch, rank):
    monkeypatch.setattr(agreement, "dist", World(rank))
    params = [torch.nn.Parameter(torch.zeros(3))]
    opt = optimizer(params)
    opt.accumulate(ClippedSum(params, [torch.full((3,), 0.1)], FlatClipping(1.0), reduced=True))
    opt.step()
    assert agreement.dist.sums[0].tolist() == pytest.approx([0.1 * (rank == 0)] * 3)


# ---- DTensor, on a group of one process


@pytest.fixture
def mesh():
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield torch.distributed.device_mesh.init_device_mesh("cpu", (1, 1), mesh_dim_names=("a", "b"))
    torch.distributed.destroy_process_group()


def distributed(mesh, *placements, shape=(3, 2)):
    from torch.distributed.tensor import distribute_tensor

    return torch.nn.Parameter(distribute_tensor(torch.zeros(shape), mesh, placements))


def test_noise_of_a_dtensor_is_a_dtensor(mesh):
    from torch.distributed.tensor import DTensor, Replicate, Shard

    params = [distributed(mesh, Replicate(), Shard(0)), distributed(mesh, Shard(1), Shard(0))]
    rows = NoiseStream(calibration(), params, 1.0, 1).step()
    plain = NoiseStream(calibration(), [torch.zeros(3, 2), torch.zeros(3, 2)], 1.0, 1).step()
    for param, row, expected in zip(params, rows, plain, strict=True):
        assert isinstance(row, DTensor)
        assert row.placements == param.placements
        assert torch.equal(row.to_local(), expected)


def test_training_a_dtensor(mesh, monkeypatch):
    from torch.distributed.tensor import DTensor, Replicate, Shard

    params = [distributed(mesh, Replicate(), Shard(0)), torch.nn.Parameter(torch.zeros(2))]
    noise = DrawnNoise(calibration(), params, 1.0, 1).step()
    opt = optimizer(params)
    total = DTensor.from_local(torch.full((3, 2), 0.01), mesh, params[0].placements)
    opt.accumulate(ClippedSum(params, [total, torch.full((2,), 0.01)], FlatClipping(1.0), reduced=True))
    opt.step()
    assert isinstance(params[0].grad, DTensor)
    for param, row in zip(params, noise, strict=True):
        found, drawn = slots.local_part(param.grad), slots.local_part(row)
        np.testing.assert_allclose(found.numpy(), ((drawn + 0.01) / 4).numpy(), rtol=1e-5, atol=1e-6)
    params[0].grad_sample = torch.zeros(5, 3, 2)
    with pytest.raises(dm.UnsupportedCombinationError, match="per-example gradients of a sharded parameter"):
        opt.step()
    params[0].grad_sample = None
    monkeypatch.setattr("dpmech.optim.clipping.clipped_sum.processes", lambda group: 2)
    with pytest.raises(dm.InvalidParameterError, match="sharded parameter"):
        opt.accumulate(ClippedSum(params, [total, None], FlatClipping(1.0)))


def test_shards_are_numbered_over_the_sharded_dimensions():
    """A 3 x 2 mesh whose second dimension holds replicas: 3 shards, the same one on both replicas."""
    from torch.distributed.tensor import Replicate, Shard

    class Mesh:
        def __init__(self, coordinate):
            self.coordinate = coordinate

        def get_coordinate(self):
            return self.coordinate

        def size(self, dim):
            return (3, 2)[dim]

    class Sharded:
        def __init__(self, coordinate, placements):
            self.device_mesh, self.placements = Mesh(coordinate), placements

    def number(coordinate, *placements):
        return slots._shard("p", Sharded(coordinate, placements))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slots, "is_sharded", lambda param: isinstance(param, Sharded))
        for i in range(3):
            assert number([i, 0], Shard(0), Replicate()) == number([i, 1], Shard(0), Replicate()) == (i, 3)
        found = {number([i, j], Shard(0), Shard(1)) for i in range(3) for j in range(2)}
        assert found == {(i, 6) for i in range(6)}
        assert number([2, 1], Replicate(), Replicate()) == (0, 1)
        with pytest.raises(dm.InvalidParameterError, match="a mesh that holds this process"):
            number(None, Shard(0), Replicate())
    assert slots._shard("p", torch.zeros(2)) == (0, 1)


def test_partial_sums_are_refused(mesh):
    from torch.distributed.tensor import DTensor, Partial, Replicate

    partial = DTensor.from_local(torch.zeros(3), mesh, [Replicate(), Partial()])
    with pytest.raises(dm.InvalidParameterError, match="sharded or replicated"):
        make_slots([partial])


def test_a_stream_of_one_process_in_a_group_is_the_same(mesh):
    params = [torch.zeros(3)]
    plain = DrawnNoise(calibration(), params, 1.0, 1, mode=NoiseMode.BUFFER)
    grouped = NoiseStream(
        calibration(), params, 1.0, 1, mode=NoiseMode.BUFFER, process_group=torch.distributed.group.WORLD
    )
    for _ in range(N):
        assert torch.equal(plain.step()[0], grouped.step()[0])
