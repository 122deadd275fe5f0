"""Euler-Maruyama: paths of a stochastic differential equation, to hold formulas against."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from dpmech.analysis._arguments import check_nonnegative
from dpmech.exceptions import InvalidParameterError, NumericalError
from dpmech.guards import check_integer, check_real
from dpmech.numerics import FloatArray

__all__ = ["euler_maruyama"]


def euler_maruyama(
    drift: Callable[[FloatArray], FloatArray],
    diffusion: Callable[[FloatArray, FloatArray], FloatArray],
    start: npt.ArrayLike,
    *,
    learning_rate: float,
    steps: int,
    rng: np.random.Generator,
    substeps: int = 1,
    observe: Callable[[FloatArray], FloatArray] | None = None,
) -> FloatArray:
    """Paths of dX = b(X) dt + sqrt(lr) s(X) dW over `steps` units of lr.

    Each unit of lr is cut into `substeps` pieces of length h = lr / substeps, on which
    X += h b(X) + sqrt(lr h) s(X) z. With one piece it has the mean and the covariance of one optimizer step.

    Args:
        drift: b, from an array of states of shape (..., d) to one of the same shape.
        diffusion: (x, z) -> s(x) z for standard normal z, all of that shape.
        start: the states at time 0, shape (..., d): one row a replica.
        learning_rate: lr > 0.
        steps: T >= 1; the final time is lr T.
        rng: where the normal numbers come from.
        substeps: pieces of one step, >= 1.
        observe: what to keep of the states after every step; None keeps the final states alone.

    Returns:
        The final states, or with `observe` what it returned at steps 0..T, stacked. Paths with an error of
        weak order 1 in h.

    Raises:
        InvalidParameterError: on a bad argument, or where drift or diffusion change the shape.
        NumericalError: if a path leaves the range of float64.

    References:
        sde sde.lemB3, sde.thmB4.

    Examples:
        >>> import numpy as np
        >>> from dpmech.analysis.sde.simulation import euler_maruyama
        >>> rng = np.random.default_rng(1)
        >>> ends = euler_maruyama(
        ...     lambda x: -x, lambda x, z: z, np.zeros((20_000, 1)), learning_rate=0.1, steps=80, rng=rng
        ... )
        >>> round(float(ends.var()), 2)
        0.05
    """
    state = check_nonnegative("start", start, minimum=-np.inf)
    if state.ndim == 0:
        raise InvalidParameterError("start", start, "an array of shape (..., d)")
    rate = check_real("learning_rate", learning_rate, minimum=0.0, open_minimum=True)
    total = check_integer("steps", steps, minimum=1)
    pieces = check_integer("substeps", substeps, minimum=1)
    if not isinstance(rng, np.random.Generator):
        raise InvalidParameterError("rng", rng, "a numpy.random.Generator")
    length = rate / pieces
    scale = float(np.sqrt(rate) * np.sqrt(length))
    kept = [] if observe is None else [np.array(observe(state), dtype=np.float64)]
    for step in range(total):
        for _ in range(pieces):
            # Overflow ends in the check below, whatever the settings of numpy.
            with np.errstate(over="ignore", invalid="ignore"):
                pull = drift(state)
                push = diffusion(state, rng.standard_normal(state.shape))
                if np.shape(pull) != state.shape or np.shape(push) != state.shape:
                    raise InvalidParameterError(
                        "drift and diffusion",
                        (np.shape(pull), np.shape(push)),
                        f"functions to arrays of shape {state.shape}",
                    )
                state = state + length * pull + scale * push
            if not np.all(np.isfinite(state)):
                raise NumericalError(f"a path leaves the range of float64 at step {step}")
        if observe is not None:
            kept.append(np.array(observe(state), dtype=np.float64))
    return state if observe is None else np.stack(kept)
