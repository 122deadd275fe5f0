"""Processes over NCCL use a device each, or are refused before anything waits; what is sent is contiguous."""

from types import SimpleNamespace

import pytest

import dpmech as dm

torch = pytest.importorskip("torch")

from dpmech.optim import PrivateOptimizer, make_private_with_epsilon, processes  # noqa: E402
from tests.support.other_device import There, known, other, other_device  # noqa: E402
from tests.support.training import classification, classifier, cross_entropy  # noqa: E402


def params(*names):
    return [SimpleNamespace(device=torch.device(name)) for name in names]


@pytest.fixture
def nccl(monkeypatch):
    monkeypatch.setattr(processes, "processes", lambda group: 8)
    monkeypatch.setattr(processes.dist, "get_backend", lambda group: "nccl")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)


@pytest.mark.usefixtures("nccl")
@pytest.mark.parametrize("names", [["cuda:0"], ["cuda:0", "cuda:2"], ["cpu"], ["cuda:3", "cpu"]])
def test_another_device_than_the_current_one_is_refused(names):
    with pytest.raises(dm.UnsupportedCombinationError, match="NCCL on cuda:3") as caught:
        processes.check_current_device(params(*names), None)
    assert 'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))' in caught.value.supported
    assert all(name in str(caught.value) for name in names)


@pytest.mark.usefixtures("nccl")
@pytest.mark.parametrize("names", [["cuda:3"], ["cuda:3", "cuda:4"]])
def test_the_current_device_is_taken(names):
    processes.check_current_device(params(*names), None)


@pytest.mark.usefixtures("nccl")
def test_other_backends_exchange_through_the_cpu(monkeypatch):
    monkeypatch.setattr(processes.dist, "get_backend", lambda group: "gloo")
    processes.check_current_device(params("cuda:0", "cpu"), None)


def test_one_process_needs_no_device():
    processes.check_current_device(params("cuda:0"), None)


class First:
    """Sends the bytes of the first process's tensors, and takes what NCCL takes."""

    def __init__(self, values, monkeypatch):
        self.values = list(values)
        monkeypatch.setattr(processes, "processes", lambda group: 2)
        monkeypatch.setattr(processes.dist, "get_backend", lambda group: "nccl")
        monkeypatch.setattr(processes, "current_device", lambda: torch.device("cpu"))
        monkeypatch.setattr(processes.dist, "broadcast", self.broadcast)

    def broadcast(self, tensor, source, group):
        assert tensor.is_contiguous()
        assert tensor.dtype == torch.uint8
        assert source == 0
        value = self.values.pop(0)
        tensor.copy_(torch.tensor(list(value.contiguous().numpy().tobytes()), dtype=torch.uint8))


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.bfloat16, torch.int16, torch.uint16, torch.int64, torch.bool, torch.complex64],
)
def test_any_dtype_is_shared(dtype, monkeypatch):
    """NCCL knows no integers of 16 bits, which buffers may have."""
    bits = torch.randint(2, (5, 3), generator=torch.Generator().manual_seed(1))
    values = bits.to(dtype)
    sent = values.view(torch.uint8) if dtype == torch.bfloat16 else values
    First([sent], monkeypatch)
    mine = torch.zeros(5, 3).to(dtype)
    processes.share([mine], None)
    assert torch.equal(mine, values)


def test_weights_with_strides_are_shared(monkeypatch):
    """Backends refuse them."""
    values = torch.randn(4, 3).T, torch.randn(2), torch.tensor(7), torch.zeros(0, 2), torch.tensor([1.0, 2.0])
    First(values, monkeypatch)
    turned, plain = torch.zeros(4, 3).T, torch.nn.Parameter(torch.zeros(2))
    count, apart = torch.tensor(0), torch.zeros(6)
    processes.share([turned, plain, count, torch.zeros(0, 2), apart[::3]], None)
    assert torch.equal(turned, values[0])
    assert torch.equal(plain, values[1])
    assert count == 7
    assert apart.tolist() == [1.0, 0.0, 0.0, 2.0, 0.0, 0.0]
    assert not turned.is_contiguous()


@pytest.mark.skipif(not known(), reason="this torch registers no device from Python")
@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_buffers_on_the_cpu_are_sent_through_the_device(backend, monkeypatch):
    """NCCL sends from devices alone."""
    sent = []
    monkeypatch.setattr(processes, "processes", lambda group: 2)
    monkeypatch.setattr(processes.dist, "get_backend", lambda group: backend)
    monkeypatch.setattr(processes, "current_device", other)
    monkeypatch.setattr(processes.dist, "broadcast", lambda one, source, group: sent.append(one.fill_(64)))
    there, here = There(torch.zeros(2)), torch.zeros(3)
    with other_device():
        processes.share([there, here], None)
    assert [type(one) is There for one in sent] == [True, backend == "nccl"]
    assert here.view(torch.uint8).eq(64).all()
    assert there.cpu().view(torch.uint8).eq(64).all()


class Waits(Exception):
    """Instead of a process that waits for the others."""


def exchange(*args, **kwargs):
    raise Waits


def by_certificate(model, optimizer):
    PrivateOptimizer(optimizer, dm.calibrate_sigma(dm.Identity(4), 8.0, 1e-5), 1.0, 4.0)


def by_budget(model, optimizer):
    loader = torch.utils.data.DataLoader(classification(32), batch_size=4)
    given = {
        "epochs": 1,
        "dataset_size": 32,
        "strategy": dm.Identity,
        "clip_norm": 1.0,
        "loss": cross_entropy,
    }
    make_private_with_epsilon(model, optimizer, loader, eps=8.0, delta=1e-5, **given)


@pytest.mark.parametrize("made", [by_certificate, by_budget])
@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_the_device_is_compared_before_anything_is_exchanged(made, backend, monkeypatch):
    group = {"is_initialized": lambda: True, "get_world_size": lambda group: 2, "get_rank": lambda group: 1}
    exchanges = dict.fromkeys(("all_gather_object", "broadcast_object_list", "broadcast"), exchange)
    for name, stands_in in (group | exchanges | {"get_backend": lambda group: backend}).items():
        monkeypatch.setattr(torch.distributed, name, stands_in)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    model = classifier()
    with pytest.raises(Waits if backend == "gloo" else dm.UnsupportedCombinationError) as caught:
        made(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert backend == "gloo" or "NCCL on cuda:3 with parameters on cpu" in str(caught.value)
