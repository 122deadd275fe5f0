"""Times of noise and of training steps on a device."""

import dataclasses
import functools
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from dpmech.calibration import calibrate_sigma
from dpmech.mechanism import BLT, Identity, LambdaCGD, Strategy
from dpmech.optim.device_check.models import (
    LanguageModel,
    Size,
    VisionTransformer,
    images_of,
    loss_of_images,
    loss_of_words,
    words_of,
)
from dpmech.optim.noise import NoiseStream
from dpmech.optim.runs import free_memory, least_seconds, make_private
from dpmech.schemes.fixed_order import MinSep

_N = 16  # steps of a run
_SHARE = 0.8  # of the free memory that may be filled
_BYTES = 40  # of a value: the sum, its copy, two buffers in float64, and chunks
_LONGEST = 5.0  # seconds that a step of noise may take by the time of a smaller one


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What is measured.

    Attributes:
        values: numbers of parameters for the noise.
        vision: of the vision transformer.
        language: of the language model.
    """

    values: tuple[int, ...]
    vision: Size
    language: Size


def sizes_for(device: torch.device, *, small: bool) -> Sizes:
    """What fits a device; `small` takes a second or two on a CPU."""
    if small:
        tiny = Size(width=32, depth=1, heads=2, length=4, batch=4)
        return Sizes((10_000,), tiny, tiny)
    values = (1_000_000, 100_000_000, 1_000_000_000)
    if device.type == "cpu":
        return Sizes(values, Size(192, 4, 3, 64, 16), Size(256, 4, 4, 64, 8))
    return Sizes(values, Size(768, 12, 12, 196, 32), Size(2048, 24, 16, 256, 8))


@dataclasses.dataclass(frozen=True)
class Measured:
    """One line of a table.

    Attributes:
        what: the case.
        seconds: the least of three; None if it was not measured.
        against: seconds of what it is compared with.
        memory: peak of the memory in bytes; None if it is not known.
        why: why it was not measured.
    """

    what: str
    seconds: float | None
    against: float | None = None
    memory: int | None = None
    why: str = ""


def noise(device: torch.device, sizes: Sizes) -> Iterator[Measured]:
    """Seconds to add a row of noise to a sum, against those to copy it."""
    strategies: dict[str, Strategy] = {
        "independent": Identity(_N),
        "LambdaCGD": LambdaCGD(_N, 0.9),
        "BLT, two buffers": BLT(_N, np.array([0.9, 0.5]), np.array([0.2, 0.1])),
    }
    for name, strategy in strategies.items():
        earlier: tuple[int, float] | None = None
        for count in sizes.values:
            what = f"{name}, {count:,} values"
            yield (measured := _noise_of(device, what, strategy, count, earlier))
            if measured.seconds is not None:
                earlier = count, measured.seconds


def _noise_of(
    device: torch.device,
    what: str,
    strategy: Strategy,
    count: int,
    earlier: tuple[int, float] | None,
) -> Measured:
    if earlier is not None and earlier[1] * count / earlier[0] > _LONGEST:
        return Measured(what, None, why=f"would take {earlier[1] * count / earlier[0]:.0f} s")
    if _BYTES * count > _SHARE * free_memory(device):
        return Measured(what, None, why="does not fit into memory")
    try:
        total = torch.zeros(count, device=device)
        copied = least_seconds(functools.partial(torch.empty_like(total).copy_, total), device)
        stream = NoiseStream(calibrate_sigma(strategy, 8.0, 1e-5), [total])
        seconds = least_seconds(lambda: stream.add_step([total]), device)
        stream.close()
    except torch.OutOfMemoryError:
        return Measured(what, None, why="out of memory")
    return Measured(what, seconds, copied)


def steps(device: torch.device, sizes: Sizes) -> Iterator[Measured]:
    """Seconds of a training step, private and not."""
    cases: list[tuple[str, Size, Callable[[], nn.Module], Any, Sequence[Tensor]]] = [
        (
            "vision transformer",
            sizes.vision,
            lambda: VisionTransformer(sizes.vision),
            loss_of_images,
            images_of(sizes.vision, 4 * sizes.vision.batch),
        ),
        (
            "language model, LoRA",
            sizes.language,
            lambda: LanguageModel(sizes.language),
            loss_of_words,
            words_of(sizes.language, 4 * sizes.language.batch),
        ),
    ]
    for name, size, make, loss, data in cases:
        with torch.device("cpu"):
            model = make()
        trained = sum(param.numel() for param in model.parameters() if param.requires_grad)
        every = sum(param.numel() for param in model.parameters())
        shape = f"{every:,} parameters, {trained:,} trained, batch of {size.batch}"
        plain: float | None = None
        ways: dict[str, Callable[..., Callable[[], object]]] = {f"not private ({shape})": _plain}
        ways |= {mode: functools.partial(_private, mode=mode) for mode in ("per_example", "ghost", "auto")}
        if importlib.util.find_spec("opacus") is not None:
            ways["Opacus, GradSampleModule"] = _opacus
        for way, begin in ways.items():
            result = _step_of(device, f"{name}: {way}", begin, (make, loss, data, size), plain)
            plain = result.seconds if plain is None else plain
            yield result


def _step_of(
    device: torch.device,
    what: str,
    begin: Callable[..., Callable[[], object]],
    given: tuple[Any, ...],
    plain: float | None,
) -> Measured:
    cuda = device.type == "cuda"
    try:
        step = begin(device, *given)
        step()
        if cuda:
            torch.cuda.reset_peak_memory_stats(device)
        seconds = least_seconds(step, device)
    except torch.OutOfMemoryError:
        return Measured(what, None, why="out of memory")
    except Exception as error:  # noqa: BLE001 - another library, or a device, may refuse a model in any way
        return Measured(what, None, why=f"{type(error).__name__}: {' '.join(str(error).split())[:100]}")
    return Measured(what, seconds, plain, int(torch.cuda.max_memory_allocated(device)) if cuda else None)


def _plain(
    device: torch.device, make: Any, loss: Any, data: Any, size: Size, *, wrap: Any = lambda *pair: pair
) -> Callable[[], object]:
    inner = make().to(device)
    model, optimizer = wrap(inner, _sgd(inner))
    batch = [part[: size.batch].to(device) for part in data]

    def step() -> None:
        optimizer.zero_grad()
        loss(model, *batch).backward()
        optimizer.step()

    return step


def _opacus(*given: Any) -> Callable[[], object]:
    import opacus
    import opacus.optimizers

    def wrap(model: Any, sgd: Any) -> tuple[Any, Any]:
        private = opacus.optimizers.DPOptimizer(
            sgd, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=given[-1].batch
        )
        return opacus.GradSampleModule(model), private

    return _plain(*given, wrap=wrap)


def _private(
    device: torch.device, make: Any, loss: Any, data: Any, size: Size, *, mode: Any
) -> Callable[[], object]:
    inner = make().to(device)
    calibration = calibrate_sigma(Identity(_N), 8.0, 1e-5, participation=MinSep(4))
    loader = DataLoader(TensorDataset(*data), batch_size=size.batch)
    model, optimizer, batches = make_private(
        inner, _sgd(inner), loader, calibration, 1.0, loss=loss, clipping_mode=mode
    )
    left = ([part.to(device) for part in batch] for _ in range(_N) for batch in batches)

    def step() -> None:
        model.backward(*next(left))  # type: ignore[operator]  # of a PerExampleModel
        optimizer.step()

    return step


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([param for param in model.parameters() if param.requires_grad], lr=0.01)
