"""Checkpoints of a private run: one file, whole or not at all, from which it goes on bit for bit."""

import os
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dpmech.exceptions import CertificateError, InvalidParameterError
from dpmech.optim.loaders import PrivateLoader
from dpmech.optim.lot_optimizer import LotOptimizer

__all__ = ["load_checkpoint", "save_checkpoint"]

_FORMAT = 1


def save_checkpoint(
    path: str | os.PathLike[str],
    model: nn.Module,
    optimizer: LotOptimizer,
    loader: PrivateLoader,
    *,
    extra: Any = None,  # noqa: ANN401 - what torch.save takes
) -> None:
    """Save a run between two steps. With several processes each saves its own file.

    The file is written beside its place and then renamed, so that a process that is killed meanwhile leaves
    the last one. Of several processes some may be killed before and some after; each also keeps the file
    before (`path` + ".previous"). **Keep them as secret as the data**: they hold the keys of lots and noise.

    A run that goes on from it repeats the steps since, with the same lots and the same noise: what they
    release a second time is what they released before, and costs nothing more. That needs arithmetic that
    repeats; use `torch.use_deterministic_algorithms(True)` on GPUs. Random numbers of torch are saved, those
    of a loader's workers and of other libraries are not: leave out random augmentation. Save right after
    make_private too: steps before the first checkpoint would be taken again with other keys.

    Args:
        path: the file, another one for every process.
        model: of make_private.
        optimizer: of make_private.
        loader: of make_private.
        extra: anything else, such as a scheduler's state; tensors and plain data.

    Raises:
        InvalidParameterError: if the file cannot be written.
        UnsupportedCombinationError: between a batch and its step.
    """
    state = {
        "format": _FORMAT,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "loader": loader.state_dict(),
        "torch_rng": torch.get_rng_state(),
        "cuda_rng": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "extra": extra,
    }
    target = Path(path)
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    except OSError as error:
        raise InvalidParameterError("path", str(path), f"a file that can be written ({error})") from error
    temporary = Path(name)  # readable by its owner only, as its content asks for
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
    optimizer: LotOptimizer,
    loader: PrivateLoader,
    *,
    missing_ok: bool = False,
) -> Any:  # noqa: ANN401 - what was saved
    """Go on where `save_checkpoint` was called, in a run that was set up in the same way.

    Several processes go on from the newest step that all of them have.

    Args:
        path: the file of this process.
        model: of make_private, freshly made.
        optimizer: of make_private, before its first step.
        loader: of make_private, before its first lot.
        missing_ok: whether to load nothing where there is no checkpoint, or where only some processes have
            one and it is from before the first step.

    Returns:
        The `extra` that was saved; None where nothing was loaded.

    Raises:
        InvalidParameterError: if there is no such file, or it is no checkpoint.
        CertificateError: if it belongs to another certificate, other lots or another number of processes, or
            if the processes have no step in common.
    """
    target = Path(path)
    state = _own(target, missing_ok=missing_ok) if loader.processes == 1 else _common(target, loader)
    if state is None:
        if not missing_ok:
            raise InvalidParameterError(
                "path", str(path), "a checkpoint in every process, or missing_ok=True"
            )
        return None
    loader.load_state_dict(state["loader"])
    optimizer.load_state_dict(state["optimizer"])
    model.load_state_dict(state["model"])
    torch.set_rng_state(state["torch_rng"])
    if torch.cuda.is_available() and state["cuda_rng"]:
        torch.cuda.set_rng_state_all(state["cuda_rng"])
    return state["extra"]


def _own(path: Path, *, missing_ok: bool) -> dict[str, Any] | None:
    return None if missing_ok and not path.exists() else _read(path)


def _common(path: Path, loader: PrivateLoader) -> dict[str, Any] | None:
    """The newest state whose step all processes have; None if none of them has gone beyond a first save."""
    found: dict[int, tuple[dict[str, Any], Path]] = {}
    problem = ""
    try:
        for file in (_previous(path), path):
            if file.exists():
                state = _read(file)
                found[state["loader"]["steps"]] = state, file
    except InvalidParameterError as error:
        problem = str(error)  # raised below by all, so that nobody waits for this process
    answers: list[Any] = [None] * loader.processes
    dist.all_gather_object(answers, (sorted(found), problem), group=loader.process_group)
    problems = [text for _, text in answers if text]
    if problems:
        raise InvalidParameterError("path", str(path), f"checkpoints in all processes ({problems[0]})")
    steps = [set(one) for one, _ in answers]
    shared = set.intersection(*steps)
    if not shared:
        if set.union(*steps) <= {0}:
            return None
        raise CertificateError(
            f"the processes have checkpoints of steps {[sorted(one) for one in steps]}, none in common",
            claimed=steps,
        )
    state, file = found[max(shared)]
    if file != path:
        file.replace(path)  # what is newer is forgotten by all alike, so that they go on rotating in step
    return state


def _read(path: Path) -> dict[str, Any]:
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise InvalidParameterError("path", str(path), f"a readable file ({error.strerror})") from error
    except Exception as error:  # torch names no type for a file that it cannot decode
        raise InvalidParameterError("path", str(path), f"a checkpoint of dpmech ({error})") from error
    if not isinstance(state, dict) or state.get("format") != _FORMAT:
        raise InvalidParameterError("path", str(path), "a checkpoint of dpmech, format 1")
    return state


def _previous(path: Path) -> Path:
    return path.with_name(f"{path.name}.previous")
