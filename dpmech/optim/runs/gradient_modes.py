"""Per-example gradients from Opacus' hooks, for a loop that calls the model on batches."""

import functools
import random
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from dpmech.exceptions import UnsupportedCombinationError
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
    reentrant,
)
from dpmech.optim.processes import is_sharded
from dpmech.optim.runs.batch_optimizer import BatchOptimizer
from dpmech.optim.runs.clipping_choice import AskedMode
from dpmech.optim.runs.fixes import opacus_part, shown
from dpmech.optim.runs.mean_losses import LossWatch
from dpmech.optim.runs.mixing import MixingWatch
from dpmech.optim.runs.per_example_model import AsModel, CallCounter
from dpmech.optim.runs.reseeding import Reseeding
from dpmech.optim.runs.unchanged import ModelHook, Unchanged


def hooked_module(model: nn.Module, examples: Callable[[], int | None], *, ghost: bool) -> nn.Module:
    """Opacus' GradSampleModuleFastGradientClipping around a model, with one backward pass of the mean loss.

    Its hooks capture the inputs of a layer and the gradient of its outputs. Opacus computes norms from them
    and runs a second backward pass, over all uses of the parameters; norms of uses without a hook are
    missing then. Here norms and sums come from the same factors, or from the gradients.

    Args:
        model: the model.
        examples: returns the number of examples of the newest batch, if known.
        ghost: whether factors replace gradients if they are cheaper.

    Raises:
        MissingDependencyError: if Opacus is not installed.
        UnsupportedCombinationError: for trained layers with buffers, weights computed before every call, and
            after `model.compile()`.
    """
    names = {layer: shown(name, layer) for name, layer in model.named_modules()}
    compiled = [names[one] for one in names if getattr(one, "_compiled_call_impl", None) is not None]
    if compiled:
        raise UnsupportedCombinationError(
            f"{compiled[0]} was compiled in place by compile(), so that hooks would be compiled with it",
            supported="torch.compile(model), which makes another module; or make_private(..., loss=...)",
        )
    opacus_part("grad_sample")
    kept = [
        names[layer]
        for layer in names
        if any(param.requires_grad for param in layer._parameters.values() if param is not None)
        and any(True for _ in layer.buffers())
    ]
    if kept:
        raise UnsupportedCombinationError(
            f"trained layers that hold buffers: {', '.join(kept)}; Opacus does not support them",
            supported="make_private(..., loss=...), with public_buffers if they do not depend on the data",
        )
    computed = [
        names[layer]
        for layer in names
        if any(
            isinstance(value, Tensor) and layer._parameters.keys() & {f"{place}_g", f"{place}_orig"}
            for place, value in vars(layer).items()
        )
    ]
    if computed:
        raise UnsupportedCombinationError(
            f"layers whose weight is computed before every call: {', '.join(computed[:3])} "
            "(torch.nn.utils.weight_norm), whose parameters hooks do not see",
            supported="torch.nn.utils.parametrizations.weight_norm; or make_private(..., loss=...)",
        )
    # Data need no gradient, which torch remarks on at the first layer of every backward pass; Opacus' hooks
    # do not use gradients of inputs.
    warnings.filterwarnings("ignore", "Full backward hook is firing", UserWarning)
    wrapped: nn.Module = _hooked_class()(model, examples, ghost=ghost)
    return wrapped


@functools.cache
def _hooked_class() -> Any:
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.grad_sample.functorch import ft_compute_per_sample_gradient, prepare_layer
    from opacus.grad_sample.grad_sample_module import promote_current_grad_sample

    class GhostModule(AsModel, GradSampleModuleFastGradientClipping):  # type: ignore[misc]  # untyped
        """One backward pass leaves a Factored, or a gradient for every example, on each parameter."""

        _inside = "_module"

        def __init__(self, model: nn.Module, examples: Callable[[], int | None], *, ghost: bool) -> None:
            # Opacus' formulas for them assume padding with zeros, and a bias.
            self._by_autograd = {layer for layer in model.modules() if _has_no_formula(layer)}
            for layer in self._by_autograd:
                prepare_layer(layer)
            super().__init__(model, batch_first=True, loss_reduction="mean")
            self._ghost = ghost
            self._examples = examples
            self._names = {layer: shown(name, layer) for name, layer in model.named_modules()}
            # Hooks run for every layer of every batch, and traversing modules costs as much as they do.
            self._params = {layer: list(layer.parameters()) for layer in model.modules()}
            trained = [param for param in model.parameters() if param.requires_grad]
            self._covered = set(coverable(model, trained)[0])
            self._pieces: dict[int, list[Piece]] = {}
            self._spread = _Spread(examples)
            for layer in self._covered:
                if isinstance(layer, nn.Embedding):
                    layer.register_forward_pre_hook(self._spread)

        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except AttributeError:
                if name != "backward":
                    raise
                raise AttributeError(
                    "model.backward belongs to make_private(..., loss=...); without `loss`, call backward() "
                    "of the mean loss of the batch"
                ) from None

        # torch.compile around this module would compile its checks. What is called within runs uncompiled:
        # hooks would divide the graph of a compiled model at every layer.
        @torch.compiler.disable  # type: ignore[untyped-decorator]  # torch's
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            """Call `forward` with all hooks."""
            return super().__call__(*args, **kwargs)

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            """The output of the model.

            Raises:
                UnsupportedCombinationError: if a layer modifies the output of a hooked layer in place.
            """
            if getattr(self, "_is_replica", False) and torch.is_grad_enabled():
                raise UnsupportedCombinationError(
                    "DataParallel copies a model of make_private to several devices, without its hooks",
                    supported="the model itself, one process per device: torchrun, see the page on training",
                )
            self._spread.newest = None
            try:
                return super().forward(*args, **kwargs)
            except RuntimeError as error:
                if self._spread.newest is not None and "must match" in str(error):
                    raise UnsupportedCombinationError(
                        f"{self._shown(self._spread.newest)} is called with a batch of one, which hooks need "
                        f"once for every example, but the model does not take it so ({str(error)[:100]})",
                        supported="make_private(..., loss=...)",
                    ) from error
                if "modified inplace" not in str(error):
                    raise
                named = [name for name, one in self._module.named_modules() if getattr(one, "inplace", False)]
                listed = f" (inplace=True: {', '.join(named)})" if named else ""
                raise UnsupportedCombinationError(
                    f"the output of a trained layer with hooks is changed in place{listed}",
                    supported="inplace=False, which dpmech.optim.fix(model) sets; or make_private(..., "
                    "loss=...)",
                ) from error

        # Also where a layer is called outside of this module.
        @torch.compiler.disable  # type: ignore[untyped-decorator]  # torch's
        def capture_activations_hook(
            self, module: nn.Module, forward_input: list[Tensor], _forward_output: Tensor
        ) -> None:
            """As in GradSampleModule; a layer may be called several times."""
            if not module.training or not torch.is_grad_enabled() or not self.hooks_enabled:
                return
            self._check_no_copy()
            trained = self._trained(module)
            own = module._parameters.values()
            if not any(param.requires_grad for param in own if param is not None):
                return
            nested = any(isinstance(one, Tensor) and one.is_nested for one in forward_input)
            if len(forward_input) != 1 or not isinstance(forward_input[0], Tensor) or nested:
                given = "a nested tensor" if nested else f"{len(forward_input)} positional arguments"
                raise UnsupportedCombinationError(
                    f"{self._shown(module)} is called with {given}, but hooks support one tensor with a "
                    "row for every example",
                    supported="make_private(..., loss=...)",
                )
            if torch.is_autocast_enabled(forward_input[0].device.type):
                raise _in_half_precision("torch.autocast")
            layer: Any = module
            if not hasattr(layer, "activations"):
                layer.activations = []
            saved = SavedInput(forward_input[0])
            if torch._C._current_graph_task_id() != -1:
                if not layer.activations:
                    raise reentrant()
                return  # run again: what was saved at the first call finds this input
            layer.activations.append(saved)
            for param in trained:
                param._forward_counter += 1

        @torch.compiler.disable  # type: ignore[untyped-decorator]  # the same
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
            self._check_no_copy()
            if not getattr(module, "activations", None):
                raise UnsupportedCombinationError(
                    f"a backward pass goes through {self._shown(module)}, whose call was not recorded",
                    supported="model.train() before the forward pass (eval mode is for calls without a "
                    "backward pass), and one backward pass for every forward pass; for second-order "
                    "gradients make_private(..., loss=...)",
                )
            del loss_reduction, batch_first  # the mean over the rows, which come first
            layer: Any = module
            if not hasattr(layer, "max_batch_len"):
                layer.max_batch_len = max(one.rows for one in layer.activations)
            # Before the entry is removed: this may run the layer again, whose call is then a known one.
            activations = [layer.activations[-1].tensor()]
            layer.activations.pop()
            backprops = forward_output[0].detach() * layer.max_batch_len
            with torch.autocast(backprops.device.type, enabled=False):
                if module in self._covered and (
                    _is_padded(module) or (self._ghost and _by_factors(module, backprops))
                ):
                    weight, bias = (module._parameters.get(name) for name in ("weight", "bias"))
                    if weight is not None and weight.requires_grad:
                        piece = factors_of(module, activations[0], backprops)
                        self._pieces.setdefault(id(weight), []).append(piece)
                    formed = {} if bias is None else {bias: bias_gradients(module, backprops)}
                else:
                    formed = self._formed(module, activations, backprops)
            for param, sample in formed.items():
                _add_sample(param, sample, layer.max_batch_len)
            for param in self._trained(module):
                param._forward_counter -= 1
                if param._forward_counter == 0:
                    self._finish(param)
            if not layer.activations:
                del layer.max_batch_len

        def _check_no_copy(self) -> None:
            if getattr(self._examples, "copied", False):
                raise UnsupportedCombinationError(
                    "a copy of a model of make_private is trained: its gradients are not clipped or noised",
                    supported="calls of the copy in eval mode or under torch.no_grad(); to train it, its "
                    "state_dict() in an ordinary model",
                )

        def _formed(self, module: nn.Module, activations: list[Tensor], backprops: Tensor) -> Any:
            by_autograd = module in self._by_autograd
            sampler = None if by_autograd else self.GRAD_SAMPLERS.get(type(module))
            # Opacus' formula of convolutions is wrong for channels that come last in memory.
            given, gradient = [_in_order(one) for one in activations], _in_order(backprops)
            try:
                return (sampler or ft_compute_per_sample_gradient)(module, given, gradient)
            except torch.OutOfMemoryError:
                raise
            except (RuntimeError, TypeError, ValueError, AttributeError, IndexError) as error:
                raise UnsupportedCombinationError(
                    f"Opacus computes no per-example gradients for {self._shown(module)}: "
                    f"{type(error).__name__}: {' '.join(str(error).split())[:200]}",
                    supported="make_private(..., loss=...)",
                ) from error

        def _trained(self, module: nn.Module) -> list[Any]:
            """The parameters that its hooks handle: including its submodules if torch.func computes them."""
            params = self._params.get(module)
            return [param for param in params or module.parameters() if param.requires_grad]

        def _shown(self, module: nn.Module) -> str:
            """A layer in messages, also one that a call made, such as a shallow copy or a replica."""
            return self._names.get(module) or shown("", module)

        def _finish(self, param: Tensor) -> None:
            pieces = self._pieces.pop(id(param), [])
            if pieces:
                total = joined(pieces, param.shape, factors=self._ghost)
                other = getattr(param, "_current_grad_sample", None)
                if other is not None:
                    total = other + (total.formed() if isinstance(total, Factored) else total)
                param._current_grad_sample = total  # type: ignore[attr-defined]  # Opacus'
            promote_current_grad_sample(param)

    GhostModule.__module__, GhostModule.__qualname__ = __name__, "GhostModule"
    return GhostModule


def __getattr__(name: str) -> Any:
    """The class, so that pickles find it."""
    if name == "GhostModule":
        return _hooked_class()
    raise AttributeError(name)


def end_hooks(model: nn.Module) -> None:
    """Remove the hooks that an earlier run left on a model, which would form gradients for nobody.

    Raises:
        UnsupportedCombinationError: if that run goes on, or if the hooks are of a GradSampleModule elsewhere.
    """
    hooked = isinstance(model, nn.Module) and any(
        hasattr(part, "autograd_grad_sample_hooks") for part in model.modules()
    )
    if not hooked:
        return
    owners: dict[int, Any] = {
        id(owner): owner
        for part in model.modules()
        for hook in part._forward_hooks.values()
        if _is_grad_sample_module(owner := getattr(hook, "__self__", None))
    }
    handed = [getattr(owner, "_examples", None) for owner in owners.values()]
    if not owners or not all(isinstance(one, _Handed) and one.ended for one in handed):
        raise UnsupportedCombinationError(
            "the model already has Opacus' hooks, of an earlier GradSampleModule",
            supported="close() of the optimizer of that run, remove_hooks() of that GradSampleModule, or the "
            "GradSampleModule itself (returned by make_private) in place of the model",
        )
    for owner in owners.values():
        forget_calls(owner)
        owner.remove_hooks()


def forget_calls(hooked: nn.Module) -> None:
    """Forget calls of layers whose backward pass never ended, and what an interrupted one formed."""
    for layer in hooked.modules():
        vars(layer).get("activations", []).clear()
        vars(layer).pop("max_batch_len", None)
    for param in hooked.parameters():
        counted: Any = param
        if hasattr(counted, "_forward_counter"):
            counted._forward_counter = 0
        if getattr(counted, "_current_grad_sample", None) is not None:
            counted._current_grad_sample = None
    vars(hooked).get("_pieces", {}).clear()


class SavedInput:
    """The input of one call of a layer, kept as autograd keeps tensors for a backward pass.

    So gradient checkpointing drops it, and computes it again when it is asked for.

    Attributes:
        rows: number of examples; 0 for a tensor without dimensions, and in copies of a model.
    """

    def __init__(self, given: Tensor | None = None) -> None:
        self.rows = len(given) if given is not None and given.ndim else 0
        self._node: Any = None
        if given is not None:
            needed = torch.empty(0, device=given.device, requires_grad=True)
            self._node = _Saved.apply(needed, given.detach()).grad_fn  # type: ignore[no-untyped-call]  # torch's

    def tensor(self) -> Tensor:
        """The input."""
        found: Tensor = self._node.saved_tensors[0]
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return SavedInput, ()


class _Saved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, needed: Tensor, given: Tensor) -> Tensor:
        ctx.save_for_backward(given)
        return needed.clone()


def _add_sample(param: Any, sample: Tensor, longest: int) -> None:
    """As Opacus, without copying gradients into zeros if no row is missing."""
    from opacus.grad_sample.grad_sample_module import create_or_accumulate_grad_sample

    if not param.requires_grad:
        return
    before = getattr(param, "_current_grad_sample", None)
    if len(sample) == longest and (before is None or len(before) == longest):
        # Never in place: autograd may still use the gradient.
        param._current_grad_sample = sample if before is None else before + sample
        return
    if before is not None:
        param._current_grad_sample = before.clone()
    create_or_accumulate_grad_sample(param=param, grad_sample=sample, max_batch_len=longest)


def _is_padded(layer: nn.Module) -> bool:
    """Whether a row of its weight has no gradient, although Opacus' formula gives it one."""
    return isinstance(layer, nn.Embedding) and layer.padding_idx is not None


def _in_order(values: Tensor) -> Tensor:
    """With the strides of a new tensor, also along dimensions of size 1."""
    return values.reshape(-1).view(values.shape)


def _has_no_formula(layer: nn.Module) -> bool:
    if isinstance(layer, nn.LayerNorm):
        return layer.weight is not None and layer.bias is None
    return isinstance(layer, nn.modules.conv._ConvNd) and layer.padding_mode != "zeros"


def _by_factors(layer: nn.Module, backprops: Tensor) -> bool:
    weight = layer._parameters["weight"]
    if weight is None or not weight.requires_grad:
        return True
    return prefers_factors(positions_of(layer, backprops.shape[1:]), *matrix_shape(weight), backprops.device)


class _Spread:
    """Expands indices given as a batch of one, such as positions, to all examples.

    Otherwise their gradient is a sum over the examples, which cannot be clipped per example.
    """

    def __init__(self, examples: Callable[[], int | None]) -> None:
        self._examples = examples
        self.newest: nn.Module | None = None  # layer whose indices were expanded

    def __call__(self, layer: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """The indices, expanded to the number of examples of the batch."""
        count = self._examples()
        if not given or not layer.training or not torch.is_grad_enabled() or count is None:
            return None
        index = given[0]
        if index.ndim != 2 or index.shape[0] != 1 or count <= 1:
            return None
        self.newest = layer
        return (index.expand(count, -1), *given[1:])


def unhooked(model: nn.Module, clipping_mode: AskedMode, *, loss: bool) -> nn.Module:
    """The module whose parameters are trained: the model, or what a GradSampleModule wraps.

    Args:
        model: of the caller.
        clipping_mode: as for make_private.
        loss: whether there is a loss of one example; else gradients come from hooks.

    Raises:
        UnsupportedCombinationError: for hooks that do not fit the rest, or belong to another run.
    """
    if not _is_grad_sample_module(model):
        end_hooks(model)
        return model
    if loss:
        raise UnsupportedCombinationError(
            "a GradSampleModule with a loss of one example", supported="the module itself, or no loss"
        )
    if getattr(getattr(model, "_examples", None), "copied", False):
        raise UnsupportedCombinationError(
            "a copy of a model of make_private, whose hooks belong to another run",
            supported="an ordinary model with the state_dict() of the copy",
        )
    if clipping_mode == "ghost" and not hasattr(model, "max_grad_norm"):
        raise UnsupportedCombinationError(
            "a GradSampleModule forms the gradient of every example",
            supported="the module itself with clipping_mode='ghost', or clipping_mode='per_example'",
        )
    given: Any = model
    inner: nn.Module = given._module
    return inner


def hooked(
    model: nn.Module, private: BatchOptimizer, unchanged: Unchanged, clipping_mode: AskedMode
) -> nn.Module:
    """A module with Opacus' hooks, whose inner module counts its calls and checks for changes.

    The loop calls `loss.backward()` on the mean over the batch.

    Args:
        model: of the caller, which may have such hooks already.
        private: of make_private.
        unchanged: compares the contents of the model.
        clipping_mode: as for make_private.

    Raises:
        UnsupportedCombinationError: for sharded parameters, for weights or buffers in half precision, and as
            `hooked_module`.
    """
    inner, progress = unhooked(model, clipping_mode, loss=False), private.loader.progress
    sharded = [name for name, param in inner.named_parameters() if is_sharded(param)]
    if sharded:
        raise UnsupportedCombinationError(
            f"parameters are sharded over processes ({', '.join(sharded[:3])}), and under Opacus' hooks "
            "no process sees the whole gradient of an example",
            supported="make_private(..., loss=...); or the module before fully_shard",
        )
    half = [
        name
        for name, one in [*inner.named_parameters(), *inner.named_buffers()]
        if one.is_floating_point() and one.element_size() < 4
    ]
    if half:
        raise _in_half_precision(f"half precision ({', '.join(half[:3])})")
    if _is_grad_sample_module(model):
        # Opacus' fast gradient clipping keeps no per-example gradients; only it has this attribute.
        around, ghost = model, hasattr(model, "max_grad_norm")
        handed = getattr(model, "_examples", None)
        if isinstance(handed, _Handed):
            handed.follow(private)
    else:
        ghost = clipping_mode != "per_example"
        around = hooked_module(model, _Handed(private), ghost=ghost)
    private.clipping_mode = "ghost" if ghost else "per_example"
    private.watch_gradients(inner, lambda: forget_calls(around))
    forget = _weakly(private.forget_gradients)

    def before() -> None:
        if torch.is_autocast_enabled(next(inner.parameters()).device.type):
            raise _in_half_precision("torch.autocast")
        forget()

    def in_training() -> bool:
        return bool(vars(around)["hooks_enabled"])  # not in a trial

    batches = private.loader.sampler.fingerprint()
    watch = MixingWatch(
        inner,
        _by_rows(around, inner),
        lambda: progress.handed if progress.batches else None,
        lambda: random.Random(f"{batches} {progress.batches}"),  # public: anyone can repeat the choice
        lambda count: _trial(around, count),
        Reseeding(inner, _weakly(private.loader.seed)),
        _weakly(private.loader.take_padded),
    )
    CallCounter(
        inner,
        progress,
        [param for param in inner.parameters() if param.requires_grad],
        watch,
        in_training,
        before,
    )
    inner.register_forward_hook(ModelHook(lambda *_: unchanged.check_written()))
    watch_loss = LossWatch(private._deferred)
    inner.register_forward_hook(ModelHook(lambda *given: watch_loss(given[-1]) if in_training() else None))
    return around


def _in_half_precision(what: str) -> UnsupportedCombinationError:
    return UnsupportedCombinationError(
        f"{what} without a loss of one example: gradients of a mean are divided by the number of examples "
        "and then rounded to half precision, so that one example more or less could change those of all "
        "others by more than it contributes",
        supported="make_private(..., loss=...), where no example affects the gradient of another; or float32",
    )


def _weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method by a weak reference, since hooks in a graph would keep a run alive; None without its run."""
    reference = weakref.WeakMethod(method)

    def called(*args: Any) -> Any:
        method = reference()
        return None if method is None else method(*args)

    return called


class _Handed:
    """The number of examples of a run's newest batch. Copies and pickles belong to no run."""

    def __init__(self, private: BatchOptimizer | None = None) -> None:
        self._private = None if private is None else weakref.ref(private)
        self.tried: int | None = None

    def follow(self, private: BatchOptimizer) -> None:
        """Count for this run from now on: the model was made private again."""
        self._private = weakref.ref(private)

    def __call__(self) -> int | None:
        if self.tried is not None:
            return self.tried
        private = None if self._private is None else self._private()
        return None if private is None else private.handed_examples

    @property
    def ended(self) -> bool:
        """Whether it belongs to a run whose optimizer was closed, or is gone."""
        if self._private is None:
            return False
        private = self._private()
        return private is None or private.closed

    @property
    def copied(self) -> bool:
        """Whether it belongs to a copy of a model, which no optimizer trains."""
        return self._private is None

    def __reduce__(self) -> tuple[Any, ...]:
        return _Handed, ()


def _by_rows(hooked: Any, inner: nn.Module) -> dict[nn.Module, str]:
    """The layers whose rows are treated as examples, with their names; empty if examples come second."""
    if not hooked.batch_first:
        return {}
    return {
        layer: shown(name, layer)
        for name, layer in inner.named_modules()
        if any(getattr(hook, "__self__", None) is hooked for hook in layer._forward_hooks.values())
    }


@contextmanager
def _trial(hooked: Any, count: int) -> Iterator[None]:
    """Disable hooks during a call on `count` examples."""
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
