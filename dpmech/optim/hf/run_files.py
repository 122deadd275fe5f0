"""Where a Trainer's private states are: apart from the checkpoint folders, which people hand on."""

import json
import os
from pathlib import Path

from dpmech.exceptions import InvalidParameterError

__all__ = ["FOLDER", "complete", "file_of", "make_folder", "newest", "prune"]

FOLDER = "_private_run"  # hubs leave out what begins so
_PREFIX = "checkpoint-"
_STATE = "trainer_state.json"


def file_of(checkpoint: str | os.PathLike[str]) -> Path:
    """The private state that belongs to a checkpoint folder."""
    folder = Path(checkpoint)
    return folder.parent / FOLDER / f"{folder.name}.pt"


def make_folder(checkpoint: str | os.PathLike[str]) -> Path:
    """`file_of`, in a folder that its owner alone can read; it is made.

    Raises:
        InvalidParameterError: if it cannot be made.
    """
    found = file_of(checkpoint)
    try:
        found.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidParameterError(
            "output_dir", str(found.parent), f"a folder that can be made ({error})"
        ) from error
    return found


def complete(checkpoint: Path) -> bool:
    """Whether a checkpoint was written to its end: Trainer writes one file after the other."""
    try:
        step = json.loads((checkpoint / _STATE).read_text(encoding="utf-8"))["global_step"]
        return checkpoint.name == f"{_PREFIX}{step}" and file_of(checkpoint).exists()
    except (OSError, ValueError, KeyError, TypeError):
        return False


def newest(output: str | os.PathLike[str]) -> Path | None:
    """The newest checkpoint that is complete; None where there is none."""
    found = [
        (int(one.name.removeprefix(_PREFIX)), one)
        for one in Path(output).glob(f"{_PREFIX}*")
        if one.name.removeprefix(_PREFIX).isdecimal() and complete(one)
    ]
    return max(found)[1] if found else None


def prune(output: str | os.PathLike[str]) -> None:
    """Delete private states whose checkpoint folder was deleted."""
    for one in (Path(output) / FOLDER).glob(f"{_PREFIX}*.pt"):
        if not (Path(output) / one.stem).is_dir():
            one.unlink(missing_ok=True)
