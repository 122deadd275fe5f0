"""Lots for torch: a batch sampler for any DataLoader, and the loader that makes a run of them."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Sampler as TorchSampler

from dpmech.documents import Continuity
from dpmech.drawing import Sampler
from dpmech.exceptions import (
    CertificateError,
    HorizonError,
    InvalidParameterError,
    UnsupportedCombinationError,
)
from dpmech.guards import check_integer
from dpmech.optim.noise import Uncopied
from dpmech.optim.processes import Group, check_agreement, processes
from dpmech.optim.runs.collated import Padded, padded_row
from dpmech.optim.runs.datasets import Collation, OneByOne, check_dataset
from dpmech.optim.runs.fingerprints import SetUp
from dpmech.optim.runs.lot_progress import LotProgress
from dpmech.optim.runs.same_data import SameData, check_same_length
from dpmech.optim.runs.step_randomness import StepRandomness, WorkerRandomness
from dpmech.optim.runs.user_datasets import owners_of
from dpmech.samplers import ParticipationTracker, shard

__all__ = ["LotSampler", "PrivateLoader"]

_STATE = {"sampler", "tracker", "steps", "processes", "max_physical_batch_size", "set_up"}
# What a DataLoader is rebuilt with; the order of its examples is the sampler's.
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


class LotSampler(TorchSampler[list[int]]):
    """The lots of a sampler as a `batch_sampler` of any torch DataLoader.

    Every iteration goes on from `sampler.steps_taken`, which it counts, to the end of that epoch. A
    DataLoader with workers draws ahead of what it hands out: state taken meanwhile is ahead too
    (`PrivateLoader` counts what was handed out). An empty lot is an empty list, which the default
    `collate_fn` cannot take (`PrivateLoader` can).

    Args:
        sampler: of dpmech.samplers.
        rank: of this process, in [0, world_size).
        world_size: processes that share every lot.

    Raises:
        InvalidParameterError: on a bad argument.

    Examples:
        >>> from dpmech.samplers import BallsInBinsSampler
        >>> from dpmech.optim import LotSampler
        >>> lots = LotSampler(BallsInBinsSampler(6, bins=2, n=4, rng=1))
        >>> sum(len(lot) for lot in lots), len(lots)
        (6, 2)
    """

    def __init__(self, sampler: Sampler, *, rank: int = 0, world_size: int = 1) -> None:
        if not isinstance(sampler, Sampler):
            raise InvalidParameterError("sampler", sampler, "a dpmech.samplers.Sampler")
        self._sampler = sampler
        self._world = check_integer("world_size", world_size, minimum=1)
        self._rank = check_integer("rank", rank, minimum=0, maximum=self._world - 1)

    def __iter__(self) -> Iterator[list[int]]:
        sampler = self._sampler
        for _ in range(_left_of_epoch(sampler, sampler.steps_taken)):
            yield shard(next(iter(sampler)), self._rank, self._world).tolist()

    def __len__(self) -> int:
        """Lots of an epoch."""
        return self._sampler.steps_per_epoch


class PrivateLoader(Uncopied):
    """The loader of a private run: every lot as the sampler says, in physical batches, watched.

    Iterating gives the batches of what is left of the epoch; past the last certified step it raises. Every
    lot is checked against the certified participation before its first batch is handed out. A lot without
    examples is one batch of length 0. A lot that was only looked at is handed out again.

    From the hand-out of a batch to the step of its lot, torch, numpy and Python's `random` draw by a secret
    seed of this batch, which a run that goes on from a checkpoint has too; after the step they go on as
    before. So masks of dropout follow from no seed that anybody knows.

    `state_dict` may be taken between `optimizer.step()` and the next batch; it is as secret as the data.

    Args:
        loader: a DataLoader whose dataset, collate_fn and workers are used.
        sampler: the lots, the same on all processes.
        max_physical_batch_size: of one process; None for whole lots; "auto", with whole lots alone, where who
            computes gradients finds it.
        whole_lots: whether lots are handed out whole all the same, and split by who computes gradients.
        process_group: the processes that train together; None for the default group.

    Attributes:
        sampler: the lots.
        progress: what the optimizer shares.
        randomness: what models and datasets draw at random; by the optimizer's key, once there is one.
        uniqueness: how it was checked that no example stands in the dataset twice.
        set_up: fingerprints of what the run was built from.

    Raises:
        InvalidParameterError: on a bad argument.
        UnsupportedCombinationError: if the dataset holds an example twice.
        CertificateError: if processes have other lots.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        sampler: Sampler,
        *,
        max_physical_batch_size: int | Literal["auto"] | None = None,
        whole_lots: bool = False,
        process_group: Group = None,
    ) -> None:
        if not isinstance(loader, DataLoader):
            raise InvalidParameterError("loader", loader, "a torch.utils.data.DataLoader")
        if not isinstance(sampler, Sampler):
            raise InvalidParameterError("sampler", sampler, "a dpmech.samplers.Sampler")
        self._searched = max_physical_batch_size == "auto" and whole_lots
        most = None if max_physical_batch_size == "auto" and whole_lots else max_physical_batch_size
        if most is not None:
            most = check_integer("max_physical_batch_size", most, minimum=1)
        size = check_dataset(loader)
        if size != sampler.dataset_size:
            raise InvalidParameterError(
                "sampler", sampler, "one for as many examples as the loader's dataset has"
            )
        check_same_length(loader.dataset, process_group)
        self._settings = {name: getattr(loader, name) for name in _KEPT if hasattr(loader, name)}
        self._settings = {name: value for name, value in self._settings.items() if value not in (None, "")}
        self._data = SameData(loader.dataset, self._settings, process_group)
        self.uniqueness = self._data.places.uniqueness
        if processes(process_group) > 1:
            self._data.check(0)
        self.sampler = sampler
        self.progress = LotProgress()
        self.randomness = StepRandomness()
        self._place = "before the first batch"
        self._dataset = OneByOne(loader.dataset)
        self._most = most
        self._cut_at = None if whole_lots else most
        self._group = process_group
        self._world = processes(process_group)
        self._rank = 0 if self._world == 1 else dist.get_rank(process_group)
        owners = owners_of(loader.dataset, sampler.participation)
        self._tracker = ParticipationTracker(sampler.participation, sampler.n, size, user_ids=owners)
        self._collate = Collation(loader.collate_fn, self._dataset)
        self.set_up = SetUp(loader.dataset, loader.collate_fn, self._settings)
        self._iterations = 0
        self._padded: Padded | None = None
        self._check_agreement()

    @property
    def physical_batch_size(self) -> int | None:
        """Examples of one process that are held at once; None for whole lots."""
        return self._most

    @property
    def is_searched(self) -> bool:
        """Whether the physical batch size has still to be found."""
        return self._searched and self._most is None

    def settle(self, size: int) -> None:
        """Note the physical batch size that was found."""
        self._most = check_integer("size", size, minimum=1)

    def take_padded(self) -> Padded | None:
        """An example of the newest batch that has padding there, if it is to be compared; once."""
        found, self._padded = self._padded, None
        return found

    @property
    def steps_taken(self) -> int:
        """Lots of which the step was taken."""
        return self.progress.stepped

    @property
    def tracker(self) -> ParticipationTracker:
        """Realised participations so far. Secret."""
        return self._tracker

    def check_data(self) -> None:
        """Raise UnsupportedCombinationError if the dataset of this process was changed since the start."""
        self._data.check_here()

    @property
    def continuity(self) -> Continuity | None:
        """What is known of the run's checkpoints; None where none was saved or loaded."""
        return self.set_up.continuity

    @property
    def processes(self) -> int:
        """How many processes share every lot."""
        return self._world

    @property
    def process_group(self) -> Group:
        """The processes that share every lot; None for the default group."""
        return self._group

    def __len__(self) -> int:
        """Lots of an epoch."""
        return self.sampler.steps_per_epoch

    def __iter__(self) -> Iterator[Any]:
        """Batches to the end of the epoch.

        Raises:
            HorizonError: past the last certified step.
            UnsupportedCombinationError: if the last lot was not stepped on, or a dataset gives more examples
                than it was asked for.
        """
        self._iterations += 1
        self.progress.take_back()
        mine, start, n = self._iterations, self.progress.stepped, self.sampler.n
        if self.progress.drawn != start:
            raise UnsupportedCombinationError(
                f"iteration begins anew while lot {start} has had no step",
                supported="optimizer.step() after every batch of the loader; after an interrupt "
                "optimizer.step() once, then the loop again, or, where the backward pass was interrupted, a "
                "new run from the newest checkpoint",
            )
        if start >= n:
            raise HorizonError(start, n)
        self._data.check(start)
        plan = _Plan(
            self.sampler, start, _left_of_epoch(self.sampler, start), self._rank, self._world, self._cut_at
        )
        # Every DataLoader draws a seed for its workers. Drawn from torch's default generator it would shift
        # what is drawn outside of steps by a run that goes on in the middle of an epoch.
        secret = self.randomness.secret(f"workers {start} {self._rank}")
        settings = dict(self._settings)
        if settings.get("num_workers"):
            settings["worker_init_fn"] = WorkerRandomness(secret, settings.get("worker_init_fn"))
        batches: DataLoader[Any] = DataLoader(
            self._dataset,
            batch_sampler=plan,
            collate_fn=self._collate,
            generator=torch.Generator().manual_seed(int.from_bytes(secret[:8], "little")),
            **settings,
        )
        fetched = iter(batches)
        for step, number, size, last in plan.places():
            first, place = number == 0, f"{step} {number} {self._rank}"
            with self.randomness.at(f"data {place}"):
                examples, batch, alone = next(fetched)
            if mine != self._iterations:
                raise UnsupportedCombinationError(
                    "two iterations over one PrivateLoader", supported="one at a time"
                )
            if examples > size:
                raise UnsupportedCombinationError(
                    "the dataset gives more examples than were picked",
                    supported="one example for every index",
                )
            self.progress.hand_out(examples, first=first, last=last)
            if first and step == self._tracker.steps:
                self._tracker.record(step, self.sampler.indices(step))
            self._padded = padded_row(batch, alone)
            self._place = place
            self.randomness.begin(f"loop {place}")
            yield batch

    def drawing(self) -> AbstractContextManager[None]:
        """A block that draws by a secret seed of the newest batch, and of what was counted of it so far."""
        return self.randomness.at(f"model {self._place} {self.progress.counted or 0}")

    def state_dict(self) -> dict[str, Any]:
        """Key and configuration of the lots, participations, steps so far, and fingerprints. Secret.

        At the first call 16 examples are read twice, for the fingerprint of the dataset.

        Raises:
            UnsupportedCombinationError: between a batch and its step.
        """
        if self.progress.drawn != self.progress.stepped:
            raise UnsupportedCombinationError(
                f"state in the middle of lot {self.progress.drawn - 1}",
                supported="state after optimizer.step()",
            )
        if self.is_searched:
            raise UnsupportedCombinationError(
                "state before the physical batch size was found: a run that goes on from it finds another",
                supported="state after the first step, or a number as max_physical_batch_size",
            )
        tracker = self._tracker.state_dict()
        return {
            "sampler": self.sampler.state_dict() | {"steps_taken": self.steps_taken},
            "tracker": {key: _to_tensor(value) for key, value in tracker.items()},
            "steps": self.steps_taken,
            "processes": self._world,
            "max_physical_batch_size": self._most,
            "set_up": self.set_up.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any], accept_changed: Sequence[str] = ()) -> None:
        """Go on where `state_dict` was taken, with the same lots; only before the first lot.

        Args:
            state: of `state_dict`, which holds fingerprints of dataset, model and loss.
            accept_changed: as for load_checkpoint.

        Raises:
            CertificateError: if the state is of other lots, of another number of processes, or of another
                dataset, model or loss.
            InvalidParameterError: if it is no state of a PrivateLoader, or lots were drawn already.
        """
        if not isinstance(state, dict) or set(state) != _STATE:
            raise InvalidParameterError("state", type(state).__name__, f"a dict with {sorted(_STATE)}")
        if self.progress.drawn:
            raise InvalidParameterError(
                "state", f"after {self.progress.drawn} lots", "loaded before the first"
            )
        if state["processes"] != self._world:
            raise CertificateError(
                f"the state is of {state['processes']} processes, here are {self._world}: sums would round "
                "differently, and steps taken again would not repeat what they released",
                claimed=state["processes"],
                recomputed=self._world,
            )
        if self._searched:
            self._most = state["max_physical_batch_size"]  # sums round as before
        if state["max_physical_batch_size"] != self._most:
            raise CertificateError(
                f"the state is of physical batches of at most {state['max_physical_batch_size']}, here "
                f"{self._most}: sums would round differently, as with other processes",
                claimed=state["max_physical_batch_size"],
                recomputed=self._most,
            )
        steps = check_integer("steps", state["steps"], minimum=0, maximum=self.sampler.n)
        self.set_up.resume(state["set_up"], accept_changed, self._group, self._world)
        self._tracker.load_state_dict({key: _from_tensor(value) for key, value in state["tracker"].items()})
        self.sampler.load_state_dict(state["sampler"])
        if not steps == self._tracker.steps == self.sampler.steps_taken:
            raise CertificateError(
                "the state contradicts itself: steps of loader, sampler and tracker differ",
                claimed=steps,
                recomputed=(self._tracker.steps, self.sampler.steps_taken),
            )
        self.progress.resume(steps)
        self._check_agreement()

    def _check_agreement(self) -> None:
        """Raise CertificateError unless all processes have the same lots, of as many examples."""
        own = {"sampler": self.sampler.fingerprint(), "of": self.sampler.state_dict()["configuration"]}
        check_agreement("the lots", own, self._group)

    def __repr__(self) -> str:
        return f"PrivateLoader({self.sampler!r}, max_physical_batch_size={self._most})"


class _Plan:
    """The batch sampler of one iteration: physical batches of a few lots; a pure function of the sampler."""

    def __init__(
        self, sampler: Sampler, start: int, lots: int, rank: int, world: int, most: int | None
    ) -> None:
        self._sampler = sampler
        self._steps = range(start, start + lots)
        self._rank = rank
        self._world = world
        self._most = most

    def __iter__(self) -> Iterator[list[int]]:
        for step in self._steps:
            yield from self._cut(step)

    def places(self) -> Iterator[tuple[int, int, int, bool]]:
        """(step, number in its lot, examples, last of its lot) of every batch."""
        for step in self._steps:
            batches = self._cut(step)
            for number, batch in enumerate(batches):
                yield step, number, len(batch), number == len(batches) - 1

    def _cut(self, step: int) -> list[list[int]]:
        mine = shard(self._sampler.indices(step), self._rank, self._world).tolist()
        size = max(len(mine), 1) if self._most is None else self._most
        return [mine[i : i + size] for i in range(0, len(mine), size)] or [[]]


def _left_of_epoch(sampler: Sampler, step: int) -> int:
    epoch = sampler.steps_per_epoch
    return min(epoch - step % epoch, sampler.n - step)


def _to_tensor(value: Any) -> Any:  # noqa: ANN401 - plain data or an array
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


def _from_tensor(value: Any) -> Any:  # noqa: ANN401 - plain data or a tensor
    return value.numpy() if isinstance(value, Tensor) else value
