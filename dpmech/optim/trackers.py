"""follow: pass the publishable values of a private run to TensorBoard, Weights & Biases, MLflow or a bar."""

import functools
import weakref
from collections.abc import Callable
from typing import Any, TypeAlias

from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_integer
from dpmech.ledgers import RunningEpsilon
from dpmech.numerics import up
from dpmech.optim.rules import logged_values, momentum_noise_ratios
from dpmech.optim.runs import BatchOptimizer

Log: TypeAlias = Callable[[dict[str, float], int], object]


class ProgressBar:
    """Shows the steps taken and eps spent so far in a tqdm bar: `follow(optimizer, ProgressBar(bar))`.

    Args:
        bar: `tqdm(total=optimizer.steps_left)`.
    """

    def __init__(self, bar: Any) -> None:
        self._bar = bar
        self._at: int | None = None

    def __call__(self, values: dict[str, float], step: int) -> None:
        """Advance the bar."""
        spent, whole = values["privacy/epsilon_spent"], values["privacy/epsilon_of_plan"]
        # A budget that is charged early is not exhausted: no step that is left costs more.
        text = f"{up(spent, 3)} of {up(whole, 3)}"
        if spent >= whole and values["privacy/steps_left"]:
            text += ", paid for all steps"
        self._bar.set_postfix(eps=text, refresh=False)
        self._bar.update(1 if self._at is None else step - self._at)
        self._at = step


def follow(
    optimizer: BatchOptimizer, *logs: Log, every: int = 1, delta: float | None = None
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
        *logs: called with the values by name and the number of steps taken, such as `run.log` of Weights &
            Biases, `mlflow.log_metrics`, or a loop over `writer.add_scalar` of TensorBoard.
        every: number of steps between two entries, an integer >= 1; the last step is always logged.
        delta: in (0, 1); None is that of the claim.

    Returns:
        A function that stops logging.

    Raises:
        InvalidParameterError: on a bad argument.
    """
    if not isinstance(optimizer, BatchOptimizer):
        raise InvalidParameterError("optimizer", optimizer, "a BatchOptimizer, which make_private returns")
    for log in logs:
        if not callable(log):
            raise InvalidParameterError("logs", log, "functions of the values and the step, such as run.log")
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
        for log in logs:
            log(dict(values), last)

    return optimizer.register_step_post_hook(hook).remove
