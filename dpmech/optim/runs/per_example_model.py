"""PerExampleModel: a model whose `backward` passes clipped sums to an optimizer."""

import dataclasses
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dpmech.exceptions import InvalidParameterError, UnsupportedCombinationError
from dpmech.optim.clipping import MODES, Batch, ClippedSum, ClippingMode, ExampleGradients, clip_and_sum
from dpmech.optim.noise import Uncopied
from dpmech.optim.processes import Group, gathered, is_first
from dpmech.optim.runs.batch_optimizer import BatchOptimizer
from dpmech.optim.runs.clipping_choice import (
    AskedMode,
    ClippingChoice,
    Ways,
    choose,
    public_examples,
    stand_in,
)
from dpmech.optim.runs.collated import check_padding
from dpmech.optim.runs.example_loss import ExampleLoss, LossTakes
from dpmech.optim.runs.independence import check_alone, check_independent
from dpmech.optim.runs.loader import BatchProgress
from dpmech.optim.runs.measured_choice import Way, exact_ways, fastest, is_timed
from dpmech.optim.runs.mixing import MixingWatch
from dpmech.optim.runs.same_draws import repeatable
from dpmech.optim.runs.spectral import SpectralNorms
from dpmech.optim.runs.unchanged import ModelHook, Structure, Unchanged
from dpmech.optim.runs.whole import WholeParameters
from dpmech.optim.state import Afresh, spared

_SHARE = 0.5  # of the free memory: other processes need some, and allocators cannot use all of it
_FEW, _MORE = 2, 6  # trial numbers of examples


def largest_batch(run: Callable[[int], object], device: torch.device, most: int) -> int:
    """Largest number of examples that fits into memory.

    Gradients of 2 and of 6 examples are computed; memory is extrapolated linearly. At most half of the free
    memory is used; 1 if these do not fit.

    Args:
        run: computes the gradients of a number of examples, and discards them.
        device: the device.
        most: upper limit, at least 1.

    Returns:
        In [1, most]; a power of two if it is less than `most`.
    """
    try:
        run(_FEW)  # a first run allocates memory that stays
        few, more = (memory_of(lambda count=count: run(count), device) for count in (_FEW, _MORE))  # type: ignore[misc]  # a default binds it
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return 1
    each = max((more - few) / (_MORE - _FEW), 1.0)
    fixed = max(few - _FEW * each, 0.0)
    fits = int((_SHARE * free_memory(device) - fixed) / each)
    return most if fits >= most else 1 << max(fits.bit_length() - 1, 0)


def is_out_of_memory(error: Exception) -> bool:
    """Whether an error says that an allocation failed; on CPUs torch has no class for it."""
    told = "allocate memory" in str(error) or "out of memory" in str(error)
    return told or isinstance(error, torch.OutOfMemoryError | MemoryError)


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
        self, func: Callable[..., Any], types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
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
        # What Linux can provide without swapping, caches included.
        told = re.search(r"^MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
        free = free if told is None else 1024 * int(told[1])
        limit = (group / "memory.max").read_text().strip()
        if limit != "max":
            free = min(free, int(limit) - int((group / "memory.current").read_text()))
    except (OSError, ValueError):
        pass  # no such files: use the value of the machine
    return max(free, 0)


class AsModel:
    """A module around a model, whose attributes, methods (`generate`) and names of tensors it has."""

    _inside: ClassVar[str]  # the attribute that holds the model
    _modules: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        inherited: Any = super()
        try:
            return inherited.__getattr__(name)
        except AttributeError:
            if self._inside not in vars(self).get("_modules", {}):
                raise
            return getattr(self._modules[self._inside], name)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Any:
        """The parameters of the model, under its names."""
        return self._modules[self._inside].named_parameters(*args, **kwargs)

    def named_buffers(self, *args: Any, **kwargs: Any) -> Any:
        """The buffers of the model, under its names."""
        return self._modules[self._inside].named_buffers(*args, **kwargs)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The state dict of the model, under its names."""
        return self._modules[self._inside].state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        """Load the state dict of the model, also one under the names that Opacus gives."""
        names = {name: name.removeprefix("_module.") for name in state_dict}
        if all(name != plain for name, plain in names.items()):
            state_dict = {plain: state_dict[name] for name, plain in names.items()}
        return self._modules[self._inside].load_state_dict(state_dict, *args, **kwargs)


class PerExampleModel(Uncopied, AsModel, nn.Module):
    """A model and its loss of one example, differentiated per example.

    Calls, parameters and state dicts are those of the wrapped model.

    Args:
        model: any module that processes examples independently.
        loss: `loss(model, *example)`, a scalar; each example is a batch of one, or has no batch dimension if
            the loss adds it. Or a criterion of outputs and targets, such as `nn.CrossEntropyLoss()`.
        optimizer: of make_private, which receives the clipped sums.
        unchanged: compares the contents of the model.
        clipping_mode: as for make_private.
        loss_takes: as for make_private.
    """

    _inside = "module"

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[..., Tensor],
        optimizer: BatchOptimizer,
        unchanged: Unchanged,
        *,
        clipping_mode: AskedMode = "auto",
        loss_takes: LossTakes = "auto",
    ) -> None:
        super().__init__()
        self.module = model
        self.whole = WholeParameters(model, optimizer.loader.process_group)
        optimizer.take_whole_sums(self.whole)
        unchanged.owner = self.whole.owner
        self._loss = ExampleLoss(loss, loss_takes)
        self._afresh = Afresh(
            self._loss,
            model,
            followed=loss,
            check=self._check_written,
            public=unchanged.public_tensors,
        )
        self._optimizer = optimizer
        self._unchanged = unchanged
        # Whether calls may change tensors, which they then do in an empty batch too.
        self._declared = bool(unchanged.public_tensors())
        self._accepted: int | None = None  # the number of a stand-in that the loss accepts
        self._norms = SpectralNorms(model)
        unchanged.allow(self._norms.buffers)
        self._asked: AskedMode = clipping_mode
        self._choice: ClippingChoice | None = None
        self._autocast: torch.dtype | None = None  # in which it was made
        self._ways: Ways = {}
        self._public: Batch | None = None  # examples that no data enter, if their gradients can be compared
        optimizer.takes_any_mode = clipping_mode == "auto"

    @property
    def clipping_choice(self) -> ClippingChoice | None:
        """The clipping mode and its reason; None before the first example."""
        return self._choice

    def _check_written(self) -> None:
        self.whole.check()
        self._unchanged.check_written()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The output of the model.

        Raises:
            UnsupportedCombinationError: if the call changed the contents of the model.
        """
        result = self.module(*args, **kwargs)
        self._unchanged.check_written()
        return result

    def backward(
        self, *batch: Any, weights: Tensor | None = None, return_loss: bool = False, **named: Any
    ) -> Tensor | None:
        """Pass the sum of clipped gradients over a batch to the optimizer; then call `optimizer.step()`.

        An empty batch is passed on without calling the model, or with one call on an example of public values
        if `public_buffers` may change: what they become does not depend on which batches are empty.

        Args:
            *batch: tensors with the examples along their first dimension, as the loss takes them; also nested
                in tuples, lists and dicts. Lists of strings in a dict (file names, texts) are left out.
            weights: None, or zeros and ones, shape (examples,), to exclude padding. That of an example must
                not depend on other examples.
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
        with self.whole.gathered():
            return self._backward(batch, named, weights, return_loss=return_loss)

    def _backward(
        self, batch: tuple[Any, ...], named: dict[str, Any], weights: Tensor | None, *, return_loss: bool
    ) -> Tensor | None:
        self._norms.iterate()
        empty = self._optimizer.handed_examples == 0  # by the loader, whatever the batch contains
        taken = None
        if self._declared or not empty:
            taken = Batch(tuple(map(_without_text, batch)), _without_text(named))
        if taken is None or empty or taken.examples == 0:
            if self._declared and taken is not None:
                self._change_public(taken)
            trained = [self.whole.owner(one) for one in self.module.parameters() if one.requires_grad]
            nothing = [None] * len(trained)
            self._optimizer.accumulate(ClippedSum(trained, nothing, self._optimizer.clipping, examples=0))
            return torch.tensor(math.nan) if return_loss else None
        if self._declared and weights is not None and not weights.any():
            self._change_public(taken)  # no example counts, and none is called
        with self._norms.still():
            with self._optimizer.loader.drawing():
                self.prepare(taken)
                self._check_padding(taken)
            total, losses = self._clipped(taken, weights)
        self._unchanged.check_written()
        self._optimizer.accumulate(total)
        return losses.mean() if return_loss else None

    def _change_public(self, batch: Batch) -> None:
        """Change the tensors that may change as a batch with examples does; gradients are discarded."""
        with self._norms.still():
            with self._optimizer.loader.drawing():
                self.prepare(Batch(*batch.arguments(stand_in(batch.tensors))))
            if self._accepted is not None:
                example = stand_in(batch.tensors, self._accepted)
                self._clipped(Batch(*batch.arguments(example)), None)
        self._unchanged.check_written()

    def _clipped(self, batch: Batch, weights: Tensor | None) -> tuple[ClippedSum, Tensor]:
        with self._optimizer.loader.drawing(), self._afresh.batch():
            return self.prepare(batch).clipped(
                batch,
                self._optimizer.clipping,
                microbatch_size=self._optimizer.loader.physical_batch_size,
                weights=weights,
                read=False,
            )

    def _check_padding(self, batch: Batch) -> None:
        """Refuse padding that changes the gradient of an example, if the loader chose one to compare."""
        padded = self._optimizer.loader.take_padded()
        if padded is None:
            return

        def loss(tensors: Sequence[Tensor]) -> list[Tensor]:
            args, kwargs = batch.arguments([one[0] for one in tensors])
            return [self._loss(self.module, *args, **kwargs)]

        with repeatable(self.module, self._afresh.followed):
            check_padding(self.module, batch.tensors, batch.examples, padded, loss)

    def prepare(self, batch: Batch) -> ExampleGradients:
        """Determine from the shapes of a batch how the loss is called and how gradients are clipped.

        Raises:
            As `backward`.
        """
        fixed, cost = self._optimizer.clipping_mode, self._optimizer.factor_cost
        choice = self._choice
        loaded = (
            choice is not None and fixed is not None and (fixed, cost) != (choice.mode, choice.factor_cost)
        )
        kind = batch.tensors[0].device.type
        autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        other = autocast != self._autocast and not self._optimizer.record.steps
        if choice is None or other or (loaded and fixed != "loop"):
            self._autocast = autocast  # a model may be followed without autocast, and not under it
            self._ways = self._made(cost)
            try:
                choice = self._take(self._tried(fixed, cost, batch))
            except RuntimeError as error:
                if autocast is None or "expected scalar type" not in str(error):
                    raise
                raise UnsupportedCombinationError(
                    "torch.func does not differentiate a layer, such as InstanceNorm with weights, in "
                    f"the two precisions of autocast ({error})",
                    supported="weights in bfloat16; or torch.autocast(..., enabled=False) around the layer",
                ) from error
        elif loaded:
            choice = self._take(ClippingChoice("loop", "as in the checkpoint"))
        return self._ways[choice.mode]

    def measure(self, group: Group) -> None:
        """On an accelerator, take the fastest of the ways that "auto" may choose; before anything is saved.

        They are timed on public examples, after trials of their shapes in `prepare`, by rank 0, whose choice
        all processes take. Without such examples, or if the processes found other ways, nothing changes.

        Args:
            group: the processes, which all call this at the same time.
        """
        batch, self._public = self._public, None
        optimizer, choice = self._optimizer, self._choice
        ways: list[Way] = []
        if batch is not None and choice is not None and choice.mode != "loop" and is_timed(batch):
            with self._trials() as begin:
                ways = exact_ways(choice, self._made, batch, lambda: begin(0))
        same = all(one == ways for one in gathered("the ways of clipping", ways, group))
        if not same or len(ways) < 2 or batch is None:
            return
        found = None
        if is_first(group):
            with self._trials() as begin:
                found = fastest(
                    ways,
                    self._made,
                    batch,
                    optimizer.clipping,
                    examples=math.ceil(optimizer.expected_batch_size / optimizer.loader.processes),
                    microbatch_size=optimizer.loader.physical_batch_size,
                    begin=lambda: begin(0),
                )
        found = gathered("the fastest way of clipping", found, group)[0]
        if found is None:
            return
        self._ways = self._made(found.factor_cost)
        self._take(found)
        if optimizer.loader.searches:
            with self._trials():
                self._settle(found, batch)

    def _made(self, factor_cost: float) -> Ways:
        given = self.module, self._afresh
        return {mode: ExampleGradients(*given, mode, factor_cost, self.whole.owner) for mode in MODES}

    @contextmanager
    def _trials(self) -> Iterator[Callable[[int], None]]:
        """A context for calls that leave no trace, with a function to call before each of them."""
        whole = repeatable(self.module, self._afresh.followed)
        with self._norms.still(), whole as begin, self._afresh.batch(trial=True):
            yield begin

    def _tried(self, fixed: ClippingMode | None, cost: float, batch: Batch) -> ClippingChoice:
        """The choice of the clipping mode, after trials that leave no trace."""
        with self._trials() as begin:
            self._loss.resolve(self.module, batch, lambda: begin(0))
            found = public_examples(self._ways, batch, lambda: begin(0))
            # vmap hides the values of an example, and whatever fails on it alone is raised.
            examples = found.tensors or [tensor[:1] for tensor in batch.tensors]
            self._accepted = found.number
            if self._declared and found.number is None and self._optimizer.claim.participation.random:
                raise UnsupportedCombinationError(
                    "public_buffers with a loss that accepts no example of random values, or of zeros and "
                    "ones: in an empty batch the buffers would stand still, which reveals that it is empty",
                    supported="a plain attribute of the model that the training loop sets before each batch; "
                    "or a loss that accepts such examples",
                )
            if found.still and self._loss.takes_batches and not self._optimizer.record.steps:
                check_alone(self._ways["loop"], batch, found.still, self._loss, begin)
            begin(0)
            settings: dict[str, Any] = {"compared": found.compared, "begin": lambda: begin(0)}
            try:
                choice = choose(fixed or self._asked, self._ways, batch, examples, **settings)
            except UnsupportedCombinationError:
                if (fixed, self._asked) != ("ghost", "auto") or self._optimizer.record.steps:
                    raise
                # Chosen without autocast. A run that resumes before its first step finds the same.
                choice = choose("auto", self._ways, batch, examples, **settings)
            # Under vmap too, calls can be counted. What ghost clipping forms are no tensors.
            way = self._ways["loop" if choice.mode == "loop" else "per_example"]
            check_independent(way, batch, [one[:1] for one in examples], begin)
            if choice.mode == "ghost":
                choice = dataclasses.replace(choice, factor_cost=cost)
            if choice.mode == fixed and self._asked == "auto":
                before = self._choice
                same = before is not None and (before.mode, before.factor_cost) == (fixed, cost)
                reason = before.reason if before is not None and same else "as in the checkpoint"
                choice = dataclasses.replace(choice, reason=reason)
            if found.compared and fixed is None and self._asked == "auto":
                self._public = Batch(*batch.arguments(found.tensors))
            if self._optimizer.loader.is_searched:
                self._settle(choice, batch)
        return choice

    def _take(self, choice: ClippingChoice) -> ClippingChoice:
        self._choice = choice
        self._optimizer.clipping_mode = choice.mode
        self._optimizer.factor_cost = choice.factor_cost
        return choice

    def _settle(self, choice: ClippingChoice, batch: Batch) -> None:
        """Find the largest microbatch."""
        optimizer, gradients = self._optimizer, self._ways[choice.mode]
        # From public numbers only: sums round by it, and it is reported. Few batches are twice as large.
        most = math.ceil(2.0 * optimizer.expected_batch_size)
        if choice.mode == "loop":
            optimizer.loader.settle(most)
            return

        def run(count: int) -> None:
            with spared():
                repeated = [tensor[:1].expand(count, *tensor.shape[1:]) for tensor in batch.tensors]
                samples, _ = gradients.samples(batch, repeated)
                clip_and_sum(samples, optimizer.clipping.blocks(gradients.owners))

        optimizer.loader.settle(largest_batch(run, batch.tensors[0].device, most))

    def _refuse(self, how: str) -> NoReturn:
        raise UnsupportedCombinationError(
            f"a model of make_private was {how}: the copy would pass its gradients to the same optimizer",
            supported="model.state_dict(), or copy.deepcopy(model.module), also to save; for averages "
            "of the weights torch.optim.swa_utils.AveragedModel of the model before make_private",
        )


def _without_text(given: Any) -> Any:
    """A dict without the lists of strings that collate functions leave in it; anything else as it is."""
    if type(given) is not dict:
        return given
    return {
        name: value
        for name, value in given.items()
        if not (isinstance(value, list | tuple) and value and all(isinstance(one, str) for one in value))
    }


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
    if any(isinstance(part, torch.jit.ScriptModule) for part in model.modules()):
        raise UnsupportedCombinationError(
            "a TorchScript module, whose calls may keep data of examples where it cannot be found",
            supported="the module before torch.jit.script or torch.jit.trace",
        )
    if any(type(part).__name__ == "FullyShardedDataParallel" for part in model.modules()):
        raise UnsupportedCombinationError(
            "FullyShardedDataParallel (FSDP1) hides which part of a parameter a process has",
            supported="fully_shard (FSDP2) before the optimizer is made, and make_private(..., loss=...)",
        )
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
            "make_private, and make a new optimizer for the model that fix(model) returns. Parameters of a "
            "criterion are trained as part of the model: a module that holds both, and returns the loss",
        )
    return model


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


class CallCounter:
    """Counts the calls of a model and its submodules, by the parameters that they may use.

    A submodule called within a call counts with it: weights may be used several times in one.

    Args:
        model: whose calls to count.
        progress: stores the counts.
        trained: its parameters.
        watch: is notified of calls.
        is_counted: whether a call counts now; trials do not.
        before: runs before every call with gradients.
    """

    def __init__(
        self,
        model: nn.Module,
        progress: BatchProgress,
        trained: Sequence[Tensor],
        watch: MixingWatch,
        is_counted: Callable[[], bool],
        before: Callable[[], object],
    ) -> None:
        self._model = model
        self._structure: Structure | None = None
        self._progress = progress
        self._trained = {id(param) for param in trained}
        self._watch = watch
        self._is_counted = is_counted
        self._before = before
        self._outermost: nn.Module | None = None  # the current call with gradients
        self._depth = 0
        self._batch = 0
        for part in model.modules():
            part.register_forward_pre_hook(ModelHook(self._entered), with_kwargs=True)
            part.register_forward_hook(ModelHook(self._left), always_call=True)

    def _entered(self, part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._is_counted() or torch._C._current_graph_task_id() != -1:
            return  # gradient checkpointing runs parts again in the backward pass
        if self._batch != self._progress.batches:  # discards a call that never ended (an interrupt)
            self._batch, self._outermost, self._depth = self._progress.batches, None, 0
        if self._outermost is None and torch.is_grad_enabled():
            self._watch.before(part, args, kwargs)
            self._outermost, self._structure = part, Structure(self._model)
            self._before()
        if self._outermost is not part:
            return
        self._depth += 1
        if torch.is_grad_enabled():
            used = [id(param) for param in part.parameters() if id(param) in self._trained]
            self._progress.note_call(used, training=any(one.training for one in part.modules()))

    def _left(self, part: nn.Module, args: object, output: object) -> None:
        del args
        if self._outermost is part and self._is_counted() and torch._C._current_graph_task_id() == -1:
            self._depth -= 1
            if self._depth == 0:
                self._outermost = None
                self._watch.after(part, output)
                if self._structure is not None:
                    self._structure.check(self._model)
