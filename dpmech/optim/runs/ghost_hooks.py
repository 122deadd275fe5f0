"""Opacus' fast-gradient-clipping module, whose hooks keep factors of gradients where these cost less."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from dpmech.exceptions import MissingDependencyError
from dpmech.optim.clipping import (
    Factored,
    Piece,
    bias_gradients,
    coverable,
    factors_of,
    joined,
    matrix_shape,
    positions_of,
    prefers_factors,
)

__all__ = ["ghost_module", "grad_sample_module"]


def grad_sample_module(model: nn.Module) -> nn.Module:
    """Opacus' GradSampleModule around a model.

    Raises:
        MissingDependencyError: if Opacus is not installed.
    """
    try:
        from opacus.grad_sample import GradSampleModule
    except ImportError:
        raise MissingDependencyError("opacus", "opacus") from None
    wrapped: nn.Module = GradSampleModule(model, batch_first=True, loss_reduction="mean")
    return wrapped


def ghost_module(model: nn.Module, examples: Callable[[], int | None]) -> nn.Module:
    """Opacus' GradSampleModuleFastGradientClipping around a model, for one backward pass of the mean loss.

    Its hooks take what goes into a layer and the gradient of what comes out. Opacus forms norms of them and
    goes backward a second time, over all that the parameters are used for; norms of uses that it has no
    hook on are missing then. Here norms and sums come from the same factors.

    Args:
        model: the model.
        examples: of the newest batch, where that is known.

    Raises:
        MissingDependencyError: if Opacus is not installed.
    """
    try:
        import opacus.grad_sample
    except ImportError:
        raise MissingDependencyError("opacus", "opacus") from None
    del opacus
    wrapped: nn.Module = _ghost_class()(model, examples)
    return wrapped


@functools.cache
def _ghost_class() -> Any:  # noqa: ANN401 - a class that exists where Opacus does
    from opacus.grad_sample import GradSampleModuleFastGradientClipping, create_or_accumulate_grad_sample
    from opacus.grad_sample.functorch import ft_compute_per_sample_gradient
    from opacus.grad_sample.grad_sample_module import promote_current_grad_sample

    class GhostModule(GradSampleModuleFastGradientClipping):  # type: ignore[misc]  # untyped
        """One backward pass leaves a Factored, or a gradient for every example, on each parameter."""

        def __init__(self, model: nn.Module, examples: Callable[[], int | None]) -> None:
            super().__init__(model, batch_first=True, loss_reduction="mean")
            trained = [param for param in model.parameters() if param.requires_grad]
            self._covered = set(coverable(model, trained)[0])
            self._pieces: dict[int, list[Piece]] = {}
            for layer in self._covered:
                if isinstance(layer, nn.Embedding):
                    layer.register_forward_pre_hook(_Spread(examples))

        def capture_activations_hook(
            self, module: nn.Module, forward_input: list[Tensor], _forward_output: Tensor
        ) -> None:
            """As that of GradSampleModule: a layer may be called several times."""
            if not module.training or not torch.is_grad_enabled() or not self.hooks_enabled:
                return
            if not any(param.requires_grad for param in module.parameters(recurse=False)):
                return
            layer: Any = module
            if not hasattr(layer, "activations"):
                layer.activations = []
            layer.activations.append([one.detach() for one in forward_input])
            for param in _trained(module):
                param._forward_counter += 1

        def capture_backprops_hook(
            self,
            module: nn.Module,
            _forward_input: Tensor,
            forward_output: list[Tensor],
            loss_reduction: str,
            batch_first: bool,  # noqa: FBT001 - Opacus' signature
        ) -> None:
            """Keep factors, or form gradients, of one call of a layer."""
            if not self.hooks_enabled:
                return
            activations, backprops = self.rearrange_grad_samples(
                module=module,
                backprops=forward_output[0].detach(),
                loss_reduction=loss_reduction,
                batch_first=batch_first,
            )
            with torch.autocast(backprops.device.type, enabled=False):
                if module in self._covered and _by_factors(module, backprops):
                    weight, bias = (module._parameters.get(name) for name in ("weight", "bias"))
                    if weight is not None and weight.requires_grad:
                        piece = factors_of(module, activations[0], backprops)
                        self._pieces.setdefault(id(weight), []).append(piece)
                    formed = {} if bias is None else {bias: bias_gradients(module, backprops)}
                else:
                    sampler = self.GRAD_SAMPLERS.get(type(module), ft_compute_per_sample_gradient)
                    formed = sampler(module, activations, backprops)
            for param, sample in formed.items():
                create_or_accumulate_grad_sample(
                    param=param, grad_sample=sample, max_batch_len=module.max_batch_len
                )
            for param in _trained(module):
                param._forward_counter -= 1
                if param._forward_counter == 0:
                    self._finish(param)
            if not module.activations and hasattr(module, "max_batch_len"):
                del module.max_batch_len

        def _finish(self, param: Tensor) -> None:
            pieces = self._pieces.pop(id(param), [])
            if pieces:
                found = joined(pieces, param.shape)
                other = getattr(param, "_current_grad_sample", None)
                if other is not None:
                    found = other + (found.formed() if isinstance(found, Factored) else found)
                param._current_grad_sample = found  # type: ignore[attr-defined]  # Opacus'
            promote_current_grad_sample(param)

    GhostModule.__module__, GhostModule.__qualname__ = __name__, "GhostModule"
    return GhostModule


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a class that exists where Opacus does
    """The class, by which pickles find it again."""
    if name == "GhostModule":
        return _ghost_class()
    raise AttributeError(name)


def _trained(module: nn.Module) -> list[Any]:
    """The parameters that the hooks of a module are for: of its parts too, where torch.func stands for it."""
    return [param for param in module.parameters() if param.requires_grad]


def _by_factors(layer: nn.Module, backprops: Tensor) -> bool:
    weight = layer._parameters["weight"]
    if weight is None or not weight.requires_grad:
        return True
    return prefers_factors(positions_of(layer, backprops.shape[1:]), *matrix_shape(weight))


class _Spread:
    """Repeats indices that came as a batch of one for all examples: positions, which others add to theirs.

    Otherwise what comes back for them is a sum over the examples, of which nobody can clip one.
    """

    def __init__(self, examples: Callable[[], int | None] | None = None) -> None:
        self._examples = examples

    def __call__(self, layer: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """The indices, for as many examples as the batch has."""
        count = None if self._examples is None else self._examples()
        if not given or not layer.training or not torch.is_grad_enabled() or count is None:
            return None
        index = given[0]
        if index.ndim != 2 or index.shape[0] != 1 or count <= 1:
            return None
        return (index.expand(count, -1), *given[1:])

    def __deepcopy__(self, memo: object) -> "_Spread":
        return _Spread()

    def __reduce__(self) -> tuple[Any, ...]:
        return _Spread, ()
