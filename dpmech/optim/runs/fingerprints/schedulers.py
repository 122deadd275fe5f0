"""What a learning-rate scheduler was built from, which a run that goes on must have again."""

from collections.abc import Iterator
from typing import Any

from torch.optim import lr_scheduler

from dpmech.exceptions import InvalidParameterError
from dpmech.optim.runs.fingerprints.code import Printer

__all__ = ["by_steps_alone", "scheduler_changes", "scheduler_print"]

# What torch's schedulers change as they go on, and what is not theirs.
_PROGRESS = {
    "optimizer",
    "last_epoch",
    "verbose",
    "T_cur",
    "T_i",
    "best",
    "cooldown_counter",
    "num_bad_epochs",
    "_last_lr",
    "_step_count",
    "_get_lr_called_within_step",
    "_is_initial",
    "_scale_fn_ref",
}


def scheduler_print(scheduler: Any) -> dict[str, str]:  # noqa: ANN401 - any scheduler
    """Its class and checksums of its settings, by name, of the schedulers that it is made of too.

    Args:
        scheduler: an LRScheduler of torch's. Of a class that is not torch's only the class is taken: which of
            its attributes change as it goes on is not known.

    Raises:
        InvalidParameterError: if it is none.
    """
    if not isinstance(scheduler, _KINDS):
        raise InvalidParameterError("scheduler", scheduler, "a torch.optim.lr_scheduler.LRScheduler, or None")
    return dict(_parts(scheduler, ""))


def scheduler_changes(saved: dict[str, str] | None, scheduler: Any) -> str:  # noqa: ANN401 - any scheduler
    """What differs from a saved print, in words; empty if nothing does.

    Args:
        saved: of scheduler_print; None where a state was saved without a scheduler.
        scheduler: as there, or None.
    """
    now = None if scheduler is None else scheduler_print(scheduler)
    if saved is None or now is None:
        held = ["no scheduler" if one is None else f"scheduler {one['class']}" for one in (saved, now)]
        return "" if saved is now else f"{held[0]} was saved, {held[1]} was handed over"
    names = [name for name in sorted(saved.keys() | now.keys()) if saved.get(name) != now.get(name)]
    return f"another scheduler ({', '.join(names)})" if names else ""


def by_steps_alone(scheduler: Any) -> bool:  # noqa: ANN401 - any scheduler
    """Whether what it does follows from what is compared, and from how often it was stepped."""
    if type(scheduler).__module__ != lr_scheduler.__name__:
        return False
    inner = getattr(scheduler, "_schedulers", ())
    return not isinstance(scheduler, lr_scheduler.ReduceLROnPlateau) and all(map(by_steps_alone, inner))


_KINDS = (lr_scheduler.LRScheduler, lr_scheduler.ReduceLROnPlateau)


def _parts(scheduler: Any, before: str) -> Iterator[tuple[str, str]]:  # noqa: ANN401 - any scheduler
    kind = type(scheduler)
    yield f"{before}class", f"{kind.__module__}.{kind.__qualname__}"
    if kind.__module__ != lr_scheduler.__name__:
        return
    for name, value in vars(scheduler).items():
        if name == "_schedulers":
            for place, inner in enumerate(value):
                yield from _parts(inner, f"{before}{place}.")
        elif name not in _PROGRESS:
            code = next(
                (one for one in (value if isinstance(value, list) else [value]) if callable(one)), None
            )
            yield f"{before}{name}", Printer(home=code).of(value).hex()
