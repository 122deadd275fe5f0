"""The loader of a private run, and what it shares with the optimizer."""

import dataclasses
import hashlib
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from dpmech.certificates import CheckpointHistory
from dpmech.drawing import Sampler
from dpmech.exceptions import (
    CertificateError,
    HorizonError,
    InvalidParameterError,
    UnsupportedCombinationError,
)
from dpmech.guards import check_integer
from dpmech.optim.noise import Uncopied
from dpmech.optim.processes import Group, check_agreement, processes, rank_of
from dpmech.optim.runs.collated import Padded, padded_row
from dpmech.optim.runs.datasets import Collation, OneByOne, Part, check_dataset
from dpmech.optim.runs.same_data import SameData
from dpmech.optim.runs.set_up import SetUp
from dpmech.optim.runs.user_datasets import owners_of
from dpmech.optim.state import seed, seed_globals, spared, stored_globals
from dpmech.samplers import ParticipationTracker, shard

_LOGGER = logging.getLogger("dpmech.optim")


class BatchProgress:
    """Shared by a PrivateLoader and its optimizer: step t must be taken on the whole of batch t.

    Attributes:
        batches: microbatches returned so far.
        drawn: batches of which at least one microbatch was returned.
        complete: whether the last microbatch of the newest batch was returned.
        begun: whether any gradient of the newest batch reached the optimizer.
        stepped: steps taken.
        handed: number of examples in the newest microbatch.
        counted: how many of them the optimizer has received, in one pass; None before.
        left_out: additional rows of the microbatch that got weight 0.
        calls: of the model with gradients, as far as it is watched: number of calls that may have used each
            trained parameter on the newest microbatch.
    """

    def __init__(self) -> None:
        self.batches = 0
        self.drawn = 0
        self.complete = True
        self.begun = False
        self.stepped = 0
        self.handed = 0
        self.counted: int | None = None
        self.left_out = 0
        self.calls: Counter[int] = Counter()
        # Calls whose backward pass may follow, even in later batches; Opacus records none in eval mode.
        self._pending: Counter[int] = Counter()

    def hand_out(self, examples: int, *, first: bool, last: bool) -> None:
        """Note that the loader returns a microbatch with this many examples.

        Raises:
            UnsupportedCombinationError: if the previous batch had no step.
        """
        if first:
            if self.drawn != self.stepped:
                raise UnsupportedCombinationError(
                    f"a new batch is sampled before optimizer.step() on batch {self.drawn - 1}: batches and "
                    "rows of noise would no longer correspond",
                    supported="optimizer.step() after every batch of the loader",
                )
            self.begun = False
        else:
            if self.handed and self.counted is None:
                raise UnsupportedCombinationError(
                    f"a part of batch {self.drawn - 1} was skipped",
                    supported="all parts of a batch in its step",
                )
            self.check_counted()
            self.close_batch()
        self.batches += 1
        self.counted = None
        self.left_out = 0
        self.handed = examples
        self.complete = last
        self.calls = Counter(self._pending)
        self.drawn += first  # last: without it there is no batch for a step

    def take_back(self, discard: Callable[[], bool]) -> None:
        """Forget the newest batch if it had no step, so that it is returned again.

        Args:
            discard: discards what the optimizer has of it; whether it could.
        """
        if self.drawn == self.stepped + 1 and (discard() or not self.begun):
            self.complete, self.begun, self.counted = True, False, None
            self._pending.clear()
            self.drawn -= 1

    def note_call(self, params: Iterable[int], *, training: bool) -> None:
        """Note a call with gradients of a model or a submodule.

        Args:
            params: identities of the trained parameters that it may use.
            training: whether the module is in training mode.
        """
        used = list(params)
        self.calls.update(used)
        if training:
            self._pending.update(used)

    def close_batch(self) -> None:
        """Note that the optimizer has the gradients of the newest microbatch and of all calls so far."""
        self._pending.clear()

    def check_room(self, examples: int) -> None:
        """Raise UnsupportedCombinationError if the microbatch has fewer examples, or already had a pass."""
        if self.counted is not None or examples > self.handed:
            raise UnsupportedCombinationError(
                # Without the numbers: the size of a sampled batch is private.
                "a second backward pass for one batch, or gradients of more examples than the batch holds: "
                "one example would add more than one clipped gradient to the step",
                supported="one backward pass for every batch, over all of it",
            )

    def count(self, examples: int, left_out: int = 0) -> None:
        """Note that gradients of `examples` examples are about to be added, and that rows got weight 0.

        Called before the addition: an interrupt in between loses them, instead of adding them twice.
        """
        self.begun = True
        self.counted = examples
        self.left_out = left_out

    def check_counted(self) -> None:
        """Raise UnsupportedCombinationError unless every example of the newest microbatch came as one row.

        Rows with weight 0 may be excluded examples or padding. Fewer rows than examples are
        not examples (but time steps, pairs, packed sequences): the contribution of one example is then
        not bounded by the clip norm.
        """
        if self.handed and self.counted is None:
            raise UnsupportedCombinationError(
                "optimizer.step() before the backward pass of the batch: the step would be only noise",
                supported="backward, then step",
            )
        counted = self.counted or 0
        if counted + self.left_out < self.handed:
            raise UnsupportedCombinationError(
                "fewer gradients than the batch has examples: the clipped rows are not single examples",
                supported="models, losses and collate functions that keep examples separate, along the first "
                "dimension",
            )
        most = max(self.calls.values(), default=0)
        if most > 1:
            raise UnsupportedCombinationError(
                f"the model was called {most} times on one batch, or a part of it was: gradients of one "
                "example may be in several rows, each clipped separately",
                supported="one call of the model for every batch (others under torch.no_grad()): a module "
                "whose forward calls a part twice counts as one",
            )

    def check_step(self) -> None:
        """Raise UnsupportedCombinationError unless there is a batch for a step."""
        if self.drawn != self.stepped + 1:
            raise UnsupportedCombinationError(
                f"optimizer.step() without a batch: {self.stepped} steps were taken on {self.drawn} batches",
                supported="one step for every batch that the loader of make_private returns",
            )

    def note_step(self) -> None:
        """Note that the optimizer took the step of the newest batch."""
        self.stepped += 1
        self.close_batch()

    def resume(self, steps: int) -> None:
        """Continue after `steps` complete batches."""
        self.drawn = self.stepped = steps
        self.complete = True


class StepRandomness:
    """Seeds Python's, numpy's and torch's generators from a secret and a use, and restores them.

    The absence of one example shifts the draws (dropout, masking) of all others in its batch. Under a known
    seed these are different numbers, and sums differ by far more than one clip norm. If the seed is secret
    and differs for every use, the numbers have the same distribution whatever was drawn
    before, so that a sum without one example can be compared under the same masks of all others.

    A step that is repeated after a failure draws the same numbers, just as it adds the same noise.

    Args:
        secret: returns 32 bytes for a use; None uses a new key.
    """

    def __init__(self, secret: Callable[[str], bytes] | None = None) -> None:
        key = secrets.token_bytes(32)
        self.secret = secret or (lambda use: hashlib.blake2b(use.encode(), key=key, digest_size=32).digest())
        self._outside: Callable[[], None] | None = None

    @contextmanager
    def at(self, use: str) -> Iterator[None]:
        """A context whose draws are determined by the use."""
        with spared():
            seed_globals(self.secret(use))
            yield

    def begin(self, use: str) -> None:
        """Determine draws by the use, until `end`."""
        if self._outside is None:
            self._outside = stored_globals()
        seed_globals(self.secret(use))

    def end(self) -> None:
        """Restore the states of the generators before the first `begin`."""
        if self._outside is not None:
            self._outside()
            self._outside = None


_STATE = {"sampler", "tracker", "steps", "processes", "max_physical_batch_size", "set_up"}
# Settings with which a DataLoader is rebuilt; the sampler sets the order of examples.
_KEPT = (
    "num_workers",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory_device",
)


# What the certificate and the record of a run depend on.
_FIXED = frozenset({"dataset", "sampler", "tracker", "process_group", "processes"})


class PrivateLoader(Uncopied):
    """The loader of a private run: returns every batch of the sampler, in microbatches, and checks its use.

    Iteration returns the batches of the rest of the epoch; after the last certified step, it raises an error.
    Every batch is checked against the certified participation before its first microbatch is returned. A
    batch without examples has length 0. A batch that had no step, as after an interrupt, is returned again.

    Between the return of a microbatch and the step, torch, numpy and Python's `random` use a secret
    seed of this microbatch, the same in a resumed run; after the step they continue as
    before. Dropout masks thus do not depend on a known seed.

    `state_dict` may be called between `optimizer.step()` and the next batch; it is as secret as the data.

    Args:
        loader: a DataLoader whose dataset, collate_fn and workers are used.
        sampler: sampler of the batches, the same in all processes.
        max_physical_batch_size: largest microbatch of one process; None for full batches; "auto", only with
            full batches, if the code that computes gradients determines it.
        full_batches: whether to return full batches anyway, which the code that computes gradients splits.
        process_group: the processes that train together; None for the default group.

    Attributes:
        dataset: of the DataLoader.
        sampler: of the batches.
        tracker: realized participations so far. Secret.
        process_group: the processes that share every batch; None for the default group.
        processes: their number.
        progress: state shared with the optimizer.
        randomness: random numbers of models and datasets; from the optimizer's key, once there is one.
        discard: a weak reference to a function that discards what an optimizer has of a batch without a step.
        uniqueness: how it was checked that no example occurs twice in the dataset.
        set_up: fingerprints of the run's dataset, model and loss.

    Raises:
        InvalidParameterError: on a bad argument.
        UnsupportedCombinationError: if the dataset contains an example twice.
        CertificateError: if processes have different batches.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        sampler: Sampler,
        *,
        max_physical_batch_size: int | Literal["auto"] | None = None,
        full_batches: bool = False,
        process_group: Group = None,
    ) -> None:
        if not isinstance(loader, DataLoader):
            raise InvalidParameterError("loader", loader, "a torch.utils.data.DataLoader")
        if not isinstance(sampler, Sampler):
            raise InvalidParameterError("sampler", sampler, "a dpmech.samplers.Sampler")
        self._searched = max_physical_batch_size == "auto" and full_batches
        most = None if max_physical_batch_size == "auto" and full_batches else max_physical_batch_size
        if most is not None:
            most = check_integer("max_physical_batch_size", most, minimum=1)
        size = check_dataset(loader)
        if size != sampler.dataset_size:
            raise InvalidParameterError(
                "sampler", sampler, "one for the number of examples in the loader's dataset"
            )
        settings = {name: getattr(loader, name, None) for name in _KEPT}
        self._settings = {name: value for name, value in settings.items() if value not in (None, "")}
        self._data = SameData(loader.dataset, self._settings, process_group)
        self.uniqueness = self._data.places.uniqueness
        if processes(process_group) > 1:
            self._data.check(0)
        self.dataset = loader.dataset
        self.sampler = sampler
        self.progress = BatchProgress()
        self.randomness = StepRandomness()
        self._place = "before the first batch"
        self._dataset = OneByOne(loader.dataset, loader.collate_fn)
        self._most = most
        self._cut_at = None if full_batches else most
        self.process_group = process_group
        self.processes = processes(process_group)
        self._rank = rank_of(process_group)
        owners = owners_of(loader.dataset, sampler.participation)
        self.tracker = ParticipationTracker(sampler.participation, sampler.n, size, user_ids=owners)
        self._collate = Collation(loader.collate_fn, self._dataset)
        self.set_up = SetUp(loader.dataset, loader.collate_fn, self._settings)
        self._iterations = 0
        self.discard: Callable[[], Callable[[], bool] | None] = lambda: None
        self._padded: Padded | None = None
        self._check_agreement()

    def __setattr__(self, name: str, value: object) -> None:
        """Set an attribute, unless the record of the run depends on the one that there is."""
        if name in _FIXED and name in self.__dict__:
            raise AttributeError(f"{name} of a PrivateLoader cannot be replaced; call make_private again")
        super().__setattr__(name, value)

    @property
    def physical_batch_size(self) -> int | None:
        """Largest number of examples that one process holds at once; None for full batches."""
        return self._most

    @property
    def searches(self) -> bool:
        """Whether the microbatch size is determined by the memory of an example."""
        return self._searched

    @property
    def is_searched(self) -> bool:
        """Whether the microbatch size is still to be determined."""
        return self._searched and self._most is None

    def settle(self, size: int) -> None:
        """Set the microbatch size that was determined."""
        self._most = check_integer("size", size, minimum=1)

    def take_padded(self) -> Padded | None:
        """A padded example of the newest batch, if one is to be compared; returned once."""
        padded, self._padded = self._padded, None
        return padded

    @property
    def steps_taken(self) -> int:
        """Number of batches whose step was taken."""
        return self.progress.stepped

    def check_data(self) -> None:
        """Raise UnsupportedCombinationError if the dataset of this process changed since the start."""
        self._data.check_here()

    @property
    def checkpoint_history(self) -> CheckpointHistory | None:
        """Knowledge of the run's checkpoints; None if none was saved or loaded."""
        return self.set_up.checkpoint_history

    def __len__(self) -> int:
        """Number of batches per epoch."""
        return self.sampler.steps_per_epoch

    def __iter__(self) -> Iterator[Any]:
        """Batches to the end of the epoch.

        Raises:
            HorizonError: past the last certified step.
            UnsupportedCombinationError: if the step of the last batch was interrupted in the middle, or a
                dataset returns more examples than requested.
        """
        self._iterations += 1
        discard = self.discard()
        self.progress.take_back((lambda: False) if discard is None else discard)
        mine, start, n = self._iterations, self.progress.stepped, self.sampler.n
        if self.progress.drawn != start:
            raise UnsupportedCombinationError(
                f"iteration restarts in the step of batch {start}, whose noise was made",
                supported="optimizer.step() after every batch of the loader; after an interrupt in the "
                "middle of a step a new run from the newest checkpoint",
            )
        if start >= n:
            raise HorizonError(start, n)
        self._data.check(start)
        epoch = self.sampler.steps_per_epoch
        steps = range(start, min(start - start % epoch + epoch, n))
        how = self._rank, self.processes, self._cut_at, self.randomness.secret
        plan = _Plan(self.sampler, steps, *how)
        # Every DataLoader draws a seed for its workers. From torch's default generator it would shift
        # later draws outside of steps in a run that resumes in the middle of an epoch.
        secret = self.randomness.secret(f"workers {start} {self._rank}")
        batches: DataLoader[Any] = DataLoader(
            self._dataset,
            batch_sampler=plan,
            collate_fn=self._collate,
            generator=torch.Generator().manual_seed(int.from_bytes(secret[:8], "little")),
            **self._settings,
        )
        fetched = iter(batches)
        for step, number, last in plan.places():
            first, place = number == 0, f"{step} {number} {self._rank}"
            with self.randomness.at(f"data {place}"):
                examples, batch, alone = next(fetched)
            if mine != self._iterations:
                raise UnsupportedCombinationError(
                    "two iterations over one PrivateLoader", supported="one at a time"
                )
            self.progress.hand_out(examples, first=first, last=last)
            if first and step == self.tracker.steps:
                self.tracker.record(step, self.sampler.indices(step))
            self._padded = padded_row(batch, alone)
            self._place = place
            self.randomness.begin(f"loop {place}")
            yield batch

    def drawing(self) -> AbstractContextManager[None]:
        """A context with a secret seed from the newest microbatch."""
        return self.randomness.at(f"model {self._place} 0")

    def seed(self, generators: Sequence[Any]) -> None:
        """Seed generators by a secret of the newest microbatch."""
        for number, generator in enumerate(generators):
            seed(generator, self.randomness.secret(f"generator {number} {self._place}"))

    def state_dict(self) -> dict[str, Any]:
        """Key and configuration of the batches, participations, steps so far, and fingerprints. Secret.

        At the first call 16 examples are read twice, for the fingerprint of the dataset.

        Raises:
            UnsupportedCombinationError: between a batch and its step.
        """
        if self.progress.drawn != self.progress.stepped:
            raise UnsupportedCombinationError(
                f"state in the middle of batch {self.progress.drawn - 1}",
                supported="state after optimizer.step()",
            )
        if self.is_searched:
            raise UnsupportedCombinationError(
                "state before the microbatch size was determined: a resumed run would determine another",
                supported="state after the first step, or a number as max_physical_batch_size",
            )
        tracker = self.tracker.state_dict().items()
        return {
            "sampler": self.sampler.state_dict() | {"steps_taken": self.steps_taken},
            "tracker": {k: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for k, v in tracker},
            "steps": self.steps_taken,
            "processes": self.processes,
            "max_physical_batch_size": self._most,
            "set_up": self.set_up.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any], accept_changed: Sequence[str] = ()) -> None:
        """Continue where `state_dict` was called, with the same batches; only before the first batch.

        Args:
            state: of `state_dict`, with fingerprints of dataset, model and loss.
            accept_changed: as for load_checkpoint.

        Raises:
            CertificateError: if the state has other batches, another number of processes, or another
                dataset, model or loss.
            InvalidParameterError: if it is not a state of a PrivateLoader, or batches were already sampled.
        """
        if not isinstance(state, dict) or set(state) != _STATE:
            raise InvalidParameterError("state", type(state).__name__, f"a dict with {sorted(_STATE)}")
        if self.progress.drawn:
            raise InvalidParameterError(
                "state", f"after {self.progress.drawn} batches", "loaded before the first"
            )
        if state["processes"] != self.processes:
            raise CertificateError(
                f"the state is of {state['processes']} processes, here are {self.processes}: sums would "
                "round differently, and repeated steps would not repeat what they released",
                claimed=state["processes"],
                recomputed=self.processes,
            )
        if self._searched:
            self._most = state["max_physical_batch_size"]  # sums round as before
        if state["max_physical_batch_size"] != self._most:
            raise CertificateError(
                f"the state is of microbatches of at most {state['max_physical_batch_size']}, here "
                f"{self._most}: sums would round differently, as with other processes",
                claimed=state["max_physical_batch_size"],
                recomputed=self._most,
            )
        steps = check_integer("steps", state["steps"], minimum=0, maximum=self.sampler.n)
        self.set_up.resume(state["set_up"], accept_changed, self.process_group, self.processes)
        tracker = state["tracker"].items()
        self.tracker.load_state_dict({k: v.numpy() if isinstance(v, Tensor) else v for k, v in tracker})
        self.sampler.load_state_dict(state["sampler"])
        if not steps == self.tracker.steps == self.sampler.steps_taken:
            raise CertificateError(
                "the state contradicts itself: steps of loader, sampler and tracker differ",
                claimed=steps,
                recomputed=(self.tracker.steps, self.sampler.steps_taken),
            )
        self.progress.resume(steps)
        self._check_agreement()

    def _check_agreement(self) -> None:
        """Raise CertificateError unless all processes have the same batches and numbers of examples."""
        own = {"sampler": self.sampler.fingerprint(), "of": self.sampler.state_dict()["configuration"]}
        check_agreement("the batches", own, self.process_group)

    def __repr__(self) -> str:
        return f"PrivateLoader({self.sampler!r}, max_physical_batch_size={self._most})"


def check_planned(what: str, planned: float, loader: PrivateLoader) -> None:
    """Raise InvalidParameterError if a trainer plans more steps than are certified; log if it plans fewer."""
    n = loader.sampler.n
    if planned > n:
        accepted = f"at most the {n} steps that are certified, {len(loader)} an epoch"
        raise InvalidParameterError(what, f"{planned:g} steps", accepted)
    if planned < n:
        _LOGGER.warning(
            "%s: %g of the %d certified steps, with the noise of %d steps and the whole budget; "
            "calibrate for %g steps to spend it on them",
            *(what, planned, n, n, planned),
        )


def check_counted(trainer: str, counted: int, loader: PrivateLoader) -> None:
    """Raise UnsupportedCombinationError if a trainer counts other steps than the loader."""
    if counted != loader.steps_taken:
        raise UnsupportedCombinationError(
            f"{trainer} counts {counted} steps, but {loader.steps_taken} batches had one",
            supported="one optimizer step for every batch",
        )


@dataclasses.dataclass(frozen=True)
class _Plan:
    """The batch sampler of one iteration: microbatches of several batches; a pure function of the sampler."""

    sampler: Sampler
    steps: range
    rank: int
    world: int
    most: int | None
    secret: Callable[[str], bytes]

    def __iter__(self) -> Iterator[list[int]]:
        for step in self.steps:
            # The same in all processes: which of them reads an example follows from other examples.
            secret = self.secret(f"examples {step}")
            for number, part in enumerate(self._cut(step)):
                yield Part(part, secret, f"{number} {self.rank}")

    def places(self) -> Iterator[tuple[int, int, bool]]:
        """(step, index in its batch, last of its batch) of every microbatch."""
        for step in self.steps:
            count = len(self._cut(step))
            for number in range(count):
                yield step, number, number == count - 1

    def _cut(self, step: int) -> list[list[int]]:
        mine = shard(self.sampler.indices(step), self.rank, self.world).tolist()
        size = max(len(mine), 1) if self.most is None else self.most
        return [mine[i : i + size] for i in range(0, len(mine), size)] or [[]]
