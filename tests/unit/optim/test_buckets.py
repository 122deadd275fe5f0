"""Sums over processes: small tensors are sent together, in the same order everywhere."""

import pytest

torch = pytest.importorskip("torch")

from dpmech.optim import processes  # noqa: E402


class Sent:
    """Adds 1 for another process, and notes what is sent."""

    def __init__(self, monkeypatch):
        self.sizes = []
        monkeypatch.setattr(processes, "processes", lambda *_: 2)
        monkeypatch.setattr(processes.dist, "all_reduce", self.all_reduce)

    def all_reduce(self, tensor, **_):
        self.sizes.append(tensor.numel())
        assert tensor.is_contiguous()
        tensor.add_(1)
        return self

    def wait(self):
        pass


def tensors():
    rng = torch.Generator().manual_seed(0)
    shapes = [(3, 4), (), (70_000,), (5,), (0,), (2, 2), (65_536,)]
    found = [torch.randn(shape, generator=rng, dtype=torch.float64) for shape in shapes]
    return [*found, torch.tensor([7, 8]), torch.randn(3, generator=rng)]


def test_every_tensor_gets_its_sum(monkeypatch):
    sent, given, before = Sent(monkeypatch), tensors(), tensors()
    processes.add_over(given, None)
    for one, other in zip(given, before, strict=True):
        assert one.dtype == other.dtype
        assert one.equal(other + 1)
    assert sorted(sent.sizes) == [2, 3, 12 + 1 + 5 + 0 + 4 + 65_536, 70_000]


def test_a_bucket_is_sent_when_it_is_full(monkeypatch):
    sent = Sent(monkeypatch)
    monkeypatch.setattr(processes, "_BUCKET", 10)
    given = [torch.zeros(4) for _ in range(7)]
    processes.add_over(given, None)
    assert sent.sizes == [12, 12, 4]
    assert all(one.equal(torch.ones(4)) for one in given)


def test_one_tensor_is_sent_as_it_is(monkeypatch):
    sent, one = Sent(monkeypatch), torch.zeros(3)
    processes.add_over([one], None)
    assert sent.sizes == [3]
    assert one.equal(torch.ones(3))


def test_one_process_sends_nothing(monkeypatch):
    monkeypatch.setattr(processes.dist, "all_reduce", lambda *_, **__: pytest.fail("sent"))
    one = torch.zeros(3)
    processes.add_over([one], None)
    assert one.equal(torch.zeros(3))
