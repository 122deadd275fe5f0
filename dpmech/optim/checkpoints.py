"""Checkpoints of a private run: one file, whole or not at all, from which it goes on bit for bit."""

import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dpmech.exceptions import InvalidParameterError
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
    the last one. **Keep it as secret as the data**: it holds the keys of lots and noise.

    A run that goes on from it repeats the steps since, with the same lots and the same noise: what they
    release a second time is what they released before, and costs nothing more. That needs arithmetic that
    repeats; use `torch.use_deterministic_algorithms(True)` on GPUs.

    Args:
        path: the file.
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
        temporary.replace(target)
    except OSError as error:
        raise InvalidParameterError("path", str(path), f"a file that can be written ({error})") from error
    finally:
        temporary.unlink(missing_ok=True)


def load_checkpoint(
    path: str | os.PathLike[str], model: nn.Module, optimizer: LotOptimizer, loader: PrivateLoader
) -> Any:  # noqa: ANN401 - what was saved
    """Go on where `save_checkpoint` was called, in a run that was set up in the same way.

    Args:
        path: the file.
        model: of make_private, freshly made.
        optimizer: of make_private, before its first step.
        loader: of make_private, before its first lot.

    Returns:
        The `extra` that was saved.

    Raises:
        InvalidParameterError: if there is no such file, or it is no checkpoint.
        CertificateError: if it belongs to another certificate, other lots or another number of processes.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise InvalidParameterError("path", str(path), f"a readable file ({error.strerror})") from error
    except Exception as error:  # torch names no type for a file that it cannot decode
        raise InvalidParameterError("path", str(path), f"a checkpoint of dpmech ({error})") from error
    if not isinstance(state, dict) or state.get("format") != _FORMAT:
        raise InvalidParameterError("path", str(path), "a checkpoint of dpmech, format 1")
    loader.load_state_dict(state["loader"])
    optimizer.load_state_dict(state["optimizer"])
    model.load_state_dict(state["model"])
    torch.set_rng_state(state["torch_rng"])
    return state["extra"]
