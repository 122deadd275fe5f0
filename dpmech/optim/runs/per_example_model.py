"""PerExampleModel: a model whose `backward` passes clipped sums to an optimizer, using torch.func."""

import dataclasses
import math
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeAlias

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dpmech.exceptions import InvalidParameterError, UnsupportedCombinationError
from dpmech.optim.clipping import (
    Batch,
    ClippedSum,
    ClippingMode,
    ExampleGradients,
    Factored,
    clip_and_sum,
    spared_random_numbers,
)
from dpmech.optim.private_optimizer import PrivateOptimizer
from dpmech.optim.processes import is_sharded
from dpmech.optim.runs.attributes import Afresh
from dpmech.optim.runs.batch_optimizer import BatchOptimizer
from dpmech.optim.runs.collated import check_padding
from dpmech.optim.runs.example_loss import ExampleLoss, LossTakes
from dpmech.optim.runs.loader import BatchProgress
from dpmech.optim.runs.mixing import MixingWatch
from dpmech.optim.runs.same_draws import repeatable
from dpmech.optim.runs.unchanged import ModelHook, Unchanged

AskedMode: TypeAlias = Literal["auto", "per_example", "ghost"]
_ASKED = ("auto", "per_example", "ghost")
# With fewer values than this in all covered weights, factoring a layer costs more than it saves (measured).
_WORTH_IT = 1024
_TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-3}  # relative; 0.1 for lower precision
_FLOOR = 1e-5  # relative to the largest gradient of a parameter


@dataclasses.dataclass(frozen=True)
class ClippingChoice:
    """How the gradients of a run are clipped.

    Attributes:
        mode: "per_example" or "ghost".
        reason: the reason, in words.
    """

    mode: ClippingMode
    reason: str

    def __str__(self) -> str:
        return f"clipping_mode {self.mode!r}: {self.reason}"


def check_asked(mode: object) -> None:
    """Raise InvalidParameterError unless `mode` is the name of a mode."""
    if mode not in _ASKED:
        raise InvalidParameterError("clipping_mode", mode, f"one of {_ASKED}")


def choose(
    asked: AskedMode, formed: ExampleGradients, factored: ExampleGradients, batch: Batch
) -> ClippingChoice:
    """Choose by the model and the first example of a batch, whose gradients are compared.

    Only shapes matter, so that every process and every resumed run makes the same choice: "ghost" if the
    weights whose factors are cheaper than their gradients have 1,024 values or more in total.

    Args:
        asked: the requested mode.
        formed: per-example gradients.
        factored: the same gradients with factors.
        batch: with at least one example.

    Raises:
        UnsupportedCombinationError: if "ghost" is requested, and gradients are not determined by the inputs
            and output gradients of layers.
    """
    if asked == "per_example":
        return ClippingChoice("per_example", "as requested")
    example = [tensor[:1] for tensor in batch.tensors]
    values = factored.covered_values(batch, example)
    if asked == "auto" and values < _WORTH_IT:
        return ClippingChoice(
            "per_example",
            f"{values} weights have factors that are cheaper than their gradients, under {_WORTH_IT}",
        )
    share = f"{values} of {sum(param.numel() for param in formed.trained)} weights by factors"
    if asked == "ghost":
        _check_same(formed, factored, batch, example)
        return ClippingChoice("ghost", share)
    try:
        _check_same(formed, factored, batch, example)
    except UnsupportedCombinationError as error:
        return ClippingChoice("per_example", error.reason)
    return ClippingChoice("ghost", share)


def _check_same(
    formed: ExampleGradients, factored: ExampleGradients, batch: Batch, example: list[Tensor]
) -> None:
    """Raise UnsupportedCombinationError unless both have the same gradients of one example."""
    both = []
    for gradients in (formed, factored):
        with spared_random_numbers(example):
            samples, _ = gradients.samples(batch, example)
        both.append([_dense(sample) for sample in samples])
    norms = [0.0 if plain is None else float(plain.norm()) for plain in both[0]]
    # If everything cancels, as for key biases under a softmax, only rounding errors are left.
    floor = _FLOOR * max(norms)
    names = []
    for name, param, norm, plain, other in zip(formed.names, formed.trained, norms, *both, strict=True):
        if plain is None or other is None:
            continue
        # NaN and infinities, which data may cause, are not a difference.
        if float((plain - other).norm()) > _TOLERANCES.get(param.dtype, 0.1) * norm + floor:
            names.append(name)
    if names:
        raise UnsupportedCombinationError(
            f"the gradients of {', '.join(names)} are not determined by what goes in and out of their layers",
            supported="clipping_mode='per_example'",
        )


def _dense(sample: Tensor | Factored | None) -> Tensor | None:
    if isinstance(sample, Factored):
        return sample.weighted_sum(torch.ones(1, dtype=torch.float64, device=sample.device), None)
    return None if sample is None else sample[0].double()


_SHARE = 0.5  # of the free memory: other processes need some, and allocators cannot use all of it
_FEW, _MORE = 2, 6  # trial numbers of examples


def largest_batch(run: Callable[[int], object], device: torch.device, most: int) -> int:
    """Largest number of examples that fits into memory.

    Gradients of 2 and of 6 examples are computed; memory is extrapolated linearly. At most half of the free
    memory is used.

    Args:
        run: computes the gradients of a number of examples, and discards them.
        device: the device.
        most: upper limit, at least 1.

    Returns:
        In [1, most]; a power of two if it is less than `most`.
    """
    run(_FEW)  # a first run allocates memory that stays
    few, more = (memory_of(lambda count=count: run(count), device) for count in (_FEW, _MORE))  # type: ignore[misc]  # a default binds it
    each = max((more - few) / (_MORE - _FEW), 1.0)
    fixed = max(few - _FEW * each, 0.0)
    fits = int((_SHARE * free_memory(device) - fixed) / each)
    return most if fits >= most else 1 << max(fits.bit_length() - 1, 0)


def memory_of(run: Callable[[], object], device: torch.device) -> int:
    """The peak of memory held by torch during a run, beyond what it held before, in bytes.

    On CPUs excluding temporary memory inside operations.
    """
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        run()
        return int(torch.cuda.max_memory_allocated(device) - before)
    held = _Held()
    with held:
        run()
    return held.most


class _Held(TorchDispatchMode):
    """Counts the bytes of the tensors that operations create, while anything refers to them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.most = 0
        self._here: dict[Any, int] = {}
        self._before: set[Any] = set()

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: object,
        args: Any = (),  # noqa: ANN401 - torch's signature
        kwargs: Any = None,  # noqa: ANN401 - the same
    ) -> Any:  # noqa: ANN401 - the same
        """Run the operation and count its results."""
        del types
        reference: Any = StorageWeakRef  # untyped
        for one in tree_leaves((args, kwargs)):
            if isinstance(one, Tensor) and (ref := reference(one.untyped_storage())) not in self._here:
                self._before.add(ref)
        result = func(*args, **(kwargs or {}))
        for one in tree_leaves(result):
            if isinstance(one, Tensor):
                storage = one.untyped_storage()
                ref = reference(storage)
                if ref not in self._before:
                    self._here[ref] = storage.nbytes()
        self._here = {ref: size for ref, size in self._here.items() if not ref.expired()}
        self.most = max(self.most, sum(self._here.values()))
        return result


def free_memory(device: torch.device) -> int:
    """Free bytes: of the device, or of the machine and its control group."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    group = Path("/sys/fs/cgroup")
    try:
        free = _available()
        limit = (group / "memory.max").read_text().strip()
        if limit != "max":
            free = min(free, int(limit) - int((group / "memory.current").read_text()))
    except (OSError, ValueError):
        pass  # no such files: use the value of the machine
    return max(free, 0)


def _available() -> int:
    """Memory that Linux can provide without swapping, caches included."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise ValueError("no MemAvailable")


class PerExampleModel(nn.Module):
    """A model and its loss of one example, differentiated per example.

    Calls, parameters and state dicts are those of the wrapped model.

    Args:
        model: any module that processes examples independently and works under `torch.func.vmap`.
        loss: `loss(model, *example)`, a scalar; each example is a batch of one, or has no batch dimension if
            the loss adds it. Or a criterion of outputs and targets, such as `nn.CrossEntropyLoss()`.
        optimizer: receives the clipped sums.
        microbatch_size: number of examples to differentiate at once; None for the whole batch.
        unchanged: compares the contents of the model; None for no comparison.
        clipping_mode: "auto", "per_example" or "ghost", as for make_private.
        loss_takes: as for make_private.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[..., Tensor],
        optimizer: PrivateOptimizer,
        *,
        microbatch_size: int | None = None,
        unchanged: Unchanged | None = None,
        clipping_mode: AskedMode = "auto",
        loss_takes: LossTakes = "auto",
    ) -> None:
        super().__init__()
        self.module = model
        self._loss = ExampleLoss(loss, loss_takes)
        self._afresh = Afresh(self._loss, model)
        self._optimizer = optimizer
        self._microbatch_size = microbatch_size
        self._unchanged = unchanged
        check_asked(clipping_mode)
        self._asked: AskedMode = clipping_mode
        self._choice: ClippingChoice | None = None
        self._gradients: ExampleGradients | None = None

    @property
    def clipping_choice(self) -> ClippingChoice | None:
        """The clipping mode and its reason; None before the first example."""
        return self._choice

    def forward(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - what the model takes and returns
        """The output of the model.

        Raises:
            UnsupportedCombinationError: if the call changed the contents of the model.
        """
        result = self.module(*args, **kwargs)
        self._check_written()
        return result

    def backward(
        self,
        *batch: Any,  # noqa: ANN401 - any batch
        weights: Tensor | None = None,
        return_loss: bool = False,
        **named: Any,  # noqa: ANN401 - the same
    ) -> Tensor | None:
        """Pass the sum of clipped gradients over a batch to the optimizer; then call `optimizer.step()`.

        An empty batch is passed on without calling the model.

        Args:
            *batch: tensors with the examples along their first dimension, as the loss takes them; also nested
                in tuples, lists and dicts.
            weights: None, or zeros and ones, shape (examples,), to exclude padding.
            return_loss: whether to return the mean loss of the batch. **It is not private.**
            **named: the same, passed to the loss by name: `model.backward(**batch)`.

        Returns:
            The mean loss of the examples with weight 1 (NaN if there are none) if requested; else None.

        Raises:
            InvalidParameterError: if the loss fails on an example, or a batch contains something else.
            UnsupportedCombinationError: if the loss changed the contents of the model, or as
                `PrivateOptimizer.accumulate`; if the requested clipping mode is impossible for the model; if
                parameters were sharded since `make_private`.
        """
        _refuse_sharded(self.module)
        taken = None if self._is_empty_batch() else Batch(batch, named)
        if taken is None or taken.examples == 0:
            trained = [param for param in self.module.parameters() if param.requires_grad]
            nothing = [None] * len(trained)
            self._optimizer.accumulate(ClippedSum(trained, nothing, self._optimizer.clipping, examples=0))
            return torch.tensor(math.nan) if return_loss else None
        with self._drawing():
            gradients = self.prepare(taken)
            self._check_padding(taken)
            with self._afresh.batch():
                total, losses = gradients.clipped(
                    taken, self._optimizer.clipping, microbatch_size=self._physical_size(), weights=weights
                )
        self._check_written()
        self._optimizer.accumulate(total)
        return losses.mean() if return_loss else None

    def _check_padding(self, batch: Batch) -> None:
        """Refuse padding that changes the gradient of an example, if the loader chose one to compare."""
        padded = self._optimizer.loader.take_padded() if isinstance(self._optimizer, BatchOptimizer) else None
        if padded is None:
            return

        def loss(tensors: Sequence[Tensor]) -> list[Tensor]:
            args, kwargs = batch.arguments([one[0] for one in tensors])
            return [self._loss(self.module, *args, **kwargs)]

        check_padding(self.module, batch.tensors, batch.examples, padded, loss)

    def prepare(self, batch: Batch) -> ExampleGradients:
        """Determine from a batch's first example how the loss is called and how gradients are clipped.

        Raises:
            As `backward`.
        """
        if self._gradients is None:
            fixed = self._fixed_mode()
            formed = ExampleGradients(self.module, self._afresh, ghost=False)
            factored = ExampleGradients(self.module, self._afresh, ghost=True)
            with repeatable(self.module, batch.tensors), self._afresh.batch():
                self._loss.resolve(self.module, batch)
                choice = choose(fixed or self._asked, formed, factored, batch)
                if fixed is not None and self._asked == "auto":
                    choice = dataclasses.replace(choice, reason="as in the checkpoint")
                gradients = factored if choice.mode == "ghost" else formed
                if isinstance(self._optimizer, BatchOptimizer):
                    self._optimizer.clipping_mode = choice.mode
                    self._settle(self._optimizer, gradients, batch)
            self._choice, self._gradients = choice, gradients
        return self._gradients

    def _settle(self, optimizer: BatchOptimizer, gradients: ExampleGradients, batch: Batch) -> None:
        """Find the largest microbatch, if requested."""
        loader = optimizer.loader
        if not loader.is_searched:
            return

        def run(count: int) -> None:
            with spared_random_numbers(batch.tensors):
                repeated = [tensor[:1].expand(count, *tensor.shape[1:]) for tensor in batch.tensors]
                samples, _ = gradients.samples(batch, repeated)
                clip_and_sum(samples, optimizer.clipping.blocks(gradients.trained))

        # From public numbers only: sums round by it, and it is reported. Few batches are twice as large.
        most = math.ceil(2.0 * optimizer.expected_batch_size)
        loader.settle(largest_batch(run, batch.tensors[0].device, most))

    def _drawing(self) -> AbstractContextManager[None]:
        """A context in which dropout uses a secret seed of the batch, whatever was seeded or drawn before."""
        return (
            self._optimizer.loader.drawing() if isinstance(self._optimizer, BatchOptimizer) else nullcontext()
        )

    def _physical_size(self) -> int | None:
        if isinstance(self._optimizer, BatchOptimizer) and self._microbatch_size is None:
            return self._optimizer.loader.physical_batch_size
        return self._microbatch_size

    def _fixed_mode(self) -> ClippingMode | None:
        """The mode that a loaded checkpoint fixes, if any."""
        return self._optimizer.clipping_mode if isinstance(self._optimizer, BatchOptimizer) else None

    def _is_empty_batch(self) -> bool:
        """Whether the loader's newest batch has no examples, regardless of its contents."""
        return isinstance(self._optimizer, BatchOptimizer) and self._optimizer.handed_examples == 0

    def __deepcopy__(self, memo: object) -> NoReturn:
        """Refused: a copy would train with the same optimizer that adds the noise."""
        del memo
        raise UnsupportedCombinationError(
            "a model of make_private was copied: the copy would pass its gradients to the same optimizer",
            supported="copy.deepcopy(model.module), the model itself; for averages of the weights "
            "torch.optim.swa_utils.AveragedModel of the model before make_private",
        )

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - torch's signature
        """The state dict of the model, under its names."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - torch's signature
        """Load the state dict of the model."""
        return self.module.load_state_dict(*args, **kwargs)

    def _check_written(self) -> None:
        if self._unchanged is not None:
            self._unchanged.check_written()


def check_model(model: object, params: Sequence[Tensor]) -> nn.Module:
    """Return `model` if it processes examples independently and `params` are its trained parameters.

    A normalization layer that is in eval mode now is refused when it is used in training mode later.

    Raises:
        InvalidParameterError: if it is not a module, or optimizer and model train different parameters.
        UnsupportedCombinationError: if a layer mixes examples or keeps statistics of them, or the model
            reduces gradients itself.
    """
    if not isinstance(model, nn.Module):
        raise InvalidParameterError("model", model, "a torch.nn.Module")
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise UnsupportedCombinationError(
            "DistributedDataParallel averages gradients before they are clipped",
            supported="the module itself: clipped sums are added over processes here",
        )
    if isinstance(model, nn.DataParallel):
        raise UnsupportedCombinationError(
            "DataParallel copies the model to several devices in every call, and no example is seen alone",
            supported="the module itself, one process per device: torchrun, see the page on training",
        )
    if any(type(part).__name__ == "FullyShardedDataParallel" for part in model.modules()):
        raise UnsupportedCombinationError(
            "FullyShardedDataParallel (FSDP1) hides which part of a parameter a process has",
            supported="PrivateOptimizer with fully_shard (FSDP2), see the page on PrivateOptimizer",
        )
    _refuse_sharded(model)
    for layer in model.modules():
        if isinstance(layer, nn.modules.batchnorm._NormBase):
            _refuse_statistics(layer)
            # `model.train()` at the start of an epoch switches a frozen layer back.
            layer.register_forward_pre_hook(_refuse_statistics)
    own = {id(param) for param in model.parameters() if param.requires_grad}
    trained = {id(param) for param in params if param.requires_grad}
    if own != trained:
        missing = [name for name, param in model.named_parameters() if id(param) in own - trained]
        left = f" ({', '.join(missing[:3])}{', ...' if len(missing) > 3 else ''})" if missing else ""
        raise InvalidParameterError(
            "optimizer",
            f"with {len(trained - own)} parameters that are not the model's, and without {len(missing)} that "
            f"require gradients{left}",
            "over the model's parameters that require gradients; set requires_grad_(False) on others before "
            "make_private, and make a new optimizer for the model that fix(model) returns",
        )
    return model


def _refuse_sharded(model: nn.Module) -> None:
    """Refuse parameters that are split between processes."""
    sharded = [name for name, param in model.named_parameters() if is_sharded(param)]
    if sharded:
        shown = ", ".join([*sharded[:3], *["..."] * (len(sharded) > 3)])
        raise UnsupportedCombinationError(
            f"parameters are sharded over processes ({shown}): torch.func does not mix DTensors with "
            "tensors, and under Opacus' hooks no process sees the whole gradient of an example",
            supported="the module before fully_shard, whole in every process; or PrivateOptimizer with sums "
            "that were clipped elsewhere, ClippedSum.from_grads(..., reduced=True)",
        )


def _refuse_statistics(layer: nn.modules.batchnorm._NormBase, inputs: object = None) -> None:
    """Refuse batch statistics, which mix examples, and running statistics, which have no noise."""
    del inputs
    batched = isinstance(layer, nn.modules.batchnorm._BatchNorm)
    mixes = batched and (layer.training or layer.running_mean is None)
    keeps = layer.training and layer.running_mean is not None
    if mixes or keeps:
        faults = ["mixes examples, so that clipping one does not bound its contribution"] * mixes
        faults += ["keeps running statistics without noise"] * keeps
        raise UnsupportedCombinationError(
            f"a {type(layer).__name__} layer {', and '.join(faults)}",
            supported="GroupNorm or LayerNorm (inserted by dpmech.optim.fix(model)), or fixed running "
            "statistics: the layer in eval mode, where every model.train() is followed by the layer's "
            ".eval()",
        )


def count_calls(
    model: nn.Module,
    progress: BatchProgress,
    trained: Sequence[Tensor],
    watch: MixingWatch,
    is_counted: Callable[[], bool],
    before: Callable[[], Callable[[], object] | None],
) -> None:
    """Count the calls of a model and its submodules, by the parameters that they may use.

    A submodule called within a call counts with it: weights may be used several times in one.

    Args:
        model: whose calls to count.
        progress: stores the counts.
        trained: its parameters.
        watch: is notified of calls.
        is_counted: whether a call counts now; trials do not.
        before: a weak reference to a function to run before every call with gradients.
    """
    calls = _Calls(progress, {id(param) for param in trained}, watch, is_counted, before)
    for part in model.modules():
        part.register_forward_pre_hook(ModelHook(calls.entered), with_kwargs=True)
        part.register_forward_hook(ModelHook(calls.left), always_call=True)


class _Calls:
    """The current outermost call with gradients, if any."""

    def __init__(
        self,
        progress: BatchProgress,
        trained: set[int],
        watch: MixingWatch,
        is_counted: Callable[[], bool],
        before: Callable[[], Callable[[], object] | None],
    ) -> None:
        self._progress = progress
        self._trained = trained
        self._watch = watch
        self._is_counted = is_counted
        self._before = before
        self._outermost: nn.Module | None = None
        self._depth = 0
        self._batch = 0

    def entered(self, part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._is_counted():
            return
        if self._batch != self._progress.batches:  # discards a call that never ended (an interrupt)
            self._batch, self._outermost, self._depth = self._progress.batches, None, 0
        if self._outermost is None and torch.is_grad_enabled():
            self._watch.before(part, args, kwargs)
            self._outermost = part
            before = self._before()
            if before is not None:
                before()
        if self._outermost is not part:
            return
        self._depth += 1
        if torch.is_grad_enabled():
            used = [id(param) for param in part.parameters() if id(param) in self._trained]
            self._progress.note_call(used, training=any(one.training for one in part.modules()))

    def left(self, part: nn.Module, args: object, output: object) -> None:
        del args
        if self._outermost is part and self._is_counted():
            self._depth -= 1
            if self._depth == 0:
                self._outermost = None
                self._watch.after(part, output)
