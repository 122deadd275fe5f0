"""make_private: model, optimizer and loader of an ordinary run, made private under a certificate."""

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, RandomSampler
from torch.utils.data import SequentialSampler as TorchSequentialSampler

from dpmech.calibration import calibrate_sigma
from dpmech.certificates import AdaptiveClip, Certificate, Claim
from dpmech.drawing import Sampler
from dpmech.engines import Method
from dpmech.exceptions import (
    CertificateError,
    InvalidParameterError,
    UnsupportedCombinationError,
)
from dpmech.fitting import BetterMember, better_member
from dpmech.guards import check_integer, check_real
from dpmech.mechanism import (
    Adjacency,
    ColumnNormalized,
    Identity,
    InverseSquareRoot,
    Mechanism,
    Participation,
    PrivacyBudget,
    SquareRoot,
    Strategy,
)
from dpmech.numerics import typed
from dpmech.optim.certified_settings import check_certified, check_claim
from dpmech.optim.clipping import Batch, Clipping
from dpmech.optim.noise import Generator, NoiseMode
from dpmech.optim.processes import Group, check_agreement, gathered, is_first, processes
from dpmech.optim.runs.batch_optimizer import BatchOptimizer
from dpmech.optim.runs.datasets import check_dataset
from dpmech.optim.runs.example_loss import LossTakes, Reduction, UserLoss
from dpmech.optim.runs.fixes import check_layers
from dpmech.optim.runs.gradient_modes import GradientMode, LossOfOneExample, OpacusHooks
from dpmech.optim.runs.loader import PrivateLoader
from dpmech.optim.runs.per_example_model import AskedMode, PerExampleModel, check_asked, check_model
from dpmech.optim.runs.same_data import check_same_length, loss_words
from dpmech.optim.runs.unchanged import Unchanged
from dpmech.optim.runs.user_datasets import UserDataset, check_same_choice, check_unit, owners_of
from dpmech.samplers import sampler_for
from dpmech.schemes.balls_in_bins import BallsInBins
from dpmech.schemes.fixed_order import SequentialSampler
from dpmech.schemes.poisson import Poisson


class BetterParameterWarning(UserWarning):
    """The strategy of a run has a parameter with which its error would be much smaller for the same budget.

    It says nothing against the guarantee. Where the parameter is meant as it is:
    `warnings.filterwarnings("ignore", category=dpmech.optim.BetterParameterWarning)`.
    """


def warn_of_better(claim: Claim) -> None:
    """Warn where `better_member` knows a much better parameter; two seconds at most, once a mechanism."""
    found = _found(claim.mechanism, claim.budget)
    if found is None:
        return
    strategy, participation = claim.strategy, claim.participation
    inner = strategy.strategy if isinstance(strategy, ColumnNormalized) else strategy
    family = type(inner).__name__
    if isinstance(inner, SquareRoot | InverseSquareRoot):
        way = f"use {found.strategy!r}"
    else:
        normalized = ", column_normalized=True" if inner is not strategy else ""
        way = (
            f"dm.optimize(dm.{family}, dm.{participation!r}, n={strategy.n}, eps={typed(claim.budget.eps)}, "
            f"delta={typed(claim.budget.delta)}{normalized}).strategy is the best one"
        )
    warnings.warn(
        f"a much better parameter of {family} exists for this budget: {found.strategy!r} has an error about "
        f"{found.factor:.1f} times smaller (RMSE on the prefix sum, roughly) than {strategy!r} under "
        f"{participation!r}. {way}. If this one is meant, filter dpmech.optim.BetterParameterWarning",
        BetterParameterWarning,
        stacklevel=3,
    )


@functools.lru_cache(maxsize=64)
def _found(mechanism: Mechanism, budget: PrivacyBudget) -> BetterMember | None:
    return better_member(mechanism, budget)


LOADERS_SIZE = "the loader's batch_size, times processes"  # in messages
_TOLERANCE = 0.1  # by which declared numbers may differ from private ones before anyone is told


def make_private(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: DataLoader[Any],
    calibration: object,
    clip_norm: float | AdaptiveClip | None = None,
    *,
    loss: Callable[..., Tensor] | None = None,
    expected_batch_size: float | None = None,
    dataset_size: int | None = None,
    max_physical_batch_size: int | Literal["auto"] | None = None,
    clipping: Clipping | None = None,
    drop_last: bool | None = None,
    generator: Generator | None = None,
    rng: object = None,
    mode: NoiseMode | None = None,
    process_group: Group = None,
    public_buffers: Sequence[str] = (),
    clipping_mode: AskedMode = "auto",
    loss_takes: LossTakes = "auto",
    unit: Literal["example", "user"] | None = None,
    user_loss: Reduction = "mean",
) -> tuple[nn.Module, BatchOptimizer, PrivateLoader]:
    """Make an ordinary training set-up private: three objects that replace those given.

    Batches are drawn as the certificate says, gradients are clipped one by one, and every step adds the
    certified noise. What does not agree with the certificate is refused here, before the first step. Where
    the strategy has a parameter that is much better for the budget, a `BetterParameterWarning` names it.

    Per-example gradients come from Opacus' GradSampleModule, for the loop that Opacus users know::

        for inputs, targets in loader:
            optimizer.zero_grad()
            criterion(model(inputs), targets).backward()
            optimizer.step()

    (criterion the *mean* over the batch), or with `loss`, the loss of one example, from `torch.func`::

        for inputs, targets in loader:
            model.backward(inputs, targets)
            optimizer.step()

    Under torch.distributed all processes call it with the whole dataset; batches are shared between them, and
    the weights of rank 0 are copied to all. Do not wrap the model in DistributedDataParallel.

    Args:
        model: a module that treats examples one by one; layers of batch normalisation are refused.
        optimizer: any torch optimizer over the model's parameters.
        loader: a DataLoader over the whole dataset, without shuffling (but for EveryStep, which allows it):
            the order is the certificate's. A batch_size other than that of the certificate's batches is
            refused.
        calibration: a Calibration or a Certificate.
        clip_norm: of one example's gradient, > 0; or an AdaptiveClip, by which it follows a quantile of the
            norms, certified jointly; None takes the certificate's, else 1.
        loss: None; or `loss(model, *example)` of one example, one number; or a criterion of outputs and
            targets, such as `nn.CrossEntropyLoss()`.
        expected_batch_size: the public denominator. Under ADD_REMOVE the number of examples is private, so
            that it has to be a number that you write down, such as 128, not one computed from the data: None
            takes the certificate's, else the loader's batch_size (times processes) if that is above 1, and is
            refused without both. Where the number of examples is public None may also take the mean size of
            a batch. What is declared may differ from the data by 10 %.
        dataset_size: under ADD_REMOVE a public number of examples, written down as well, which the claim of
            the run then states; None takes the certificate's. EveryStep and `drop_last` need it, as batches
            of an epoch follow from it. Elsewhere None, or as many as there are.
        max_physical_batch_size: how many examples of one process to hold at once; None for whole batches;
            "auto", with `loss`, measures what an example needs and takes half of the memory that is free. A
            run that goes on from a checkpoint keeps what was found, `loader.physical_batch_size`.
        clipping: as for PrivateOptimizer. Blocks that are given in order follow `model.named_parameters()`,
            however the optimizer groups and orders them; names and parameters may be keys.
        drop_last: as for SequentialSampler; only for participations that are not random. None is False, and
            refused where the loader has drop_last, which is not read.
        generator: of the noise; None for a key from the operating system, as private training must, and
            numbers from a cipher on CPUs, from Philox on accelerators; "secure" for the cipher, "philox" for
            Philox, "secure-lattice" for the cipher and sums on a lattice, see NoiseStream.
        rng: of the batches, as for `sampler_for`: None for a cipher with a key from the operating system, as
            private training must; with "secure" the noise is from a cipher on every device, unless
            `generator` is given.
        mode: of the noise, as for NoiseStream.
        process_group: the processes that train together; None for the default group.
        public_buffers: names of buffers, untrained parameters or extra states that may change in training
            because they do not depend on the data, such as counters. A change of any other is refused: they
            are released without noise.

        clipping_mode: "per_example" forms the gradient of every example; "ghost" forms norms and sums of
            linear layers, convolutions and embeddings from what goes in and out of them, the same up to
            roundings; "auto" chooses by shapes what costs less, and `optimizer.clipping_mode` says which it
            was (with `loss`, `model.clipping_choice` says why).
        loss_takes: "auto", "batch_of_one" or "example": whether the loss gets its example with a first
            dimension of 1, as models expect it, or bare. "auto" tries both on the first example.
        unit: None, or the unit of the claim, "example" or "user"; another one is refused. For a claim about
            users the dataset is a `UserDataset`, or where a participation has `max_examples_per_user` a
            `UserExamples`.
        user_loss: where users are sampled, whether the gradient that is clipped is that of the "mean" or of
            the "sum" of the losses of a user's examples.

    Returns:
        Model, optimizer (a BatchOptimizer) and loader (a PrivateLoader).

    Raises:
        InvalidParameterError: on a bad argument.
        CertificateError: if clip norm, denominator, size of the batches, unit or processes differ from what
        is
            certified, or declared numbers from the data.
        UnsupportedCombinationError: for shuffled or sampled loaders, layers that mix examples,
            DistributedDataParallel, and buffers of which nobody can tell whether they change.
        MissingDependencyError: without `loss`, if Opacus is not installed.
    """
    claim = check_claim(calibration)
    if isinstance(optimizer, list | tuple | dict):
        raise InvalidParameterError(
            "optimizer",
            f"{len(optimizer)} of them",
            "one torch.optim.Optimizer: the gradient of an example is one release, clipped over all "
            "parameters. Parts with settings of their own are parameter groups of one optimizer; parts that "
            "are trained in turns are runs of their own, each with a calibration, joined in a ledger",
        )
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InvalidParameterError("optimizer", optimizer, "a torch.optim.Optimizer")
    if not isinstance(loader, DataLoader):
        raise InvalidParameterError("loader", loader, "a torch.utils.data.DataLoader")
    check_asked(clipping_mode)
    if max_physical_batch_size == "auto" and loss is None:
        raise InvalidParameterError(
            "max_physical_batch_size",
            max_physical_batch_size,
            "a number or None without a loss, as what the loop computes is not known before its first batch; "
            "with loss=nn.CrossEntropyLoss() or a function it is found",
        )
    if check_unit(claim, loader.dataset, unit, hooks=loss is None) is not None and loss is not None:
        if clipping_mode == "ghost":
            raise UnsupportedCombinationError(
                "clipping_mode='ghost' knows norms of examples, and those of one user are clipped as one",
                supported="clipping_mode='auto' or 'per_example'",
            )
        loss, loss_takes, clipping_mode = UserLoss(loss, loss_takes, user_loss), "example", "per_example"
    gradients: GradientMode = (
        OpacusHooks(clipping_mode) if loss is None else LossOfOneExample(loss, clipping_mode, loss_takes)
    )
    inner = check_model(
        gradients.trained_module(model),
        [param for group in optimizer.param_groups for param in group["params"]],
    )
    check_layers(inner, hooks=loss is None)
    check_dataset(loader)
    _check_order(loader, claim)
    world = processes(process_group)
    check_same_choice(loader.dataset, process_group)
    check_same_length(loader.dataset, process_group)
    public_size = _public_size(claim, dataset_size, check_dataset(loader))
    dropping = _drop_last(loader, claim, given=drop_last)
    sampler = _sampler(
        claim, loader, world, drop_last=dropping, declared_size=public_size, rng=rng, group=process_group
    )
    denominator = _denominator(claim, loader, sampler, expected_batch_size, world)
    sampler.expected_batch_size = denominator
    private_loader = PrivateLoader(
        loader,
        sampler,
        max_physical_batch_size=max_physical_batch_size,
        full_batches=gradients.full_batches,
        process_group=process_group,
    )
    if world > 1:
        _share_weights(inner, process_group)
    trained = [param for param in inner.parameters() if param.requires_grad]
    if isinstance(clipping, Clipping):
        names = [name for name, param in inner.named_parameters() if param.requires_grad]
        clipping = clipping.over(trained, names)
    unchanged = Unchanged(inner, trained, public_buffers)
    private = BatchOptimizer(
        private_loader,
        optimizer,
        claim,
        clip_norm,
        denominator,
        dataset_size=public_size,
        clipping=clipping,
        generator=_secured(generator, rng),
        mode=mode,
        process_group=process_group,
        unchanged=unchanged,
    )
    private_loader.set_up.describe(inner, loss)
    try:
        check_agreement("the loss", {"code": loss_words(loss)}, process_group)
        wrapped = gradients.wrapped(model, private, private_loader.progress, unchanged)
        if isinstance(wrapped, PerExampleModel):
            _try_first_example(wrapped, loader)
    except Exception:
        private.undo()  # so that the next try gets the same optimizer and seed
        raise
    if is_first(process_group):
        warn_of_better(claim)
    return wrapped, private, private_loader


def _secured(generator: Generator | None, rng: object) -> Generator | None:
    """The generator of the noise: from a cipher too, where batches are and nothing else was said."""
    return "secure" if generator is None and isinstance(rng, str) and rng == "secure" else generator


def _try_first_example(model: PerExampleModel, loader: DataLoader[Any]) -> None:
    """Have the loss tried on the first example, as far as it can be seen how the loop will hand it over.

    Loops move a batch to the device of the model, and to its precision.
    """
    collate: Any = loader.collate_fn
    try:
        batch = collate([loader.dataset[0]])
    except Exception:  # noqa: BLE001 - whatever a dataset raises; the first batch will show it in its place
        return
    if isinstance(batch, Mapping):
        calls: list[tuple[tuple[Any, ...], Mapping[str, Any]]] = [((), batch), ((batch,), {})]
    else:
        calls = [(tuple(batch) if isinstance(batch, tuple | list) else (batch,), {})]
    weights = [param for param in model.parameters() if param.is_floating_point()]
    dtypes = {param.dtype for param in weights}
    for dtype in [*dtypes, None] if len(dtypes) == 1 else [None]:
        for args, kwargs in calls:
            try:
                taken = Batch(args, kwargs)
                model.prepare(Batch(*taken.arguments(_moved(taken.tensors, weights[0].device, dtype))))
            except UnsupportedCombinationError:
                raise
            except Exception:  # noqa: BLE001 - of a model or a loss on what the loop may hand over otherwise
                continue  # a part of the batch, scaled, in another type: the first call of backward shows it
            return


def _moved(tensors: Sequence[Tensor], device: torch.device, dtype: torch.dtype | None) -> list[Tensor]:
    """Tensors on a device, those with fractions in a precision, if one is given."""
    return [one.to(device, dtype if one.is_floating_point() else None) for one in tensors]


def _share_weights(module: nn.Module, group: Group) -> None:
    """Copy parameters and buffers of rank 0 to all processes."""
    source = dist.get_global_rank(group, 0) if group else 0
    for tensor in [*module.parameters(), *module.buffers()]:
        dist.broadcast(tensor.detach(), source, group)


def _check_order(loader: DataLoader[Any], claim: Claim) -> None:
    """Refuse loaders that say in which order examples come: that is the certificate's business."""
    if loader.batch_size is None:
        raise UnsupportedCombinationError(
            "the loader makes batches of its own", supported="DataLoader(dataset, batch_size=...)"
        )
    if isinstance(loader.sampler, RandomSampler) and not loader.sampler.replacement:
        if claim.participation.unrestricted:
            return  # no assumption, so nothing that shuffling could break
        raise UnsupportedCombinationError(
            "the loader shuffles: an example that ends one epoch may begin the next, so no separation of its "
            "participations holds, and no theorem here amplifies by shuffling",
            supported="shuffle=False; batches are drawn as the certificate's participation says",
        )
    if not isinstance(loader.sampler, TorchSequentialSampler):
        raise UnsupportedCombinationError(
            f"the loader has a {type(loader.sampler).__name__}",
            supported="a DataLoader over the whole dataset without a sampler; batches are drawn, and shared "
            "between processes, here",
        )


def _drop_last(loader: DataLoader[Any], claim: Claim, *, given: bool | None) -> bool:
    """Whether the last batch is left out: what the call says; that of the loader must not be overlooked."""
    if given is None and loader.drop_last and not claim.participation.random:
        raise UnsupportedCombinationError(
            "the loader has drop_last=True, which says nothing here: which examples are left out is public, "
            "and part of the batches that the certificate is about",
            supported="make_private(..., drop_last=True), under ADD_REMOVE with dataset_size=; or "
            "drop_last=False there, to train on every example",
        )
    return False if given is None else given


def _public_size(claim: Claim, given: int | None, count: int) -> int | None:
    """The number of examples that is public: the declared one, or that of all neighbours; None without."""
    certified = claim.dataset_size
    declared = certified if given is None else check_integer("dataset_size", given, minimum=1)
    if certified not in (None, declared):
        raise CertificateError(
            f"dataset_size is certified as {certified}, got {declared}",
            claimed=certified,
            recomputed=declared,
        )
    if not claim.mechanism.hides_size:
        if declared not in (None, count):
            raise CertificateError(
                f"dataset_size is {declared}, the dataset has {count} examples, which are public under "
                f"{claim.adjacency.name}",
                claimed=declared,
                recomputed=count,
            )
        return count
    if declared is not None and abs(declared - count) > max(1.0, _TOLERANCE * declared):
        raise _mismatch(f"{'certified ' if given is None else ''}dataset_size={declared}", declared)
    return declared


def _sampler(
    claim: Claim,
    loader: DataLoader[Any],
    world: int,
    *,
    drop_last: bool,
    declared_size: int | None,
    rng: object,
    group: Group,
) -> Sampler:
    """The certificate's batches, with the key of rank 0."""
    count = check_dataset(loader)
    if declared_size is None and (drop_last or claim.participation.unrestricted):
        raise InvalidParameterError(
            "dataset_size",
            None,
            "a public number of examples that you write down, such as 50_000: under ADD_REMOVE the real one "
            f"is private, and the batches of an epoch {'with drop_last ' if drop_last else ''}under "
            f"{claim.participation!r} must not follow from it",
        )
    declared = declared_size if claim.mechanism.hides_size else None
    shuffled = isinstance(loader.sampler, RandomSampler)
    if claim.participation.unrestricted:
        sampler: Sampler = SequentialSampler(
            count,
            claim.participation,
            claim.strategy.n,
            batch_size=(loader.batch_size or 1) * world,
            drop_last=drop_last,
            reshuffle=shuffled,
            declared_size=declared,
            rng=rng if shuffled else None,
        )
    else:
        together = claim.participation.users_together
        owners = owners_of(loader.dataset, claim.participation) if together else None
        sampler = sampler_for(
            claim, count, drop_last=drop_last, user_ids=owners, declared_size=declared, rng=rng
        )
    if world > 1:
        sampler.load_state_dict(gathered("the batches", sampler.state_dict(), group)[0])
    return sampler


def _denominator(
    claim: Claim, loader: DataLoader[Any], sampler: Sampler, given: float | None, world: int
) -> float:
    """The public number that sums are divided by.

    Sizes that people wrote down must be those of the batches: up to the rounding of steps per epoch where the
    number of examples is public, and else up to a tolerance, as what is told follows from the data.
    """
    if given is not None:
        check_certified(claim, "expected_batch_size", check_real("expected_batch_size", given))
    hidden, unrestricted = claim.mechanism.hides_size, claim.participation.unrestricted
    # 1 is what a DataLoader has where nobody said anything. Under EveryStep the batches were made from it.
    together = (loader.batch_size or 1) * world
    stated = {
        LOADERS_SIZE: together if loader.batch_size != 1 and not unrestricted else None,
        "the certificate's expected_batch_size": claim.expected_batch_size,
        "expected_batch_size": given,
    }
    mean = sampler.mean_batch_size
    for name, value in stated.items():
        if value is None:
            continue
        size = check_real(name, value)
        same_steps = size >= 1 and sampler.dataset_size // int(size) == sampler.steps_per_epoch
        tolerance = _TOLERANCE * size if hidden else 0.01 * mean
        if same_steps or abs(size - mean) < max(1.0, tolerance):
            continue
        _check_stated(name, size, stated)
        users = " (users, not examples: items of a UserDataset)" * isinstance(loader.dataset, UserDataset)
        if hidden:
            raise _mismatch(f"{name} is {size:g}{users}, which under {claim.participation!r}", size)
        raise CertificateError(
            f"{name} is {size:g}, but {claim.participation!r} over {sampler.dataset_size} examples gives "
            f"batches of {mean:g} on average{users}",
            claimed=size,
            recomputed=mean,
        )
    planned: float | None = mean
    if hidden:
        planned = together if loader.batch_size != 1 or unrestricted else None
    options = (given, claim.expected_batch_size, planned)
    found = next((value for value in options if value is not None), None)
    if found is None:
        raise InvalidParameterError(
            "expected_batch_size",
            None,
            "a number that you write down, such as 128, not one computed from the data: under "
            f"{claim.adjacency.name} the number of examples is private, and every step is divided by this; "
            "or a certificate with it, or the loader's batch_size",
        )
    return found


def _check_stated(name: str, size: float, stated: Mapping[str, float | None]) -> None:
    """Of a number that is not that of the batches: raise CertificateError if another one contradicts it."""
    for other, value in stated.items():
        if value is not None and abs(value - size) >= max(1.0, _TOLERANCE * size):
            raise CertificateError(
                f"{name} is {size:g}, and {other} is {value:g}: two declared sizes of a batch contradict "
                "each other; change the one that is not meant",
                claimed=value,
                recomputed=size,
            )


def _mismatch(what: str, declared: float) -> CertificateError:
    """A declared number that is far from the data, without what the data have."""
    return CertificateError(
        f"{what} differs from the dataset by more than {_TOLERANCE:.0%}. How many examples there are is "
        "private, and so is this message. Take a plan from what is known without the data; or publish the "
        "number on purpose, in the plan and as dataset_size; or use ZERO_OUT, where it is public",
        claimed=declared,
    )


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
) -> tuple[nn.Module, BatchOptimizer, PrivateLoader]:
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
