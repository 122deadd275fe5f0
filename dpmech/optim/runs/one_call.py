"""make_private_with_epsilon: calibrate the noise for a budget and make a set-up private, in one call."""

import inspect
import logging
from collections.abc import Callable
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader

from dpmech.calibration import calibrate_sigma
from dpmech.certificates import AdaptiveClip, Certificate, Claim
from dpmech.engines import Method
from dpmech.exceptions import InvalidParameterError
from dpmech.fitting import Search, check_vectors, recommend_under
from dpmech.guards import check_integer, check_real
from dpmech.mechanism import Adjacency, Identity, Mechanism, Participation, Strategy
from dpmech.optim.processes import Group, check_current_device, is_first, processes
from dpmech.optim.runs.batch_optimizer import BatchOptimizer
from dpmech.optim.runs.datasets import check_dataset
from dpmech.optim.runs.fixes import check_layers
from dpmech.optim.runs.loader import PrivateLoader
from dpmech.optim.runs.make_private import check_order, make_private
from dpmech.schemes.balls_in_bins import BallsInBins
from dpmech.schemes.poisson import Poisson

_LOGGER = logging.getLogger("dpmech.optim")


def make_private_with_epsilon(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: DataLoader[Any],
    *,
    eps: float,
    delta: float,
    epochs: int | None = None,
    max_steps: int | None = None,
    strategy: Strategy | Callable[[int], Strategy] | None = None,
    participation: Participation | None = None,
    max_vectors: int | None = None,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
    dataset_size: int | None = None,
    method: Method | None = None,
    clip_norm: float | AdaptiveClip = 1.0,
    process_group: Group = None,
    **options: Any,
) -> tuple[nn.Module, BatchOptimizer, PrivateLoader]:
    """Calibrate the noise for a budget and make the set-up private, as `make_private` does.

    A step trains on `loader.batch_size` examples on average (times processes). An epoch has `dataset_size //
    batch_size` steps, and a run has n = epochs * steps per epoch, as in `dm.TrainingPlan`, or `max_steps`.
    The calibration is `optimizer.claim`, and the run record contains the certificate.

    Args:
        model: as for make_private.
        optimizer: as for make_private.
        loader: a DataLoader over the whole dataset, without shuffling, with the batch size.
        eps: > 0.
        delta: in (0, 1); less than 1 over the number of examples, or a whole example may be published.
        epochs: passes over the data, an integer >= 1; None with `max_steps`.
        max_steps: number of steps, an integer >= 1, in place of `epochs`. It may be any number under Poisson
            sampling. Under Balls-in-Bins, it is at least an epoch, and the last epoch may be cut short.
        strategy: noise strategy over n steps; or a function of n, such as `lambda n: dm.LambdaCGD(n, 0.9)` or
            `dm.Identity` (independent noise, that is, DP-SGD). None selects the strategy with the lowest
            error, as `dm.recommend` does, under Poisson sampling or Balls-in-Bins, and logs the choice in one
            line. The result is never worse than DP-SGD (RMSE of the prefix sums). The search takes seconds
            for tens of steps and minutes for thousands, while other processes wait. It may draw samples, so
            that another call makes another claim. To be able to resume, save `optimizer.certificate()` and
            pass it to `make_private`.
        participation: None is Poisson sampling for independent noise, and Balls-in-Bins with one bin per step
            of an epoch for other strategies. Without a strategy, that of the selected one.
        max_vectors: without a strategy, largest number of vectors of the model's size that the noise of a
            step may need on top of its fresh noise, as for `dm.recommend`. A stored vector takes 8 bytes per
            parameter. None is 1, which at most doubles the state of Adam (0 with generator="secure-lattice",
            which needs independent noise); 0 leaves only independent noise. It must be None
            if a strategy is given.
        adjacency: as for calibrate_sigma.
        dataset_size: a public number of examples. Under ADD_REMOVE, the true number is private; steps and
            sampling probability are then computed from this constant, which you choose within 10 % of the
            true number. Otherwise, None uses `len(dataset)`.
        method: as for calibrate_sigma.
        clip_norm: clip norm of one example's gradient, > 0; or an AdaptiveClip.
        process_group: as for make_private; the first process calibrates for all. Under NCCL the others wait
            for at most the timeout of the group, 10 minutes unless `init_process_group` was given another.
        **options: as for make_private: `loss`, `max_physical_batch_size`, `clipping_mode` and others.

    Returns:
        Model, optimizer and loader, as make_private.

    Raises:
        InvalidParameterError: on a bad argument, or a loader without a batch size.
        UnattainableBudgetError: if no noise meets the budget.
        UnsupportedCombinationError: if no proven bound covers the strategy under the participation, and as
            make_private.

    Examples:
        >>> import torch, dpmech as dm
        >>> from dpmech.optim import make_private_with_epsilon
        >>> data = torch.utils.data.TensorDataset(torch.randn(100, 3), torch.randn(100, 1))
        >>> model = torch.nn.Linear(3, 1)
        >>> model, optimizer, loader = make_private_with_epsilon(
        ...     model,
        ...     torch.optim.SGD(model.parameters(), lr=0.1),
        ...     torch.utils.data.DataLoader(data, batch_size=20),
        ...     eps=8.0,
        ...     delta=1e-5,
        ...     epochs=2,
        ...     dataset_size=100,
        ...     strategy=dm.Identity,
        ...     loss=torch.nn.MSELoss(),
        ... )
        >>> optimizer.steps_left, optimizer.claim.participation
        (10, Poisson(sampling_prob=0.2...))
    """
    if not isinstance(loader, DataLoader):
        raise InvalidParameterError("loader", loader, "a torch.utils.data.DataLoader")
    size = check_dataset(loader)
    if dataset_size is not None:
        size = check_integer("dataset_size", dataset_size, minimum=1)
    elif Adjacency.check(adjacency) is Adjacency.ADD_REMOVE:
        _refuse_private_size()
    if loader.batch_size is None or (loader.batch_size == 1 and size > 1):
        raise InvalidParameterError(
            "loader",
            f"with batch_size {loader.batch_size}",
            "DataLoader(dataset, batch_size=...) with the expected number of examples per step, above 1",
        )
    batch = check_integer(
        "the loader's batch_size, times processes",
        loader.batch_size * processes(process_group),
        minimum=1,
        maximum=size,
    )
    per_epoch = size // batch
    if (epochs is None) == (max_steps is None):
        raise InvalidParameterError("epochs and max_steps", (epochs, max_steps), "None for one of them")
    n = check_integer("max_steps", max_steps, minimum=1) if epochs is None else per_epoch
    n *= 1 if epochs is None else check_integer("epochs", epochs, minimum=1)
    if strategy is not None and max_vectors is not None:
        raise InvalidParameterError("max_vectors", max_vectors, "None with a strategy, which fixes them")
    alone_only = options.get("generator") == "secure-lattice"
    most = check_vectors(1 - alone_only if max_vectors is None else max_vectors)
    if most and alone_only:
        raise InvalidParameterError("max_vectors", max_vectors, 'None or 0 with generator="secure-lattice"')
    alone, bins = _strategy(strategy, n), BallsInBins(per_epoch)
    sampled: list[Participation] = [Poisson(batch / size), bins] if isinstance(alone, Identity) else [bins]
    sampled = sampled[:1] if n < per_epoch else sampled
    sampled = sampled if participation is None else [participation]
    # Before the calibration, which may take long: a bad combination is refused at once.
    inspect.signature(make_private).bind(model, optimizer, loader, None, clip_norm, **options)
    if not isinstance(clip_norm, AdaptiveClip):
        check_real("clip_norm", clip_norm, minimum=0.0, open_minimum=True)
    mechanism = Mechanism(alone, sampled[0], adjacency)
    check_order(loader, sampled[0])
    if isinstance(model, nn.Module):
        check_current_device(model.parameters(), process_group)  # before the first process calibrates
        check_layers(model, hooks=options.get("loss") is None)
    if dataset_size is None and mechanism.hides_size:
        _refuse_private_size()

    def claim() -> Claim:
        if strategy is not None:
            return calibrate_sigma(mechanism, eps, delta, method=method)
        best = recommend_under(
            sampled,
            n=n,
            eps=eps,
            delta=delta,
            max_vectors=most,
            search=Search(adjacency=adjacency, method=method),
        )
        _LOGGER.warning("no strategy was given: %s (strategy=dm.Identity for DP-SGD, Poisson)", best.words)
        return best.calibration

    shared = claim() if processes(process_group) == 1 else _from_first(claim, process_group)
    return make_private(
        model,
        optimizer,
        loader,
        shared,
        clip_norm,
        dataset_size=dataset_size,
        process_group=process_group,
        **options,
    )


def _refuse_private_size() -> NoReturn:
    raise InvalidParameterError(
        "dataset_size",
        None,
        "a public number of examples that you choose, such as 50_000, not computed from the data: the "
        "real one is private, and steps and sampling probability follow from this one",
    )


def _strategy(given: Strategy | Callable[[int], Strategy] | None, n: int) -> Strategy:
    """The strategy over n steps."""
    strategy = Identity(n) if given is None else given
    if not isinstance(strategy, Strategy) and callable(strategy):
        strategy = strategy(n)
    if not isinstance(strategy, Strategy) or strategy.n != n:
        raise InvalidParameterError(
            "strategy", strategy, f"None, a strategy over n = {n} steps, or a function that makes it from n"
        )
    return strategy


def _from_first(claim: Callable[[], Claim], group: Group) -> Claim:
    """The claim of the first process: calibrations that sample differ from process to process."""
    shared: list[Any] = [None]
    if is_first(group):
        try:
            shared = [claim().certificate().to_json()]
        except Exception as error:  # noqa: BLE001 - raised below in all processes, so that none waits
            shared = [error]
    dist.broadcast_object_list(shared, dist.get_global_rank(group, 0) if group else 0, group)
    if isinstance(shared[0], Exception):
        raise shared[0]
    return Certificate.from_json(shared[0])
