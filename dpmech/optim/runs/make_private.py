"""make_private: make the model, optimizer and loader of an ordinary run private under a certificate."""

import functools
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, RandomSampler, WeightedRandomSampler
from torch.utils.data import SequentialSampler as TorchSequentialSampler

from dpmech.certificates import AdaptiveClip, Claim
from dpmech.drawing import Sampler
from dpmech.exceptions import CertificateError, InvalidParameterError, UnsupportedCombinationError
from dpmech.fitting import BetterMember, better_member
from dpmech.guards import check_integer, check_real
from dpmech.mechanism import (
    ColumnNormalized,
    InverseSquareRoot,
    Mechanism,
    Participation,
    PrivacyBudget,
    SquareRoot,
)
from dpmech.numerics import typed
from dpmech.optim.certified_settings import check_certified, check_claim
from dpmech.optim.clipping import Batch, Clipping
from dpmech.optim.inner_optimizer import check_hooks
from dpmech.optim.noise import Generator, NoiseMode
from dpmech.optim.processes import (
    Group,
    check_agreement,
    check_current_device,
    gathered,
    is_first,
    processes,
    share,
)
from dpmech.optim.runs.batch_optimizer import BatchOptimizer
from dpmech.optim.runs.clipping_choice import AskedMode, check_asked, note_compiled
from dpmech.optim.runs.datasets import check_dataset
from dpmech.optim.runs.example_loss import LossTakes, Reduction, UserLoss
from dpmech.optim.runs.fixes import check_layers
from dpmech.optim.runs.gradient_modes import hooked, unhooked
from dpmech.optim.runs.loader import PrivateLoader
from dpmech.optim.runs.per_example_model import PerExampleModel, check_model
from dpmech.optim.runs.same_data import check_same_length, loss_words
from dpmech.optim.runs.unchanged import Unchanged
from dpmech.optim.runs.user_datasets import UserDataset, check_same_choice, check_unit, owners_of
from dpmech.optim.state import spared
from dpmech.samplers import sampler_for
from dpmech.schemes.fixed_order import SequentialSampler

# Shown on standard error where logging is not configured: what was chosen determines memory and sampling.
_LOGGER = logging.getLogger("dpmech.optim")


class BetterParameterWarning(UserWarning):
    """Another parameter of the run's strategy has a much smaller error at the same budget.

    The guarantee is not affected. To keep the parameter and silence the warning:
    `warnings.filterwarnings("ignore", category=dpmech.optim.BetterParameterWarning)`.
    """


def warn_of_better(claim: Claim) -> None:
    """Warn if `better_member` finds a much better parameter; at most two seconds, once per mechanism."""
    better = _better(claim.mechanism, claim.budget)
    if better is None:
        return
    strategy, participation = claim.strategy, claim.participation
    inner = strategy.strategy if isinstance(strategy, ColumnNormalized) else strategy
    family = type(inner).__name__
    if isinstance(inner, SquareRoot | InverseSquareRoot):
        advice = f"use {better.strategy!r}"
    else:
        normalized = ", column_normalized=True" if inner is not strategy else ""
        advice = (
            f"dm.optimize(dm.{family}, dm.{participation!r}, n={strategy.n}, eps={typed(claim.budget.eps)}, "
            f"delta={typed(claim.budget.delta)}{normalized}).strategy is the best one"
        )
    warnings.warn(
        f"a much better parameter of {family} exists for this budget: {better.strategy!r} has an error about "
        f"{better.factor:.1f} times smaller (RMSE on the prefix sum, roughly) than {strategy!r} under "
        f"{participation!r}. {advice}. If this one is meant, filter dpmech.optim.BetterParameterWarning",
        BetterParameterWarning,
        stacklevel=3,
    )


@functools.lru_cache(maxsize=64)
def _better(mechanism: Mechanism, budget: PrivacyBudget) -> BetterMember | None:
    return better_member(mechanism, budget)


LOADERS_SIZE = "the loader's batch_size, times processes"  # in messages
_TOLERANCE = 0.1  # relative difference between declared and private numbers that is not reported


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
    """Make an ordinary training set-up private; return a model, optimizer and loader to use instead.

    Batches are sampled as the certificate specifies, gradients are clipped per example, and every step adds
    the certified noise. Anything that disagrees with the certificate is refused here, before the first step.
    If the strategy has a much better parameter for the budget, a `BetterParameterWarning` names it.

    Without `loss`, Opacus' GradSampleModule computes per-example gradients, in the loop of Opacus::

        for inputs, targets in loader:
            optimizer.zero_grad()
            criterion(model(inputs), targets).backward()
            optimizer.step()

    (the criterion must be a *mean*). With `loss`, the loss of one example, `torch.func` or a loop is used::

        for inputs, targets in loader:
            model.backward(inputs, targets)
            optimizer.step()

    Under torch.distributed, every process calls this function with the whole dataset; batches are split
    between the processes, and the weights of rank 0 are copied to all of them. Do not wrap the model in
    DistributedDataParallel; with `loss`, fully_shard (FSDP2) may precede the optimizer.

    Args:
        model: a module that processes examples independently; batch normalization is refused.
        optimizer: any torch optimizer over the model's parameters.
        loader: a DataLoader over the whole dataset; shuffle=True has no effect if batches are sampled, and is
            refused if the order is fixed (except for EveryStep). A different batch_size is refused too.
        calibration: a Calibration or a Certificate.
        clip_norm: clip norm of one example's gradient, > 0; or an AdaptiveClip, with which the clip norm
            follows a quantile of the gradient norms, certified jointly. None uses the clip norm of the
            certificate, or 1 if there is none.
        loss: None; or `loss(model, *example)`, a scalar for one example; or a criterion of outputs and
            targets, such as `nn.CrossEntropyLoss()`.
        expected_batch_size: the public denominator. Under ADD_REMOVE the number of examples is private, so
            this must be a constant that you choose, such as 128, and not a number computed from the data.
            None uses the value of the certificate, or else the loader's batch_size (times processes) if that
            is above 1; if there is neither, it is refused. If the number of examples is public, None can also
            use the mean batch size. A declared value may differ from the data by 10 %.
        dataset_size: under ADD_REMOVE, a public number of examples. This is also a constant that you choose,
            and the claim of the run states it. None uses the value of the certificate. Required for EveryStep
            and `drop_last`, since it determines the batches of an epoch. Otherwise None or the exact number
            of examples.
        max_physical_batch_size: largest number of examples (a microbatch) that one process handles at once;
            None for full batches; "auto", with `loss`, measures the memory per example and uses half of the
            free memory. A resumed run keeps the measured value, `loader.physical_batch_size`.
        clipping: as for PrivateOptimizer. Blocks given in order follow `model.named_parameters()`,
            regardless of how the optimizer groups them; names and parameters may be keys.
        drop_last: as for SequentialSampler; only for participations that are not random. None means False,
            and is refused if the loader has drop_last=True, which is otherwise ignored.
        generator: generator of the noise. None uses a key from the operating system, as private training
            requires, with a cipher on CPUs and CUDA and Philox on other accelerators; "secure" selects the
            cipher, "philox" Philox, and "secure-lattice" the cipher and sums on a lattice; see NoiseStream.
        rng: random numbers of the batches, as for `sampler_for`. None uses a cipher with a key from the
            operating system, as private training requires. With "secure", the noise also comes from a cipher
            on every device, unless `generator` is given.
        mode: mode of the noise, as for NoiseStream.
        process_group: the processes that train together; None for the default group.
        public_buffers: names of buffers, untrained parameters or extra states that may change in training
            because they do not depend on the data, such as counters. A change of any other is refused,
            because they are released without noise.
        clipping_mode: "per_example" forms the gradient of every example; "ghost" computes norms and sums of
            linear layers, convolutions and embeddings from their inputs and output gradients, equal up to
            rounding; "loop", with `loss`, processes one example at a time; "auto" chooses the cheapest
            possible mode, by estimates or, on an accelerator with `loss`, by times of random examples, which
            may differ from run to run. `optimizer.clipping_mode` is the chosen mode and, with `loss`,
            `model.clipping_choice` the reason. A resumed run keeps the mode.
        loss_takes: "auto", "batch_of_one" or "example": whether the loss receives its example with a first
            dimension of 1, as models expect, or without it. "auto" tries both on examples of random values.
        unit: None, or the unit of the claim, "example" or "user"; a different unit is refused. For a claim
            about users the dataset is a `UserDataset`, or a `UserExamples` where the participation has
            `max_examples_per_user` or the dataset keeps one example per user.
        user_loss: if users are sampled, "mean" or "sum": whether the clipped gradient is that of the mean or
            of the sum of the losses of a user's examples.

    Returns:
        Model, optimizer (a BatchOptimizer) and loader (a PrivateLoader).

    Raises:
        InvalidParameterError: on a bad argument.
        CertificateError: if clip norm, denominator, batch size, unit or processes differ from the
            certificate, or declared numbers from the data.
        UnsupportedCombinationError: for shuffled or sampled loaders, layers that mix examples, a `loss` that
            only compares examples, DistributedDataParallel, and buffers whose changes cannot be detected.
        MissingDependencyError: without `loss`, if Opacus is not installed.
    """
    claim = check_claim(calibration)
    if torch.get_default_device().type != "cpu":
        raise UnsupportedCombinationError(
            f"torch's default device is {torch.get_default_device()}, but batches are made on the CPU",
            supported='torch.set_default_device("cpu"), and .to(...) for model and batches',
        )
    if isinstance(optimizer, list | tuple | dict):
        raise InvalidParameterError(
            "optimizer",
            f"{len(optimizer)} of them",
            "one torch.optim.Optimizer: the gradient of an example is one release, clipped over all "
            "parameters. Use parameter groups of one optimizer for different settings; parts that "
            "are trained in turns are separate runs, each with a calibration, combined in a ledger",
        )
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InvalidParameterError("optimizer", optimizer, "a torch.optim.Optimizer")
    if not isinstance(loader, DataLoader):
        raise InvalidParameterError("loader", loader, "a torch.utils.data.DataLoader")
    users = check_unit(claim, loader.dataset, unit, hooks=loss is None) is not None
    check_asked(clipping_mode, loss=loss is not None, users=users, most=max_physical_batch_size)
    if users and loss is not None:
        loss, loss_takes = UserLoss(loss, loss_takes, user_loss), "example"
        clipping_mode = "loop" if clipping_mode == "loop" else "per_example"
    inner = check_model(
        unhooked(model, clipping_mode, loss=loss is not None),
        [param for group in optimizer.param_groups for param in group["params"]],
    )
    check_hooks(optimizer, inner)
    check_layers(inner, hooks=loss is None)
    check_dataset(loader)
    check_order(loader, claim.participation)
    if claim.participation.random and isinstance(loader.sampler, RandomSampler):
        _LOGGER.warning("shuffle=True has no effect: batches are sampled by %r", claim.participation)
    world = processes(process_group)
    check_current_device(model.parameters(), process_group)
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
        full_batches=loss is not None,  # which the model splits
        process_group=process_group,
    )
    share([*inner.parameters(), *inner.buffers()], process_group)
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
        # A cipher too if batches use one.
        generator="secure" if generator is None and isinstance(rng, str) and rng == "secure" else generator,
        mode=mode,
        process_group=process_group,
        unchanged=unchanged,
    )
    private_loader.set_up.describe(inner, loss)
    try:
        if world > 1:
            words = [*map(loss_words, inner.modules()), loss_words(loss)]
            own = {"code": words, "parameters": private.trained_names}
            check_agreement("the loss or attributes of the model", own, process_group)
        wrapped: nn.Module
        first = _first_batch(loader)
        if loss is None:
            wrapped = hooked(model, private, unchanged, clipping_mode)
        else:
            alone = PerExampleModel(
                model, loss, private, unchanged, clipping_mode=clipping_mode, loss_takes=loss_takes
            )
            wrapped = alone
            with alone.whole.gathered():
                _try_first_example(alone, first)
                alone.measure(process_group)
    except Exception:
        private.undo()  # so that another attempt gets the same optimizer and seed
        raise
    if is_first(process_group):
        note_compiled(inner, private.clipping_mode)
        warn_of_better(claim)
    return wrapped, private, private_loader


def _first_batch(loader: DataLoader[Any]) -> Any:
    """A batch of the first example; None if it cannot be read.

    A collate function may make its generator of random numbers at its first call, and is searched later.
    """
    collate: Any = loader.collate_fn
    try:
        with spared():
            return collate([loader.dataset[0]])
    except Exception:  # noqa: BLE001 - a dataset may raise anything; the first batch raises it in its place
        return None


def _try_first_example(model: PerExampleModel, batch: Any) -> None:
    """Try the loss on the shapes of the first example, in the forms in which the loop may pass it.

    Loops move a batch to the device of the model, and to its precision.
    """
    if batch is None:
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
                moved = [
                    one.to(weights[0].device, dtype if one.is_floating_point() else None)
                    for one in taken.tensors
                ]
                model.prepare(Batch(*taken.arguments(moved)))
            except UnsupportedCombinationError:
                raise
            except Exception:  # noqa: BLE001 - from a model or loss called otherwise than in the loop
                continue  # part of the batch, scaled, another dtype: the first call of backward shows it
            return


def check_order(loader: DataLoader[Any], participation: Participation) -> None:
    """Refuse loaders that set the order of examples: the certificate determines it."""
    if loader.batch_size is None:
        raise UnsupportedCombinationError(
            "the loader makes its own batches",
            supported="DataLoader(dataset, batch_size=...); with accelerate, make_private before prepare",
        )
    if isinstance(loader.sampler, RandomSampler) and not loader.sampler.replacement:
        if participation.unrestricted or participation.random:
            return  # no assumption that shuffling could violate; sampled batches do not use the order
        raise UnsupportedCombinationError(
            "the loader shuffles: an example at the end of one epoch may start the next, so no separation of "
            "its participations holds, and no amplification by shuffling is proven here",
            supported="shuffle=False, or a participation that samples its batches, such as dm.Poisson",
        )
    if not isinstance(loader.sampler, TorchSequentialSampler):
        raise UnsupportedCombinationError(
            f"the loader has a {type(loader.sampler).__name__}",
            supported="a DataLoader over the whole dataset without a sampler; batches are sampled here, and "
            "split between processes"
            + isinstance(loader.sampler, WeightedRandomSampler)
            * ", and a loss times the weight of its example",
        )


def _drop_last(loader: DataLoader[Any], claim: Claim, *, given: bool | None) -> bool:
    """Whether the last batch is left out: the argument decides; drop_last=True of the loader needs one."""
    if given is None and loader.drop_last and not claim.participation.random:
        raise UnsupportedCombinationError(
            "the loader has drop_last=True, which has no effect here: which examples are left out is public, "
            "and part of the certified batches",
            supported="make_private(..., drop_last=True), under ADD_REMOVE with dataset_size=; or "
            "drop_last=False in the loader, to train on every example",
        )
    return False if given is None else given


def _public_size(claim: Claim, given: int | None, count: int) -> int | None:
    """The public number of examples: declared, or that of all neighbours; None if there is none."""
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
    """The sampler of the certificate's batches, with the key of rank 0."""
    count = check_dataset(loader)
    if declared_size is None and (drop_last or claim.participation.unrestricted):
        raise InvalidParameterError(
            "dataset_size",
            None,
            "a public number of examples that you choose, such as 50_000: under ADD_REMOVE the real one "
            f"is private, and the batches of an epoch {'with drop_last ' if drop_last else ''}under "
            f"{claim.participation!r} must not depend on it",
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

    Declared sizes must equal the batch size: up to the rounding of steps per epoch if the
    number of examples is public, and else up to a tolerance, since the error message depends on the data.
    """
    if given is not None:
        check_certified(claim, "expected_batch_size", check_real("expected_batch_size", given))
    hidden, unrestricted = claim.mechanism.hides_size, claim.participation.unrestricted
    # 1 is the default of a DataLoader. Under EveryStep the batches were made from it.
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
            advice = "Give the batch size of the plan, all microbatches together. "
            raise _mismatch(f"{name} is {size:g}{users}, which under {claim.participation!r}", size, advice)
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
    denominator = next((value for value in options if value is not None), None)
    if denominator is None:
        raise InvalidParameterError(
            "expected_batch_size",
            None,
            "a constant that you choose, such as 128, not one computed from the data: under "
            f"{claim.adjacency.name} the number of examples is private, and every step is divided by this; "
            "or a certificate with it, or the loader's batch_size",
        )
    return denominator


def _check_stated(name: str, size: float, stated: Mapping[str, float | None]) -> None:
    """Raise CertificateError if another declared size contradicts one that differs from the batch size."""
    for other, value in stated.items():
        if value is not None and abs(value - size) >= max(1.0, _TOLERANCE * size):
            raise CertificateError(
                f"{name} is {size:g}, and {other} is {value:g}: two declared sizes of a batch contradict "
                "each other; correct the wrong one",
                claimed=value,
                recomputed=size,
            )


def _mismatch(what: str, declared: float, advice: str = "") -> CertificateError:
    """The error for a declared number that is far from the data, without revealing the data's number."""
    return CertificateError(
        f"{what} differs from the dataset by more than {_TOLERANCE:.0%}. The number of examples is private, "
        f"and so is this message. {advice}"
        "Plan with a number known without the data; or publish the number on purpose, in the plan and as "
        "dataset_size; or use ZERO_OUT, where it is public",
        claimed=declared,
    )
