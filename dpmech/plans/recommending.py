"""`recommend`: the best strategy and sampling for the sizes of a training plan."""

import concurrent.futures
import os
from collections.abc import Callable, Sequence

import numpy as np

from dpmech.engines import Method
from dpmech.exceptions import InvalidParameterError
from dpmech.fitting import Recommendation, Search, recommend_under
from dpmech.mechanism import Adjacency, Participation, Workload, check_workload
from dpmech.plans.training_plans import TrainingPlan
from dpmech.schemes import scheme_of

# Samplings that need no more than sizes, and under which correlated noise or independent noise is strong.
SAMPLINGS = ("poisson", "random-allocation", "balls-in-bins", "min-sep")


def recommend(
    *,
    dataset_size: int,
    batch_size: int,
    epochs: int,
    eps: float,
    delta: float,
    max_vectors: int,
    samplings: Sequence[str | Participation] = SAMPLINGS,
    workload: Workload | None = None,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
    method: Method | None = None,
    rtol: float = 1e-3,
    rng: np.random.Generator | int | None = None,
    cache: str | os.PathLike[str] | None = None,
    progress: Callable[[str], None] | None = None,
    executor: concurrent.futures.Executor | None = None,
) -> Recommendation:
    """The strategy and sampling scheme with the lowest error for a plan, and their calibration.

    Under every sampling scheme that the training loop supports, the function calibrates independent noise,
    and fits LambdaCGD, BLT, BandedToeplitz and BandedInverse with up to `max_vectors` vectors, and Dense for
    at most 256 steps. The result is the trial with the lowest RMSE at its calibrated sigma. It is therefore
    never worse than independent noise under any of these sampling schemes, such as DP-SGD under Poisson
    sampling. A fit is a local search, so a better strategy may exist. The search uses only public sizes, and
    never the data.

    Args:
        dataset_size: public number of examples, >= 1, as for `TrainingPlan`.
        batch_size: expected batch size, in [1, dataset_size].
        epochs: passes over the data, an integer >= 1; n = epochs * (dataset_size // batch_size) steps.
        eps: > 0.
        delta: in (0, 1).
        max_vectors: largest number of vectors of the model's size that a step may store or regenerate for its
            noise, an integer >= 0. Stored vectors take 8 bytes per parameter (one vector for each buffer of a
            BLT, bands - 1 for BandedToeplitz and Dense). Regenerated vectors take time but no memory (1 for
            LambdaCGD, bands - 1 for BandedInverse, n - 1 for Dense with all entries). If 0, only independent
            noise is tried.
        samplings: the sampling schemes that the training loop supports: names as in
            `TrainingPlan.participation`, or participations if a scheme has further settings, such as a cycle.
            Participations must have the batch size of the plan, because errors at different batch sizes are
            not comparable.
        workload: the sums of gradients over n steps whose error is measured, from `dpmech.workloads`, such as
            `workloads.momentum(n, 0.9)` for the iterates of SGD with momentum; None is the prefix sum.
        adjacency: as for `calibrate_sigma`.
        method: as for `calibrate_sigma`.
        rtol: as for `calibrate_sigma`.
        rng: as for `calibrate_sigma`; with an integer the result is deterministic.
        cache: a folder of fitted coefficients, as for `optimize`.
        progress: called with a line of text from time to time.
        executor: where samples are generated, as for `calibrate_sigma`.

    Returns:
        A Recommendation, which contains the Calibration (a proved bound unless `method` returns estimates)
        and every trial, with the reason if it was refused. Trials under Balls-in-Bins share one failure
        probability.

    Raises:
        InvalidParameterError: if an argument is invalid.
        UnsupportedCombinationError: if no trial is covered by a theorem.
        UnattainableBudgetError: if no noise meets the budget.
        NumericalError: if all calibrations fail.

    Examples:
        >>> import dpmech as dm
        >>> best = dm.recommend(
        ...     dataset_size=1000, batch_size=50, epochs=5, eps=8.0, delta=1e-5, max_vectors=2,
        ...     samplings=("poisson", "min-sep"),
        ... )
        >>> type(best.strategy).__name__, best.participation, f"{best.calibration.rmse():.2f}"
        ('BLT', MinSep(min_sep=20, max_participations=5), '3.62')
        >>> min(one.calibration.rmse() for one in best.trials) == best.calibration.rmse()
        True
    """
    plan = TrainingPlan(dataset_size, batch_size, epochs)
    if isinstance(samplings, str) or not isinstance(samplings, Sequence) or not samplings:
        raise InvalidParameterError(
            "samplings", samplings, "one or more names or participations, such as ('poisson', 'min-sep')"
        )
    if not (method is None or isinstance(method, Method)):
        raise InvalidParameterError("method", method, "None or a method of dm.methods")
    found = [_participation(plan, one) for one in samplings]
    return recommend_under(
        list(dict.fromkeys(found)),
        n=plan.steps,
        eps=eps,
        delta=delta,
        max_vectors=max_vectors,
        search=Search(
            adjacency=adjacency,
            method=method,
            rtol=rtol,
            rng=rng,
            workload=check_workload(workload, plan.steps),
            cache=cache,
            progress=progress,
            executor=executor,
        ),
    )


def _participation(plan: TrainingPlan, sampling: object) -> Participation:
    """The participation that a name or an object states, for batches of the plan's size."""
    if isinstance(sampling, str):
        return plan.participation(sampling)
    if not isinstance(sampling, Participation):
        raise InvalidParameterError("samplings", sampling, "names or participations")
    implied = scheme_of(sampling).dataset_size_of(sampling, plan.batch_size)
    # A last batch of an epoch that is too small is left out.
    if implied is not None and abs(implied[0] - plan.dataset_size) > max(
        plan.batch_size, 0.01 * plan.dataset_size
    ):
        raise InvalidParameterError(
            "samplings",
            sampling,
            f"with an expected batch of {plan.batch_size} of {plan.dataset_size} examples, or its name",
        )
    return sampling
