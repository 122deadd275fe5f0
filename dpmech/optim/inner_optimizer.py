"""InnerOptimizer: watches the torch optimizer that a PrivateOptimizer steps."""

import copy
import gc
import inspect
import types
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from dpmech.exceptions import InvalidParameterError, UnsupportedCombinationError
from dpmech.optim.state import HOOKS, hooks_of

_MARK = "_dpmech_wrapped"
_OURS = {"params", "phi"}  # entries of a parameter group that are not settings of the user
_SCHEDULED = {"lr", "momentum", "betas"}  # changed by torch's schedulers


class InnerOptimizer:
    """Watches a torch optimizer that was made private.

    Args:
        optimizer: any torch.optim.Optimizer with one gradient evaluation per step.

    Attributes:
        optimizer: the optimizer.
        kind: the name of its class: another class gives other weights for the same state and gradients.
        changed: whether settings changed between two steps, also before a loaded state, other
            than by the registered scheduler.

    Raises:
        InvalidParameterError: if it is not an optimizer, or was already made private.
        UnsupportedCombinationError: if it evaluates gradients several times per step, needs sparse gradients,
            or is differentiable itself.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise InvalidParameterError("optimizer", optimizer, "a torch.optim.Optimizer")
        earlier = getattr(optimizer, _MARK, None)
        if earlier is not None:
            if not earlier.ended:
                raise InvalidParameterError(
                    "optimizer",
                    type(optimizer).__name__,
                    "a new torch.optim.Optimizer: this one has been made private already; or close() of that "
                    "private optimizer first",
                )
            earlier.release()
        parameters = inspect.signature(type(optimizer).step).parameters
        closure = parameters.get("closure")
        # Sharpness-aware ones (SAM, ASAM, ...) take a gradient here and one at a second point.
        twice = hasattr(optimizer, "first_step") or type(optimizer).__name__.upper().endswith("SAM")
        if twice or (closure is not None and closure.default is inspect.Parameter.empty):
            raise UnsupportedCombinationError(
                f"{type(optimizer).__name__} evaluates gradients several times a step: each would need a "
                "separate row of noise",
                supported="optimizers whose step works without a closure; for SAM its base optimizer",
            )
        if isinstance(optimizer, torch.optim.SparseAdam):
            raise UnsupportedCombinationError(
                "SparseAdam updates only the entries that have a gradient, and noise is added to all",
                supported="torch.optim.Adam",
            )
        if any(group.get("differentiable") for group in optimizer.param_groups):
            raise UnsupportedCombinationError(
                f"{type(optimizer).__name__} with differentiable=True cannot update parameters of a model",
                supported="differentiable=False, the default",
            )
        self.optimizer = optimizer
        self.kind = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
        self._groups = optimizer.param_groups
        self._members = self._listed()
        self._stepping = False
        self._resumed: list[dict[str, Any]] | None = None
        self._left: list[dict[str, Any]] | None = None  # the settings after the newest step
        self._part: list[dict[str, Any]] | None = None  # the settings at the first microbatch of a batch
        self._scheduler: Any = None
        self._schedulers: list[Any] | None = None  # all of torch's, when the first batch comes in parts
        self.changed = False
        self.ended = False  # whether another run may take the optimizer

    def follow(self, scheduler: Any, *, forget: bool) -> None:
        """Accept changes by a scheduler from now on.

        Args:
            scheduler: its class and settings are compared by checkpoints.
            forget: whether to accept earlier changes as well, because no earlier step can be repeated.
        """
        if forget:
            self.changed = False
        elif self._scheduler is not None and scheduler is not self._scheduler:
            self.changed = True
        self._scheduler = scheduler

    def close(self) -> None:
        """Refuse steps of the optimizer from elsewhere."""
        setattr(self.optimizer, _MARK, self)
        self._hook = self.optimizer.register_step_pre_hook(self._refuse_direct_step)

    def release(self) -> None:
        """Restore the optimizer, of a run without steps, or one that has ended."""
        delattr(self.optimizer, _MARK)
        self._hook.remove()

    def check(self) -> None:
        """Raise UnsupportedCombinationError if parameters or, after resuming, settings changed."""
        if self.optimizer.param_groups is not self._groups:
            raise UnsupportedCombinationError(
                "the wrapped optimizer has other parameter groups than when it was wrapped",
                supported="loading state through PrivateOptimizer.load_state_dict",
            )
        if self._listed() != self._members:
            raise UnsupportedCombinationError(
                "parameters were added to or removed from the wrapped optimizer: they would have no noise",
                supported="the parameters that were there when it was wrapped",
            )
        if self._resumed is None:
            return
        for now, then in zip(_settings(self._groups), self._resumed, strict=True):
            changed = _differing(now, then)
            if changed:
                raise UnsupportedCombinationError(
                    f"{', '.join(sorted(changed))} changed since the state was saved: steps taken after it "
                    "would be repeated with the same noise on other sums, and anyone who has seen both can "
                    "subtract the noise",
                    supported="the settings of the state; save after scheduler.step()",
                )

    def check_part(self, *, last: bool) -> None:
        """Check, at the step of a microbatch, that nothing changed since the first one of its batch.

        Args:
            last: whether it is the last microbatch of its batch.

        Raises:
            UnsupportedCombinationError: if settings changed, or one of torch's schedulers was stepped.
        """
        if last and self._part is None:
            return
        if self._schedulers is None:  # an optimizer does not know its own
            every = [one for one in gc.get_objects() if issubclass(type(one), LRScheduler)]
            held = [getattr(getattr(one, "optimizer", None), "param_groups", None) for one in every]
            self._schedulers = [
                one for one, groups in zip(every, held, strict=True) if groups is self._groups
            ]
        counts = [getattr(one, "last_epoch", None) for one in self._schedulers]
        now = [*_settings(self._groups), {"steps of the scheduler": counts}]
        changed = [
            name for one, then in zip(now, self._part or now, strict=True) for name in _differing(one, then)
        ]
        if changed:
            raise UnsupportedCombinationError(
                f"{', '.join(sorted(set(changed)))} changed between two microbatches of one batch: how many "
                "there are follows from the number of sampled examples, which is secret",
                supported="scheduler.step(), averages of the weights and counters of steps where "
                "optimizer.batch_complete is true",
            )
        self._part = None if last else (self._part or copy.deepcopy(now))

    def forget_part(self) -> None:
        """The batch begins again."""
        self._part = None

    def step(self) -> None:
        """Step the optimizer; other steps are refused."""
        self._resumed = None
        self._note_changes()
        try:
            self._stepping = True
            self.optimizer.step()
        finally:
            self._stepping = False
            # After the step: counters that an optimizer keeps in its groups are not changed settings.
            self._left = None if self.changed else copy.deepcopy(_settings(self._groups))

    def switch(self, mode: str) -> None:
        """Call `train` or `eval` of a schedule-free optimizer; what it sets in its groups is expected."""
        self.check()
        self._note_changes()
        getattr(self.optimizer, mode)()
        settings = copy.deepcopy(_settings(self._groups))
        self._resumed = None if self._resumed is None else settings
        self._left = None if self._left is None else settings

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state of torch's optimizer; the next step must use its settings."""
        self.optimizer.load_state_dict(state)
        self._groups = self.optimizer.param_groups
        self._resumed = copy.deepcopy(_settings(self._groups))
        self._left = self._resumed

    def _note_changes(self) -> None:
        """Compare the settings with those after the newest step."""
        if self._left is None or self.changed:
            return
        now = _settings(self._groups)
        names = {name for one, then in zip(now, self._left, strict=True) for name in _differing(one, then)}
        if names and self._scheduler is not None and names <= _SCHEDULED:
            rates = self._scheduler.get_last_lr()
            same = (_same(group["lr"], rate) for group, rate in zip(now, rates, strict=True))
            self.changed = len(rates) != len(now) or not all(same)
        else:
            self.changed = bool(names)

    def _listed(self) -> list[int]:
        return [id(param) for group in self.optimizer.param_groups for param in group["params"]]

    def _refuse_direct_step(self, *_: object) -> None:
        if not self._stepping:
            raise UnsupportedCombinationError(
                "the wrapped optimizer was stepped directly: its gradients are not private",
                supported="PrivateOptimizer.step",
            )


def check_hooks(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Refuse an optimizer with hooks on the model: it sees examples, and its steps would use them.

    Raises:
        UnsupportedCombinationError: if a hook is a method of the optimizer, or refers to it.
    """
    held = [getattr(part, name) for part in model.modules() for name in HOOKS]
    held += [hooks_of(param) for param in model.parameters()]
    for hook in (hook for hooks in held for hook in hooks.values()):
        cells = getattr(hook, "__closure__", None) or ()
        inside = [cell.cell_contents for cell in cells if cell != types.CellType()]
        if any(one is optimizer for one in (getattr(hook, "__self__", None), *inside)):
            raise UnsupportedCombinationError(
                f"{type(optimizer).__name__} has hooks on the model, by which it collects activations or "
                "gradients of examples (K-FAC): its steps would use them without noise",
                supported="an optimizer that reads only the gradients of the parameters (Adam, Muon)",
            )


def _settings(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in group.items() if name not in _OURS} for group in groups]


def _differing(now: dict[str, Any], then: dict[str, Any]) -> list[str]:
    return [name for name, value in then.items() if name not in now or not _same(now[name], value)]


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return bool(torch.equal(torch.as_tensor(one).cpu(), torch.as_tensor(other).cpu()))
    return bool(one == other)
