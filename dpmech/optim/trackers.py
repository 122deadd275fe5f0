"""Trackers: what may be known of a private run, logged to TensorBoard, Weights & Biases, MLflow or a bar.

Nothing is imported for it: each takes the object of its package and makes its public logging calls.
"""

import abc
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_integer
from dpmech.numerics import up
from dpmech.optim.runs import BatchOptimizer


class Tracker(abc.ABC):
    """Takes values of a step; derive from it for others."""

    @abc.abstractmethod
    def log(self, values: Mapping[str, float], step: int) -> None:
        """Write down values by their names.

        Args:
            values: of the step.
            step: steps taken.
        """


class TensorBoardTracker(Tracker):
    """`writer.add_scalar` for every value.

    Args:
        writer: a `torch.utils.tensorboard.SummaryWriter`.
    """

    def __init__(self, writer: Any) -> None:  # noqa: ANN401 - of a package that need not be there
        self._add = _method(writer, "writer", "add_scalar")

    def log(self, values: Mapping[str, float], step: int) -> None:
        """One scalar for each."""
        for name, value in values.items():
            self._add(name, value, step)


class WandbTracker(Tracker):
    """`run.log` of Weights & Biases.

    Args:
        run: what `wandb.init` returned.
    """

    def __init__(self, run: Any) -> None:  # noqa: ANN401 - of a package that need not be there
        self._log = _method(run, "run", "log")

    def log(self, values: Mapping[str, float], step: int) -> None:
        """All at once; the step is a value too, so that other calls of `log` may count their own."""
        self._log({**values, "privacy/step": step})


class MlflowTracker(Tracker):
    """`mlflow.log_metrics`.

    Args:
        mlflow: the module, with a run that is active.
    """

    def __init__(self, mlflow: Any) -> None:  # noqa: ANN401 - of a package that need not be there
        self._log = _method(mlflow, "mlflow", "log_metrics")

    def log(self, values: Mapping[str, float], step: int) -> None:
        """All at once."""
        self._log(dict(values), step=step)


class ProgressBar(Tracker):
    """A bar of tqdm that moves by the steps taken, with eps spent so far.

    Args:
        bar: `tqdm(total=optimizer.steps_left)`.
    """

    def __init__(self, bar: Any) -> None:  # noqa: ANN401 - of a package that need not be there
        self._update = _method(bar, "bar", "update")
        self._show = _method(bar, "bar", "set_postfix")
        self._at: int | None = None

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Move on."""
        self._show(eps=up(values["privacy/epsilon_spent"], 3), refresh=False)
        self._update(1 if self._at is None else step - self._at)
        self._at = step


def follow(
    optimizer: BatchOptimizer, *trackers: Tracker, every: int = 1, delta: float | None = None
) -> Callable[[], None]:
    """Have what may be known of a run logged after its steps.

    Logged are eps spent so far, with its delta (`optimizer.epsilon_spent`, which says when that number
    holds), the steps that are left, and the variance of the noise in the gradient. None of it depends on the
    data. Losses of batches and norms of their gradients do: they are not private, and not logged here.

    Args:
        optimizer: of make_private.
        *trackers: where to.
        every: how many steps lie between two entries, an integer >= 1; the last step always has one.
        delta: in (0, 1); None is that of the claim.

    Returns:
        What ends it, when called.

    Raises:
        InvalidParameterError: on a bad argument.
    """
    if not isinstance(optimizer, BatchOptimizer):
        raise InvalidParameterError("optimizer", optimizer, "a BatchOptimizer, which make_private returns")
    for tracker in trackers:
        if not isinstance(tracker, Tracker):
            raise InvalidParameterError("trackers", tracker, "instances of dpmech.optim.trackers.Tracker")
    between = check_integer("every", every, minimum=1)
    optimizer.epsilon_spent(delta)  # a bad delta is refused here, not after the first step
    held = weakref.ref(optimizer)
    last = optimizer.record.steps

    def hook(*_: object) -> None:
        nonlocal last
        found = held()
        if found is None or found.record.steps == last:
            return  # in the middle of a batch
        last = found.record.steps
        if last % between and found.steps_left:
            return
        phi = found.phi
        values = {
            "privacy/epsilon_spent": found.epsilon_spent(delta).upper,
            "privacy/delta": found.claim.budget.delta if delta is None else delta,
            "privacy/steps_left": float(found.steps_left),
            "privacy/noise_variance": max(phi) if isinstance(phi, tuple) else phi,
        }
        for tracker in trackers:
            tracker.log(values, last)

    return optimizer.register_step_post_hook(hook).remove


def _method(value: Any, name: str, method: str) -> Callable[..., Any]:  # noqa: ANN401 - any object
    found: Any = getattr(value, method, None)
    if not callable(found):
        raise InvalidParameterError(name, value, f"an object with {method}()")
    return found  # type: ignore[no-any-return]  # callable(Any) is a Callable of anything
