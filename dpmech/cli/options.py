"""Options that several commands share, and what they describe: a plan, a strategy, trusted keys."""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import click

from dpmech.certificates import PublicKey
from dpmech.cli.commands import Decorator, MissingOptionsError, Refusal, with_options
from dpmech.cli.parameters import BETWEEN_0_AND_1, OneOf, Real, Reals, Whole
from dpmech.engines import Method
from dpmech.exceptions import InvalidParameterError
from dpmech.guards import MOST_STEPS, check_delta, check_eps, check_real
from dpmech.mechanism import Adjacency, ColumnNormalized, Participation, Strategy, Workload
from dpmech.plans import (
    METHODS,
    NO_SAMPLINGS,
    SCHEDULES,
    STRATEGIES,
    Entry,
    TrainingPlan,
    build_strategy,
    check_known,
    chosen_method,
    meant,
    owners,
    read_strategy,
    sampling_name,
    samplings,
    workload_of,
)


class _Sampling(OneOf):
    """One sampling, for commands that do not take several."""

    def read(self, name: str, text: str) -> str:
        """The name."""
        if "," in text:
            raise InvalidParameterError(name, text, "one name; `dpmech compare` takes several")
        return super().read(name, sampling_name(text))


output_options = with_options(
    click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text."),
    click.option("--quiet", "-q", is_flag=True, help="No progress and no notes on standard error."),
)


def plan_options(
    *,
    several: bool = False,
    budget: Collection[str] = ("eps", "delta"),
    search: bool = True,
    here: str = "",
    default_sampling: str | None = None,
    errors: bool = False,
) -> Decorator:
    """The options that describe a training plan and its budget.

    Args:
        several: whether several samplings may be given.
        budget: which of eps and delta are options.
        search: whether sigma is searched, to a tolerance.
        here: where required settings may be given other than on the command line.
        default_sampling: the samplings if none is given; None if they are required.
        errors: whether errors are compared, so that it matters what they are about.
    """
    due = f" [required{here}]"
    names = "one or more names, separated by commas; see below"
    takers = owners()
    sampling: Any = click.STRING if several else _Sampling(samplings, reasons=NO_SAMPLINGS, listed=False)
    options = [
        click.option(
            "--dataset-size", type=Whole(1), help=f"Number of examples: a public number of the plan.{due}"
        ),
        click.option("--batch-size", type=Whole(1), help=f"Expected batch size.{due}"),
        click.option(
            "--epochs",
            type=Whole(1),
            help=f"Number of full passes over the data, unless the number of steps is given.{due}",
        ),
        click.option("--steps", type=Whole(1), help="Number of steps, instead of --epochs."),
        click.option(
            "--sampling",
            type=sampling,
            default=default_sampling,
            show_default=default_sampling is not None,
            help=f"How batches are sampled{': ' + names if several else '; see below'}."
            f"{due if default_sampling is None else ''}",
        ),
        *(
            click.option(f"--{key.replace('_', '-')}", type=Whole(1), help=f"{takers[key]}: {words}.")
            for key, words in _SETTINGS.items()
        ),
        click.option(
            "--sampling-probs",
            type=click.Path(),
            help=f"{takers['sampling_probs']}: a .npy or CSV file with one probability per step.",
        ),
        click.option(
            "--fresh", is_flag=True, default=None, help=f"{takers['fresh']}: a new allocation in every epoch."
        ),
        *_budget_options(budget, due, search=search),
        click.option(
            "--adjacency", type=OneOf(_ADJACENCIES), help="Neighbouring relation of datasets [add_remove]."
        ),
        *([_RTOL] if search else []),
        *(_ERRORS if errors else []),
        _METHOD,
        output_options,
    ]
    return with_options(*options)


# Settings of samplings, in addition to the sizes of a plan.
_SETTINGS = {
    "min_sep": "smallest distance between two participations [one epoch]",
    "separation": "smallest distance between two participations",
    "max_participations": "largest number of participations [epochs]",
    "cycle": "number of groups",
    "max_examples_per_user": "largest number of examples of one user",
    "truncated_batch_size": "largest number of examples in a batch",
}
# What errors are about, other than sums of gradients.
UPDATES = ("momentum", "learning_rates", "workload")
_ADJACENCIES = tuple(member.value for member in Adjacency)
_RTOL = click.option(
    "--rtol",
    type=Real(minimum=1e-6, maximum=0.5),
    help="Relative tolerance: largest excess of sigma over the smallest one [1e-3].",
)
_ERRORS = (
    click.option(
        "--momentum",
        type=Real(minimum=0.0, maximum=1.0, open_maximum=True),
        help="Momentum of SGD in [0, 1); errors are then those of the iterates [0].",
    ),
    click.option(
        "--learning-rates",
        help=f"Learning rates of SGD: {', '.join(SCHEDULES)}, or a .npy or CSV file with one rate per step; "
        "errors are then those of the iterates [1 at every step: errors of the sums of gradients].",
    ),
    click.option(
        "--workload",
        help="Functions of the gradients whose error is measured, instead of the iterates: identity (the "
        "gradients), window:P (sums of the last P gradients), or a .npy or CSV file with a lower triangular "
        "matrix with one row per step.",
    ),
)
seed_option = click.option(
    "--seed", type=Whole(0), help="Seed of randomised methods [operating system entropy]."
)
_METHOD = with_options(
    click.option(
        "--method",
        type=OneOf(METHODS, listed=False),
        help=f"Accountant, one of {', '.join(METHODS)} [the best valid one].",
    ),
    click.option(
        "--rigorous",
        is_flag=True,
        default=None,
        help="Refuse estimates, and allow no failure probability outside delta.",
    ),
    seed_option,
)


def _budget_options(budget: Collection[str], due: str, *, search: bool) -> list[Decorator]:
    types = {"eps": Real(minimum=0.0, open_minimum=search), "delta": BETWEEN_0_AND_1}
    words = {
        "eps": f"Privacy budget eps {'>' if search else '>='} 0.",
        "delta": "Privacy budget delta in (0, 1).",
    }
    return [click.option(f"--{name}", type=types[name], help=words[name] + due) for name in budget]


@dataclasses.dataclass(frozen=True)
class ResolvedPlan:
    """A training plan as library objects; eps and delta are None if they were not given.

    `workload` is what errors are about, as `updates` says; None is the sums of gradients.
    """

    training: TrainingPlan
    sampling: str
    participation: Participation
    adjacency: Adjacency
    eps: float | None
    delta: float | None
    rtol: float
    method: Method | None
    seed: int | None
    updates: Mapping[str, Any]
    workload: Workload | None

    @property
    def budget(self) -> tuple[float, float]:
        """Eps and delta of a plan that has both.

        Raises:
            InvalidParameterError: if one is missing.
        """
        if self.eps is None or self.delta is None:
            raise InvalidParameterError("eps" if self.eps is None else "delta", None, "given")
        return self.eps, self.delta

    def described(self) -> dict[str, Any]:
        """The plan as plain data."""
        given = {"eps": self.eps, "delta": self.delta}
        sizes = dataclasses.asdict(self.training)
        return (
            {name: value for name, value in sizes.items() if value is not None}
            | {
                "steps_per_epoch": self.training.steps_per_epoch,
                "n": self.training.steps,
                "sampling": self.sampling,
                "participation": self.participation.to_dict(),
                "amplified": not self.participation.certain,
                "adjacency": self.adjacency.value,
            }
            | {name: value for name, value in given.items() if value is not None}
            | dict(self.updates)
        )


def resolve(
    settings: Mapping[str, Any],
    *,
    budget: Collection[str] = ("eps", "delta"),
    missing: Collection[str] = (),
) -> ResolvedPlan:
    """Check the settings of a command or a plan file, and build the plan they describe.

    Args:
        settings: settings by option names, with underscores.
        budget: which of eps and delta are required.
        missing: other missing options of the command, to be named together with those of the plan.

    Raises:
        MissingOptionsError: with all missing options.
        InvalidParameterError: if a setting is unknown or invalid.
    """
    known = {
        "dataset_size", "batch_size", "epochs", "steps", "sampling", *owners(),
        "eps", "delta", "adjacency", "rtol", "method", "rigorous", "seed", *UPDATES,
    }  # fmt: skip
    for key, value in settings.items():
        if key not in known:
            accepted = "one of " + ", ".join(sorted(known))
            raise InvalidParameterError(f"plan entry {key}", value, accepted, meant(key, known))
    sampling = settings.get("sampling")
    if isinstance(sampling, str):
        sampling = sampling_name(sampling)
        settings = {**settings, "sampling": sampling}
    kind = samplings().get(sampling) if isinstance(sampling, str) else None
    own = () if kind is None else kind.plan_due
    span = "steps" if "steps" in settings else "epochs"
    if span == "steps" and "epochs" in settings:
        raise InvalidParameterError("steps", settings["steps"], "left out where epochs are given")
    due = ["dataset_size", "batch_size", span, "sampling", *own, *budget]
    absent = [key for key in due if key not in settings]
    if missing or absent:
        raise MissingOptionsError([*missing, *absent])
    made = TrainingPlan.of_steps if span == "steps" else TrainingPlan
    training = made(settings["dataset_size"], settings["batch_size"], settings[span])
    if training.steps > MOST_STEPS:
        accepted = f"so few that there are at most {MOST_STEPS} steps"
        raise InvalidParameterError(span, settings[span], accepted, f": they are {training.steps}")
    details = {key: settings[key] for key in owners() if key in settings}
    updates = {key: settings[key] for key in UPDATES if key in settings}
    participation = training.participation(settings["sampling"], **details)
    # Checks of the library, run early: a plan file may contain anything.
    checks: dict[str, Callable[[object], float]] = {
        "eps": lambda value: check_eps(value, zero_allowed="delta" not in budget),
        "delta": check_delta,
    }
    return ResolvedPlan(
        training=training,
        sampling=settings["sampling"],
        participation=participation,
        adjacency=Adjacency(
            check_known("adjacency", settings.get("adjacency", Adjacency.ADD_REMOVE.value), _ADJACENCIES)
        ),
        eps=checks["eps"](settings["eps"]) if "eps" in budget else None,
        delta=checks["delta"](settings["delta"]) if "delta" in budget else None,
        rtol=check_real("rtol", settings.get("rtol", 1e-3), minimum=1e-6, maximum=0.5),
        method=chosen_method(
            settings.get("method"),
            participation,
            rigorous=bool(settings.get("rigorous")),
            seeded=settings.get("seed") is not None,
        ),
        seed=settings.get("seed"),
        updates=updates,
        workload=workload_of(training.steps, **updates),
    )


def resolve_each(settings: Mapping[str, Any], *, missing: Collection[str] = ()) -> list[ResolvedPlan]:
    """One plan for each sampling of the settings: a list of names, or names separated by commas.

    A setting that only one sampling has, such as `cycle`, applies to that one. A boolean setting may follow a
    name: `balls-in-bins,balls-in-bins:fresh` is both.

    Raises:
        InvalidParameterError: as in `resolve`; if a sampling is named twice, or becomes another one by its
            settings; if no sampling has a setting; if a setting makes only some of the claims about users.
    """
    given = settings.get("sampling")
    if given is None:
        return [resolve(settings, missing=missing)]
    parts = [part.strip() for part in given.split(",")] if isinstance(given, str) else given
    if not isinstance(parts, list) or not parts or not all(isinstance(part, str) for part in parts):
        raise InvalidParameterError("sampling", given, "one or more of " + ", ".join(samplings()))
    parts = [sampling_name(part) for part in parts]
    if len(set(parts)) < len(parts):
        raise InvalidParameterError("sampling", given, "different names")
    belongs, kinds = owners(), samplings()
    named = {part: _flagged(part) for part in parts}
    taken = {setting for name, _ in named.values() for setting in kinds[name].plan_settings}
    for key, owner in belongs.items():
        if len(parts) > 1 and key in settings and key not in taken:
            raise InvalidParameterError(key, settings[key], f"left out without sampling {owner}")
    plans = []
    for part, (name, flags) in named.items():
        own = kinds[name].plan_settings if len(parts) > 1 else belongs
        kept = {key: value for key, value in settings.items() if key not in belongs or key in own}
        plan = resolve(kept | flags | {"sampling": name}, missing=missing)
        plans.append(dataclasses.replace(plan, sampling=part))
    if len({plan.participation for plan in plans}) < len(plans):
        raise InvalidParameterError("sampling", given, "different sampling schemes, with these settings too")
    others = [plan.sampling for plan in plans if plan.participation.unit is None]
    if 0 < len(others) < len(plans):
        raise InvalidParameterError(
            "sampling",
            given,
            f"sampling schemes with the same unit: {', '.join(others)} would protect an example, but the "
            "others a user",
        )
    return plans


def _flagged(part: str) -> tuple[str, dict[str, bool]]:
    """The name of a sampling, and the true settings after its colons."""
    name, *flags = part.split(":")
    kind = samplings()[check_known("sampling", name, samplings(), NO_SAMPLINGS)]
    for flag in flags:
        if flag not in kind.plan_settings:
            raise InvalidParameterError("sampling", part, "a name, or balls-in-bins:fresh")
    return name, dict.fromkeys(flags, True)


# For the help of commands.
NAMES = {
    "Strategies": [(name, one.title) for name, one in STRATEGIES.items()],
    "Sampling schemes": [
        (name, str(kind.__doc__).splitlines()[0].replace("`", "")) for name, kind in samplings().items()
    ],
}

_OWN = ("lam", "bands", "coefs", "decays", "scales", "matrix")


# Options that choose a strategy.
strategy_options = with_options(
    click.option(
        "--strategy",
        type=OneOf(STRATEGIES, listed=False),
        help="Correlation of the noise; see below. [this or --strategy-file required]",
    ),
    click.option(
        "--strategy-file",
        type=click.Path(),
        help="A strategy file, written by `dpmech optimize --out-strategy`.",
    ),
    click.option(
        "--lam",
        type=Real(minimum=0.0, maximum=1.0, open_maximum=True),
        help="lambda-cgd: lambda in [0, 1).",
    ),
    click.option("--bands", type=Whole(1), help="bsr, bisr: number of bands [bsr: all]."),
    click.option("--coefs", type=Reals(), help="bandmf, bandinv: coefficients, separated by commas."),
    click.option("--decays", type=Reals(), help="blt: decays in [0, 1], separated by commas."),
    click.option("--scales", type=Reals(), help="blt: scales, separated by commas."),
    click.option("--matrix", type=click.Path(), help="dense: a .npy or CSV file."),
    click.option("--column-normalized", is_flag=True, help="Scale the columns of the strategy to norm 1."),
)


@dataclasses.dataclass(frozen=True)
class ChosenStrategy:
    """A strategy, and its label in tables."""

    label: str
    build: Callable[[int], Strategy]


def chosen_strategy(given: dict[str, Any]) -> tuple[ChosenStrategy | None, list[str]]:
    """Remove the options of `strategy_options` from the given ones, and build the strategy.

    Returns:
        The strategy, and the options missing for one; one of the two is empty.

    Raises:
        InvalidParameterError: if options conflict, or a file does not contain a strategy.
    """
    name, file = given.pop("strategy"), given.pop("strategy_file")
    normalized = given.pop("column_normalized")
    own = {key: value for key in _OWN if (value := given.pop(key)) is not None}
    if file is not None:
        for key, value in [("strategy", name), *own.items()]:
            if value is not None:
                raise InvalidParameterError(key, value, "left out with --strategy-file")
        return _from_file(file, normalized=normalized), []
    if name is None:
        return None, ["--strategy (or --strategy-file)"]
    takes = STRATEGIES[name]
    for key, value in own.items():
        if key not in takes.options:
            owners = ", ".join(other for other, one in STRATEGIES.items() if key in one.options)
            raise InvalidParameterError(
                key, value, f"left out with --strategy {name}", f" (it belongs to {owners})"
            )
    missing = [key for key in takes.due if key not in own]
    if missing:
        return None, missing
    entry = Entry(name, own, normalized)
    return ChosenStrategy(entry.label, lambda n: build_strategy(entry, n)), []


def _from_file(file: str, *, normalized: bool) -> ChosenStrategy:
    strategy = read_strategy(file)
    if normalized:
        strategy = ColumnNormalized(strategy)

    def build(n: int) -> Strategy:
        if strategy.n != n:
            raise InvalidParameterError(
                "strategy_file",
                file,
                f"a strategy with {n} steps, as many as in the plan",
                f", with {strategy.n}",
            )
        return strategy

    label = f"strategy of {file}"
    return ChosenStrategy(f"{label}, column-normalised" if normalized else label, build)


def _only_one(ctx: click.Context, _parameter: click.Parameter, files: tuple[str, ...]) -> str | None:
    """Refuse a second policy: the last one would silently replace the others."""
    if len(files) > 1:
        raise Refusal(f"--policy is given once, got {files[0]} and {files[1]}", ctx)
    return files[0] if files else None


policy_option = click.option(
    "--policy",
    multiple=True,
    callback=_only_one,
    type=click.Path(),
    metavar="FILE",
    help="TOML file of rules that claims must meet: max_eps, forbidden_guarantees, ...",
)

key_options = with_options(
    click.option(
        "--key",
        "keys",
        multiple=True,
        type=click.Path(),
        metavar="FILE",
        help="Trusted public key. One of the signatures in FILE.dsse must be by such a key. Repeatable.",
    ),
    click.option("--require-signature", is_flag=True, help="Refuse files that no trusted key signed."),
)


def trusted_keys(files: Sequence[str], *, needed: bool) -> tuple[PublicKey, ...]:
    """Read the keys in these files.

    Raises:
        MissingOptionsError: if a key is needed and none is given.
        InvalidParameterError: if one cannot be read.
    """
    keys = tuple(PublicKey.load(file) for file in files)
    if needed and not keys:
        raise MissingOptionsError(["--key (a public key that is trusted)"])
    return keys
