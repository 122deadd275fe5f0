"""Trackers: log the publishable values of a private run to TensorBoard, Weights & Biases, MLflow or a bar.

None of these packages is imported: each tracker receives an object and calls its public logging methods.
"""

import abc
import functools
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_integer
from dpmech.ledgers import RunningEpsilon
from dpmech.numerics import up
from dpmech.optim.rules import logged_values, momentum_noise_ratios
from dpmech.optim.runs import BatchOptimizer


class Tracker(abc.ABC):
    """Base class of trackers; derive from it for other packages."""

    @abc.abstractmethod
    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log the values of a step by name.

        Args:
            values: of the step.
            step: steps taken.
        """


class TensorBoardTracker(Tracker):
    """`writer.add_scalar` for every value.

    Args:
        writer: a `torch.utils.tensorboard.SummaryWriter`.
    """

    def __init__(self, writer: Any) -> None:
        self._add = _method(writer, "writer", "add_scalar")

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Add one scalar per value."""
        for name, value in values.items():
            self._add(name, value, step)


class WandbTracker(Tracker):
    """`run.log` of Weights & Biases.

    Args:
        run: the result of `wandb.init`.
    """

    def __init__(self, run: Any) -> None:
        self._log = _method(run, "run", "log")

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log all values at once; the step is also a value, so that other calls of `log` may count steps."""
        self._log({**values, "privacy/step": step})


class MlflowTracker(Tracker):
    """`mlflow.log_metrics`.

    Args:
        mlflow: the module, with an active run.
    """

    def __init__(self, mlflow: Any) -> None:
        self._log = _method(mlflow, "mlflow", "log_metrics")

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log all values at once."""
        self._log(dict(values), step=step)


class ProgressBar(Tracker):
    """A tqdm bar that shows the steps taken and eps spent so far.

    Args:
        bar: `tqdm(total=optimizer.steps_left)`.
    """

    def __init__(self, bar: Any) -> None:
        self._update = _method(bar, "bar", "update")
        self._show = _method(bar, "bar", "set_postfix")
        self._at: int | None = None

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Advance the bar."""
        spent, whole = values["privacy/epsilon_spent"], values["privacy/epsilon_of_plan"]
        # A budget that is charged early is not exhausted: no step that is left costs more.
        text = f"{up(spent, 3)} of {up(whole, 3)}"
        if spent >= whole and values["privacy/steps_left"]:
            text += ", paid for all steps"
        self._show(eps=text, refresh=False)
        self._update(1 if self._at is None else step - self._at)
        self._at = step


def follow(
    optimizer: BatchOptimizer, *trackers: Tracker, every: int = 1, delta: float | None = None
) -> Callable[[], None]:
    """Log the publishable values of an optimizer after its steps.

    Logged are eps spent so far, with its delta (see `optimizer.epsilon_spent` for when that number
    holds), eps of the whole plan, the number of steps left, and the variance of the noise in the gradient.
    None of it depends on the data. Losses of batches and norms of their gradients do: the guarantee does not
    cover them, and they are not logged. Of an AdamBC and a Muon, the noise share of their state is logged
    too, and of an AdamBC the clamp fraction, from released gradients alone; that takes a median over all
    parameters, as often as `every` says.

    Args:
        optimizer: of make_private.
        *trackers: the destinations.
        every: number of steps between two entries, an integer >= 1; the last step is always logged.
        delta: in (0, 1); None is that of the claim.

    Returns:
        A function that stops logging.

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
    whole = RunningEpsilon(optimizer.claim).after(optimizer.claim.strategy.n, delta).upper
    ratios = functools.cache(functools.partial(momentum_noise_ratios, optimizer.claim.strategy))
    held = weakref.ref(optimizer)
    last = optimizer.record.steps

    def hook(*_: object) -> None:
        nonlocal last
        optimizer = held()
        if optimizer is None or optimizer.record.steps == last:
            return  # in the middle of a batch
        last = optimizer.record.steps
        if last % between and optimizer.steps_left:
            return
        phi = optimizer.phi
        values = {
            "privacy/epsilon_spent": optimizer.epsilon_spent(delta).upper,
            "privacy/epsilon_of_plan": whole,
            "privacy/delta": optimizer.claim.budget.delta if delta is None else delta,
            "privacy/steps_left": float(optimizer.steps_left),
            "privacy/noise_variance": max(phi) if isinstance(phi, tuple) else phi,
        }
        own = logged_values(optimizer.rule, ratios)
        values |= {f"rule/{name}": value for name, value in own.items()}
        for tracker in trackers:
            tracker.log(values, last)

    return optimizer.register_step_post_hook(hook).remove


def _method(value: Any, name: str, method: str) -> Callable[..., Any]:
    found: Any = getattr(value, method, None)
    if not callable(found):
        raise InvalidParameterError(name, value, f"an object with {method}()")
    return found  # type: ignore[no-any-return]  # callable(Any) is a Callable of anything
