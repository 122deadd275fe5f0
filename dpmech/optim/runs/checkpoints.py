"""Checkpoints of a private run: one file, written atomically, from which it resumes bit for bit."""

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dpmech.exceptions import CertificateError, InvalidParameterError
from dpmech.files import resolved
from dpmech.optim.processes import gathered, is_sharded, like_param, local_part
from dpmech.optim.runs.batch_optimizer import BatchOptimizer
from dpmech.optim.runs.containers import with_parts
from dpmech.optim.runs.loader import PrivateLoader
from dpmech.optim.runs.set_up import PARTS, by_steps_alone, scheduler_changes, scheduler_print

_FORMAT = 3  # before, fingerprints were stored next to the loader's state, without one of the weights

_SHARD = "the part of this process"


def save_checkpoint(
    path: str | os.PathLike[str],
    model: nn.Module,
    optimizer: BatchOptimizer,
    loader: PrivateLoader,
    *,
    scheduler: Any = None,
    extra: Any = None,
) -> None:
    """Save a run between two steps. With several processes, each saves its own file.

    The file is written under a temporary name and then renamed, so that a process that is killed meanwhile
    leaves the previous file. Of several processes, some may be killed before and some after the renaming;
    each process therefore also keeps the previous file (`path` + ".previous"). Symbolic links are followed.
    **Keep these files as secret as the data**, because they contain the keys of batches and noise.

    A resumed run repeats the steps since the checkpoint, with the same batches and the same noise. They
    release the same values again, at no further privacy cost. This requires deterministic arithmetic. On
    GPUs, set `torch.use_deterministic_algorithms(True)` before the first step (for older versions of torch
    also CUBLAS_WORKSPACE_CONFIG=:4096:8 in the environment). Otherwise, the sums of a model's own kernels
    depend on the order of threads; a RuntimeWarning states this here, and the run record states it after a
    load ("repeated steps may have been rounded differently"). Random numbers of torch, numpy and `random`
    are repeated, in a loader's workers too. Also save right after make_private, because steps before the
    first checkpoint would be repeated with other keys.

    Fingerprints of dataset, model, loss and weights are stored for `load_checkpoint`. The fingerprint of the
    dataset reads 16 examples twice, at the first call.

    Args:
        path: the file; every process needs a different one.
        model: of make_private.
        optimizer: of make_private.
        loader: of make_private.
        scheduler: scheduler of the learning rates, if there is one. Its state is saved, and `load_checkpoint`
            refuses a different scheduler. Without it, the record of a resumed run with changing learning
            rates states "settings of later steps not compared".
        extra: any additional tensors and plain data.

    Raises:
        InvalidParameterError: if the file cannot be written, or on a bad argument.
        UnsupportedCombinationError: between a batch and its step.
    """
    about = None
    if scheduler is not None:
        about = {"print": scheduler_print(scheduler), "state": scheduler.state_dict()}
        if by_steps_alone(scheduler):
            optimizer.follow(scheduler)
    state = {
        "format": _FORMAT,
        "model": with_parts(model.state_dict(), _without_shards),
        "optimizer": with_parts(optimizer.state_dict(), _without_shards),
        "loader": loader.state_dict(),
        "torch_rng": torch.get_rng_state(),
        "cuda_rng": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "scheduler": about,
        "extra": extra,
    }
    target = resolved(path)  # keep a symbolic link: other names refer to the same checkpoint
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    except OSError as error:
        raise InvalidParameterError("path", str(path), f"a file that can be written ({error})") from error
    temporary = Path(name)  # readable by its owner only, since it contains keys
    try:
        with os.fdopen(handle, "wb") as stream:
            torch.save(state, stream)
            stream.flush()
            os.fsync(stream.fileno())
        if loader.processes > 1 and target.exists():
            target.replace(_previous(target))
        temporary.replace(target)
    except OSError as error:
        raise InvalidParameterError("path", str(path), f"a file that can be written ({error})") from error
    finally:
        temporary.unlink(missing_ok=True)


def load_checkpoint(
    path: str | os.PathLike[str],
    model: nn.Module,
    optimizer: BatchOptimizer,
    loader: PrivateLoader,
    *,
    scheduler: Any = None,
    missing_ok: bool = False,
    accept_changed: Sequence[str] = (),
) -> Any:
    """Resume where `save_checkpoint` was called, in a run that was set up in the same way.

    Several processes resume from the newest step that all of them have.

    Dataset, model and loss are compared with those of the checkpoint by fingerprints, and a difference is
    refused. Otherwise, later steps would be repeated with the same noise on different sums, and anyone with
    both results could subtract the noise. A fingerprint detects mistakes, but not every change. It covers 16
    examples and the collate_fn; classes, settings, shapes and code of the model; code, constants, closure and
    globals of the loss, which is unknown under Opacus. The run record states what was compared. Weights must
    not change before the first step, because the same noise would be released on a different sum.

    Args:
        path: the file of this process.
        model: the model that make_private returned, newly created.
        optimizer: the optimizer that make_private returned, before its first step.
        loader: the loader that make_private returned, before its first batch.
        scheduler: scheduler of the learning rates, created before this call; required if the checkpoint was
            saved with one. Its class and settings are compared (those that torch's schedulers have from the
            start, and functions by their code), not how often it is stepped; then its state is loaded.
        missing_ok: whether to load nothing if there is no checkpoint, or if only some processes have a
            checkpoint and it precedes the first step.
        accept_changed: which of "dataset", "model" and "loss" may differ, on the caller's responsibility:
            nobody may have seen anything that a step after the checkpoint released. The run record states the
            change, and `dpmech verify --rigorous` refuses the record.

    Returns:
        The saved `extra`; None if nothing was loaded.

    Raises:
        InvalidParameterError: if the file does not exist or is not a checkpoint, or on a bad argument.
        CertificateError: if it belongs to another certificate, other batches or another number of processes,
            or if the processes have no step in common, or to another dataset, model, loss or scheduler.
    """
    if isinstance(accept_changed, str) or not set(accept_changed) <= set(PARTS):
        raise InvalidParameterError("accept_changed", accept_changed, f"names among {PARTS}")
    target = resolved(path)
    if loader.processes > 1:
        state, file = _common(target, loader)
    else:
        state, file = None if missing_ok and not target.exists() else _read(target), target
    if state is None:
        if not missing_ok:
            raise InvalidParameterError(
                "path", str(path), "a checkpoint in every process, or missing_ok=True"
            )
        return None
    about = state.get("scheduler")
    changed = scheduler_changes(None if about is None else about["print"], scheduler)
    if changed:
        raise CertificateError(
            f"the checkpoint is of another run: {changed}. Steps taken after it would be repeated with the "
            "same noise at other weights, and anyone with both results can subtract the noise. "
            "Accepted: the scheduler that it was saved with, as scheduler="
        )
    loader.load_state_dict(state["loader"], accept_changed)
    if file != target:
        file.replace(target)  # all processes discard the newer file, so that they keep rotating in step
    # The optimizer last: until it has the loaded rows, it refuses steps on the loaded batches.
    _put_back(state["model"], lambda name: dict(model.named_parameters(remove_duplicate=False))[name])
    model.load_state_dict(state["model"])
    for index, held in state["optimizer"].get("state", {}).items():
        stepped = [param for group in optimizer.param_groups for param in group["params"]]
        _put_back(held, dict.fromkeys(held, stepped[index]).__getitem__)
    optimizer.load_state_dict(state["optimizer"], any_weights="model" in accept_changed)
    if scheduler is not None and about is not None:
        scheduler.load_state_dict(about["state"])
        if by_steps_alone(scheduler):
            optimizer.follow(scheduler)
    torch.set_rng_state(state["torch_rng"])
    if torch.cuda.is_available():
        # As many as there are here: a process uses its own device.
        for device, generator in zip(range(torch.cuda.device_count()), state["cuda_rng"], strict=False):
            torch.cuda.set_rng_state(generator, device)
    return state["extra"]


def _without_shards(value: Any) -> Any:
    """Nested dicts with the local parts of DTensors, which cannot be saved without their processes."""
    if isinstance(value, Tensor) and is_sharded(value):
        return {_SHARD: local_part(value)}
    return {name: _without_shards(one) for name, one in value.items()} if type(value) is dict else value


def _put_back(held: dict[Any, Any], param_of: Callable[[Any], Tensor]) -> None:
    """Undo `_without_shards` in a dict whose tensors have the shapes of parameters."""
    for name, value in held.items():
        if isinstance(value, dict) and value.keys() == {_SHARD}:
            held[name] = like_param(value[_SHARD], param_of(name))


def _common(path: Path, loader: PrivateLoader) -> tuple[dict[str, Any] | None, Path]:
    """The newest state of a step that all processes have, and its file; None if none is past a first save."""
    states: dict[int, tuple[dict[str, Any], Path]] = {}
    problem = ""
    try:
        for file in (_previous(path), path):
            if file.exists():
                state = _read(file)
                states[state["loader"]["steps"]] = state, file
    except InvalidParameterError as error:
        problem = str(error)  # raised below in all processes, so that none waits
    own = (sorted(states), problem)
    answers = gathered("their checkpoints", own, loader.process_group, loader.processes)
    problems = [text for _, text in answers if text]
    if problems:
        raise InvalidParameterError("path", str(path), f"checkpoints in all processes ({problems[0]})")
    steps = [set(saved) for saved, _ in answers]
    shared = set.intersection(*steps)
    if not shared:
        if set.union(*steps) <= {0}:
            return None, path
        raise CertificateError(
            f"the processes have checkpoints of steps {[sorted(saved) for saved in steps]}, none in common",
            claimed=steps,
        )
    return states[max(shared)]


def _read(path: Path) -> dict[str, Any]:
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise InvalidParameterError("path", str(path), f"a readable file ({error.strerror})") from error
    except Exception as error:  # torch has no specific exception for a file that it cannot decode
        raise InvalidParameterError("path", str(path), f"a checkpoint of dpmech ({error})") from error
    if not isinstance(state, dict) or state.get("format") != _FORMAT:
        raise InvalidParameterError("path", str(path), f"a checkpoint of dpmech, format {_FORMAT}")
    return state


def _previous(path: Path) -> Path:
    return path.with_name(f"{path.name}.previous")
