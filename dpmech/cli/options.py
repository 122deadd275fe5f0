"""The options that every sizing command shares, and the plan that they add up to."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from dpmech.accounting import Method
from dpmech.exceptions import InvalidParameterError
from dpmech.mechanism import Adjacency, Participation
from dpmech.plans import METHODS, TrainingPlan, chosen_method, owners, samplings

__all__ = ["ResolvedPlan", "comparison_options", "plan_options", "resolve", "resolve_each"]

_Command = TypeVar("_Command", bound=Callable[..., Any])


def plan_options(command: _Command) -> _Command:
    """The options that describe a training plan and its budget."""
    return _with_options(command, click.Choice(samplings()), "How batches are drawn.")


def comparison_options(command: _Command) -> _Command:
    """The same for a plan with several samplings."""
    several = f"How batches are drawn: one or more of {', '.join(samplings())}, joined by commas."
    return _with_options(command, click.STRING, several)


def _with_options(command: _Command, sampling: "click.ParamType[Any]", sampling_help: str) -> _Command:
    options = [
        click.option("--dataset-size", type=int, help="Number of examples (public)."),
        click.option("--batch-size", type=int, help="Expected batch size."),
        click.option("--epochs", type=int, help="Whole passes over the data."),
        click.option("--sampling", type=sampling, help=sampling_help),
        click.option(
            "--min-sep", type=int, help="min-sep: least distance of two participations [one epoch]."
        ),
        click.option("--max-participations", type=int, help="min-sep: most participations [epochs]."),
        click.option("--cycle", type=int, help="cyclic-poisson: number of groups."),
        click.option("--eps", type=float, help="Privacy budget eps > 0."),
        click.option("--delta", type=float, help="Privacy budget delta in (0, 1)."),
        click.option(
            "--adjacency", type=click.Choice([member.value for member in Adjacency]), help="[add_remove]"
        ),
        click.option("--rtol", type=float, help="Sigma is within this factor of the smallest one [1e-3]."),
        click.option("--method", type=click.Choice(list(METHODS)), help="Accountant [the best valid one]."),
        click.option(
            "--rigorous",
            is_flag=True,
            default=None,
            help="Size without sampling, or with its error inside delta.",
        ),
        click.option("--seed", type=int, help="Seed of randomised methods [operating system entropy]."),
        click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@dataclasses.dataclass(frozen=True)
class ResolvedPlan:
    """A training plan with its budget, as the library takes it."""

    training: TrainingPlan
    sampling: str
    participation: Participation
    adjacency: Adjacency
    eps: float
    delta: float
    rtol: float
    method: Method | None
    seed: int | None

    def described(self) -> dict[str, Any]:
        """The plan as plain data, for people and for JSON."""
        return dataclasses.asdict(self.training) | {
            "steps_per_epoch": self.training.steps_per_epoch,
            "n": self.training.n,
            "sampling": self.sampling,
            "participation": repr(self.participation),
            "amplified": self.participation.random,
            "adjacency": self.adjacency.value,
            "eps": self.eps,
            "delta": self.delta,
        }


def resolve(settings: Mapping[str, Any]) -> ResolvedPlan:
    """Check the settings of a command or a plan file, and build what they describe.

    Raises:
        InvalidParameterError: on an unknown, missing or bad setting.
    """
    known = {
        "dataset_size", "batch_size", "epochs", "sampling", *owners(),
        "eps", "delta", "adjacency", "rtol", "method", "rigorous", "seed",
    }  # fmt: skip
    for key, value in settings.items():
        if key not in known:
            raise InvalidParameterError(f"plan entry {key}", value, "one of " + ", ".join(sorted(known)))
    for key in ("dataset_size", "batch_size", "epochs", "sampling", "eps", "delta"):
        if key not in settings:
            raise InvalidParameterError(key, None, f"given (--{key.replace('_', '-')})")
    training = TrainingPlan(settings["dataset_size"], settings["batch_size"], settings["epochs"])
    details = {key: settings[key] for key in owners() if key in settings}
    participation = training.participation(settings["sampling"], **details)
    return ResolvedPlan(
        training=training,
        sampling=settings["sampling"],
        participation=participation,
        adjacency=_adjacency(settings.get("adjacency", "add_remove")),
        eps=settings["eps"],
        delta=settings["delta"],
        rtol=settings.get("rtol", 1e-3),
        method=chosen_method(
            settings.get("method"),
            participation,
            rigorous=bool(settings.get("rigorous")),
            seeded=settings.get("seed") is not None,
        ),
        seed=settings.get("seed"),
    )


def resolve_each(settings: Mapping[str, Any]) -> list[ResolvedPlan]:
    """One plan for each sampling of the settings: a list of names, or names joined by commas.

    Settings that one sampling alone takes, such as `cycle`, go to it.

    Raises:
        InvalidParameterError: as `resolve`; on a sampling that is named twice; on a setting that none takes.
    """
    given = settings.get("sampling")
    if given is None:
        return [resolve(settings)]
    names = [part.strip() for part in given.split(",")] if isinstance(given, str) else given
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise InvalidParameterError("sampling", given, "one or more of " + ", ".join(samplings()))
    if len(set(names)) < len(names):
        raise InvalidParameterError("sampling", given, "named once each")
    if len(names) == 1:
        return [resolve({**settings, "sampling": names[0]})]
    belongs = owners()
    for key, owner in belongs.items():
        if key in settings and owner not in names:
            raise InvalidParameterError(key, settings[key], f"left out without sampling {owner}")
    return [
        resolve(
            {key: value for key, value in settings.items() if belongs.get(key, name) == name}
            | {"sampling": name}
        )
        for name in names
    ]


def _adjacency(name: object) -> Adjacency:
    named = {member.value: member for member in Adjacency}
    if not isinstance(name, str) or name not in named:
        raise InvalidParameterError("adjacency", name, "one of " + ", ".join(named))
    return named[name]
