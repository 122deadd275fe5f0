"""Checksums of many tensors that are read together, against Python's integers."""

import pytest

torch = pytest.importorskip("torch")

from dpmech.optim.runs import unchanged  # noqa: E402
from dpmech.optim.runs.unchanged import ROW, Fingerprinter, same  # noqa: E402

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def together(monkeypatch):
    """Tensors are read together, as on devices that queue operations."""
    monkeypatch.setattr(unchanged, "is_deferred", lambda device: True)


def values(size, dtype=torch.int32):
    drawn = torch.Generator().manual_seed(size)
    words = torch.randint(-(2**31), 2**31, (size,), generator=drawn)
    return words.to(torch.int32).view(dtype).to(DEVICE)


def by_hand(key, tensor):
    """In Python's integers."""
    words = tensor.cpu().contiguous().view(-1).view(torch.int32).tolist()
    keys = key.tolist()
    rows = [words[i : i + ROW] for i in range(0, len(words), ROW)]
    found = [sum(k * w for k, w in zip(keys, row, strict=False)) % 2**64 for row in rows]
    return [(one + 2**63) % 2**64 - 2**63 for one in found]


SIZES = [1, 3, ROW - 1, ROW, ROW + 1, 2 * ROW + 5]


@pytest.mark.usefixtures("together")
def test_sums_are_those_of_integers():
    reader = Fingerprinter()
    tensors = [values(size, torch.float32) for size in SIZES]
    tensors += [values(7, torch.bfloat16), values(10, torch.float64), values(4, torch.int64)]
    found = reader.read_all([("one", tensor) for tensor in tensors])
    for (_, sums), tensor in zip(found, tensors, strict=True):
        assert torch.cat(sums).tolist() == by_hand(reader._key, tensor)


@pytest.mark.parametrize("at_once", [1, 2, 4096])
@pytest.mark.usefixtures("together")
def test_a_changed_bit_is_found_where_it_is(at_once, monkeypatch):
    monkeypatch.setattr(unchanged, "_MANY_ROWS", at_once)
    reader = Fingerprinter()
    named = [("one", values(size)) for size in SIZES]
    first = reader.read_all(named)
    assert same(reader.read_all(named), first)
    for place, (_, tensor) in enumerate(named):
        for word in (0, -1):
            tensor[word] ^= 1
            second = reader.read_all(named)
            found = [same([a], [b]) for a, b in zip(first, second, strict=True)]
            assert found == [one != place for one in range(len(SIZES))]
            tensor[word] ^= 1


@pytest.mark.usefixtures("together")
def test_what_is_not_of_words_is_read_alone():
    whole = values(64, torch.float32)
    odd = [
        whole.view(8, 8).T,
        torch.zeros(3, dtype=torch.bfloat16, device=DEVICE),
        whole.view(torch.bfloat16)[1:5],  # does not begin at a word
        torch.zeros(0, device=DEVICE),
        torch.complex(whole, whole).conj(),
        torch._neg_view(whole),
    ]
    assert not any(map(unchanged._is_of_words, odd))
    named = [("one", one) for one in [*odd, whole]]
    reader = Fingerprinter()
    assert same(reader.read_all(named), reader.read_all(named))


@pytest.mark.usefixtures("together")
def test_layouts_are_kept_but_not_for_ever():
    reader = Fingerprinter()
    for size in range(1, unchanged._LAYOUTS + 3):
        reader.read_all([("one", values(size))])
    assert reader._layout.cache_info().currsize == unchanged._LAYOUTS
