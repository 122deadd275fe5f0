"""On a device, an index out of range in a trial is an error of the CPU; others are computed as before."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from dpmech.optim.runs.in_range import _run_here, in_range  # noqa: E402
from tests.support.other_device import known, other, other_device  # noqa: E402

pytestmark = pytest.mark.skipif(not known(), reason="this torch registers no device from Python")
F = nn.functional


def whole(index):
    return torch.tensor([0, index]).to(other())


def table(dtype=torch.float16):
    return torch.arange(12.0).reshape(4, 3).to(dtype).to(other())


CASES = {  # an operation of an index, the last that is in range, and one that is not
    "embedding": (lambda i: F.embedding(whole(i), table()), 3, 4),
    "negative": (lambda i: F.embedding(whole(i), table()), 0, -1),
    "embedding_bag": (lambda i: F.embedding_bag(whole(i)[None], table(torch.float32)), 3, 4),
    "index_select": (lambda i: table().index_select(1, whole(i)), 2, 3),
    "gather": (lambda i: table().gather(1, whole(i)[:, None]), 2, 3),
    "gather of integers": (lambda i: table(torch.int16).gather(1, whole(i)[:, None]), 2, 3),
    "take": (lambda i: table().take(whole(i)), 11, 12),
    "index": (lambda i: table()[whole(i)], 3, 4),
    "index from the end": (lambda i: table()[:, whole(i)], -3, -4),
    "scatter_": (lambda i: table().scatter_(1, whole(i)[:, None], 7.0), 2, 3),
    "scatter_add": (lambda i: table().scatter_add(1, whole(i)[:, None], table()), 2, 3),
    "index_add": (lambda i: table().index_add(0, whole(i), table()[:2]), 3, 4),
    "index_put": (lambda i: table().index_put((whole(i),), table()[:2]), 3, 4),
    "max_unpool2d": (
        lambda i: F.max_unpool2d(table(torch.float32)[None, :1, :2], whole(i)[None, None], 2),
        7,
        8,
    ),
    "nll_loss": (lambda i: F.nll_loss(table(torch.float32)[:2], whole(i)), 2, 3),
    "ignored": (lambda i: F.cross_entropy(table(torch.float32)[:2], whole(i), ignore_index=-100), -100, -99),
    "pixels": (
        lambda i: F.nll_loss(table(torch.float32)[None, :2, None, :1], whole(i)[None, None, 1:]),
        1,
        2,
    ),
    "probability": (lambda p: F.binary_cross_entropy(whole(p).float(), torch.ones(2).to(other())), 1, 2),
    "a mask": (lambda i: table()[table() > i], 1, None),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_out_of_range_never_meets_the_device(name):
    run, last, past = CASES[name]
    with other_device():
        expected = run(last).cpu()
        with in_range() as checked:
            found = run(last).cpu()
            if past is not None:
                with pytest.raises((IndexError, RuntimeError)) as caught:
                    run(past)
                assert "device" not in str(caught.value)
        assert checked
        assert torch.equal(found, expected)
        assert (torch.ones(1, device=other()) + 1.0).item() == 2.0


@pytest.mark.parametrize("fullgraph", [True, False])
def test_compiled_functions_run_uncompiled(fullgraph):
    compiled = torch.compile(lambda x: F.embedding(x, torch.ones(4, 3)), backend="eager", fullgraph=fullgraph)
    with other_device():
        with in_range(), pytest.raises(IndexError):
            compiled(torch.tensor([4]))
        with in_range():
            assert torch.equal(compiled(torch.tensor([3])), torch.ones(1, 3))


def test_without_a_device_nothing_is_checked():
    with in_range() as checked:
        assert not checked
        with pytest.raises(IndexError):
            F.embedding(torch.tensor([4]), torch.ones(4, 3))


def test_gradients_of_sparse_embeddings_are_formed_on_the_cpu_too():
    """They name the device of their result; one without memory stands for it, as here is no other."""
    form = torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors.default
    rows, values = torch.tensor([[0, 2]]), torch.ones(2, 3)
    named = {"dtype": torch.float32, "layout": torch.sparse_coo, "device": torch.device("meta")}
    _run_here(form, (1, 1, [4, 3], rows, values), named, values=False)
