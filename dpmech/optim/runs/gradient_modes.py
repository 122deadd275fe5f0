"""Where the gradients of single examples come from: a loss of one example, or Opacus' hooks."""

import abc
import dataclasses
import random
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from torch import Tensor, nn

from dpmech.exceptions import UnsupportedCombinationError
from dpmech.optim.runs.clipping_choice import AskedMode
from dpmech.optim.runs.collated import Padded
from dpmech.optim.runs.example_loss import LossTakes
from dpmech.optim.runs.ghost_hooks import hooked_module
from dpmech.optim.runs.loader import PrivateLoader
from dpmech.optim.runs.lot_optimizer import LotOptimizer
from dpmech.optim.runs.lot_progress import LotProgress
from dpmech.optim.runs.mixing import MixingWatch
from dpmech.optim.runs.per_example_model import PerExampleModel, count_calls
from dpmech.optim.runs.unchanged import ModelHook, Unchanged

__all__ = ["GradientMode", "LossOfOneExample", "OpacusHooks"]


class GradientMode(abc.ABC):
    """One way to the gradients of single examples.

    Attributes:
        whole_lots: whether the loader hands out whole lots, which the model splits; else it hands out parts.
    """

    whole_lots: ClassVar[bool]

    @abc.abstractmethod
    def trained_module(self, model: nn.Module) -> nn.Module:
        """The module whose parameters are trained."""

    @abc.abstractmethod
    def wrapped(
        self, model: nn.Module, private: LotOptimizer, progress: LotProgress, unchanged: Unchanged
    ) -> nn.Module:
        """What the training loop calls in place of `model`."""


@dataclasses.dataclass(frozen=True)
class LossOfOneExample(GradientMode):
    """`torch.func` of a loss: the loop calls `model.backward`.

    Args:
        loss: `loss(model, *example)`, a scalar, or a criterion.
        clipping_mode: as for make_private.
        loss_takes: the same.
    """

    whole_lots: ClassVar[bool] = True

    loss: Callable[..., Tensor]
    clipping_mode: AskedMode = "auto"
    loss_takes: LossTakes = "auto"

    def trained_module(self, model: nn.Module) -> nn.Module:
        """The model itself; one with Opacus' hooks is refused."""
        if _is_grad_sample_module(model):
            raise UnsupportedCombinationError(
                "a GradSampleModule with a loss of one example", supported="the module itself, or no loss"
            )
        return model

    def wrapped(
        self, model: nn.Module, private: LotOptimizer, progress: LotProgress, unchanged: Unchanged
    ) -> nn.Module:
        """A PerExampleModel."""
        del progress
        return PerExampleModel(
            model,
            self.loss,
            private,
            unchanged=unchanged,
            clipping_mode=self.clipping_mode,
            loss_takes=self.loss_takes,
        )


@dataclasses.dataclass(frozen=True)
class OpacusHooks(GradientMode):
    """Opacus' hooks: the loop calls `loss.backward()` on the mean over the batch.

    Args:
        clipping_mode: as for make_private.
    """

    whole_lots: ClassVar[bool] = False

    clipping_mode: AskedMode = "auto"

    def trained_module(self, model: nn.Module) -> nn.Module:
        """The module inside, where the model has the hooks already."""
        given: Any = model
        if not _is_grad_sample_module(model):
            return model
        if getattr(getattr(model, "_examples", None), "copied", False):
            raise UnsupportedCombinationError(
                "a copy of a model of make_private, whose hooks are those of another run",
                supported="an ordinary model with the state_dict() of the copy",
            )
        if self.clipping_mode == "ghost" and not hasattr(model, "max_grad_norm"):
            raise UnsupportedCombinationError(
                "a GradSampleModule forms the gradient of every example",
                supported="the module itself with clipping_mode='ghost', or clipping_mode='per_example'",
            )
        inner: nn.Module = given._module
        return inner

    def wrapped(
        self, model: nn.Module, private: LotOptimizer, progress: LotProgress, unchanged: Unchanged
    ) -> nn.Module:
        """A module with Opacus' hooks, whose module counts its calls and checks what may not change."""
        inner = self.trained_module(model)
        if _is_grad_sample_module(model):
            # Opacus' fast gradient clipping leaves no gradients of single examples; it alone has this.
            hooked, ghost = model, hasattr(model, "max_grad_norm")
            handed = getattr(model, "_examples", None)
            if isinstance(handed, _Handed):
                handed.follow(private)
        elif any(hasattr(part, "autograd_grad_sample_hooks") for part in model.modules()):
            raise UnsupportedCombinationError(
                "the model has Opacus' hooks already, of an earlier GradSampleModule",
                supported="that GradSampleModule itself (what make_private returned), or remove_hooks()",
            )
        else:
            ghost = self.clipping_mode != "per_example"
            hooked = hooked_module(model, _Handed(private), ghost=ghost)
        private.clipping_mode = "ghost" if ghost else "per_example"
        private.watch_gradients(inner)
        lots = private.loader.sampler.fingerprint()
        watch = MixingWatch(
            inner,
            _by_rows(hooked, inner),
            lambda: progress.handed if progress.batches else None,
            lambda: random.Random(f"{lots} {progress.batches}"),  # public: anybody can toss it again
            lambda count: _trial(hooked, count),
            _padded_of(private.loader),
        )
        count_calls(
            inner,
            progress,
            [param for param in inner.parameters() if param.requires_grad],
            watch,
            lambda: bool(vars(hooked)["hooks_enabled"]),
            weakref.WeakMethod(private.forget_gradients),
        )
        inner.register_forward_hook(ModelHook(lambda *_: unchanged.check_written()))
        return hooked


def _padded_of(loader: PrivateLoader) -> Callable[[], Padded | None]:
    """What the loader says of padding; weak: hooks in a graph would keep a run alive for good."""
    known = weakref.WeakMethod(loader.take_padded)

    def taken() -> Padded | None:
        take = known()
        return None if take is None else take()

    return taken


class _Handed:
    """How many examples the newest batch of a run has. Copies, and what is saved, know of no run."""

    def __init__(self, private: LotOptimizer | None = None) -> None:
        self._private = None if private is None else weakref.ref(private)
        self.tried: int | None = None

    def follow(self, private: LotOptimizer) -> None:
        """From now on count for this run: the model was made private again."""
        self._private = weakref.ref(private)

    def __call__(self) -> int | None:
        if self.tried is not None:
            return self.tried
        private = None if self._private is None else self._private()
        return None if private is None else private.handed_examples

    @property
    def copied(self) -> bool:
        """Whether it belongs to a copy of a model, which no optimizer trains."""
        return self._private is None

    def __reduce__(self) -> tuple[Any, ...]:
        return _Handed, ()


def _by_rows(hooked: Any, inner: nn.Module) -> dict[nn.Module, str]:  # noqa: ANN401 - Opacus'
    """The layers whose rows are taken for examples, and what to call them; none where these come second."""
    if not hooked.batch_first:
        return {}
    names = {layer: name for name, layer in inner.named_modules()}
    return {
        layer: f"{names.get(layer) or 'the model itself'} ({type(layer).__name__})"
        for layer in inner.modules()
        if any(getattr(hook, "__self__", None) is hooked for hook in layer._forward_hooks.values())
    }


@contextmanager
def _trial(hooked: Any, count: int) -> Iterator[None]:  # noqa: ANN401 - Opacus'
    """Keep hooks out of a call on so many examples."""
    handed = getattr(hooked, "_examples", None)
    enabled, hooked.hooks_enabled = hooked.hooks_enabled, False
    if isinstance(handed, _Handed):
        handed.tried = count
    try:
        yield
    finally:
        hooked.hooks_enabled = enabled
        if isinstance(handed, _Handed):
            handed.tried = None


def _is_grad_sample_module(model: object) -> bool:
    return any(kind.__name__ == "AbstractGradSampleModule" for kind in type(model).__mro__)
