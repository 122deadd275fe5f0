"""What the error of a plan is about: iterates of SGD with a momentum and with learning rates, or others."""

import os
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_real
from dpmech.mechanism import Workload
from dpmech.plans.names import meant
from dpmech.plans.number_files import read_numbers

# Of the largest learning rate: squares and sums of others leave float64.
_SMALLEST = 1e-100
# Learning rates of n steps in multiples of the largest one.
SCHEDULES: dict[str, Callable[[int], npt.NDArray[np.float64]]] = {
    "cosine": lambda n: 0.5 + 0.5 * np.cos(np.pi * np.arange(n) / n),
    "linear": lambda n: 1.0 - np.arange(n) / n,
}


def workload_of(
    n: int, momentum: object = None, learning_rates: object = None, workload: object = None
) -> Workload | None:
    """The workload of SGD with these settings, or the one named; None, the prefix sums, without any.

    Args:
        n: number of steps.
        momentum: in [0, 1); None is 0.
        learning_rates: "cosine" (0.5 + 0.5 cos(pi t / n) at step t), "linear" (1 - t / n), both without
            warm-up, or the path of a .npy or CSV file of n numbers >= 0; None is 1 at every step.
        workload: "identity", "window:P" (sums of the last P gradients), or the path of a .npy or CSV file of
            a lower triangular matrix of shape (n, n); only without momentum and learning rates.

    Raises:
        InvalidParameterError: if a value is out of range, or if the file cannot be read.
    """
    if workload is not None:
        if momentum is not None or learning_rates is not None:
            raise InvalidParameterError("workload", workload, "None with momentum or learning rates")
        return _named(n, workload)
    if momentum is None and learning_rates is None:
        return None
    beta = 0.0 if momentum is None else momentum
    beta = check_real("momentum", beta, minimum=0.0, maximum=1.0, open_maximum=True)
    if learning_rates is None:
        return Workload(n, beta)
    schedule = SCHEDULES.get(str(learning_rates))
    if schedule is not None:
        return Workload(n, beta, schedule(n))
    accepted = f"{', '.join(SCHEDULES)}, or the path of a .npy or CSV file"
    if not isinstance(learning_rates, str) or not os.path.isfile(learning_rates):
        raise InvalidParameterError(
            "learning_rates", learning_rates, accepted, meant(learning_rates, SCHEDULES)
        )
    rates = read_numbers("learning_rates", learning_rates, (n,))
    if not (np.all(rates >= 0.0) and _SMALLEST <= rates.max() <= 1.0 / _SMALLEST):
        accepted = f"numbers >= 0, the largest in [{_SMALLEST:g}, {1.0 / _SMALLEST:g}]"
        raise InvalidParameterError("learning_rates", learning_rates, accepted)
    return Workload(n, beta, rates)


def _named(n: int, workload: object) -> Workload:
    words = str(workload)
    if words == "identity":
        return Workload(n, coefs=np.ones(1))
    if words.startswith("window:"):
        digits = words.removeprefix("window:")
        if not (digits.isascii() and digits.isdigit() and len(digits) < 10 and 1 <= int(digits) <= n):
            raise InvalidParameterError("workload", workload, f"window:P with P in [1, {n}]")
        return Workload(n, coefs=np.ones(int(digits)))
    if not isinstance(workload, str) or not os.path.isfile(workload):
        accepted = "identity, window:P, or the path of a .npy or CSV file"
        raise InvalidParameterError("workload", workload, accepted, meant(workload, ("identity", "window:")))
    matrix = read_numbers("workload", workload, (n, n))
    if not _SMALLEST <= np.abs(matrix).max() <= 1.0 / _SMALLEST:
        accepted = f"a matrix of numbers, the largest in [{_SMALLEST:g}, {1.0 / _SMALLEST:g}]"
        raise InvalidParameterError("workload", workload, accepted)
    return Workload(n, matrix=matrix)
