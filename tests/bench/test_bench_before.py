"""Steps on the CPU compared with those of another checkout, in turns: DPMECH_BEFORE=folder names it.

Each checkout runs in a process of its own with one thread. A ratio is the median over pairs of calls, so that
what else the machine does enters both.
"""

import contextlib
import os
import pathlib
import statistics
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parents[2]
BEFORE = os.environ.get("DPMECH_BEFORE")
CASES = {  # pairs of calls, steps a call
    "noise of 1 tensor of 1e7 values": (9, 1),
    "noise of 300 tensors of 100 values": (31, 8),
    "noise of 300 tensors of 10 to 5000 values": (31, 6),
    "means of 300 tensors of 100 values": (31, 8),
    "step of an MLP, per example": (31, 8),
    "step of an MLP, ghost": (31, 8),
}

pytestmark = pytest.mark.skipif(BEFORE is None, reason="DPMECH_BEFORE names no other checkout")


def noise(shapes, *, mean=False):
    """A step of noise for tensors of these shapes."""
    import torch

    import dpmech as dm
    from dpmech.optim import NoiseStream

    params = [torch.zeros(shape) for shape in shapes]
    sums = [torch.zeros(shape, dtype=torch.float64) for shape in shapes]
    stream = NoiseStream(dm.calibrate_sigma(dm.LambdaCGD(100_000, 0.9), 8.0, 1e-5), params)
    if not mean:
        return lambda: stream.add_step(sums)
    divisors = [64.0] * len(sums)

    def step():
        if hasattr(stream, "mean_step"):
            return stream.mean_step(sums, divisors)
        stream.add_step(sums)
        return [total.div_(divisor) for total, divisor in zip(sums, divisors, strict=True)]

    return step


def training(mode):
    """A step of private training of a small network."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    import dpmech as dm
    from dpmech.optim import make_private

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(784, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    batch = torch.randn(64, 784), torch.randint(10, (64,))
    cal = dm.calibrate_sigma(dm.Identity(10_000), 8.0, 1e-5)
    model, optimizer, loader = make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=0.01),
        DataLoader(TensorDataset(*batch), batch_size=64),
        cal,
        1.0,
        loss=torch.nn.CrossEntropyLoss(),
        clipping_mode=mode,
        dataset_size=64,
    )

    def step():
        loader.progress.hand_out(64, first=True, last=True)
        model.backward(*batch)
        optimizer.step()

    return step


def work(name):
    """Answer each line of the input with the processor time of one call."""
    import time

    import torch

    torch.set_num_threads(1)
    makers = {
        "noise of 1 tensor of 1e7 values": lambda: noise([(10_000_000,)]),
        "noise of 300 tensors of 100 values": lambda: noise([(100,)] * 300),
        "noise of 300 tensors of 10 to 5000 values": lambda: noise([(10,), (500,), (50, 100)] * 100),
        "means of 300 tensors of 100 values": lambda: noise([(100,)] * 300, mean=True),
        "step of an MLP, per example": lambda: training("per_example"),
        "step of an MLP, ghost": lambda: training("ghost"),
    }
    step, steps = makers[name](), CASES[name][1]
    step()
    for _ in sys.stdin:
        start = time.process_time()
        for _ in range(steps):
            step()
        print((time.process_time() - start) / steps, flush=True)


@pytest.mark.parametrize("name", CASES)
def test_ratio(name):
    found = []
    with contextlib.ExitStack() as stack:
        workers = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", f"import runpy; runpy.run_path({__file__!r})['work']({name!r})"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    cwd=folder,
                    env=os.environ | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"},
                )
            )
            for folder in (BEFORE, HERE)
        ]
        for turn in range(CASES[name][0]):
            times = [0.0, 0.0]
            for side in ((0, 1), (1, 0))[turn % 2]:
                workers[side].stdin.write("go\n")
                workers[side].stdin.flush()
                times[side] = float(workers[side].stdout.readline())
            found.append(times)
    ratios = sorted(now / then for then, now in found)
    print(
        f"{name}: before {statistics.median(t for t, _ in found) * 1e3:.3f} ms, "
        f"now {statistics.median(t for _, t in found) * 1e3:.3f} ms, ratio {statistics.median(ratios):.3f} "
        f"({ratios[len(ratios) // 4]:.3f} to {ratios[-1 - len(ratios) // 4]:.3f})"
    )
