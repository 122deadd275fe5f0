"""The best strategy of a family for a plan: `optimize`."""

import concurrent.futures
import os
from collections.abc import Sequence

import numpy as np

from dpmech.engines import Method
from dpmech.exceptions import InvalidParameterError
from dpmech.fitting.candidates import Report, Request
from dpmech.fitting.decoder_error import Objective
from dpmech.fitting.dense_programme import LARGEST_DENSE
from dpmech.fitting.fit import Fit, FitCache
from dpmech.guards import check_integer, check_real
from dpmech.mechanism import (
    BLT,
    Adjacency,
    BandedInverse,
    BandedToeplitz,
    Dense,
    EveryStep,
    LambdaCGD,
    Participation,
    PrivacyBudget,
    Strategy,
    Workload,
    check_participation,
    check_workload,
)
from dpmech.numerics import running_on
from dpmech.schemes import scheme_of
from dpmech.schemes.cyclic_poisson import CyclicPoisson

__all__ = ["check_family", "cyclic_choices", "optimize"]

_FAMILIES: tuple[type[Strategy], ...] = (LambdaCGD, BandedToeplitz, BandedInverse, BLT, Dense)
_DEFAULT_BUFFERS = 3


def optimize(
    family: type[Strategy],
    participation: Participation | Sequence[Participation] | None = None,
    *,
    n: int,
    bands: int | None = None,
    buffers: int | None = None,
    column_normalized: bool = False,
    objective: str = "rmse",
    eps: float | None = None,
    delta: float | None = None,
    workload: Workload | None = None,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
    method: Method | None = None,
    rtol: float = 1e-3,
    rng: np.random.Generator | int | None = None,
    cache: str | os.PathLike[str] | None = None,
    progress: Report | None = None,
    executor: concurrent.futures.Executor | None = None,
) -> Fit:
    """The strategy of a family with the least certified error.

    Without amplification the error is `||B|| sens / sqrt(n)` (or its MaxSE or last-step form) with the upper
    end of the same sensitivity that `dpmech.sensitivity` returns, minimised by L-BFGS with analytic
    gradients. Under Balls-in-Bins it is the error at the calibrated sigma: a local search by the derivative
    of sigma along dampings of the unamplified optima and then over all coefficients >= 0, on rough sigmas.
    Under Poisson and CyclicPoisson sigma depends on the largest column norm alone, and at most one, or
    `cycle`, bands are allowed. With a new allocation every epoch only independent noise is covered, and the
    Identity is all that there is.

    Args:
        family: LambdaCGD, BandedToeplitz, BandedInverse, BLT or Dense (n <= 4096).
        participation: who takes part when; None is EveryStep. Several alternatives are tried in turn and
            the best is kept, such as those of `dpmech.fitting.cyclic_choices`. Balls-in-Bins: at most 6000
            bins.
        n: number of steps, >= 1.
        bands: bands of C (BandedToeplitz, Dense) or C^-1 (BandedInverse). Default: as many as the
            participation allows, at most 64, for BandedToeplitz; as many as it allows for Dense; 4 for
            BandedInverse.
        buffers: exponentials of a BLT, 1 to 8. Default 3.
        column_normalized: scale the columns to norm 1 and fit for that.
        objective: "rmse", "max_se" or "last".
        eps: the budget, with `delta`; required for random participations. The fit then holds a
            calibration, and its error is at that sigma.
        delta: see `eps`.
        workload: A; None is the prefix sum.
        adjacency: as for `calibrate_sigma`.
        method: as for `calibrate_sigma`, for the final calibrations: there are several, of which the best is
            kept, and what they leave to chance they share.
        rtol: as for `calibrate_sigma`.
        rng: as for `calibrate_sigma`, for the final calibration; the search has a fixed seed of its own.
        cache: a folder; coefficients fitted for the same request before are read from it.
        progress: called with a line of text now and then.
        executor: where samples are drawn, as for `calibrate_sigma`.

    Returns:
        A Fit. Its error is that of the strategy that it holds, with the guarantee of its sensitivity or of
        its calibration, and at most that of the Identity and of the unamplified optimum (where that can be
        calibrated). That no better strategy exists is not claimed (only for Dense with unit columns is the
        programme convex).

    Raises:
        InvalidParameterError: on a bad argument.
        UnsupportedCombinationError: where no theorem covers the combination.
        NumericalError: if a calibration fails.

    References:
        lambda_cgd Table 4 and section 4; noise_share eq. 26.

    Examples:
        >>> import dpmech as dm
        >>> fit = dm.optimize(dm.LambdaCGD, dm.MinSep(390, 10), n=3900)
        >>> round(fit.strategy.lam, 3), round(fit.error * 0.60022907, 2)
        (0.978, 12.69)
    """
    size, exponentials = check_family(family, n=n, bands=bands, buffers=buffers)
    steps = int(n)
    if (eps is None) != (delta is None):
        raise InvalidParameterError("delta" if delta is None else "eps", None, "given with the other one")
    request = Request(
        family=family,
        n=steps,
        bands=size,
        buffers=exponentials,
        column_normalized=bool(column_normalized),
        objective=Objective.check(objective),
        workload=check_workload(workload, steps),
        budget=None if eps is None or delta is None else PrivacyBudget(eps, delta),
        adjacency=Adjacency.check(adjacency),
        calibration={"method": method, "rtol": rtol, "rng": rng},
        report=progress if progress is not None else _silent,
    )
    schemas = _alternatives(participation)
    for schema in schemas:
        schema.pattern(steps)
        refusal = scheme_of(schema).structure(schema).not_fitted
        if refusal is not None:
            raise refusal
        if schema.random and request.budget is None:
            raise InvalidParameterError("eps", eps, f"given, with delta, for {schema!r}")
    store = None if cache is None else FitCache(cache)
    key = "" if store is None else store.key(request.plain(schemas))
    stored = None if store is None else store.load(key)
    with running_on(executor):
        if stored is None:
            found = [one for schema in schemas for one in request.candidates(schema)]
        else:
            found = [request.candidate(*stored)]
        fit = request.finished(found, schemas)
    if store is not None and stored is None:
        store.store(key, fit.strategy, fit.participation)
    return fit


def check_family(
    family: type[Strategy], *, n: int, bands: int | None, buffers: int | None
) -> tuple[int | None, int]:
    """The sizes of a family as `optimize` takes them, before anything is fitted.

    Args:
        family: as for `optimize`.
        n: as for `optimize`.
        bands: as for `optimize`.
        buffers: as for `optimize`.

    Returns:
        bands, or None where the default depends on the participation; and buffers.

    Raises:
        InvalidParameterError: on a bad argument.
    """
    if not isinstance(family, type) or family not in _FAMILIES:
        raise InvalidParameterError("family", family, "one of " + ", ".join(k.__name__ for k in _FAMILIES))
    steps = check_integer("n", n, minimum=1)
    sizes = _checked_bands(family, bands, steps), _checked_buffers(family, buffers)
    if family is Dense and steps > LARGEST_DENSE:
        raise InvalidParameterError("n", steps, f"at most {LARGEST_DENSE} for Dense")
    return sizes


def cyclic_choices(sampling_prob: float, cycles: Sequence[int]) -> list[Participation]:
    """CyclicPoisson with the expected batch size of Poisson(sampling_prob), for every cycle; for `optimize`.

    Args:
        sampling_prob: q of Poisson sampling from all the data, in (0, 1].
        cycles: each at least 1 and at most 1 / q: a group is 1 / cycle of the data.

    Raises:
        InvalidParameterError: on a bad argument.

    Examples:
        >>> cyclic_choices(0.01, [1, 4])
        [CyclicPoisson(sampling_prob=0.01, cycle=1), CyclicPoisson(sampling_prob=0.04, cycle=4)]
    """
    rate = check_real("sampling_prob", sampling_prob, minimum=0.0, maximum=1.0, open_minimum=True)
    checked = [check_integer("cycle", cycle, minimum=1) for cycle in cycles]
    # A product may miss 1 by rounding.
    if not checked or rate * max(checked) > 1.0 + 1e-12:
        raise InvalidParameterError("cycles", cycles, f"at least one, none above 1 / {rate:g}")
    return [CyclicPoisson(min(rate * cycle, 1.0), cycle) for cycle in checked]


def _alternatives(value: Participation | Sequence[Participation] | None) -> list[Participation]:
    if value is None:
        return [EveryStep()]
    if isinstance(value, Sequence) and not isinstance(value, str):
        schemas = [check_participation(one) for one in value]
        if not schemas:
            raise InvalidParameterError("participation", value, "at least one participation")
        return list(dict.fromkeys(schemas))
    return [check_participation(value)]


def _checked_bands(family: type[Strategy], value: int | None, n: int) -> int | None:
    if value is None:
        return None
    if family in {LambdaCGD, BLT}:
        raise InvalidParameterError("bands", value, f"None for {family.__name__}")
    return check_integer("bands", value, minimum=1, maximum=n)


def _checked_buffers(family: type[Strategy], value: int | None) -> int:
    if value is None:
        return _DEFAULT_BUFFERS
    if family is not BLT:
        raise InvalidParameterError("buffers", value, f"None for {family.__name__}")
    return check_integer("buffers", value, minimum=1, maximum=8)


def _silent(line: str) -> None:
    del line
