"""What comparing contents costs a step; run with `pytest tests/bench/test_bench_unchanged.py -s`."""

from unittest import mock

import pytest

import dpmech as dm

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from dpmech.optim import make_private  # noqa: E402
from dpmech.optim.runs.unchanged import Unchanged  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WIDTH = 1024
# One block of a transformer of this width has about as many values.
BLOCK = [(3 * WIDTH, WIDTH), (WIDTH, WIDTH), (4 * WIDTH, WIDTH), (WIDTH, 4 * WIDTH)]


def synchronize():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("values", ["12.6 M in 4 tensors", "1.6 M in 400 tensors"])
def test_reading_frozen_weights(benchmark, dtype, values):
    shapes = BLOCK if "in 4 " in values else [(64, 64)] * 400
    model = nn.ParameterList(
        nn.Parameter(torch.randn(shape, dtype=dtype, device=DEVICE), requires_grad=False) for shape in shapes
    )
    unchanged = Unchanged(model, [])

    def check():
        unchanged.check()
        synchronize()

    benchmark(check)


class Adapted(nn.Module):
    """Frozen layers of 12.6 M values, a trained one of 16 K."""

    def __init__(self):
        super().__init__()
        self.frozen = nn.Sequential(*(nn.Linear(columns, rows) for rows, columns in BLOCK[:1]))
        self.frozen += nn.Sequential(nn.Linear(3 * WIDTH, 3 * WIDTH))
        self.frozen.requires_grad_(False)
        self.head = nn.Linear(3 * WIDTH, 10)

    def forward(self, x):
        return self.head(torch.relu(self.frozen(x)))


@pytest.mark.parametrize("watched", [True, False])
@pytest.mark.parametrize("batch", [16, 256])
@pytest.mark.parametrize("trained", ["a head", "all"])
def test_a_step(benchmark, watched, batch, trained):
    """Of a whole step: forward, clipped gradients, noise, update. A batch of 16 is a small one."""
    n = 200
    if trained == "all" and batch > 16:
        pytest.skip("16 GB of per-example gradients")
    model = Adapted().to(DEVICE)
    if trained == "all":
        model.requires_grad_(True)
    sgd = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    data = TensorDataset(torch.randn(batch, WIDTH, device=DEVICE), torch.randint(10, (batch,), device=DEVICE))
    cal = dm.calibrate_sigma(dm.Identity(n), 8.0, 1e-5)

    def loss(f, x, y):
        return nn.functional.cross_entropy(f(x), y)

    private, optimizer, loader = make_private(
        model, sgd, DataLoader(data, batch_size=batch), cal, loss=loss, dataset_size=batch
    )
    if not watched:
        optimizer._unchanged = private._unchanged = mock.MagicMock()

    def step():
        for given in loader:
            private.backward(*given)
            optimizer.step()
        synchronize()

    benchmark.pedantic(step, rounds=5, warmup_rounds=1)
