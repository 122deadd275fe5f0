"""make_private_with_epsilon: from sizes and a budget to a private run, in one call."""

from collections.abc import Callable
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader

from dpmech.calibration import calibrate_sigma
from dpmech.documents import AdaptiveClip, Certificate, Claim
from dpmech.engines import Method
from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_integer
from dpmech.mechanism import Adjacency, Identity, Mechanism, Participation, Strategy
from dpmech.optim.processes import Group, is_first, processes
from dpmech.optim.runs.datasets import check_dataset
from dpmech.optim.runs.loader import PrivateLoader
from dpmech.optim.runs.lot_optimizer import LotOptimizer
from dpmech.optim.runs.make_private import make_private
from dpmech.schemes.balls_in_bins import BallsInBins
from dpmech.schemes.poisson import Poisson

__all__ = ["make_private_with_epsilon"]


def make_private_with_epsilon(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: DataLoader[Any],
    *,
    eps: float,
    delta: float,
    epochs: int,
    strategy: Strategy | Callable[[int], Strategy] | None = None,
    participation: Participation | None = None,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
    dataset_size: int | None = None,
    method: Method | None = None,
    clip_norm: float | AdaptiveClip = 1.0,
    process_group: Group = None,
    **options: Any,  # noqa: ANN401 - those of make_private
) -> tuple[nn.Module, LotOptimizer, PrivateLoader]:
    """Calibrate the noise for a budget and make the set-up private, as `make_private` does.

    A step trains on `loader.batch_size` examples on average (times processes), and an epoch has
    `dataset_size // batch_size` of them, so that a run has n = epochs * steps of an epoch; `dm.TrainingPlan`
    says the same. The calibration is `optimizer.claim`, and the certificate stands in the run record.

    Args:
        model: as for make_private.
        optimizer: as for make_private.
        loader: a DataLoader over the whole dataset, without shuffling, with the batch size.
        eps: > 0.
        delta: in (0, 1); less than 1 over the number of examples, or one of them may be published whole.
        epochs: passes over the data, an integer >= 1.
        strategy: what the noise is like, over n steps; or what makes it from n, such as
            `lambda n: dm.LambdaCGD(n, 0.9)`. None is independent noise: DP-SGD.
        participation: who takes part when. None is Poisson sampling under independent noise, and
            Balls-in-Bins, one bin a step of an epoch, under other strategies.
        adjacency: as for calibrate_sigma.
        dataset_size: a public number of examples. Under ADD_REMOVE the real one is private, and steps and
            sampling probability follow from this one: a number that you write down, within 10 % of the real
            one. Elsewhere None takes `len(dataset)`.
        method: as for calibrate_sigma.
        clip_norm: of one example's gradient, > 0; or an AdaptiveClip.
        process_group: as for make_private; the first process calibrates for all.
        **options: as for make_private: `loss`, `max_physical_batch_size`, `clipping_mode` and others.

    Returns:
        Model, optimizer and loader, as make_private.

    Raises:
        InvalidParameterError: on a bad argument, or a loader without a batch size.
        UnattainableBudgetError: if no noise meets the budget.
        UnsupportedCombinationError: if no theorem covers the strategy under the participation, and as
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
            "DataLoader(dataset, batch_size=...) with the expected number of examples of a step, above 1",
        )
    batch = check_integer(
        "the loader's batch_size, times processes",
        loader.batch_size * processes(process_group),
        minimum=1,
        maximum=size,
    )
    per_epoch = size // batch
    n = check_integer("epochs", epochs, minimum=1) * per_epoch
    found = _strategy(strategy, n)
    if participation is None:
        participation = Poisson(batch / size) if isinstance(found, Identity) else BallsInBins(per_epoch)
    # Before the calibration, which may take long: a bad combination is refused at once.
    mechanism = Mechanism(found, participation, adjacency)
    if dataset_size is None and mechanism.hides_size:
        _refuse_private_size()

    def claim() -> Claim:
        return calibrate_sigma(mechanism, eps, delta, method=method)

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
        "a public number of examples that you write down, such as 50_000, not computed from the data: the "
        "real one is private, and steps and sampling probability follow from this one",
    )


def _strategy(given: Strategy | Callable[[int], Strategy] | None, n: int) -> Strategy:
    """The strategy over n steps."""
    found = Identity(n) if given is None else given
    if not isinstance(found, Strategy) and callable(found):
        found = found(n)
    if not isinstance(found, Strategy) or found.n != n:
        raise InvalidParameterError(
            "strategy", found, f"None, a strategy over n = {n} steps, or a function that makes it from n"
        )
    return found


def _from_first(claim: Callable[[], Claim], group: Group) -> Claim:
    """The claim of the first process: calibrations that draw samples differ from process to process."""
    found: list[Any] = [None]
    if is_first(group):
        try:
            found = [claim().certificate().to_json()]
        except Exception as error:  # noqa: BLE001 - raised below, by all, so that nobody waits for this process
            found = [error]
    dist.broadcast_object_list(found, dist.get_global_rank(group, 0) if group else 0, group)
    if isinstance(found[0], Exception):
        raise found[0]
    return Certificate.from_json(found[0])
