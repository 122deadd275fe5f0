"""Checks of private training on a device, against computations that share no code with it."""

import copy
import dataclasses
import itertools
import math
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from dpmech.calibration import calibrate_sigma
from dpmech.mechanism import BLT, Identity, LambdaCGD, SquareRoot, Strategy
from dpmech.optim.clipping import MODES, ClippingMode, Factored, Piece, clipped_gradients
from dpmech.optim.device_check.models import (
    LanguageModel,
    Size,
    VisionTransformer,
    images_of,
    loss_of_images,
    loss_of_words,
    words_of,
)
from dpmech.optim.noise import NoiseStream, fused_on
from dpmech.optim.runs import load_checkpoint, make_private, save_checkpoint
from dpmech.schemes.fixed_order import MinSep

_SIZE = Size(width=32, depth=1, heads=2, length=4, batch=8)
_STEPS = 8
# Standard errors: a normal number is beyond them with probability 1.3e-15, so that hundreds of comparisons
# fail by chance with less than 1e-9, also with the tails that means of products and of fourth powers have.
_ERRORS = 8.0


@dataclasses.dataclass(frozen=True)
class Check:
    """The result of a check.

    Attributes:
        passed: None if it does not apply to the device.
        seen: what was found.
        allowed: what passes.
    """

    passed: bool | None
    seen: str
    allowed: str


def run_checks(device: torch.device, *, small: bool) -> dict[str, Check]:
    """Run all checks, by what is checked; one that fails with an error is a failed check."""
    values = 1 << (14 if small else 20)
    tasks: dict[str, Callable[[], Check]] = {
        **{f"clipping, {mode}": partial(clipping, device, mode) for mode in MODES},
        "norms of ghost clipping": partial(norms, device),
        **{f"noise, {name}": partial(covariance, device, one, values) for name, one in strategies().items()},
        "resume": partial(resume, device),
        "secure generator": partial(secure, device),
        "noise kernel": partial(kernel, device),
        "waits of the host": partial(waits, device),
    }
    found = {}
    for name, task in tasks.items():
        try:
            found[name] = task()
        except Exception as error:  # noqa: BLE001 - whatever a device raises
            shown = " ".join(str(error).split())[:160]
            found[name] = Check(passed=False, seen=f"{type(error).__name__}: {shown}", allowed="no error")
    return found


def strategies() -> dict[str, Strategy]:
    """One strategy for every way in which noise is computed, over 8 steps."""
    return {
        "independent": Identity(_STEPS),
        "LambdaCGD": LambdaCGD(_STEPS, 0.5),
        "three bands": SquareRoot(_STEPS, 3),
        "BLT": BLT(_STEPS, np.array([0.9, 0.5]), np.array([0.2, 0.1])),
    }


def clipping(device: torch.device, mode: ClippingMode) -> Check:
    """Sums of clipped gradients of two models, against a loop in float64 on the CPU; and single examples.

    Half of the examples are clipped. No example may contribute more than the clip norm: the noise hides that.
    """
    off = longest = 0.0
    cases: list[tuple[nn.Module, Any, Sequence[Tensor]]] = [
        (VisionTransformer(_SIZE), loss_of_images, images_of(_SIZE, _SIZE.batch)),
        (LanguageModel(_SIZE), loss_of_words, words_of(_SIZE, _SIZE.batch)),
    ]
    for model, loss, batch in cases:
        own = [_gradient(copy.deepcopy(model).double(), loss, [part[i] for part in batch]) for i in range(8)]
        norm = float(torch.stack([one.norm() for one in own]).median())
        expected = torch.stack([one * min(1.0, norm / float(one.norm())) for one in own]).sum(0)
        there = model.to(device)
        moved = [part.to(device) for part in batch]
        found = _flat(clipped_gradients(there, loss, moved, norm, clipping_mode=mode).sums)
        off = max(off, float((found - expected).norm() / expected.norm()))
        for place in range(_SIZE.batch):
            single = [part[place : place + 1] for part in moved]
            alone = clipped_gradients(there, loss, single, norm, clipping_mode=mode).sums
            longest = max(longest, float(_flat(alone).norm()) / norm)
    allowed = 1e-2 if device.type == "cuda" else 1e-3  # tensor cores may keep ten bits of float32
    return Check(
        passed=off <= allowed and longest <= 1.0,
        seen=f"sum off by {off:.1e}; longest example {longest:.6f} of the clip norm",
        allowed=f"{allowed:g}; 1",
    )


def norms(device: torch.device) -> Check:
    """Norms from factors, against those of gradients in float64 on the CPU: never smaller.

    Positions of half of the examples cancel each other. The last two have values of which float32 loses the
    last bits, all in one direction, and TF32 too.
    """
    drawn = torch.Generator().manual_seed(0)
    left, right = (torch.randn(16, 16, width, generator=drawn) for width in (300, 128))
    left[:8, 8:], right[:8, 8:] = left[:8, :8], -right[:8, :8] * (1.0 + 2.0**-12)
    left[14], right[14], left[15], right[15] = 2.0**-12, 2.0**-12, 1.0 + 2.0**-12, 1.0
    left[14, :, 0], right[14, :, 0] = 1.0, 1.0
    wide = left.double(), right.double()
    exact = (wide[0].mT @ wide[1]).square().sum(dim=(1, 2))
    lengths = (wide[0].norm(dim=2) * wide[1].norm(dim=2)).sum(dim=1).square()
    found = Factored([Piece(left.to(device), right.to(device))], (300, 128)).squares().cpu()
    low, high = (float(one) for one in ((found - exact) / lengths).aminmax())
    return Check(
        passed=bool((found >= exact).all()) and high <= 2.0**-29,
        seen=f"squares {low:.1e} to {high:.1e} of the squared lengths above",
        allowed="0 to 1.9e-9",
    )


def covariance(device: torch.device, strategy: Strategy, values: int) -> Check:
    """The covariance of the noise over the steps, against sigma^2 C^-1 C^-T; and fourth powers."""
    calibration = calibrate_sigma(strategy, 8.0, 1e-5)
    stream = NoiseStream(calibration, [torch.zeros(values, device=device)])
    rows = np.stack([_row(stream, values, device).numpy() for _ in range(_STEPS)]) / calibration.sigma
    stream.close()
    matrix = strategy.to_dense()
    inverse = np.linalg.inv(matrix)
    expected = inverse @ inverse.T
    found = rows @ rows.T / values
    spread = np.sqrt((np.outer(np.diag(expected), np.diag(expected)) + expected**2) / values)
    worst = float(np.abs((found - expected) / spread).max())
    fourth = float((((matrix @ rows) ** 4).mean() - 3.0) / math.sqrt(96.0 / (_STEPS * values)))
    return Check(
        passed=worst <= _ERRORS and abs(fourth) <= _ERRORS,
        seen=f"covariance off by {worst:.1f} standard errors, fourth powers by {abs(fourth):.1f} "
        f"({stream.generator}, {values:,} values)",
        allowed=f"{_ERRORS:g}",
    )


def resume(device: torch.device) -> Check:
    """A run that was saved in the middle and resumed has the same weights, bit for bit."""
    with _deterministic(), tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "run.pt"
        first = _Run(device)
        first.train(3)
        save_checkpoint(file, first.model, first.optimizer, first.loader)
        first.train(3)
        first.optimizer.close()
        second = _Run(device)
        load_checkpoint(file, second.model, second.optimizer, second.loader)
        second.train(3)
        second.optimizer.close()
    off = float((first.weights() - second.weights()).abs().max())
    return Check(
        passed=torch.equal(first.weights(), second.weights()),
        seen="the same bits" if off == 0.0 else f"weights off by {off:.1e}",
        allowed="the same bits, with torch.use_deterministic_algorithms",
    )


def secure(device: torch.device) -> Check:
    """The noise of the device's cipher is that of the CPU under the same key."""
    calibration = calibrate_sigma(Identity(_STEPS), 8.0, 1e-5)
    there = NoiseStream(calibration, [torch.zeros(5000, device=device)], generator="secure")
    state = there.state_dict()
    found = [_row(there, 5000, device) for _ in range(3)]
    there.close()
    here = NoiseStream(calibration, [torch.zeros(5000)], generator="secure")
    here.load_state_dict(state)
    expected = [_row(here, 5000, torch.device("cpu")) for _ in range(3)]
    here.close()
    same = all(map(torch.equal, expected, found))
    return Check(
        passed=same and float(expected[0].std()) > 0.0,
        seen=f"{'the same bits' if same else 'other numbers'} ({there.generator})",
        allowed="the CPU's numbers under the same key",
    )


def kernel(device: torch.device) -> Check:
    """Whether one kernel adds the noise, which it does once it has the bits of the path without it."""
    allowed = "used for every strategy"
    if device.type != "cuda":
        return Check(passed=None, seen=f"there is none for {device.type}", allowed=allowed)
    if not fused_on(device):
        return Check(passed=False, seen="triton is not installed: noise is slow", allowed=allowed)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for strategy in strategies().values():
            stream = NoiseStream(calibrate_sigma(strategy, 8.0, 1e-5), [torch.zeros(5000, device=device)])
            _row(stream, 5000, device)
            stream.close()
    found = [" ".join(str(one.message).split()) for one in caught if "noise kernel" in str(one.message)]
    return Check(passed=not found, seen=found[0][:200] if found else "used", allowed=allowed)


def waits(device: torch.device) -> Check:
    """How often the host waits for the device in a step, by torch's own count."""
    allowed = "1 a step"
    if device.type != "cuda":
        return Check(passed=None, seen=f"not counted on {device.type}", allowed=allowed)
    run = _Run(device)
    run.train(2)
    batch = next(iter(run.batches()))
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            run.step(batch)
        finally:
            torch.cuda.set_sync_debug_mode(before)
    run.optimizer.close()
    count = sum("synchroniz" in str(one.message) for one in caught)
    return Check(passed=count <= 1, seen=f"{count} in a step", allowed=allowed)


class _Run:
    """Private training of a small network with dropout."""

    def __init__(self, device: torch.device) -> None:
        rng = torch.Generator().manual_seed(0)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            layers = [nn.Linear(16, 64), nn.Dropout(0.2), nn.Linear(64, 2)]
        self._device = device
        self._inner = nn.Sequential(*layers).to(device)
        data = TensorDataset(torch.randn(32, 16, generator=rng), torch.randint(2, (32,), generator=rng))
        calibration = calibrate_sigma(LambdaCGD(_STEPS, 0.5), 8.0, 1e-5, participation=MinSep(4))
        sgd = torch.optim.SGD(self._inner.parameters(), lr=0.1, momentum=0.9)
        self.model, self.optimizer, self.loader = make_private(
            self._inner, sgd, DataLoader(data, batch_size=8), calibration, 1.0, loss=loss_of_images
        )

    def batches(self) -> Iterator[list[Tensor]]:
        """Batches on the device."""
        while True:
            for batch in self.loader:
                yield [part.to(self._device) for part in batch]

    def step(self, batch: list[Tensor]) -> None:
        """One step."""
        self.model.backward(*batch)  # type: ignore[operator]  # of a PerExampleModel
        self.optimizer.step()

    def train(self, steps: int) -> None:
        """Some steps."""
        for batch in itertools.islice(self.batches(), steps):
            self.step(batch)

    def weights(self) -> Tensor:
        """All weights, on the CPU."""
        return torch.cat([param.detach().cpu().flatten() for param in self._inner.parameters()])


def _row(stream: NoiseStream, values: int, device: torch.device) -> Tensor:
    """The next row, as a step of training adds it to a sum; float64, on the CPU."""
    total = torch.zeros(values, dtype=torch.float64, device=device)
    stream.add_step([total])
    return total.cpu()


@contextmanager
def _deterministic() -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # else torch refuses products on CUDA
    torch.use_deterministic_algorithms(True)  # noqa: FBT003 - torch's signature
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def _gradient(model: nn.Module, loss: Any, example: Sequence[Tensor]) -> Tensor:
    """The gradient of one example by an ordinary backward pass, in float64 on the CPU."""
    parts = [part.double() if part.is_floating_point() else part for part in example]
    model.zero_grad()
    loss(model, *parts).backward()
    return torch.cat([param.grad.flatten() for param in model.parameters() if param.grad is not None])


def _flat(sums: Sequence[Tensor | None]) -> Tensor:
    return torch.cat([one.detach().cpu().double().flatten() for one in sums if one is not None])
