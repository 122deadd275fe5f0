"""Where the gradients of single examples come from: a loss of one example, or Opacus' hooks."""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor, nn

from dpmech.exceptions import MissingDependencyError, UnsupportedCombinationError
from dpmech.optim.runs.lot_optimizer import LotOptimizer
from dpmech.optim.runs.lot_progress import LotProgress
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
        loss: `loss(model, *example)`, a scalar.
        microbatch_size: examples held at once; None for whole lots.
    """

    whole_lots: ClassVar[bool] = True

    loss: Callable[..., Tensor]
    microbatch_size: int | None

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
            model, self.loss, private, microbatch_size=self.microbatch_size, unchanged=unchanged
        )


@dataclasses.dataclass(frozen=True)
class OpacusHooks(GradientMode):
    """Opacus' GradSampleModule: the loop calls `loss.backward()` on the mean over the batch."""

    whole_lots: ClassVar[bool] = False

    def trained_module(self, model: nn.Module) -> nn.Module:
        """The module inside, where the model has the hooks already."""
        given: Any = model
        inner: nn.Module = given._module if _is_grad_sample_module(model) else model
        return inner

    def wrapped(
        self, model: nn.Module, private: LotOptimizer, progress: LotProgress, unchanged: Unchanged
    ) -> nn.Module:
        """A GradSampleModule, whose module counts its calls and checks what may not change."""
        del private
        hooked = _grad_sample_module(model)
        inner = self.trained_module(model)
        count_calls(inner, progress, [param for param in inner.parameters() if param.requires_grad])
        inner.register_forward_hook(ModelHook(lambda *_: unchanged.check_written()))
        return hooked


def _is_grad_sample_module(model: object) -> bool:
    return any(kind.__name__ == "AbstractGradSampleModule" for kind in type(model).__mro__)


def _grad_sample_module(model: nn.Module) -> nn.Module:
    if _is_grad_sample_module(model):
        return model
    try:
        from opacus.grad_sample import GradSampleModule
    except ImportError:
        raise MissingDependencyError("opacus", "opacus") from None
    if any(hasattr(part, "autograd_grad_sample_hooks") for part in model.modules()):
        raise UnsupportedCombinationError(
            "the model has Opacus' hooks already, of an earlier GradSampleModule",
            supported="that GradSampleModule itself (what make_private returned), or remove_hooks()",
        )
    wrapped: nn.Module = GradSampleModule(model, batch_first=True, loss_reduction="mean")
    return wrapped
