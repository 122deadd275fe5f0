"""What waits to be read from a device: once, in order, and never forgotten where it fails."""

import pytest

torch = pytest.importorskip("torch")

from dpmech.optim.deferred import Deferred, is_deferred  # noqa: E402


def values(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def fails(_):
    raise ValueError("checked")


@pytest.fixture
def queued(monkeypatch):
    """As on a device that queues its operations."""
    monkeypatch.setattr("dpmech.optim.deferred._AT_ONCE", frozenset())


def test_devices_that_queue():
    assert not is_deferred(torch.device("cpu"))
    assert is_deferred(torch.device("cuda:1"))
    assert is_deferred(torch.device("xpu"))


def test_what_costs_no_wait_is_passed_on_at_once():
    seen, deferred = [], Deferred()
    deferred.add(values(1.0, 2.0), seen.append)
    with pytest.raises(ValueError, match="checked"):
        deferred.add(values(3.0), fails)
    assert seen == [[1.0, 2.0]]
    deferred.settle()
    assert len(seen) == 1


@pytest.mark.usefixtures("queued")
def test_values_come_in_order_and_once():
    seen, deferred = [], Deferred()
    deferred.settle()
    deferred.add(values(1.0, 2.0), seen.append)
    deferred.add(values(), seen.append)
    deferred.add(values(2.0**53), seen.append, counts=True)
    deferred.settle([(values(5.0), seen.append)])
    assert seen == [[1.0, 2.0], [], [2.0**53], [5.0]]
    deferred.settle()
    assert len(seen) == 4


@pytest.mark.usefixtures("queued")
def test_a_failed_check_stays_with_what_follows():
    seen, deferred = [], Deferred()
    deferred.add(values(1.0), seen.append)
    deferred.add(values(2.0), fails)
    deferred.add(values(3.0), seen.append, counts=True)
    for _ in range(2):
        with pytest.raises(ValueError, match="checked"):
            deferred.settle([(values(4.0), seen.append)])
        assert seen == [[1.0]]
    deferred.discard()
    assert seen == [[1.0], [3.0]]
    deferred.settle()
    assert seen == [[1.0], [3.0]]


@pytest.mark.usefixtures("queued")
def test_what_comes_along_is_not_kept():
    deferred = Deferred()
    with pytest.raises(ValueError, match="checked"):
        deferred.settle([(values(1.0), fails)])
    deferred.settle()


@pytest.mark.usefixtures("queued")
def test_nothing_is_counted_twice_after_an_interrupt():
    total, deferred = [], Deferred()

    def count(read):
        total.append(read)
        raise KeyboardInterrupt

    deferred.add(values(1.0), count, counts=True)
    with pytest.raises(KeyboardInterrupt):
        deferred.settle()
    deferred.settle()
    assert total == [[1.0]]
