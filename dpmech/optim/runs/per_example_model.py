"""PerExampleModel: a model whose `backward` gives an optimizer clipped sums, by torch.func."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dpmech.exceptions import InvalidParameterError, UnsupportedCombinationError
from dpmech.optim.clipping import clipped_gradients
from dpmech.optim.private_optimizer import PrivateOptimizer
from dpmech.optim.runs.lot_progress import LotProgress
from dpmech.optim.runs.unchanged import ModelHook, Unchanged

__all__ = ["PerExampleModel", "check_model", "count_calls"]


class PerExampleModel(nn.Module):
    """A model and its loss of one example, differentiated example by example.

    Calls, parameters and state dicts are those of the model itself.

    Args:
        model: any module that treats examples one by one and works under `torch.func.vmap`.
        loss: `loss(model, *example)`, a scalar, without a batch dimension.
        optimizer: what takes the clipped sums.
        microbatch_size: how many examples to differentiate at once; None for all of a batch.
        unchanged: what compares the contents of the model; None for nothing.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[..., Tensor],
        optimizer: PrivateOptimizer,
        *,
        microbatch_size: int | None = None,
        unchanged: Unchanged | None = None,
    ) -> None:
        super().__init__()
        if not callable(loss):
            raise InvalidParameterError("loss", loss, "a function loss(model, *example) of one example")
        self.module = model
        self._loss = loss
        self._optimizer = optimizer
        self._microbatch_size = microbatch_size
        self._unchanged = unchanged

    def forward(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - what the model takes and returns
        """The model's own output.

        Raises:
            UnsupportedCombinationError: if the call changed what the model holds.
        """
        result = self.module(*args, **kwargs)
        self._check_written()
        return result

    def backward(self, *batch: Tensor, weights: Tensor | None = None) -> None:
        """Hand the optimizer the sum of clipped gradients over a batch; `optimizer.step()` comes next.

        Args:
            *batch: tensors with the examples along their first dimension, as the loss takes them.
            weights: None, or zeros and ones, shape (examples,), to leave out padding.

        Raises:
            UnsupportedCombinationError: if the loss changed what the model holds, or as
                `PrivateOptimizer.accumulate`.
        """
        total = clipped_gradients(
            self.module,
            self._loss,
            batch,
            self._optimizer.clipping,
            microbatch_size=self._microbatch_size,
            weights=weights,
        )
        self._check_written()
        self._optimizer.accumulate(total)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - torch's signature
        """That of the model, under its own names."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - torch's signature
        """That of the model."""
        return self.module.load_state_dict(*args, **kwargs)

    def _check_written(self) -> None:
        if self._unchanged is not None:
            self._unchanged.check_written()


def check_model(model: object, params: Sequence[Tensor]) -> nn.Module:
    """Return `model` if one example's gradient depends on that example alone, and `params` are its own.

    A normalisation layer that is in eval mode now is refused when it is used in training mode later.

    Raises:
        InvalidParameterError: if it is no module, or optimizer and model train different parameters.
        UnsupportedCombinationError: if a layer mixes examples or keeps statistics of them, or the model
            reduces gradients on its own.
    """
    if not isinstance(model, nn.Module):
        raise InvalidParameterError("model", model, "a torch.nn.Module")
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise UnsupportedCombinationError(
            "DistributedDataParallel averages gradients before they are clipped",
            supported="the module itself: clipped sums are added over processes here",
        )
    if any(type(part).__name__ == "FullyShardedDataParallel" for part in model.modules()):
        raise UnsupportedCombinationError(
            "FullyShardedDataParallel (FSDP1) hides which part of a parameter is here",
            supported="fully_shard (FSDP2)",
        )
    for layer in model.modules():
        if isinstance(layer, nn.modules.batchnorm._NormBase):
            _refuse_statistics(layer)
            # `model.train()` at the start of an epoch switches a frozen layer back.
            layer.register_forward_pre_hook(_refuse_statistics)
    own = {id(param) for param in model.parameters() if param.requires_grad}
    trained = {id(param) for param in params if param.requires_grad}
    if own != trained:
        raise InvalidParameterError(
            "optimizer",
            f"with {len(trained - own)} parameters that are not the model's, and without "
            f"{len(own - trained)} that require gradients",
            "over the model's parameters that require gradients",
        )
    return model


def _refuse_statistics(layer: nn.modules.batchnorm._NormBase, inputs: object = None) -> None:
    """Refuse statistics over a batch, which mix examples, and running ones, which no noise protects."""
    del inputs
    batched = isinstance(layer, nn.modules.batchnorm._BatchNorm)
    mixes = batched and (layer.training or layer.running_mean is None)
    keeps = layer.training and layer.running_mean is not None
    if mixes or keeps:
        faults = ["mixes examples, so that clipping one does not bound what it adds"] * mixes
        faults += ["keeps running statistics without noise"] * keeps
        raise UnsupportedCombinationError(
            f"a {type(layer).__name__} layer {', and '.join(faults)}",
            supported="GroupNorm or LayerNorm, or running statistics that are fixed: the layer in eval mode, "
            "where model.train() has to be followed by its own .eval()",
        )


def count_calls(model: nn.Module, progress: LotProgress, trained: Sequence[Tensor]) -> None:
    """Have the calls of a model and of its parts counted, by the parameters that they may use.

    A part that is called within a call counts with it: weights may be used several times in one.
    """
    calls = _Calls(progress, {id(param) for param in trained})
    for part in model.modules():
        part.register_forward_pre_hook(ModelHook(calls.entered))
        part.register_forward_hook(ModelHook(calls.left), always_call=True)


class _Calls:
    """The outermost call with gradients that is going on, if any."""

    def __init__(self, progress: LotProgress, trained: set[int]) -> None:
        self._progress = progress
        self._trained = trained
        self._outermost: nn.Module | None = None
        self._depth = 0
        self._batch = 0

    def entered(self, part: nn.Module, *_: object) -> None:
        if self._batch != self._progress.batches:  # a call that never ended (an interrupt) ends here
            self._batch, self._outermost, self._depth = self._progress.batches, None, 0
        if self._outermost is None and torch.is_grad_enabled():
            self._outermost = part
        if self._outermost is not part:
            return
        self._depth += 1
        if torch.is_grad_enabled():
            used = [id(param) for param in part.parameters() if id(param) in self._trained]
            self._progress.note_call(used, training=any(one.training for one in part.modules()))

    def left(self, part: nn.Module, *_: object) -> None:
        if self._outermost is part:
            self._depth -= 1
            if self._depth == 0:
                self._outermost = None
