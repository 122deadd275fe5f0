"""The torch optimizer inside a PrivateOptimizer: stepped by it alone, over the parameters of the start."""

import copy
import inspect
from typing import Any

import torch

from dpmech.exceptions import InvalidParameterError, UnsupportedCombinationError

__all__ = ["InnerOptimizer"]

_MARK = "_dpmech_wrapped"
_OURS = {"params", "phi"}  # entries of a parameter group that are no settings of the caller's
_SCHEDULED = {"lr", "momentum", "betas"}  # what torch's schedulers change


class InnerOptimizer:
    """Watches a torch optimizer that has been made private.

    Args:
        optimizer: any torch.optim.Optimizer that does one gradient evaluation a step.

    Attributes:
        optimizer: the same.
        kind: the name of its class: another one makes other weights of the same state and gradients.
        changed: whether settings changed between two steps, also before a state that was loaded, otherwise
            than by the scheduler that is followed.

    Raises:
        InvalidParameterError: if it is none, or has been made private already.
        UnsupportedCombinationError: if it evaluates gradients several times a step.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise InvalidParameterError("optimizer", optimizer, "a torch.optim.Optimizer")
        if hasattr(optimizer, _MARK):
            raise InvalidParameterError(
                "optimizer", optimizer, "a new torch.optim.Optimizer: this one has been made private already"
            )
        parameters = inspect.signature(type(optimizer).step).parameters
        if "closure" in parameters and parameters["closure"].default is inspect.Parameter.empty:
            raise UnsupportedCombinationError(
                f"{type(optimizer).__name__} evaluates gradients several times a step: each would need a row "
                "of noise of its own",
                supported="optimizers whose step works without a closure",
            )
        self.optimizer = optimizer
        self.kind = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
        self._groups = optimizer.param_groups
        self._members = self._listed()
        self._stepping = False
        self._resumed: list[dict[str, Any]] | None = None
        self._left: list[dict[str, Any]] | None = None  # the settings after the newest step
        self._scheduler: Any = None
        self.changed = False

    def follow(self, scheduler: Any, *, forget: bool) -> None:  # noqa: ANN401 - a scheduler of torch's
        """From now on changes that are a scheduler's are none.

        Args:
            scheduler: whose class and settings checkpoints compare.
            forget: whether changes until now are none either, as no step before can be taken again.
        """
        if forget:
            self.changed = False
        elif self._scheduler is not None and scheduler is not self._scheduler:
            self.changed = True
        self._scheduler = scheduler

    def close(self) -> None:
        """From now on the optimizer is stepped here alone."""
        setattr(self.optimizer, _MARK, True)
        self._hook = self.optimizer.register_step_pre_hook(self._refuse_direct_step)

    def release(self) -> None:
        """Give the optimizer back as it was, before any step was taken."""
        delattr(self.optimizer, _MARK)
        self._hook.remove()

    def check(self) -> None:
        """Raise UnsupportedCombinationError if parameters came or went, or settings changed on resuming."""
        if self.optimizer.param_groups is not self._groups:
            raise UnsupportedCombinationError(
                "the wrapped optimizer has other parameter groups than when it was wrapped",
                supported="loading state through PrivateOptimizer.load_state_dict",
            )
        if self._listed() != self._members:
            raise UnsupportedCombinationError(
                "parameters were added to or taken from the wrapped optimizer: they would have no noise",
                supported="the parameters that were there when it was wrapped",
            )
        if self._resumed is None:
            return
        for now, then in zip(_settings(self._groups), self._resumed, strict=True):
            changed = _differing(now, then)
            if changed:
                raise UnsupportedCombinationError(
                    f"{', '.join(sorted(changed))} changed since the state was saved: steps that were taken "
                    "after it would be taken again with the same noise on other sums, and who has seen both "
                    "subtracts the noise",
                    supported="going on with the settings of the state; save after scheduler.step()",
                )

    def step(self) -> None:
        """The one step that is not refused."""
        self._resumed = None
        if self._left is not None and not self.changed:
            self.changed = self._changed_since(self._left)
        try:
            self._stepping = True
            self.optimizer.step()
        finally:
            self._stepping = False
            # After the step: what an optimizer counts in its groups is no setting that was changed.
            self._left = None if self.changed else copy.deepcopy(_settings(self._groups))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up a state of torch's; the next step must come with its settings."""
        self.optimizer.load_state_dict(state)
        self._groups = self.optimizer.param_groups
        self._resumed = copy.deepcopy(_settings(self._groups))
        self._left = self._resumed

    def _changed_since(self, before: list[dict[str, Any]]) -> bool:
        now = _settings(self._groups)
        names = {name for one, then in zip(now, before, strict=True) for name in _differing(one, then)}
        if not names or self._scheduler is None:
            return bool(names)
        rates = self._scheduler.get_last_lr()
        if not names <= _SCHEDULED or len(rates) != len(now):
            return True
        return not all(_same(group["lr"], rate) for group, rate in zip(now, rates, strict=True))

    def _listed(self) -> list[int]:
        return [id(param) for group in self.optimizer.param_groups for param in group["params"]]

    def _refuse_direct_step(self, *_: object) -> None:
        if not self._stepping:
            raise UnsupportedCombinationError(
                "the wrapped optimizer was stepped directly: its gradients are not private",
                supported="PrivateOptimizer.step",
            )


def _settings(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in group.items() if name not in _OURS} for group in groups]


def _differing(now: dict[str, Any], then: dict[str, Any]) -> list[str]:
    return [name for name, value in then.items() if name not in now or not _same(now[name], value)]


def _same(one: Any, other: Any) -> bool:  # noqa: ANN401 - whatever a group holds
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return bool(torch.equal(torch.as_tensor(one).cpu(), torch.as_tensor(other).cpu()))
    return bool(one == other)
